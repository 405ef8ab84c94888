"""Write images into a cache entry: decoded arrays, whole or in blocks, or a stream of encoded images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from unissl.data.dataset import channel_mean_std
from unissl.data.images.decode import Encoded, Unreadable, decode_stream
from unissl.data.images.resize import CENTER_CROP, Resize, scale_arrays
from unissl.data.store.resumable_rows import COLOUR, ResumableRows
from unissl.errors import UserError
from unissl.types import ImageTable, Labels, Pixels, Rows
from unissl.utils.cache import Entry, save_array
from unissl.utils.progress import Progress
from unissl.utils.row_writer import RowWriter

CHUNK = 512


def store_arrays(folder: Path, images: Pixels, labels: Labels) -> dict[str, Any]:
    """Write ``images.npy`` and ``labels.npy``; returns mean and std for the entry's meta."""
    with RowWriter(folder / "images.npy", images.shape) as writer:
        writer.write(0, images)
    save_array(folder / "labels.npy", labels)
    mean, std = channel_mean_std(images)
    return {"mean": mean, "std": std}


def store_blocks(folder: Path, blocks: Iterable[Pixels], size: int, labels: Labels) -> None:
    """Write colour images from blocks of any length and any image size, as many as there are labels.

    A block is scaled and written in small chunks, so a view into a large file or array is never copied whole.
    """
    written = 0
    shape = (len(labels), size, size, 3)
    with RowWriter(folder / "images.npy", shape) as writer, Progress("storing images", len(labels)) as progress:
        for block in blocks:
            for start in range(0, len(block), CHUNK):
                chunk = np.ascontiguousarray(block[start : start + CHUNK])
                writer.write(written, scale_arrays(chunk, size))
                written += len(chunk)
                progress.advance(len(chunk))
    if written != len(labels):
        raise ValueError(f"{written} images for {len(labels)} labels")
    save_array(folder / "labels.npy", labels)


def store_encoded(
    folder: Path,
    items: Iterable[tuple[int, Encoded]],
    total: int,
    size: int,
    channels: int | None,
    required_name: Callable[[int], str | None],
    fit: Resize = CENTER_CROP,
) -> dict[str, Any]:
    """Decode rows 0..total-1 into ``images.npy``, their row numbers into ``rows.npy``, and their issues
    (:mod:`unissl.data.images.issues`) into ``issues.npy``.

    An unreadable row is skipped and listed with the reason under "skipped" of the returned meta. It is an error if
    ``required_name`` returns a name for it (a labelled image) instead of None. With ``channels`` None the images have
    one channel if all of them are grey, and three otherwise. Rows that a killed process has decoded are not decoded
    again.
    """
    skipped: list[tuple[int, str]] = []
    depth = channels or 3
    with ResumableRows(folder, (total, size, size, depth)) as decoded:
        remaining = ((row, source) for row, source in items if not decoded.marks[row])
        with Progress("decoding images", total, done=int(np.count_nonzero(decoded.marks))) as progress:
            for row, result in decode_stream(remaining, size, depth, fit):
                if isinstance(result, Unreadable):
                    if (name := required_name(row)) is not None:
                        raise UserError(unreadable_message(name, str(result)))
                    skipped.append((row, str(result)))
                else:
                    decoded.write(row, result)
                progress.advance()
    rows = np.flatnonzero(decoded.marks)
    if not len(rows):
        raise UserError(f"None of the {total} images can be read (the first: {skipped[0][1]}); check the data folder.")
    grey = channels is None and not (decoded.kinds == COLOUR).any()
    _compact(decoded, rows, 1 if grey else depth)
    save_array(folder / "rows.npy", rows)
    save_array(folder / "issues.npy", decoded.issues[rows])
    mean, std = channel_mean_std(np.load(folder / "images.npy", mmap_mode="r"))
    return {"mean": mean, "std": std, "skipped": sorted(skipped)}


def stored_table(entry: Entry, class_names: tuple[str, ...]) -> ImageTable:
    """The images and labels of a cache entry."""
    labels = np.asarray(entry.arrays["labels"])
    return ImageTable(entry.arrays["images"], labels, class_names, content=entry.hashes["images"])


def unreadable_message(name: str, reason: str) -> str:
    return f"The labelled image {name} cannot be read ({reason}); replace it or remove it together with its label."


def _compact(decoded: ResumableRows, rows: Rows, depth: int) -> None:
    """Drop the rows that could not be read, and two channels if all images are grey."""
    if len(rows) == decoded.shape[0] and depth == decoded.shape[-1]:
        decoded.pixels.rename(decoded.finished)
        return
    images = np.load(decoded.pixels, mmap_mode="r")
    decoded.finished.unlink(missing_ok=True)
    with RowWriter(decoded.finished, (len(rows), *images.shape[1:3], depth)) as writer:
        for start in range(0, len(rows), CHUNK):
            writer.write(start, images[rows[start : start + CHUNK]][..., :depth])
