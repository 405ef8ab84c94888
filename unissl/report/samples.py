"""What the model says about images that are at hand: the given labels, and a part of the pool.

Where a run was on the vectors of a frozen backbone, these lie in the cache and the backbone is not asked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.augment import AugmentConfig
from unissl.augment.feature_views import FeatureViews
from unissl.batches import Views
from unissl.config import check
from unissl.data import DataConfig, Dataset
from unissl.distil import DistilConfig
from unissl.distil.student import select_maps
from unissl.errors import UserError
from unissl.evaluation.predictions import Predictions, predict_rows
from unissl.features.extract import (
    FeatureMaps,
    Features,
    FeatureScaler,
    WithBackbone,
    extract_features,
    trainable_stages_of,
)
from unissl.inference.model import Model, load_model, read_manifest
from unissl.nets import Network
from unissl.nets.external import refuse_strange_code
from unissl.report.galleries import Thumbnails
from unissl.report.load_run import RunRecord
from unissl.report.outliers import Outliers, by_vectors
from unissl.run.predictions_io import read_files
from unissl.splits import SplitConfig, read_split
from unissl.splits.open_set import load_data
from unissl.types import Outputs, Prediction, Split
from unissl.utils.progress import Progress

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

MAP_IMAGES = 1_000
"""Points of the map, labelled images among them."""
MAX_LABELLED = 2_000
"""Given labels that are checked."""
BLOCK = 4_096
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Samples:
    """Labelled images and a part of the pool, with predictions and features; strange images if vectors tell them."""

    album: Thumbnails
    labelled: Rows
    labels: Rows
    said: Predictions
    features: Floats
    pool_said: Predictions | None
    pool_features: Floats
    outsiders: Outliers | None = None


def collect_samples(record: RunRecord, dataset: Dataset | None) -> Samples:
    """Load the images and ask the model; refuses where they are gone or no longer those of the run."""
    data = check(DataConfig, record.config.get("data", {}), where="data")
    if dataset is None:
        dataset = load_data(data, check(SplitConfig, record.config.get("split", {}), where="split"))
    split = read_split(record.folder.split, len(dataset.train))
    if not is_same_data(record, dataset, split):
        raise UserError("The images have changed since the run; train again to see them here.")
    model = load_model(record.folder)
    fronts = [module for module in model.module.modules() if isinstance(module, WithBackbone)]
    outsiders, images = None, dataset.train.images
    views: Views = model.views(images)
    if fronts:
        augment = check(AugmentConfig, record.config.get("augment", {}), where="augment")
        refuse_strange_code(record.summary["net"])
        distil = check(DistilConfig, record.config.get("distil", {}), where="distil")
        maps = distil.keeps_maps(len(images))
        made = extract_features(images, record.summary["net"], augment, augment.cached_views, CPU, maps=maps)
        vectors, further = made.vectors, is_distilled(record)
        views = FeatureViews(vectors, augment, CPU)
        if further:
            if made.maps is None:
                raise UserError(f"The settings in {record.folder.path} are not those of its model; train again.")
            views = MapViews(made.maps)
        if len(split.unlabelled) and not record.has_detector:
            outsiders = find_outliers(vectors, fronts[0].front.scaling, split)
        net = fronts[0].front.net
        fronts[0].front.net = LastStages(net) if further else PrecomputedFeatures()  # type: ignore[assignment]
    labelled, labels, pool = sample(split)
    with Progress("looking at images for the report", len(labelled) + len(pool)) as progress:
        said, features = predict_with_features(model, views, labelled, progress)
        pool_said, pool_features = None, features[:0]
        if len(pool):
            pool_said, pool_features = predict_with_features(model, views, pool, progress)
    album = Thumbnails(dataset.train, data.root if data.name == "folder" else None)
    return Samples(album, labelled, labels, said, features, pool_said, pool_features, outsiders)


@dataclass(frozen=True)
class MapViews:
    """Maps that enter the last stages of a backbone, of the clean images."""

    maps: FeatureMaps

    @property
    def shape(self) -> tuple[int, ...]:
        return self.maps.shape[2:]

    def __len__(self) -> int:
        return len(self.maps)

    def __call__(self, view: str, rows: Rows, **address: Any) -> Tensor:
        return select_maps(self.maps, rows, np.zeros_like(rows), CPU)


class LastStages(nn.Module):
    """Stands for a backbone whose inner maps are there already."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.stages = trainable_stages_of(net)

    def forward(self, entering: Tensor) -> Outputs:
        vectors = self.stages(entering).mean(dim=(2, 3))
        return Outputs(vectors, vectors)


class PrecomputedFeatures(nn.Module):
    """Stands for a backbone whose vectors are there already."""

    def forward(self, vectors: Tensor) -> Outputs:
        return Outputs(vectors, vectors)


def is_distilled(record: RunRecord) -> bool:
    """Whether the last stages of the backbone were trained further: its vectors are then not the cached ones."""
    manifest = read_manifest(record.folder)
    if manifest["net"] != record.summary["net"]:
        raise UserError(f"Summary and manifest in {record.folder.path} are of two models; train again.")
    return bool(manifest.get("distilled", False))


def is_same_data(record: RunRecord, dataset: Dataset, split: Split) -> bool:
    """Whether tables and split are those that the folder tells of."""
    tested = 0 if dataset.test is None else len(dataset.test)
    same = tuple(record.names) == dataset.train.class_names and tested == record.summary["test_images"]
    if same and record.pool is not None:
        same = np.array_equal(record.pool["row"], split.unlabelled)
        if same and dataset.train.files is not None:
            stored = read_files(record.folder.predictions)
            same = stored is None or stored == [dataset.train.files[row] for row in split.unlabelled]
    return same


def sample(split: Split) -> tuple[Rows, Rows, Rows]:
    """Labelled rows with their labels, and rows of the pool that fill the map up; always the same ones."""
    rng = np.random.default_rng(0)
    some = np.sort(rng.permutation(len(split.labelled))[:MAX_LABELLED])
    room = MAP_IMAGES - min(len(some), MAP_IMAGES // 2)
    return split.labelled[some], split.labels[some], np.sort(rng.permutation(split.unlabelled)[:room])


def find_outliers(vectors: Features, scaling: FeatureScaler, split: Split) -> Outliers | None:
    """Images of the pool whose clean vectors are far from those of every class."""

    def scaled(rows: Rows) -> Floats:
        return np.asarray(scaling(torch.from_numpy(np.ascontiguousarray(vectors[rows, 0]))), dtype=np.float32)

    def blocks() -> Iterator[Floats]:
        for start in range(0, len(split.unlabelled), BLOCK):
            yield scaled(split.unlabelled[start : start + BLOCK])

    return by_vectors(scaled(split.labelled), split.labels, blocks(), split.num_classes)


def predict_with_features(model: Model, views: Views, rows: Rows, progress: Progress) -> tuple[Predictions, Floats]:
    """Predictions and features of some rows."""
    features: list[Tensor] = []

    def answer(x: Tensor) -> Outputs | Prediction:
        said: Outputs | Prediction = model.module(x)
        features.append(said.feat if isinstance(said, Outputs) else said.features)
        progress.advance(len(x))
        return said

    said = predict_rows(answer, views, rows=rows, batch_size=model.batch)
    return said, torch.cat(features).to(torch.float32).numpy()
