"""Made-up files in place of the published ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from unissl.data.sources import checksums


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Enters the checksum of a made-up file (of every file in a folder) into the table of published ones."""

    def enter(path: Path, name: str | None = None) -> Path:
        files = {f"{name or path.name}/{file.name}": file for file in path.iterdir()} if path.is_dir() else {name: path}
        for key, file in files.items():
            md5 = hashlib.md5(file.read_bytes()).hexdigest()
            monkeypatch.setitem(checksums.MD5, file.name if key is None else key, md5)
        return path

    return enter
