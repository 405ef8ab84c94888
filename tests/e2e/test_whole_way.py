"""From images to a trained model and its predictions, through the files that pass between the verbs."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_helpers import QUICK, TRAIN_DIGITS, call, picture, succeed
from PIL import Image
from safetensors import safe_open

from unissl.inference.model import load_model
from unissl.nets import build
from unissl.run_folder import RunFolder

PhotoRun = tuple[Path, str]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_train_prints_the_accuracy_and_the_gain_over_the_baseline(photo_run: PhotoRun) -> None:
    run, output = photo_run
    ours, baseline = (read(folder / "summary.json")["accuracy"]["last"] for folder in (run, run / "baseline"))
    assert f"sage: accuracy {ours:.4f} (95 % interval " in output
    assert f"baselines: labels-only {baseline:.4f}\n" in output
    assert f"gain over the best baseline, labels-only: {100 * (ours - baseline):+.1f} points" in output


def test_the_mean_of_the_last_evaluations_is_not_printed(photo_run: PhotoRun) -> None:
    """It is in summary.json for comparisons with papers; the headline is the accuracy of the model that is shipped."""
    run, output = photo_run
    assert "last 20" not in output and "last 20" not in (run / "report.html").read_text(encoding="utf-8")


def test_summary(photo_run: PhotoRun) -> None:
    summary = read(photo_run[0] / "summary.json")
    evaluations = [line["accuracy"] for line in RunFolder(photo_run[0]).read_metrics() if line["kind"] == "eval"]
    assert summary["accuracy"] == {
        "last": evaluations[-1],
        "mean_last_20": pytest.approx(np.mean(evaluations)),
        "best": max(evaluations),
    }
    matrix = np.array(summary["confusion_matrix"])
    assert matrix.sum() == summary["test_images"] == 6 and matrix.sum(1).tolist() == [3, 3]
    assert summary["per_class_recall"] == [matrix[0, 0] / 3, matrix[1, 1] / 3]
    assert matrix.trace() / 6 == pytest.approx(summary["accuracy"]["last"])
    assert summary["class_names"] == ["cat", "dog"] and summary["labelled"] == [4, 4]
    assert summary["pool"]["images"] == 6 and summary["skipped"] == []
    assert (summary["method"], summary["net"], summary["seed"], summary["steps"]) == ("sage", "small", 0, 2)


def test_pool_predictions_are_those_of_the_model(photo_run: PhotoRun, workshop: Path) -> None:
    rows = pq.read_table(photo_run[0] / "predictions.parquet").to_pylist()
    assert sorted(row["file"] for row in rows) == [f"unlabeled/{i}.png" for i in range(6)]
    model = load_model(RunFolder(photo_run[0]))
    for row in rows:
        with Image.open(workshop / "photos" / row["file"]) as image:
            pixels = np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR))
        probs = np.sort(model.predict_pixels(pixels[None]).probs[0])
        assert row["class"] == model.class_names[model.predict_pixels(pixels[None]).classes[0]]
        assert row["confidence"] == pytest.approx(probs[-1], rel=1e-4)
        assert row["margin"] == pytest.approx(probs[-1] - probs[-2], rel=1e-4, abs=1e-6)


def test_model_holds_the_network_alone(photo_run: PhotoRun) -> None:
    network = build("small", 2, 3).state_dict()
    with safe_open(photo_run[0] / "model.safetensors", framework="pt") as weights:
        shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    assert shapes == {name: tuple(value.shape) for name, value in network.items()}


def test_manifest(photo_run: PhotoRun) -> None:
    manifest = read(photo_run[0] / "manifest.json")
    summary = read(photo_run[0] / "summary.json")
    assert manifest.pop("parameters") == summary["parameters"] == sum(p.numel() for p in build("small", 2).parameters())
    assert manifest.pop("config") == summary["config"]
    assert all(0 < value < 1 for value in (*manifest.pop("mean"), *manifest.pop("std")))
    version = manifest.pop("unissl")
    assert succeed("--version").out.strip() == version
    assert manifest.pop("method")["name"] == summary["method"] == "sage"
    assert manifest.pop("labelled_counts") == summary["labelled"]
    assert manifest.pop("pool_images") == summary["pool"]["images"]
    assert manifest.pop("calibration") == {"kind": "temperature", "temperature": 1}  # six test images are too few
    assert summary["calibration"]["temperature"] == 1
    levels = manifest.pop("review_thresholds")
    assert 0.5 <= levels["confidence"] <= 0.95 and 0.5 <= levels["outlier"] <= 1
    assert manifest == {
        "format": "unissl-model-2",
        "net": "small",
        "class_names": ["cat", "dog"],
        "height": 8,
        "width": 8,
        "channels": 3,
    }


def test_plots_as_png_and_svg(photo_run: PhotoRun) -> None:
    plots = photo_run[0] / "plots"
    names = ("confusion_matrix", "learning_curves", "pseudo_labels")
    assert sorted(path.name for path in plots.iterdir()) == [f"{n}.{kind}" for n in names for kind in ("png", "svg")]
    for name in names:
        with Image.open(plots / f"{name}.png") as drawn:
            assert min(drawn.size) > 100
        assert "</svg>" in (plots / f"{name}.svg").read_text()


def test_evaluate_repeats_the_summary(photo_run: PhotoRun, workshop: Path) -> None:
    summary = read(photo_run[0] / "summary.json")
    for words in ((), ("--test", workshop / "photos-test")):
        said = succeed("evaluate", photo_run[0], *words).out
        expected = f"6 images: accuracy {summary['accuracy']['last']:.4f}, balanced {summary['balanced_accuracy']:.4f}"
        assert expected in said and "cat" in said and "dog" in said


def test_evaluate_digits_on_a_folder_and_a_parquet_file(finished_run: Path, here: Path) -> None:
    """Other test images come in either layout, whatever the model was trained on."""
    rows = []
    for label in (0, 7):
        (here / "exam" / str(label)).mkdir(parents=True)
        for i in range(2):
            file = here / "exam" / str(label) / f"{i}.png"
            picture(20 * label, seed=i, side=8).convert("L").save(file)
            rows.append({"image": {"bytes": file.read_bytes(), "path": None}, "label": label})
    pq.write_table(pa.Table.from_pylist(rows), here / "exam.parquet")
    said = {succeed("evaluate", finished_run, "--test", place).out for place in ("exam", "exam.parquet")}
    assert len(said) == 1 and said.pop().startswith("4 images: accuracy ")


def test_predict_files_and_folders(photo_run: PhotoRun, workshop: Path, here: Path) -> None:
    pool = workshop / "photos" / "unlabeled"
    (here / "more").mkdir()
    picture(90, seed=3).save(here / "more" / "new.png")
    (here / "more" / "bad.png").write_text("hello")
    outcome = succeed("predict", photo_run[0], pool, "more", pool / "0.png", "--out", "table.csv")
    first, second = outcome.out.splitlines()
    assert first.startswith("9 files in table.csv; review: ")
    rows = read(photo_run[0] / "summary.json")["selective_accuracy"]
    assert [row["threshold"] for row in rows] == [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99] and rows[0]["images"] == 6
    threshold = float(second.removeprefix("confidence of at least ").partition(":")[0])
    with (here / "table.csv").open(newline="") as handle:
        reached = sum(float(line["confidence"] or 0) >= threshold for line in csv.DictReader(handle))
    assert f": {reached} files; of such predictions " in second and "95 % interval" in second
    assert outcome.err == "skipped more/bad.png: not an image that Pillow can read\n"
    with (here / "table.csv").open(newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert [line["file"] for line in lines] == [
        *(str(pool / f"{i}.png") for i in range(6)),
        "more/bad.png",
        "more/new.png",
        str(pool / "0.png"),
    ]
    known = {row["file"]: row for row in pq.read_table(photo_run[0] / "predictions.parquet").to_pylist()}
    for line in lines[:6]:
        row = known[f"unlabeled/{Path(line['file']).name}"]
        assert line["class"] == row["class"]
        assert float(line["confidence"]) == pytest.approx(row["confidence"], abs=1e-4)
        assert float(line["margin"]) == pytest.approx(row["margin"], abs=1e-4)


def test_predict_to_the_terminal_and_nothing_readable(photo_run: PhotoRun, workshop: Path, here: Path) -> None:
    said = succeed("predict", photo_run[0], workshop / "photos" / "cat" / "0.png").out
    (line,) = csv.DictReader(io.StringIO(said))
    assert line["class"] in ("cat", "dog") and 0.5 <= float(line["confidence"]) <= 1
    (here / "bad.png").write_text("hello")
    outcome = call("predict", photo_run[0], "bad.png", "--out", "table.csv")
    assert outcome.code == 1 and "None of the images could be read; give files" in outcome.err
    assert not (here / "table.csv").exists()


def test_resume_of_a_finished_run_shows_it_again(finished_run: Path) -> None:
    before = (finished_run / "summary.json").read_bytes()
    said = succeed("train", "--resume", "--no-baseline", "--out", finished_run).out
    assert f"accuracy {json.loads(before)['accuracy']['last']:.4f} (95 % interval" in said
    assert (finished_run / "summary.json").read_bytes() == before


def test_labels_in_a_csv_file(workshop: Path, photo_run: PhotoRun, here: Path) -> None:
    """Three labels beside a folder of loose images; everything else is the pool."""
    (here / "labels.csv").write_text("file,label\ncat/0.png,cat\ncat/1.png,cat\ndog/3.png,dog\n")
    words = ("split", "--images", workshop / "photos", "--labels", "labels.csv", "--out", "split.json")
    said = succeed(*words).out
    split = read(here / "split.json")
    assert split["labels"] == [0, 0, 1] and len(split["unlabelled"]) == 11
    assert "?" in said and "written to split.json" in said


def test_split_is_the_one_that_train_uses(finished_run: Path, here: Path) -> None:
    succeed("split", "--data", "digits", "--out", "split.json")
    assert (here / "split.json").read_text() == (finished_run / "split.json").read_text()


def test_default_folder_and_quiet(here: Path) -> None:
    outcome = succeed(*TRAIN_DIGITS, "--method", "fixmatch", "--seed", "3")
    assert all(line.startswith("warning: ") for line in outcome.err.splitlines())  # quiet about all else
    assert (here / "runs" / "digits-fixmatch-3" / "summary.json").exists()


def test_lists() -> None:
    assert all(name in succeed("datasets").out for name in ("digits", "fashion-mnist", "cifar10", "cifar100"))
    assert all(name in succeed("methods").out for name in ("labels-only", "fixmatch", "sage"))


def test_a_mistake_in_a_real_process(here: Path) -> None:
    """One line on stderr and the code, as a shell sees them."""
    command = [sys.executable, "-m", "unissl", "train", "--data", "digits", "--gamma", "0.5", "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: Setting 'split.gamma': Input should be greater than or equal to 1 (given: 0.5).\n"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("method", ["sage", "fixmatch"])
def test_a_run_that_diverges_says_so(here: Path, method: str) -> None:
    words = (*TRAIN_DIGITS, "--method", method, "--set", "train.steps=40", "--set", "optim.lr=1e6", "--out", "run")
    outcome = call(*words)
    assert outcome.code == 1
    assert "no longer a finite number" in outcome.err and "lower optim.lr" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_folder_does_not_hide_a_data_set_of_the_same_name(here: Path) -> None:
    (here / "digits").mkdir()
    assert "digits, seed 0" in succeed("split", "--data", "digits").out


def test_resume_remembers_that_no_baseline_was_wanted(here: Path) -> None:
    succeed(*TRAIN_DIGITS, "--out", "run")
    succeed("train", "--resume", "--out", "run")
    assert not (here / "run" / "baseline").exists()


def test_the_number_of_threads_can_be_tuned(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads, half of them and one are tried; the fastest is used, recorded, and kept by a resumed run."""
    import torch

    import unissl.run.budget

    before = torch.get_num_threads()
    seconds = {4: 3.0, 2: 1.0, 1: 2.0}
    monkeypatch.setattr(unissl.run.budget, "seconds_per_call", lambda call: seconds[torch.get_num_threads()])
    try:
        succeed(*TRAIN_DIGITS, "--threads", "4", "--set", "machine.tune_threads=true", "--out", "run")
        assert torch.get_num_threads() == 2
        assert "threads = 2" in Path("run/config.toml").read_text()
    finally:
        torch.set_num_threads(before)


def test_the_decision_to_compile_is_recorded_and_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated command asks for auto again, but resumes as the run was started: timings may turn out otherwise."""
    import unissl.training.compile as module

    compiled, seconds = [], iter([2.0, 1.0])  # of the plain network and of the compiled one
    monkeypatch.setattr(module, "MIN_TRAINING_SECONDS", 0.0)
    monkeypatch.setattr(module, "seconds_of_pass", lambda net, images: next(seconds))
    monkeypatch.setattr(module, "torch_compile", lambda net: compiled.append(net) or net.forward)
    words = (*TRAIN_DIGITS, "--set", "machine.compile=auto", "--resume", "auto", "--out", "run")
    succeed(*words)
    assert 'compile = "on"' in Path("run/config.toml").read_text()
    Path("run/summary.json").unlink()
    succeed(*words)
    assert len(compiled) == 2 and next(seconds, None) is None


def test_a_fully_labelled_folder_without_test_images(here: Path) -> None:
    """labels-only, which is suggested where there is no pool, trains, cross-validates and writes a report."""
    for number, name in enumerate(("cat", "dog")):
        (here / "own" / name).mkdir(parents=True)
        for seed in range(6):
            picture(100 * number + 50, seed).save(here / "own" / name / f"{seed}.png")
    diagnosed = ("--set", "train.diagnostics=true")
    succeed("train", "--images", "own", "--method", "labels-only", "--out", "run", *QUICK, *diagnosed)
    summary = read(here / "run" / "summary.json")
    assert summary["cross_validation"]["labels"] == 12 and "pool" not in summary
    assert (here / "run" / "report.html").exists() and not (here / "run" / "predictions.parquet").exists()
