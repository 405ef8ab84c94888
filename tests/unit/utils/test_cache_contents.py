"""The cache is listed by source and cleared by age; links, foreign files and builds in progress are left alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from unissl.cli import app, main
from unissl.errors import UserError
from unissl.utils.cache import cache_folder, cached, save_array
from unissl.utils.cache_contents import clear_cache, list_cache

DAY = 86400


def build(folder: Path) -> dict[str, Any]:
    save_array(folder / "images.npy", np.zeros(1000, np.uint8))
    return {}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A cache with the images and features of a folder, compiled code, and what is none of our business."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(b"image")
    entry = cached("folder", [folder / "a.png", folder / "b.png"], {"size": 32}, build)
    cached("features", [], {"pixels": entry.hashes["images"]}, build)
    root = cache_folder()
    (root / "code").mkdir()
    (root / "code" / ("0" * 64)).write_bytes(b"machine code")
    (root / "code" / "mine.py").write_text("print()")
    (root / "notes").mkdir()
    (root / "notes" / "mine.txt").write_text("notes")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept.txt").write_text("kept")
    (root / f"folder-{'1' * 24}").symlink_to(tmp_path / "elsewhere")
    return folder


def aged(kind: str, days: float) -> None:
    (item,) = (item for item in list_cache() if item.kind == kind)
    os.utime(item.path, (time.time() - days * DAY,) * 2)


def test_items_with_source_and_size(photos: Path) -> None:
    items = list_cache()
    assert [(item.kind, item.source) for item in items] == [
        ("images", str(photos)),
        ("features", str(photos)),
        ("compiled code", ""),
    ]
    files = [path.stat().st_size for path in items[0].path.iterdir()]
    assert items[0].size == sum(files) > 1000 and items[2].size == len("machine code")


def test_a_use_renews_the_date(photos: Path) -> None:
    aged("images", 40)
    cached("folder", [photos / "a.png", photos / "b.png"], {"size": 32}, build)
    assert time.time() - list_cache()[0].used < DAY


def test_only_old_items_are_cleared(photos: Path) -> None:
    aged("features", 31)
    removed, kept = clear_cache(older_than=30)
    assert [item.kind for item in removed] == ["features"] and kept == []
    assert [item.kind for item in list_cache()] == ["images", "compiled code"]
    assert not list(cache_folder().glob("*.tmp"))


def test_links_and_foreign_files_survive(photos: Path, tmp_path: Path) -> None:
    root = cache_folder()
    (list_cache()[0].path / "link").symlink_to(tmp_path / "elsewhere")
    removed, kept = clear_cache()
    assert len(removed) == 3 and kept == list_cache() == []
    assert (tmp_path / "elsewhere" / "kept.txt").read_text() == "kept" and (photos / "a.png").exists()
    assert (root / "code" / "mine.py").exists() and (root / "notes" / "mine.txt").exists()
    assert (root / f"folder-{'1' * 24}").is_symlink()
    assert cached("folder", [photos / "a.png", photos / "b.png"], {"size": 32}, build).arrays["images"].size == 1000


def test_a_build_in_progress_is_kept_and_an_abandoned_one_removed(photos: Path) -> None:
    for digit in "23":
        (cache_folder() / f"folder-{digit * 24}.tmp").mkdir()
    with FileLock(cache_folder() / f"folder-{'2' * 24}.lock"):
        removed, kept = clear_cache()
    assert [item.path.name for item in kept] == [f"folder-{'2' * 24}.tmp"]
    assert "partial" in [item.kind for item in removed] and len(list_cache()) == 1


def test_damaged_manifests_are_listed_and_cleared(photos: Path) -> None:
    for item, text in zip(list_cache()[:2], ("not json", "[1]"), strict=True):
        (item.path / "manifest.json").write_text(text)
    assert [item.kind for item in list_cache()] == ["features", "images", "compiled code"]
    assert len(clear_cache()[0]) == 3


def test_the_command(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(["cache"], result_action="return_value")
    shown = capsys.readouterr().out
    assert str(photos) in shown and "compiled code" in shown and f"3 entries, 0.0 MB in {cache_folder()}" in shown
    for words in (["clear"], ["clear", "--all", "--older-than", "3"]):
        with pytest.raises(UserError, match="either --older-than DAYS or --all"):
            app(["cache", *words], result_action="return_value")
    with pytest.raises(UserError, match="give 0 or more"):
        app(["cache", "clear", "--older-than", "nan"], result_action="return_value")
    app(["cache", "clear", "--older-than", "1"], result_action="return_value")
    assert capsys.readouterr().out == "removed: 0 entries, 0.0 MB\n"
    app(["cache", "clear", "--all"], result_action="return_value")
    assert f"removed images of {photos}: 0.0 MB\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["cache"])
    assert "0 entries" in capsys.readouterr().out


def test_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "none"))
    assert list_cache() == [] and clear_cache() == ([], []) and not (tmp_path / "none").exists()
