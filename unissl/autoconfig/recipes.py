"""Named starting points: differences from the defaults that suit a situation. The user's settings replace them.

A recipe is a function from the name of a method to a nested dictionary. Its docstring gives the command, the time and
the number to expect. What is particular to a method is declared by the method (``MethodConfig``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unissl.config import ConfigTree, merge
from unissl.errors import UserError, did_you_mean
from unissl.methods.base import MethodConfig
from unissl.methods.registry import all_methods
from unissl.nets import DEFAULT_BACKBONE, DEFAULT_TEACHER, backbone_installed, supports_distillation
from unissl.run.budget import PHOTO_BATCH, replace_budget


def paper(method: str) -> ConfigTree:
    """The protocol of the paper: WRN-28-2, 64 + 448 images a step, 2^18 steps, evaluation every 1,024.

    ``unissl train --data cifar10 --recipe paper --method sage --max-count 4996``: about a day on one large GPU, eight
    days on two cores. Published for 40 labels, arbitrary class distribution, gamma 100: 65.99 +- 3.72 as the best of
    256 looks at the test set; the authors' log of seed 2 ends at 64.77 with a best of 66.83.
    """
    budget = {
        "train": {"steps": 2**18, "evaluations": 256, "method_periods": 256, "log_every": 256, "checkpoint_every": 1024}
    }
    return _with_optim(method, merge(budget, _config_of(method).paper_run))


def short(method: str) -> ConfigTree:
    """Minutes on a CPU: a small network and small batches, which buy the most accuracy per minute there.

    ``unissl train --data cifar10 --minutes 4``: about 25 % on CIFAR-10 with 40 labels, with SAGE as with labels-only
    (docs/results.md); the pool needs longer than that to help. The paper's EMA decay 0.999,
    BatchNorm momentum 0.001 and the methods' momenta of 0.999 look back a thousand steps and are made for 2^18 of
    them; a run of some hundred steps would still show its random start in them, so all look back a hundred or less
    here (the methods' by ``MethodConfig.short_run``).
    """
    common: ConfigTree = {
        "net": {"name": "wrn-10-1", "bn_momentum": 0.1},
        "batch": {"labelled": 10, "unlabelled": 70},
        "optim": {"ema_decay": 0.99},
        "train": {"steps": 1000, "evaluations": 10, "method_periods": 10},
    }
    own = _config_of(method).short_run
    return _with_optim(method, merge(common, {"method": own} if own else {}))


def photos(method: str) -> ConfigTree:
    """Photos of one's own: a frozen network pretrained on ImageNet, and a small one trained on its features.

    ``unissl train --images photos/ --labels labels.csv``: minutes on a CPU. What to expect on Caltech-101 with 4 labels
    per class is in docs/results.md.
    """
    teacher = {"teacher_backbone": DEFAULT_TEACHER} if backbone_installed(DEFAULT_TEACHER) else {}
    recipe = merge(
        short(method),
        {
            "net": {"name": DEFAULT_BACKBONE, "freeze_backbone": True},
            "augment": {"labelled_feature_dropout": 0.5, "cached_views": 2},
            "batch": {"labelled": 64, "unlabelled": PHOTO_BATCH},
            "optim": {"lr": 0.2, "weight_decay": 5e-3, "ema_decay": 0.99},
            "train": {"steps": 450, "evaluations": 10, "method_periods": 10},
            "distil": {"epochs": 4.0, **teacher},
        },
    )
    return _with_optim(method, recipe)


def digits(method: str) -> ConfigTree:
    """scikit-learn's digits with 4 labels per class and a pool of 446 images of arbitrary class distribution.

    ``unissl demo``, with 1 label per class: about a minute and a half on two cores for labels-only, FixMatch and SAGE
    together. Expect 52.1, 67.6 and 82.0 % as means of seeds 0 to 9; with 4 labels 86.8, 96.3 and 96.0 % as means of
    seeds 0 to 4 (docs/results.md). Digits are scaled to 16 x 16 and never flipped; warps
    are half as strong as the paper's, since digits fill the frame.
    """
    return merge(
        short(method),
        {
            "data": {"name": "digits", "image_size": 16, "test_holdout": 500},
            "split": {"pool_distribution": "arbitrary", "max_count": 110, "gamma": 10.0},
            "augment": {"pad": 2, "geometry_scale": 0.5},
            "train": {"steps": 1000, "evaluations": 20, "method_periods": 20},
        },
    )


def _config_of(method: str) -> type[MethodConfig]:
    """The settings class of a method; an unknown name is refused later, by the check of the configuration."""
    methods = all_methods()
    return methods[method].Config if method in methods else MethodConfig


def _with_optim(method: str, recipe: ConfigTree) -> ConfigTree:
    """A recipe with the method's own optimiser in place of the recipe's, if the method has one."""
    own = _config_of(method).own_optim
    return recipe | {"optim": dict(own)} if own else recipe


RECIPES: dict[str, Callable[[str], ConfigTree]] = {"paper": paper, "short": short, "photos": photos, "digits": digits}


def with_recipe(overrides: Mapping[str, Any], name: str | None = None) -> ConfigTree:
    """Merge the user's settings over a recipe: the one named, or the one that suits the data."""
    if name is None:
        data = settings_group(overrides, "data").get("name", "digits")
        name = data if isinstance(data, str) and data in RECIPES else "short"
    if name not in RECIPES:
        raise UserError(f"There is no recipe {name!r}.{did_you_mean(name, list(RECIPES))}")
    method = str(settings_group(overrides, "method").get("name", "sage"))
    base = RECIPES[name](method)
    net = merge(settings_group(base, "net"), settings_group(overrides, "net"))
    if net.get("freeze_backbone") and (own := _config_of(method).feature_run):
        base = merge(base, {"method": own})
    if "distil" in base and not (net.get("freeze_backbone") and supports_distillation(str(net.get("name")))):
        del base["distil"]  # the network declares no stages that distillation may train
    replace_budget(base, overrides)
    return merge(base, overrides)


def settings_group(overrides: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A group of settings; a value that is no group is refused later, by the check of the configuration."""
    value = overrides.get(key, {})
    return value if isinstance(value, Mapping) else {}
