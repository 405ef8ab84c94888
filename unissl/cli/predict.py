"""unissl predict"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from unissl.errors import UserError

if TYPE_CHECKING:
    from unissl.evaluate.inference import Model

CHUNK = 1024
"""Files decoded at a time, so that memory does not grow with their number."""


def predict(run: Path, images: list[Path], /, *, out: Path | None = None) -> None:
    """Classify image files with the model of a run folder; writes CSV.

    Example: unissl predict runs/first photos/ --out predictions.csv

    Parameters
    ----------
    run
        Run folder.
    images
        Image files, or folders of them.
    out
        CSV file to write; by default the terminal. An existing one is not overwritten.
    """
    from unissl.cli.machine import prepare_process

    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    prepare_process()
    from unissl.evaluate.inference import load_model
    from unissl.record import RunFolder, write_atomically

    model = load_model(RunFolder(run))
    files = [file for path in images for file in find_images(path)]
    if out is None:
        write_predictions(model, files, sys.stdout)
        return

    def write(draft: Path) -> None:
        with draft.open("w", encoding="utf-8", newline="") as handle:
            write_predictions(model, files, handle)

    write_atomically(out, write)


def find_images(path: Path) -> list[Path]:
    """The file itself, or every image below the folder."""
    from unissl.data import list_images

    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"There is no file or folder {path}; check the path.")
    found = [path / name for name in list_images(path)]
    if not found:
        raise UserError(f"The folder {path} holds no images; name one that does.")
    return found


def write_predictions(model: Model, files: list[Path], handle: TextIO) -> None:
    """One line per image that can be read; the others are named on stderr."""
    from unissl.data import read_images

    writer = csv.writer(handle)
    writer.writerow(["file", "class", "confidence", "margin", "outlier"])
    skipped: list[tuple[str, str]] = []
    for start in range(0, len(files), CHUNK):
        pixels, kept, bad = read_images(files[start : start + CHUNK], model.size[0], model.channels)
        skipped += bad
        if not kept:
            continue
        made = model.predict(pixels)
        scores = zip(made.confidence, made.margin, made.outlier, strict=True)
        for file, index, values in zip(kept, made.classes, scores, strict=True):
            writer.writerow([file, model.class_names[index], *(f"{value:.4f}" for value in values)])
    for file, reason in skipped:
        print(f"skipped {file}: {reason}", file=sys.stderr)
    if len(skipped) == len(files):
        raise UserError("None of the images could be read; give files that Pillow can open.")
