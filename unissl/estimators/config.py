"""The config of a fit, from the data and the arguments of the estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

from unissl.autoconfig.recipes import with_recipe
from unissl.config import ConfigTree, merge
from unissl.estimators.labels import InvalidInput
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.nets import DEFAULT_BACKBONE, backbone_installed
from unissl.run.config import RunConfig, build_config

if TYPE_CHECKING:
    from unissl.estimators.classifier import SemiSupervisedClassifier

Rows = npt.NDArray[Any]
"""Images (n, h, w, channels) or features (n, d)."""
NO_CHECKPOINT = 2**40
"""Steps between checkpoints: a fit writes none."""
EMA_WINDOWS = 10
"""The EMA averages over at most 1 / EMA_WINDOWS of the steps: otherwise a short fit would predict with its initial
weights."""
MIN_PHOTO_SIDE = 20
"""Shorter side in pixels from which a backbone pretrained on photos is useful."""
FROZEN_SIZES = (96, 160)
"""Smallest and largest image size of the frozen backbone; images are resized to the nearest. Fixed, since a size chosen
by measured time would make results depend on the machine."""


def config_of_fit(estimator: SemiSupervisedClassifier, rows: Rows, num_classes: int) -> RunConfig:
    """The config of a fit: defaults < recipe < defaults for the data < arguments < ``config``."""
    overrides = {} if estimator.config is None else estimator.config
    _check_arguments(estimator, overrides, is_features=rows.ndim == 2)
    seed = estimator.random_state
    if not isinstance(seed, int | np.integer):
        seed = check_random_state(seed).randint(2**31)
    budget = {"steps": estimator.steps, "minutes": estimator.minutes}
    arguments: ConfigTree = {
        "seed": int(seed),
        "method": {"name": estimator.method},
        "split": {"kind": "given"},
        "train": {"checkpoint_every": NO_CHECKPOINT} | {key: n for key, n in budget.items() if n is not None},
        "machine": {"device": estimator.device},
    }
    if estimator.net is not None:
        arguments["net"] = {"name": estimator.net}
    names_net = estimator.net is not None or "net" in overrides
    may_freeze = not names_net and get_method(estimator.method).supports_features()
    recipe, data_defaults = _defaults_for_data(rows.shape, may_freeze=may_freeze)
    config = build_config(with_recipe(merge(data_defaults, arguments, overrides), recipe))
    _check_method(config.method.name, on_features=rows.ndim == 2 or config.net.freeze_backbone)
    optim = config.optim
    if config.train.steps is not None and "ema_decay" not in overrides.get("optim", {}):
        ema_decay = min(optim.ema_decay, max(0.0, 1 - EMA_WINDOWS / config.train.steps))
        optim = optim.model_copy(update={"ema_decay": ema_decay})
    return config.model_copy(update={"method": config.method.for_data(num_classes), "optim": optim})


def _defaults_for_data(shape: tuple[int, ...], *, may_freeze: bool) -> tuple[str, ConfigTree]:
    """The recipe and the defaults for rows of this shape: a frozen backbone if it may be used and its weights are
    installed. Grey images are often characters, which flipping changes; a strong warp destroys a small image."""
    if len(shape) == 2:
        return "short", {}
    _, height, width, channels = shape
    side = min(height, width)
    views = {"flip": channels == 3, "geometry_scale": 0.5}
    if may_freeze and side >= MIN_PHOTO_SIDE and backbone_installed(DEFAULT_BACKBONE):
        smallest, largest = FROZEN_SIZES
        size = min(max(side, smallest), largest)
        return "photos", {"data": {"image_size": size}, "augment": views, "distil": {"epochs": 0.0}}
    return "short", {"augment": {**views, "pad": min(4, max(1, side // 8))}}


def _check_arguments(estimator: SemiSupervisedClassifier, overrides: object, *, is_features: bool) -> None:
    """Refuse arguments that contradict each other or would have no effect."""
    if not isinstance(overrides, Mapping):
        raise InvalidInput('config must be a dictionary of groups, for example {"optim": {"lr": 0.01}}.')
    for group, argument in (("data", "X"), ("seed", "random_state")):
        if group in overrides:
            raise InvalidInput(f"config cannot hold {group!r}; give {argument} instead.")
    if "distil" in overrides:
        raise InvalidInput("config cannot hold 'distil': an estimator does not train its backbone; leave it out.")
    if estimator.steps is not None and estimator.minutes is not None:
        raise InvalidInput("steps and minutes both set the budget; leave out one of them.")
    if estimator.net is not None and is_features:
        raise InvalidInput(f"net={estimator.net!r} is a network for images, and X holds features; leave it out.")


def _check_method(name: str, *, on_features: bool) -> None:
    method = get_method(name)
    if Needs.POOL_LABELS in method.needs:
        raise InvalidInput(f"{name} needs the true labels of the pool; use method='labels-only'.")
    if on_features and not method.supports_features():
        raise InvalidInput(f"{name} needs images and cannot train on features; use another method, for example 'sage'.")
