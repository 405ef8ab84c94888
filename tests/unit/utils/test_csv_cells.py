"""CSV cells are no formulas, and class names survive predictions -> label file unchanged."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unissl.data.folder.labels import read_label_file
from unissl.inference.prediction_table import write_csv
from unissl.run.given_images import store_images
from unissl.run_folder import RunFolder
from unissl.utils.csv_cells import from_cell, to_cell
from unissl_paper.tables.sheet import Sheet, Tables, render

FORMULAS = ("=1+1", "+x", "-1", "@SUM(A1)", "\tx", "\rx", "\nx")
NAMES = (*FORMULAS, "'=x", "''-1", "'tis", "''", "cat")


@given(st.text(st.sampled_from("'=+-@\t\r\nab")))
def test_every_text_survives_and_none_is_a_formula(text: str) -> None:
    cell = to_cell(text)
    assert from_cell(cell) == text and cell[:1] not in tuple("=+-@\t\r\n")


@pytest.mark.adversary
@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_a_label_file_with_the_same_names(name: str, tmp_path: Path) -> None:
    files = ["=a.png", "-b.png", "c.png"]
    for file in files:
        (tmp_path / file).touch()
    text = io.StringIO(newline="")
    write_csv(text, [pa.table({"file": files, "class": [name, "other", None], "margin": [-0.5, 0.5, None]})])
    rows = list(csv.reader(io.StringIO(text.getvalue(), newline="")))
    assert all(row[i][:1] not in tuple("=+-@\t\r\n") for row in rows for i in (0, 1)) and rows[1][2] == "-0.5000"
    (tmp_path / "labels.csv").write_text(text.getvalue(), newline="")
    labels = read_label_file(tmp_path / "labels.csv", tmp_path, files).labels
    assert labels == {"=a.png": name, "-b.png": "other", "c.png": None}


def test_a_class_called_minus_one_is_told_from_no_label(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "b.png").touch()
    (tmp_path / "labels.csv").write_text("file,label\na.png,-1\nb.png,'-1\n")
    labels = read_label_file(tmp_path / "labels.csv", tmp_path, ["a.png", "b.png"]).labels
    assert labels == {"a.png": None, "b.png": "-1"}


def test_names_from_python_survive(tmp_path: Path) -> None:
    paths = [tmp_path / f"{sign}.png" for sign in "=-@"]
    for path in paths:
        path.touch()
    settings = store_images(paths, ["'+x", "-1", None], RunFolder(tmp_path / "run"))
    labels = read_label_file(Path(settings["labels"]), tmp_path, []).labels
    assert labels == {"=.png": "'+x", "-.png": "-1", "@.png": None}


def test_words_of_the_papers_tables_are_no_formulas_and_numbers_keep_their_sign() -> None:
    sheet = Sheet("title", ("method", "gain"), (("=cmd()", "-1.5"),))
    assert render(Tables((sheet,), sheet), "csv") == "method,gain\n'=cmd(),-1.5\n"
