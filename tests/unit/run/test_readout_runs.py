"""Runs whose head is refitted to the consensus of the pool: what is shipped, resumed, exported and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from unissl.api import export
from unissl.autoconfig.recipes import with_recipe
from unissl.config import read_toml
from unissl.errors import UserError
from unissl.estimators import SemiSupervisedClassifier
from unissl.evaluation.readout import Evidence
from unissl.inference.model import load_model
from unissl.run.config import RunConfig, build_config, config_hash, effective_tree
from unissl.run.inputs import build_split
from unissl.run.pipeline import resume, run
from unissl.splits.open_set import load_data

HEAD = "head.weight"


def settings(readout: str | None, method: str = "sage", **more: Any) -> RunConfig:
    """A run on digits; of SAGE in the form whose readout is the head."""
    chosen = {"name": method} | ({} if readout is None else {"readout": readout})
    chosen |= {"form": "default"} if method == "sage" else {}
    tree = {"method": chosen, "split": {"labels_per_class": 1, "max_count": 20}, "train": {"steps": 4}}
    return build_config(with_recipe({**tree, "machine": {"threads": 1}, **more}, "digits"))


@pytest.fixture
def in_favour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence that favours the consensus, which four steps of training may not."""
    monkeypatch.setattr(Evidence, "favours_consensus", True)


def test_the_head_by_default_and_no_new_identity() -> None:
    assert config_hash(settings(None)) == config_hash(settings("head")) != config_hash(settings("consensus"))


@pytest.mark.parametrize("form", ["default", "released", "paper", "consensus"])
@pytest.mark.parametrize("chosen", [{}, {"readout": "head"}, {"pseudo_labels": "head"}])
def test_what_a_run_records_is_its_configuration(form: str, chosen: dict[str, str]) -> None:
    config = build_config({"method": {"name": "sage", "form": form, **chosen}})
    recorded = build_config(effective_tree(config))
    assert recorded.method == config.method and config_hash(recorded) == config_hash(config)


def test_a_pool_that_is_too_large_keeps_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("run.readout", "methods.sage"):
        monkeypatch.setattr(f"unissl.{module}.MAX_POOL", 10)
    tree = {"method": {"form": "consensus"}, "split": {"labels_per_class": 1, "max_count": 20}, "train": {"steps": 40}}
    result = run(build_config(with_recipe(tree, "digits")), tmp_path / "run")
    assert "readout" not in result.summary and result.config.method.readout == "consensus"


def test_the_refitted_head_is_shipped(tmp_path: Path, in_favour: None) -> None:
    plain, refitted = run(settings("head"), tmp_path / "plain"), run(settings("consensus"), tmp_path / "refitted")
    assert "readout" not in plain.summary and "readout" not in read_toml(tmp_path / "plain" / "config.toml")["method"]
    assert read_toml(tmp_path / "refitted" / "config.toml")["method"]["readout"] == "consensus"
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "refitted"))
    assert {key for key in before if not before[key].equal(after[key])} == {HEAD, "head.bias"}

    record = refitted.summary["readout"]
    assert record["classifier"] == "consensus" and record["accuracy_head"] == plain.summary["accuracy"]["last"]
    assert refitted.summary["accuracy"]["last"] == record["accuracy_consensus"]
    dataset = load_data(refitted.config.data, refitted.config.split)
    assert dataset.test is not None
    model = load_model(tmp_path / "refitted")
    predicted = model.predict_pixels(dataset.test.images).classes
    assert (predicted == dataset.test.labels).mean() == pytest.approx(record["accuracy_consensus"])
    pool = build_split(refitted.config, dataset).unlabelled
    table = refitted.predictions
    assert table is not None
    expected = np.array(model.class_names)[model.predict_pixels(dataset.train.images[pool]).classes]
    assert list(table["class"]) == list(expected)


def test_evidence_against_it_keeps_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evidence, "favours_consensus", False)
    plain, kept = run(settings("head"), tmp_path / "plain"), run(settings("consensus"), tmp_path / "kept")
    assert kept.summary["readout"]["classifier"] == "head"
    assert kept.summary["accuracy"]["last"] == plain.summary["accuracy"]["last"]
    assert (tmp_path / "kept" / "model.safetensors").read_bytes() == (
        tmp_path / "plain" / "model.safetensors"
    ).read_bytes()


def test_cut_off_behind_the_last_step_it_ends_with_the_same_bits(tmp_path: Path, in_favour: None) -> None:
    whole = run(settings("consensus"), tmp_path / "run").summary
    model = tmp_path / "run" / "model.safetensors"
    shipped = model.read_bytes()
    model.unlink()
    (tmp_path / "run" / "summary.json").unlink()
    again = resume(tmp_path / "run").summary
    assert model.read_bytes() == shipped
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}


def test_onnx_of_the_refitted_head(tmp_path: Path, in_favour: None) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run(settings("consensus"), tmp_path / "run")
    file = export(tmp_path / "run")
    model = load_model(tmp_path / "run")
    images = np.random.default_rng(0).integers(0, 256, (5, *model.manifest.image_shape), dtype=np.uint8)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    probs = next(out for out in session.run(None, {given.name: images}) if out.shape == (5, 10))
    np.testing.assert_allclose(probs, model.predict_pixels(images).probs, atol=1e-4)


@pytest.mark.parametrize("method", ["fixmatch", "freematch", "labels-only"])
def test_other_methods_are_read_out_alike(method: str, tmp_path: Path) -> None:
    record = run(settings("consensus", method), tmp_path / "run").summary["readout"]
    assert {"accuracy_head", "accuracy_consensus", "agreement"} <= record.keys()


def test_an_estimator_is_read_out_alike(in_favour: None) -> None:
    x = np.random.default_rng(0).normal(size=(60, 6)) + np.repeat(4 * np.eye(3, 6), 20, axis=0)
    y = np.where(np.arange(60) % 20, -1, np.repeat(np.arange(3), 20))
    probs = [
        SemiSupervisedClassifier("sage", steps=2, config={"method": {"readout": readout}}).fit(x, y).predict_proba(x)
        for readout in ("head", "consensus")
    ]
    assert not np.allclose(*probs)


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (
            {"method": {"name": "sage", "form": "released", "readout": "consensus"}},
            "form released predicts with its head",
        ),
        ({"method": {"name": "sage", "form": "paper", "readout": "consensus"}}, "form paper predicts with its head"),
        ({"method": {"name": "cdmad", "readout": "consensus"}}, "cdmad predicts with heads of its own"),
        ({"method": {"name": "sage", "readout": "walk"}}, "method.readout"),
    ],
)
def test_refused(tree: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        build_config(tree)


def test_refused_with_distillation() -> None:
    tree = {"method": {"readout": "consensus"}, "data": {"name": "folder", "root": "photos"}}
    with pytest.raises(UserError, match=r"set method\.readout=head, or distil\.epochs=0"):
        build_config(with_recipe(tree, "photos"))
