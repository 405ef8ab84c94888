"""The open-set setting from the command line: OOD images in the pool and in the test set, and how they are reported."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cli_helpers import TRAIN_DIGITS, Refuses, make_photos, succeed

from unissl.methods.registry import all_methods

DETECTORS = [name for name, method in all_methods().items() if method.family == "open-set"]
OPEN = ("--set", "split.ood_classes=[7,8,9]", "--set", "split.ood_count=30")


@pytest.mark.parametrize("method", ["fixmatch", *DETECTORS])
def test_ood_classes(method: str, here: Path) -> None:
    out = succeed(*TRAIN_DIGITS, *OPEN, "--method", method, "--out", "run").out
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["class_names"] == ["0", "1", "2", "3", "4", "5", "6"]
    assert sum(map(sum, summary["confusion_matrix"])) + summary["ood_test_images"] == summary["test_images"] == 500
    assert summary["pool"]["ood"] == 30 and 0 <= summary["auroc"] <= 1
    assert f"AUROC {summary['auroc']:.4f}" in out
    evaluations = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["auroc"] for line in evaluations if line["kind"] == "eval"][-1] == pytest.approx(summary["auroc"])
    labels = 28 if method != "calimatch" else 21
    assert sum(summary["labelled"]) == labels and summary.get("calibration_images", 0) == 28 - labels

    again = succeed("evaluate", "run").out
    assert f"accuracy {summary['accuracy']['last']:.4f}" in again and f"{summary['auroc']:.4f}" in again
    pool = pq.read_table("run/predictions.parquet")
    assert pool.num_rows == summary["pool"]["images"]
    assert all(0 <= score <= 1 for score in pool.column("outlier_score").to_pylist())


def test_a_second_data_set_and_the_split_that_shows_it(here: Path) -> None:
    make_photos(here / "photos", ("cat", "dog"), each=8)
    make_photos(here / "others", ("car", "bus"), each=3)
    ood = ("--set", "split.ood_data=folder", "--set", "split.ood_root=others")
    shown = succeed("split", "--data", "photos", *ood, "--set", "data.image_size=8").out
    assert "out-of-distribution" in shown and "12" in shown


def test_predictions_of_files_have_an_outlier_score(photo_run: tuple[Path, str], here: Path) -> None:
    make_photos(here / "new", ("some",), each=2, pool=0)
    succeed("predict", photo_run[0], "new", "--out", "made.csv")
    with Path("made.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 2
    assert all(float(row["outlier_score"]) == pytest.approx(1 - float(row["confidence"]), abs=2e-4) for row in rows)


def test_refusals(refuses: Refuses) -> None:
    refuses(*TRAIN_DIGITS, "--set", "split.ood_classes=['seven']", says=("'seven', which is no class",))
    refuses(*TRAIN_DIGITS, *OPEN, "--set", "split.ood_count=5000", says=("5000", "lower it"))
    refuses(*TRAIN_DIGITS, "--set", "split.ood_data=cifar", says=("Unknown data set 'cifar'",))
    if "calimatch" in DETECTORS:
        one_label = ("--method", "calimatch", "--labels-per-class", "1")
        refuses(*TRAIN_DIGITS, *one_label, says=("No label can be held out",))
