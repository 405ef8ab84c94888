"""The report of a run on vectors: from the cache, without the backbone, and with the model's own answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_helpers import make_photos, succeed

from unissl.features import extract as features
from unissl.inference.model import load_model
from unissl.nets import DEFAULT_BACKBONE, backbone_installed
from unissl.report.load_run import read_record
from unissl.report.samples import collect_samples
from unissl.run.config import stored_config
from unissl.run_folder import RunFolder
from unissl.splits.open_set import load_data

TRAIN = (
    *("train", "--images", "photos", "--test", "photos-test", "--no-baseline", "--quiet", "--steps", "2"),
    *(
        "--set",
        "net.name=efficientnet-lite0",
        "--set",
        "net.freeze_backbone=true",
        "--set",
        "data.image_size=32",
        "--out",
        "run",
    ),
    *("--set", "train.evaluations=1", "--set", "batch.labelled=4", "--set", "batch.unlabelled=8"),
)


@pytest.mark.skipif(not backbone_installed(DEFAULT_BACKBONE), reason="needs the extra 'photos'")
@pytest.mark.parametrize(
    ("epochs", "difference"),
    [(0.0, 1e-4), (1.5, 2e-3)],  # where the last stages were trained, they read maps that are kept in half precision
)
def test_the_backbone_is_not_asked_again(
    epochs: float, difference: float, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_photos(here / "photos", each=12)
    make_photos(here / "photos-test", each=3, pool=0)
    succeed(*TRAIN, "--set", f"distil.epochs={epochs}")
    folder = RunFolder("run")
    config = stored_config(folder, {})
    dataset = load_data(config.data, config.split)

    def refuse(*anything: object) -> None:
        raise AssertionError("images pass the backbone a second time")

    with monkeypatch.context() as patch:
        patch.setattr(features, "_extract", refuse)
        patch.setattr(features.EfficientNetLite, "forward", refuse)
        seen = collect_samples(read_record(folder), dataset)
        succeed("report", "run")
    assert "farther from every class than nine in ten" in Path("run/report.html").read_text()
    assert seen.outsiders is not None and len(seen.outsiders.score) == 6 and seen.pool_said is not None
    whole = load_model(folder).predict_pixels(np.asarray(dataset.train.images)[seen.labelled])
    assert np.allclose(seen.said.probs, whole.probs, atol=difference)
