"""The last part of a run on a frozen backbone: soft labels of the whole pool, and the last stages trained on them.

It is made anew whenever a run is resumed after its last step: nothing in it is random but by the seed, and it takes one
or two minutes for some 6,000 images of 160 pixels on two cores. Every process of a group does it for itself.
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
from unissl.distil.student import LABELLED_SHARE, select_maps, trainable_stages
from unissl.distributed.collectives import broadcast_from_main, local_main_process_first
from unissl.evaluation.predictions import Predictions, predict_rows
from unissl.features.extract import (
    BATCH,
    FeatureMaps,
    Features,
    FeatureScaler,
    FrozenBackbone,
    WithBackbone,
    load_backbone,
    normalisation,
)
from unissl.features.multi_crop import multi_crop_features
from unissl.methods.registry import get_method
from unissl.nets.bf16 import bf16_matmul
from unissl.run.config import RunConfig
from unissl.run.inputs import cached_features
from unissl.training.checkpoint import TrainState
from unissl.training.timing import seconds_per_call
from unissl.types import Split

TEACHER_SECONDS = 0.002
"""About what soft labels and the first classifier take for each image."""
MIN_EPOCHS = 0.1

Rows = npt.NDArray[np.int64]


def should_distil(config: RunConfig, images: int, split: Split) -> bool:
    """Whether this part is there: it is asked for, there are maps and a pool to learn from, and the method predicts
    with nothing but the network's own classifier, which the student's replaces."""
    method = get_method(config.method.name)
    able = method.learns_from_pool(config.method) and method.predicts_plainly()
    return config.distil.keeps_maps(images) and able and len(split.unlabelled) > 0


def run_distillation(
    config: RunConfig, state: TrainState, batches: Batches, dataset: Dataset, split: Split
) -> tuple[Student, FeatureMaps]:
    """The student, and the maps of the training images that it can be asked about."""
    device = batches.device
    images = dataset.train.images
    made = cached_features(config, images, config.augment.cached_views, device)
    assert made.maps is not None
    rows = np.concatenate([split.labelled, split.unlabelled])
    scaling = FeatureScaler.of(made.vectors)
    vectors = scaled(made.vectors[:, 0], rows, scaling)
    others = [
        scaled(picture, rows, FeatureScaler.of(picture[:, None])) for picture in extra_crops(config, dataset, device)
    ]
    learnt = learnt_features(state, batches.views, rows, batches.config.evaluation)
    soft = soft_labels([vectors, *others], learnt, split.labels, split.num_classes, config.distil.k_neighbours)
    front = FrozenBackbone(load_backbone(config.net.name, images.shape[3]), scaling).to(device)
    labelled = len(split.labelled)
    student = train_student(config.distil, front, made.maps, vectors, rows, labelled, soft, config.seed)
    return student, made.maps


def extra_crops(config: RunConfig, dataset: Dataset, device: torch.device) -> tuple[Features, ...]:
    """What the backbone makes of the pictures that only this part of a run looks at."""
    if not config.distil.multi_crop:
        return ()
    return local_main_process_first(lambda: multi_crop_features(dataset.train, config.net.name, device))


def scaled(vectors: Features, rows: Rows, scaling: FeatureScaler) -> Tensor:
    made: Tensor = scaling(torch.from_numpy(np.ascontiguousarray(vectors[rows])))
    return made


def learnt_features(state: TrainState, views: Views, rows: Rows, batch: int) -> Tensor:
    """What the method has made of the clean vectors of some rows, (n, d)."""
    blocks = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    said = [state.learner.predict(views("none", block), state.ema.shadow).features.cpu() for block in blocks]
    return torch.cat(said)


def predict_pool(student: Student, maps: FeatureMaps, rows: Rows, device: torch.device) -> Predictions:
    return Predictions(student.answer(maps, rows, device).softmax(-1).float().numpy())


def predict_test(student: Student, config: RunConfig, dataset: Dataset, device: torch.device) -> Predictions:
    """From the test images themselves, the whole way."""
    assert dataset.test is not None
    images = dataset.test.images
    views = ImageViews(images, config.augment, *normalisation(images.shape[3]), device)
    module = WithBackbone(student.front, student.head)
    return predict_rows(module, views, batch_size=min(BATCH, config.batch.evaluation))


def seconds_per_epoch(
    config: RunConfig, maps: FeatureMaps, unlabelled: int, channels: int, device: torch.device
) -> float:
    """What one pass over the pool will take, from some steps that are thrown away."""
    stages = trainable_stages(load_backbone(config.net.name, channels).to(device))
    rows = np.resize(np.arange(len(maps)), config.distil.batch + config.distil.batch // LABELLED_SHARE)

    def step(_: int) -> None:
        torch.autograd.backward(stages(select_maps(maps, rows, np.zeros_like(rows), device)).mean())

    with bf16_matmul(stages):
        return unlabelled / config.distil.batch * seconds_per_call(step)


def fit_epochs_to_time(
    config: RunConfig, dataset: Dataset, split: Split, device: torch.device, seconds: float, fewest: float
) -> tuple[RunConfig, float]:
    """Fewer epochs, but not fewer than ``fewest``, where this part of a run would take longer than ``seconds``; and the
    seconds that it will take then."""
    images = dataset.train.images
    if not should_distil(config, len(images), split):
        return config, 0.0
    maps = cached_features(config, images, config.augment.cached_views, device).maps
    assert maps is not None
    per_epoch = seconds_per_epoch(config, maps, len(split.unlabelled), images.shape[3], device)
    tested = 0.0 if dataset.test is None else len(dataset.test) * seconds_per_image(config, dataset, device)
    beside = tested + TEACHER_SECONDS * len(images)
    most = broadcast_from_main(lambda: (seconds - beside) / per_epoch)
    epochs = min(config.distil.epochs, round(max(fewest, most), 2))
    config = config.model_copy(update={"distil": config.distil.model_copy(update={"epochs": epochs})})
    return config, beside + epochs * per_epoch


def seconds_per_image(config: RunConfig, dataset: Dataset, device: torch.device) -> float:
    """Time of one image through the whole backbone, which test images go once more."""
    images = dataset.train.images
    net = load_backbone(config.net.name, images.shape[3]).to(device)
    views = ImageViews(images, config.augment, *normalisation(images.shape[3]), device)
    some = np.arange(min(BATCH, len(images)))
    with torch.no_grad():
        return seconds_per_call(lambda _: net(views("none", some))) / len(some)
