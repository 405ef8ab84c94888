"""Rows shared out and put together again: every row once and in order, with the memory order it had."""

from __future__ import annotations

import pytest
import torch
from process_group import on_processes

from unissl.distributed import group, rows
from unissl.distributed.group import World
from unissl.errors import UserError


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("total", [0, 1, 2, 3, 7, 10])
def test_each_row_has_one_owner_or_everybody(monkeypatch: pytest.MonkeyPatch, size: int, total: int) -> None:
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


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("total", [3, 4, 7, 10])
def test_fixed_shards_are_the_same_on_any_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, size: int, total: int
) -> None:
    found = []
    for rank in range(size):
        monkeypatch.setattr(rows, "current", lambda rank=rank: World(rank, size, fixed_shards=4))
        own = rows.shard_slices(total)
        assert rows.local_slice(total) == slice(own[0].start, own[-1].stop)
        pieces = rows.split_local(torch.arange(total)[rows.local_slice(total)], total)
        assert [piece.tolist() for piece in pieces] == [list(range(total))[shard] for shard in own]
        found.append([len(piece) for piece in pieces])
    if total < 4:  # though there are processes enough
        assert found == [[total]] * size
    else:
        assert [count for process in found for count in process] == rows.sizes(total)
        assert max(rows.sizes(total)) - min(rows.sizes(total)) <= 1


def test_shards_that_cannot_be_shared_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_world", World(0, 2))
    with pytest.raises(UserError, match="multiple of their number"), group.fixed_shards(3):
        pass
    with group.fixed_shards(4):
        assert group.current() == World(0, 2, fixed_shards=4) and group.current().shards == 4
    assert group.current().shards == 2


def exchanged() -> list[torch.Tensor]:
    maps = torch.arange(7 * 2 * 3 * 2.0).view(7, 2, 3, 2)
    whole = [maps, maps.to(memory_format=torch.channels_last) + 1, torch.ones(1, 4), torch.arange(6.0).view(3, 2)]
    parts = [value[rows.local_slice(len(value))] for value in whole]
    found = rows.all_gather_rows(parts, [len(value) for value in whole])
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(found, whole, strict=True))
    few = torch.zeros(1, 3)
    assert rows.all_gather_rows([few], [1])[0] is few
    return found


def test_put_together_gives_the_whole_on_every_process() -> None:
    alone = exchanged()
    for process in on_processes(3, exchanged):
        assert all(torch.equal(a, b) for a, b in zip(process, alone, strict=True))
