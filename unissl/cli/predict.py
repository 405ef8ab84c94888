"""unissl predict"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

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
    from unissl.errors import UserError

    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    prepare_process()
    from unissl.data import list_images, read_images
    from unissl.evaluate.inference import load_model
    from unissl.record import RunFolder

    model = load_model(RunFolder(run))
    files = [file for path in images for file in list_images(path)]
    skipped: list[tuple[str, str]] = []
    with _destination(out) as handle:
        writer = csv.writer(handle)
        writer.writerow(["file", "class", "confidence", "margin"])
        for start in range(0, len(files), CHUNK):
            pixels, kept, bad = read_images(files[start : start + CHUNK], model.size[0], model.channels)
            skipped += bad
            if not kept:
                continue
            made = model.predict(pixels)
            for file, index, confidence, margin in zip(kept, made.classes, made.confidence, made.margin, strict=True):
                writer.writerow([file, model.class_names[index], f"{confidence:.4f}", f"{margin:.4f}"])
    for file, reason in skipped:
        print(f"skipped {file}: {reason}", file=sys.stderr)
    if files and len(skipped) == len(files):
        raise UserError("None of the images could be read; give files that Pillow can open.")


@contextmanager
def _destination(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    from unissl.record import disk_errors

    with disk_errors(out), out.open("w", encoding="utf-8", newline="") as handle:
        yield handle
