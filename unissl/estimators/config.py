"""The config of a fit, from the data and the arguments of the estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

from unissl.autoconfig.recipes import settings_group, with_recipe
from unissl.config import ConfigTree, merge, without_none
from unissl.estimators.labels import InvalidInput
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.nets import DEFAULT_BACKBONE, backbone_installed, is_pretrained_name
from unissl.run.config import RunConfig, build_config, require_groups

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


def settings_of_fit(estimator: SemiSupervisedClassifier, rows: Rows) -> ConfigTree:
    """The arguments of the estimator as settings, with its ``config`` on top."""
    overrides = {} if estimator.config is None else estimator.config
    _check_arguments(estimator, overrides, is_features=rows.ndim == 2)
    seed = estimator.random_state
    if not isinstance(seed, int | np.integer):
        seed = check_random_state(seed).randint(2**31)
    arguments: ConfigTree = {
        "seed": int(seed),
        "method": {"name": estimator.method},
        "net": {"name": estimator.net},
        "split": {"kind": "given"},
        "train": {"checkpoint_every": NO_CHECKPOINT, "steps": estimator.steps, "minutes": estimator.minutes},
        "machine": {"device": estimator.device},
    }
    settings = merge(without_none(arguments), overrides)
    _check_method(str(settings["method"]["name"]), on_features=rows.ndim == 2 or on_frozen_backbone(settings, rows))
    return settings


def on_frozen_backbone(settings: ConfigTree, rows: Rows) -> bool:
    """Whether rows are images that pass a frozen backbone: as configured, by default if they are large enough, its
    weights are installed and the method supports features."""
    net = settings_group(settings, "net")
    if rows.ndim == 2 or net.get("pretrained"):
        return False
    if "name" in net or "freeze_backbone" in net:
        return bool(net.get("freeze_backbone", is_pretrained_name(net.get("name"))))
    supports_features = get_method(str(settings["method"]["name"])).supports_features()
    return supports_features and min(rows.shape[1:3]) >= MIN_PHOTO_SIDE and backbone_installed(DEFAULT_BACKBONE)


def config_of_fit(settings: ConfigTree, rows: Rows, num_classes: int) -> RunConfig:
    """The config of a fit without a frozen backbone: defaults < recipe < defaults for the data < settings."""
    name = str(settings["method"]["name"])
    config = build_config(with_recipe(merge(_defaults_for_data(rows.shape, name), settings), "short"))
    optim = config.optim
    if config.train.steps is not None and "ema_decay" not in settings_group(settings, "optim"):
        ema_decay = min(optim.ema_decay, max(0.0, 1 - EMA_WINDOWS / config.train.steps))
        optim = optim.model_copy(update={"ema_decay": ema_decay})
    return config.model_copy(update={"method": config.method.for_data(num_classes), "optim": optim})


def _defaults_for_data(shape: tuple[int, ...], method: str) -> ConfigTree:
    """Grey images are often characters, which flipping changes; a strong warp destroys a small image. Features have the
    method's own settings for them."""
    if len(shape) == 2:
        return {"method": get_method(method).Config.feature_run}
    _, height, width, channels = shape
    pad = min(4, max(1, min(height, width) // 8))
    return {"augment": {"flip": channels == 3, "geometry_scale": 0.5, "pad": pad}}


def _check_arguments(estimator: SemiSupervisedClassifier, overrides: object, *, is_features: bool) -> None:
    """Refuse arguments that contradict each other or would have no effect."""
    if not isinstance(overrides, Mapping):
        raise InvalidInput('config must be a dictionary of groups, for example {"optim": {"lr": 0.01}}.')
    require_groups(overrides)
    for group, argument in (("data", "X"), ("seed", "random_state")):
        if group in overrides:
            raise InvalidInput(f"config cannot hold {group!r}; give {argument} instead.")
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
