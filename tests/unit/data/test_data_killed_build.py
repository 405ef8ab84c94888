"""A cache build that is killed goes on where it was, and what comes out is what an undisturbed one makes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from unissl.data import DataConfig, load
from unissl.data.images.decode import decode_stream
from unissl.data.images.resize import CenterCrop
from unissl.data.store import decode_to_cache as store
from unissl.data.store import resumable_rows as decoded
from unissl.errors import UserError
from unissl.types import ImageTable
from unissl.utils.cache import cache_folder, cached

SIDE, POOL = 8, 60
ROW = SIDE * SIDE * 3


@pytest.fixture(params=["colour", "grey", "one unreadable", "some odd"])
def photos(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """With all that decides how an entry is completed: as decoded, with one channel, without some rows."""
    rng = np.random.default_rng(0)
    for number in range(POOL + 4):
        place = tmp_path / "photos" / (f"class{number % 2}" if number < 4 else "unlabeled")
        place.mkdir(parents=True, exist_ok=True)
        shape = (SIDE, SIDE) if request.param == "grey" else (SIDE, SIDE, 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(place / f"{number:02}.png")
    if request.param == "one unreadable":
        (tmp_path / "photos" / "unlabeled" / "30.png").write_text("hello")
    if request.param == "some odd":
        for number in range(4, POOL, 3):
            Image.new("CMYK", (SIDE, SIDE)).save(tmp_path / "photos" / "unlabeled" / f"{number:02}.png", "TIFF")
    return tmp_path / "photos"


def load_photos(root: Path, **settings: Any) -> ImageTable:
    return load(DataConfig(name="folder", root=str(root), image_size=SIDE, **settings)).train


class Counter:
    """Counts what is decoded, and stops everything after some images as a kill would."""

    def __init__(self, patch: pytest.MonkeyPatch, stop_after: int | None = None) -> None:
        self.decoded, self.stop_after = 0, stop_after
        patch.setattr(store, "decode_stream", self)

    def __call__(self, items: Any, size: int, channels: int, fit: CenterCrop) -> Iterator[Any]:
        for item in items:
            if self.decoded == self.stop_after:
                raise KeyboardInterrupt
            self.decoded += 1
            yield from decode_stream([item], size, channels, fit)


def assert_same(one: ImageTable, other: ImageTable) -> None:
    assert np.array_equal(one.images, other.images) and one.images.shape == other.images.shape
    assert (one.files, one.skipped, one.content) == (other.files, other.skipped, other.content)
    assert one.issues == other.issues


@pytest.fixture
def calm(photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImageTable:
    """The table as an undisturbed build in another cache makes it."""
    with monkeypatch.context() as patch:
        patch.setenv("UNISSL_CACHE", str(tmp_path / "calm"))
        return load_photos(photos)


def test_rows_that_are_safe_are_not_decoded_again(
    photos: Path, calm: ImageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        Counter(patch, stop_after=30)
        load_photos(photos)
    counter = Counter(monkeypatch)
    assert_same(load_photos(photos), calm)
    unreadable = len(calm.skipped)
    assert POOL + 4 - 30 <= counter.decoded <= POOL + 4 - 30 + unreadable
    assert not list(cache_folder().glob("*/.*"))


@pytest.mark.parametrize("stage", ["_compact", "channel_mean_std", "save_array"])
def test_cut_off_after_the_last_image(
    photos: Path, calm: ImageTable, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def cut_off(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store, stage, cut_off)
        load_photos(photos)
    counter = Counter(monkeypatch)
    assert_same(load_photos(photos), calm)
    assert counter.decoded == len(calm.skipped)


def test_labels_may_change_in_between(photos: Path, calm: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labelled images are decoded first, so other labels mean another order; the rows stay what they are."""
    monkeypatch.setattr(decoded, "FLUSH_BYTES", 4 * ROW)
    (photos / "labels.csv").write_text("unlabeled/60.png,a\nunlabeled/10.png,b\n")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        Counter(patch, stop_after=20)
        load_photos(photos, labels="labels.csv")
    assert np.array_equal(load_photos(photos).images, calm.images)


@pytest.mark.parametrize(
    "spoil",
    [
        "marks too long",
        "marks unknown",
        "marks of more oddities than there are",
        "pixels gone",
        "pixels short",
        "other header",
    ],
)
def test_a_draft_that_cannot_be_is_not_trusted(
    photos: Path, calm: ImageTable, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    monkeypatch.setattr(decoded, "FLUSH_BYTES", 4 * ROW)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        Counter(patch, stop_after=20)
        load_photos(photos)
    (marks,) = cache_folder().glob("*.tmp/.rows")
    pixels = marks.with_name(".pixels.npy")
    if spoil == "marks too long":
        marks.write_bytes(marks.read_bytes() + b"\1")
    elif spoil == "marks unknown":
        marks.write_bytes(b"\7" * len(marks.read_bytes()))
    elif spoil == "marks of more oddities than there are":
        marks.write_bytes(b"\1\xff" * (len(marks.read_bytes()) // 2))
    elif spoil == "pixels gone":
        pixels.unlink()
    elif spoil == "pixels short":
        os.truncate(pixels, 200)
    else:
        pixels.write_bytes(b"\0" * len(pixels.read_bytes()))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # and killed again, soon after
        Counter(patch, stop_after=6)
        load_photos(photos)
    counter = Counter(monkeypatch)
    assert_same(load_photos(photos), calm)
    assert counter.decoded >= POOL + 4 - 6


def test_a_full_disk_is_freed_and_drafts_of_others_are_kept(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: decoded.ResumableRows, row: int, image: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(decoded.ResumableRows, "write", full)
        with pytest.raises(UserError, match=r"disk is full .*UNISSL_CACHE"):
            load_photos(photos)
    assert not list(cache_folder().glob("*.tmp"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        Counter(patch, stop_after=5)
        load_photos(photos)
    (draft,) = cache_folder().glob("*.tmp")
    cached("x", [], {}, lambda folder: {})
    assert draft.exists()
    os.utime(draft / ".rows", (time.time() - 8 * 86400,) * 2)
    cached("y", [], {}, lambda folder: {})
    assert not draft.exists()


def test_a_read_only_cache_serves_what_it_has(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_photos(photos)

    def acquire(self: FileLock, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.lock_file)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    load_photos(photos)
    with pytest.raises(UserError, match=r"cannot be written \(Read-only file system\); set \$UNISSL_CACHE"):
        load(DataConfig(name="folder", root=str(photos), image_size=SIDE + 1))


BUILD = """
    import sys, time
    from unissl.data import DataConfig, load
    from unissl.data.store import decode_to_cache as store, resumable_rows as decoded
    decoded.FLUSH_BYTES = 1
    really = store.decode_stream

    def slow(items, *how):
        for item in items:
            time.sleep(0.02)
            yield from really([item], *how)

    store.decode_stream = slow
    load(DataConfig(name="folder", root=sys.argv[1], image_size=8))
"""


@pytest.mark.parametrize("photos", ["colour"], indirect=True)
def test_killed_with_sigkill(photos: Path, calm: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(BUILD), str(photos)]) as process:
        done = 0
        while done < 10:
            assert process.poll() is None
            time.sleep(0.01)
            done = sum(np.count_nonzero(np.fromfile(p, np.uint16)) for p in cache_folder().glob("*.tmp/.rows"))
        process.kill()
        process.wait()
    counter = Counter(monkeypatch)
    assert_same(load_photos(photos), calm)
    assert counter.decoded <= POOL + 4 - 10
