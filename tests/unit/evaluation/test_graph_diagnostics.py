"""What G says about the pool, by hand and by loops; its record changes nothing else and survives a resume."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unissl.evaluation.diagnostics import class_mass, macro_f1, relation_quality
from unissl.evaluation.graph_diagnostics import Group, RandomWalk, neighbours, order_of_pool, votes
from unissl.ops.simplex import simplex_anchors
from unissl.run.config import build_config
from unissl.run.pipeline import resume, run
from unissl.run_folder import RunFolder

WALK = RandomWalk(ridge=0.1, steps=3, temperature=0.25, self_bias=2.0)
TINY: dict[str, Any] = {
    "data": {"name": "digits", "image_size": 8, "test_holdout": 500},
    "split": {"max_count": 30, "gamma": 5.0},
    "net": {"name": "small"},
    "augment": {"pad": 1},
    "batch": {"labelled": 4, "unlabelled": 16},
    "method": {"name": "sage"},
}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time of a tiny run."""
    monkeypatch.setattr("unissl.plots.output.write_charts", lambda *_: [])


def unit(*rows: list[float]) -> Tensor:
    return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64))


def two_clusters() -> Group:
    """Four images to the east, two to the north; the second of the east is pseudo-labelled as one of the north."""
    east, north = ([1, 0.1], [1, 0.0], [1, -0.1], [1, 0.05]), ([0.1, 1], [0, 1])
    return Group(torch.tensor([0, 1, 0, 0, 1, 1]), unit(*east, *north))


def test_neighbours_by_loops() -> None:
    nodes, walk = unit([1, 0.2, 0], [0.5, 1, 0.3], [0, 0.2, 1], [1, 1, 1]), WALK
    tightness = 4 / 3
    scale = tightness / (tightness + walk.ridge) ** 2
    transition = np.zeros((4, 4))
    for i in range(4):
        raw = [
            np.exp(scale * float(nodes[i] @ nodes[j]) / walk.temperature + (walk.self_bias if i == j else 0))
            for j in range(4)
        ]
        transition[i] = np.array(raw) / sum(raw)
    consensus = transition @ transition @ transition
    np.fill_diagonal(consensus, 0)
    expected = consensus / consensus.sum(1, keepdims=True)
    assert neighbours(nodes, walk).numpy() == pytest.approx(expected)
    with_anchors = RandomWalk(walk.ridge, walk.steps, walk.temperature, walk.self_bias, simplex_anchors(3).double())
    assert neighbours(nodes, with_anchors).numpy() == pytest.approx(expected)


def test_neighbours_outvote_a_wrong_pseudo_label() -> None:
    """The one wrong label in the east is corrected by its three neighbours, and nothing is spoiled."""
    group, truth = two_clusters(), np.array([0, 0, 0, 0, 1, 1])
    short = replace(WALK, steps=1)
    assert votes([group], short, 2).tolist() == [0, 0, 0, 0, 1, 1]
    found = relation_quality([group], truth, short, 2)
    assert (found["corrected"], found["spoiled"], found["vote_accuracy"]) == (1.0, 0.0, 1.0)
    assert found["mass_on_majority"][0] == found["mass_on_own"][0]
    assert found["mass_on_majority"][1] < 0.4 and found["mass_on_own"][1] > 0.6


def test_a_long_walk_forgets_where_it_began() -> None:
    long = neighbours(two_clusters().nodes, replace(WALK, steps=2000))
    east = [row[:4] / row[:4].sum() for row in long[4:]]  # what is left out of a row differs, hence its scale
    assert torch.allclose(east[0], east[1], atol=1e-6)
    short = neighbours(two_clusters().nodes, replace(WALK, steps=1))
    assert float(short[4, :4].sum()) < float(long[4, :4].sum())


def test_images_of_no_class_do_not_count() -> None:
    group = two_clusters()
    found = relation_quality([group], np.array([0, -2, 0, 0, 1, 1]), replace(WALK, steps=1), 3)
    assert found["corrected"] is None and found["vote_accuracy"] == 1.0
    assert found["mass_on_own"][2] is None
    lonely = Group(torch.tensor([0]), unit([1.0, 0.0]))
    assert relation_quality([lonely], np.array([0]), WALK, 2) == {}


def test_class_mass_by_loops_over_two_groups() -> None:
    rng = np.random.default_rng(0)
    groups = [Group(torch.zeros(n, dtype=torch.int64), unit(*rng.normal(size=(n, 3)).tolist())) for n in (4, 5)]
    truth = np.array([0, 1, 1, 2, 0, 0, 1, 2, 2])
    expected, counts, start = np.zeros((3, 3)), np.zeros(3), 0
    for group in groups:
        weights = neighbours(group.nodes, WALK).numpy()
        for i in range(len(weights)):
            counts[truth[start + i]] += 1
            for j in range(len(weights)):
                expected[truth[start + i], truth[start + j]] += weights[i, j]
        start += len(weights)
    assert class_mass(groups, truth, WALK, 3) == pytest.approx(expected / counts[:, None])


def test_macro_f1_by_hand() -> None:
    """Class 0: precision 1/2, recall 1, F1 2/3; class 1: precision 1, recall 1/2, F1 2/3; class 2 does not occur."""
    assert macro_f1(np.array([0, 1, 1]), np.array([0, 0, 1])) == pytest.approx(2 / 3)
    assert macro_f1(np.array([0, 1, 1, -2]), np.array([0, 2, 1, 0])) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_the_order_of_the_pool_is_fixed_and_mixes_classes() -> None:
    order = order_of_pool(1000)
    assert sorted(order) == list(range(1000)) and np.array_equal(order, order_of_pool(1000))
    assert len(order_of_pool(50_000)) == 20_000 and np.unique(order[:50] // 100).size > 5


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in folder.read_metrics()]


def test_the_record_changes_no_other_number_and_survives_a_resume(tmp_path: Path) -> None:
    train = {"steps": 4, "evaluations": 2, "log_every": 1}
    plain = run(build_config({**TINY, "train": train}), tmp_path / "plain")
    watched = run(build_config({**TINY, "train": {**train, "diagnostics": True}}), tmp_path / "watched")
    kept = lines(watched.folder)
    records = [line.pop("pool") for line in kept if line["kind"] == "eval"]
    assert kept == lines(plain.folder)
    pool = watched.summary["pool"]["images"]
    assert len(records) == 2 and all(sum(r["predicted"]) == pool and sum(r["truth"]) == pool for r in records)
    assert {"accuracy", "f1", "corrected", "spoiled", "vote_accuracy"} <= set(records[0])
    cut = tmp_path / "cut"
    shutil.copytree(watched.folder.path, cut)
    (cut / "summary.json").unlink()
    sorted((cut / "checkpoints").iterdir())[-1].unlink()
    assert lines(resume(cut).folder) == lines(watched.folder)


def test_without_truth_there_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unissl.data import load
    from unissl.data.dataset import Dataset

    def forgetful(*words: Any) -> Dataset:
        dataset = load(words[0])
        dataset.train.labels[200:] = -1
        return dataset

    monkeypatch.setattr("unissl.run.pipeline.load_data", forgetful)
    tree = {**TINY, "split": {}, "train": {"steps": 2, "evaluations": 1, "diagnostics": True}}
    finished = run(build_config(tree), tmp_path / "run")
    assert [line["pool"] for line in finished.folder.read_metrics() if line["kind"] == "eval"] == [{}]
