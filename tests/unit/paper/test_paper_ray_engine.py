"""Ray on one machine: a worker that is killed amid a run is replaced, and the numbers are those of the local engine."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from test_paper_local_engine import wait_until, without_seconds
from tiny_grid import LONGER, nothing, tiny_task

from unissl.errors import UserError
from unissl_paper.engines.ray import RayEngine
from unissl_paper.grid.storage import read_status
from unissl_paper.grid.worker import Report, Task

linux = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the worker in /proc")


def kill_amid(task: Task, killed: list[int]) -> None:
    """SIGKILL for the worker of a task, once it has written a checkpoint."""
    wait_until(lambda: any(task.folder.glob("checkpoints/*.safetensors")))
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if task.name in (entry / "cmdline").read_text() and "ray::" in (entry / "cmdline").read_text():
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue


@linux
@pytest.mark.filterwarnings("default")  # Ray's own
def test_killed_worker_is_replaced_and_results_reach_a_url(
    tmp_path: Path, undisturbed: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    url = (tmp_path / "results").as_uri()
    task = tiny_task(url, 1, tmp_path / "scratch", **LONGER)
    killed: list[int] = []
    killer = threading.Thread(target=kill_amid, args=(task, killed))
    killer.start()
    (report,) = RayEngine(nothing, jobs=1).run([task])
    killer.join()
    assert killed, "no worker was killed, so the test has shown nothing"
    found = read_status(task.storage, task.key)
    assert report.state == found.state == "done"
    assert without_seconds(found.summary or {}) == without_seconds(undisturbed.summary or {})
    files = tmp_path / "results" / "mini" / task.name
    assert json.loads((files / "planned.json").read_text())["experiment"] == "tiny"
    assert (files / "model.safetensors").exists() and not (files / "checkpoints").exists()


def test_without_ray_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install ray fsspec, or use --engine local"):
        next(iter(RayEngine(nothing, 1).run([tiny_task(tmp_path)])))


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        raise ConnectionError(f"nobody at {settings['address']}")

    absent = types.SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", absent)
    with pytest.raises(UserError, match="Cannot connect to Ray at ray://far:10001 .*--engine local"):
        next(iter(RayEngine(nothing, 1, "ray://far:10001").run([tiny_task(tmp_path)])))
