"""Runs whose backbone has its last stages trained further: what is shipped, recorded, resumed, skipped and refused."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_material import CPU, FROZEN, carried_out, needs_weights, photos, settings, without_package

from unissl.autoconfig.recipes import with_recipe
from unissl.distil import soft_labels
from unissl.distil.config import MAX_FEATURE_MAPS
from unissl.errors import UserError
from unissl.estimators import SAGEClassifier
from unissl.features.extract import FEATURE_NORM, WithBackbone, extract_features, trainable_stages_of
from unissl.inference.model import load_model
from unissl.nets.linear_net import LinearHead
from unissl.report.html import curve_of
from unissl.report.load_run import read_record
from unissl.report.samples import collect_samples
from unissl.run import inputs as material
from unissl.run.budget import Cost, ReservedTime, plan_budget, steps_from_minutes
from unissl.run.config import RunConfig, baseline_config, build_config
from unissl.run.distillation import (
    TEACHER_SECONDS,
    fit_epochs_to_time,
    run_distillation,
    seconds_per_epoch,
    seconds_per_image,
    should_distil,
)
from unissl.run.pipeline import build_split, resume
from unissl.run.setup import build_training
from unissl.run_folder import RunFolder

FURTHER = {"epochs": 2.0, "batch": 8}


@pytest.fixture(autouse=True)
def shared_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path_factory.getbasetemp() / "maps-of-further-training"))


def further(method: str = "sage", **groups: Any) -> RunConfig:
    return settings(method, distil=FURTHER, **groups)


@needs_weights
def test_maps_are_those_that_enter_the_last_stages(in_float32: None) -> None:
    """And vectors beside maps are those without."""
    config, images = further(), photos().train.images
    made = extract_features(images, "efficientnet-lite0", config.augment, 1, CPU, maps=True)
    plain = extract_features(images, "efficientnet-lite0", config.augment, 1, CPU)
    assert made.maps is not None and plain.maps is None
    assert made.maps.shape == (38, 2, 2, 2, 112) and made.maps.dtype == np.float16
    np.testing.assert_allclose(made.vectors, plain.vectors, atol=1e-5)
    stages = trainable_stages_of(material.backbone("efficientnet-lite0", 3))
    for view in (0, 1):
        entering = torch.from_numpy(made.maps[:, view].astype(np.float32)).permute(0, 3, 1, 2)
        with torch.no_grad():
            vectors = stages(entering).mean((2, 3)).numpy()
        np.testing.assert_allclose(vectors, plain.vectors[:, view], atol=2e-2)


@needs_weights
def test_the_student_is_shipped_recorded_and_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = carried_out(further(), tmp_path / "run")
    folder, dataset = RunFolder(tmp_path / "run"), photos()
    assert run.summary["distilled"]
    evaluations = [line for line in folder.read_metrics() if line["kind"] == "eval"]
    assert [line["step"] for line in evaluations] == [2, 4, 4 + 7]  # 2 epochs of 30 images, 8 a step
    without_package(monkeypatch)
    model = load_model(folder)
    assert isinstance(model.module, WithBackbone) or isinstance(model.module.module, WithBackbone)
    assert any(isinstance(part, LinearHead) for part in model.module.modules())
    assert dataset.test is not None
    said = model.predict(dataset.test.images).classes
    assert (said == dataset.test.labels).mean() == run.summary["accuracy"]["last"] == evaluations[-1]["accuracy"]


@needs_weights
def test_the_pool_is_answered_as_predict_would(tmp_path: Path) -> None:
    """From maps in half precision there, from images here."""
    carried_out(further(), tmp_path / "run")
    record = read_record(RunFolder(tmp_path / "run"))
    assert record.pool is not None
    said = load_model(RunFolder(tmp_path / "run")).predict(photos().train.images[record.pool["row"]])
    assert (said.classes == record.pool["class_index"]).mean() > 0.95
    np.testing.assert_allclose(said.confidence, record.pool["confidence"], atol=2e-3)


@needs_weights
def test_the_report_sees_the_vectors_of_the_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carried_out(further(), tmp_path / "run")
    record, dataset = read_record(RunFolder(tmp_path / "run")), photos()

    def forbidden(*given: object) -> None:
        raise AssertionError("the backbone ran again")

    monkeypatch.setattr("unissl.features.extract._extract", forbidden)
    seen = collect_samples(record, dataset)
    model = load_model(RunFolder(tmp_path / "run"))
    whole = model.predict(dataset.train.images[seen.labelled])
    np.testing.assert_allclose(seen.said.probs, whole.probs, atol=2e-3)
    assert seen.features.shape == (8, 1280)


@needs_weights
@pytest.mark.parametrize("wanted", [True, False])
def test_the_teacher_sees_three_pictures_of_a_photo_whose_file_is_there(
    wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The middle square first, as the student will."""
    config, dataset = settings(distil={**FURTHER, "multi_crop": wanted}), photos()

    def originals() -> Iterator[bytes]:
        for image in dataset.train.images:
            file = io.BytesIO()
            Image.fromarray(np.pad(image, [(0, 0), (9, 9), (0, 0)])).save(file, "PNG")
            yield file.getvalue()

    with_files = replace(dataset, train=replace(dataset.train, originals=originals))
    split = build_split(config, dataset)
    shown: list[list[torch.Tensor]] = []

    def spied(pictures: list[torch.Tensor], *given: Any) -> torch.Tensor:
        shown.append(pictures)
        return soft_labels(pictures, *given)

    monkeypatch.setattr("unissl.run.distillation.soft_labels", spied)
    for data in (with_files, dataset):
        state, batches = build_training(config, data, split, CPU)
        run_distillation(config, state, batches, data, split)
    assert [len(pictures) for pictures in shown] == ([3, 1] if wanted else [1, 1])
    assert torch.equal(shown[0][0], shown[1][0])
    lengths = torch.stack([picture.norm(dim=1) for picture in shown[0]])
    assert torch.allclose(lengths, torch.full_like(lengths, FEATURE_NORM))


@needs_weights
def test_cut_off_behind_the_last_step_it_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the student, and killed before the summary, with the student's line in the record already."""
    monkeypatch.setattr("unissl.run.pipeline.load_data", lambda data, split: photos())
    whole = carried_out(further(), tmp_path / "whole")
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    for name, kept in (("before", lines[:-1]), ("behind", lines)):
        cut = tmp_path / name
        shutil.copytree(tmp_path / "whole", cut)
        os.unlink(cut / "summary.json")
        os.unlink(cut / "model.safetensors")
        (cut / "metrics.jsonl").write_text("\n".join(kept) + "\n")
        again = resume(cut, quiet=True)
        assert (cut / "model.safetensors").read_bytes() == model
        assert again.summary["accuracy"] == whole.summary["accuracy"]
        assert len((cut / "metrics.jsonl").read_text().splitlines()) == len(lines)


@needs_weights
def test_where_there_is_nothing_to_learn_or_no_place_for_it_the_backbone_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = build_split(further(), photos())
    assert should_distil(further(), 38, split)
    assert should_distil(further("fixmatch"), 38, split)
    assert not should_distil(settings(), 38, split)
    assert not should_distil(further("labels-only"), 38, split)
    assert not should_distil(further("ssb"), 38, split)  # its detector is a head of its own
    assert not should_distil(further(), MAX_FEATURE_MAPS + 1, split)
    summary = carried_out(baseline_config(further()), tmp_path / "reference").summary
    assert "distilled" not in summary
    monkeypatch.setattr("unissl.distil.config.MAX_FEATURE_MAPS", 37)
    assert "distilled" not in carried_out(further(), tmp_path / "large").summary


@needs_weights
def test_its_time_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget with room for it leaves the epochs as they are, a short one cuts them down, but never to none."""
    config, dataset = further(), photos()
    split = build_split(config, dataset)
    monkeypatch.setattr("unissl.run.distillation.seconds_per_epoch", lambda *given: 50.0)
    monkeypatch.setattr("unissl.run.distillation.seconds_per_image", lambda *given: 0.1)
    beside = 38 * TEACHER_SECONDS + 0.9  # 38 images, and 9 for testing
    settled, seconds = fit_epochs_to_time(config, dataset, split, CPU, 1000.0, 0.1)
    assert settled == config and seconds == pytest.approx(beside + 100)
    settled, seconds = fit_epochs_to_time(config, dataset, split, CPU, beside + 50, 0.1)
    assert settled.distil.epochs == 1.0 and seconds == pytest.approx(beside + 50)
    for fewest, epochs in ((0.1, 0.1), (1.0, 1.0), (3.0, 2.0)):  # never more than were asked for
        assert fit_epochs_to_time(config, dataset, split, CPU, -3.0, fewest)[0].distil.epochs == epochs
    assert fit_epochs_to_time(settings(), dataset, split, CPU, 1.0, 0.1) == (settings(), 0.0)


@needs_weights
@pytest.mark.parametrize(
    ("aim", "epochs"),
    [(None, 2.0), (10.0, 2.0), (4.0, 1.5), (0.1, 1.0)],  # 240 s: 10 to close, 152 for steps, 3 beside, 50 a pass
)
def test_passes_give_way_to_a_time_that_nobody_has_said(
    aim: float | None, epochs: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps are given and stay; what is left behind them goes into passes, of which there is at least one."""
    config, dataset = further(), photos()
    split = build_split(config, dataset)
    state, batches = build_training(config, dataset, split, CPU)
    monkeypatch.setattr("unissl.run.distillation.TEACHER_SECONDS", 0.0)
    monkeypatch.setattr("unissl.run.distillation.seconds_per_epoch", lambda *given: 50.0)
    monkeypatch.setattr("unissl.run.distillation.seconds_per_image", lambda *given: 3 / 9)
    monkeypatch.setattr("unissl.run.budget.measure", lambda *given: Cost(per_step=38.0, overhead=0.0))
    monkeypatch.setattr("time.monotonic", lambda: 7.0)
    settled = plan_budget(config, state, batches, dataset, split, ReservedTime(started=7.0), aim)
    assert config.train.steps == 4 and settled.distil.epochs == epochs
    assert settled.model_copy(update={"distil": config.distil}) == config


@needs_weights
def test_measuring_what_a_run_will_take_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    config, dataset = further(), photos()
    split = build_split(config, dataset)
    state, batches = build_training(config, dataset, split, CPU)
    monkeypatch.setattr("unissl.training.timing.MIN_SECONDS", 0.0)
    weights = {name: value.clone() for name, value in state.learner.state_dict().items()}
    draws = torch.get_rng_state()
    settled = plan_budget(config, state, batches, dataset, split, ReservedTime(reference=split, refits=2), aim=1000.0)
    assert settled == config and torch.equal(torch.get_rng_state(), draws)
    assert all(torch.equal(value, weights[name]) for name, value in state.learner.state_dict().items())


@needs_weights
def test_a_minute_for_the_student_is_a_minute_less_for_the_method() -> None:
    config, dataset = further(train={"minutes": 2.0, "evaluations": 1}), photos()
    state, batches = build_training(config, dataset, build_split(config, dataset), CPU)
    steps = [
        steps_from_minutes(config, state, batches, beside=ReservedTime(afterwards=seconds)).train.steps or 0
        for seconds in (0, 119)
    ]
    assert steps[1] < steps[0]


@needs_weights
def test_passes_over_a_pool_are_measured() -> None:
    config, dataset = further(), photos()
    maps = material.cached_features(config, dataset.train.images, 1, CPU).maps
    assert maps is not None and seconds_per_epoch(config, maps, 1000, 3, CPU) > 0
    assert seconds_per_image(config, dataset, CPU) > 0


@needs_weights
def test_the_report_of_a_run_with_maps_and_no_student_makes_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_out(further("ssb"), tmp_path / "run")

    def forbidden(*given: object) -> None:
        raise AssertionError("the backbone ran again")

    monkeypatch.setattr("unissl.features.extract._extract", forbidden)
    assert collect_samples(read_record(RunFolder(tmp_path / "run")), photos()).features.shape[0] == 8


@needs_weights
def test_a_jump_of_the_student_is_no_sign_of_too_short_a_run(tmp_path: Path) -> None:
    """It is another model: not on the curve, not in the mean over it."""
    carried_out(further(), tmp_path / "run")
    record = read_record(RunFolder(tmp_path / "run"))
    evaluations = [line["accuracy"] for line in record.metrics if line["kind"] == "eval"]
    assert len(evaluations) == 3 and curve_of(record) == evaluations[:-1]
    assert record.summary["accuracy"]["mean_last_20"] == pytest.approx(np.mean(evaluations[:-1]))
    assert record.summary["accuracy"]["last"] == evaluations[-1]


@needs_weights
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"frozen": False}, "has no such stages"),
        ({"net": "wrn-10-1"}, "has no such stages"),
        ({"net": "efficientnet-lite2"}, "is damaged or does not fit|are of two models"),
        (None, "are not those of its model"),
    ],
)
def test_a_folder_that_contradicts_itself_gets_one_sentence(
    change: dict[str, Any] | None, complaint: str, tmp_path: Path
) -> None:
    carried_out(further(), tmp_path / "run")
    place = tmp_path / "run" / ("config.toml" if change is None else "manifest.json")
    if change is None:
        assert "epochs = 2.0" in place.read_text()
        place.write_text(place.read_text().replace("epochs = 2.0", "epochs = 0.0"))
    else:
        place.write_text(json.dumps(json.loads(place.read_text()) | change))
    with pytest.raises(UserError, match=complaint):
        collect_samples(read_record(RunFolder(tmp_path / "run")), photos())


def test_refused_without_a_backbone_that_has_such_stages() -> None:
    for net in ({"name": "small"}, {"name": "efficientnet-lite0", "pretrained": True}):
        with pytest.raises(UserError, match=r"distil\.epochs is about the last stages of a frozen efficientnet-lite0"):
            build_config({"net": net, "distil": FURTHER})
    build_config({"net": FROZEN, "distil": FURTHER})


def test_the_recipe_for_photos_has_it_unless_the_network_is_from_elsewhere() -> None:
    assert build_config(with_recipe({}, "photos")).distil.epochs > 0
    for name in ("efficientnet-lite2", "efficientnet-lite0"):
        assert build_config(with_recipe({"net": {"name": name}}, "photos")).distil.epochs > 0
    assert "distil" not in with_recipe({"net": {"name": "transformers:here"}}, "photos")
    assert "distil" not in with_recipe({"net": {"freeze_backbone": False, "pretrained": True}}, "photos")


def test_estimators_leave_their_backbone_as_it_is() -> None:
    with pytest.raises(ValueError, match="cannot hold 'distil'"):
        SAGEClassifier(settings={"distil": FURTHER}).fit(np.zeros((8, 2)), np.array([0, 1, -1, -1, -1, -1, -1, -1]))
