"""The configuration that suits the data: probing real files, and what follows."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from unissl.autoconfig.recipes import with_recipe
from unissl.autoconfig.suggest import (
    CACHED_VIEWS,
    EXTRA_CROPS,
    TEACHER_CROPS,
    TEACHER_PASS,
    SuggestedConfig,
    for_photos,
    suggest_config,
)
from unissl.data import DataConfig
from unissl.data.folder.probe import DatasetProbe, probe_dataset
from unissl.distil.config import MAX_EPOCHS
from unissl.errors import UserError
from unissl.methods.registry import get_method
from unissl.nets import DEFAULT_BACKBONE, DEFAULT_TEACHER, backbone_installed, build
from unissl.run.budget import (
    DEFAULT_PHOTO_SIZE_PX,
    FAST_SCRATCH_STEPS,
    FAST_STEPS,
    PHOTO_BATCH,
    PHOTO_SIZES_PX,
    PHOTO_STEPS,
    SCRATCH_STEPS,
    TIMED_IMAGES,
    PassSeconds,
    PhotoWork,
    choose_photo_size,
    measure_passes,
)
from unissl.run.config import RunConfig, build_config

needs_weights = pytest.mark.skipif(not backbone_installed(DEFAULT_BACKBONE), reason="needs the extra 'photos'")
PROBE = DatasetProbe(images=6000, labels=400, classes=100, side=300, colour=True)


def folder(tmp_path: Path, colour: bool = True, side: int = 40) -> Path:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog", "unlabelled"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(4):
            shape = (side + number, side + 20, 3) if colour else (side + number, side + 20)
            Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "cat" / "broken.jpg").write_bytes(b"no image")
    return tmp_path


def suggested(overrides: dict[str, Any]) -> tuple[RunConfig, tuple[str, ...]]:
    suggestion = suggest_config(overrides)
    return build_config(with_recipe(suggestion.settings, suggestion.recipe)), suggestion.reasons


def photos(probe: DatasetProbe = PROBE, method: str = "sage", **overrides: Any) -> SuggestedConfig:
    return for_photos(probe, overrides | {"method": {"name": method}}, DEFAULT_BACKBONE, get_method(method))


@pytest.mark.parametrize("colour", [True, False])
def test_probing_a_folder(tmp_path: Path, colour: bool) -> None:
    probe = probe_dataset(DataConfig(name="folder", root=str(folder(tmp_path, colour))))
    assert probe == DatasetProbe(images=13, labels=9, classes=2, side=41, colour=colour)  # 41.5, the median of 40 to 43


def test_conflicting_labels_are_announced_before_the_start(tmp_path: Path) -> None:
    images = folder(tmp_path / "photos")
    lines = ["file,label", "cat/0.png,cat", "dog/0.png,dog", "cat/1.png,cat", "cat/1.png,dog"]
    overrides = {"data": {"name": "folder", "root": str(images), "labels": str(tmp_path / "labels.csv")}}
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    assert suggested(overrides)[1][-1].startswith("warning: cat/1.png has conflicting labels")
    (tmp_path / "labels.csv").write_text("\n".join([*lines, "dog/1.png,cat", "dog/1.png,dog"]))
    assert "2 images (such as cat/1.png) have conflicting labels" in suggested(overrides)[1][-1]
    (tmp_path / "labels.csv").write_text("\n".join(lines[:4]))
    assert not [reason for reason in suggested(overrides)[1] if "warning" in reason]


def test_grey_images_stored_in_colour_are_grey(tmp_path: Path) -> None:
    for file in folder(tmp_path, colour=False).rglob("*.png"):
        Image.open(file).convert("RGB").save(file)
    assert not probe_dataset(DataConfig(name="folder", root=str(tmp_path))).colour


@needs_weights
def test_a_folder_of_photos_gets_the_frozen_backbone(tmp_path: Path) -> None:
    config, reasons = suggested({"data": {"name": "folder", "root": str(folder(tmp_path))}})
    assert config.net.freeze_backbone and config.net.name == DEFAULT_BACKBONE
    assert config.data.image_size == DEFAULT_PHOTO_SIZE_PX and config.train.steps == PHOTO_STEPS
    assert config.distil.epochs == MAX_EPOCHS  # four unlabelled images
    assert config.distil.teacher_backbone == DEFAULT_TEACHER
    assert any("13 images, 9 labels of 2 classes" in reason for reason in reasons)
    assert any(f"image size {DEFAULT_PHOTO_SIZE_PX} px" in reason for reason in reasons)


@needs_weights
def test_without_minutes_the_speed_of_the_machine_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"data": {"name": "folder", "root": str(folder(tmp_path))}}
    results = []
    for seconds in (1e-4, 10.0):
        speed = PassSeconds(seconds, seconds)
        monkeypatch.setattr("unissl.autoconfig.suggest.measure_passes", lambda *arguments, speed=speed: speed)
        results.append(suggested(overrides))
    (config, quick), (other, slow) = results
    assert config == other and quick[:-1] == slow[:-1]
    assert quick[-1] == "estimated time: about 10 seconds; for a shorter run give --fast, or --minutes N"
    assert "minutes; for a shorter" in slow[-1]


@needs_weights
def test_a_fast_run_extracts_one_view_and_fine_tunes_nothing(tmp_path: Path) -> None:
    overrides = {"data": {"name": "folder", "root": str(folder(tmp_path))}}
    suggestion = suggest_config(overrides, fast=True)
    config = build_config(with_recipe(suggestion.settings, suggestion.recipe))
    assert (config.augment.cached_views, config.distil.fine_tune, config.distil.multi_crop) == (0, False, False)
    assert config.train.steps == FAST_STEPS < PHOTO_STEPS and config.distil.epochs > 0
    assert "a linear classifier on soft labels" in " ".join(suggestion.reasons)
    kept = suggest_config(overrides | {"augment": {"cached_views": 1}, "train": {"steps": 7}}, fast=True).settings
    assert kept["augment"]["cached_views"] == 1 and kept["train"]["steps"] == 7
    scratch = suggest_config(overrides | {"net": {"name": "wrn-10-1"}}, fast=True).settings
    assert scratch["train"]["steps"] == FAST_SCRATCH_STEPS and "distil" not in scratch
    with pytest.raises(UserError, match="A fast run is for images of your own"):
        suggest_config({"data": {"name": "digits"}}, fast=True)


@needs_weights
def test_what_the_user_gives_wins(tmp_path: Path) -> None:
    overrides = {
        "data": {"name": "folder", "root": str(folder(tmp_path)), "image_size": 48},
        "train": {"steps": 7},
        "augment": {"flip": False},
        "distil": {"epochs": 2.0},
    }
    config, _ = suggested(overrides)
    assert (config.data.image_size, config.train.steps, config.augment.flip) == (48, 7, False)
    assert config.distil.epochs == 2.0
    del overrides["distil"]
    config, reasons = suggested({**overrides, "net": {"name": "wrn-16-2"}})
    assert config.net.name == "wrn-16-2" and not config.net.freeze_backbone
    assert "as requested" in reasons[0]


@needs_weights
def test_a_pretrained_name_is_pretrained_and_frozen_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    data = {"name": "folder", "root": str(folder(tmp_path))}
    installed = [name for name in ("efficientnet-lite2", "efficientnet-lite1") if backbone_installed(name)]
    if not installed:
        pytest.skip("the weights of efficientnet-lite1 and efficientnet-lite2 are not installed")
    other = installed[0]
    config, reasons = suggested({"data": data, "net": {"name": other}})
    assert config.net.name == other and config.net.freeze_backbone and not config.net.pretrained
    assert reasons[0].startswith(f"backbone {other}, pretrained and frozen")
    assert build_config({"net": {"name": other}}).net.freeze_backbone
    config, reasons = suggested({"data": data, "net": {"name": other, "freeze_backbone": False}})
    assert not config.net.freeze_backbone and not config.net.pretrained


def test_the_image_size_of_an_external_backbone(tmp_path: Path) -> None:
    """The one it was trained on where that is known, else the default size of photos; never that of small networks."""
    data = {"name": "folder", "root": str(folder(tmp_path / "photos"))}
    for name, facts, size in (("bare", {}, DEFAULT_PHOTO_SIZE_PX), ("trained", {"height": 24}, 24)):
        weights = tmp_path / name / "w.safetensors"
        weights.parent.mkdir()
        save_file(build("wrn-10-1", 2).state_dict(), weights)
        (weights.parent / "manifest.json").write_text(json.dumps({"mean": [0.5] * 3, "std": [0.5] * 3, **facts}))
        config, _ = suggested({"data": data, "net": {"name": f"wrn-10-1@{weights}"}})
        assert config.net.freeze_backbone and config.data.image_size == size


def test_without_weights_a_small_network_trains_from_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.autoconfig.suggest.backbone_installed", lambda name: False)
    config, reasons = suggested({"data": {"name": "folder", "root": str(folder(tmp_path, colour=False))}})
    assert config.net.name == "wrn-10-1" and config.data.image_size == 32
    assert (
        config.train.steps == SCRATCH_STEPS
        and config.train.minutes is None
        and not config.augment.flip
        and config.augment.geometry_scale == 0.5
    )
    assert "make install" in reasons[0]


def test_a_method_that_reads_inner_maps_trains_from_scratch(tmp_path: Path) -> None:
    overrides = {"data": {"name": "folder", "root": str(folder(tmp_path))}, "method": {"name": "meta-expert"}}
    suggestion = suggest_config(overrides)
    assert suggestion.recipe == "short" and "needs more than the features" in suggestion.reasons[0]


def test_known_data_sets_have_their_recipes() -> None:
    for overrides in ({"data": {"name": "digits"}}, {}):
        assert suggest_config(overrides) == SuggestedConfig(None, overrides)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        suggest_config({"data": {"name": "folder", "root": str(tmp_path / "nowhere")}})


@pytest.mark.parametrize(
    ("minutes", "per_image", "side", "size"),
    [
        (None, 1e-9, 300, 160),
        (None, 1.0, 32, 160),
        (60, 1e-9, 144, 224),
        (60, 1e-9, 32, 160),
        (60, 1.0, 300, 96),
        (2.0, 0.0105, 300, 96),
        (60, 0.0105, 300, 224),
    ],
)
def test_with_minutes_the_size_follows_the_time(
    minutes: float | None, per_image: float, side: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, work = DatasetProbe(6000, 400, 100, side, True), PhotoWork(6000, 6000, 4)
    assert choose_photo_size(probe, minutes, work, PassSeconds(per_image, 0.0))[0] == size


def test_the_largest_size_that_is_in_time_by_hand() -> None:
    """Just enough and just too little for each size: of ten minutes, 4.5 are for features."""
    for larger, size in pairwise(PHOTO_SIZES_PX):
        enough = 60 * 4.5 / (6000 * (larger / 128) ** 2)
        for factor, expected in ((0.999, larger), (1.001, size)):
            speed = PassSeconds(factor * enough / 2, factor * enough / 8)  # half for the first pass, half for four more
            assert choose_photo_size(PROBE, 10, PhotoWork(6000, 6000, 4), speed)[0] == expected


def test_more_time_buys_a_larger_network(tmp_path: Path) -> None:
    data, net = {"name": "folder", "root": str(folder(tmp_path))}, {"freeze_backbone": False}
    method = {"name": "meta-expert"}
    names = [
        suggest_config({"data": data, "net": net, "method": method, "train": {"minutes": m}}).settings["net"]["name"]
        for m in (15, 90)
    ]
    assert names == ["wrn-10-1", "wrn-16-2"]


def test_grey_images_are_not_flipped() -> None:
    suggestion = photos(DatasetProbe(100, 10, 2, 28, False))
    assert suggestion.settings["augment"] == {"flip": False}
    assert any("flips" in reason for reason in suggestion.reasons)


def test_the_speed_of_the_machine_is_of_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks once a reading: one second for a batch, in float32 and in bfloat16 alike."""
    ticks = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    speed = measure_passes(DEFAULT_BACKBONE, 1)
    assert (speed.exact, speed.reduced) == (pytest.approx(1 / TIMED_IMAGES), pytest.approx(1 / TIMED_IMAGES))
    work = PhotoWork(images=100, trained=10, extra_passes=4)
    assert speed.features(work, 128) == pytest.approx(140 / TIMED_IMAGES)
    assert speed.features(work, 256) == pytest.approx(560 / TIMED_IMAGES)


@pytest.mark.parametrize(
    ("overrides", "images", "passes"),
    [
        ({}, 6000, CACHED_VIEWS + TEACHER_CROPS * TEACHER_PASS),
        ({"distil": {"teacher_backbone": DEFAULT_BACKBONE}}, 6000, CACHED_VIEWS + EXTRA_CROPS),
        ({"distil": {"epochs": 0}}, 6000, CACHED_VIEWS),
        ({"distil": {"multi_crop": False}}, 6000, CACHED_VIEWS),
        ({}, PROBE.labels, CACHED_VIEWS),  # all labelled
        ({"method": "labels-only"}, 6000, CACHED_VIEWS),
    ],
)
def test_crops_of_the_distillation_count_where_they_are_used(
    overrides: dict[str, Any], images: int, passes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[PhotoWork] = []

    def choose(probe: object, minutes: object, work: PhotoWork, speed: object) -> tuple[int, str]:
        counted.append(work)
        return 160, ""

    monkeypatch.setattr("unissl.autoconfig.suggest.choose_photo_size", choose)
    photos(replace(PROBE, images=images), train={"minutes": 10.0}, **overrides)
    assert counted[0].images == images and [work.extra_passes for work in counted] == [passes]


def test_a_small_pool_gets_more_epochs() -> None:
    """As many as make 100 steps of 64 images; a larger one has more steps in the epochs of the recipe."""
    probe = replace(PROBE, labels=4)
    assert photos(replace(probe, images=804)).settings["distil"] == {"epochs": 8.0}
    assert photos(replace(probe, images=10)).settings["distil"] == {"epochs": MAX_EPOCHS}
    for plain in (photos(replace(probe, images=1604)), photos(replace(probe, images=4)), photos(PROBE)):
        assert "distil" not in plain.settings


def test_distillation_is_announced_where_it_will_happen() -> None:
    def reasons(images: int, **overrides: Any) -> str:
        return "; ".join(photos(replace(PROBE, images=images), **overrides).reasons)

    assert "stage 2: distillation on soft labels for 5,600 unlabelled images" in reasons(6000)
    assert "soft labels for 12,000 of 19,601 unlabelled images" in reasons(20_001)
    for quiet in (reasons(400), reasons(6000, distil={"epochs": 0}), reasons(6000, method="labels-only")):
        assert "distillation" not in quiet


def test_length_of_training_on_features_unless_the_time_decides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.autoconfig.suggest.measure_passes", lambda *arguments: PassSeconds(0.001, 0.001))
    assert photos().settings["train"] == {"steps": PHOTO_STEPS}
    assert "train" not in photos(train={"minutes": 10}).settings


def test_a_large_pool_gets_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as make five passes in batches of 128; beyond 12,000 images the run trains on a sample."""
    monkeypatch.setattr("unissl.autoconfig.suggest.measure_passes", lambda *arguments: PassSeconds(0.001, 0.001))
    probe = replace(PROBE, labels=40)
    for pool, steps in ((0, 250), (3000, 250), (6400, 250), (6401, 251), (12_000, 469), (60_000, 469)):
        assert photos(replace(probe, images=40 + pool)).settings["train"] == {"steps": steps}
    config = build_config(with_recipe({"method": {"name": "sage"}}, "photos"))
    assert config.batch.unlabelled == PHOTO_BATCH
