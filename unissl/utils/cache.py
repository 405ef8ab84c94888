"""A cache on disk for decoded images and other arrays, which are memory-mapped when they are used again.

One entry is one folder, named by a hash of everything its content depends on: path, size and modification time of the
source files, the decode settings, and the format version. It is built in a temporary folder next to it, flushed
to disk, its manifest written last, and then renamed: a folder with the final name is complete. A lock per entry lets
one process build while others wait, and tells a temporary folder in use from one that a dead process left. A builder
that can resume such a folder writes the file ``PARTIAL`` into it. Hidden files belong to the builder, not to the entry.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from unissl.errors import UserError
from unissl.utils.atomic import flush, open_regular, require_real_folder, require_regular_file
from unissl.utils.bounded_io import MAX_SPLIT_BYTES, open_file, parse_json, read_text
from unissl.utils.ownership import only_writable_by_user, writable_by_others

FORMAT = 4
"""Raised whenever the decoded pixels or the files of an entry change meaning."""
PARTIAL = ".rows"
"""Marks a temporary folder that its builder can resume."""
PARTIAL_DAYS = 7
"""How long such a folder is kept."""
MAX_HASHED_SOURCES = 16
"""Up to this many source files are hashed whole into the manifest; a folder of photos is not."""

FRONT = 128
"""Bytes of the header of an array file."""
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
SMALL_FILE = 16 << 20
"""Up to this many bytes a file of an entry is hashed whenever it is opened."""

Array = npt.NDArray[Any]
Build = Callable[[Path], Mapping[str, Any]]
"""Writes ``*.npy`` files into a folder and returns further values to store, as JSON values."""


@dataclass(frozen=True)
class Entry:
    """``arrays[name]`` is the read-only memory map of ``name.npy``, ``hashes[name]`` its hash when it was written;
    ``meta`` is what the builder returned, ``settings`` what the entry was requested with."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Any]
    hashes: Mapping[str, str]
    settings: Mapping[str, Any]


def save_array(path: Path, array: Array) -> None:
    """Like ``np.save``, which hides the reason of an error when the disk is full."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    with open_regular(path, "wb") as file:
        file.write(buffer.getvalue())


def cache_folder() -> Path:
    """``$UNISSL_CACHE``, or the cache folder of the system."""
    path = os.environ.get("UNISSL_CACHE")
    return Path(path) if path else user_cache_folder()


def user_cache_folder() -> Path:
    """The cache folder of the system. For a user without a home folder some versions of platformdirs raise, and others
    return a path that begins with ``~``, in the current folder."""
    import platformdirs

    folder = Path("~")
    with suppress(RuntimeError):
        folder = Path(platformdirs.user_cache_dir("unissl"))
    if folder.parts[0] == "~":
        raise UserError("This user has no home folder for the cache; set $UNISSL_CACHE or $HOME to a folder.")
    return folder


def cached(
    kind: str,
    sources: Sequence[str | Path],
    settings: Mapping[str, Any],
    build: Build,
    stats: Sequence[tuple[int, int]] | None = None,
) -> Entry:
    """The entry for these sources and settings; ``build`` runs only if there is no intact one.

    ``stats`` has :func:`size_and_time` of each source, if the caller has read them already.
    """
    if stats is None:
        stats = [size_and_time(path) for path in sources]
    state = [(os.path.abspath(path), *facts) for path, facts in zip(sources, stats, strict=True)]
    key = hashlib.sha256(json.dumps([FORMAT, kind, settings, state], sort_keys=True).encode()).hexdigest()[:24]
    final = cache_folder() / f"{kind}-{key}"
    if final.parent.exists():
        _check_private(final.parent)
    entry = _open(final)
    if entry is not None:
        with suppress(OSError):  # the time of the last use; a read-only cache does without
            os.utime(final)
        return entry
    with _file_errors_explained(final.parent), _lock(final):
        entry = _open(final)  # another process may have built it while this one waited
        if entry is None:
            _remove_abandoned(final.parent)
            hashes = {}
            if len(sources) <= MAX_HASHED_SOURCES:  # only readable ones: a pool may have others
                readable = [path for path in sources if os.path.isfile(path) and os.access(path, os.R_OK)]
                hashes = {str(path): _sha256(path) for path in readable}
            about = {"kind": kind, "settings": settings, "source": _common_folder(sources), "source_sha256": hashes}
            _build(final, about, build)
            entry = _open(final)
    if entry is None:
        raise UserError(f"The image cache {final} cannot be read back; set $UNISSL_CACHE to another folder.")
    return entry


def entries(kind: str) -> Iterator[Entry]:
    """The intact entries of a kind, the last used first."""
    folder = cache_folder()
    try:
        paths = [path for path in folder.glob(f"{kind}-*") if path.suffix not in (".tmp", ".lock")]
        paths.sort(key=lambda path: (path.lstat().st_mtime_ns, path.name), reverse=True)
    except OSError:  # another process clears the cache
        return
    for path in paths:
        entry = _open(path)
        if entry is not None:
            yield entry


def _common_folder(sources: Sequence[str | Path]) -> str:
    """The folder of the sources, or the only one of them; empty if there are none."""
    paths = [os.path.abspath(path) for path in sources]
    try:
        text = paths[0] if len(paths) == 1 else os.path.commonpath([os.path.dirname(path) for path in paths])
    except (ValueError, IndexError):  # none, or on two drives
        return ""
    return text.encode(errors="backslashreplace").decode()


def _build(final: Path, about: Mapping[str, Any], build: Build) -> None:
    temporary = require_real_folder(final.parent, final.name + ".tmp")
    require_real_folder(final.parent, final.name)
    if not _can_resume(temporary):
        shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700, exist_ok=True)
    try:
        meta = dict(build(temporary))
        files = {}
        for path in sorted(path for path in temporary.iterdir() if not path.name.startswith(".")):
            path.chmod(path.stat().st_mode & ~WRITABLE_BY_OTHERS)
            flush(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path), "front": _front(path)}
        manifest = temporary / "manifest.json"
        facts = json.loads(json.dumps({"format": FORMAT, **about, "files": files, "meta": meta}))
        with open_regular(manifest, "wb") as file:
            file.write(json.dumps({**facts, "digest": _digest(facts)}).encode())
        flush(manifest)
        for hidden in temporary.glob(".*"):
            hidden.unlink()
        flush(temporary)
        shutil.rmtree(final, ignore_errors=True)  # an entry of this name is damaged
        temporary.rename(final)
        flush(final.parent)
    except BaseException as error:
        # A full disk should be freed, and a corrected mistake makes another entry; an interrupted build is resumed.
        if isinstance(error, OSError | UserError) or not (temporary / PARTIAL).exists():
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _can_resume(temporary: Path) -> bool:
    """Whether the folder has a partial build; a folder with links or subfolders was not written by a builder."""
    try:
        with os.scandir(temporary) as entries:
            plain = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    except OSError:
        return False
    return PARTIAL in plain and all(plain.values())


def _open(folder: Path) -> Entry | None:
    """The entry in ``folder`` if its files are those of its manifest. Large ones are hashed at their front only: a
    flipped bit in an image changes one pixel, one in labels or rows does more."""
    try:
        manifest = parse_json(read_text(folder / "manifest.json", MAX_SPLIT_BYTES))  # may name every image
        if manifest.pop("digest") != _digest(manifest):
            return None
        if not _is_own(folder.lstat()):
            return None
        arrays, hashes = {}, {}
        for name, facts in manifest["files"].items():
            stem = name.removesuffix(".npy")
            with open_file(folder / name) as file:  # the file that is checked is the one that is mapped
                if not _is_intact(file, facts):
                    return None
                arrays[stem] = _map(file)
            hashes[stem] = str(facts["sha256"])
        return Entry(arrays, manifest["meta"], hashes, dict(manifest["settings"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_intact(file: io.BufferedReader, facts: Mapping[str, Any]) -> bool:
    """Whether an open file is as its manifest says, and nobody else may write to it."""
    state = os.fstat(file.fileno())
    if not _is_own(state) or state.st_size != facts["bytes"]:
        return False
    if hashlib.sha256(file.read(FRONT)).hexdigest() != facts["front"]:
        return False
    file.seek(0)
    return state.st_size > SMALL_FILE or hashlib.file_digest(file, "sha256").hexdigest() == facts["sha256"]


def _map(file: io.BufferedReader) -> Array:
    """The array of an open .npy file, as a read-only memory map."""
    file.seek(0)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    order: Literal["F", "C"] = "F" if fortran_order else "C"
    return np.memmap(file, dtype=dtype, shape=shape, order=order, mode="r", offset=file.tell())


def _is_own(state: os.stat_result) -> bool:
    return only_writable_by_user(state, own_group=True)


def _check_private(folder: Path) -> None:
    """Raise if other users may write to the cache: they would decide what is learnt."""
    found = writable_by_others(folder, own_group=True)
    if found is not None:
        raise UserError(
            f"Other users may write to {found}, so the image cache {folder} cannot be trusted; change that with chmod "
            "go-w, or set $UNISSL_CACHE to a folder of your own."
        )


@contextmanager
def _lock(final: Path) -> Iterator[None]:
    # Compiled code is read only from a folder that no other user may write to, whatever the umask.
    final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(final.parent)
    lock = FileLock(require_regular_file(final.with_name(f"{final.name}.lock")))
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
    """Delete temporary folders whose entry is not locked: their builder is dead. Those that can be resumed are kept
    for ``PARTIAL_DAYS``."""
    for temporary in folder.glob("*.tmp"):
        if _age_in_days(temporary / PARTIAL) < PARTIAL_DAYS:
            continue
        lock = FileLock(require_regular_file(temporary.with_suffix(".lock")))
        try:
            with lock.acquire(timeout=0):
                shutil.rmtree(temporary, ignore_errors=True)
        except Timeout:
            continue


@contextmanager
def _file_errors_explained(folder: Path) -> Iterator[None]:
    """Turns file errors during a build into sentences, since the user can fix nearly all of them."""
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


def size_and_time(path: str | Path) -> tuple[int, int]:
    """Size in bytes and modification time in ns; -1, -1 for a dangling link, which the decoder reports."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _age_in_days(path: Path) -> float:
    """Infinite for a file that does not exist."""
    try:
        return (time.time() - path.stat().st_mtime) / 86400
    except OSError:
        return float("inf")


def _sha256(path: str | Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _front(path: Path) -> str:
    """Hash of the header of an array file, which has type and shape."""
    with open_file(path) as file:
        return hashlib.sha256(file.read(FRONT)).hexdigest()


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
