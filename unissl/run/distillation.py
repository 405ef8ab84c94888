"""Stage 2 of a run on a frozen backbone: distillation of soft labels of the whole pool into the backbone's last stages.

A run that is resumed after its last step repeats this stage: it is random by the seed alone, and takes one or two
minutes for some 6,000 images of 160 pixels on two cores. Every process of a group computes it for itself.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from unissl.augment.image_views import ImageViews
from unissl.batches import Batches
from unissl.distil import DistilSet, Student, linear_head, soft_labels, train_student
from unissl.evaluation.predictions import Predictions, predict_rows
from unissl.features import (
    BATCH,
    Features,
    FeatureScaler,
    FrozenBackbone,
    WithBackbone,
    load_backbone,
    normalisation,
)
from unissl.nets.heads import LinearHead
from unissl.run.inputs import RunInputs
from unissl.run.setup import learnt_features
from unissl.training.checkpoint import TrainState
from unissl.types import UNLABELLED, Rows, Split
from unissl.utils.allocator import release_freed_memory
from unissl.utils.mmap_rows import take_rows

BLOCK = 4096


def run_distillation(inputs: RunInputs, state: TrainState, batches: Batches) -> Student:
    """Soft labels from teacher and neighbours, then the student trained on them."""
    config, cached = inputs.config, inputs.features
    assert cached is not None
    channels = inputs.dataset.train.images.shape[3]
    backbone = FrozenBackbone(load_backbone(config.net.name, channels), copy.deepcopy(cached.scaler)).to(inputs.device)
    data = label_pool(inputs, inputs.training_split, state, batches)
    release_freed_memory()  # the teacher needs the most memory of all stages
    if not config.distil.fine_tune:
        return Student(backbone, linear_head(data).requires_grad_(False).to(inputs.device))
    assert cached.maps is not None
    return train_student(config.distil, backbone, cached.maps, data, config.seed, bf16=config.machine.bf16)


def label_pool(inputs: RunInputs, split: Split, state: TrainState, batches: Batches) -> DistilSet:
    """Labelled and unlabelled images of ``split`` with the soft labels of the teacher."""
    cached = inputs.features
    assert cached is not None
    rows = np.concatenate([split.labelled, split.unlabelled])
    features = scale_features(cached.features[:, 0], rows, cached.scaler)
    others = [scale_features(part, rows, scaler) for part, scaler in inputs.teacher_features]
    learnt = learnt_features(state, batches, rows)
    labels = np.concatenate([split.labels, np.full(len(split.unlabelled), UNLABELLED)])
    soft = soft_labels([features, *others], learnt, labels, split.num_classes, inputs.config.distil.k_neighbours)
    return DistilSet(rows, labels != UNLABELLED, soft, features)


def predict_without_fine_tuning(
    inputs: RunInputs, split: Split, state: TrainState, batches: Batches, rows: Rows
) -> Predictions:
    """Predictions of the linear classifier that a student starts from, for some rows: a cheap lower estimate of the
    student, for cross-validation."""
    cached = inputs.features
    assert cached is not None
    head = linear_head(label_pool(inputs, split, state, batches))
    logits = head(scale_features(cached.features[:, 0], rows, cached.scaler)).logits
    return Predictions(logits.detach().softmax(-1).float().numpy())


def scale_features(features: Features, rows: Rows, scaler: FeatureScaler) -> Tensor:
    scaled: Tensor = scaler(torch.from_numpy(np.ascontiguousarray(take_rows(features, rows))))
    return scaled


def predict_pool(inputs: RunInputs, student: Student) -> Predictions:
    """Predictions for the whole pool."""
    cached, rows = inputs.pool_features or inputs.features, inputs.split.unlabelled
    assert cached is not None
    if not student.fine_tuned:
        return _linear_predictions(inputs, student, student.head)
    assert cached.maps is not None
    return Predictions(student.predict_logits(cached.maps, rows, inputs.device).softmax(-1).float().numpy())


def changed_share(inputs: RunInputs, student: Student, pool: Predictions) -> float | None:
    """Share of the pool whose predicted class fine-tuning has changed; None where there was no fine-tuning."""
    if student.start is None:
        return None
    return float((_linear_predictions(inputs, student, student.start).classes != pool.classes).mean())


def _linear_predictions(inputs: RunInputs, student: Student, head: LinearHead) -> Predictions:
    """Predictions of a linear classifier on frozen features for the whole pool."""
    cached, rows = inputs.pool_features or inputs.features, inputs.split.unlabelled
    assert cached is not None
    blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
    scaler = copy.deepcopy(student.front.scaling).cpu()
    features = (scale_features(cached.features[:, 0], block, scaler).to(inputs.device) for block in blocks)
    logits = torch.cat([head(block).logits.cpu() for block in features])
    return Predictions(logits.softmax(-1).float().numpy())


def predict_test(inputs: RunInputs, student: Student) -> Predictions | None:
    if inputs.dataset.test is None:
        return None
    images = inputs.dataset.test.images
    views = ImageViews(images, inputs.config.augment, *normalisation(images.shape[3]), inputs.device)
    batch = min(BATCH, inputs.config.batch.evaluation)
    return predict_rows(WithBackbone(student.front, student.head), views, batch_size=batch)
