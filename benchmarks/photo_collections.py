"""`unissl train` on collections of images, beside the simple baselines: the table about collections in docs/results.md.

    python benchmarks/photo_collections.py --root DATA --splits 0-2 --out runs/long/collections
    python benchmarks/photo_collections.py --root DATA --collections weather --labels 4 --splits 5-9 --out runs/tuning

Every cell (collection, labels per class, class distribution of the pool, split) is one run of the command with its
defaults on a folder of image files. A finished cell is a file in --out and is not repeated, so the same command
resumes. Cells of a collection share a cache (--out/cache/COLLECTION), since they share photos. Collections that are
absent are named and skipped. "Best baseline" is chosen on the test images of each cell, which favours the baselines.
(A file called collections.py would hide Python's own module from every script here.)
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from compare import seeds
from photo_folder import Collection, Draw, command, write
from PIL import Image

MAX_TEST, MAX_POOL = 2000, 6000
GAMMA = 100.0
DISTRIBUTIONS = ("natural", "arbitrary")
SCORES = ("accuracy", "balanced_accuracy")
KEPT_ENTRIES = 4
MAX_IMAGES = 10_000
"""Images of a collection, so that its splits share most of their photos."""


def png(image: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(name: str, ood_class: str | None = None) -> Callable[[Path], Collection]:
    """The first ``MAX_IMAGES`` images of a file."""

    def read(root: Path) -> Collection:
        whole = Collection.read(root / name, ood_class)
        return replace(whole, encoded=whole.encoded[:MAX_IMAGES], labels=whole.labels[:MAX_IMAGES])

    return read


def fashion_mnist(root: Path) -> Collection:
    """10,000 of the training images, from the official files in root/fashion-mnist."""
    folder = root / "fashion-mnist"
    pixels, labels = (
        np.frombuffer(gzip.decompress((folder / f"train-{part}.gz").read_bytes()), np.uint8)
        for part in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    images = pixels[16:].reshape(-1, 28, 28)[:MAX_IMAGES]
    return Collection(
        [png(image) for image in images], labels[8:][:MAX_IMAGES].astype(np.int64), list("0123456789"), None
    )


def digits(root: Path) -> Collection:
    """Needs no files."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (bunch.images * (255 / 16)).astype(np.uint8)
    return Collection([png(image) for image in images], bunch.target.astype(np.int64), list("0123456789"), None)


def clip_art(root: Path) -> Collection:
    return Collection.from_folders(root / "openclipart" / "png", 30, ["unsorted", "special"])


COLLECTIONS: dict[str, Callable[[Path], Collection]] = {
    "caltech101": parquet("caltech101/images.parquet", "BACKGROUND_Google"),
    "cifar10": parquet("cifar10/train.parquet"),
    "weather": parquet("weather/images.parquet"),
    "mask": parquet("mask/images.parquet"),
    "fashion-mnist": fashion_mnist,
    "clip-art": clip_art,
    "digits": digits,
}


def draw(collection: Collection, split: int, labels_per_class: int, distribution: str) -> Draw:
    """At most ``MAX_TEST`` test images, at most a third; ``labels_per_class`` labels; at most ``MAX_POOL`` others."""
    from unissl.splits import class_counts

    known = np.flatnonzero(collection.labels != collection.ood_class)
    order = known[np.random.default_rng(split).permutation(len(known))]
    count = min(MAX_TEST, len(order) // 3)
    test, rest = order[:count], order[count:]
    of_class = {label: rest[collection.labels[rest] == label] for label in np.unique(collection.labels[known])}
    labelled = np.concatenate([rows[:labels_per_class] for rows in of_class.values()])
    left = [rows[labels_per_class:] for rows in of_class.values()]
    if distribution == "arbitrary":
        counts = class_counts("arbitrary", len(left), max(map(len, left)), GAMMA, seed=split)
        left = [rows[:most] for rows, most in zip(left, counts, strict=True)]
    pool = np.random.default_rng(split).permutation(np.concatenate(left))[:MAX_POOL]
    return Draw(labelled, pool, test)


def one_cell(collection: Collection, cell: tuple[int, str, int], folder: Path, options: list[str]) -> dict[str, Any]:
    """The result of one run. Its images are deleted; the features of photos stay in the cache for other cells."""
    labels_per_class, distribution, split = cell
    shutil.rmtree(folder, ignore_errors=True)
    write(collection, draw(collection, split, labels_per_class, distribution), folder)
    words = ["--images", folder / "photos", "--labels", folder / "labels.csv", "--test", folder / "test"]
    command("train", *map(str, words), "--out", str(folder / "run"), "--quiet", "--no-report", *options)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    labels_only = json.loads((folder / "run" / "baseline" / "summary.json").read_text())
    result = {
        "unissl": [summary["accuracy"]["last"], summary["balanced_accuracy"]],
        "labels-only": [labels_only["accuracy"]["last"], labels_only["balanced_accuracy"]],
        **{name: [row[score] for score in SCORES] for name, row in summary["baselines"].items()},
    }
    estimate = summary.get("cross_validation")
    rest = {
        "shipped": summary["shipped"]["classifier"],
        "seconds": summary["seconds"],
        "cross_validation": estimate,
        "distillation": summary.get("distillation"),
    }
    shutil.rmtree(folder)
    return {"scores": result, **rest}


def prune(cache: Path) -> None:
    """Keep the newest entries of each kind: another cell finds most of its photos in them."""
    for kind in ("features", "crops", "folder"):
        entries = sorted(cache.glob(f"{kind}-*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for manifest in entries[KEPT_ENTRIES:]:
            shutil.rmtree(manifest.parent)


def table(results: dict[tuple[str, int, str], list[dict[str, Any]]]) -> str:
    """Means over the splits, in per cent, accuracy (balanced accuracy)."""
    lines = ["| collection | labels per class | pool | unissl | best baseline | gain | splits |", "|---" * 7 + "|"]
    for (name, labels, distribution), cells in results.items():
        means = {key: 100 * np.mean([cell["scores"][key] for cell in cells], 0) for key in cells[0]["scores"]}
        ours = means.pop("unissl")
        best = max(means, key=lambda key: float(means[key][0]))
        gain = ours - [max(float(mean[score]) for mean in means.values()) for score in (0, 1)]
        lines.append(
            f"| {name} | {labels} | {distribution} | {ours[0]:.1f} ({ours[1]:.1f}) | {best} {means[best][0]:.1f} "
            f"({means[best][1]:.1f}) | {gain[0]:+.1f} ({gain[1]:+.1f}) | {len(cells)} |"
        )
    return "\n".join(lines)


def estimates(cells: list[dict[str, Any]]) -> str:
    """How often the 95 % interval of the cross-validated accuracy holds the test accuracy."""
    known = [(cell["cross_validation"], cell["scores"]["unissl"][0]) for cell in cells if cell["cross_validation"]]
    if not known:
        return "no cross-validated accuracies"
    covered = np.mean([cv["low"] <= truth <= cv["high"] for cv, truth in known])
    error = np.mean([cv["accuracy"] - truth for cv, truth in known])
    return (
        f"{len(known)} runs: interval covers the test accuracy in {covered:.0%}, mean error {100 * error:+.1f} points"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of the collections; by default $UNISSL_DATA")
    parser.add_argument("--collections", default=",".join(COLLECTIONS))
    parser.add_argument("--labels", default="4,1,16", help="labels per class")
    parser.add_argument("--distributions", default=",".join(DISTRIBUTIONS))
    parser.add_argument("--splits", default="0-2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--option", nargs="*", default=[], help="further words for unissl train")
    options = parser.parse_args()
    root = options.root or Path(os.environ.get("UNISSL_DATA", "."))
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    labels = [int(count) for count in options.labels.split(",")]
    for count, name in itertools.product(labels, options.collections.split(",")):
        try:
            collection = COLLECTIONS[name](root)
        except (OSError, ValueError) as error:
            print(f"{name} is skipped: {error}")
            continue
        os.environ["UNISSL_CACHE"] = str(options.out / "cache" / name)
        for split, distribution in itertools.product(seeds(options.splits), options.distributions.split(",")):
            done = options.out / f"{name}-{count}-{distribution}-{split}.json"
            if not done.exists():
                work = options.out / f"work-{os.getpid()}"
                cell = one_cell(collection, (count, distribution, split), work, options.option)
                done.write_text(json.dumps(cell, indent=1))
                prune(options.out / "cache" / name)
            results.setdefault((name, count, distribution), []).append(json.loads(done.read_text()))
            print(f"{done.stem}: {results[name, count, distribution][-1]['scores']['unissl']}", flush=True)
    print(table(results))
    for count in labels:
        cells = [cell for (_, number, _), row in results.items() if number == count for cell in row]
        print(f"{count} labels per class: {estimates(cells)}")


if __name__ == "__main__":
    main()
