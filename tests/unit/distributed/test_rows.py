"""Rows split over processes and gathered again: every row once and in order, with the memory order it had."""

from __future__ import annotations

import pytest
import torch
from process_group import on_processes

from unissl.distributed import rows
from unissl.distributed.collectives import broadcast_state
from unissl.distributed.group import World, current


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("total", [0, 1, 2, 3, 7, 10])
def test_each_row_is_on_one_process_or_on_all(monkeypatch: pytest.MonkeyPatch, size: int, total: int) -> None:
    owned = []
    for rank in range(size):
        monkeypatch.setattr(rows, "current", lambda rank=rank: World(rank, size))
        own = rows.local_slice(total)
        assert own.stop - own.start == rows.sizes(total)[rank]
        owned.append(list(range(total))[own])
    if total < size or size == 1:
        assert owned == [list(range(total))] * size
    else:
        assert [row for rows_of_one in owned for row in rows_of_one] == list(range(total))
        assert max(map(len, owned)) - min(map(len, owned)) <= 1


def exchanged() -> list[torch.Tensor]:
    maps = torch.arange(7 * 2 * 3 * 2.0).view(7, 2, 3, 2)
    whole = [maps, maps.to(memory_format=torch.channels_last) + 1, torch.ones(1, 4), torch.arange(6.0).view(3, 2)]
    parts = [value[rows.local_slice(len(value))] for value in whole]
    found = rows.all_gather_rows(parts, [len(value) for value in whole])
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(found, whole, strict=True))
    few = torch.zeros(1, 3)
    assert rows.all_gather_rows([few], [1])[0] is few
    return found


def test_gathering_gives_the_whole_on_every_process() -> None:
    alone = exchanged()
    for process in on_processes(3, exchanged):
        assert all(torch.equal(a, b) for a, b in zip(process, alone, strict=True))


def unusual() -> list[torch.Tensor]:
    """Numbers that gloo cannot send as they are: more than 256 classes need int16, flags are bool."""
    whole = [torch.arange(5, dtype=torch.int16) * 300, torch.tensor([True, False, True]), torch.arange(4).bfloat16()]
    state = {f"{value.dtype}": value * (current().rank == 0) for value in whole}
    broadcast_state(state)
    assert all(torch.equal(found, value) for found, value in zip(state.values(), whole, strict=True))
    return [rows.all_gather_rows([value[rows.local_slice(len(value))]], [len(value)])[0] for value in whole]


def test_any_type_of_number_is_exchanged() -> None:
    alone = unusual()
    for process in on_processes(2, unusual):
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(process, alone, strict=True))
