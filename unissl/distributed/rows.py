"""Rows of a batch, split over the processes in order and gathered again.

Every process has a slice of consecutive rows. A batch of fewer rows than processes is not split: every process has all
rows, and there is nothing to gather.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from unissl.distributed.group import comm_errors, current


def is_split(total: int) -> bool:
    """Whether a batch of ``total`` rows is split over the processes."""
    return 1 < current().size <= total


def sizes(total: int) -> list[int]:
    """Rows of each process, as even as possible."""
    size = current().size
    if not is_split(total):
        return [total] * size
    return [total // size + (rank < total % size) for rank in range(size)]


def local_slice(total: int) -> slice:
    """The rows of this process."""
    if not is_split(total):
        return slice(0, total)
    counts, rank = sizes(total), current().rank
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])


def gather(local: Tensor) -> Tensor:
    """The tensors (...) of all N processes as (N, ...), in the order of their ranks."""
    size = current().size
    if size == 1:
        return local[None]
    gathered = local.new_empty(size, *local.shape)
    with comm_errors():
        dist.all_gather(list(as_bytes(gathered).unbind()), as_bytes(local.contiguous()[None])[0])
    return gathered


def as_bytes(tensor: Tensor) -> Tensor:
    """A view of a contiguous tensor (n, ...) as bytes (n, m), since gloo sends only some types of numbers."""
    return tensor.detach().flatten(1).view(torch.uint8)


def all_gather_rows(parts: Sequence[Tensor], totals: Sequence[int]) -> list[Tensor]:
    """All rows of several tensors, of which this process has those of :func:`local_slice`, in one exchange.

    The tensors have one dtype and one device. Each keeps its memory format, channels last or not, since that decides
    which kernels run on it.
    """
    wholes = list(parts)
    split = [i for i, total in enumerate(totals) if is_split(total)]
    if not split:
        return wholes
    last = [_channels_last(parts[i]) for i in split]
    rows = [parts[i].permute(0, 2, 3, 1) if swap else parts[i] for i, swap in zip(split, last, strict=True)]
    counts = [sizes(totals[i]) for i in split]
    lengths = [max(count) * row[0].numel() for count, row in zip(counts, rows, strict=True)]  # padded to the longest
    sent = rows[0].new_zeros(sum(lengths))
    for row, block in zip(rows, torch.split(sent, lengths), strict=True):
        block[: row.numel()].view(row.shape).copy_(row)
    received = torch.split(gather(sent), lengths, 1)
    for i, swap, row, count, blocks in zip(split, last, rows, counts, received, strict=True):
        pairs = zip(blocks, count, strict=True)
        whole = torch.cat([block[: n * row[0].numel()].view(n, *row.shape[1:]) for block, n in pairs])
        wholes[i] = whole.permute(0, 3, 1, 2) if swap else whole
    return wholes


def _channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
