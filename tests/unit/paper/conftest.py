"""A reference result for the engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_grid import LONGER, nothing, tiny_task

from unissl_paper.engines.local import LocalEngine
from unissl_paper.grid.worker import Report


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A run of the local engine with seed 1 that nothing happens to."""
    root: Path = tmp_path_factory.mktemp("undisturbed")
    (report,) = LocalEngine(1, nothing).run([tiny_task(root, 1, **LONGER)])
    return report
