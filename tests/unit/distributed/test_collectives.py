"""One process computes, all get the result; errors of the connection are told from others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from process_group import on_processes

from unissl.distributed.collectives import all_reduce_max, broadcast_from_main, local_main_process_first
from unissl.distributed.group import ALONE, ProcessLost, comm_errors, current, launched, processes
from unissl.errors import UserError


def agreed(folder: Path) -> tuple[object, ...]:
    rank = current().rank
    with pytest.raises(UserError, match="of process 0"):
        broadcast_from_main(lambda: refuse(rank))

    def make() -> list[str]:
        before = sorted(path.name for path in folder.iterdir())
        (folder / str(rank)).touch()
        return before

    seen = local_main_process_first(make)
    return broadcast_from_main(lambda: rank), all_reduce_max(rank), seen


def refuse(rank: int) -> None:
    raise UserError(f"of process {rank}")


def test_the_first_process_decides_and_builds_before_the_others(tmp_path: Path) -> None:
    first, second = on_processes(2, agreed, tmp_path)
    assert first == (0, 1, [])
    assert second == (0, 1, ["0"])


def test_alone_nothing_is_asked_of_anybody() -> None:
    assert current() == ALONE and broadcast_from_main(lambda: 3) == 3 and all_reduce_max(4) == 4
    with pytest.raises(UserError, match="of process 0"):
        broadcast_from_main(lambda: refuse(0))
    assert local_main_process_first(lambda: 5) == 5


def test_only_several_processes_with_a_meeting_point_form_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not launched()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not launched()
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    assert launched()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not launched()
    with processes() as world:
        assert world == ALONE


def outlive() -> str:
    if current().rank == 1:
        os._exit(0)
    with pytest.raises(ProcessLost) as error:
        all_reduce_max(0)
    return str(error.value)


def foreign_error() -> str:
    with pytest.raises(RuntimeError) as error, comm_errors():
        dist.all_reduce(torch.zeros(2, dtype=torch.int16))  # a mistake of ours, of which no other process is to blame
    return str(error.value)


def test_an_error_that_is_not_of_the_connection_keeps_its_message() -> None:
    for message in on_processes(2, foreign_error):
        assert "Another process" not in message and "type" in message


@pytest.mark.parametrize(
    "cause", ["[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711", "Socket Timeout"]
)
def test_a_lost_process_is_named_with_the_cause(cause: str) -> None:
    with (
        pytest.raises(ProcessLost, match="Another process of this run has ended .*--resume auto") as error,
        comm_errors(),
    ):
        raise RuntimeError(cause)
    assert cause in str(error.value)


def test_a_lost_process_is_noticed_at_once() -> None:
    with pytest.raises(EOFError):  # the answer of the process that is gone
        on_processes(2, outlive)
