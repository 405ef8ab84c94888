"""The files of a run folder, each damaged while the others are as a run left them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from case import Make, Reader
from mutate import hostile_tree

from unissl.config import to_toml
from unissl.evaluation.predictions import Predictions
from unissl.inference.journal import PredictionJournal
from unissl.inference.model import CHUNK
from unissl.inference.prediction_table import READ, RECORD, count_reviews, file_tables
from unissl.inference.review import ReviewThresholds
from unissl.report.data import ReportData
from unissl.report.html import render
from unissl.report.load_run import read_record
from unissl.run.config import build_config
from unissl.run.predictions_io import write_pool_predictions, write_test_predictions
from unissl.run_folder import RunFolder
from unissl.splits import read_split, write_split
from unissl.types import ImageTable, Split
from unissl.utils.atomic import write_json, write_text

NAMES = ["cat", "dog", "owl"]
SUMMARY: dict[str, Any] = {
    "method": "sage",
    "data": "folder",
    "net": "small",
    "seed": 0,
    "steps": 10,
    "config": "0123456789abcdef",
    "class_names": NAMES,
    "test_images": 6,
    "accuracy": {"last": 0.5, "mean_last_20": 0.4, "best": 0.6},
    "balanced_accuracy": 0.5,
    "per_class_recall": [0.5, None, 0.5],
    "confusion_matrix": [[1, 1, 0], [0, 1, 0], [1, 0, 1]],
    "ood_test_images": 1,
    "auroc": 0.7,
    "labelled": [1, 1, 2],
    "calibration_images": 1,
    "pool": {
        "images": 6,
        "mean_confidence": 0.6,
        "truth_known": True,
        "accuracy": 0.5,
        "predicted": [2, 2, 2],
        "true_positives": [1, 1, 1],
        "false_positives": [1, 1, 1],
        "truth": [2, 2, 1],
        "ood": 1,
    },
    "skipped": [{"file": "x.png", "reason": "damaged image: (1)"}],
    "image_issues": [{"issue": "shows nothing", "count": 2, "files": ["y.png", "z.png"]}],
    "duplicates": [
        {"kind": "exact", "copies": [{"part": "test", "row": 1, "label": 0, "file": "a"}, {"part": "pool", "row": 2}]}
    ],
    "warnings": ["a warning"],
    "calibration": {"kind": "temperature", "temperature": 1.2, "ece": 0.2, "ece_after": 0.1},
    "parameters": 100,
    "seconds": 3.0,
    "versions": {"unissl": "1", "torch": "2"},
}
ESTIMATED = {"folds": 3, "labels": 4, "accuracy": 0.5, "low": 0.2, "high": 0.8, "balanced_accuracy": 0.5, "steps": 10}
METRICS = [
    {"kind": "train", "step": 1, "loss": {"sup": 1.0, "con": 2.0}, "logs": {"selected": 0.5}, "seconds": 1.0},
    {"kind": "eval", "step": 1, "accuracy": 0.5},
    {"kind": "warning", "step": 2, "message": "slow"},
    {"kind": "train", "step": 2, "loss": {"sup": 0.5, "con": 1.0}, "logs": {"selected": 0.7}, "seconds": 2.0},
]
ESTIMATE = {"rows": [0, 1, 2, 3], "truth": [0, 1, 2, 2], "predicted": [0, 1, 1, 2]}
MANIFEST: dict[str, Any] = {
    "format": "unissl-model-2",
    "unissl": "1",
    "net": "small",
    "method": {"name": "labels-only"},
    "labelled_counts": [1, 1, 2],
    "pool_images": 6,
    "config": "0123456789abcdef",
    "class_names": NAMES,
    "height": 8,
    "width": 8,
    "channels": 1,
    "mean": [0.5],
    "std": [0.25],
    "parameters": 100,
    "calibration": {"kind": "temperature", "temperature": 1.2},
    "review_thresholds": {"confidence": 0.5, "outlier": 1.0},
}


def predictions(rows: int) -> Predictions:
    values = np.random.RandomState(0).rand(rows, 3).astype(np.float32) + 0.1
    return Predictions(values / values.sum(1, keepdims=True))


def lay_run(place: Path, tested: bool = True) -> RunFolder:
    """A finished run, as one would have left it, but for the model."""
    folder = RunFolder(place)
    place.mkdir(parents=True, exist_ok=True)
    summary = dict(SUMMARY)
    if not tested:
        for name in (
            "accuracy",
            "balanced_accuracy",
            "per_class_recall",
            "confusion_matrix",
            "ood_test_images",
            "auroc",
            "calibration",
        ):
            del summary[name]
        summary |= {"test_images": 0, "cross_validation": ESTIMATED}
        write_json(place / "cross_validation.json", ESTIMATE)
    write_text(folder.config, to_toml(build_config({"train": {"steps": 10}})))
    rows = np.arange(10)
    write_split(Split(rows[:4], np.array([0, 1, 2, 2]), rows[4:], 3), folder.split)
    write_text(folder.metrics, "".join(json.dumps(line) + "\n" for line in METRICS))
    write_json(folder.summary, summary)
    write_json(folder.manifest, MANIFEST)
    images = np.zeros((10, 8, 8, 1), np.uint8)
    table = ImageTable(images, np.array([0, 1, 2, 2, 0, 1, 2, 0, 1, -2]), tuple(NAMES), tuple("abcdefghij"))
    write_pool_predictions(folder, table, rows[4:], predictions(6), ReviewThresholds())
    if tested:
        write_test_predictions(folder, table, predictions(10), ReviewThresholds())
    return folder


def record_reader(home: Path, name: str, tree: Any, *, tested: bool = True, text: bool = True) -> Reader:
    """A file of JSON, or of lines of it, as the report reads it."""
    folder = lay_run(home / "run", tested)
    target = folder.path / name

    def read(content: bytes) -> None:
        target.write_bytes(content)
        record = read_record(folder)
        assert record.names

    def hostile(rng: Random) -> bytes:
        if name == "metrics.jsonl":
            changed = [hostile_tree(rng, line) if rng.random() < 0.4 else line for line in METRICS]
            return "".join(json.dumps(line) + "\n" for line in changed).encode()
        return json.dumps(hostile_tree(rng, tree)).encode()

    return Reader([target.read_bytes()], read, hostile, text=text)


def split_reader(home: Path) -> Reader:
    folder = lay_run(home / "run")
    whole = folder.split.read_bytes()

    def read(content: bytes) -> None:
        folder.split.write_bytes(content)
        found = read_split(folder.split, 10)
        rows = np.concatenate([found.labelled, found.unlabelled, found.heldout])
        assert (
            len(set(rows.tolist())) == len(rows)
            and (rows < 10).all()
            and len(found.labelled_counts) == found.num_classes
        )

    def hostile(rng: Random) -> bytes:
        return json.dumps(hostile_tree(rng, json.loads(whole))).encode()

    return Reader([whole], read, hostile, text=True)


def table_reader(home: Path, name: str) -> Reader:
    folder = lay_run(home / "run")
    target = folder.path / name
    whole = target.read_bytes()

    def read(content: bytes) -> None:
        target.write_bytes(content)
        record = read_record(folder)
        assert record.pool is not None and (record.pool["class_index"] < 3).all()

    def hostile(rng: Random) -> bytes:
        table = pq.read_table(io.BytesIO(whole))
        column = rng.randrange(table.num_columns)
        length = table.num_rows
        others: list[Callable[[], Any]] = [
            lambda: pa.array([rng.choice((-1, -2, -3, 3, 2**62, 0))] * length),
            lambda: pa.array([rng.choice((float("nan"), float("inf"), 1e30, 0.5))] * length),
            lambda: pa.array([None] * length, pa.int64()),
            lambda: pa.array(["a"] * length),
            lambda: pa.array([[0]] * length),
            lambda: pa.array([2**63 + 5] * length, pa.uint64()),
            lambda: pa.array([b"\xff"] * length),
        ]
        field = table.field(column).name if rng.random() < 0.8 else "x"
        changed = table.set_column(column, field, rng.choice(others)())
        memory = io.BytesIO()
        pq.write_table(changed.slice(0, rng.choice((length, length, 0))), memory)
        return memory.getvalue()

    return Reader([whole], read, hostile, share=0.3)


def draft_reader(home: Path) -> Reader:
    """The unfinished table of predictions that a killed command leaves."""
    folder = lay_run(home / "run")
    folder.model.write_bytes(b"weights")
    files = [f"{number}.png" for number in range(CHUNK + 5)]
    out = home / "predictions.csv"

    def open_draft() -> PredictionJournal:
        return PredictionJournal(out, folder, files, 1, len(NAMES))

    records = np.zeros(CHUNK + 5, RECORD)
    records["state"], records["confidence"] = READ, 0.5
    with open_draft() as draft:
        draft.append(records[:CHUNK])
    some = draft.path.read_bytes()
    with open_draft() as draft:
        draft.append(records[CHUNK:])
    whole = draft.path.read_bytes()
    draft.remove()

    def read(content: bytes) -> None:
        out.unlink(missing_ok=True)
        draft.path.write_bytes(content)
        with open_draft() as found:
            assert found.done in (0, CHUNK, CHUNK + 5)
            assert 1 <= found.threads <= 4096
            count_reviews(found.blocks())
            tables = file_tables(files[: found.done], found.blocks(), NAMES)
            assert sum(table.num_rows for table in tables) == found.done

    def hostile(rng: Random) -> bytes:
        head, _, rest = whole.partition(b"\n")
        if rng.random() < 0.5:
            return json.dumps(hostile_tree(rng, json.loads(head))).encode() + b"\n" + rest
        changed = records.copy()
        row, column = rng.randrange(len(records)), rng.choice(RECORD.names or ())
        with np.errstate(all="ignore"):
            changed[column][row] = np.array(rng.choice((0, 1, 2, 3, 255, -1, 2**31 - 1, float("nan")))).astype(
                RECORD[column]
            )
        return head + b"\n" + changed.tobytes()

    return Reader([some, whole, b""], read, hostile)


def page_reader(home: Path) -> Reader:
    """The page itself, for files that the readers above let through: it must not fail on them."""
    runs = {tested: lay_run(home / f"run{tested}", tested) for tested in (True, False)}
    whole = {tested: json.loads(folder.summary.read_bytes()) for tested, folder in runs.items()}

    def read(content: bytes) -> None:
        case = json.loads(content)
        folder = runs[bool(case["tested"])]
        folder.summary.write_text(json.dumps(case["summary"]))
        folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in case["metrics"]))
        page = render(ReportData.of(read_record(folder), None, "no images"))
        page.encode("utf-8")

    def hostile(rng: Random) -> bytes:
        tested = rng.random() < 0.6
        summary, metrics = whole[tested], [hostile_tree(rng, line) if rng.random() < 0.1 else line for line in METRICS]
        for _ in range(rng.choice((1, 2))):
            summary = hostile_tree(rng, summary)
        return json.dumps({"tested": tested, "summary": summary, "metrics": metrics}).encode()

    files = [json.dumps({"tested": t, "summary": whole[t], "metrics": METRICS}).encode() for t in (True, False)]
    return Reader(files, read, hostile, share=1.0)


READERS: dict[str, Make] = {
    "split-json": split_reader,
    "summary-json": lambda home: record_reader(home, "summary.json", SUMMARY),
    "estimate-json": lambda home: record_reader(home, "cross_validation.json", ESTIMATE, tested=False),
    "metrics-jsonl": lambda home: record_reader(home, "metrics.jsonl", METRICS),
    "predictions-parquet": lambda home: table_reader(home, "predictions.parquet"),
    "test-predictions-parquet": lambda home: table_reader(home, "test_predictions.parquet"),
    "prediction-draft": draft_reader,
    "report-page": page_reader,
}
