"""Are reported duplicates duplicates, and are real ones found? The table about copies in docs/results.md.

    python benchmarks/copies.py --root data caltech101/images.parquet weather/images.parquet --out sheets

Of each collection, a file in the layout of Hugging Face, the first ``--images`` of a fixed permutation are taken, and
changed copies of some are planted among them: rescaled, recompressed, cropped by 5 %. Recall is printed by kind of
change. Pairs that are reported and were not planted are drawn on contact sheets, to be judged by eye: most collections
have true duplicates. Images are decoded to 160 pixels, as for ``unissl train``.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from photo_folder import Collection
from PIL import Image, ImageDraw

from unissl.data.images.decode import decode
from unissl.data.images.duplicates import find_duplicates
from unissl.types import ImageTable

SIZE, QUALITY = 160, 90
COLUMNS, ROWS, SIDE, GAP = 6, 10, 110, 14
"""Layout of a contact sheet."""

Pixels = npt.NDArray[np.uint8]
Pair = tuple[int, int]


def scaled(image: Image.Image, factor: float) -> Image.Image:
    width, height = (max(8, round(side * factor)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def cropped(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
    width, height = image.size
    return image.crop(
        (round(left * width), round(top * height), round((1 - right) * width), round((1 - bottom) * height))
    )


def encoded(image: Image.Image, quality: int = QUALITY) -> bytes:
    memory = io.BytesIO()
    image.save(memory, "JPEG", quality=quality)
    return memory.getvalue()


CHANGES: dict[str, Callable[[Image.Image], bytes]] = {
    "half the size": lambda image: encoded(scaled(image, 0.5)),
    "1.5 times the size": lambda image: encoded(scaled(image, 1.5)),
    "JPEG quality 30": lambda image: encoded(image, 30),
    "JPEG quality 10": lambda image: encoded(image, 10),
    "5 % cropped, half at each edge": lambda image: encoded(cropped(image, 0.025, 0.025, 0.025, 0.025)),
    "5 % cropped at each edge": lambda image: encoded(cropped(image, 0.05, 0.05, 0.05, 0.05)),
    "5 % cropped at one edge": lambda image: encoded(cropped(image, 0.05, 0, 0, 0)),
    "5 % cropped at a corner": lambda image: encoded(cropped(image, 0.05, 0.05, 0, 0)),
    "cropped, half the size, quality 40": lambda image: encoded(
        scaled(cropped(image, 0.025, 0.025, 0.025, 0.025), 0.5), 40
    ),
}


def plant(originals: Sequence[bytes], per_change: int) -> tuple[list[bytes], list[str]]:
    """Copies of the first images in turn, and how each was changed."""
    kinds = list(CHANGES) * per_change
    images = (Image.open(io.BytesIO(image)).convert("RGB") for image in originals)
    return [CHANGES[kind](image) for kind, image in zip(kinds, images, strict=False)], kinds


def reported_pairs(images: Pixels) -> tuple[list[Pair], dict[int, int]]:
    """The first image of each reported group with each other one, and the group of each image."""
    table = ImageTable(images, np.full(len(images), -1, dtype=np.int64), ("a", "b"))
    groups = [[copy.row for copy in group.copies] for group in find_duplicates(table)]
    pairs = [(rows[0], other) for rows in groups for other in rows[1:]]
    return pairs, {row: number for number, rows in enumerate(groups) for row in rows}


def draw_sheets(images: Pixels, pairs: Sequence[Pair], stem: Path) -> None:
    per_sheet = COLUMNS * ROWS
    for number, start in enumerate(range(0, len(pairs), per_sheet)):
        chunk = pairs[start : start + per_sheet]
        sheet = Image.new("RGB", (COLUMNS * (2 * SIDE + GAP), -(-len(chunk) // COLUMNS) * (SIDE + GAP)), "white")
        draw = ImageDraw.Draw(sheet)
        for position, pair in enumerate(chunk):
            x, y = position % COLUMNS * (2 * SIDE + GAP), position // COLUMNS * (SIDE + GAP)
            draw.text((x, y), str(start + position), fill="black")
            for place, row in enumerate(pair):
                sheet.paste(Image.fromarray(images[row]).resize((SIDE, SIDE)), (x + place * (SIDE + 1), y + GAP - 2))
        sheet.save(f"{stem}-{number}.png")


def measure(path: Path, name: str, options: argparse.Namespace) -> None:
    collection = Collection.read(path, None)
    order = np.random.default_rng(0).permutation(len(collection.encoded))[: options.images]
    originals = [collection.encoded[row] for row in order]
    copies, kinds = plant(originals, options.planted)
    images = np.stack([decode(image, SIZE, 3) for image in [*originals, *copies]])
    started = time.perf_counter()
    pairs, group = reported_pairs(images)
    seconds = time.perf_counter() - started
    planted = Counter(kinds[: len(copies)])
    found = Counter(
        kind
        for row, kind in enumerate(kinds[: len(copies)])
        if group.get(row, -1) == group.get(len(originals) + row, -2)
    )
    unplanted = [pair for pair in pairs if max(pair) < len(originals)]
    print(f"{name}: {len(originals)} images and {len(copies)} copies, {seconds:.1f} s")
    for kind, count in planted.items():
        print(f"  {kind}: {found[kind]} of {count} found")
    print(f"  all changes: {found.total()} of {planted.total()} ({100 * found.total() / planted.total():.1f} %) found")
    print(f"  {len(unplanted)} other pairs reported", flush=True)
    draw_sheets(images, unplanted, options.out / name.replace("/", "-").removesuffix(".parquet"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="parquet files, relative to --root")
    parser.add_argument("--root", type=Path, default=os.environ.get("UNISSL_DATA"), help="by default $UNISSL_DATA")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--planted", type=int, default=30, help="copies of each kind")
    parser.add_argument("--out", type=Path, required=True, help="folder for the contact sheets")
    options = parser.parse_args()
    if options.root is None:
        raise SystemExit("Give the folder of the collections with --root, or set $UNISSL_DATA.")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.files:
        if (options.root / name).exists():
            measure(options.root / name, name, options)
        else:
            print(f"{name}: not in {options.root}, skipped")


if __name__ == "__main__":
    main()
