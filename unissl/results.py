"""What a finished run leaves behind: model, predictions for the pool, summary, pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from unissl import __version__
from unissl.config import to_tree
from unissl.data import Dataset
from unissl.data.duplicates import Copy, find_duplicates
from unissl.evaluate.diagnostics import pseudo_label_quality
from unissl.evaluate.inference import save_model
from unissl.evaluate.metrics import judge, three_ways
from unissl.evaluate.predict import Predictions
from unissl.features import BehindFront, Front, normalisation
from unissl.record import RunFolder, disk_errors, write_atomically, write_json
from unissl.report.charts import draw_all
from unissl.train.learner import Learner
from unissl.types import Split

OWN_DATA = ("folder", "parquet")
"""Where images are the user's own, and copies among them news."""


def write_results(
    folder: RunFolder,
    learner: Learner,
    shadow: Mapping[str, Tensor],
    dataset: Dataset,
    split: Split,
    facts: Mapping[str, Any],
    pool: Predictions | None,
    test: Predictions | None,
    seconds: float,
    front: Front | None = None,
) -> dict[str, Any]:
    """Write everything; the summary comes last, since its presence says that the run is finished."""
    parameters = write_model(folder, learner, shadow, dataset, facts, front)
    if pool is not None:
        write_pool_predictions(folder, dataset, split, pool)
    summary = summarise(folder, dataset, split, facts, pool, test)
    summary |= {"parameters": parameters, "seconds": round(seconds, 1)}
    with disk_errors(folder.plots):
        draw_all(folder.plots, summary, folder.read_metrics())
    write_json(folder.summary, summary)
    return summary


def write_model(
    folder: RunFolder,
    learner: Learner,
    shadow: Mapping[str, Tensor],
    dataset: Dataset,
    facts: Mapping[str, Any],
    front: Front | None = None,
) -> int:
    """Averaged parameters and live buffers of the inference module, behind the frozen network if there was one; returns
    the number of parameters."""
    module = learner.method.inference_module(learner.net)
    averaged = {id(parameter): shadow[name] for name, parameter in learner.named_parameters()}
    mean, std = dataset.mean, dataset.std
    if front is not None:
        module = BehindFront(front, module)
        averaged |= {id(parameter): parameter.data for parameter in front.parameters()}  # never moved
        mean, std = normalisation(dataset.train.images.shape[3])
    weights = dict(module.state_dict())
    weights |= {name: averaged[id(parameter)] for name, parameter in module.named_parameters()}
    parameters = sum(parameter.numel() for parameter in module.parameters())
    height, width, channels = dataset.train.images.shape[1:]
    manifest = {
        "unissl": __version__,
        "net": facts["net"],
        "method": to_tree(learner.method.cfg),
        "labelled_counts": list(learner.method.info.labelled_counts),
        "pool_images": learner.method.info.num_unlabelled,
        "config": facts["config"],
        "class_names": list(dataset.train.class_names),
        "height": height,
        "width": width,
        "channels": channels,
        "mean": list(mean),
        "std": list(std),
        "parameters": parameters,
    } | ({} if front is None else {"frozen": True})
    save_model(folder, weights, manifest)
    return parameters


def write_pool_predictions(folder: RunFolder, dataset: Dataset, split: Split, pool: Predictions) -> None:
    """One row per unlabelled image: where it is, its class, how sure."""
    names = np.array(dataset.train.class_names, dtype=object)
    columns: dict[str, Any] = {
        "row": split.unlabelled,
        "class": names[pool.classes],
        "class_index": pool.classes,
        "confidence": pool.confidence,
        "margin": pool.margin,
        "outlier": pool.outlier,
    }
    if dataset.train.files is not None:
        columns = {"file": [dataset.train.files[row] for row in split.unlabelled], **columns}
    table = pa.table(columns)
    write_atomically(folder.predictions, lambda draft: pq.write_table(table, draft))


def summarise(
    folder: RunFolder,
    dataset: Dataset,
    split: Split,
    facts: Mapping[str, Any],
    pool: Predictions | None,
    test: Predictions | None,
) -> dict[str, Any]:
    """Accuracy three ways with ``last`` as the headline, recalls, confusion matrix, and the state of the pool."""
    metrics = folder.read_metrics()
    summary: dict[str, Any] = dict(facts)
    summary["class_names"] = list(dataset.train.class_names)
    summary["test_images"] = 0 if dataset.test is None else len(dataset.test)
    if test is not None and dataset.test is not None:
        scores = judge(dataset.test.labels, test, dataset.test.num_classes)
        curve = [line["accuracy"] for line in metrics if line["kind"] == "eval"]
        summary["accuracy"] = three_ways(curve)
        summary |= {key: value for key, value in scores.items() if key != "accuracy"}
    summary["labelled"] = list(split.labelled_counts)
    if len(split.heldout):
        summary["heldout"] = len(split.heldout)
    if pool is not None:
        truth = dataset.train.labels[split.unlabelled]
        summary["pool"] = {
            "images": len(split.unlabelled),
            "mean_confidence": float(pool.confidence.mean()),
            **pseudo_label_quality(truth, pool.classes, split.num_classes),
        }
    skipped = [*dataset.train.skipped, *(() if dataset.test is None else dataset.test.skipped)]
    summary["skipped"] = [{"file": name, "reason": reason} for name, reason in skipped]
    if facts["data"] in OWN_DATA:
        summary["duplicates"] = duplicates(dataset, split)
    summary["warnings"] = [line["message"] for line in metrics if line["kind"] == "warning"]
    return summary


def duplicates(dataset: Dataset, split: Split) -> list[dict[str, Any]]:
    """Groups of images that are there twice, the gravest first, each image with its file where there is one."""

    def described(copy: Copy) -> dict[str, Any]:
        table = dataset.test if copy.part == "test" and dataset.test is not None else dataset.train
        file = None if table.files is None else table.files[copy.row]
        return {"part": copy.part, "row": copy.row, "label": copy.label, "file": file}

    given = np.concatenate([split.labelled, split.heldout])
    groups = find_duplicates(dataset.train, dataset.test, given)
    return [{"kind": group.kind, "copies": [described(copy) for copy in group.copies]} for group in groups]
