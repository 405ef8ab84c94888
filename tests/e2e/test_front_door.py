"""The Python front door, on a small folder of drawn photos."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import unissl
from unissl.errors import UserError

SHORT = {"train": {"steps": 6, "evaluations": 2, "cv_folds": 0}, "net": {"name": "small"}, "data": {"image_size": 16}}
COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


def draw(colour: tuple[int, int, int], seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(-30, 30, (20, 24, 3))
    return Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ with 30 images, labels.csv for nine of them, test/ with a subfolder per class."""
    top = tmp_path_factory.mktemp("front-door")
    (top / "photos").mkdir()
    rows = []
    for number in range(30):
        name = list(COLOURS)[number % 3]
        draw(COLOURS[name], number).save(top / "photos" / f"{number:02d}.png")
        if number < 9:
            rows.append((f"{number:02d}.png", name))
    for number, name in enumerate([*COLOURS] * 2):
        (top / "test" / name).mkdir(parents=True, exist_ok=True)
        draw(COLOURS[name], 100 + number).save(top / "test" / name / f"{number}.png")
    with open(top / "labels.csv", "w", newline="") as handle:
        csv.writer(handle).writerows([("file", "label"), *rows])
    return top


@pytest.fixture(scope="module")
def run(photos: Path) -> unissl.Run:
    return unissl.train(
        photos / "photos", labels=photos / "labels.csv", test=photos / "test", out=photos / "run", config=SHORT
    )


def test_a_run_tells_accuracy_interval_report_and_predictions(run: unissl.Run) -> None:
    assert run.accuracy is not None and run.interval is not None
    assert run.interval.low <= run.accuracy == run.interval.value <= run.interval.high
    assert run.report is not None and run.report.read_text().lower().startswith("<!doctype html>")
    assert run.baseline is not None and run.baseline.config.method.name == "labels-only"
    table = run.predictions
    assert table is not None and len(table) == 21
    assert {"file", "class", "confidence", "margin", "outlier_score", "review"} <= set(table.columns)
    assert table.to_arrow().num_rows == 21 and len(repr(run)) < 200


def test_a_model_predicts_paths_folders_images_and_arrays(run: unissl.Run, photos: Path) -> None:
    model = unissl.load(str(run.folder.path))
    paths = sorted((photos / "photos").glob("*.png"))
    by_path = model.predict([str(path) for path in paths])
    by_folder = model.predict(photos / "photos")
    images = [Image.open(path) for path in paths]
    arrays = np.stack([np.asarray(image) for image in images])
    for other in (by_folder, model.predict(images), model.predict(arrays)):
        assert list(other["class"]) == list(by_path["class"])
        np.testing.assert_allclose(other["confidence"], by_path["confidence"], atol=1e-6)
    probs, features = model.predict_proba(paths[:4]), model.embed(paths[:4])
    assert probs.shape == (4, 3) and np.allclose(probs.sum(1), 1, atol=1e-5) and len(features) == 4
    assert model.class_names == ("blue", "green", "red") or list(model.class_names) == ["blue", "green", "red"]


def test_evaluate_export_and_lists(run: unissl.Run, photos: Path) -> None:
    evaluation = unissl.evaluate(unissl.load(run.folder.path), photos / "test")
    assert evaluation.accuracy == pytest.approx(run.summary["accuracy"]["last"])
    assert "sage" in unissl.list_methods() and all(backbone.name for backbone in unissl.list_backbones())


def test_a_finished_run_is_read_and_a_taken_folder_refused(run: unissl.Run, photos: Path) -> None:
    again = unissl.resume(run.folder.path)
    assert again.summary == run.summary and again.baseline is not None
    with pytest.raises(UserError, match="already holds a run"):
        unissl.train(photos / "photos", labels=photos / "labels.csv", out=run.folder.path, config=SHORT)


@pytest.mark.parametrize("kind", ["paths", "arrays", "table"])
def test_images_from_python_give_a_run_that_resumes(photos: Path, kind: str) -> None:
    paths = sorted((photos / "photos").glob("*.png"))
    labels = [list(COLOURS)[number % 3] if number < 9 else None for number in range(30)]
    out = photos / f"from-{kind}"
    config = {**SHORT, "output": {"baseline": False}}
    if kind == "table":
        pandas = pytest.importorskip("pandas")
        run = unissl.train(pandas.DataFrame({"file": paths, "label": labels}), out=out, config=config)
    elif kind == "arrays":
        run = unissl.train(np.stack([np.asarray(Image.open(p)) for p in paths]), labels, out=out, config=config)
    else:
        run = unissl.train(paths, labels, out=out, config=config)
    assert run.predictions is not None and len(run.predictions) == 21
    run.folder.summary.unlink()
    assert unissl.resume(out).summary["pool"] == run.summary["pool"]


def test_the_command_and_python_write_the_same(photos: Path, run: unissl.Run) -> None:
    words = ["train", "--images", "photos", "--labels", "labels.csv", "--test", "test", "--out", "by-command"]
    words += ["--net", "small", "--steps", "6"]
    settings = ["train.evaluations=2", "train.cv_folds=0", "data.image_size=16"]
    words += [word for setting in settings for word in ("--set", setting)]
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # last bits depend on the number of threads
    subprocess.run([sys.executable, "-m", "unissl", *words], cwd=photos, env=env, check=True, timeout=180)
    for name in ("predictions.parquet", "test_predictions.parquet", "model.safetensors"):
        assert (photos / "by-command" / name).read_bytes() == (run.folder.path / name).read_bytes()


def test_a_wrong_word_for_resume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="resume='yes' is not known; give True, False or 'auto'"):
        unissl.train("digits", out=tmp_path / "run", resume="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (np.zeros((4, 8), np.float32), [0, 1, 0, 1], "uint8 values"),
        (["nowhere.png"], ["a"], "There is no image"),
        ([], [], "There are no images"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1], "4 images and 2 labels"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    tmp_path: Path, images: object, labels: list[object], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        unissl.train(images, labels, out=tmp_path / "run")
