"""Settings that suit the data: a glance at real files, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unissl.autoconfig.recipes import with_recipe
from unissl.autoconfig.suggest import (
    BACKBONE,
    COPIES,
    FURTHER_PASSES,
    PHOTO_MINUTES,
    SIZES,
    STEPS,
    feature_minutes,
    for_photos,
    from_scratch,
    seconds_per_image,
    suggest,
    suggest_config,
)
from unissl.data import DataConfig
from unissl.data.folder.probe import DatasetProbe, probe_dataset
from unissl.distil.config import MAX_FEATURE_MAPS
from unissl.features.extract import BATCH
from unissl.nets.pretrained import installed
from unissl.run.config import RunConfig, build_config

needs_weights = pytest.mark.skipif(not installed(BACKBONE), reason="needs the extra 'photos'")
SEEN = DatasetProbe(images=6000, labels=400, classes=100, side=300, colour=True)


def folder(tmp_path: Path, colour: bool = True, side: int = 40) -> Path:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog", "unlabelled"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(4):
            shape = (side + number, side + 20, 3) if colour else (side + number, side + 20)
            Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "cat" / "broken.jpg").write_bytes(b"no image")
    return tmp_path


def advised(said: dict[str, Any]) -> tuple[RunConfig, tuple[str, ...]]:
    advice = suggest_config(said)
    return build_config(with_recipe(advice.settings, advice.recipe)), advice.reasons


@pytest.mark.parametrize("colour", [True, False])
def test_a_glance_at_a_folder(tmp_path: Path, colour: bool) -> None:
    seen = probe_dataset(DataConfig(name="folder", root=str(folder(tmp_path, colour))))
    assert seen == DatasetProbe(images=13, labels=9, classes=2, side=41, colour=colour)  # 41.5, the median of 40 to 43


def test_several_labels_for_one_file_are_told_before_the_start(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos")
    lines = ["cat/0.png,cat", "dog/0.png,dog", "cat/1.png,cat", "cat/1.png,dog"]
    said = {"data": {"name": "folder", "root": str(photos), "labels": str(tmp_path / "labels.csv")}}
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    assert advised(said)[1][-1].startswith("warning: cat/1.png has several labels and will be used without one;")
    (tmp_path / "labels.csv").write_text("\n".join([*lines, "dog/1.png,cat", "dog/1.png,dog"]))
    assert "2 images have several labels and will be used without one, such as cat/1.png" in advised(said)[1][-1]
    (tmp_path / "labels.csv").write_text("\n".join(lines[:3]))
    assert not [reason for reason in advised(said)[1] if "warning" in reason]


def test_grey_images_stored_in_colour_are_grey(tmp_path: Path) -> None:
    for file in folder(tmp_path, colour=False).rglob("*.png"):
        Image.open(file).convert("RGB").save(file)
    assert not probe_dataset(DataConfig(name="folder", root=str(tmp_path))).colour


@needs_weights
def test_a_folder_of_photos_gets_the_frozen_network(tmp_path: Path) -> None:
    said = {"data": {"name": "folder", "root": str(folder(tmp_path))}}
    config, reasons = advised(said)
    assert config.net.freeze_backbone and config.net.name == BACKBONE
    assert config.data.image_size in SIZES and config.data.image_size <= 160  # images of 40 px
    assert any("13 images, 9 labels of 2 classes" in reason for reason in reasons)
    assert any(f"{config.data.image_size} px" in reason for reason in reasons)


@needs_weights
def test_what_the_user_says_wins(tmp_path: Path) -> None:
    said = {
        "data": {"name": "folder", "root": str(folder(tmp_path)), "image_size": 48},
        "train": {"steps": 7},
        "augment": {"flip": False},
    }
    config, _ = advised(said)
    assert (config.data.image_size, config.train.steps, config.augment.flip) == (48, 7, False)
    config, reasons = advised({**said, "net": {"name": "wrn-16-2"}})
    assert config.net.name == "wrn-16-2" and not config.net.freeze_backbone
    assert "as said" in reasons[0]


def test_without_weights_a_small_network_learns_from_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.autoconfig.suggest.installed", lambda name: False)
    config, reasons = advised({"data": {"name": "folder", "root": str(folder(tmp_path, colour=False))}})
    assert config.net.name == "wrn-10-1" and config.data.image_size == 32 and config.train.minutes == 20
    assert config.train.steps is None and not config.augment.flip and config.augment.geometry_scale == 0.5
    assert "unissl[photos]" in reasons[0]


def test_a_method_that_reads_inner_maps_learns_from_scratch(tmp_path: Path) -> None:
    said = {"data": {"name": "folder", "root": str(folder(tmp_path))}, "method": {"name": "meta-expert"}}
    advice = suggest(said)
    assert advice is not None and advice.recipe == "short" and "needs more than the vectors" in advice.reasons[0]


def test_known_data_sets_have_their_recipes() -> None:
    assert suggest({"data": {"name": "digits"}}) is None
    assert suggest({}) is None


@pytest.mark.parametrize(
    ("minutes", "per_image", "side", "size"),
    [
        (None, 1e-9, 300, 224),
        (None, 1e-9, 32, 160),
        (None, 1e-9, 144, 160),
        (60, 1e-9, 144, 224),
        (60, 1e-9, 32, 160),
        (None, 1.0, 300, 96),
        (2.0, 0.0105, 300, 96),
        (60, 0.0105, 300, 224),
    ],
)
def test_the_size_follows_the_time(minutes: float | None, per_image: float, side: int, size: int) -> None:
    seen = DatasetProbe(6000, 400, 100, side, True)
    assert for_photos(seen, minutes, per_image).settings["data"]["image_size"] == size


def test_the_largest_size_that_is_in_time_by_hand() -> None:
    """Just enough and just too little for each size."""
    for larger, size in pairwise(SIZES):
        enough = 60 * feature_minutes(10) / (6000 * (larger / 128) ** 2)
        assert for_photos(SEEN, 10, 0.999 * enough).settings["data"]["image_size"] >= larger
        assert for_photos(SEEN, 10, 1.001 * enough).settings["data"]["image_size"] == size


@pytest.mark.parametrize(("budget", "minutes"), [(2, 0.9), (4.5, 2.025), (15, 7.2)])
def test_what_training_does_not_need_goes_into_vectors(budget: float, minutes: float) -> None:
    assert feature_minutes(budget) == pytest.approx(minutes)


def test_time_is_aimed_at_where_nobody_has_said_how_long() -> None:
    """And where the passes of the last stages, of which there may be fewer, are not said either."""
    advice = for_photos(SEEN, None, 0.001)
    assert advice.aim == PHOTO_MINUTES and f"fits into {PHOTO_MINUTES:g} minutes" in "; ".join(advice.reasons)
    others = [
        for_photos(SEEN, 4.5, 0.001),
        for_photos(SEEN, None, None),  # the size is said: that is what matters, whatever it costs
        for_photos(SEEN, None, 0.001, epochs_said=True),
        for_photos(SEEN, None, 0.001, further=False),
        for_photos(replace(SEEN, images=SEEN.labels), None, 0.001),
        for_photos(replace(SEEN, images=MAX_FEATURE_MAPS + 1), None, 0.001),
    ]
    assert not any(other.aim or "fits into" in "; ".join(other.reasons) for other in others)


@needs_weights
def test_passes_that_the_user_has_said_stay(tmp_path: Path) -> None:
    advice = suggest_config({"data": {"name": "folder", "root": str(folder(tmp_path))}, "distil": {"epochs": 2.0}})
    assert advice.settings["distil"] == {"epochs": 2.0} and advice.aim is None


def test_more_time_buys_a_larger_network() -> None:
    short, long = (from_scratch(SEEN, {"train": {"minutes": m}}, True).settings["net"]["name"] for m in (15, 90))
    assert (short, long) == ("wrn-10-1", "wrn-16-2")


@needs_weights
def test_a_frozen_network_that_was_named_is_taken(tmp_path: Path) -> None:
    net = {"name": "efficientnet-lite1", "freeze_backbone": True}
    config, reasons = advised({"data": {"name": "folder", "root": str(folder(tmp_path))}, "net": net})
    assert config.net.name == "efficientnet-lite1" and config.net.freeze_backbone
    assert reasons[0].startswith("chose efficientnet-lite1")


def test_grey_images_are_not_mirrored() -> None:
    advice = for_photos(DatasetProbe(100, 10, 2, 28, False), None, 0.001)
    assert advice.settings["augment"] == {"flip": False}
    assert any("mirror" in reason for reason in advice.reasons)


def test_the_speed_of_the_machine_is_of_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks once a reading: one second for a batch, in float32 and in bfloat16 alike."""
    ticks = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    assert seconds_per_image(BACKBONE, 1, 0) == pytest.approx(1 / BATCH)
    assert seconds_per_image(BACKBONE, 1, 2) == pytest.approx(3 / BATCH)


@needs_weights
@pytest.mark.parametrize(
    ("said", "images", "passes"),
    [
        ({}, 13, COPIES + FURTHER_PASSES),
        ({"distil": {"epochs": 0}}, 13, COPIES),
        ({"distil": {"multi_crop": False}}, 13, COPIES),
        ({}, 9, COPIES),  # all labelled
        ({"method": {"name": "labels-only"}}, 13, COPIES),
        ({}, MAX_FEATURE_MAPS + 1, COPIES),
    ],
)
def test_pictures_of_the_last_stages_count_where_they_are_made(
    said: dict[str, Any], images: int, passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "unissl.autoconfig.suggest.seconds_per_image", lambda name, channels, number: asked.append(number) or 0.1
    )
    monkeypatch.setattr("unissl.autoconfig.suggest.glance", lambda data: replace(SEEN, images=images, labels=9))
    suggest({"data": {"name": "folder", "root": str(tmp_path)}, **said})
    assert asked == [passes]


def test_says_what_becomes_of_the_last_stages() -> None:
    def said(images: int, further: bool) -> str:
        return "; ".join(for_photos(DatasetProbe(images, 400, 100, 300, True), None, 0.001, further=further).reasons)

    assert "trains its last stages afterwards, on what 5,600 unlabelled images agree on" in said(6000, True)
    assert "leaves its last stages as they are: more than 20,000 images" in said(20_001, True)
    assert "last stages" not in said(6000, False) and "last stages" not in said(400, True)


def test_length_of_training_on_vectors_unless_the_time_decides_it() -> None:
    assert for_photos(SEEN, None, 0.001).settings["train"] == {"steps": STEPS}
    assert "train" not in for_photos(SEEN, 10, 0.001).settings


@needs_weights
@pytest.mark.parametrize(
    ("said", "further"),
    [({}, True), ({"method": {"name": "labels-only"}}, False), ({"distil": {"epochs": 0}}, False)],
)
def test_says_so_only_where_it_will_be_so(said: dict[str, dict[str, object]], further: bool, tmp_path: Path) -> None:
    data = {"name": "folder", "root": str(folder(tmp_path)), "image_size": 96}
    advice = suggest({"data": data, **said})
    assert advice is not None and any("last stages" in reason for reason in advice.reasons) == further
