"""A folder of results from a stranger: links in it lead no run elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_grid import nothing, tiny_task

from unissl_paper.grid.storage import FAILED
from unissl_paper.grid.worker import work


@pytest.mark.parametrize("name", ["scale", "run", ".locks", "lock"])
def test_links_are_refused_and_nothing_is_written_behind_them(tmp_path: Path, name: str) -> None:
    task, elsewhere = tiny_task(tmp_path / "results"), tmp_path / "elsewhere"
    scale, locks = task.folder.parent, task.folder.parent / ".locks"
    link = {"scale": scale, "run": task.folder, ".locks": locks, "lock": locks / f"{task.name}.lock"}[name]
    elsewhere.mkdir()
    (elsewhere / FAILED).write_text('{"reason": "mine"}')
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere / FAILED if name == "lock" else elsewhere)
    report = work(task, nothing)
    assert report.state == "failed" and f"{link} is a symbolic link" in (report.reason or "")
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {FAILED: '{"reason": "mine"}'}
