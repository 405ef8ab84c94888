"""Runs that average over the tail of their training: what is evaluated is shipped, and a resumed run ends alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from unissl.autoconfig.recipes import with_recipe
from unissl.config import read_toml
from unissl.inference.model import load_model
from unissl.run.config import RunConfig, build_config
from unissl.run.pipeline import resume, run
from unissl.splits.open_set import load_data
from unissl.training.checkpoint import list_checkpoints


def settings(tail: float) -> RunConfig:
    tree = {
        "method": {"name": "sage"},
        "split": {"labels_per_class": 1, "max_count": 20},
        "train": {"steps": 6, "evaluations": 3, "checkpoint_every": 2},
        "optim": {"tail_average": tail},
        "machine": {"threads": 1},
    }
    return build_config(with_recipe(tree, "digits"))


def test_the_average_of_the_tail_is_shipped(tmp_path: Path) -> None:
    run(settings(0.0), tmp_path / "plain")
    averaged = run(settings(0.5), tmp_path / "whole")
    assert "tail_average" not in read_toml(tmp_path / "plain" / "config.toml")["optim"]
    assert read_toml(tmp_path / "whole" / "config.toml")["optim"]["tail_average"] == 0.5
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "whole"))
    changed = {key.rpartition(".")[2] for key in before if not before[key].equal(after[key])}
    assert {"weight", "running_mean", "running_var"} <= changed and "num_batches_tracked" not in changed
    dataset = load_data(averaged.config.data, averaged.config.split)
    assert dataset.test is not None
    predicted = load_model(tmp_path / "whole").predict_pixels(dataset.test.images).classes
    assert (predicted == dataset.test.labels).mean() == pytest.approx(averaged.summary["accuracy"]["last"])


def test_cut_off_within_the_tail_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(settings(0.5), folder)
    shipped = (folder / "model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors"):
        (folder / name).unlink()
    list_checkpoints(folder / "checkpoints")[-1].unlink()  # the one before it is of step 4, the first of the tail
    resume(folder)
    assert (folder / "model.safetensors").read_bytes() == shipped
