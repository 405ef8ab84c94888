"""Wrong arguments from Python, and settings that pass every flag: one sentence, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import unissl
from unissl.cli import main
from unissl.errors import UserError
from unissl.run.given_images import store_images
from unissl.run.predictions_io import read_pool_predictions
from unissl.run_folder import RunFolder

pytestmark = pytest.mark.adversary
PIXELS = np.zeros((4, 8, 8, 3), np.uint8)
LABELS = ["cat", "dog", None, None]


@pytest.fixture
def photos(here: Path) -> Path:
    for name in ("cat", "dog"):
        (here / "photos" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (8, 8), (80 * i, 0, 0)).save(here / "photos" / name / f"{i}.png")
    return here / "photos"


@pytest.mark.parametrize("path", [None, 5, b"run", ["run"], "a\0b"])
@pytest.mark.parametrize(
    "call", [unissl.load, unissl.resume, unissl.export, lambda path: unissl.evaluate(path, "test")]
)
def test_a_run_folder_that_is_no_path(call: Callable[[Any], object], path: Any, here: Path) -> None:
    with pytest.raises(UserError, match="A run folder is given as .*; give its path"):
        call(path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"config": [1]}, "config is given as list; give a dictionary"),
        ({"holdout": -3}, "'data.test_holdout': Input should be greater than or equal to 1"),
        ({"test": 5}, "'data.test'"),
        ({"labels": ["cat"]}, "'data.labels'"),
        ({"out": "a\0b"}, "A run folder is given as"),
    ],
)
def test_wrong_arguments_for_a_folder(photos: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        unissl.train(photos, **{"out": "run", **options})
    assert not Path("run").exists()


def test_a_negative_holdout_on_the_command_line(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was a traceback of pydantic."""
    with pytest.raises(SystemExit) as end:
        main(["train", "--images", str(photos), "--holdout", "-3", "--out", "run"])
    assert end.value.code == 1
    assert capsys.readouterr().err == (
        "error: Setting 'data.test_holdout': Input should be greater than or equal to 1 (given: -3).\n"
    )


def test_groups_that_are_no_list(photos: Path) -> None:
    paths = sorted(photos.rglob("*.png"))
    with pytest.raises(UserError, match="groups as a list"):
        store_images(paths, ["cat"] * 3 + ["dog"] * 3, RunFolder("run"), 5)


def test_images_from_a_generator(photos: Path) -> None:
    paths = sorted(photos.rglob("*.png"))
    settings = store_images((path for path in paths), (path.parent.name for path in paths), RunFolder("run"))
    assert settings["name"] == "folder" and Path(settings["labels"]).read_text().count("\n") == 7


def test_a_class_that_no_file_can_hold(here: Path) -> None:
    """The model was trained and written, and could not be loaded."""
    with pytest.raises(UserError, match=r"The label '.*ud800.*' is not Unicode.*rename it"):
        store_images(PIXELS, ["\ud800", "dog", None, None], RunFolder(here / "run"))


def test_classes_of_arrays_that_differ_in_case(here: Path) -> None:
    """In a folder or a label file they are refused."""
    with pytest.raises(UserError, match="'Dog' and 'dog', which differ only in case"):
        store_images(PIXELS, ["Dog", "dog", None, None], RunFolder(here / "run"))


@pytest.mark.parametrize("label", [" ", " nan ", "\tNone"])
def test_spaces_around_labels_mean_as_much_as_in_a_label_file(here: Path, label: str) -> None:
    if label.strip():
        with pytest.raises(UserError, match="programs write for a missing value"):
            store_images(PIXELS, [label, "cat", "dog", "dog"], RunFolder(here / "run"))
    else:
        root = store_images(PIXELS, [label, "cat", "dog", "dog"], RunFolder(here / "run"))["root"]
        assert np.load(root)["labels"].tolist() == [-1, 0, 1, 1]


@pytest.mark.parametrize("confidence", [-0.5, 1.5, 1e30])
def test_confidences_that_are_no_probabilities(tmp_path: Path, confidence: float) -> None:
    folder = RunFolder(tmp_path)
    columns = {"row": [0, 1], "class_index": [0, 1], "confidence": [0.5, confidence], "outlier_score": [0.5, 0.5]}
    pq.write_table(pa.table(columns), folder.predictions)
    with pytest.raises(UserError, match="confidences that are no probabilities"):
        read_pool_predictions(folder, 2)
