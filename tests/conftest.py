"""Shared set-up: one thread, and no trace in the user's own folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unissl.data.images import decode

torch.set_num_threads(1)
TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def private_folders(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Caches go to a temporary folder, and data sets of the machine are not seen."""
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("UNISSL_DATA", raising=False)


@pytest.fixture
def double() -> object:
    """Double precision for everything created inside the test."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that does not compute in bfloat16, so that nothing is made in it."""
    monkeypatch.setattr("torch.cpu.get_capabilities", dict, raising=False)


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets folders and images of given names be forbidden, also for a user who may do everything."""
    really_scan, really_open = os.scandir, decode.open_file
    names: set[str] = set()

    def scandir(path: Any) -> Any:
        if isinstance(path, str | Path) and Path(path).name in names:
            raise PermissionError(13, "Permission denied", str(path))
        return really_scan(path)

    def open_image(path: Any) -> Any:
        if isinstance(path, str) and Path(path).name in names:
            raise PermissionError(13, "Permission denied", path)
        return really_open(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(decode, "open_file", open_image)
    return lambda *more: names.update(more)


ATTACKS = (
    *("unit/test_links.py", "unit/fuzz/test_fuzz_bombs.py", "unit/fuzz/test_fuzz_paths.py"),
    *("unit/fuzz/test_fuzz_readers.py", "e2e/test_hostile_folder.py", "e2e/test_lost_output.py"),
    *("e2e/test_resume_links.py", "e2e/test_printed_names.py", "e2e/test_clock_jumps.py"),
    *("e2e/test_refused_folders.py", "e2e/test_full_disk_and_memory.py", "e2e/test_other_platforms.py"),
    "unit/nets/test_hub_backbones.py::test_a_manifest_that_names_another_model",
    "unit/nets/test_hub_backbones.py::test_a_folder_whose_model_names_another",
    "e2e/test_preemption.py::test_two_runs_on_one_folder",
    "e2e/test_refused_data.py::test_a_class_whose_name_is_not_unicode",
)
"""Files and tests of attacks that are kept next to what they attack, besides those in tests/stress/adversary/."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        file = item.path.relative_to(TESTS).as_posix()
        if file in ATTACKS or f"{file}::{getattr(item, 'originalname', item.name)}" in ATTACKS:
            item.add_marker("adversary")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.markexpr == "adversary":
        held, broken = (len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed"))
        terminalreporter.write_line(f"{held} attacks held, {broken} succeeded")
