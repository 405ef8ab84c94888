"""Agree on a name for a group that no earlier group has had.

Torchrun keeps one store over all its restarts. Entries of an earlier start, such as addresses on which nobody listens
any more, must not be taken for entries of this one. The main process chooses a random name; every other process
acknowledges it with a random token; the main process then publishes all tokens. A process that finds its own token
among them knows that the name belongs to this start.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

POLL_SECONDS = 0.02
"""Seconds between two reads of the store."""


def agree_on_name(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """A name that all processes of this start, and no others, get."""
    token, deadline = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    if rank == 0:
        store.set("unissl/name", token)
    while time.monotonic() < deadline:
        name = token if rank == 0 else _read(store, "unissl/name")
        if name is not None and (_invite(store, name, size) if rank == 0 else _accept(store, name, rank, token)):
            return name
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"not all of the {size} processes arrived within {timeout.total_seconds():.0f} s")


def _invite(store: Any, name: str, size: int) -> bool:
    """Publish the tokens of the processes that read the name; returns whether all of them have found theirs."""
    tokens = [_read(store, f"unissl/{name}/seen/{rank}") for rank in range(1, size)]
    if None in tokens:
        return False
    store.set(f"unissl/{name}/all", " ".join(str(token) for token in tokens))
    return all(_read(store, f"unissl/{name}/found/{rank + 1}") == token for rank, token in enumerate(tokens))


def _accept(store: Any, name: str, rank: int, token: str) -> bool:
    """Acknowledge the name; returns whether the main process has published the token."""
    store.set(f"unissl/{name}/seen/{rank}", token)
    if token not in (_read(store, f"unissl/{name}/all") or "").split():
        return False
    store.set(f"unissl/{name}/found/{rank}", token)
    return True


def _read(store: Any, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None
