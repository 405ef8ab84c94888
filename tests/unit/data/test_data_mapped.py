"""Rows of a memory map, read without keeping the map in memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from unissl.augment import AugmentConfig
from unissl.augment.feature_views import FeatureViews
from unissl.distil.student import select_maps
from unissl.errors import UserError
from unissl.utils import mmap_rows as mapped
from unissl.utils.mmap_rows import row_blocks, take_rows

MEGABYTE = 1 << 20
CPU = torch.device("cpu")


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


@pytest.mark.parametrize(
    "read",
    [
        take_rows,
        lambda images, rows: FeatureViews(floats(images), AugmentConfig(), CPU)("none", rows),
        lambda images, rows: select_maps(floats(images).reshape(-1, 1, 4, 4, 16), rows, 0 * rows, CPU),
    ],
)
def test_a_file_that_is_truncated_while_it_is_mapped(
    table: Path, read: Callable[[npt.NDArray[Any], npt.NDArray[np.int64]], object]
) -> None:
    """Otherwise the process would be killed by a bus error, without a word."""
    images, rows = np.load(table, mmap_mode="r"), np.array([5, 3, 3])
    read(images, rows)
    os.truncate(table, 4096)
    with pytest.raises(UserError, match=r"table\.npy was truncated while it was in use; repeat the command"):
        read(images, rows)


def floats(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """One view of 256 features per row, mapped too."""
    return images.view(np.float32).reshape(len(images), 1, -1)


def test_arrays_and_small_maps_are_left_alone(table: Path) -> None:
    images, rows = np.load(table, mmap_mode="r"), np.array([5, 3, 3])
    assert np.array_equal(take_rows(np.asarray(images), rows), images[rows])
    assert np.array_equal(take_rows(images, rows), images[rows])
    assert resident(table) > 0 if sys.platform == "linux" else True


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_reading_all_rows_keeps_no_table_in_memory(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "MAX_MAPPED", 2 * MEGABYTE)
    images = np.load(table, mmap_mode="r")
    blocks = []
    for block in row_blocks(images, 100):
        blocks.append(block)
        assert resident(table) <= 8 * MEGABYTE
    assert np.array_equal(np.concatenate(blocks), np.load(table))
    many = np.random.default_rng(3).permutation(len(images))
    assert np.array_equal(take_rows(images, many), np.load(table)[many])
    assert resident(table) <= 8 * MEGABYTE  # it was read in parts
    rows = np.random.default_rng(2).permutation(len(images)).reshape(-1, 64)
    for some in rows:
        maps = select_maps(images.view(np.float16).reshape(-1, 1, 4, 4, 32), some, np.zeros_like(some), CPU)
        assert maps.shape == (64, 32, 4, 4) and resident(table) <= 8 * MEGABYTE
