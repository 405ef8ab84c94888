"""Images that were decoded once and are memory-mapped from then on.

One entry is one folder, named by a hash of everything its content depends on: path, size and modification time of the
source files, the decode settings, and the format version. It is built in a temporary folder beside its final place,
flushed to disk, its manifest written last, and then renamed: what carries the final name is complete. A lock per entry
lets one process build while others wait, and tells a temporary folder in use from one that a dead process left behind.
A builder that can go on with what such a process left says so by the file ``DRAFT`` in it. Hidden files are the
builder's own and no part of the entry.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from unissl.errors import UserError
from unissl.reading import parse_json, read_text
from unissl.record import open_own, own_file, own_folder

FORMAT = 3
"""Raised whenever the decoded pixels or the files of an entry change meaning."""
DRAFT = ".rows"
"""Where it lies in a temporary folder, what is there already can be used."""
DRAFT_DAYS = 7
"""How long such a folder is kept for its builder to come back."""
FEW_SOURCES = 16
"""Up to this many source files are hashed whole into the manifest; a folder of photos is not."""

SMALL_FILE = 16 << 20
"""Up to this many bytes a file of an entry is hashed whenever it is opened."""

Array = npt.NDArray[Any]
Build = Callable[[Path], Mapping[str, Any]]
"""Writes ``*.npy`` files into the given folder and returns what else is to be remembered, as JSON values."""


@dataclass(frozen=True)
class Entry:
    """``arrays[name]`` is the read-only memory map of ``name.npy``, ``hashes[name]`` the hash it had when it was made;
    ``meta`` is what the builder returned."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]
    hashes: Mapping[str, str]


def save_array(path: Path, array: Array) -> None:
    """Like ``np.save``, whose own writing hides the reason when the disk is full."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    with open_own(path, "wb") as file:
        file.write(buffer.getvalue())


def cache_folder() -> Path:
    """``$UNISSL_CACHE``, or the place the system has for such things."""
    named = os.environ.get("UNISSL_CACHE")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("unissl"))


def cached(kind: str, sources: Sequence[str | Path], settings: Mapping[str, Any], build: Build) -> Entry:
    """The entry for these sources and settings; ``build`` runs only if there is no intact one."""
    state = [(os.path.abspath(path), *_size_and_time(path)) for path in sources]
    key = hashlib.sha256(json.dumps([FORMAT, kind, settings, state], sort_keys=True).encode()).hexdigest()[:24]
    final = cache_folder() / f"{kind}-{key}"
    entry = _open(final)
    if entry is not None:
        return entry
    with _file_errors_explained(final.parent), _lock(final):
        entry = _open(final)  # another process may have built it while this one waited
        if entry is None:
            _remove_abandoned(final.parent)
            hashes = {}
            if len(sources) <= FEW_SOURCES:  # of those that can be read: a pool may hold others
                readable = [path for path in sources if os.path.isfile(path) and os.access(path, os.R_OK)]
                hashes = {str(path): _sha256(path) for path in readable}
            _build(final, {"kind": kind, "settings": settings, "source_sha256": hashes}, build)
            entry = _open(final)
    if entry is None:
        raise UserError(f"The image cache {final} cannot be read back; set $UNISSL_CACHE to another folder.")
    return entry


def _build(final: Path, about: Mapping[str, Any], build: Build) -> None:
    temporary = own_folder(final.parent, final.name + ".tmp")
    own_folder(final.parent, final.name)
    if not _can_go_on(temporary):
        shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(exist_ok=True)
    try:
        meta = dict(build(temporary))
        files = {}
        for path in sorted(path for path in temporary.iterdir() if not path.name.startswith(".")):
            _flush(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path), "front": _front(path)}
        manifest = temporary / "manifest.json"
        facts = json.loads(json.dumps({"format": FORMAT, **about, "files": files, "meta": meta}))
        with open_own(manifest, "wb") as file:
            file.write(json.dumps({**facts, "digest": _digest(facts)}).encode())
        _flush(manifest)
        for own in temporary.glob(".*"):
            own.unlink()
        _flush(temporary)
        shutil.rmtree(final, ignore_errors=True)  # whatever has this name was found damaged
        temporary.rename(final)
        _flush(final.parent)
    except BaseException as error:
        # A full disk is to be freed, and what a person puts right makes another entry; an interrupted one goes on.
        if isinstance(error, OSError | UserError) or not (temporary / DRAFT).exists():
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _can_go_on(temporary: Path) -> bool:
    """Whether there is a draft; a folder with anything but files in it is none, since a builder leaves no links."""
    try:
        with os.scandir(temporary) as entries:
            plain = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    except OSError:
        return False
    return DRAFT in plain and all(plain.values())


def _open(folder: Path) -> Entry | None:
    """The entry in ``folder`` if its files are those of its manifest. Large ones are hashed at their front only: a
    flipped bit among pixels is a pixel, one among labels or rows is not."""
    try:
        if not (folder / "manifest.json").is_file():  # reading a pipe would hang
            return None
        manifest = parse_json(read_text(folder / "manifest.json"))
        if manifest.pop("digest") != _digest(manifest):
            return None
        arrays, hashes = {}, {}
        for name, facts in manifest["files"].items():
            size = (folder / name).stat().st_size
            if not (folder / name).is_file() or size != facts["bytes"] or _front(folder / name) != facts["front"]:
                return None
            if size <= SMALL_FILE and _sha256(folder / name) != facts["sha256"]:
                return None
            stem = name.removesuffix(".npy")
            arrays[stem] = np.load(folder / name, mmap_mode="r", allow_pickle=False)
            hashes[stem] = str(facts["sha256"])
        return Entry(arrays, manifest["meta"], hashes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@contextmanager
def _lock(final: Path) -> Iterator[None]:
    final.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(own_file(final.with_name(f"{final.name}.lock")))
    try:
        lock.acquire(timeout=2)
    except Timeout:
        print("Waiting for another process that prepares the same images.", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _remove_abandoned(folder: Path) -> None:
    """Delete temporary folders whose entry nobody holds the lock of: their builder is dead. What it could go on with is
    left for a while."""
    for temporary in folder.glob("*.tmp"):
        if _age_in_days(temporary / DRAFT) < DRAFT_DAYS:
            continue
        lock = FileLock(own_file(temporary.with_suffix(".lock")))
        try:
            with lock.acquire(timeout=0):
                shutil.rmtree(temporary, ignore_errors=True)
        except Timeout:
            continue


@contextmanager
def _file_errors_explained(folder: Path) -> Iterator[None]:
    """What goes wrong with files while an entry is built is nearly always something the user can put right."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"The disk is full at the image cache {folder}; free some space or set $UNISSL_CACHE to a folder"
                " on another disk."
            ) from error
        if str(error.filename).startswith(str(folder)):
            raise UserError(
                f"The image cache {folder} cannot be written ({error.strerror}); set $UNISSL_CACHE to another one."
            ) from error
        if error.errno is not None:
            raise UserError(
                f"{error.filename or 'A data file'} cannot be read ({error.strerror}); check that it exists and that"
                " you may read it."
            ) from error
        raise


def _size_and_time(path: str | Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return -1, -1  # a dangling link: the decoder will say so
    return found.st_size, found.st_mtime_ns


def _age_in_days(path: Path) -> float:
    """Infinite for what is not there."""
    try:
        return (time.time() - path.stat().st_mtime) / 86400
    except OSError:
        return float("inf")


def _sha256(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _front(path: Path) -> str:
    """Hash of the part of an array's file that says its type and shape."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(128)).hexdigest()


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _flush(path: Path) -> None:
    """Bring a file or folder to the disk, so that a power cut cannot leave a name without its content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush folders
            raise
    finally:
        os.close(handle)
