"""The data sets of the published comparisons through the command, from small files in their own formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from cli_helpers import Refuses, call, picture, succeed

from unissl.config import read_toml, to_tree
from unissl.data import DataConfig, load
from unissl.inference.exporters.base import FromPixels
from unissl.inference.model import load_model
from unissl.run.config import build_config, fit_to_data
from unissl.run_folder import RunFolder

FEW = (
    *("--steps", "2", "--set", "net.name=small", "--set", "train.evaluations=2", "--no-baseline"),
    *("--set", "batch.labelled=4", "--set", "batch.unlabelled=8"),
)


def write_stl10(folder: Path, pool: int = 30) -> Path:
    """Classes differ in brightness."""
    folder.mkdir()
    rng = np.random.default_rng(0)

    def write(name: str, labels: np.ndarray) -> None:
        pixels = rng.integers(0, 40, (len(labels), 3, 96, 96)) + 20 * labels[:, None, None, None]
        (folder / f"{name}_X.bin").write_bytes(pixels.astype(np.uint8).tobytes())
        if name != "unlabeled":
            (folder / f"{name}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())

    write("train", np.arange(50) % 10)
    write("test", np.arange(20) % 10)
    write("unlabeled", np.arange(pool) % 10)
    return folder


def write_food101(root: Path) -> Path:
    classes = ("apple_pie", "waffles")
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "classes.txt").write_text("\n".join(classes))
    for part, numbers in (("train", range(12)), ("test", range(12, 15))):
        names = [f"{name}/{number}" for name in classes for number in numbers]
        (root / "meta" / f"{part}.txt").write_text("\n".join(names))
        for name in names:
            (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            brightness = 150 * name.startswith("waffles")
            picture(brightness, seed=len(name) + 10 * int(name.partition("/")[2]), side=60).save(
                root / "images" / f"{name}.jpg"
            )
    return root


@pytest.fixture(scope="module")
def stl10_run(workshop: Path) -> tuple[Path, str]:
    root, out = write_stl10(workshop / "stl10_binary"), workshop / "stl10-run"
    return out, succeed("train", "--data", "stl10", "--root", root, *FEW, "--report", "--out", out).out


def test_stl10_says_that_its_pool_has_no_truth(stl10_run: tuple[Path, str]) -> None:
    out, _ = stl10_run
    summary = json.loads((out / "summary.json").read_text())
    assert summary["labelled"] == [4] * 10 and summary["test_images"] == 20
    assert summary["pool"]["truth_known"] is False and "accuracy" not in summary["pool"]
    assert summary["pool"]["images"] == 30 and sum(summary["pool"]["predicted"]) == 30
    split = json.loads((out / "split.json").read_text())
    assert sorted(split["unlabelled"]) == list(range(50, 80))
    assert read_toml(out / "config.toml")["augment"]["pad"] == 4
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Their true classes are unknown, so the counts include errors of the model." in page
    assert "Their true classes are known" not in page


def test_stl10_has_no_labels_for_the_supervised_reference(here: Path, refuses: Refuses) -> None:
    write_stl10(here / "stl10_binary")
    call("split", "--data", "stl10", "--root", "stl10_binary")  # fills the cache, with its notes on the size
    words = ("train", "--data", "stl10", "--root", "stl10_binary", "--method", "fully-supervised", "--out", "run", *FEW)
    refuses(*words, says=("stl10 has images without", "--method labels-only"))


def test_the_split_of_stl10_shows_what_is_unknown(here: Path) -> None:
    write_stl10(here / "stl10_binary", pool=7)
    said = succeed("split", "--data", "stl10", "--root", "stl10_binary").out
    assert said.count("?") == 10 and "monkey" in said and "7" in said.splitlines()[-2]


@pytest.fixture(scope="module")
def food_run(workshop: Path) -> tuple[Path, Path]:
    root, out = write_food101(workshop / "food-101"), workshop / "food-run"
    succeed("train", "--data", "food101", "--root", root, *FEW, "--report", "--out", out)
    return root, out


def test_food101_is_learnt_from_cuts_of_larger_images(food_run: tuple[Path, Path]) -> None:
    root, out = food_run
    views = read_toml(out / "config.toml")["augment"]
    assert views["crop"] == 32 and views["pad"] == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["height"], manifest["width"], manifest["crop"]) == (36, 36, 32)
    model = load_model(RunFolder(out))
    test = load(DataConfig(name="food101", root=str(root))).test
    assert test is not None
    said = model.predict_pixels(test.images)
    stored = pq.read_table(out / "test_predictions.parquet").to_pydict()
    assert np.allclose(said.confidence, stored["confidence"], atol=1e-5)
    assert np.allclose(said.probs, model.predict_pixels(test.images[:, 2:34, 2:34]).probs, atol=1e-6)
    assert not np.allclose(said.probs, model.predict_pixels(test.images[:, :32, :32]).probs, atol=1e-6)


def test_a_food101_model_is_used_like_any_other(food_run: tuple[Path, Path], here: Path) -> None:
    root, out = food_run
    summary = json.loads((out / "summary.json").read_text())
    assert f"accuracy {summary['accuracy']['last']:.4f}" in succeed("evaluate", out).out
    succeed("predict", out, root / "images" / "waffles", "--out", here / "said.csv")
    assert len((here / "said.csv").read_text().splitlines()) == 16
    model, images = load_model(RunFolder(out)), np.random.default_rng(0).integers(0, 256, (5, 36, 36, 3), np.uint8)
    with torch.no_grad():
        exported, _ = FromPixels(model)(torch.from_numpy(images))  # what becomes an ONNX file
    assert np.allclose(exported.numpy(), model.predict_pixels(images).probs, atol=1e-5)


def fitted(data: DataConfig, **said: Any) -> dict[str, Any]:
    """The settings of a run after a look at its data."""
    return to_tree(fit_to_data(build_config({"data": data.model_dump(), **said}), load(data)))


def test_what_is_said_goes_before_what_is_usual(tmp_path: Path) -> None:
    data = DataConfig(name="food101", root=str(write_food101(tmp_path)))
    usual, own = fitted(data)["augment"], fitted(data, augment={"pad": 2})["augment"]
    assert (usual["crop"], usual["pad"]) == (32, 0) and (own["crop"], own["pad"]) == (32, 2)
    assert fitted(data.model_copy(update={"image_size": 64}))["augment"]["crop"] == 64
    assert fitted(data, augment={"crop": 20})["augment"]["crop"] == 20
    assert "crop" not in fitted(DataConfig(name="digits"))["augment"]


def test_imagenet127_is_split_by_its_own_mix(here: Path) -> None:
    for part, counts in (("train", (40, 12)), ("val", (2, 2))):
        for number, count in enumerate(counts):
            folder = here / "data" / part / ("bird", "fish")[number]
            folder.mkdir(parents=True)
            for i in range(count):
                picture(150 * number, seed=i).save(folder / f"{i}.png")
    said = succeed("split", "--data", "imagenet127", "--root", "data").out
    rows = [line.replace("│", " ").split() for line in said.splitlines()]
    assert ["bird", "4", "36"] in rows and ["fish", "1", "11"] in rows
    data = DataConfig(name="imagenet127", root="data")
    other = fitted(data, split={"labels_per_class": 3, "pool_distribution": "uniform"})["split"]
    assert other["pool_distribution"] == "uniform" and "labelled_fraction" not in other
    supervised = fitted(data, method={"name": "fully-supervised"})["split"]
    keys = ("pool_distribution", "labelled_fraction", "reveal_pool_labels")
    assert tuple(supervised[key] for key in keys) == ("natural", 0.1, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("svhn", ("train_32x32.mat", "housenumbers")),
        ("stl10", ("stl10_binary.tar.gz", "acoates")),
        ("food101", ("food-101.tar.gz", "vision.ee.ethz.ch")),
        ("imagenet127", ("val_data", "image-net.org")),
    ],
)
def test_where_to_get_it(name: str, says: tuple[str, ...], refuses: Refuses) -> None:
    refuses("train", "--data", name, "--out", "run", says=(f"The data set {name} was not found.", "--root", *says))
    listed = " ".join(succeed("datasets").out.split())
    assert name in listed
