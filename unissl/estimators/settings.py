"""Which settings a fit has: the one place where data and arguments become a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

from unissl.autoconfig.recipes import with_recipe
from unissl.autoconfig.suggest import BACKBONE
from unissl.config import ConfigTree, merge
from unissl.estimators.refusal import RefusedInput
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.nets.pretrained import installed
from unissl.run.config import RunConfig, build_config

if TYPE_CHECKING:
    from unissl.estimators.classifier import SemiSupervisedClassifier

Rows = npt.NDArray[Any]
"""Images (n, h, w, channels) or vectors (n, d)."""
NO_CHECKPOINT = 2**40
"""Steps between two checkpoints, of which a fit has no use."""
MEMORY = 10
"""Averaged parameters look back over a share of 1 / MEMORY of the steps at most: a short fit would else predict with
its random start."""
PHOTO_SIDE = 20
"""Shorter side from which on a network that was trained on photos makes something of an image."""
FROZEN_SIZES = (96, 160)
"""Sides in pixels that the frozen network sees: images below the first are blown up to it, others cut down to the
second. Fixed, since a size found by measuring time would change the results from machine to machine."""


def settings_of_fit(estimator: SemiSupervisedClassifier, rows: Rows, num_classes: int) -> RunConfig:
    """The configuration of a fit: defaults < recipe < what suits the data < arguments < ``settings``."""
    settings = {} if estimator.settings is None else estimator.settings
    _refuse_arguments(estimator, settings, vectors=rows.ndim == 2)
    seed = estimator.random_state
    if not isinstance(seed, int | np.integer):
        seed = check_random_state(seed).randint(2**31)
    budget = {"steps": estimator.steps, "minutes": estimator.minutes}
    said: ConfigTree = {
        "seed": int(seed),
        "method": {"name": estimator.method},
        "split": {"kind": "given"},
        "train": {"checkpoint_every": NO_CHECKPOINT} | {key: n for key, n in budget.items() if n is not None},
        "machine": {"device": estimator.device},
    }
    if estimator.net is not None:
        said["net"] = {"name": estimator.net}
    own_net = estimator.net is not None or "net" in settings
    recipe, suited = _for_data(rows.shape, frozen=not own_net and get_method(estimator.method).supports_features())
    config = build_config(with_recipe(merge(suited, said, settings), recipe))
    _refuse_method(config.method.name, vectors=rows.ndim == 2 or config.net.freeze_backbone)
    optim = config.optim
    if config.train.steps is not None and "ema_decay" not in settings.get("optim", {}):
        ema = min(optim.ema_decay, max(0.0, 1 - MEMORY / config.train.steps))
        optim = optim.model_copy(update={"ema_decay": ema})
    return config.model_copy(update={"method": config.method.for_data(num_classes), "optim": optim})


def _for_data(shape: tuple[int, ...], *, frozen: bool) -> tuple[str, ConfigTree]:
    """The recipe, and what suits images: through a frozen pretrained network where that is wanted and its weights are
    installed. Grey images are often signs, which a mirror turns into others; a strong warp leaves little of a small
    image."""
    if len(shape) == 2:
        return "short", {}
    _, height, width, channels = shape
    side = min(height, width)
    views = {"flip": channels == 3, "geometry_scale": 0.5}
    if frozen and side >= PHOTO_SIDE and installed(BACKBONE):
        smallest, largest = FROZEN_SIZES
        size = min(max(side, smallest), largest)
        return "photos", {"data": {"image_size": size}, "augment": views, "distil": {"epochs": 0.0}}
    return "short", {"augment": {**views, "pad": min(4, max(1, side // 8))}}


def _refuse_arguments(estimator: SemiSupervisedClassifier, settings: object, *, vectors: bool) -> None:
    """Before the settings are laid over each other: what would have no effect, or would make no sense."""
    if not isinstance(settings, Mapping):
        raise RefusedInput('settings must be a dictionary of groups, for example {"optim": {"lr": 0.01}}.')
    for group, instead in (("data", "X"), ("seed", "random_state")):
        if group in settings:
            raise RefusedInput(f"settings cannot hold {group!r}; give {instead} instead.")
    if "distil" in settings:
        raise RefusedInput("settings cannot hold 'distil': an estimator leaves its backbone as it is; leave it out.")
    if estimator.steps is not None and estimator.minutes is not None:
        raise RefusedInput("steps and minutes are two ways to give one budget; leave out one of them.")
    if estimator.net is not None and vectors:
        raise RefusedInput(f"net={estimator.net!r} is a network for images, and X holds vectors; leave it out.")


def _refuse_method(name: str, *, vectors: bool) -> None:
    method = get_method(name)
    if Needs.POOL_LABELS in method.needs:
        raise RefusedInput(f"{name} needs the true labels of the pool; use method='labels-only'.")
    if vectors and not method.supports_features():
        raise RefusedInput(f"{name} needs images, and there are only vectors; use another method, for example 'sage'.")
