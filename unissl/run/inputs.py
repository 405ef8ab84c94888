"""What a run trains and evaluates on, built once: data, split, views of the images or of their features, folds."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from unissl.augment import AugmentConfig
from unissl.augment.feature_views import FeatureViews
from unissl.augment.image_views import ImageViews
from unissl.batches import Views
from unissl.data import Dataset
from unissl.distil.config import MAX_TRAINING_POOL
from unissl.distributed.collectives import local_main_process_first
from unissl.errors import UserError
from unissl.features import (
    CachedFeatures,
    Features,
    FeatureScaler,
    FrozenBackbone,
    extract_features,
    inner_features,
    load_backbone,
    normalisation,
)
from unissl.features.multi_crop import multi_crop_features
from unissl.methods.base import Method, Needs
from unissl.methods.registry import get_method
from unissl.nets import Network, build
from unissl.nets.external import check_input_size
from unissl.nets.fine_tuning import fine_tune
from unissl.nets.heads import MLPHead
from unissl.run.config import RunConfig
from unissl.run.folds import make_folds
from unissl.splits import make_split
from unissl.types import ImageTable, Rows, Split
from unissl.utils.allocator import release_freed_memory


@dataclass(frozen=True)
class RunInputs:
    """Everything that a run and its baseline read. Nothing in it changes while the run trains."""

    config: RunConfig
    dataset: Dataset
    split: Split
    device: torch.device
    train_views: Views
    test_views: Views | None
    features: CachedFeatures | None
    """Features of the training images, where a frozen backbone computes them."""
    crops: tuple[Features, ...] = ()
    """Features of crops of each training image, for the teacher of the distillation."""
    pool_sample: Rows | None = None
    """Rows of the pool that the run trains on, where it is too large to train on all of it."""
    pool_features: CachedFeatures | None = None
    """Features of the clean images alone, for the predictions of such a pool."""

    @property
    def training_split(self) -> Split:
        """The split with the part of the pool that the run trains on."""
        return self.split if self.pool_sample is None else replace(self.split, unlabelled=self.pool_sample)

    @property
    def pool_views(self) -> Views:
        """Views of all training images, for predictions."""
        views = self.train_views
        if self.pool_features is None:
            return views
        assert isinstance(views, FeatureViews)
        return replace(views, features=self.pool_features.features)

    @cached_property
    def teacher_features(self) -> tuple[tuple[Features, FeatureScaler], ...]:
        """What the teacher of the distillation sees besides ``features``: crops and inner maps, with their scalers."""
        cached = self.features
        assert cached is not None
        parts = self.crops if cached.maps is None else (*self.crops, inner_features(cached))
        return tuple((part, FeatureScaler.of(part[:, None], cached.rows)) for part in parts)

    @property
    def folds(self) -> list[Rows]:
        """Positions of the labels that each refit of the cross-validation leaves out.

        With test images there are none, unless the method may turn out worse than a simple baseline: which of them is
        shipped must not depend on test labels.
        """
        if self.dataset.test is not None and not self.config.compares_baselines:
            return []
        groups = None if self.dataset.train.groups is None else self.dataset.train.groups[self.split.labelled]
        return make_folds(self.split.labels, self.config.train.cv_folds, self.config.seed, groups)

    @property
    def distils(self) -> bool:
        return should_distil(self.config, self.split)

    def with_config(self, config: RunConfig) -> RunInputs:
        """The same data and views for another method or another budget."""
        return replace(self, config=config, split=build_split(config, self.dataset))


def prepare_inputs(config: RunConfig, dataset: Dataset, device: torch.device) -> RunInputs:
    """Build the views of all images; extract features where the backbone is frozen."""
    split = build_split(config, dataset)
    distils = should_distil(config, split)
    sample = sample_pool(split, config.seed) if distils else None
    features = pool_features = None
    if config.net.freeze_backbone:
        check_supports_features(config, get_method(config.method.name))
        rows = None if sample is None else np.sort(np.concatenate([split.labelled, split.heldout, sample]))
        if rows is not None:
            pool_features = extract_clean_features(config, dataset.train, device)
        features = extract_train_features(config, dataset.train, device, rows)
    views = build_train_views(config, dataset, device, features)
    # Extracted before training starts: the files may be gone, and the minutes used up, when distillation needs them.
    crops = extract_crops(config, dataset, device, None if features is None else features.rows) if distils else ()
    tests = build_test_views(config, dataset, views)
    release_freed_memory()
    return RunInputs(config, dataset, split, device, views, tests, features, crops, sample, pool_features)


def sample_pool(split: Split, seed: int) -> Rows | None:
    """Rows of a pool of more than ``MAX_TRAINING_POOL`` images that represent it; None for a smaller one."""
    if len(split.unlabelled) <= MAX_TRAINING_POOL:
        return None
    return np.sort(np.random.default_rng(seed).permutation(split.unlabelled)[:MAX_TRAINING_POOL])


def build_split(config: RunConfig, dataset: Dataset) -> Split:
    """The split that a configuration makes of its data."""
    names = dataset.train.class_names
    hold_out = Needs.HELDOUT_LABELS in get_method(config.method.name).needs
    groups = dataset.train.groups
    return make_split(
        dataset.train.labels, len(names), config.split, config.seed, names, hold_out=hold_out, groups=groups
    )


def should_distil(config: RunConfig, split: Split) -> bool:
    """Whether distillation follows: it is configured, there is a pool, and the method predicts with the network's own
    classifier, which the student replaces."""
    method = get_method(config.method.name)
    able = method.learns_from_pool(config.method) and method.uses_network_head()
    return config.distil.epochs > 0 and able and len(split.unlabelled) > 0


def check_supports_features(config: RunConfig, method: type[Method]) -> None:
    """A method that reads inner maps or predicts images of its own cannot train on features."""
    if not method.supports_features():
        lacking = "inner maps of the network" if method.taps else "images"
        raise UserError(
            f"{config.method.name} needs {lacking}, and a frozen backbone provides only features; "
            "set net.freeze_backbone=false, or use another method, for example --method sage."
        )


def extract_train_features(
    config: RunConfig, table: ImageTable, device: torch.device, rows: Rows | None = None
) -> CachedFeatures:
    """Features of the clean images and their augmented views, of some rows or of all."""
    maps, bf16 = config.distil.keeps_maps, config.machine.bf16
    return local_main_process_first(
        lambda: extract_features(table, config.net.name, config.augment, device, maps=maps, bf16=bf16, rows=rows)
    )


def extract_clean_features(config: RunConfig, table: ImageTable, device: torch.device) -> CachedFeatures:
    """Features of the clean images, all rows: what predictions need."""
    maps, augment = config.distil.keeps_maps, without_copies(config.augment)
    return local_main_process_first(lambda: extract_features(table, config.net.name, augment, device, maps=maps))


def without_copies(augment: AugmentConfig) -> AugmentConfig:
    return augment.model_copy(update={"cached_views": 0})


def extract_crops(
    config: RunConfig, dataset: Dataset, device: torch.device, rows: Rows | None = None
) -> tuple[Features, ...]:
    """Features of the crops that only the teacher of the distillation sees."""
    if not config.distil.multi_crop:
        return ()
    name, bf16 = config.distil.teacher_backbone or config.net.name, config.machine.bf16
    centre = name != config.net.name
    return local_main_process_first(lambda: multi_crop_features(dataset.train, name, device, bf16, rows, centre=centre))


def build_train_views(
    config: RunConfig, dataset: Dataset, device: torch.device, features: CachedFeatures | None = None
) -> Views:
    images = dataset.train.images
    if features is not None:
        return FeatureViews(features.features, config.augment, device, copy.deepcopy(features.scaler).to(device))
    if config.net.pretrained:
        return ImageViews(images, config.augment, *normalisation(images.shape[3]), device)
    return ImageViews(images, config.augment, dataset.mean, dataset.std, device)


def build_test_views(config: RunConfig, dataset: Dataset, train: Views) -> Views | None:
    """Views of the test images, scaled as those of ``train`` are."""
    if dataset.test is None:
        return None
    table = dataset.test
    if isinstance(train, FeatureViews):
        features = local_main_process_first(
            lambda: extract_features(table, config.net.name, without_copies(config.augment), train.device).features
        )
        return FeatureViews(features, config.augment, train.device, train.scale)
    assert isinstance(train, ImageViews)
    return ImageViews(table.images, config.augment, train.mean, train.std, train.device)


def build_network(config: RunConfig, views: Views, num_classes: int) -> Network:
    """The network that is trained, initialised from torch's generator."""
    net = config.net
    if isinstance(views, FeatureViews):
        return MLPHead(views.shape[0], num_classes, net.bn_momentum)
    network = build(net.name, num_classes, views.shape[0], bn_momentum=net.bn_momentum, pretrained=net.pretrained)
    if net.pretrained:
        check_input_size(network, net.name, *views.shape)
        fine_tune(network, net.unfreeze_last, net.name)
    return network


def build_backbone(inputs: RunInputs) -> FrozenBackbone | None:
    """The frozen backbone with its scaler: the first part of a model that was trained on features."""
    views = inputs.train_views
    if not isinstance(views, FeatureViews):
        return None
    assert isinstance(views.scale, FeatureScaler)
    channels = inputs.dataset.train.images.shape[3]
    return FrozenBackbone(load_backbone(inputs.config.net.name, channels), copy.deepcopy(views.scale).cpu())
