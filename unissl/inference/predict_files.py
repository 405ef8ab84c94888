"""Predictions for any number of images: a chunk at a time, in order, while the next chunk is decoded.

Chunks start at fixed positions, whatever was predicted before. So a restart puts the same images through the network
together, and the last bits of the predictions equal those of an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from unissl.inference.image_source import DecodedChunk, ImageSource
from unissl.inference.prediction_table import NOT_READ, RECORD, Records, to_records
from unissl.utils.allocator import keep_freed_memory
from unissl.utils.daemon_pool import DaemonPool

if TYPE_CHECKING:
    from unissl.inference.model import Model

CHUNK = 256
"""Images that are decoded and predicted together: memory holds two chunks, and a kill costs at most one."""


def decode_chunks(
    source: ImageSource, shape: tuple[int, int, int], done: int = 0
) -> Iterator[tuple[int, int, DecodedChunk]]:
    """First position, number of images and decoded images of each chunk after the first ``done`` images."""
    if done % CHUNK and done != len(source):
        raise ValueError("predictions resume at the start of a chunk")
    with keep_freed_memory(), DaemonPool(1) as background:
        ahead = background.submit(source.decode, done, done + CHUNK, shape)
        for start in range(done, len(source), CHUNK):
            chunk, after = ahead.result(), start + CHUNK
            ahead = background.submit(source.decode, after, after + CHUNK, shape)
            yield start, min(CHUNK, len(source) - start), chunk


def predict_chunks(
    model: Model, source: ImageSource, done: int = 0, batch_size: int | None = None
) -> Iterator[tuple[Records, dict[int, str]]]:
    """Records of the images after the first ``done``, chunk by chunk; with the reasons, by position in the chunk, why
    images could not be read."""
    for _, count, chunk in decode_chunks(source, model.manifest.image_shape, done):
        yield predict_chunk(model, chunk, count, batch_size), chunk.reasons


def predict_chunk(model: Model, chunk: DecodedChunk, count: int, batch_size: int | None = None) -> Records:
    """Records of the ``count`` images of a chunk."""
    records = np.zeros(count, dtype=RECORD)
    records["state"] = NOT_READ
    if chunk.positions:
        predictions = model.predict_pixels(chunk.pixels, batch_size)
        records[chunk.positions] = to_records(predictions, model.manifest.review_thresholds)
    return records
