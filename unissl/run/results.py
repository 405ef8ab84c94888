"""What a finished run leaves behind: model, predictions for the pool and the test images, summary, pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from unissl import __version__
from unissl.config import to_tree
from unissl.data import Dataset
from unissl.data.images.duplicates import MAX_COMPARED, Copy, find_duplicates
from unissl.data.images.issues import merge_issues
from unissl.distil import Student
from unissl.evaluation.calibration import Calibration, calibrate
from unissl.evaluation.diagnostics import pseudo_label_quality
from unissl.evaluation.metrics import accuracy_summary, evaluate_predictions
from unissl.evaluation.predictions import Predictions
from unissl.features.extract import FrozenBackbone, WithBackbone, normalisation
from unissl.inference.model import save_model
from unissl.inference.review import ReviewThresholds
from unissl.nets.external import arch_config_of
from unissl.nets.fine_tuning import starts_pretrained
from unissl.plots.files import draw_files
from unissl.run.predictions_io import write_pool_predictions, write_test_predictions
from unissl.run.versions import versions
from unissl.run_folder import RunFolder, explain_disk_errors, write_json
from unissl.training.learner import Learner
from unissl.types import Split

OWN_DATA = ("folder", "parquet")
"""Where images are the user's own, and copies among them news."""
MAX_FILES_PER_ISSUE = 1000
"""Files that the summary names for one remark; of a million photos half may be stored on their side."""


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
    front: FrozenBackbone | None = None,
    student: Student | None = None,
) -> dict[str, Any]:
    """Write everything; the summary comes last, since its presence says that the run is finished."""
    calibration = calibration_on(dataset, test)
    temperature = 1.0 if calibration is None else calibration.temperature
    detector = any(said is not None and said.detected is not None for said in (pool, test))
    pool = None if pool is None else pool.at_temperature(temperature)
    doubt = ReviewThresholds.of(pool, detector=detector)
    shipped = trained_module(learner, shadow, front) if student is None else student_module(student)
    parameters = write_model(folder, learner, shipped, dataset, facts, temperature, doubt)
    if pool is not None:
        write_pool_predictions(folder, dataset.train, split.unlabelled, pool)
    if test is not None and dataset.test is not None:
        write_test_predictions(folder, dataset.test, test.at_temperature(temperature))
    summary = summarise(folder, dataset, split, facts, pool, test)
    if calibration is not None:
        summary["calibration"] = asdict(calibration)
    if student is not None:
        summary["distilled"] = True
    summary |= {"parameters": parameters, "seconds": round(seconds, 1), "versions": versions()}
    with explain_disk_errors(folder.plots):
        draw_files(folder.plots, summary, folder.read_metrics())
    write_json(folder.summary, summary)
    return summary


def calibration_on(dataset: Dataset, test: Predictions | None) -> Calibration | None:
    """What the test images of known classes, whose labels no loss has seen, say about the probabilities."""
    if test is None or dataset.test is None:
        return None
    known = dataset.test.labels >= 0
    return calibrate(test.probs[known], dataset.test.labels[known]) if known.any() else None


@dataclass(frozen=True)
class InferenceArtifact:
    """What the model file holds: a module, its weights, and the backbone in it that was frozen, if there was one."""

    module: nn.Module
    weights: Mapping[str, Tensor]
    front: FrozenBackbone | None = None
    distilled: bool = False
    """The last stages of the backbone were trained further, under a linear classifier."""


def trained_module(learner: Learner, shadow: Mapping[str, Tensor], front: FrozenBackbone | None) -> InferenceArtifact:
    """Averaged parameters and live buffers of the inference module, behind the frozen network if there was one."""
    module = learner.method.inference_module(learner.net)
    averaged = {id(parameter): shadow[name] for name, parameter in learner.named_parameters()}
    if front is not None:
        module = WithBackbone(front, module)
        averaged |= {id(parameter): parameter.data for parameter in front.parameters()}  # never moved
    weights = dict(module.state_dict())
    weights |= {name: averaged[id(parameter)] for name, parameter in module.named_parameters()}
    return InferenceArtifact(module, weights, front)


def student_module(student: Student) -> InferenceArtifact:
    module = WithBackbone(student.front, student.head)
    return InferenceArtifact(module, module.state_dict(), student.front, distilled=True)


def write_model(
    folder: RunFolder,
    learner: Learner,
    shipped: InferenceArtifact,
    dataset: Dataset,
    facts: Mapping[str, Any],
    temperature: float,
    doubt: ReviewThresholds,
) -> int:
    """Weights and manifest; returns the number of parameters."""
    module, front = shipped.module, shipped.front
    mean, std = dataset.mean, dataset.std
    if front is not None or starts_pretrained(learner.net):
        mean, std = normalisation(dataset.train.images.shape[3])
    parameters = sum(parameter.numel() for parameter in module.parameters())
    height, width, channels = dataset.train.images.shape[1:]
    recipe = arch_config_of(learner.net if front is None else front.net)
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
        "temperature": temperature,
        "review_thresholds": asdict(doubt),
    }
    manifest |= {} if front is None else {"frozen": True}
    manifest |= {"distilled": True} if shipped.distilled else {}
    if "crop" in facts:
        manifest["crop"] = facts["crop"]
    if recipe is not None:
        manifest["backbone_config"] = recipe
    save_model(folder, shipped.weights, manifest)
    return parameters


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
        scores = evaluate_predictions(dataset.test.labels, test, dataset.test.num_classes)
        curve = [line["accuracy"] for line in metrics if line["kind"] == "eval" and "student" not in line]
        summary["accuracy"] = accuracy_summary(curve)
        if any("student" in line for line in metrics):  # another model than those of the curve
            best = max(scores["accuracy"], summary["accuracy"]["best"])
            summary["accuracy"] |= {"last": scores["accuracy"], "best": best}
        summary |= {key: value for key, value in scores.items() if key != "accuracy"}
    summary["labelled"] = list(split.labelled_counts)
    if len(split.heldout):
        summary["calibration_images"] = len(split.heldout)
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
        summary["image_issues"] = image_issues(dataset)
        summary["duplicates"] = duplicates(dataset, split)
        if len(dataset.train) + summary["test_images"] > MAX_COMPARED:
            summary["near_duplicates_among"] = MAX_COMPARED
    summary["warnings"] = [line["message"] for line in metrics if line["kind"] == "warning"]
    return summary


def image_issues(dataset: Dataset) -> list[dict[str, Any]]:
    """What is odd about images that were used, the gravest first, each with its number and the first of its files."""
    said = merge_issues([table.remarks for table in (dataset.train, dataset.test) if table is not None])
    return [
        {"remark": text, "count": len(files), "files": list(files[:MAX_FILES_PER_ISSUE])}
        for text, files in said.items()
    ]


def duplicates(dataset: Dataset, split: Split) -> list[dict[str, Any]]:
    """Groups of images that are there twice, the gravest first, each image with its file where there is one."""

    def described(copy: Copy) -> dict[str, Any]:
        table = dataset.test if copy.part == "test" and dataset.test is not None else dataset.train
        file = None if table.files is None else table.files[copy.row]
        return {"part": copy.part, "row": copy.row, "label": copy.label, "file": file}

    given = np.concatenate([split.labelled, split.heldout])
    groups = find_duplicates(dataset.train, dataset.test, given)
    return [{"kind": group.kind, "copies": [described(copy) for copy in group.copies]} for group in groups]
