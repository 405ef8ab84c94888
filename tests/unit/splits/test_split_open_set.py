"""Out-of-distribution images in the pool, and labels that are held out."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.config import check
from unissl.errors import UserError
from unissl.splits import SplitConfig, make_split, read_split, write_split
from unissl.types import OOD, UNLABELLED

LABELS = np.random.default_rng(0).permutation(np.repeat([OOD, 0, 1, 2], [30, 20, 25, 40]))


def test_unknowns_end_the_pool_and_change_nothing_else() -> None:
    closed = make_split(np.where(LABELS == OOD, 2, LABELS), 3, SplitConfig(max_count=10, gamma=2), 0)
    opened = make_split(LABELS, 3, SplitConfig(max_count=10, gamma=2), 0)
    known = LABELS[opened.unlabelled] != OOD
    assert known.sum() == len(closed.unlabelled)
    assert (~known).sum() == 30 and not known[-30:].any()
    without = make_split(LABELS, 3, SplitConfig(max_count=10, gamma=2, ood_classes=("x",), ood_count=0), 0)
    assert np.array_equal(without.unlabelled, opened.unlabelled[known])
    assert np.array_equal(without.labelled, opened.labelled)
    assert (LABELS[opened.labelled] == opened.labels).all()


def test_unknown_count_is_nested_and_drawn_by_the_seed() -> None:
    def unknowns(count: int, seed: int) -> list[int]:
        made = make_split(LABELS, 3, SplitConfig(max_count=10, ood_classes=("x",), ood_count=count), seed)
        return [int(row) for row in made.unlabelled if LABELS[row] == OOD]

    assert unknowns(12, 0)[:5] == unknowns(5, 0) != unknowns(5, 1)
    with pytest.raises(UserError, match="There are 30 out-of-distribution images, fewer than ood_count = 31"):
        unknowns(31, 0)


def test_a_labelled_pool_has_no_unknowns() -> None:
    made = make_split(LABELS, 3, SplitConfig(max_count=10, reveal_pool_labels=True), 0)
    assert len(made.unlabelled) == 0 and (LABELS[made.labelled] >= 0).all()


def test_given_tables_keep_their_unknowns_beside_the_unlabelled() -> None:
    labels = np.array([0, 1, OOD, UNLABELLED, 0, OOD])
    made = make_split(labels, 2, SplitConfig(kind="given"), 0)
    assert made.unlabelled.tolist() == [3, 2, 5] and made.labelled.tolist() == [0, 1, 4]


@pytest.mark.parametrize(("per_class", "share", "held"), [(4, 0.25, 1), (2, 0.25, 1), (10, 0.25, 2), (8, 0.5, 4)])
def test_held_out_labels_come_from_the_labelled_ones(per_class: int, share: float, held: int) -> None:
    config = SplitConfig(labels_per_class=per_class, max_count=5, gamma=1, calibration_fraction=share)
    every, some = (make_split(LABELS, 3, config, 0, hold_out=hold_out) for hold_out in (False, True))
    assert len(every.heldout) == 0
    assert np.bincount(some.heldout_labels).tolist() == [held] * 3
    assert some.labelled_counts == (per_class - held,) * 3
    assert sorted([*some.labelled, *some.heldout]) == sorted(every.labelled)
    assert (LABELS[some.heldout] == some.heldout_labels).all()
    assert np.array_equal(some.unlabelled, every.unlabelled)


def test_a_class_with_one_label_keeps_it() -> None:
    labels = np.array([0, 0, 0, 1, UNLABELLED])
    made = make_split(labels, 2, SplitConfig(kind="given"), 0, hold_out=True)
    assert made.labels.tolist() == [0, 0, 1] and made.heldout.tolist() == [2]
    with pytest.raises(UserError, match="No label can be held out"):
        make_split(LABELS, 3, SplitConfig(labels_per_class=1), 0, hold_out=True)


def test_held_out_labels_survive_the_file(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "split.json"
    made = make_split(LABELS, 3, SplitConfig(max_count=5), 0, hold_out=True)
    write_split(made, path)
    back = read_split(path)
    assert back.heldout.tolist() == made.heldout.tolist() and len(back.heldout)
    assert back.heldout_labels.tolist() == made.heldout_labels.tolist()
    row = str(made.heldout[0])
    path.write_text(path.read_text().replace('"unlabelled": [', f'"unlabelled": [{row}, '))
    with pytest.raises(UserError, match="both labelled and unlabelled"):
        read_split(path)


def test_settings_without_effect_are_refused() -> None:
    for tree in ({"ood_count": 3}, {"ood_root": "x"}):
        with pytest.raises(UserError, match="ood_"):
            check(SplitConfig, tree)
    assert check(SplitConfig, {"ood_classes": [7, "8"]}).ood_classes == ("7", "8")
