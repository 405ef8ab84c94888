"""The last part of a run on a frozen backbone: soft labels of the whole pool, and the last stages trained on them.

It is made anew whenever a run is resumed after its last step: nothing in it is random but by the seed, and it takes
about a minute.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.augment.image_views import ImageViews
from unissl.batches import Batches, Views
from unissl.data import Dataset
from unissl.distil import Student, soft_labels, train_student
from unissl.distil.student import steps_of, taken, trainable_stages
from unissl.evaluate.predict import Predictions, predict_rows
from unissl.features import BehindFront, Front, Maps, Scaling, backbone, normalisation
from unissl.material import extracted, keeps_maps
from unissl.methods.registry import get_method
from unissl.run_config import RunConfig
from unissl.train.budget import seconds_per_call
from unissl.train.checkpoint import TrainState
from unissl.types import Split

TEACHER_SECONDS = 15.0
"""About what soft labels and the first classifier take."""

Rows = npt.NDArray[np.int64]


def trains_further(config: RunConfig, images: int, split: Split) -> bool:
    """Whether this part is there: it is asked for, there are maps and a pool to learn from, and the method predicts
    with nothing but the network's own classifier, which the student's replaces."""
    method = get_method(config.method.name)
    able = method.learns_from_pool(config.method) and method.predicts_plainly()
    return keeps_maps(config, images) and able and len(split.unlabelled) > 0


def train_further(
    config: RunConfig, state: TrainState, batches: Batches, dataset: Dataset, split: Split
) -> tuple[Student, Maps]:
    """The student, and the maps of the training images that it can be asked about."""
    device = batches.device
    images = dataset.train.images
    made = extracted(config, images, config.augment.copies, device)
    assert made.maps is not None
    rows = np.concatenate([split.labelled, split.unlabelled])
    scaling = Scaling.of(made.vectors)
    vectors: Tensor = scaling(torch.from_numpy(np.ascontiguousarray(made.vectors[rows, 0])))
    learnt = features(state, batches.views, rows, batches.config.evaluation)
    soft = soft_labels(vectors, learnt, split.labels, split.num_classes, config.distil.neighbours)
    front = Front(backbone(config.net.name, images.shape[3]), scaling).to(device)
    labelled = len(split.labelled)
    student = train_student(config.distil, front, made.maps, vectors, rows, labelled, soft, config.seed)
    return student, made.maps


def features(state: TrainState, views: Views, rows: Rows, batch: int) -> Tensor:
    """What the method has made of the clean vectors of some rows, (n, d)."""
    blocks = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    said = [state.learner.predict(views("none", block), state.ema.shadow).features.cpu() for block in blocks]
    return torch.cat(said)


def answers_of_pool(student: Student, maps: Maps, rows: Rows, device: torch.device) -> Predictions:
    return Predictions(student.answer(maps, rows, device).softmax(-1).float().numpy())


def answers_of_test(student: Student, config: RunConfig, dataset: Dataset, device: torch.device) -> Predictions:
    """From the test images themselves, the whole way."""
    assert dataset.test is not None
    images = dataset.test.images
    views = ImageViews(images, config.augment, *normalisation(images.shape[3]), device)
    module = BehindFront(student.front, student.head)
    return predict_rows(module, views, batch_size=config.batch.evaluation)


def seconds_of(config: RunConfig, dataset: Dataset, split: Split, device: torch.device) -> float:
    """What this part of a run will take, from some steps that are thrown away."""
    if not trains_further(config, len(dataset.train), split):
        return 0.0
    maps = extracted(config, dataset.train.images, config.augment.copies, device).maps
    assert maps is not None
    stages = trainable_stages(backbone(config.net.name, dataset.train.images.shape[3]).to(device))
    rows = np.resize(np.arange(len(maps)), config.distil.batch * 5 // 4)

    def step(_: int) -> None:
        torch.autograd.backward(stages(taken(maps, rows, np.zeros_like(rows), device)).mean())

    return TEACHER_SECONDS + steps_of(config.distil, len(split.unlabelled)) * seconds_per_call(step)
