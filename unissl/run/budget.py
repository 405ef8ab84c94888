"""How a time budget becomes a configuration: image size, steps, distillation epochs.

Every share, limit and default is in this file; ``autoconfig/suggest.py`` counts the work of a run, and
``training/timing.py`` times a call. Nothing that is measured changes the configuration unless the user gave minutes (or
asked for ``machine.tune_threads``): it follows from data and settings alone, so that one command on one data set is one
configuration. What is measured then is written into the configuration before step 0, and only steps exist from there.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from unissl.augment.feature_views import FeatureViews
from unissl.augment.image_views import ImageViews
from unissl.baselines import choose_strength, fit_simple_baselines
from unissl.batches import Batches, Views
from unissl.config import ConfigTree
from unissl.data.folder.probe import DatasetProbe
from unissl.distil.student import LABELLED_RATIO, linear_head, select_maps, tail_precision, trainable_stages
from unissl.distributed.collectives import average_gradients, broadcast_from_main
from unissl.errors import UserError
from unissl.features import BATCH, forward_features, load_backbone, normalisation
from unissl.nets import Network
from unissl.nets.bf16 import to_bf16
from unissl.run.config import RunConfig, baseline_config
from unissl.run.distillation import label_pool
from unissl.run.inputs import RunInputs
from unissl.run.setup import build_training_on, predict_with_ema
from unissl.run.shipping import clean_features, labels_of
from unissl.training.checkpoint import TrainState
from unissl.training.ema import Ema
from unissl.training.optim import build_optimizer
from unissl.training.timing import seconds_per_call
from unissl.training.trainer import TrainerContext, step_at
from unissl.types import Split, Step

PHOTO_SIZES_PX = (224, 192, 160, 128, 96)
"""Image sizes for a pretrained backbone, the most accurate first."""
DEFAULT_PHOTO_SIZE_PX = 160
"""Size where the user gave no minutes. Images with a shorter side gain nothing from being enlarged beyond it."""
SMALL_IMAGE_PX = 64
"""Images with a shorter side below this gain nothing from more than ``DEFAULT_PHOTO_SIZE_PX``."""
PHOTO_STEPS = 250
"""Training steps on features where the user gave no minutes, unless the pool is large: hardly worse than 450, and with
cross-validation there are five such trainings."""
PHOTO_BATCH, MIN_PASSES = 128, 5
"""Unlabelled images in such a step, and passes over the pool for which a large one gets more steps: with fewer, its
soft labels were worse (docs/experiments.md)."""
MAX_STEPS_ON_FEATURES = 600
"""Longer training on features made classifiers worse (docs/results.md), however long the time."""
MIN_STEPS = 100
"""Fewer steps leave method and baseline untrained, and a gain over an untrained baseline means nothing."""
SCRATCH_STEPS = 4000
"""Training steps of a small network from scratch where the user gave no minutes."""

FEATURE_TIME_FRACTION = 0.45
"""Feature extraction may take this fraction of the minutes in any case,"""
TRAINING_MINUTES = 3.0
"""or, of the minutes beyond these, which training takes at most on two cores,"""
REMAINING_TIME_FRACTION = 0.6
"""this fraction; it leaves room for a machine that becomes slower."""
DISTIL_TIME_FRACTION = 0.4
"""Distillation may take this fraction of the minutes left after feature extraction."""
MIN_DISTIL_EPOCHS = 0.1
PREDICTION_SHARE = 1 / 3
"""Cost of predicting the pool, in epochs of distillation: forward alone."""
SLACK_FRACTION = 0.05
"""Part of the minutes that no stage is planned for: what is timed before the start is only a sample."""
REPORT_SECONDS = 10.0
"""Tables, charts and the report."""
TIMED_IMAGES = 16
"""Images whose pass through the backbone is timed: enough for an estimate, and done in a moment."""
STEP_PASSES, DISTIL_PASSES = 3.0, 1.5
"""Rough cost of a training step on features, and of an image in an epoch of distillation, in passes of an image."""
DECODE_SECONDS_PER_IMAGE = 0.001
FAST_STEPS = 100
"""Training steps on features of a run with ``fast``."""
FAST_SCRATCH_STEPS = 1000


def photo_steps(pool: int) -> int:
    """Training steps on features for a pool of so many images, where the user gave no minutes."""
    return max(PHOTO_STEPS, math.ceil(MIN_PASSES * pool / PHOTO_BATCH))


def replace_budget(tree: ConfigTree, layer: Mapping[str, Any]) -> None:
    """Remove steps from ``tree`` where ``layer`` gives minutes, and the reverse: the later budget wins."""
    earlier, later = tree.get("train"), layer.get("train")
    if isinstance(earlier, dict) and isinstance(later, Mapping):
        for key, other in (("minutes", "steps"), ("steps", "minutes")):
            if key in later and other not in later:
                earlier.pop(other, None)


@dataclass(frozen=True)
class PhotoWork:
    """What a run on photos computes, as far as it is known before any image is decoded."""

    images: int
    trained: int
    """Images that the run trains on; augmented views and further crops are of these alone."""
    extra_passes: float
    """Passes of such an image through the backbone, besides the first."""
    trainings: int = 0
    """Trainings on features, folds of the cross-validation included."""
    steps: int = 0
    distil_epochs: float = 0.0


@dataclass(frozen=True)
class PassSeconds:
    """Time of one image of 128 x 128 pixels through a frozen backbone, in float32 and in reduced precision."""

    exact: float
    reduced: float

    def features(self, work: PhotoWork, size: int) -> float:
        """Seconds of all passes at ``size`` pixels: work grows with the area."""
        seconds = work.images * self.exact + work.trained * work.extra_passes * self.reduced
        return seconds * (size / 128) ** 2

    def total(self, work: PhotoWork, size: int) -> float:
        """Rough seconds of the whole run, with an empty cache."""
        training = work.trainings * work.steps * STEP_PASSES * self.exact
        distillation = work.distil_epochs * work.trained * DISTIL_PASSES * self.reduced * (size / 128) ** 2
        decoding = work.images * DECODE_SECONDS_PER_IMAGE
        return self.features(work, size) + training + distillation + decoding + REPORT_SECONDS


def choose_photo_size(
    probe: DatasetProbe, minutes: float | None, work: PhotoWork, speed: PassSeconds
) -> tuple[int, str]:
    """Side of the images for a frozen backbone, and the reason.

    Without minutes the size is fixed. With minutes it is the largest whose features are extracted in time.
    """
    if minutes is None:
        return DEFAULT_PHOTO_SIZE_PX, "the default"
    seconds = 60 * max(FEATURE_TIME_FRACTION * minutes, REMAINING_TIME_FRACTION * (minutes - TRAINING_MINUTES))
    largest = PHOTO_SIZES_PX[0] if probe.side >= SMALL_IMAGE_PX else DEFAULT_PHOTO_SIZE_PX
    sizes = [size for size in PHOTO_SIZES_PX if size <= largest]
    in_time = [size for size in sizes if speed.features(work, size) <= seconds]
    size = in_time[0] if in_time else sizes[-1]
    return size, f"fits {minutes:g} minutes: {1000 * speed.exact:.1f} ms per pass of an image of 128 px"


def measure_passes(backbone: str, channels: int) -> PassSeconds:
    """Time a few images through the backbone, with random weights."""
    net = load_backbone(backbone, channels, pretrained=False)
    images = torch.zeros(TIMED_IMAGES, channels, 128, 128).to(memory_format=torch.channels_last)

    def seconds(network: Network) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            forward_features(network, images, maps=False)
            times.append(time.perf_counter() - start)
        return min(times) / TIMED_IMAGES

    with torch.inference_mode():
        return PassSeconds(seconds(net), seconds(to_bf16(net)))


@dataclass(frozen=True)
class ReservedTime:
    """What else has to fit into the minutes of a run, besides the steps of the method."""

    started: float | None = None
    """Monotonic time at which the minutes began to count; by default now."""
    baseline: Split | None = None
    """The split, where a labels-only baseline is trained on it as well."""
    refits: int = 0
    """Further trainings for cross-validation."""
    distil_seconds: float = 0.0
    fit_seconds: float = 0.0
    """Teacher and simple baselines, of the run and of its refits."""
    slack_seconds: float = 0.0
    test_views: Views | None = None

    def seconds(self) -> float:
        """Used already, or reserved for the end."""
        used = 0.0 if self.started is None else time.monotonic() - self.started + REPORT_SECONDS
        return self.distil_seconds + self.fit_seconds + self.slack_seconds + used


def plan_budget(inputs: RunInputs, state: TrainState, batches: Batches, started: float, baseline: bool) -> RunConfig:
    """The configuration with minutes turned into steps and distillation epochs; unchanged where steps are given."""
    config = inputs.config
    if config.train.steps is not None:
        return config
    assert config.train.minutes is not None
    reserved = ReservedTime(
        started,
        inputs.split if baseline else None,
        len(inputs.folds),
        fit_seconds=seconds_of_fits(inputs, state, batches),
        slack_seconds=SLACK_FRACTION * 60 * config.train.minutes,
        test_views=inputs.test_views,
    )
    share = DISTIL_TIME_FRACTION * (60 * config.train.minutes - reserved.seconds())
    config, distil_seconds = fit_distil_epochs(inputs, share)
    return steps_from_minutes(config, state, batches, replace(reserved, distil_seconds=distil_seconds), MIN_STEPS)


def steps_from_minutes(
    config: RunConfig, state: TrainState, batches: Batches, reserved: ReservedTime | None = None, min_steps: int = 1
) -> RunConfig:
    """The configuration with the number of steps that fits into its minutes; fewer than ``min_steps`` are refused."""
    minutes, reserved = config.train.minutes, reserved or ReservedTime()
    assert minutes is not None
    per_step, overhead = measure_cost(config, state, batches, reserved)

    def fitting() -> int:
        other = reserved.seconds() + overhead
        steps = steps_within(60 * minutes - other, per_step)
        if steps < min_steps:
            needed = math.ceil((other + min_steps * per_step) / 60)
            raise UserError(
                f"{minutes:g} minutes are too short for {min_steps} training steps here, and fewer mean nothing; give "
                f"--minutes {max(needed, math.floor(minutes) + 1)}, or leave out --minutes."
            )
        return steps

    steps = broadcast_from_main(fitting)
    if config.net.freeze_backbone:
        steps = min(steps, MAX_STEPS_ON_FEATURES)
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})


def steps_within(seconds: float, per_step: float) -> int:
    return max(1, int(seconds / per_step))


def measure_cost(config: RunConfig, state: TrainState, batches: Batches, reserved: ReservedTime) -> tuple[float, float]:
    """Seconds of one step of everything that will be trained, and of all evaluations, from discarded steps of the
    method and of its baseline, and an evaluation."""
    rng = torch.get_rng_state()
    timer = StepTimer(config, state, batches)
    per_step = seconds_per_call(timer.step)
    if reserved.baseline is not None:
        labels_only = baseline_config(config)
        training = build_training_on(labels_only, batches.views, reserved.baseline, batches.device)
        per_step += seconds_per_call(StepTimer(labels_only, *training).step)
    tests = reserved.test_views
    views, sample = tests or batches.views, 4 * config.batch.evaluation
    rows = np.arange(min(len(views), sample))
    start = time.perf_counter()
    predict_with_ema(timer.learner, timer.ema.shadow, views, batches, rows)
    per_image = (time.perf_counter() - start) / len(rows)
    per_evaluation = sample if tests is None else len(tests)
    pool = len(batches.subsets["unlabelled"].rows)
    runs = 1 if reserved.baseline is None else 2
    overhead = runs * per_image * (per_evaluation * (config.train.evaluations + 1) + pool)
    overhead += (1 + reserved.refits) * config.train.method_periods * period_seconds(config, timer, batches)
    torch.set_rng_state(rng)
    return (1 + reserved.refits) * per_step, overhead


def period_seconds(config: RunConfig, timer: StepTimer, batches: Batches) -> float:
    """Seconds of what the method does at the start of a period that is not the first."""
    periods = config.train.method_periods
    step = Step(min(1, periods - 1), max(2, periods), min(1, periods - 1), periods)
    start = time.perf_counter()
    timer.learner.method.on_period_start(TrainerContext(timer.learner, timer.ema.shadow, batches, step))
    return time.perf_counter() - start


def fit_distil_epochs(inputs: RunInputs, seconds: float) -> tuple[RunConfig, float]:
    """The configuration with as many distillation epochs as fit into ``seconds``, and the seconds they will take."""
    config = inputs.config
    if not inputs.distils or not config.distil.fine_tune:
        return config, 0.0
    per_epoch = seconds_per_distil_epoch(inputs)
    tests = 0.0 if inputs.dataset.test is None else len(inputs.dataset.test) * seconds_per_test_image(inputs)
    fixed = tests + PREDICTION_SHARE * per_epoch
    fitting = broadcast_from_main(lambda: (seconds - fixed) / per_epoch)
    epochs = min(config.distil.epochs, round(max(MIN_DISTIL_EPOCHS, fitting), 2))
    config = config.model_copy(update={"distil": config.distil.model_copy(update={"epochs": epochs})})
    return config, fixed + epochs * per_epoch


def seconds_of_fits(inputs: RunInputs, state: TrainState, batches: Batches) -> float:
    """Time of what is fitted to features besides the steps: the teacher with its linear classifier, and the simple
    baselines, for the run and for each of its refits. One of each is fitted and discarded."""
    from sklearn.linear_model import LogisticRegression  # noqa: F401 - imported once, which is not part of a fit

    split, views, fits = inputs.training_split, inputs.train_views, 1 + len(inputs.folds)
    seconds = 0.0
    if inputs.distils:
        _ = inputs.teacher_features  # computed once
        start = time.perf_counter()
        linear_head(label_pool(inputs, split, state, batches))
        seconds += fits * (time.perf_counter() - start)
    if inputs.config.compares_baselines and isinstance(views, FeatureViews):
        features = clean_features(views, np.concatenate([split.labelled, split.unlabelled]))
        start = time.perf_counter()
        strength = choose_strength(features[: len(split.labelled)], split.labels, split.num_classes)
        chosen = time.perf_counter()
        fit_simple_baselines(features, labels_of(split), split.num_classes, strength)
        seconds += chosen - start + fits * (time.perf_counter() - chosen)
    return broadcast_from_main(lambda: seconds)


def seconds_per_distil_epoch(inputs: RunInputs) -> float:
    """Time of one epoch over the pool, from discarded steps."""
    config, cached, device = inputs.config, inputs.features, inputs.device
    assert cached is not None and cached.maps is not None
    maps = cached.maps
    net = load_backbone(config.net.name, inputs.dataset.train.images.shape[3]).to(device)
    stages = trainable_stages(net)
    rows = np.resize(np.arange(len(maps)), config.distil.batch + config.distil.batch // LABELLED_RATIO)

    def step(_: int) -> None:
        torch.autograd.backward(stages(select_maps(maps, rows, np.zeros_like(rows), device)).mean())

    with tail_precision(net, stages, config.machine.bf16):
        return len(inputs.training_split.unlabelled) / config.distil.batch * seconds_per_call(step)


def seconds_per_test_image(inputs: RunInputs) -> float:
    """Time of one image through the whole student, as test images pass it once more."""
    images = inputs.dataset.train.images
    net = load_backbone(inputs.config.net.name, images.shape[3]).to(inputs.device)
    views = ImageViews(images, inputs.config.augment, *normalisation(images.shape[3]), inputs.device)
    rows = np.arange(min(BATCH, len(images)))
    with torch.no_grad():
        return seconds_per_call(lambda _: net(views("none", rows))) / len(rows)


def tune_threads(config: RunConfig, state: TrainState, batches: Batches) -> RunConfig:
    """Time discarded steps with all threads, half of them and so on, and keep the fastest number."""
    timer, threads = StepTimer(config, state, batches), torch.get_num_threads()
    seconds = {}
    while threads:
        torch.set_num_threads(threads)
        seconds[threads] = seconds_per_call(timer.step)
        threads //= 2
    fastest = min(seconds, key=seconds.__getitem__)
    torch.set_num_threads(fastest)
    return config.model_copy(update={"machine": config.machine.model_copy(update={"threads": fastest})})


class StepTimer:
    """Training steps on a copy of the learner, to be timed and discarded."""

    def __init__(self, config: RunConfig, state: TrainState, batches: Batches) -> None:
        self.batches = batches
        self.learner = copy.deepcopy(state.learner)
        self.optimizer = build_optimizer(self.learner, config.optim)
        self.ema = Ema(self.learner, config.optim.ema_decay)

    def step(self, number: int) -> None:
        """One step at the start, in the middle or near the end of the budget by turns: methods have phases."""
        self.optimizer.zero_grad(set_to_none=True)
        phase = step_at((0, 50, 95)[number % 3], 100, 1)
        torch.autograd.backward(self.learner.losses(self.batches.at(number), phase).total)
        average_gradients(self.learner)
        self.optimizer.step()
        self.ema.update(self.learner)
