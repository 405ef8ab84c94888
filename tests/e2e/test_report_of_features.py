"""The report of a run on features: from the cache, without the backbone, and with the model's own predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_helpers import make_photos, succeed

from unissl.features import extract
from unissl.inference.model import load_model
from unissl.nets import DEFAULT_BACKBONE, backbone_installed
from unissl.nets.backbones.efficientnet_lite import EfficientNetLite
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
    [(0.0, 1e-4), (1.5, 2e-3)],  # distilled stages read maps that are cached in float16
)
def test_the_backbone_does_not_run_again(
    epochs: float, difference: float, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_photos(here / "photos", each=12)
    make_photos(here / "photos-test", each=3, pool=0)
    succeed(*TRAIN, "--set", f"distil.epochs={epochs}")
    folder = RunFolder("run")
    config = stored_config(folder, {})
    dataset = load_data(config.data, config.split)

    def fail(*args: object) -> None:
        raise AssertionError("images pass the backbone a second time")

    with monkeypatch.context() as patch:
        patch.setattr(extract, "write_rows", fail)
        patch.setattr(EfficientNetLite, "forward", fail)
        samples = collect_samples(read_record(folder))
        succeed("report", "run")
    assert "farther from every class than nine in ten" in Path("run/report.html").read_text()
    assert samples.outliers is not None and len(samples.outliers.score) == 6 and samples.pool_predictions is not None
    whole = load_model(folder).predict_pixels(np.asarray(dataset.train.images)[samples.rows])
    assert np.allclose(samples.predictions.probs, whole.probs, atol=difference)
