"""Runs with distillation: what is shipped, recorded, resumed, skipped and refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_inputs import CPU, FROZEN, carried_out, needs_weights, photos, prepared, settings, without_package

from unissl.autoconfig.recipes import with_recipe
from unissl.distil import soft_labels
from unissl.errors import UserError
from unissl.features import FEATURE_NORM, WithBackbone, extract_features, load_backbone, tail_stages
from unissl.inference.model import load_model
from unissl.inference.prediction_table import PredictionTable
from unissl.nets.heads import LinearHead
from unissl.report.data import ReportData
from unissl.report.load_run import read_record
from unissl.report.samples import collect_samples
from unissl.run.budget import (
    MAX_STEPS_ON_FEATURES,
    MIN_DISTIL_EPOCHS,
    PREDICTION_SHARE,
    ReservedTime,
    fit_distil_epochs,
    plan_budget,
    seconds_of_fits,
    seconds_per_distil_epoch,
    seconds_per_test_image,
    steps_from_minutes,
)
from unissl.run.config import RunConfig, baseline_config, build_config
from unissl.run.distillation import run_distillation
from unissl.run.inputs import build_split, prepare_inputs, should_distil
from unissl.run.pipeline import resume
from unissl.run.setup import build_training
from unissl.run_folder import RunFolder

DISTIL = {"epochs": 2.0, "batch": 8}


@pytest.fixture(autouse=True)
def shared_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path_factory.getbasetemp() / "maps-of-further-training"))


def distilled(method: str = "sage", **groups: Any) -> RunConfig:
    return settings(method, distil=DISTIL, **groups)


@needs_weights
def test_maps_are_those_that_enter_the_last_stages(in_float32: None) -> None:
    """And vectors beside maps are those without."""
    config, images = distilled(), photos().train.images
    one_copy = config.augment.model_copy(update={"cached_views": 1})
    made = extract_features(images, "efficientnet-lite0", one_copy, CPU, maps=True)
    plain = extract_features(images, "efficientnet-lite0", one_copy, CPU)
    assert made.maps is not None and plain.maps is None
    assert made.maps.shape == (38, 2, 2, 2, 112) and made.maps.dtype == np.float16
    np.testing.assert_allclose(made.features, plain.features, atol=1e-5)
    stages = tail_stages(load_backbone("efficientnet-lite0", 3))
    for view in (0, 1):
        entering = torch.from_numpy(made.maps[:, view].astype(np.float32)).permute(0, 3, 1, 2)
        with torch.no_grad():
            vectors = stages(entering).mean((2, 3)).numpy()
        np.testing.assert_allclose(vectors, plain.features[:, view], atol=2e-2)


@needs_weights
def test_the_student_is_shipped_recorded_and_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = carried_out(distilled(), tmp_path / "run")
    folder, dataset = RunFolder(tmp_path / "run"), photos()
    assert run["distilled"]
    evaluations = [line for line in folder.read_metrics() if line["kind"] == "eval"]
    assert [line["step"] for line in evaluations] == [2, 4, 4 + 7]  # 2 epochs of 30 images, 8 a step
    without_package(monkeypatch)
    model = load_model(folder)
    assert isinstance(model.module, WithBackbone) or isinstance(model.module.module, WithBackbone)
    assert any(isinstance(part, LinearHead) for part in model.module.modules())
    assert dataset.test is not None
    said = model.predict_pixels(dataset.test.images).classes
    assert (said == dataset.test.labels).mean() == run["accuracy"]["last"] == evaluations[-1]["accuracy"]


@needs_weights
def test_the_pool_is_answered_as_predict_would(tmp_path: Path) -> None:
    """From maps in half precision there, from images here."""
    carried_out(distilled(), tmp_path / "run")
    record = read_record(RunFolder(tmp_path / "run"))
    assert record.pool is not None
    said = load_model(RunFolder(tmp_path / "run")).predict_pixels(photos().train.images[record.pool["row"]])
    assert (said.classes == record.pool["class_index"]).mean() > 0.95
    np.testing.assert_allclose(said.confidence, record.pool["confidence"], atol=2e-3)


@needs_weights
def test_the_report_sees_the_vectors_of_the_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carried_out(distilled(), tmp_path / "run")
    record, dataset = read_record(RunFolder(tmp_path / "run")), photos()
    inputs = prepared(record.config)

    def forbidden(*given: object) -> None:
        raise AssertionError("the backbone ran again")

    monkeypatch.setattr("unissl.features.extract.write_rows", forbidden)
    samples = collect_samples(record, inputs)
    model = load_model(RunFolder(tmp_path / "run"))
    whole = model.predict_pixels(dataset.train.images[samples.rows])
    np.testing.assert_allclose(samples.predictions.probs, whole.probs, atol=2e-3)
    assert samples.features.shape == (8, 1280)


@needs_weights
@pytest.mark.parametrize(
    ("teacher", "with_files", "without"),
    [
        ({}, 4, 2),
        ({"teacher_backbone": "efficientnet-lite2"}, 5, 3),
        ({"multi_crop": False}, 2, 2),
    ],
)
def test_the_teacher_sees_crops_and_inner_maps(
    teacher: dict[str, Any], with_files: int, without: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The centre crop first, as the student will, and the inner maps last; of a table without files there are no
    further crops."""
    config, dataset = settings(distil={**DISTIL, **teacher}), photos()

    def originals() -> Iterator[bytes]:
        for image in dataset.train.images:
            file = io.BytesIO()
            Image.fromarray(np.pad(image, [(0, 0), (9, 9), (0, 0)])).save(file, "PNG")
            yield file.getvalue()

    from_files = replace(dataset, train=replace(dataset.train, originals=originals))
    shown: list[list[torch.Tensor]] = []

    def spied(crops: list[torch.Tensor], *given: Any) -> torch.Tensor:
        shown.append(crops)
        return soft_labels(crops, *given)

    monkeypatch.setattr("unissl.run.distillation.soft_labels", spied)
    for data in (from_files, dataset):
        inputs = prepare_inputs(config, data, CPU)
        run_distillation(inputs, *build_training(inputs))
    assert [len(crops) for crops in shown] == [with_files, without]
    for same in (0, -1):
        assert torch.equal(shown[0][same], shown[1][same])
    lengths = torch.stack([crop.norm(dim=1) for crop in shown[0]])
    assert torch.allclose(lengths, torch.full_like(lengths, FEATURE_NORM))


@needs_weights
def test_cut_off_behind_the_last_step_it_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the student, and killed before the summary, with the student's line in the record already."""
    monkeypatch.setattr("unissl.run.pipeline.load_data", lambda data, split, index=None: photos())
    whole = carried_out(distilled(), tmp_path / "whole")
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    for name, kept in (("before", lines[:-1]), ("behind", lines)):
        cut = tmp_path / name
        shutil.copytree(tmp_path / "whole", cut)
        os.unlink(cut / "summary.json")
        os.unlink(cut / "model.safetensors")
        (cut / "metrics.jsonl").write_text("\n".join(kept) + "\n")
        again = resume(cut)
        assert (cut / "model.safetensors").read_bytes() == model
        assert again.summary["accuracy"] == whole["accuracy"]
        assert len((cut / "metrics.jsonl").read_text().splitlines()) == len(lines)


@needs_weights
def test_where_there_is_nothing_to_learn_the_backbone_stays(tmp_path: Path) -> None:
    split = build_split(distilled(), photos())
    assert should_distil(distilled(), split)
    assert should_distil(distilled("fixmatch"), split)
    assert not should_distil(settings(), split)
    assert not should_distil(distilled("labels-only"), split)
    assert not should_distil(distilled("ssb"), split)  # its detector is a head of its own
    summary = carried_out(baseline_config(distilled()), tmp_path / "baseline")
    assert "distilled" not in summary


@needs_weights
def test_a_large_pool_is_sampled_and_predicted_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.run.inputs.MAX_TRAINING_POOL", 12)
    inputs = prepared(distilled())
    sample, pool = inputs.pool_sample, inputs.split.unlabelled
    assert sample is not None and len(sample) == 12 < len(pool) and np.isin(sample, pool).all()
    assert np.array_equal(inputs.training_split.unlabelled, sample) and inputs.features is not None
    unused = np.setdiff1d(pool, sample)
    assert not inputs.features.features[unused].any() and inputs.pool_views("none", unused).abs().sum(1).min() > 0
    summary = carried_out(distilled(), tmp_path / "large")
    assert summary["distilled"] and summary["pool"]["images"] == len(pool)
    table = PredictionTable.read(tmp_path / "large" / "predictions.parquet")
    assert len(table) == len(pool) and min(table["confidence"]) > 1 / 3


@needs_weights
def test_without_fine_tuning_the_student_is_a_linear_classifier_on_frozen_features(tmp_path: Path) -> None:
    config = distilled()
    config = config.model_copy(update={"distil": config.distil.model_copy(update={"fine_tune": False})})
    summary = carried_out(config, tmp_path / "linear")
    assert "distilled" not in summary
    images, model = photos().train.images, load_model(tmp_path / "linear")
    rows = prepared(config).split.unlabelled
    preds = model.predict_pixels(images[rows])
    table = PredictionTable.read(tmp_path / "linear" / "predictions.parquet")
    assert np.allclose(preds.confidence, table["confidence"], atol=1e-4)


@needs_weights
def test_its_time_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget with room for it leaves the epochs as they are, a short one reduces them, but never to none."""
    inputs = prepared(distilled())
    monkeypatch.setattr("unissl.run.budget.seconds_per_distil_epoch", lambda inputs: 50.0)
    monkeypatch.setattr("unissl.run.budget.seconds_per_test_image", lambda inputs: 0.1)
    fixed = PREDICTION_SHARE * 50 + 0.9  # of the pool, and of 9 images for testing
    planned, seconds = fit_distil_epochs(inputs, 1000.0)
    assert planned == inputs.config and seconds == pytest.approx(fixed + 100)
    planned, seconds = fit_distil_epochs(inputs, fixed + 50)
    assert planned.distil.epochs == 1.0 and seconds == pytest.approx(fixed + 50)
    assert fit_distil_epochs(inputs, -3.0)[0].distil.epochs == MIN_DISTIL_EPOCHS
    assert fit_distil_epochs(prepared(settings()), 1.0) == (settings(), 0.0)


@needs_weights
def test_teacher_and_baselines_of_all_refits_are_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks once a reading: the teacher and the baselines of every fit, and one choice of strength."""
    inputs = prepared(distilled(output={"baseline": True}))
    training = build_training(inputs)
    fits = 1 + len(inputs.folds)
    ticks = iter(range(100))
    monkeypatch.setattr("unissl.run.budget.time.perf_counter", lambda: float(next(ticks)))
    assert fits > 1 and seconds_of_fits(inputs, *training) == fits + (1 + fits)
    undistilled = inputs.with_config(settings(output={"baseline": True}))
    assert seconds_of_fits(undistilled, *training) == 1 + fits


@needs_weights
def test_a_given_number_of_steps_means_that_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without minutes the configuration follows from data and settings alone, whatever the machine does."""

    def forbidden(*arguments: object) -> None:
        raise AssertionError("something was timed")

    inputs = prepared(distilled())
    training = build_training(inputs)
    monkeypatch.setattr("unissl.run.budget.seconds_per_call", forbidden)
    assert plan_budget(inputs, *training, started=0.0, baseline=True) == inputs.config


@needs_weights
def test_measuring_what_a_run_will_take_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = prepared(distilled(train={"minutes": 100.0, "evaluations": 1}))
    state, batches = build_training(inputs)
    monkeypatch.setattr("unissl.training.timing.MIN_SECONDS", 0.0)
    weights = {name: value.clone() for name, value in state.learner.state_dict().items()}
    draws = torch.get_rng_state()
    planned = plan_budget(inputs, state, batches, started=time.monotonic(), baseline=True)
    assert planned.train.steps == MAX_STEPS_ON_FEATURES and planned.distil == inputs.config.distil
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(torch.equal(value, weights[name]) for name, value in state.learner.state_dict().items())


@needs_weights
def test_a_minute_for_the_student_is_a_minute_less_for_the_method() -> None:
    inputs = prepared(distilled(train={"minutes": 2.0, "evaluations": 1}))
    state, batches = build_training(inputs)
    steps = [
        steps_from_minutes(inputs.config, state, batches, ReservedTime(distil_seconds=seconds)).train.steps or 0
        for seconds in (0, 119)
    ]
    assert steps[1] < steps[0]


@needs_weights
def test_epochs_over_a_pool_are_measured() -> None:
    inputs = prepared(distilled())
    assert seconds_per_distil_epoch(inputs) > 0 and seconds_per_test_image(inputs) > 0


@needs_weights
def test_the_report_of_a_run_with_maps_and_no_student_makes_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_out(distilled("ssb"), tmp_path / "run")
    record = read_record(RunFolder(tmp_path / "run"))
    inputs = prepared(record.config)

    def forbidden(*given: object) -> None:
        raise AssertionError("the backbone ran again")

    monkeypatch.setattr("unissl.features.extract.write_rows", forbidden)
    assert collect_samples(record, inputs).features.shape[0] == 8


@needs_weights
def test_a_jump_of_the_student_is_no_sign_of_too_short_a_run(tmp_path: Path) -> None:
    """It is another model: not on the curve, not in the mean over it."""
    carried_out(distilled(), tmp_path / "run")
    record = read_record(RunFolder(tmp_path / "run"))
    evaluations = [line["accuracy"] for line in record.metrics if line["kind"] == "eval"]
    assert len(evaluations) == 3 and ReportData(record).accuracy_curve == evaluations[:-1]
    assert record.summary["accuracy"]["mean_last_20"] == pytest.approx(np.mean(evaluations[:-1]))
    assert record.summary["accuracy"]["last"] == evaluations[-1]


@needs_weights
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"frozen": False}, "cannot be distilled"),
        ({"net": "wrn-10-1"}, "cannot be distilled"),
        ({"net": "efficientnet-lite2"}, "are of two models"),
        (None, "is not that of its model"),
    ],
)
def test_a_folder_that_contradicts_itself_gets_one_sentence(
    change: dict[str, Any] | None, complaint: str, tmp_path: Path
) -> None:
    carried_out(distilled(), tmp_path / "run")
    place = tmp_path / "run" / ("config.toml" if change is None else "manifest.json")
    if change is None:
        assert "epochs = 2.0" in place.read_text()
        place.write_text(place.read_text().replace("epochs = 2.0", "epochs = 0.0"))
    else:
        place.write_text(json.dumps(json.loads(place.read_text()) | change))
    with pytest.raises(UserError, match=complaint):
        record = read_record(RunFolder(tmp_path / "run"))
        collect_samples(record, prepared(record.config))


def test_refused_without_a_backbone_that_has_such_stages() -> None:
    for net in ({"name": "small"}, {"name": "efficientnet-lite0", "pretrained": True}):
        with pytest.raises(UserError, match=r"distil\.epochs needs net.freeze_backbone and a backbone"):
            build_config({"net": net, "distil": DISTIL})
    build_config({"net": FROZEN, "distil": DISTIL})


def test_the_recipe_for_photos_has_it_unless_the_network_is_from_elsewhere() -> None:
    assert build_config(with_recipe({}, "photos")).distil.epochs > 0
    for name in ("efficientnet-lite2", "efficientnet-lite0"):
        assert build_config(with_recipe({"net": {"name": name}}, "photos")).distil.epochs > 0
    assert "distil" not in with_recipe({"net": {"name": "hf:here"}}, "photos")
    assert "distil" not in with_recipe({"net": {"freeze_backbone": False, "pretrained": True}}, "photos")


def test_an_unknown_backbone_of_the_teacher_is_refused() -> None:
    with pytest.raises(UserError, match=r"no backbone 'efficientnet-lite9'. Did you mean 'efficientnet-lite"):
        settings(distil={**DISTIL, "teacher_backbone": "efficientnet-lite9"})
