"""A group gets a name of its own, whatever earlier groups left in the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from unissl.distributed.group import agree_on_name

LONG = timedelta(seconds=60)


def names(store: dist.Store, size: int) -> list[str]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: agree_on_name(store, rank, size, LONG), reversed(range(size))))


def test_every_start_has_a_name_of_its_own_though_the_store_stays() -> None:
    store = dist.HashStore()
    starts = [names(store, size) for size in (2, 3, 2, 4, 2)]
    assert all(len(set(start)) == 1 for start in starts)
    assert len({start[0] for start in starts}) == len(starts)


def test_who_died_while_meeting_is_replaced() -> None:
    """A process says that it saw the name and is gone; the one that takes its place has another mark."""
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(agree_on_name, store, 0, 2, LONG)
        store.wait(["unissl/name"])
        name = store.get("unissl/name").decode()
        store.set(f"unissl/{name}/seen/1", "dead")
        store.wait([f"unissl/{name}/all"])
        assert pool.submit(agree_on_name, store, 1, 2, LONG).result() == first.result() == name


def test_nobody_is_waited_for_without_end() -> None:
    with pytest.raises(TimeoutError, match="not all of the 2 processes arrived"):
        agree_on_name(dist.HashStore(), 0, 2, timedelta(seconds=0.1))
