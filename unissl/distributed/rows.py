"""Rows of a batch, shared out in order: each process has a stretch of them, and puts the results together again.

Fewer rows than processes are not shared out: every process has them all, and there is nothing to put together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from unissl.distributed.group import current, talking


def shared_out(total: int) -> bool:
    return 1 < current().size <= total


def sizes(total: int) -> list[int]:
    """Rows of each process, as even as can be."""
    world = current()
    if not shared_out(total):
        return [total] * world.size
    return [total // world.size + (rank < total % world.size) for rank in range(world.size)]


def mine(total: int) -> slice:
    """The rows of this process."""
    if not shared_out(total):
        return slice(0, total)
    shares, rank = sizes(total), current().rank
    return slice(sum(shares[:rank]), sum(shares[: rank + 1]))


def put_together(parts: Sequence[Tensor], totals: Sequence[int]) -> list[Tensor]:
    """All rows of several tensors, of which this process has :func:`mine`, in one exchange.

    The tensors have one type of number and one device; each keeps its memory order, channels last or not, since that
    decides which kernels run on it.
    """
    wholes = list(parts)
    which = [i for i, total in enumerate(totals) if shared_out(total)]
    if not which:
        return wholes
    size, rank = current().size, current().rank
    last = [_channels_last(parts[i]) for i in which]
    rows = [parts[i].permute(0, 2, 3, 1) if swap else parts[i] for i, swap in zip(which, last, strict=True)]
    blocks = [-(-totals[i] // size) for i in which]  # the shorter shares are padded to the longest
    lengths = [block * row[0].numel() for block, row in zip(blocks, rows, strict=True)]
    sent = rows[0].new_zeros(sum(lengths))
    for row, stretch in zip(rows, torch.split(sent, lengths), strict=True):
        stretch[: row.numel()].view(row.shape).copy_(row)
    received = sent.new_empty(size, len(sent))
    with talking():
        dist.all_gather(list(received.unbind()), sent)
    for i, swap, row, found in zip(which, last, rows, torch.split(received, lengths, 1), strict=True):
        stretches = [
            found[other][: share * row[0].numel()].view(share, *row.shape[1:])
            for other, share in enumerate(sizes(totals[i]))
        ]
        stretches[rank] = row
        whole = torch.cat(stretches)
        wholes[i] = whole.permute(0, 3, 1, 2) if swap else whole
    return wholes


def _channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
