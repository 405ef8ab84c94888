"""Reference results for the engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_grid import LONGER, nothing, tiny_task

from unissl.paper.engines.local import LocalEngine
from unissl.paper.work import Report


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """Two runs of the local engine that nothing happens to, by name."""
    root: Path = tmp_path_factory.mktemp("undisturbed")
    tasks = [tiny_task(root, seed, **LONGER) for seed in range(2)]
    return {report.task.name: report for report in LocalEngine(2, nothing).run(tasks)}
