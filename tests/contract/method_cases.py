"""What every method is checked with: a tiny network, tiny images and batches in the shapes it asks for."""

from __future__ import annotations

import numpy as np
import torch

from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.batches import BatchConfig, Batches, subsets
from unissl.methods.base import MethodConfig, attach_method
from unissl.methods.registry import get_method
from unissl.nets import build
from unissl.training.checkpoint import TrainState
from unissl.training.ema import Ema
from unissl.training.learner import Learner
from unissl.training.optim import OptimConfig, build_optimizer
from unissl.types import DataInfo, Split

OPTIM = OptimConfig(lr=0.05, ema_decay=0.9)


def make_split(num_classes: int, pool_size: int = 24) -> Split:
    """Two labels of each class, one more of each held out."""
    labels, heldout = np.repeat(np.arange(num_classes), 2), np.arange(num_classes)
    rows = np.arange(len(labels) + pool_size + num_classes)
    parts = np.split(rows, [len(labels), len(labels) + pool_size])
    return Split(parts[0], labels, parts[1], num_classes, parts[2], heldout)


def make_batches(config: MethodConfig, split: Split, channels: int = 1, seed: int = 0) -> Batches:
    total = len(split.labelled) + len(split.unlabelled) + len(split.heldout)
    images = np.random.RandomState(seed).randint(0, 256, (total, 8, 8, channels)).astype(np.uint8)
    device = torch.device("cpu")
    views = ImageViews(images, AugmentConfig(pad=1), (0.5,) * channels, (0.25,) * channels, device)
    streams, sizes = get_method(config.name).streams(config), BatchConfig(labelled=6, unlabelled=10, evaluation=7)
    return Batches(views, subsets(split), streams, sizes, seed, device)


def make_state(
    config: MethodConfig, split: Split, channels: int = 1, seed: int = 0, net: str = "wrn-10-1"
) -> TrainState:
    torch.manual_seed(seed)
    method_class = get_method(config.name)
    network = build(net, split.num_classes, channels)
    attach_method(network, method_class)
    tap_dims = {name: network.tap_dims[name] for name in method_class.taps}
    sizes = (split.num_classes, network.feat_dim, len(split.unlabelled))
    info = DataInfo(*sizes, split.labelled_counts, tap_dims, (channels, 8, 8))
    learner = Learner(network, method_class(config, info))
    learner.train()
    return TrainState(learner, Ema(learner, OPTIM.ema_decay), build_optimizer(learner, OPTIM))
