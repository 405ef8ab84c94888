"""Results of a finished run: model, predictions for the pool and the test images, charts, summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unissl import __version__
from unissl.baselines import LinearClassifier
from unissl.config import to_tree
from unissl.data import OWN_DATA, Dataset
from unissl.data.images.duplicates import MAX_COMPARED, Copy, find_duplicates
from unissl.data.images.issues import merge_issues
from unissl.distil import Student
from unissl.evaluation.calibration import Calibration, calibrate, cross_fitted
from unissl.evaluation.calibrators import IDENTITY, Calibrator
from unissl.evaluation.diagnostics import pseudo_label_quality
from unissl.evaluation.metrics import accuracy_summary, evaluate_predictions
from unissl.evaluation.predictions import Predictions
from unissl.evaluation.selective import selective_accuracy
from unissl.features import FrozenBackbone, WithBackbone, normalisation
from unissl.inference.manifest import Manifest
from unissl.inference.model import save_model
from unissl.inference.review import ReviewThresholds
from unissl.nets.external import arch_config_of
from unissl.nets.fine_tuning import starts_pretrained
from unissl.nets.heads import LinearHead
from unissl.run.config import config_hash, config_summary
from unissl.run.cross_validation import CrossValidated
from unissl.run.inputs import RunInputs, build_backbone
from unissl.run.predictions_io import write_pool_predictions, write_test_predictions
from unissl.run.shipping import Baselines, Shipped, baselines_summary
from unissl.run.versions import versions
from unissl.run_folder import RunFolder
from unissl.training.learner import Learner
from unissl.types import Split
from unissl.utils.atomic import explain_disk_errors, read_json, write_json

MAX_FILES_PER_ISSUE = 1000
"""Files that the summary names for one issue; of a million photos half may be rotated by EXIF."""


@dataclass(frozen=True)
class RunResult:
    """What the stages of a run have computed."""

    learner: Learner
    shadow: Mapping[str, Tensor]
    """Averaged parameters of the learner."""
    student: Student | None
    pool: Predictions | None
    test: Predictions | None
    cross_validation: CrossValidated | None
    seconds: float
    readout: dict[str, Any] | None = None
    """What was decided about the classifier, unless it is the trained head without question."""
    baselines: Baselines | None = None
    shipped: Shipped | None = None
    """The choice between the method and the simple baselines; None where there are none."""
    changed: float | None = None
    """Share of the pool whose predicted class the fine-tuning of the distillation has changed."""

    @property
    def shipped_baseline(self) -> LinearClassifier | None:
        return None if self.shipped is None else self.shipped.baseline


def write_results(
    folder: RunFolder, inputs: RunInputs, result: RunResult, *, is_baseline: bool = False
) -> dict[str, Any]:
    """Write model, predictions, charts and summary; the summary comes last, since its presence means "finished".

    A baseline gets neither charts nor checks of its images, which are those of the run.
    """
    dataset, test = inputs.dataset, result.test
    calibration = calibration_on(dataset, test)
    calibrator = IDENTITY if calibration is None else calibration.calibrator
    detector = any(preds is not None and preds.ood_scores is not None for preds in (result.pool, test))
    pool = None if result.pool is None else result.pool.calibrated(calibrator)
    thresholds = ReviewThresholds.from_pool(pool, has_detector=detector)
    artifact = shipped_artifact(inputs, result)
    parameters = write_model(folder, inputs, result.learner, artifact, calibrator, thresholds)
    if pool is not None:
        write_pool_predictions(folder, dataset.train, inputs.split.unlabelled, pool, thresholds)
    if test is not None and dataset.test is not None:
        write_test_predictions(folder, dataset.test, test.calibrated(calibrator), thresholds)
    summary = summarise(folder, inputs, result, pool)
    if inputs.config.data.name in OWN_DATA and not is_baseline:
        summary |= image_checks(dataset, inputs.split)
    if calibration is not None:
        summary["calibration"] = calibration.to_summary()
    summary |= accuracy_at_thresholds(folder, dataset, test, pool)
    if artifact.distilled:
        summary["distilled"] = True
    if result.changed is not None:
        summary["distillation"] = {"changed": result.changed}
    if result.readout is not None:
        summary["readout"] = result.readout
    summary |= {"parameters": parameters, "seconds": round(result.seconds, 1), "versions": versions()}
    if not is_baseline:
        from unissl.plots.output import write_charts  # no start of a run should wait for matplotlib

        with explain_disk_errors(folder.plots):
            write_charts(folder.plots, summary, folder.read_metrics())
    write_json(folder.summary, summary)
    return summary


def calibration_on(dataset: Dataset, test: Predictions | None) -> Calibration | None:
    """What the test images of known classes, whose labels no loss has seen, say about the probabilities."""
    if test is None or dataset.test is None:
        return None
    known = dataset.test.labels >= 0
    return calibrate(test.probs[known], dataset.test.labels[known]) if known.any() else None


def accuracy_at_thresholds(
    folder: RunFolder, dataset: Dataset, test: Predictions | None, pool: Predictions | None
) -> dict[str, Any]:
    """Accuracy by confidence on the test images, calibrated by a fit on other test images; without test images on the
    labels that cross-validation left out."""
    if test is not None and dataset.test is not None:
        known = dataset.test.labels >= 0
        truth = dataset.test.labels[known]
        if not len(truth):
            return {}
        probs = cross_fitted(test.probs[known], truth)
        confidence, correct = probs.max(1).astype(np.float32), probs.argmax(1) == truth
    elif folder.cross_validation.exists():
        table = read_json(folder.cross_validation)
        confidence = np.array(table["confidence"], dtype=np.float32)
        correct = np.equal(table["truth"], table["predicted"])
    else:
        return {}
    rows = selective_accuracy(confidence, correct, None if pool is None else pool.confidence)
    return {"selective_accuracy": [row.to_summary() for row in rows]}


@dataclass(frozen=True)
class InferenceArtifact:
    """What the model file holds: a module, its weights, and the frozen backbone in it, if there is one."""

    module: nn.Module
    weights: Mapping[str, Tensor]
    backbone: FrozenBackbone | None = None
    distilled: bool = False
    """The backbone's last stages were fine-tuned by distillation, under a linear classifier."""
    linear: bool = False
    """A linear classifier on the features of the frozen backbone."""


def shipped_artifact(inputs: RunInputs, result: RunResult) -> InferenceArtifact:
    """The simple baseline, where it was chosen; else the student, where there is one; else the network."""
    if result.shipped_baseline is not None:
        return baseline_artifact(inputs, result.shipped_baseline)
    return network_artifact(inputs, result) if result.student is None else student_artifact(result.student)


def network_artifact(inputs: RunInputs, result: RunResult) -> InferenceArtifact:
    """What the inference module predicts with: everything that is averaged, other buffers as they are, and below them
    the frozen backbone if there is one."""
    learner, backbone = result.learner, build_backbone(inputs)
    module = learner.method.inference_module(learner.net)
    live = dict(learner.named_parameters()) | dict(learner.named_buffers())
    averaged = {id(live[name]): value for name, value in result.shadow.items()}
    if backbone is not None:
        module = WithBackbone(backbone, module)
        averaged |= {id(parameter): parameter.data for parameter in backbone.parameters()}  # frozen
    weights = dict(module.state_dict())
    weights |= {name: averaged[id(parameter)] for name, parameter in module.named_parameters()}
    weights |= {name: averaged[id(buffer)] for name, buffer in module.named_buffers() if id(buffer) in averaged}
    return InferenceArtifact(module, weights, backbone)


def student_artifact(student: Student) -> InferenceArtifact:
    module = WithBackbone(student.front, student.head)
    tuned = student.fine_tuned
    return InferenceArtifact(module, module.state_dict(), student.front, distilled=tuned, linear=not tuned)


def baseline_artifact(inputs: RunInputs, classifier: LinearClassifier) -> InferenceArtifact:
    backbone = build_backbone(inputs)
    assert backbone is not None
    num_classes, width = classifier.weight.shape
    with torch.random.fork_rng(devices=[]):  # its random weights are overwritten at once
        head = LinearHead(width, num_classes)
    with torch.no_grad():
        head.head.weight.copy_(classifier.weight)
        head.head.bias.copy_(classifier.bias)
    module = WithBackbone(backbone, head.requires_grad_(False))
    return InferenceArtifact(module, module.state_dict(), backbone, linear=True)


def write_model(
    folder: RunFolder,
    inputs: RunInputs,
    learner: Learner,
    artifact: InferenceArtifact,
    calibrator: Calibrator,
    thresholds: ReviewThresholds,
) -> int:
    """Write weights and manifest; the number of parameters."""
    module, backbone, dataset = artifact.module, artifact.backbone, inputs.dataset
    mean, std = dataset.mean, dataset.std
    if backbone is not None or starts_pretrained(learner.net):
        mean, std = normalisation(dataset.train.images.shape[3])
    parameters = sum(parameter.numel() for parameter in module.parameters())
    height, width, channels = dataset.train.images.shape[1:]
    arch_config = arch_config_of(learner.net if backbone is None else backbone.net)
    manifest: dict[str, Any] = {
        "unissl": __version__,
        "net": inputs.config.net.name,
        "method": to_tree(learner.method.cfg),
        "labelled_counts": list(learner.method.info.labelled_counts),
        "pool_images": learner.method.info.num_unlabelled,
        "config": config_hash(inputs.config),
        "class_names": list(dataset.train.class_names),
        "height": height,
        "width": width,
        "channels": channels,
        "mean": list(mean),
        "std": list(std),
        "parameters": parameters,
        "calibration": calibrator,
        "review_thresholds": thresholds,
    }
    manifest |= {} if backbone is None else {"frozen": True}
    manifest |= {"distilled": True} if artifact.distilled else {}
    manifest |= {"linear": True} if artifact.linear else {}
    if inputs.config.augment.crop is not None:
        manifest["crop"] = inputs.config.augment.crop
    if arch_config is not None:
        manifest["backbone_config"] = arch_config
    save_model(folder, artifact.weights, Manifest(**manifest))
    return parameters


def summarise(folder: RunFolder, inputs: RunInputs, result: RunResult, pool: Predictions | None) -> dict[str, Any]:
    """Accuracy three ways with ``last`` as the headline, recalls, confusion matrix, and the state of the pool."""
    dataset, split, test = inputs.dataset, inputs.split, result.test
    metrics = folder.read_metrics()
    summary: dict[str, Any] = config_summary(inputs.config)
    if result.cross_validation is not None:
        summary["cross_validation"] = result.cross_validation.summary
    summary["class_names"] = list(dataset.train.class_names)
    summary["test_images"] = 0 if dataset.test is None else len(dataset.test)
    if test is not None and dataset.test is not None:
        scores = evaluate_predictions(dataset.test.labels, test.classes, test.outlier_score, dataset.test.num_classes)
        curve = [line["accuracy"] for line in metrics if line["kind"] == "eval" and "student" not in line]
        summary["accuracy"] = accuracy_summary(curve)
        if result.student or result.shipped_baseline or result.readout:  # not a model of the curve
            best = max(scores["accuracy"], summary["accuracy"]["best"])
            summary["accuracy"] |= {"last": scores["accuracy"], "best": best}
        summary |= {key: value for key, value in scores.items() if key != "accuracy"}
    summary |= baseline_results(inputs, result)
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
    summary["warnings"] = [line["message"] for line in metrics if line["kind"] == "warning"]
    return summary


def baseline_results(inputs: RunInputs, result: RunResult) -> dict[str, Any]:
    """The simple baselines beside the shipped classifier, and which of them is shipped, and why."""
    baselines, shipped, dataset = result.baselines, result.shipped, inputs.dataset
    if baselines is None or shipped is None:
        return {}
    if result.test is not None and dataset.test is not None:
        table = baselines_summary(baselines.test, dataset.test.labels, result.test.classes, inputs.split.num_classes)
    elif result.cross_validation is not None:
        predicted = result.cross_validation.predicted
        held_out = {name: refits.predicted for name, refits in baselines.held_out.items()}
        table = baselines_summary(held_out, inputs.split.labels, predicted, inputs.split.num_classes)
    else:
        table = {}
    return {"baselines": table, "shipped": shipped.to_summary()}


def image_checks(dataset: Dataset, split: Split) -> dict[str, Any]:
    """Image issues and duplicates, for images of the user's own."""
    checks: dict[str, Any] = {"image_issues": image_issues(dataset), "duplicates": duplicates(dataset, split)}
    if len(dataset.train) + (0 if dataset.test is None else len(dataset.test)) > MAX_COMPARED:
        checks["near_duplicates_among"] = MAX_COMPARED
    return checks


def image_issues(dataset: Dataset) -> list[dict[str, Any]]:
    """What is odd about images that were used, the gravest first, each with its number and the first of its files."""
    issues = merge_issues([table.issues for table in (dataset.train, dataset.test) if table is not None])
    return [
        {"issue": text, "count": len(files), "files": list(files[:MAX_FILES_PER_ISSUE])}
        for text, files in issues.items()
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
