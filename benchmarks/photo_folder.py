"""`unissl train` on photos written out as a folder: the tables about folders in docs/results.md.

    python benchmarks/photo_folder.py caltech101/images.parquet --splits 0-2 --ood-class BACKGROUND_Google
    python benchmarks/photo_folder.py caltech101/images.parquet --splits 0 --ood-class BACKGROUND_Google --with-ood
    python benchmarks/photo_folder.py cifar10/train.parquet --splits 0-2 --pool 12000 --minutes 15 --tested
    python benchmarks/photo_folder.py /usr/share/openclipart/png --splits 0-2 --min-images 30 --without unsorted special

The file has labels for all of its images, in the layout of Hugging Face; or it is a folder whose subfolders are the
classes, nested or not. A split is a permutation by numpy's ``default_rng(split)``: its first 2,000 images are for
testing, and of the rest the first four of each class are labelled. ``unissl train`` gets photos/ and labels.csv, with
--tested the test images as well, and an empty cache. The comparison is logistic regression on the frozen features of
the same centre crops with the same labels.

Nothing else should run meanwhile: settings depend on the speed of the machine, and the seconds are part of the table.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from compare import seeds

TEST, LABELS = 2000, 4

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Collection:
    """Encoded images, their classes, and the class, if any, that is out of distribution."""

    encoded: list[bytes]
    labels: Rows
    names: list[str]
    ood_class: int | None

    @classmethod
    def from_folders(cls, root: Path, min_images: int, without: list[str]) -> Collection:
        """Folders with at least ``min_images`` images; links and unreadable images are skipped."""
        from unissl.data.folder.index import find_images
        from unissl.data.images.decode import Unreadable, image_size

        classes: dict[str, list[bytes]] = {}
        for file in find_images(root).files:
            parent = file.rpartition("/")[0]
            if parent and parent.split("/")[0] not in without and not (root / file).is_symlink():
                with suppress(Unreadable):
                    image_size(str(root / file))
                    classes.setdefault(parent.replace("/", "_"), []).append((root / file).read_bytes())
        classes = {name: images for name, images in sorted(classes.items()) if len(images) >= min_images}
        labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
        return cls([image for images in classes.values() for image in images], labels, list(classes), None)

    @classmethod
    def read(cls, path: Path, ood_class: str | None) -> Collection:
        import pyarrow.parquet as pq

        from unissl.data.sources.parquet import IMAGE_COLUMNS

        table = pq.read_table(path)
        column = next(name for name in IMAGE_COLUMNS if name in table.column_names)
        names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
        encoded = [image["bytes"] for image in table.column(column).to_pylist()]
        ood = None if ood_class is None else names.index(ood_class)
        return cls(encoded, table.column("label").to_numpy(), names, ood)


@dataclass(frozen=True)
class Draw:
    """Rows of a collection: labelled, unlabelled, for testing."""

    labelled: Rows
    pool: Rows
    test: Rows


def draw(collection: Collection, split: int, pool: int | None, with_ood: bool) -> Draw:
    known = np.flatnonzero(collection.labels != collection.ood_class)
    order = known[np.random.default_rng(split).permutation(len(known))]
    test, rest = order[:TEST], order[TEST:]
    labels = collection.labels[rest]
    labelled = np.concatenate([rest[labels == label][:LABELS] for label in np.unique(labels)])
    unlabelled = rest[~np.isin(rest, labelled)][:pool]
    ood = np.flatnonzero(collection.labels == collection.ood_class)
    return Draw(labelled, np.concatenate([unlabelled, ood]) if with_ood else unlabelled, test)


def write(collection: Collection, drawn: Draw, folder: Path) -> None:
    """photos/ without any order, labels.csv, and test/ with a subfolder per class."""
    photos = folder / "photos"
    photos.mkdir(parents=True)
    for row in np.concatenate([drawn.labelled, drawn.pool]):
        (photos / f"{row:05}.jpg").write_bytes(collection.encoded[row])
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "label"])
        writer.writerows([f"{row:05}.jpg", collection.names[collection.labels[row]]] for row in drawn.labelled)
    for row in drawn.test:
        subfolder = folder / "test" / collection.names[collection.labels[row]]
        subfolder.mkdir(parents=True, exist_ok=True)
        (subfolder / f"{row:05}.jpg").write_bytes(collection.encoded[row])


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "unissl", *words], check=True)


def scores(predicted: list[str], truth: list[str]) -> tuple[float, float]:
    """Accuracy and balanced accuracy in per cent."""
    right = np.array(predicted) == np.array(truth)
    of_class = np.array(truth)
    return 100 * right.mean(), 100 * float(np.mean([right[of_class == name].mean() for name in np.unique(of_class)]))


def predicted_scores(run: Path, test: Path, out: Path) -> tuple[float, float]:
    """Scores of ``unissl predict`` on the test images."""
    command("predict", str(run), str(test), "--out", str(out))
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if len(rows) < TEST:
        raise SystemExit(f"{out} has {len(rows)} predictions instead of {TEST}.")
    return scores([row["class"] for row in rows], [Path(row["file"]).parent.name for row in rows])


def on_features(run: Path, test: Path) -> tuple[tuple[float, float], list[str]]:
    """Logistic regression on the frozen features of the run, and the files that the report flags as outliers."""
    import torch
    from sklearn.linear_model import LogisticRegression

    from unissl.config import read_toml
    from unissl.data import load_test
    from unissl.features import FeatureScaler, extract_features
    from unissl.report.samples import find_outliers
    from unissl.run.config import build_config
    from unissl.run.inputs import without_copies
    from unissl.run_folder import RunFolder
    from unissl.splits.file import read_split
    from unissl.splits.open_set import load_data

    config, cpu = build_config(read_toml(RunFolder(run).config)), torch.device("cpu")
    table = load_data(config.data, config.split).train
    split = read_split(RunFolder(run).split, len(table))
    maps = config.distil.keeps_maps
    features = extract_features(table.images, config.net.name, config.augment, cpu, maps=maps).features
    scaler = FeatureScaler.of(features)
    side, channels = table.images.shape[2:]
    tested = load_test(test, table.class_names, side, channels)
    test_features = extract_features(tested, config.net.name, without_copies(config.augment), cpu).features
    rows = (features[split.labelled, 0], test_features[:, 0])
    x, x_test = (scaler(torch.from_numpy(np.array(part))).numpy() for part in rows)
    predicted = LogisticRegression(max_iter=1000).fit(x, split.labels).predict(x_test)
    names = np.array(table.class_names)
    outliers = find_outliers(features, scaler, split)
    assert table.files is not None
    flagged = [] if outliers is None else [table.files[row] for row in split.unlabelled[outliers.flagged]]
    return scores(list(names[predicted]), list(names[tested.labels])), flagged


def one_split(collection: Collection, split: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    drawn = draw(collection, split, options.pool, options.with_ood)
    write(collection, drawn, folder)
    run, test = folder / "run", folder / "test"
    words = ["--images", str(folder / "photos"), "--labels", str(folder / "labels.csv"), "--out", str(run)]
    words += ["--minutes", str(options.minutes)] if options.minutes else []
    words += ["--test", str(test)] if options.tested else []
    os.environ["UNISSL_CACHE"] = str(folder / "cache")
    start = time.perf_counter()
    command("train", *words)
    seconds = time.perf_counter() - start
    regression, flagged = on_features(run, test)
    results = {
        "unissl": predicted_scores(run, test, folder / "unissl.csv"),
        "labels-only": predicted_scores(run / "baseline", test, folder / "labels-only.csv"),
        "logistic regression": regression,
    }
    ood = {f"{row:05}.jpg" for row in drawn.pool if collection.labels[row] == collection.ood_class}
    print(f"split {split}: {seconds:.0f} s; possible outliers: {len(flagged)} of {len(drawn.pool)}", end="")
    print(f", with {len(ood.intersection(flagged))} of the {len(ood)} OOD images" if ood else "", flush=True)
    return results | {"seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--splits", default="0-2", help="0-2 or 5,8")
    parser.add_argument(
        "--min-images", type=int, default=LABELS + 1, help="of a folder: smallest number of images of a class"
    )
    parser.add_argument("--without", nargs="*", default=[], help="of a folder: subfolders that are left out")
    parser.add_argument("--ood-class", help="class that is out of distribution")
    parser.add_argument("--with-ood", action="store_true", help="put the images of that class into the pool")
    parser.add_argument("--pool", type=int, help="largest number of unlabelled images")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--tested", action="store_true", help="pass the test images to the command")
    parser.add_argument("--folder", type=Path, default=Path("runs/photo-folder"), help="where to write")
    options = parser.parse_args()
    if options.file.is_dir():
        collection = Collection.from_folders(options.file, options.min_images, options.without)
        print(f"{len(collection.encoded):,} images of {len(collection.names)} classes", flush=True)
    else:
        collection = Collection.read(options.file, options.ood_class)
    results = {
        split: one_split(collection, split, options.folder / f"split{split}", options)
        for split in seeds(options.splits)
    }
    columns = ["unissl", "labels-only", "logistic regression"]
    print("accuracy (balanced accuracy)")
    print("| split | " + " | ".join(columns) + " | seconds |\n" + "|---" * (len(columns) + 2) + "|")
    for split, row in results.items():
        print(f"| {split} | " + " | ".join("{:.2f} ({:.2f})".format(*row[name]) for name in columns), end="")
        print(f" | {row['seconds']:.0f} |")
    means = [np.mean([row[name] for row in results.values()], 0) for name in columns]
    print("| mean | " + " | ".join("{:.2f} ({:.2f})".format(*mean) for mean in means) + " | |")


if __name__ == "__main__":
    main()
