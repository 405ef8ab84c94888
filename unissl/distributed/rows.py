"""Rows of a batch, shared out in order: each process has a stretch of them, and puts the results together again.

The rows are cut into shards, and a process has as many consecutive ones as any other: one, unless their number is fixed
(:func:`unissl.distributed.group.fixed_shards`). Fewer rows than shards are not shared out: every process has them all,
and there is nothing to put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from unissl.distributed.group import comm_errors, current


def shared_out(total: int) -> bool:
    return 1 < current().shards <= total


def sizes(total: int) -> list[int]:
    """Rows of each shard, as even as can be."""
    shards = current().shards
    if not shared_out(total):
        return [total] * shards
    return [total // shards + (shard < total % shards) for shard in range(shards)]


def shard_slices(total: int, rank: int | None = None) -> list[slice]:
    """The rows of each shard that this process has, or the one of number ``rank``."""
    if not shared_out(total):
        return [slice(0, total)]
    world = current()
    each, rank = world.shards // world.size, world.rank if rank is None else rank
    shares = sizes(total)
    ends = [sum(shares[:shard]) for shard in range(rank * each, (rank + 1) * each + 1)]
    return [slice(*between) for between in pairwise(ends)]


def local_slice(total: int, rank: int | None = None) -> slice:
    """The rows of this process, or of the one of number ``rank``."""
    own = shard_slices(total, rank)
    return slice(own[0].start, own[-1].stop)


def gather(own: Tensor) -> Tensor:
    """What all processes have, (N k, ...), of which this one has (k, ...), in the order of the processes."""
    size = current().size
    if size == 1:
        return own
    received = own.new_empty(size, *own.shape)
    with comm_errors():
        dist.all_gather(list(received.unbind()), own.contiguous())
    return received.flatten(0, 1)


def split_local(own: Tensor, total: int) -> list[Tensor]:
    """This process's rows of ``total``, cut into its shards; as copies, since a kernel may choose by the address."""
    lengths = [rows.stop - rows.start for rows in shard_slices(total)]
    return [own] if len(lengths) == 1 else [piece.clone() for piece in torch.split(own, lengths)]


def cat(pieces: Sequence[Tensor]) -> Tensor:
    """Own rows from own shards."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


def all_gather_rows(parts: Sequence[Tensor], totals: Sequence[int]) -> list[Tensor]:
    """All rows of several tensors, of which this process has :func:`mine`, in one exchange.

    The tensors have one type of number and one device; each keeps its memory order, channels last or not, since that
    decides which kernels run on it. With shards, one process alone goes the same way: nothing may tell it from several.
    """
    wholes = list(parts)
    which = [i for i, total in enumerate(totals) if shared_out(total)]
    if not which:
        return wholes
    size = current().size
    last = [_channels_last(parts[i]) for i in which]
    rows = [parts[i].permute(0, 2, 3, 1) if swap else parts[i] for i, swap in zip(which, last, strict=True)]
    shares = [[own.stop - own.start for own in (local_slice(totals[i], rank) for rank in range(size))] for i in which]
    lengths = [max(share) * row[0].numel() for share, row in zip(shares, rows, strict=True)]  # padded to the longest
    sent = rows[0].new_zeros(1, sum(lengths))
    for row, stretch in zip(rows, torch.split(sent[0], lengths), strict=True):
        stretch[: row.numel()].view(row.shape).copy_(row)
    received = torch.split(gather(sent), lengths, 1)
    for i, swap, row, share, found in zip(which, last, rows, shares, received, strict=True):
        blocks = zip(found, share, strict=True)
        whole = torch.cat([block[: count * row[0].numel()].view(count, *row.shape[1:]) for block, count in blocks])
        wholes[i] = whole.permute(0, 3, 1, 2) if swap else whole
    return wholes


def _channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
