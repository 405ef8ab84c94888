"""A folder of photos through a frozen backbone, from the command line and back."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cli_helpers import Refuses, make_photos, succeed

from unissl.nets import DEFAULT_BACKBONE, backbone_installed

TRAIN = (
    *("train", "--images", "photos", "--test", "photos-test", "--quiet", "--steps", "2", "--out", "run"),
    *("--net", "efficientnet-lite0", "--set", "data.image_size=32"),
    *("--set", "train.evaluations=2", "--set", "batch.labelled=4", "--set", "batch.unlabelled=8"),
)


@pytest.mark.skipif(not backbone_installed(DEFAULT_BACKBONE), reason="needs the extra 'photos'")
def test_train_evaluate_and_predict(here: Path) -> None:
    make_photos(here / "photos")
    make_photos(here / "photos-test", each=3, pool=0)
    output = succeed(*TRAIN).out
    assert (
        "baselines: labels-only" in output
        and "logistic-regression" in output
        and "shipped classifier: " in output
        and (here / "run" / "baseline" / "summary.json").exists()
    )
    summary = json.loads((here / "run" / "summary.json").read_text())
    accuracy = summary["accuracy"]["last"]
    evaluation = succeed("evaluate", "run").out
    assert f"accuracy {accuracy:.4f}" in evaluation and "6 images" in evaluation
    rows = list(csv.DictReader(succeed("predict", "run", "photos-test").out.splitlines()))
    right = [row["class"] == Path(row["file"]).parent.name for row in rows]
    assert len(rows) == 6 and sum(right) / 6 == pytest.approx(accuracy)
    assert json.loads((here / "run" / "manifest.json").read_text())["frozen"] is True


def test_a_network_without_weights_is_refused(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos")
    words = ("train", "--images", "photos", "--quiet", "--set", "net.name=small", "--set", "net.freeze_backbone=true")
    refuses(*words, says=("no pretrained weights for 'small'", "set net.name to efficientnet-lite0"))


def test_a_method_that_cannot_train_on_features_is_refused(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos")
    words = ("train", "--images", "photos", "--quiet", "--method", "meta-expert", "--net", "efficientnet-lite0")
    refuses(*words, says=("meta-expert needs inner maps", "set net.freeze_backbone=false"))
