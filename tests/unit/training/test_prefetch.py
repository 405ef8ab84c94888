"""Batches made ahead are the same batches, in any order of asking, and their errors arrive."""

from __future__ import annotations

import threading

import pytest
import torch
from method_cases import make_batches, make_split

from unissl.batches import Batches
from unissl.methods.fixmatch import FixMatchConfig
from unissl.run.fit import has_spare_core
from unissl.training.prefetch import Prefetch
from unissl.types import Batch

BATCHES = make_batches(FixMatchConfig(), make_split(3))


def same(one: Batch, other: Batch) -> bool:
    return all(
        torch.equal(one[name].index, other[name].index)
        and all(torch.equal(one[name].views[view], other[name].views[view]) for view in one[name].views)
        for name in one
    )


@pytest.mark.parametrize("ahead", [True, False])
def test_same_batches(ahead: bool) -> None:
    with Prefetch(BATCHES, 6, ahead) as upcoming:
        for step in (0, 1, 2, 5, 3, 4):  # out of order too: then it is made on demand
            assert same(upcoming.at(step), BATCHES.at(step))


def test_the_next_batch_is_made_in_another_thread_and_none_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, bool]] = []
    plain = Batches.share_at

    def watched(self: Batches, step: int, promoted: object = None) -> Batch:
        made.append((step, threading.current_thread() is threading.main_thread()))
        return plain(self, step)

    monkeypatch.setattr(Batches, "share_at", watched)
    with Prefetch(BATCHES, 3) as upcoming:
        for step in range(3):
            upcoming.at(step)
    assert made == [(0, True), (1, False), (2, False)]


def test_nothing_is_prepared_early_while_images_are_promoted() -> None:
    promoted = (torch.tensor([0, 2]), torch.eye(3)[:2])
    with Prefetch(BATCHES, 6) as upcoming:
        upcoming.at(0)
        assert same(upcoming.at(1, promoted), BATCHES.at(1, promoted))
        assert upcoming.pending is None


def test_an_error_in_the_background_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    with Prefetch(BATCHES, 6) as upcoming:
        upcoming.at(0)
        assert upcoming.pending is not None
        upcoming.pending[1].result()

        def broken(self: Batches, step: int, promoted: object = None) -> Batch:
            raise OSError("disk gone")

        monkeypatch.setattr(Batches, "share_at", broken)
        upcoming.at(1)
        with pytest.raises(OSError, match="disk gone"):
            upcoming.at(2)


def test_by_default_only_where_a_core_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.run.fit.cpu_count", lambda: 4)
    for threads, free in ((4, False), (5, False), (3, True), (1, True)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert has_spare_core(torch.device("cpu")) == free
        assert has_spare_core(torch.device("cuda"))
