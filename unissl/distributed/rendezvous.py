"""Agree on a name for a group that no earlier group has had.

Torchrun keeps one store over all its restarts. What processes of an earlier start left in it, such as addresses that
nobody listens on any more, must not be taken for that of this start. The first process invents a name; the others say
that they have seen it, each with a mark of its own; the first then repeats all marks, and who finds its own among them
knows that the name is of this start.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

PAUSE = 0.02
"""Seconds between two looks into the store."""


def agree_on_name(store: Any, rank: int, size: int, longest: timedelta) -> str:
    """A name that all processes of this start, and no others, get."""
    own, until = uuid.uuid4().hex, time.monotonic() + longest.total_seconds()
    if rank == 0:
        store.set("unissl/name", own)
    while time.monotonic() < until:
        name = own if rank == 0 else _read(store, "unissl/name")
        if name is not None and (_invite(store, name, size) if rank == 0 else _accept(store, name, rank, own)):
            return name
        time.sleep(PAUSE)
    raise RuntimeError("the other processes did not come")


def _invite(store: Any, name: str, size: int) -> bool:
    """Repeat the marks of those who saw the name; whether all of them have found theirs."""
    marks = [_read(store, f"unissl/{name}/seen/{rank}") for rank in range(1, size)]
    if None in marks:
        return False
    store.set(f"unissl/{name}/all", " ".join(str(mark) for mark in marks))
    return all(_read(store, f"unissl/{name}/found/{rank + 1}") == mark for rank, mark in enumerate(marks))


def _accept(store: Any, name: str, rank: int, mark: str) -> bool:
    """Say that the name was seen; whether the first process has answered."""
    store.set(f"unissl/{name}/seen/{rank}", mark)
    if mark not in (_read(store, f"unissl/{name}/all") or "").split():
        return False
    store.set(f"unissl/{name}/found/{rank}", mark)
    return True


def _read(store: Any, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None
