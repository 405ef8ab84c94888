"""The images of a run for its report: the labelled ones and a part of the pool, with predictions and features.

Where a run trained on features of a frozen backbone, these come from the cache and no image passes the backbone again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.batches import Views
from unissl.data import Dataset
from unissl.errors import UserError
from unissl.evaluation.calibrators import IDENTITY
from unissl.evaluation.predictions import Forward, Predictions, features_of, predict_rows
from unissl.features.backbone import WithBackbone, tail_stages
from unissl.features.extract import CachedFeatures
from unissl.features.scaler import Features, FeatureScaler
from unissl.inference.model import Calibrated, Model, load_model
from unissl.nets.bf16 import cpu_supports_bf16
from unissl.nets.external import check_trusted_code
from unissl.report.galleries import Thumbnails
from unissl.report.load_run import RunRecord
from unissl.report.outliers import Outliers, outliers_by_features
from unissl.run.inputs import RunInputs, extract_clean_features, extract_train_features, sample_pool, should_distil
from unissl.run.predictions_io import read_files
from unissl.splits import read_split
from unissl.splits.open_set import announce_data, load_data
from unissl.types import Floats, Outputs, Prediction, Rows, Split
from unissl.utils.mmap_rows import take_rows
from unissl.utils.progress import Progress

MAX_POINTS = 1_000
"""Images in the embedding map, labelled ones included."""
MAX_LABELLED = 2_000
"""Given labels that are checked."""
BLOCK = 4_096
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Samples:
    """Labelled images (n,) and a part of the pool (m,), with predictions and features (n, D) and (m, D)."""

    thumbnails: Thumbnails
    rows: Rows
    labels: Rows
    predictions: Predictions
    features: Floats
    pool_predictions: Predictions | None
    pool_features: Floats
    outliers: Outliers | None = None
    """Of the whole pool, where a frozen backbone provides features."""
    test_thumbnails: Thumbnails | None = None


def collect_samples(record: RunRecord, inputs: RunInputs | None = None) -> Samples:
    """Predict the labelled images and a part of the pool.

    Without ``inputs`` the images are loaded again; raises if they are missing or are not those of the run.
    """
    if record.manifest.net != record.config.net.name:
        raise UserError(f"Config and manifest in {record.folder.path} are of two models; train again.")
    dataset, split = (inputs.dataset, inputs.split) if inputs is not None else load_images(record)
    model, outliers = load_model(record.folder, record.manifest), None
    forward: Forward = model.module
    views: Views = model.views(dataset.train.images)
    if record.manifest.frozen:
        cached = load_features(record, dataset, split) if inputs is None else inputs.pool_features or inputs.features
        assert cached is not None
        forward, views = forward_from_cache(model, cached, record)
        if len(split.unlabelled) and record.method.family != "open-set":
            assert model.backbone is not None
            outliers = find_outliers(cached.features, model.backbone.scaling, split)
    labelled, labels, pool = sample_rows(split)
    with Progress("predictions for the report", len(labelled) + len(pool)) as progress:
        predictions, features = predict_with_features(forward, views, labelled, model.batch_size, progress)
        pool_predictions, pool_features = None, features[:0]
        if len(pool):
            pool_predictions, pool_features = predict_with_features(forward, views, pool, model.batch_size, progress)
    data = record.config.data
    shown = Thumbnails(dataset.train, data.root if data.name == "folder" else None)
    test = None if dataset.test is None else Thumbnails(dataset.test, None)
    return Samples(
        shown, labelled, labels, predictions, features, pool_predictions, pool_features, outliers, test_thumbnails=test
    )


def load_images(record: RunRecord) -> tuple[Dataset, Split]:
    """Data and split of a run, from disk; raises if they are not those of the run."""
    announce_data(record.config.data, record.config.split)
    dataset = load_data(record.config.data, record.config.split)
    split = read_split(record.folder.split, len(dataset.train))
    if not is_same_data(record, dataset, split):
        raise UserError("The images have changed since the run; train again to include them.")
    return dataset, split


def is_same_data(record: RunRecord, dataset: Dataset, split: Split) -> bool:
    """Whether classes, number of test images, and rows and files of the pool are those of the run."""
    test_images = 0 if dataset.test is None else len(dataset.test)
    same = tuple(record.names) == dataset.train.class_names and test_images == record.summary["test_images"]
    if same and record.pool is not None:
        same = np.array_equal(record.pool["row"], split.unlabelled)
        if same and dataset.train.files is not None:
            stored = read_files(record.folder.predictions)
            same = stored is None or stored == [dataset.train.files[row] for row in split.unlabelled]
    return same


def load_features(record: RunRecord, dataset: Dataset, split: Split) -> CachedFeatures:
    """Features of the training images, from the cache where they are still in it."""
    config = record.config
    check_trusted_code(config.net.name)
    if should_distil(config, split) and sample_pool(split, config.seed) is not None:
        return extract_clean_features(config, dataset.train, CPU)
    if config.machine.bf16 and not cpu_supports_bf16():
        # The report reads the clean views, which are exact either way: a machine without bfloat16 can write it too.
        config = config.model_copy(update={"machine": config.machine.model_copy(update={"bf16": None})})
    return extract_train_features(config, dataset.train, CPU)


@dataclass(frozen=True)
class CachedViews:
    """Clean features (n, D), or feature maps as (n, c, h, w), in place of images; ``values`` is (N, V, ...)."""

    values: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape[2:]

    def __len__(self) -> int:
        return len(self.values)

    def __call__(self, view: str, rows: Rows, **address: Any) -> Tensor:
        clean = torch.from_numpy(np.ascontiguousarray(take_rows(self.values[:, 0], rows))).to(torch.get_default_dtype())
        return clean.permute(0, 3, 1, 2) if clean.ndim == 4 else clean


def forward_from_cache(model: Model, cached: CachedFeatures, record: RunRecord) -> tuple[Forward, CachedViews]:
    """The part of a model that follows its frozen stages, and its cached input: features or, where distillation has
    fine-tuned the last stages, the maps that enter these."""
    whole = next(part for part in model.module.modules() if isinstance(part, WithBackbone))
    stages: list[nn.Module] = [whole.front.scaling, whole.module]
    values: npt.NDArray[Any] = cached.features
    if record.manifest.distilled:
        if cached.maps is None:
            raise UserError(f"The config in {record.folder.path} is not that of its model; train again.")
        stages = [tail_stages(whole.front.net), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *stages]
        values = cached.maps
    calibrator, tail = record.manifest.calibration, nn.Sequential(*stages).eval()
    return tail if calibrator == IDENTITY else Calibrated(tail, calibrator).eval(), CachedViews(values)


def sample_rows(split: Split) -> tuple[Rows, Rows, Rows]:
    """Labelled rows with their labels, and rows of the pool that complete the embedding map; the seed is fixed."""
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.permutation(len(split.labelled))[:MAX_LABELLED])
    num_pool = MAX_POINTS - min(len(chosen), MAX_POINTS // 2)
    return split.labelled[chosen], split.labels[chosen], np.sort(rng.permutation(split.unlabelled)[:num_pool])


def find_outliers(features: Features, scaler: FeatureScaler, split: Split) -> Outliers | None:
    """Images of the pool whose clean features (N, V, D) are far from those of every class."""

    def scaled(rows: Rows) -> Floats:
        return np.asarray(
            scaler(torch.from_numpy(np.ascontiguousarray(take_rows(features[:, 0], rows)))), dtype=np.float32
        )

    pool = split.unlabelled
    blocks = (scaled(pool[start : start + BLOCK]) for start in range(0, len(pool), BLOCK))
    return outliers_by_features(scaled(split.labelled), split.labels, blocks, split.num_classes)


def predict_with_features(
    forward: Forward, views: Views, rows: Rows, batch_size: int, progress: Progress
) -> tuple[Predictions, Floats]:
    """Predictions and features (n, D) before the classifier of some rows (n,)."""
    features: list[Tensor] = []

    def forward_and_keep(x: Tensor) -> Outputs | Prediction:
        outputs = forward(x)
        features.append(features_of(outputs))
        progress.advance(len(x))
        return outputs

    predictions = predict_rows(forward_and_keep, views, rows=rows, batch_size=batch_size)
    return predictions, torch.cat(features).to(torch.float32).numpy()
