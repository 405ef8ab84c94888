"""A configuration for images of the user's own, chosen after probing them, with a reason for each choice.

Photos go through a frozen backbone pretrained on ImageNet, if its weights are installed: with a few labels, nothing
that is trained from scratch in minutes comes near its features (docs/results.md). Otherwise a small network is trained
on small images. Every setting that the user gives replaces what is chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unissl.autoconfig.recipes import settings_group
from unissl.config import ConfigTree, merge
from unissl.data import DataConfig
from unissl.data.folder.index import FolderIndex
from unissl.data.folder.probe import DatasetProbe, probe_dataset
from unissl.distil.config import MAX_FEATURE_MAPS
from unissl.errors import shortened
from unissl.methods.base import Method
from unissl.methods.registry import get_method
from unissl.nets import (
    DEFAULT_BACKBONE,
    backbone_installed,
    is_pretrained_name,
    preferred_image_size,
    supports_distillation,
)
from unissl.run.budget import MAX_STEPS_ON_FEATURES, PHOTO_STEPS, SCRATCH_STEPS, SMALL_IMAGE_PX, choose_photo_size
from unissl.run.results import OWN_DATA

CACHED_VIEWS = 2
"""Augmented views per image, as in the recipe ``photos``."""
EXTRA_CROPS = 2
"""Further crops per image for the teacher of the distillation."""


@dataclass(frozen=True)
class SuggestedConfig:
    """A recipe by name, settings on top of it, and the sentences that explain them."""

    recipe: str | None
    settings: ConfigTree
    reasons: tuple[str, ...] = ()


def suggest_config(overrides: Mapping[str, Any], index: FolderIndex | None = None) -> SuggestedConfig:
    """The suggestion for the data that ``overrides`` name, with the overrides on top.

    Known data sets have recipes, and nothing is suggested for them. ``index`` is a scan of the image folder that was
    made before.
    """
    data = settings_group(overrides, "data")
    if data.get("name") not in OWN_DATA:
        return SuggestedConfig(None, dict(overrides))
    config = DataConfig(**{key: value for key, value in data.items() if key in DataConfig.model_fields})
    probe = probe_dataset(config, index)
    method_name = str(settings_group(overrides, "method").get("name", "sage"))
    method = get_method(method_name)
    net = settings_group(overrides, "net")
    name = str(net.get("name", DEFAULT_BACKBONE))
    available = is_pretrained_name(name) and ("name" in net or backbone_installed(name))
    frozen = available and net.get("freeze_backbone") is not False and not net.get("pretrained")
    if method.supports_features() and frozen:
        suggestion = for_photos(probe, overrides, name, method, method_name)
    else:
        suggestion = from_scratch(probe, overrides, method)
    reasons = (*suggestion.reasons, *_warnings(probe))
    return replace(suggestion, settings=merge(suggestion.settings, overrides), reasons=reasons)


def for_photos(
    probe: DatasetProbe, overrides: Mapping[str, Any], backbone: str, method: type[Method], method_name: str
) -> SuggestedConfig:
    """The frozen backbone, and distillation where there is a pool for it."""
    minutes, distil = _minutes(overrides), settings_group(overrides, "distil")
    reasons = [
        f"backbone {backbone}, pretrained and frozen: {_count(probe)}; its features are better than any that so few "
        "labels could train"
    ]
    learns = method.uses_network_head() and method.learns_from_pool(method.Config(name=method_name))
    pool = probe.images > probe.labels
    distils = distil.get("epochs") != 0 and learns and pool and supports_distillation(backbone)
    if distils:
        reasons.append(
            f"stage 2: distillation on {probe.images - probe.labels:,} unlabelled images"
            if probe.images <= MAX_FEATURE_MAPS
            else f"no distillation: more than {MAX_FEATURE_MAPS:,} images"
        )
        distils = probe.images <= MAX_FEATURE_MAPS
    settings: ConfigTree = {"augment": {"flip": probe.colour}}
    if minutes is None:
        settings["train"] = {"steps": PHOTO_STEPS}
    else:
        reasons.append(
            f"at most {MAX_STEPS_ON_FEATURES} steps: more made classifiers worse, so the run may end before the time"
        )
    if "image_size" not in settings_group(overrides, "data"):
        multi_crop = distils and distil.get("multi_crop") is not False
        passes = CACHED_VIEWS + (EXTRA_CROPS if multi_crop else 0)
        size, why = choose_photo_size(probe, minutes, backbone, passes)
        if not supports_distillation(backbone) and (trained_on := preferred_image_size(backbone)):
            size, why = trained_on, "the size that the backbone was trained on"
        settings["data"] = {"image_size": size}
        reasons.append(f"image size {size} px ({why}); your images have about {probe.side} px")
    if not probe.colour:
        reasons.append("no horizontal flips: grey images are often signs, which a mirror turns into others")
    return SuggestedConfig("photos", settings, tuple(reasons))


def from_scratch(probe: DatasetProbe, overrides: Mapping[str, Any], method: type[Method]) -> SuggestedConfig:
    """A small network on small images."""
    budget, net = settings_group(overrides, "train"), settings_group(overrides, "net")
    minutes = _minutes(overrides)
    size = 32 if probe.side < SMALL_IMAGE_PX else 64
    settings: ConfigTree = {"data": {"image_size": size}, "augment": {"flip": probe.colour}}
    if "name" in net:
        why = "as requested"
    elif not method.supports_features():
        why = "the method needs more than the features of a frozen backbone"
    else:
        why = f"no pretrained weights are installed ({_how_to_install()}), and {_count(probe)}"
    name = net.get("name") or ("wrn-16-2" if minutes is not None and minutes >= 60 else "wrn-10-1")
    settings["net"] = {"name": name}
    if not probe.colour:
        settings["augment"]["geometry_scale"] = 0.5
    if "steps" not in budget and minutes is None:
        settings["train"] = {"steps": SCRATCH_STEPS}
    size = settings_group(overrides, "data").get("image_size") or size
    length = f"{budget.get('steps', SCRATCH_STEPS)} steps" if minutes is None else f"{minutes:g} minutes"
    return SuggestedConfig("short", settings, (f"network {name} at {size} px, {length}: {why}",))


def _minutes(overrides: Mapping[str, Any]) -> float | None:
    """The time budget; anything but a number is left to the validation of the configuration."""
    minutes = settings_group(overrides, "train").get("minutes")
    return float(minutes) if isinstance(minutes, int | float) else None


def _how_to_install() -> str:
    return "run `make install` in the clone, or `pip install '.[photos]'`"


def _count(probe: DatasetProbe) -> str:
    return f"{probe.images:,} images, {probe.labels:,} labels of {probe.classes} classes"


def _warnings(probe: DatasetProbe) -> tuple[str, ...]:
    """What the user should know before time is spent."""
    if not probe.conflicting:
        return ()
    first, number = shortened(probe.conflicting[0]), len(probe.conflicting)
    subject = f"{first} has" if number == 1 else f"{number:,} images (such as {first}) have"
    return (f"warning: {subject} conflicting labels and will be treated as unlabelled; the report lists them",)
