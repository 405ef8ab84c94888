"""Rows of a memory map, read without keeping the map in memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from unissl.utils import mmap_rows as mapped
from unissl.utils.mmap_rows import take_rows

MEGABYTE = 1 << 20


def resident(path: Path) -> int:
    """Bytes of the file that count as memory of this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    total = 0
    for line in lines:
        if line.endswith(str(path)):
            total += next(int(later.split()[1]) for later in lines if later.startswith("Rss:"))
    return total * 1024


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "table.npy", np.random.default_rng(0).integers(0, 256, (16 * 1024, 1024), dtype=np.uint8))
    return tmp_path / "table.npy"


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_memory_stays_bounded(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, images = np.random.default_rng(1), np.load(table, mmap_mode="r")
    draws = [rng.permutation(len(images))[:64] for _ in range(60)]
    for rows in draws:
        images[rows]
    assert resident(table) > 12 * MEGABYTE  # what happens without
    monkeypatch.setattr(mapped, "MAX_MAPPED", 2 * MEGABYTE)
    most = 0
    for number, rows in enumerate(draws):
        assert np.array_equal(take_rows(images, rows), np.load(table, mmap_mode="r")[rows])
        most = max(most, resident(table) if number else 0)
    assert most <= 8 * MEGABYTE


def test_arrays_and_small_maps_are_left_alone(table: Path) -> None:
    images, rows = np.load(table, mmap_mode="r"), np.array([5, 3, 3])
    assert np.array_equal(take_rows(np.asarray(images), rows), images[rows])
    assert np.array_equal(take_rows(images, rows), images[rows])
    assert resident(table) > 0 if sys.platform == "linux" else True
