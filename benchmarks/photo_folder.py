"""Photos written out as a folder, and the one command on them: the tables about folders in docs/results.md.

    python benchmarks/photo_folder.py caltech101/images.parquet --splits 0-2 --outside BACKGROUND_Google
    python benchmarks/photo_folder.py caltech101/images.parquet --splits 0 --outside BACKGROUND_Google --with-outside
    python benchmarks/photo_folder.py cifar10/train.parquet --splits 0-2 --pool 12000 --minutes 15 --tested
    python benchmarks/photo_folder.py /usr/share/openclipart/png --splits 0-2 --least 30 --without unsorted special

The file has labels for all of its images, in the layout of Hugging Face; or it is a folder, whose folders are the
classes, nested or not. A split is a permutation by numpy's
``default_rng(split)``: its first 2,000 images are for testing, and of the rest the first four of each class are
labelled. ``unissl train`` is given photos and labels.csv, with --tested the test images as well, and an empty cache.
Beside it stands logistic regression on the frozen vectors of the same middle squares, for the same labels.

Nothing else should run meanwhile: settings follow the speed of the machine, and the seconds are part of the table.
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
    """Encoded images, their classes, and which class, if any, is none of those that are asked for."""

    encoded: list[bytes]
    labels: Rows
    names: list[str]
    outside: int | None

    @classmethod
    def from_folders(cls, root: Path, least: int, without: list[str]) -> Collection:
        """Folders with at least so many images of their own; links and what is too large to be read are left out."""
        from unissl.data.folder.index import find_images
        from unissl.data.images.decode import Unreadable, image_size

        classes: dict[str, list[bytes]] = {}
        for file in find_images(root).files:
            place = file.rpartition("/")[0]
            if place and place.split("/")[0] not in without and not (root / file).is_symlink():
                with suppress(Unreadable):
                    image_size(str(root / file))
                    classes.setdefault(place.replace("/", "_"), []).append((root / file).read_bytes())
        classes = {name: images for name, images in sorted(classes.items()) if len(images) >= least}
        labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
        return cls([image for images in classes.values() for image in images], labels, list(classes), None)

    @classmethod
    def read(cls, path: Path, outside: str | None) -> Collection:
        import pyarrow.parquet as pq

        from unissl.data.sources.parquet import IMAGE_COLUMNS

        table = pq.read_table(path)
        column = next(name for name in IMAGE_COLUMNS if name in table.column_names)
        names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
        encoded = [image["bytes"] for image in table.column(column).to_pylist()]
        return cls(encoded, table.column("label").to_numpy(), names, None if outside is None else names.index(outside))


@dataclass(frozen=True)
class Draw:
    """Rows of a collection: labelled, unlabelled, for testing."""

    labelled: Rows
    pool: Rows
    test: Rows


def draw(collection: Collection, split: int, pool: int | None, with_outside: bool) -> Draw:
    asked = np.flatnonzero(collection.labels != collection.outside)
    order = asked[np.random.default_rng(split).permutation(len(asked))]
    test, rest = order[:TEST], order[TEST:]
    labels = collection.labels[rest]
    labelled = np.concatenate([rest[labels == label][:LABELS] for label in np.unique(labels)])
    unlabelled = rest[~np.isin(rest, labelled)][:pool]
    outside = np.flatnonzero(collection.labels == collection.outside)
    return Draw(labelled, np.concatenate([unlabelled, outside]) if with_outside else unlabelled, test)


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
        place = folder / "test" / collection.names[collection.labels[row]]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{row:05}.jpg").write_bytes(collection.encoded[row])


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "unissl", *words], check=True)


def scores(answers: list[str], truth: list[str]) -> tuple[float, float]:
    """Accuracy and balanced accuracy in per cent."""
    right = np.array(answers) == np.array(truth)
    of_class = np.array(truth)
    return 100 * right.mean(), 100 * float(np.mean([right[of_class == name].mean() for name in np.unique(of_class)]))


def judged(run: Path, test: Path, out: Path) -> tuple[float, float]:
    """What ``unissl predict`` says about the test images."""
    command("predict", str(run), str(test), "--out", str(out))
    with out.open(newline="") as file:
        said = list(csv.DictReader(file))
    if len(said) < TEST:
        raise SystemExit(f"{out} has {len(said)} answers in place of {TEST}.")
    return scores([row["class"] for row in said], [Path(row["file"]).parent.name for row in said])


def on_vectors(run: Path, test: Path) -> tuple[tuple[float, float], list[str]]:
    """Logistic regression on the frozen vectors as training has them, and the files that the report calls strange."""
    import torch
    from sklearn.linear_model import LogisticRegression

    from unissl.config import read_toml
    from unissl.data import load_test
    from unissl.features.extract import FeatureScaler, extract_features
    from unissl.report.samples import find_outliers
    from unissl.run.config import build_config
    from unissl.run_folder import RunFolder
    from unissl.splits.file import read_split
    from unissl.splits.open_set import load_data

    config, cpu = build_config(read_toml(RunFolder(run).config)), torch.device("cpu")
    table = load_data(config.data, config.split).train
    split = read_split(RunFolder(run).split, len(table))
    maps = config.distil.keeps_maps(len(table))
    vectors = extract_features(
        table.images, config.net.name, config.augment, config.augment.cached_views, cpu, maps=maps
    ).vectors
    scaling = FeatureScaler.of(vectors)
    side, channels = table.images.shape[2:]
    tested = load_test(test, table.class_names, side, channels)
    asked = extract_features(tested.images, config.net.name, config.augment, 0, cpu).vectors
    known, unknown = (scaling(torch.from_numpy(np.array(v))).numpy() for v in (vectors[split.labelled, 0], asked[:, 0]))
    answers = LogisticRegression(max_iter=1000).fit(known, split.labels).predict(unknown)
    names = np.array(table.class_names)
    found = find_outliers(vectors, scaling, split)
    assert table.files is not None
    strange = [] if found is None else [table.files[row] for row in split.unlabelled[found.flagged]]
    return scores(list(names[answers]), list(names[tested.labels])), strange


def one_split(collection: Collection, split: int, folder: Path, said: argparse.Namespace) -> dict[str, Any]:
    drawn = draw(collection, split, said.pool, said.with_outside)
    write(collection, drawn, folder)
    run, test = folder / "run", folder / "test"
    words = ["--images", str(folder / "photos"), "--labels", str(folder / "labels.csv"), "--out", str(run)]
    words += ["--minutes", str(said.minutes)] if said.minutes else []
    words += ["--test", str(test)] if said.tested else []
    os.environ["UNISSL_CACHE"] = str(folder / "cache")
    start = time.perf_counter()
    command("train", *words)
    seconds = time.perf_counter() - start
    regression, strange = on_vectors(run, test)
    found = {
        "unissl": judged(run, test, folder / "unissl.csv"),
        "labels-only": judged(run / "labels-only", test, folder / "labels-only.csv"),
        "logistic regression": regression,
    }
    outside = {f"{row:05}.jpg" for row in drawn.pool if collection.labels[row] == collection.outside}
    shown = len(outside.intersection(strange))
    print(f"split {split}: {seconds:.0f} s; perhaps none of the classes: {len(strange)} of {len(drawn.pool)}", end="")
    print(f", among them {shown} of {len(outside)} that are" if outside else "", flush=True)
    return found | {"seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--splits", default="0-2", help="0-2 or 5,8")
    parser.add_argument("--least", type=int, default=LABELS + 1, help="of a folder: images that a class must have")
    parser.add_argument("--without", nargs="*", default=[], help="of a folder: subfolders that are left out")
    parser.add_argument("--outside", help="class that is none of those asked for")
    parser.add_argument("--with-outside", action="store_true", help="put the images of that class into the pool")
    parser.add_argument("--pool", type=int, help="most unlabelled images")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--tested", action="store_true", help="give the test images to the command")
    parser.add_argument("--folder", type=Path, default=Path("runs/photo-folder"), help="where to write")
    said = parser.parse_args()
    if said.file.is_dir():
        collection = Collection.from_folders(said.file, said.least, said.without)
        print(f"{len(collection.encoded):,} images of {len(collection.names)} classes", flush=True)
    else:
        collection = Collection.read(said.file, said.outside)
    found = {split: one_split(collection, split, said.folder / f"split{split}", said) for split in seeds(said.splits)}
    columns = ["unissl", "labels-only", "logistic regression"]
    print("accuracy (balanced accuracy)")
    print("| split | " + " | ".join(columns) + " | seconds |\n" + "|---" * (len(columns) + 2) + "|")
    for split, row in found.items():
        print(f"| {split} | " + " | ".join("{:.2f} ({:.2f})".format(*row[name]) for name in columns), end="")
        print(f" | {row['seconds']:.0f} |")
    means = [np.mean([row[name] for row in found.values()], 0) for name in columns]
    print("| mean | " + " | ".join("{:.2f} ({:.2f})".format(*mean) for mean in means) + " | |")


if __name__ == "__main__":
    main()
