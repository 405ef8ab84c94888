"""One command does everything once: it walks the folder, parses the label file, hashes, decodes, extracts and loads."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unissl.cli import app
from unissl.nets import DEFAULT_BACKBONE, backbone_installed

IMAGES, LABELS = 24, 8


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of different colour: 24 photos of 70 x 64 pixels, eight of them with a label."""
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "cache"))
    rng, rows = np.random.default_rng(0), ["file,label"]
    (tmp_path / "photos").mkdir()
    for number in range(IMAGES):
        pixels = rng.integers(0, 90, (64, 70, 3)) + np.array([120, 20, 40])[:: 1 if number % 2 else -1]
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / f"{number:02d}.png")
        if number < LABELS:
            rows.append(f"{number:02d}.png,{'red' if number % 2 else 'blue'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def count_calls(monkeypatch: pytest.MonkeyPatch, target: str, counts: Counter[str], name: str) -> None:
    module, _, attribute = target.rpartition(".")
    original: Callable[..., Any] = getattr(__import__(module, fromlist=[attribute]), attribute)

    def counted(*arguments: Any, **keywords: Any) -> Any:
        counts[name] += 1
        return original(*arguments, **keywords)

    monkeypatch.setattr(target, counted)


@pytest.mark.skipif(not backbone_installed(DEFAULT_BACKBONE), reason="needs the extra 'photos'")
@pytest.mark.parametrize("multi_crop", [True, False])
def test_everything_happens_once(photos: Path, monkeypatch: pytest.MonkeyPatch, multi_crop: bool) -> None:
    counts: Counter[str] = Counter()
    for target, name in (
        ("unissl.data.folder.index.find_images", "folder walked"),
        ("unissl.data.folder.index.read_label_file", "label file parsed"),
        ("unissl.features.extract.write_rows", "features extracted"),
        ("unissl.features.extract.pixel_hash", "pixels hashed again"),
        ("torch.load", "weights read"),
        ("unissl.run.inputs.multi_crop_features", "crops extracted"),
        ("unissl.run.results.find_duplicates", "duplicates searched"),
    ):
        count_calls(monkeypatch, target, counts, name)
    from unissl.data.images import decode
    from unissl.features import backbone
    from unissl.nets.backbones import base

    base.PackagedWeights.read.cache_clear()
    backbone._load_pretrained.cache_clear()
    decoded: Counter[str] = Counter()
    original = decode._decode_or_reason

    def counted(source: Any, *arguments: Any) -> Any:
        if isinstance(source, str):
            decoded[os.path.basename(source)] += 1
        return original(source, *arguments)

    monkeypatch.setattr(decode, "_decode_or_reason", counted)
    words = ["train", "--images", str(photos / "photos"), "--labels", str(photos / "labels.csv")]
    words += ["--out", str(photos / "run"), "--steps", "4", "--quiet"]
    settings = ["data.image_size=160", "distil.epochs=0.5", f"distil.multi_crop={str(multi_crop).lower()}"]
    app([*words, *(word for setting in settings for word in ("--set", setting))], result_action="return_value")

    assert (photos / "run" / "report.html").exists() and (photos / "run" / "baseline" / "summary.json").exists()
    assert counts == {
        "folder walked": 1,
        "label file parsed": 1,
        "features extracted": 1,
        "weights read": 2 if multi_crop else 1,  # once for each backbone
        "duplicates searched": 1,
        **({"crops extracted": 1} if multi_crop else {}),
    }
    # Decoded once for training, and once more on purpose where further crops are wanted.
    assert decoded == {f"{number:02d}.png": 2 if multi_crop else 1 for number in range(IMAGES)}
