"""Labels that may be misread: a missing value is no label, and a text that may be one or a class is refused, as are two
names that look like one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unissl.data.dataset import DataConfig
from unissl.data.folder.index import index_folder, scan_folder
from unissl.data.folder.labels import read_label_file
from unissl.errors import UserError
from unissl.estimators.labels import read_labels
from unissl.run.given_images import store_images
from unissl.run_folder import RunFolder
from unissl.types import MISSING_WORDS, UNLABELLED

pytestmark = pytest.mark.adversary
WORDS = ["nan", "NaN", "NA", "<NA>", "None", "null", "NULL", "N/A", "NaT"]


class NAType:
    """Like pandas' NA: equal to nothing, without a truth value."""

    def __eq__(self, other: object) -> Any:
        return self

    def __ne__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None  # type: ignore[assignment]


class NaTType(datetime):
    """Like pandas' NaT, a datetime that differs from itself."""

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for i, path in enumerate(paths):
        Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(path)
    return paths


def stored_labels(paths: list[Path], labels: Any) -> list[str | None]:
    settings = store_images(paths, labels, RunFolder(paths[0].parent / "run"))
    index = scan_folder(DataConfig(**settings))
    assert index is not None
    return [None if label == UNLABELLED else index.class_names[label] for label in index.labels]


def test_all_words_are_known() -> None:
    assert MISSING_WORDS.issuperset(WORDS) and not MISSING_WORDS & {"none", "na", "Nan", "nil", "unknown"}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_for_a_missing_value_in_a_label_file(paths: list[Path], word: str) -> None:
    table = paths[0].parent / "labels.csv"
    table.write_text(f"file,label\n\n0.png,cat\n1.png,dog\n2.png, {word} \n3.png,\n")
    with pytest.raises(UserError, match=rf"Line 5 of .*labels.csv gives the label {word!r}.*cell empty.*rename the cl"):
        read_label_file(table, table.parent, [path.name for path in paths])


def test_a_word_for_a_missing_value_as_a_group(paths: list[Path]) -> None:
    """All images without a group would be one group, which folds keep together."""
    table = paths[0].parent / "labels.csv"
    table.write_text("file,label,group\n0.png,cat,a\n1.png,dog,nan\n")
    with pytest.raises(UserError, match="Line 3 of .*gives the group 'nan'.*rename the group"):
        read_label_file(table, table.parent, [path.name for path in paths])


def test_names_that_only_resemble_them(paths: list[Path]) -> None:
    table = paths[0].parent / "labels.csv"
    table.write_text("file,label\n0.png,none\n1.png,na\n2.png,naan\n")
    assert set(read_label_file(table, table.parent, [path.name for path in paths]).labels.values()) == {
        *("none", "na", "naan")
    }


@pytest.mark.parametrize("word", WORDS)
def test_a_word_for_a_missing_value_from_python(paths: list[Path], word: str) -> None:
    """As ``numpy.array(["cat", numpy.nan])`` and ``frame.astype(str)`` make it."""
    with pytest.raises(UserError, match=f"the text {word!r}.* give None .* rename the class"):
        store_images(paths, ["cat", "dog", word, "cat", "dog"], RunFolder(paths[0].parent / "run"))
    with pytest.raises(UserError, match=f"the text {word!r}"):
        read_labels(np.array(["cat", "dog", word]))


@pytest.mark.parametrize(
    "value", [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), NAType(), NaTType(2026, 1, 1), -1, -1.0]
)
def test_a_missing_value_is_no_label(paths: list[Path], value: Any) -> None:
    assert stored_labels(paths, ["cat", "dog", value, "cat", value]) == ["cat", "dog", None, "cat", None]


@pytest.mark.parametrize("value", [None, float("nan"), NAType(), NaTType(2026, 1, 1)])
def test_a_missing_value_for_the_estimators(value: Any) -> None:
    assert read_labels(np.array(["cat", "dog", value], dtype=object))[1].tolist() == [0, 1, UNLABELLED]


def test_labels_of_a_tensor(paths: list[Path]) -> None:
    assert stored_labels(paths, torch.tensor([0, 1, -1, 0, 1])) == ["0", "1", None, "0", "1"]


@pytest.mark.parametrize("label", [b"cat", ["cat"], {"cat": 1}, np.array(["cat"]), torch.zeros(2)])
def test_labels_that_are_no_text(paths: list[Path], label: Any) -> None:
    with pytest.raises(UserError, match="A label is given as .*; give text or a number, or None"):
        store_images(paths, [label, "dog", "cat", "cat", "dog"], RunFolder(paths[0].parent / "run"))


def test_a_class_folder_may_have_any_name(tmp_path: Path) -> None:
    """No program writes a missing value as the name of a folder."""
    for name in ("nan", "None"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    assert index_folder(tmp_path, None, None).class_names == ("None", "nan")


@pytest.mark.parametrize("other", ["cat\u200b", "\u200ecat", "c\u00adat", "\u202acat\u202c", "\ufeffcat"])
def test_names_that_differ_in_what_nobody_sees(paths: list[Path], other: str) -> None:
    """As text that was copied from a web page."""
    with pytest.raises(UserError, match="'cat' and .*, which look like one class; write them alike"):
        stored_labels(paths, ["cat", "dog", other, None, None])


def test_whole_numbers_with_and_without_a_point(paths: list[Path]) -> None:
    """A table of whole numbers with a gap becomes one of floats."""
    with pytest.raises(UserError, match="'1' and '1.0', which look like one class"):
        stored_labels(paths, ["1", "1.0", "2", None, None])
    assert stored_labels(paths[:3], ["v1.1", "v1.10", "v1"]) == ["v1.1", "v1.10", "v1"]
