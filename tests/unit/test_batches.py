"""Batches: passes over permutations, sizes, and that a step number says everything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import make_batches, make_split

from unissl.batches import BatchConfig, draw_positions, subsets
from unissl.methods.fixmatch import FixMatchConfig

SPLIT = make_split(3, pool_size=11)
BATCHES = make_batches(FixMatchConfig(), SPLIT)


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 12), count=st.integers(1, 30), seed=st.integers(0, 3))
def test_every_pass_sees_each_image_once(size: int, count: int, seed: int) -> None:
    """Batches of any size, one after the other, cut a row of whole permutations."""
    steps = 3 * size
    row = np.concatenate([draw_positions(seed, "labelled", size, step * count, count) for step in range(steps)])
    assert len(row) == steps * count
    for number in range(len(row) // size):
        assert sorted(row[number * size : (number + 1) * size]) == list(range(size))


def test_steps_follow_each_other_in_a_pass() -> None:
    """Eleven batches of ten are ten passes over a pool of eleven."""
    row = torch.cat([BATCHES.at(step)["unlabelled"].index for step in range(11)])
    assert all(sorted(part.tolist()) == list(range(11)) for part in row.reshape(10, 11))


def test_passes_streams_and_seeds_have_orders_of_their_own() -> None:
    first, second = np.split(draw_positions(0, "labelled", 50, 0, 100), 2)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, draw_positions(0, "unlabelled", 50, 0, 50))
    assert not np.array_equal(first, draw_positions(1, "labelled", 50, 0, 50))


def test_a_batch_may_be_larger_than_its_pool() -> None:
    batch = replace(BATCHES, config=BatchConfig(labelled=13, unlabelled=30)).at(0)
    assert len(batch["labelled"]) == 13
    seen = np.bincount(batch["unlabelled"].index.numpy(), minlength=11)
    assert seen.sum() == 30 and set(seen) <= {2, 3}


def test_a_step_gives_the_same_batch_in_any_order_and_process() -> None:
    again = make_batches(FixMatchConfig(), SPLIT)
    late, early = again.at(7), again.at(2)
    for step, got in ((2, early), (7, late)):
        for name, stream in BATCHES.at(step).items():
            assert torch.equal(stream.index, got[name].index)
            assert all(torch.equal(stream.views[view], got[name].views[view]) for view in stream.views)
    assert not torch.equal(early["unlabelled"].views["weak"], late["unlabelled"].views["weak"])


def test_targets_are_one_hot_and_only_for_labelled_images() -> None:
    batch = BATCHES.at(3)
    labelled = batch["labelled"]
    assert torch.equal(labelled.targets.argmax(1), torch.from_numpy(SPLIT.labels)[labelled.index])
    assert torch.equal(labelled.targets.sum(1), torch.ones(6))
    assert batch["unlabelled"].target is None
    with pytest.raises(ValueError, match="no targets"):
        _ = batch["unlabelled"].targets


def test_images_are_those_of_the_rows() -> None:
    """The view "none" of a scan is the normalised image of the split's row."""
    for source, rows in (("labelled", SPLIT.labelled), ("unlabelled", SPLIT.unlabelled)):
        batch = next(iter(BATCHES.scan_shares(source)))  # type: ignore[arg-type]
        expected = (BATCHES.views.images[rows[:7]].transpose(0, 3, 1, 2) / 255 - 0.5) / 0.25
        np.testing.assert_allclose(batch.views["none"].numpy(), expected, atol=1e-5)


def test_a_scan_covers_each_image_once_and_in_order() -> None:
    found = list(BATCHES.scan_shares("unlabelled"))
    assert [len(batch) for batch in found] == [7, 4]
    assert torch.cat([batch.index for batch in found]).tolist() == list(range(11))


def test_random_views_of_a_scan_do_not_depend_on_its_batch_size() -> None:
    by_seven = torch.cat([batch.views["weak"] for batch in BATCHES.scan_shares("unlabelled", "weak", seed_step=5)])
    whole = replace(BATCHES, config=BatchConfig(evaluation=100))
    (at_once,) = (batch.views["weak"] for batch in whole.scan_shares("unlabelled", "weak", seed_step=5))
    assert torch.equal(by_seven, at_once)
    later = torch.cat([batch.views["weak"] for batch in BATCHES.scan_shares("unlabelled", "weak", seed_step=6)])
    assert not torch.equal(by_seven, later)


def test_pools_of_a_split() -> None:
    found = subsets(SPLIT)
    assert found["labelled"].rows.tolist() == SPLIT.labelled.tolist()
    assert found["unlabelled"].rows.tolist() == SPLIT.unlabelled.tolist()
    assert found["unlabelled"].targets is None


def test_images_of_the_pool_can_join_the_labelled_set() -> None:
    split, config = make_split(4, pool_size=9), FixMatchConfig()
    batches = make_batches(config, split)
    targets = torch.full((2, 4), 0.25)
    promoted = (torch.tensor([3, 7]), targets)
    rows = [batch for batch in batches.scan_shares("labelled", promoted=promoted)]
    assert sum(len(batch) for batch in rows) == len(split.labelled) + 2
    assert torch.equal(torch.cat([batch.targets for batch in rows])[-2:], targets)
    pool = torch.cat([batch.views["none"] for batch in batches.scan_shares("unlabelled")])
    assert torch.equal(torch.cat([batch.views["none"] for batch in rows])[-2:], pool[[3, 7]])
    seen = torch.cat([batches.at(step, promoted)["labelled"].index for step in range(5)])
    assert set(seen.tolist()) == set(range(len(split.labelled) + 2))
