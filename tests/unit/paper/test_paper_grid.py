"""Planned runs and their folders: a run has a state whatever lies there, and nothing is taken for what it is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from unissl.config import to_toml
from unissl.errors import UserError
from unissl_paper.experiments import get_experiment
from unissl_paper.grid import scales
from unissl_paper.grid.plan import PlannedRun, Selection, plan
from unissl_paper.grid.status import (
    FULL_HOURS,
    MINI_SECONDS,
    START_SECONDS,
    estimate_time,
    format_duration,
    grid_status,
)
from unissl_paper.grid.storage import FAILED, ORIGIN, RunStatus


@pytest.fixture(scope="module")
def planned() -> PlannedRun:
    return plan(get_experiment("table1"), "mini", Selection(methods=["sage"], seeds=[7], columns=["cifar10-a100"]))[0]


def begin(run: PlannedRun, root: Path) -> Path:
    folder = run.folder(root)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(run.config))
    return folder


def finish(run: PlannedRun, root: Path, seconds: float = 10.0) -> Path:
    folder = begin(run, root)
    (folder / "summary.json").write_text(json.dumps({"config": run.key, "seconds": seconds}))
    (folder / ORIGIN).write_text(json.dumps(run.origin))
    return folder


def test_folder_is_decided_by_scale_and_configuration(planned: PlannedRun) -> None:
    assert planned.folder("runs") == Path("runs/mini") / f"digits-sage-7-{planned.key}"
    other = plan(get_experiment("forms"), "mini", Selection(methods=["sage"], seeds=[7]))[0]
    assert other.folder("runs") == planned.folder("runs")


def test_states_from_nothing_to_done(planned: PlannedRun, tmp_path: Path) -> None:
    assert planned.status(tmp_path).state == "missing"
    planned.folder(tmp_path).mkdir(parents=True)
    assert planned.status(tmp_path).state == "missing"
    planned.folder(tmp_path).rmdir()
    folder = begin(planned, tmp_path)
    assert planned.status(tmp_path).state == "interrupted"
    (folder / FAILED).write_text('{"reason": "the moon was full"}')
    status = planned.status(tmp_path)
    assert (status.state, status.reason) == ("failed", "the moon was full")
    shutil.rmtree(folder)
    finish(planned, tmp_path)
    status = planned.status(tmp_path)
    assert status.state == "done" and status.summary is not None and status.summary["seconds"] == 10.0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("photo.jpg", "", "no run"),
        ("summary.json", "{", "delete it"),
        ("summary.json", '{"config": "another"}', "another configuration"),
        ("summary.json", "[]", "another configuration"),
        ("config.toml", "seed = 8", "another configuration"),
        ("config.toml", "seed = ", "cannot be read"),
        ("config.toml", "sneed = 1", "cannot be read"),
    ],
)
def test_foreign_and_damaged_folders_are_failures_with_a_reason(
    planned: PlannedRun, tmp_path: Path, name: str, content: str, said: str
) -> None:
    if name == "summary.json":
        folder = begin(planned, tmp_path)
    else:
        folder = planned.folder(tmp_path)
        folder.mkdir(parents=True)
    (folder / name).write_text(content)
    status = planned.status(tmp_path)
    assert status.state == "failed" and status.summary is None
    assert status.reason is not None and said in status.reason


def test_a_url_is_looked_at_like_a_folder(planned: PlannedRun, tmp_path: Path) -> None:
    finish(planned, tmp_path)
    assert planned.status(tmp_path.as_uri()).state == "done"
    assert planned.status("memory://nothing/here").state == "missing"
    with pytest.raises(UserError, match="fsspec"):
        grid_status([planned], "gopher://x")


def test_an_edited_grid_leaves_old_runs_and_counts_them(
    planned: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(planned, tmp_path)
    monkeypatch.setitem(scales.MINI_BUDGET, "steps", 299)
    edited = plan(get_experiment("table1"), "mini", Selection(methods=["sage"], seeds=[7], columns=["cifar10-a100"]))
    assert edited[0].key != planned.key
    found = grid_status(edited, tmp_path)
    assert (found.count("done"), found.count("missing"), found.outdated) == (0, 1, 1)
    assert any("another configuration" in line for line in found.lines(1))
    assert grid_status([planned], tmp_path).outdated == 0 and grid_status([planned], tmp_path).count("done") == 1


def test_unknown_rows_and_columns_are_refused_with_a_hint() -> None:
    with pytest.raises(UserError, match="'sagee' is no method of table1. Did you mean 'sage'"):
        plan(get_experiment("table1"), "mini", Selection(methods=["sagee"]))
    with pytest.raises(UserError, match="Did you mean 'cifar10-"):
        plan(get_experiment("table1"), "mini", Selection(columns=["cifar10-b100"]))


def test_estimate_uses_finished_runs_of_the_method_else_a_stated_rate() -> None:
    part = Selection(methods=["sage", "cpg"], seeds=[0], columns=["cifar10-a50", "cifar10-a100"])
    runs = plan(get_experiment("table1"), "mini", part)
    sage = [run for run in runs if run.config.method.name == "sage"]
    cpg = [run for run in runs if run.config.method.name == "cpg"]
    done = [(sage[0], RunStatus("done", {"seconds": 30.0}))]
    assert estimate_time(runs, [], 2).seconds == 4 * MINI_SECONDS / 2
    some = estimate_time([sage[1], *cpg], done, 1)
    assert some.seconds == 30.0 + START_SECONDS + 2 * MINI_SECONDS and some.measured == 1
    full = plan(get_experiment("table1"), "full", Selection(methods=["cgmatch"], seeds=[0], columns=["cifar10-a50"]))
    assert estimate_time(full, [], 1).seconds == 3600 * FULL_HOURS["cgmatch"]
    assert [format_duration(value) for value in (30, 600, 7200 * 2, 10 * 86400)] == ["30 s", "10 min", "4 h", "10 days"]
