"""Made-up runs: results at random, in the form that a report reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unissl.evaluation.predictions import Predictions
from unissl.inference.manifest import Manifest
from unissl.report.galleries import Thumbnails
from unissl.report.load_run import LabelledPredictions, RunRecord
from unissl.report.samples import Samples
from unissl.run.config import build_config
from unissl.run_folder import RunFolder
from unissl.types import ImageTable
from unissl.utils.atomic import write_text


def make_record(
    path: Path, names: list[str], *, pool: int = 60, test: int = 40, truth: bool = False, baseline: bool = False
) -> RunRecord:
    """A finished run with random results."""
    rng, classes = np.random.default_rng(0), len(names)
    folder = RunFolder(path)
    folder.create()
    write_text(folder.config, '[data]\nname = "folder"\nroot = "<b>photos</b>"\n')
    summary: dict[str, Any] = {
        **{"method": "sage", "data": "folder", "net": "small", "seed": 3, "steps": 1000, "config": "abc"},
        **{"class_names": names, "labelled": [4] * classes, "test_images": test, "parameters": 10, "seconds": 61.0},
        "skipped": [{"file": "<i>broken</i>\udce4.jpg", "reason": "not an image"}],
        "warnings": ["Only 1 of 2 <classes>."],
    }
    metrics: list[dict[str, Any]] = [
        {"kind": "train", "step": s, "loss": {"sup": 1 / s}, "logs": {"selected": 0.5}} for s in (1, 2, 3)
    ]
    if test:
        matrix = rng.multinomial(test, np.ones(classes**2) / classes**2).reshape(classes, classes)
        right = float(matrix.trace() / test)
        summary |= {
            "confusion_matrix": matrix.tolist(),
            "accuracy": {"last": right, "best": right, "mean_last_20": right},
        }
        summary |= {"balanced_accuracy": 0.5, "per_class_recall": [None] * classes}
        metrics += [{"kind": "eval", "step": s, "accuracy": right} for s in (1, 2, 3)]
    columns = None
    if pool:
        given = rng.integers(0, classes, pool)
        confidence = rng.random(pool).astype(np.float32)
        columns = {
            "row": np.arange(pool),
            "class_index": given,
            "confidence": confidence,
            "outlier_score": 1 - confidence,
        }
        predicted = np.bincount(given, minlength=classes).tolist()
        known = {"accuracy": 0.5, "true_positives": predicted, "truth": predicted} if truth else {}
        summary["pool"] = {
            "images": pool,
            "mean_confidence": 0.5,
            "predicted": predicted,
            "truth_known": truth,
            **known,
        }
    baseline_results = make_record(path / "baseline", names, pool=pool, test=test) if baseline else None
    predictions = None
    if test:
        labels = np.arange(test) % classes
        predicted_labels = np.where(rng.random(test) < (0.7 if baseline else 0.5), labels, (labels + 1) % classes)
        predictions = LabelledPredictions(
            np.arange(test), labels, predicted_labels, rng.random(test).astype(np.float32)
        )
    config = build_config({"data": {"name": "folder", "root": "<b>photos</b>"}})
    manifest = Manifest(
        **{"unissl": "1", "net": "small", "method": {"name": "sage"}, "class_names": names, "pool_images": pool},
        **{
            "labelled_counts": [4] * classes,
            "height": 8,
            "width": 8,
            "channels": 3,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
        },
    )
    return RunRecord(summary, metrics, predictions, folder, config, manifest, columns, baseline_results)


def make_samples(record: RunRecord, size: int, points: int = 30) -> Samples:
    """Random predictions for random images: noise is the hardest to compress."""
    rng, classes = np.random.default_rng(1), len(record.names)
    rows = 0 if record.pool is None else len(record.pool["row"])
    images = np.lib.stride_tricks.as_strided(  # overlapping windows of noise: many images in little memory
        rng.integers(0, 256, size * size * 3 + rows + classes, dtype=np.uint8),
        (rows + classes, size, size, 3),
        (1, size * 3, 3, 1),
    )
    names = tuple(record.names)
    table = ImageTable(images, np.zeros(len(images), np.int64), names, tuple(f"<p>{i}.jpg" for i in range(len(images))))
    probs = rng.dirichlet(np.ones(classes), classes).astype(np.float32)
    pool_probs = rng.dirichlet(np.ones(classes), points).astype(np.float32)
    return Samples(
        Thumbnails(table, None),
        *(np.arange(rows, rows + classes), np.arange(classes)),
        *(Predictions(probs), rng.normal(size=(classes, 6)).astype(np.float32)),
        *(Predictions(pool_probs) if rows else None, rng.normal(size=(points if rows else 0, 6)).astype(np.float32)),
    )
