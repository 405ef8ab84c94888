"""From data set and settings to what a run works with: views of the images, or of their vectors, and the network."""

from __future__ import annotations

import copy

import torch

from unissl.augment.feature_views import FeatureViews
from unissl.augment.image_views import ImageViews
from unissl.batches import Views
from unissl.data import Dataset
from unissl.distributed.collectives import local_main_process_first
from unissl.errors import UserError
from unissl.features.extract import (
    CachedFeatures,
    FeatureScaler,
    FrozenBackbone,
    Images,
    extract_features,
    load_backbone,
    normalisation,
)
from unissl.methods.base import Method
from unissl.nets import Network, build
from unissl.nets.external import check_input_size
from unissl.nets.fine_tuning import fine_tune
from unissl.nets.heads import MLPHead
from unissl.run.config import RunConfig


def check_supports_features(config: RunConfig, method: type[Method]) -> None:
    """A method that reads inner maps or asks about images of its own cannot learn from vectors."""
    if config.net.freeze_backbone and not method.takes_vectors():
        lacking = "inner maps of the network" if method.taps else "images"
        raise UserError(
            f"{config.method.name} needs {lacking}, and a frozen backbone leaves it only vectors; "
            "leave out net.freeze_backbone, or use another method, for example --method sage."
        )


def cached_features(config: RunConfig, images: Images, copies: int, device: torch.device) -> CachedFeatures:
    """What the frozen backbone makes of the training images."""
    maps = config.distil.keeps_maps(len(images))
    return local_main_process_first(
        lambda: extract_features(images, config.net.name, config.augment, copies, device, maps=maps)
    )


def build_train_views(config: RunConfig, dataset: Dataset, device: torch.device) -> Views:
    images = dataset.train.images
    if config.net.pretrained:
        return ImageViews(images, config.augment, *normalisation(images.shape[3]), device)
    if not config.net.freeze_backbone:
        return ImageViews(images, config.augment, dataset.mean, dataset.std, device)
    vectors = cached_features(config, images, config.augment.cached_views, device).vectors
    return FeatureViews(vectors, config.augment, device, FeatureScaler.of(vectors).to(device))


def build_test_views(config: RunConfig, dataset: Dataset, train: Views) -> Views | None:
    """Views of the test images, made as those of ``train`` are."""
    if dataset.test is None:
        return None
    images = dataset.test.images
    if isinstance(train, FeatureViews):
        vectors = local_main_process_first(
            lambda: extract_features(images, config.net.name, config.augment, 0, train.device).vectors
        )
        return FeatureViews(vectors, config.augment, train.device, train.scale)
    assert isinstance(train, ImageViews)
    return ImageViews(images, config.augment, train.mean, train.std, train.device)


def build_network(config: RunConfig, views: Views, num_classes: int) -> Network:
    """The network that is trained, drawn from torch's generator."""
    if isinstance(views, FeatureViews):
        return MLPHead(views.shape[0], num_classes, config.net.bn_momentum)
    settings = config.net
    momentum = settings.bn_momentum
    net = build(settings.name, num_classes, views.shape[0], bn_momentum=momentum, pretrained=settings.pretrained)
    if settings.pretrained:
        check_input_size(net, settings.name, *views.shape)
        fine_tune(net, settings.unfreeze_last, settings.name)
    return net


def build_backbone(config: RunConfig, dataset: Dataset, train: Views) -> FrozenBackbone | None:
    """What stands before the trained network in the model that is shipped, where that was given vectors."""
    if not isinstance(train, FeatureViews):
        return None
    assert isinstance(train.scale, FeatureScaler)
    return FrozenBackbone(
        load_backbone(config.net.name, dataset.train.images.shape[3]), copy.deepcopy(train.scale).cpu()
    )
