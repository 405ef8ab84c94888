from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unissl.errors import UserError
from unissl.splits import SplitConfig, make_split, read_split, write_split

LABELS = np.arange(40) % 3
SPLIT = make_split(LABELS, 3, SplitConfig(labels_per_class=2, gamma=3), seed=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "split.json"
    write_split(SPLIT, target)
    return target


@pytest.mark.parametrize("num_rows", [None, 40])
def test_round_trip(path: Path, num_rows: int | None) -> None:
    back = read_split(path, num_rows)
    for name in ("labelled", "labels", "unlabelled"):
        array = getattr(back, name)
        assert array.dtype == np.int64
        assert array.tolist() == getattr(SPLIT, name).tolist()
    assert back.num_classes == 3


def test_empty_pool_round_trip(tmp_path: Path) -> None:
    full = make_split(LABELS, 3, SplitConfig(labels_per_class=2, reveal_pool_labels=True), seed=1)
    write_split(full, tmp_path / "full.json")
    back = read_split(tmp_path / "full.json")
    assert back.unlabelled.tolist() == [] and back.unlabelled.dtype == np.int64
    assert back.labelled.tolist() == full.labelled.tolist()


def test_file_holds_no_truth_about_the_pool(path: Path) -> None:
    tree = json.loads(path.read_text())
    assert list(tree) == ["format", "version", "num_classes", "labelled", "labels", "unlabelled"]
    assert len(tree["labels"]) == len(tree["labelled"]) == 6


def altered(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


LABELLED, POOL = SPLIT.labelled.tolist(), SPLIT.unlabelled.tolist()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"format": "coco"}, "is not a split of unissl"),
        ({"version": 2}, "has version 2, this unissl reads 1; update unissl"),
        ({"truth": [0]}, "exactly the keys"),
        ({"num_classes": 1}, "num_classes"),
        ({"num_classes": True}, "num_classes"),
        ({"num_classes": 4}, "the labels are not the classes 0 .. 3"),
        ({"labels": [0, 0, 0, 1, 1, 1]}, "the labels are not the classes 0 .. 2"),
        ({"labels": [0, 1, 2]}, "6 labelled rows but 3 labels"),
        ({"unlabelled": [1.5]}, "unlabelled is not a list of whole numbers"),
        ({"unlabelled": [True]}, "unlabelled is not a list of whole numbers"),
        ({"unlabelled": [-1]}, "unlabelled is not a list of whole numbers"),
        ({"unlabelled": [2**63]}, "unlabelled is not a list of whole numbers"),
        ({"unlabelled": None}, "unlabelled is not a list of whole numbers"),
        ({"unlabelled": POOL[:1] * 2}, "lists a row twice"),
        ({"labelled": LABELLED[:1] * 6}, "lists a row twice"),
        ({"unlabelled": [*POOL, LABELLED[3]]}, "both labelled and unlabelled"),
        ({"unlabelled": [*POOL, 40]}, "it names row 40, but the data have 40 rows"),
        ({"labelled": [*LABELLED[:-1], 77]}, "it names row 77, but the data have 40 rows"),
    ],
)
def test_altered_files_are_refused(path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_split(altered(path, **changes), num_rows=40)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe\x00", b'"text"', b"[" * 100_000])
def test_foreign_files_are_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not a split of unissl"):
        read_split(path)


def test_a_missing_key_is_refused(path: Path) -> None:
    tree = json.loads(path.read_text())
    del tree["labels"]
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match="exactly the keys"):
        read_split(path)


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot read .*check the path"):
        read_split(tmp_path / "missing.json")
    with pytest.raises(UserError, match="Cannot read"):
        read_split(tmp_path)
    with pytest.raises(UserError, match="Cannot write .*choose another place"):
        write_split(SPLIT, tmp_path / "missing" / "split.json")
