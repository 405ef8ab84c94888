"""Folders that readers read from, and the cache that a case leaves behind."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path


def lay(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def forget_cache(home: Path) -> None:
    """Otherwise a case would be answered by the one before, and the disk fill up."""
    shutil.rmtree(home / "cache", ignore_errors=True)
