"""What the end-to-end tests share: calling the command, looking at folders, making small images."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unissl.cli import main

QUICK = (
    *("--steps", "2", "--set", "net.name=small", "--set", "train.evaluations=2", "--set", "data.image_size=8"),
    *("--set", "augment.pad=1", "--set", "batch.labelled=4", "--set", "batch.unlabelled=8"),
)
"""Settings that make training a matter of a tenth of a second; the pictures take most of the rest."""
TRAIN_DIGITS = ("train", "--data", "digits", "--no-baseline", "--quiet", *QUICK)
TRAIN_PHOTOS = ("train", "--data", "photos", "--no-baseline", "--quiet", *QUICK)
Refuses = Callable[..., str]
"""The type of the fixture ``refuses``."""


@dataclass(frozen=True)
class Outcome:
    code: int | str | None
    out: str
    err: str


def call(*words: str | Path) -> Outcome:
    """``unissl WORDS`` in this process. Anything but a clean exit, so also a traceback, fails the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            return Outcome(end.code, out.getvalue(), err.getvalue())
    raise AssertionError("the command returned without an exit code")


def succeed(*words: str | Path) -> Outcome:
    outcome = call(*words)
    assert outcome.code == 0, outcome.err
    return outcome


def snapshot(root: Path) -> dict[str, str]:
    """Every folder and the hash of every file below ``root``, hidden ones too."""
    return {
        str(path.relative_to(root)): "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
    }


def picture(brightness: int, seed: int, side: int = 12) -> Image.Image:
    """Coloured noise around a brightness, so that classes can be told apart."""
    noise = np.random.default_rng(seed).integers(0, 60, (side, side, 3))
    return Image.fromarray((noise + brightness).astype(np.uint8))


def make_photos(root: Path, classes: Sequence[str] = ("cat", "dog"), each: int = 4, pool: int = 6) -> Path:
    """``root/<class>/*.png`` and ``root/unlabeled/*.png``; classes differ in brightness."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(each):
            picture(150 * number, seed=100 * number + i).save(root / name / f"{i}.png")
    if pool:
        (root / "unlabeled").mkdir()
        for i in range(pool):
            picture(150 * (i % 2), seed=1000 + i).save(root / "unlabeled" / f"{i}.png")
    return root


def fill_disk(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let the disk be full at the moment the file ``name`` would be put in its place."""

    def full(really: Callable[..., None]) -> Callable[[str | Path, str | Path], None]:
        def put(source: str | Path, target: str | Path) -> None:
            if Path(target).name == name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
            really(source, target)

        return put

    patch.setattr(os, "replace", full(os.replace))
    patch.setattr(os, "link", full(os.link))  # where the file must be new
