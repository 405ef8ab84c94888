"""Every figure from tiny runs: drawn, the same twice, refused in a sentence; similarities and sweeps by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from sklearn.metrics.pairwise import cosine_similarity

from unissl.config import merge, read_toml, to_toml
from unissl.errors import UserError
from unissl.nets import build
from unissl.run.config import build_config
from unissl.run.pipeline import run
from unissl_paper.experiments import get_experiment
from unissl_paper.figures import sensitivity, settings
from unissl_paper.figures.registry import FIGURES, draw_experiment, draw_runs
from unissl_paper.figures.series import group, read_run, titles
from unissl_paper.figures.similarity import class_similarities
from unissl_paper.figures.style import paper_style, save
from unissl_paper.grid.plan import Selection, plan

TINY: dict[str, Any] = {
    "data": {"name": "digits", "image_size": 8, "test_holdout": 500},
    "split": {"max_count": 30, "gamma": 5.0},
    "net": {"name": "small"},
    "augment": {"pad": 1},
    "batch": {"labelled": 4, "unlabelled": 16},
    "train": {"steps": 2, "evaluations": 2, "diagnostics": True},
}
TRAINED: dict[str, dict[str, Any]] = {"fixmatch": {"method": {"name": "fixmatch"}}, "sage": {}, "sage-1": {"seed": 1}}
EDITED: dict[str, dict[str, Any]] = {"beta-2": {"walk_steps": 2}, "lambda-1": {"ridge": 1.0}, "k-5": {"num_anchors": 5}}
"""Copies of SAGE's run that claim to be of another setting."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("figure-runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISSL_CACHE", str(root / "cache"))
        patch.setattr("unissl.plots.output.write_charts", lambda *_: [])
        for name, tree in TRAINED.items():
            run(build_config(merge(TINY, tree)), root / name)
    for name, changed in EDITED.items():
        shutil.copytree(root / "sage", root / name)
        config = merge(read_toml(root / "sage" / "config.toml"), {"method": changed})
        (root / name / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    shutil.copytree(root / "fixmatch", root / "unwatched")
    lines = [json.loads(line) for line in (root / "fixmatch" / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if key != "pool"} for line in lines]
    (root / "unwatched" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    return root


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_run_folders(name: str, runs: Path, tmp_path: Path) -> None:
    kind = FIGURES[name].draw
    chosen = ["sage", "sage-1", "beta-2"] if kind is sensitivity.draw else ["fixmatch", "sage", "sage-1"]
    with paper_style():
        drawn = draw_runs(name, [runs / folder for folder in chosen])
        save(drawn, tmp_path / "one.svg")
        assert not any(text.get_fontsize() < 6.9 for ax in drawn.figure.axes for text in ax.texts)
    assert drawn.caption.endswith(".") and len(drawn.figure.axes) >= 1
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert "<path" in text and "<image" not in text


def test_the_same_runs_give_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        with paper_style():
            save(draw_runs("stability", [runs / "sage"]), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_settings_figure_is_drawn_from_a_data_set(tmp_path: Path) -> None:
    with paper_style():
        drawn = draw_experiment("settings", "mini", str(tmp_path))
        save(drawn, tmp_path / "settings.pdf")
    assert [ax.get_title() for ax in drawn.figure.axes if ax.get_title()] == [
        "(a) SSL",
        "(b) LTSSL",
        "(c) ReaLTSSL",
        "(d) UniSSL",
    ]
    assert (tmp_path / "settings.pdf").read_bytes().startswith(b"%PDF")
    assert settings.SEED == 0


def test_seeds_are_one_series_and_names_tell_series_apart(runs: Path) -> None:
    series = group(read_run(runs / name) for name in ("sage-1", "sage", "beta-2", "fixmatch"))
    assert [[run.seed for run in one.runs] for one in series] == [[0, 1], [0], [0]]
    assert titles(series) == ["SAGE, β = 5", "SAGE, β = 2", "FixMatch"]
    with paper_style():
        drawn = draw_runs("silhouette", [f"ours={runs / 'sage'}", str(runs / "fixmatch")])
    assert [label.get_text() for label in drawn.figure.axes[0].get_xticklabels()] == ["ours", "FixMatch"]


def test_sweeps_of_several_settings_share_their_base(runs: Path) -> None:
    series = group(read_run(runs / name) for name in ("sage", "beta-2", "lambda-1", "k-5"))
    swept = sensitivity.swept_parameters(series)
    found = {key: sorted(sensitivity.value_of(one.first, key) for one in members) for key, members in swept.items()}
    assert {key: values for key, values in found.items() if key != "method.num_anchors"} == {
        "method.ridge": [0.1, 1.0],
        "method.walk_steps": [2.0, 5.0],
    }
    assert found["method.num_anchors"] == [5.0, build("small", 10, 1).feat_dim + 1.0]


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_default_number_of_anchors_is_that_of_the_network(temperature: float, runs: Path, tmp_path: Path) -> None:
    """A temperature other than 1 stands around the network, so names in the model differ."""
    folder = shutil.copytree(runs / "sage", tmp_path / "sage")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "calibration": {"kind": "temperature", "temperature": temperature}})
    )
    assert sensitivity.value_of(read_run(folder), "method.num_anchors") == build("small", 10, 1).feat_dim + 1.0


def test_class_similarities_by_all_pairs() -> None:
    rng = np.random.default_rng(0)
    features, truth = rng.normal(size=(12, 4)).astype(np.float32), np.array([0, 0, 0, 0, 0, 1, 1, 1, 3, 3, 3, 3])
    cosines = cosine_similarity(features)
    between, within = [], []
    for a in (0, 1, 3):
        mine = np.flatnonzero(truth == a)
        within.append(np.mean([cosines[i, j] for i in mine for j in mine if i != j]))
        between += [
            np.mean([cosines[i, j] for i in mine for j in np.flatnonzero(truth == b)]) for b in (0, 1, 3) if b != a
        ]
    assert class_similarities(features, truth) == pytest.approx((np.mean(between), np.mean(within)), abs=1e-6)


def test_figures_of_an_experiment_say_which_runs_are_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unissl paper run table4 --scale mini"):
        draw_experiment("ablation-pseudo-labels", "mini", str(tmp_path))
    with pytest.raises(UserError, match="copy the runs"):
        draw_experiment("tsne", "mini", "s3://bucket/runs")


def test_a_figure_shows_the_seeds_that_are_there(tmp_path: Path) -> None:
    """Table 4 plans seed 2; the miniature of the documentation has seed 0."""
    for planned in plan(get_experiment("table4"), "mini", Selection(columns=["cifar10-a100"], seeds=[0])):
        folder = planned.folder(tmp_path)
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(to_toml(planned.config))
        summary = {
            "config": planned.key,
            "seed": planned.seed,
            "accuracy": {"last": 0.5, "mean_last_20": 0.5, "best": 0.75},
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    drawn = draw_experiment("ablation", "mini", str(tmp_path))
    assert drawn.caption.endswith(" Seed 0 (the experiment plans 2).")
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == ["75.0"] * 4


def test_the_experiments_of_the_figures_exist() -> None:
    for kind in FIGURES.values():
        for source in kind.sources:
            experiment = get_experiment(source.experiment)
            assert set(source.methods or ()) <= {variant.name for variant in experiment.variants}
            assert set(source.columns or ()) <= {column.name for column in experiment.columns}


@pytest.mark.parametrize(
    ("name", "folders", "says"),
    [
        ("tsen", ["sage"], "Did you mean 'tsne'"),
        ("tsne", ["nothing"], "holds no run"),
        ("stability", ["unwatched"], "train.diagnostics=true"),
        ("beta", ["sage", "sage-1"], "differ in the seed alone"),
        ("beta", ["sage", "unwatched"], "differ in"),
    ],
)
def test_refusals(name: str, folders: list[str], says: str, runs: Path) -> None:
    with pytest.raises(UserError, match=says):
        draw_runs(name, [runs / folder for folder in folders])


def test_runs_that_cannot_be_asked_are_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "sage", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint"):
        draw_runs("failure-boundary", [tmp_path / "half"])
    (tmp_path / "half" / "summary.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        draw_runs("tsne", [tmp_path / "half"])
