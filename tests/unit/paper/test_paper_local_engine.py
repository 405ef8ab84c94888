"""The local engine: a run that fails or is killed costs only itself, and no finished run is repeated."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from multiprocessing.forkserver import _forkserver  # type: ignore[attr-defined]
from pathlib import Path

import pytest
import tiny_grid
from tiny_grid import LONGER, crash_once, disk_full, name_blocked_signals, nothing, tiny_task

from unissl_paper.engines.local import LocalEngine
from unissl_paper.grid.storage import FAILED
from unissl_paper.grid.worker import Report, Task


def states(reports: Iterable[Report]) -> dict[str, str]:
    return {report.task.name: report.state for report in reports}


def changed_at(task: Task) -> int:
    return (task.folder / "summary.json").stat().st_mtime_ns


def test_a_refused_run_keeps_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    bad = tiny_task(tmp_path, 0, split={"max_count": 5000})
    good = tiny_task(tmp_path, 1)
    alien = tiny_task(tmp_path, 2)
    alien.folder.mkdir(parents=True)
    (alien.folder / "holiday.txt").write_text("mine")
    reports = {report.task.name: report for report in LocalEngine(2, nothing).run([bad, good, alien])}
    assert states(reports.values()) == {bad.name: "failed", good.name: "done", alien.name: "failed"}
    stored = json.loads((bad.folder / FAILED).read_text())
    assert "lower max_count" in stored["reason"] and stored["seed"] == 0
    assert "no run" in (reports[alien.name].reason or "")
    assert [file.name for file in alien.folder.iterdir()] == ["holiday.txt"]


def test_a_killed_worker_fails_its_run_only_and_the_next_start_does_the_rest(tmp_path: Path) -> None:
    first, second = tiny_task(tmp_path, 0), tiny_task(tmp_path, 1)
    engine = LocalEngine(1, partial(crash_once, tmp_path / "flag"))
    reports = {report.task.name: report for report in engine.run([first, second])}
    assert states(reports.values()) == {first.name: "failed", second.name: "done"}
    assert "SIGKILL" in json.loads((first.folder / FAILED).read_text())["reason"]
    before = changed_at(second)
    assert states(engine.run([first, second])) == {first.name: "done", second.name: "done"}
    assert not (first.folder / FAILED).exists()
    assert changed_at(second) == before


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot be blocked here")
def test_ctrl_c_does_not_reach_a_worker_even_while_it_imports(tmp_path: Path) -> None:
    """It would print a traceback of the imports; the engine ends its workers itself."""
    _forkserver._stop()  # type: ignore[attr-defined]  # one that an earlier test has started blocks nothing
    (report,) = LocalEngine(1, name_blocked_signals).run([tiny_task(tmp_path)])
    assert report.reason is not None and f"blocked: [{signal.SIGINT!r}]" in report.reason
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_full_disk_stops_the_grid(tmp_path: Path) -> None:
    tasks = [tiny_task(tmp_path, seed) for seed in range(3)]
    reports = list(LocalEngine(1, disk_full).run(tasks))
    assert len(reports) == 1 and reports[0].stop


def test_killed_grid_goes_on_without_repeating_and_ends_with_the_same_numbers(
    tmp_path: Path, undisturbed: Report
) -> None:
    tasks = [tiny_task(tmp_path, seed, **LONGER) for seed in range(2)]
    command = [sys.executable, tiny_grid.__file__, str(tmp_path)]
    grid = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tasks[0].folder / "summary.json").exists() and any(tasks[1].folder.glob("checkpoints/*")))
    finally:
        grid.send_signal(signal.SIGKILL)
        grid.wait()
    assert not (tasks[1].folder / "summary.json").exists()
    before = changed_at(tasks[0])
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stdout.count(" done ") == 2
    assert changed_at(tasks[0]) == before
    ours = json.loads((tasks[1].folder / "summary.json").read_text())
    assert without_seconds(ours) == without_seconds(undisturbed.summary or {})


def wait_until(true: object, seconds: float = 300.0) -> None:
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "the grid did not get that far"
        time.sleep(0.01)


def without_seconds(summary: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in summary.items() if key != "seconds"}
