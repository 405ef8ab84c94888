"""A process leaves its group with no thread of it left: one that is left when Python ends may abort the process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from process_group import on_processes

from unissl.distributed.group import processes

THREADS = Path("/proc/self/task")
KEEPS_THE_GROUP = "torch.distributed.nn.functional"
"""Its default arguments are the group that exists when it is imported; torch imports it when it is first needed."""

pytestmark = pytest.mark.skipif(not THREADS.exists(), reason="the system does not list threads")


def threads_after_a_run() -> set[str]:
    sys.modules.pop(KEEPS_THE_GROUP, None)
    with processes():
        dist.all_reduce(torch.ones(3))
        importlib.import_module(KEEPS_THE_GROUP)
    return threads()


def threads_after_an_error() -> set[str]:
    with pytest.raises((KeyError, SystemExit)), processes():
        dist.all_reduce(torch.ones(3))
        raise KeyError
    return threads()


def threads() -> set[str]:
    names = {(task / "comm").read_text().strip() for task in THREADS.iterdir()}
    return {name for name in names if "gloo" in name}


@pytest.mark.parametrize("left", [threads_after_a_run, threads_after_an_error])
def test_no_thread_of_the_group_is_left(left: Callable[[], set[str]]) -> None:
    assert on_processes(2, left, join=False) == [set(), set()]
