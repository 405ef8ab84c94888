"""What the cache folder holds, and its removal.

Only entries that :mod:`unissl.utils.cache` writes, and compiled code, are listed or removed, by their names. Links are
neither followed nor removed, and an entry that a process is building is kept. An entry is renamed before it is deleted,
so that an interrupted removal leaves no half of one. Lock files stay, since another process may wait for one.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unissl.errors import UserError
from unissl.utils.atomic import require_regular_file
from unissl.utils.bounded_io import MAX_SPLIT_BYTES, parse_json, read_text
from unissl.utils.cache import cache_folder

ENTRY = re.compile(r"(?P<kind>[a-z0-9-]+)-[0-9a-f]{24}(?P<partial>\.tmp)?")
CODE = {
    "code": re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.\d+\.partial"),
    "compiled": re.compile(r"[a-z0-9]{2}|fxgraph|aotautograd|triton|cache|locks|kernels"),
}
"""Folders of compiled code, and the names in them that unissl and torch write."""
DERIVED = ("features", "crops")
"""Kinds that are computed from the images of another entry."""
DAY = 86400


@dataclass(frozen=True)
class CacheItem:
    """An entry of the cache, or all compiled code of one folder."""

    path: Path
    kind: str
    """images, features, crops, compiled code or partial."""
    source: str
    """Folder or file that the images came from; empty if it is not known."""
    size: int
    """Bytes."""
    used: float
    """When it was last used, in seconds since 1970."""
    parts: tuple[Path, ...] = ()
    """Of a folder of compiled code, what in it may be removed."""


def list_cache() -> list[CacheItem]:
    """All items, by source; the images of a source first."""
    folders = _folders(cache_folder())
    items: list[CacheItem] = []
    sources: dict[Any, str] = {}
    pixels: dict[Path, Any] = {}
    for path in folders:
        if name := ENTRY.fullmatch(path.name):
            manifest = _read_manifest(path)
            kind = "partial" if name["partial"] else name["kind"] if name["kind"] in DERIVED else "images"
            source = str(manifest.get("source", "")) or (name["kind"] if kind == "images" else "")
            if kind == "images":
                files = manifest.get("files", {}).values()
                sources |= {file.get("sha256"): source for file in files if isinstance(file, dict)}
            pixels[path] = manifest.get("settings", {}).get("pixels")
            items.append(CacheItem(path, kind, source, _size(path), path.lstat().st_mtime))
    named = [replace(item, source=sources.get(pixels[item.path], item.source)) for item in items]
    order = {"images": 0, "features": 1, "crops": 2}
    return sorted(named, key=lambda item: (item.source, order.get(item.kind, 3), item.path.name)) + _code(folders)


def clear_cache(older_than: float = 0.0) -> tuple[list[CacheItem], list[CacheItem]]:
    """Remove what was not used for so many days; the removed items, and those in use, which are kept."""
    removed: list[CacheItem] = []
    kept: list[CacheItem] = []
    for item in list_cache():
        if time.time() - item.used >= older_than * DAY:
            (removed if _remove(item) else kept).append(item)
    return removed, kept


def _read_manifest(entry: Path) -> dict[str, Any]:
    """Empty where it cannot be read."""
    manifest: Any = {}
    with suppress(OSError, ValueError):
        manifest = parse_json(read_text(entry / "manifest.json", MAX_SPLIT_BYTES))
    return manifest if isinstance(manifest, dict) else {}


def _folders(root: Path) -> list[Path]:
    """The folders in the cache, without links."""
    try:
        with os.scandir(root) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"The cache {root} cannot be read ({error.strerror}); check $UNISSL_CACHE.") from None


def _code(folders: Sequence[Path]) -> list[CacheItem]:
    items = []
    for path in folders:
        pattern = CODE.get(path.name)
        parts = sorted(p for p in path.iterdir() if pattern.fullmatch(p.name) and not p.is_symlink()) if pattern else []
        if parts:
            used = max(part.lstat().st_mtime for part in parts)
            size = sum(_size(part) for part in parts)
            items.append(CacheItem(path, "compiled code", "", size, used, tuple(parts)))
    return items


def _size(path: Path) -> int:
    """Bytes on disk of a file, or of all files below a folder."""
    if not path.is_dir():
        return path.lstat().st_size
    files = [os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names]
    return sum(os.lstat(file).st_size for file in files)


def _remove(item: CacheItem) -> bool:
    """Whether the item was removed; not if a process is building it."""
    if item.kind == "compiled code":
        _delete(item.parts)
        return True
    final = item.path.with_name(item.path.name.removesuffix(".tmp"))
    temporary, lock = final.with_name(final.name + ".tmp"), final.with_name(final.name + ".lock")
    try:
        with FileLock(require_regular_file(lock)).acquire(timeout=0):
            _delete([temporary])  # of a builder that is dead, since the entry is not locked
            if item.path == final:
                final.rename(temporary)
                _delete([temporary])
    except Timeout:
        return False
    except OSError as error:
        raise UserError(f"{item.path} cannot be removed ({error.strerror}); check its permissions.") from None
    return True


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
