"""Predictions for any number of image files: a chunk at a time, in their order, while the next chunk is being decoded.

A chunk is the files from one fixed position to the next, whatever has been done before. So a restart puts the same
images through the network together, and the last bits of the answers are those of an unbroken run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from unissl.data.images.decode import Unreadable, decode_stream
from unissl.inference.model import Model

CHUNK = 256
"""Files that are decoded and predicted together: what memory holds, twice, and what a kill can cost."""
READ, NOT_READ = 1, 2
"""States of a record; 0 is none, so that an empty block of a disk is not taken for records."""
RECORD = np.dtype(
    [
        ("state", "u1"),
        ("review", "u1"),
        ("class", "<i4"),
        ("confidence", "<f4"),
        ("margin", "<f4"),
        ("outlier_score", "<f4"),
    ]
)
"""What is known about one file; ``review`` is an index into :data:`unissl.inference.review.REASONS`."""

Records = npt.NDArray[np.void]
Decoded = tuple[npt.NDArray[np.uint8], list[int], dict[int, str]]
"""Images that could be read, their positions in the chunk, and by position the reasons why others could not."""


def predict_chunks(model: Model, files: Sequence[str], done: int = 0) -> Iterator[tuple[Records, dict[int, str]]]:
    """Records of the files after the first ``done``, which are whole chunks; with the reasons, by position in the
    chunk, why files could not be read."""
    if done % CHUNK and done != len(files):
        raise ValueError("a stream goes on at the start of a chunk")
    starts = range(done, len(files), CHUNK)
    with ThreadPoolExecutor(1) as background:
        ahead = background.submit(_decode, files[done : done + CHUNK], model)
        for start in starts:
            decoded = ahead.result()
            after = start + CHUNK
            ahead = background.submit(_decode, files[after : after + CHUNK], model)
            yield _records(model, decoded, min(CHUNK, len(files) - start)), decoded[2]


def _decode(files: Sequence[str], model: Model) -> Decoded:
    size = model.size[0]
    images = np.empty((len(files), size, size, model.channels), dtype=np.uint8)
    kept: list[int] = []
    reasons: dict[int, str] = {}
    for position, result in decode_stream(enumerate(files), size, model.channels):
        if isinstance(result, Unreadable):
            reasons[position] = str(result)
        else:
            images[len(kept)] = result.pixels
            kept.append(position)
    return images[: len(kept)], kept, reasons


def _records(model: Model, decoded: Decoded, count: int) -> Records:
    images, kept, _ = decoded
    records = np.zeros(count, dtype=RECORD)
    records["state"] = NOT_READ
    if kept:
        said = model.predict(images)
        records["state"][kept] = READ
        records["review"][kept] = model.doubt.reasons(said)
        records["class"][kept] = said.classes
        records["confidence"][kept] = said.confidence
        records["margin"][kept] = said.margin
        records["outlier_score"][kept] = said.outlier
    return records
