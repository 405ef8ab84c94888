"""Rows of a cache entry that was stopped: which of them count, and which are computed again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unissl.utils import partial_rows
from unissl.utils.cache import PARTIAL
from unissl.utils.partial_rows import PartialRows

TOTAL, BATCH = 10, 4
SIZES = {"small": 2, "large": 12}


def open_rows(folder: Path, sizes: dict[str, int] = SIZES) -> PartialRows:
    return PartialRows(folder, TOTAL, sizes, BATCH)


def blocks(start: int, count: int) -> list[np.ndarray]:
    rows = np.arange(start, start + count)[:, None]
    return [np.repeat(rows, 2, 1).astype(np.uint8), np.repeat(rows, 3, 1).astype(np.float32)]


def rows_done(folder: Path, sizes: dict[str, int] = SIZES) -> int:
    """How many rows the next build finds."""
    with open_rows(folder, sizes) as rows:
        return rows.done


def fill(rows: PartialRows, stop: int = TOTAL) -> None:
    for start in range(rows.done, stop, BATCH):
        rows.append(blocks(start, min(BATCH, stop - start)))


def test_stopped_rows_continue_and_the_files_are_those_of_one_go(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_rows(tmp_path) as rows:
        fill(rows, stop=8)
        raise KeyboardInterrupt
    with open_rows(tmp_path) as rows:
        assert rows.done == 8
        fill(rows)
    assert np.array_equal(np.load(tmp_path / "small.npy")[:, 0], np.arange(TOTAL))
    large = np.load(tmp_path / "large.npy").view(np.float32)
    assert np.array_equal(large, np.repeat(np.arange(TOTAL)[:, None], 3, 1))
    assert rows_done(tmp_path) == TOTAL


def test_a_kill_loses_what_was_not_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_rows, "FLUSH_BYTES", 8 * 14)
    killed = open_rows(tmp_path)
    fill(killed)
    assert killed.done == TOTAL and rows_done(tmp_path) == 8  # as long as it is not closed
    killed.__exit__(None, None, None)


def test_a_full_disk_leaves_no_mark(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), open_rows(tmp_path) as rows:
        fill(rows, stop=8)
        raise OSError("full")
    assert rows_done(tmp_path) == 0


@pytest.mark.parametrize("mark", [b"", b"-4", b"5", b"12", b"many", b"8 8"])
def test_a_mark_that_cannot_be_is_not_trusted(tmp_path: Path, mark: bytes) -> None:
    with open_rows(tmp_path) as rows:
        fill(rows)
    (tmp_path / PARTIAL).write_bytes(mark)
    assert rows_done(tmp_path) == 0


@pytest.mark.parametrize("change", ["no file", "short file", "other rows"])
def test_files_that_do_not_fit_are_written_again(tmp_path: Path, change: str) -> None:
    with open_rows(tmp_path) as rows:
        fill(rows)
    (tmp_path / PARTIAL).write_bytes(b"8")
    large = tmp_path / "large.npy"
    if change == "no file":
        large.unlink()
    elif change == "short file":
        large.write_bytes(large.read_bytes()[: 128 + 7 * 12])
    assert rows_done(tmp_path, {**SIZES, "large": 8} if change == "other rows" else SIZES) == 0
