"""What ``Model.predict`` accepts, and that every form of an image gives the same prediction as its file."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unissl.data import read_images
from unissl.errors import UserError
from unissl.inference import model as chunked
from unissl.inference.evaluate import evaluate_model
from unissl.inference.model import Calibrated, load_model

MakeRun = Callable[..., Path]


def save_images(folder: Path, count: int = 5) -> list[Path]:
    """Images of several sizes."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        Image.fromarray(rng.integers(0, 256, (20 + i, 30 - i, 3), dtype=np.uint8)).save(path)
    return paths


def numbers(table: Any) -> Any:
    return np.column_stack([table[name] for name in ("class_index", "confidence", "margin", "outlier_score")])


def test_every_form_of_an_image_is_predicted_like_its_file(make_run: MakeRun, tmp_path: Path) -> None:
    model = load_model(make_run())
    paths = save_images(tmp_path / "images")
    expected = model.predict(paths)
    pils = [Image.open(path) for path in paths]
    arrays = [np.asarray(pil) for pil in pils]
    for images in (
        tmp_path / "images",
        str(tmp_path / "images"),
        [str(path) for path in paths],
        iter(paths),
        pils,
        arrays,
        [array / 255 for array in arrays],
        [torch.from_numpy(array.copy()).permute(2, 0, 1) for array in arrays],
        [torch.from_numpy(array.copy()).permute(2, 0, 1) / 255 for array in arrays],
        [paths[0], pils[1], *arrays[2:]],
    ):
        np.testing.assert_array_equal(numbers(model.predict(images)), numbers(expected))
    for image, array in zip(pils, arrays, strict=True):  # neither closed nor changed
        np.testing.assert_array_equal(np.asarray(image), array)
    assert list(expected["file"]) == [str(path) for path in paths]
    assert list(model.predict(arrays)["row"]) == list(range(5))


def test_arrays_of_any_size_are_cropped_and_resized_like_files(make_run: MakeRun, tmp_path: Path) -> None:
    model = load_model(make_run())
    batch = np.random.default_rng(1).integers(0, 256, (3, 17, 40, 3), dtype=np.uint8)
    for i, array in enumerate(batch):
        Image.fromarray(array).save(tmp_path / f"{i}.png")
    pixels = read_images([tmp_path / f"{i}.png" for i in range(3)], 12, 3)[0]
    expected = model.predict_pixels(pixels)
    for images in (batch, batch / 255, batch.astype(np.float32), torch.from_numpy(batch).permute(0, 3, 1, 2), pixels):
        np.testing.assert_array_equal(model.predict_proba(images), expected.probs)
    np.testing.assert_array_equal(model.predict_proba(batch[0]), model.predict_pixels(pixels[:1]).probs)


def test_grey_models_take_grey_and_coloured_images(make_run: MakeRun) -> None:
    model = load_model(make_run(channels=1))
    grey = np.random.default_rng(1).integers(0, 256, (12, 12), dtype=np.uint8)
    expected = model.predict_pixels(grey[None, ..., None]).probs
    for images in (
        grey,
        grey[..., None],
        grey[None, ..., None],
        Image.fromarray(grey),
        Image.fromarray(grey).convert("RGB"),
    ):
        np.testing.assert_array_equal(model.predict_proba(images), expected)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (np.zeros((2, 12, 12), np.uint8), "shape \\(2, 12, 12\\)"),
        (np.zeros((12, 12, 2), np.uint8), "1, 3 or 4 channels"),
        (np.zeros((0, 12, 12, 3), np.uint8), "no image"),
        (np.zeros(7, np.uint8), "no image"),
        (np.zeros((12, 12, 3), np.int64), "int64"),
        (np.full((12, 12, 3), -0.5), "not normalised"),
        (np.full((12, 12, 3), 300.0), "not normalised"),
        (np.full((12, 12, 3), np.nan), "not normalised"),
        (torch.full((1, 3, 12, 12), -1.0), "not normalised"),
        ([], "no images"),
        (5, "int is no image"),
        ([b"x"], "bytes is no image"),
        ("nowhere.png", "no file or folder nowhere.png"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(make_run: MakeRun, images: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_model(make_run()).predict(images)


def test_a_model_of_oblong_images_takes_arrays_of_its_size_alone(make_run: MakeRun) -> None:
    model = load_model(make_run(height=10, width=14))
    assert len(model.predict(np.zeros((2, 10, 14, 3), np.uint8))) == 2
    with pytest.raises(UserError, match=r"\(n, 10, 14, 3\)"):
        model.predict(np.zeros((2, 12, 12, 3), np.uint8))


def test_unreadable_files_have_no_class(make_run: MakeRun, tmp_path: Path) -> None:
    model = load_model(make_run())
    paths = save_images(tmp_path / "images")
    paths[2].write_text("hello")
    table = model.predict(paths)
    row = list(table)[2]
    assert row == {**dict.fromkeys(row), "file": str(paths[2]), "review": "unreadable"}
    assert table["class"][2] is None and table["class_index"][2] == -1 and np.isnan(table["confidence"][2])
    for values in (model.predict_proba(paths), model.embed(paths)):
        assert np.isnan(values[2]).all() and np.isfinite(np.delete(values, 2, 0)).all()
    assert "1 unreadable" in repr(table) and table.count_reviews()["unreadable"] == 1
    for method in (model.predict_proba, model.embed):
        alone = method(paths[2])
        assert alone.shape == (1, method(paths).shape[1]) and np.isnan(alone).all()


def test_chunks_and_batches_change_nothing(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(make_run())
    batch = np.random.default_rng(2).integers(0, 256, (11, 16, 16, 3), dtype=np.uint8)
    whole = [numbers(model.predict(batch)), model.predict_proba(batch), model.embed(batch)]
    monkeypatch.setattr(chunked, "CHUNK", 4)
    for size in (None, 1, 3):
        cut = [numbers(model.predict(batch, batch_size=size))]
        cut += [model.predict_proba(batch, batch_size=size), model.embed(batch, batch_size=size)]
        for expected, values in zip(whole, cut, strict=True):
            np.testing.assert_allclose(values, expected, atol=1e-6)


def test_embeddings_are_the_features_of_the_classifier(make_run: MakeRun) -> None:
    model = load_model(make_run())
    batch = np.random.default_rng(3).integers(0, 256, (4, 12, 12, 3), dtype=np.uint8)
    features = torch.from_numpy(model.embed(batch))
    with torch.no_grad():
        probs = model.module.head(features).softmax(-1)  # type: ignore[operator,union-attr]
    np.testing.assert_allclose(probs.numpy(), model.predict_proba(batch), atol=1e-6)


def test_a_calibrated_model(make_run: MakeRun) -> None:
    plain, batch = load_model(make_run()), np.random.default_rng(3).integers(0, 256, (4, 12, 12, 3), dtype=np.uint8)
    run = make_run(calibration={"kind": "temperature", "temperature": 2.5})
    model = load_model(run)
    assert isinstance(model.module, Calibrated) and not isinstance(plain.module, Calibrated)
    expected = plain.predict_pixels(batch).calibrated(model.manifest.calibration)
    np.testing.assert_allclose(model.predict_proba(batch), expected.probs, atol=1e-6)
    np.testing.assert_allclose(model.predict(batch)["outlier_score"], plain.predict(batch)["outlier_score"], atol=1e-6)


def test_pickled_models_predict_the_same_and_leave_the_generator_alone(make_run: MakeRun) -> None:
    batch = np.random.default_rng(3).integers(0, 256, (4, 12, 12, 3), dtype=np.uint8)
    for calibration in ({}, {"calibration": {"kind": "temperature", "temperature": 2.5}}):
        model, state = load_model(make_run(**calibration)), torch.get_rng_state()
        again = pickle.loads(pickle.dumps(model))
        assert again.manifest == model.manifest and (torch.get_rng_state() == state).all()
        assert (again.predict_proba(batch) == model.predict_proba(batch)).all()


@pytest.mark.parametrize(
    "entry", [{"kind": "magic"}, {"kind": "temperature"}, {"kind": "temperature", "temperature": 0.0}, 3]
)
def test_a_calibration_that_is_none_is_refused(make_run: MakeRun, entry: object) -> None:
    run = make_run()
    text = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(json.dumps({**json.loads(text), "calibration": entry}))
    with pytest.raises(UserError, match="does not describe a model"):
        load_model(run)


def test_classes_of_the_same_name_are_refused(make_run: MakeRun) -> None:
    run = make_run()
    entries = json.loads((run / "manifest.json").read_text())
    names = entries["class_names"]
    (run / "manifest.json").write_text(json.dumps({**entries, "class_names": [names[0], *names[:-1]]}))
    with pytest.raises(UserError, match="two classes have the same name"):
        load_model(run)


def test_a_folder_that_is_no_run_gets_one_sentence(make_run: MakeRun, tmp_path: Path) -> None:
    assert repr(load_model(str(make_run()))) == "Model(small, labels-only, 3 classes, 12 x 12 x 3)"
    with pytest.raises(UserError, match="holds no trained model; give the folder of a finished run"):
        load_model(os.fspath(tmp_path))


def test_evaluation_by_names_and_by_indices(make_run: MakeRun, tmp_path: Path) -> None:
    model = load_model(make_run())
    paths = save_images(tmp_path / "images", 6)
    classes = model.predict(paths)["class_index"].copy()
    truth = classes.copy()
    truth[0] = (truth[0] + 1) % 3
    names = [model.class_names[index] for index in truth]
    paths[5].write_text("hello")
    for labels in (names, truth, truth.tolist()):
        evaluation = evaluate_model(model, paths, labels)
        assert evaluation.images == 5 and evaluation.accuracy == 4 / 5 and evaluation.unreadable == 1
        assert evaluation.interval.low < 0.8 < evaluation.interval.high
        assert evaluation.confusion_matrix.sum() == 5 and evaluation.confusion_matrix.trace() == 4
        assert set(evaluation.per_class_recall) == set(model.class_names)
    for labels, sentence in [
        (names[1:], "6 images and 5 labels"),
        (["dog"] * 6, "no class 'dog'"),
        ([7] * 6, "0 to 2"),
        ([0.5] * 6, "one class per image"),
        (None, "give labels"),
    ]:
        with pytest.raises(UserError, match=sentence):
            evaluate_model(model, paths, labels)


def test_evaluation_of_a_folder(make_run: MakeRun, tmp_path: Path) -> None:
    model = load_model(make_run())
    (tmp_path / "test").mkdir()
    paths = [path for name in model.class_names for path in save_images(tmp_path / "test" / name, 3)]
    labels = np.repeat(np.arange(3), 3)
    by_folder, by_labels = evaluate_model(model, str(tmp_path / "test")), evaluate_model(model, paths, labels)
    np.testing.assert_array_equal(by_folder.confusion_matrix, by_labels.confusion_matrix)
    assert str(by_folder) == str(by_labels) and "9 images" in str(by_folder)
