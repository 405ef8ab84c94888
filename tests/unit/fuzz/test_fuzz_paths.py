"""Names that point elsewhere: nothing outside is written, nothing outside is taken for data, no code is run."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from readers.run_folder import MANIFEST, SUMMARY, lay_run
from readers.tables import IMAGES, image_folder, parquet
from readers.weights import model_files

from unissl.data import DataConfig, load
from unissl.data.folder.index import find_images
from unissl.data.folder.labels import read_label_file
from unissl.errors import UserError
from unissl.inference.model import load_model
from unissl.nets.external import TRUSTED_CODE
from unissl.report.load_run import read_record
from unissl.splits import read_split


def snapshot(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if "cache" not in path.parts}


@pytest.mark.parametrize(
    "cell",
    [
        "../elsewhere/x.png",
        "sub/../../elsewhere/x.png",
        "{home}/elsewhere/x.png",
        "/dev/zero",
        "/etc/passwd",
        "..",
        "x\0.png",
    ],
)
def test_labels_of_files_outside_are_refused(cell: str, tmp_path: Path) -> None:
    place = image_folder(tmp_path)
    labels = tmp_path / "labels.csv"
    labels.write_text(f"file,label\na.png,cat\n{cell.format(home=tmp_path)},dog\n")
    with pytest.raises(UserError, match="is outside|no such file|not a table"):
        read_label_file(labels, place, find_images(place).files)


def test_a_pipe_named_like_an_image_is_not_opened(tmp_path: Path) -> None:
    """Opening it would wait for ever."""
    place = image_folder(tmp_path)
    os.mkfifo(place / "pipe.png")
    assert "pipe.png" not in find_images(place).files
    (tmp_path / "labels.csv").write_text("file,label\npipe.png,cat\na.png,dog\n")
    with pytest.raises(UserError, match="no such file"):
        read_label_file(tmp_path / "labels.csv", place, find_images(place).files)


@pytest.mark.parametrize("row", [-1, 10, 2**62, "../../etc/passwd", 1.0, True])
def test_rows_of_a_split_outside_the_table(row: object, tmp_path: Path) -> None:
    tree = {
        "format": "unissl-split",
        "version": 1,
        "num_classes": 2,
        "labelled": [0, row],
        "labels": [0, 1],
        "unlabelled": [2],
    }
    (tmp_path / "split.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="cannot be used as a split"):
        read_split(tmp_path / "split.json", 10)


@pytest.mark.parametrize("value", ["/etc/passwd", "a.png", 5, [1]])
def test_a_parquet_file_cannot_name_files_in_the_place_of_images(value: object, tmp_path: Path) -> None:
    """A text would be opened as a path, a number as an open file."""
    path = tmp_path / "x.parquet"
    path.write_bytes(parquet({"img": pa.array([{"bytes": value}] * 3), "label": pa.array([0, 1, 2])}))
    with pytest.raises(UserError, match="must be a struct with the image's bytes"):
        load(DataConfig(name="parquet", root=str(path)))


def test_labels_of_small_whole_numbers_are_read(tmp_path: Path) -> None:
    """They have no room for the -1 that an empty cell becomes."""
    path = tmp_path / "x.parquet"
    struct = pa.struct([("bytes", pa.binary())])
    images = pa.array([{"bytes": image} for image in IMAGES], type=struct)
    path.write_bytes(parquet({"img": images, "label": pa.array([0, 1, None], pa.uint8())}))
    assert load(DataConfig(name="parquet", root=str(path))).train.labels.tolist() == [0, 1, -1]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_cannot_name_code(frozen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _, _ = model_files(tmp_path / "run")
    module = f"code_of_a_stranger_{frozen}"
    (tmp_path / f"{module}.py").write_text("from pathlib import Path\nPath('trace').touch()\n")
    monkeypatch.chdir(tmp_path)
    folder.manifest.write_text(json.dumps(MANIFEST | {"net": f"{module}:make", "frozen": frozen}))
    with pytest.raises(UserError, match=f"{module}:make.*{TRUSTED_CODE}"):
        load_model(folder)
    assert not (tmp_path / "trace").exists()
    monkeypatch.setenv(TRUSTED_CODE, f"{module}:make")
    with pytest.raises(UserError, match="cannot be imported"):  # it runs now, and has no such function
        load_model(folder)
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("class_names", ["a", "b"]),
        ("labelled", [1, 1]),
        ("accuracy", {"last": 1.5, "mean_last_20": 0.5, "best": 0.5}),
        ("accuracy", None),
        ("pool", {"images": 0, "truth_known": False, "predicted": [0, 0, 0]}),
        ("method", "\ud800"),
        ("seconds", float("nan")),
        ("confusion_matrix", [[1]]),
        ("duplicates", [{"kind": "exact", "copies": [{"part": "test", "row": 1, "label": 9}]}]),
    ],
)
def test_summaries_that_no_run_writes(name: str, value: object, tmp_path: Path) -> None:
    folder = lay_run(tmp_path)
    folder.summary.write_text(json.dumps(SUMMARY | {name: value}))
    with pytest.raises(UserError, match="is not what a run writes|is not valid JSON"):
        read_record(folder)


def test_metrics_cut_in_a_line_are_refused_and_blank_lines_are_not(tmp_path: Path) -> None:
    folder = lay_run(tmp_path)
    whole = folder.metrics.read_text()
    folder.metrics.write_text(whole + "\n")
    assert len(read_record(folder).metrics) == 4
    folder.metrics.write_text(whole[:-5])
    with pytest.raises(UserError, match="metrics.jsonl is damaged; restore it or train again"):
        read_record(folder)


def test_predictions_of_a_class_that_there_is_not(tmp_path: Path) -> None:
    folder = lay_run(tmp_path)
    table = pa.parquet.read_table(io.BytesIO(folder.predictions.read_bytes()))
    position = table.column_names.index("class_index")
    wrong = table.set_column(position, "class_index", pa.array(np.full(table.num_rows, 3)))
    pa.parquet.write_table(wrong, folder.predictions)
    with pytest.raises(UserError, match="numbers in 'class_index' that a run does not write"):
        read_record(folder)
