"""Loss curves of short trainings in float64 on numbers from numpy's RandomState, which never change.

The images skip the augmentation, whose rounding to bytes could turn a last bit into a grey level on another CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unissl.methods.base import Method, MethodConfig, attach_method
from unissl.methods.registry import all_methods, get_method
from unissl.methods.sage import FORMS
from unissl.nets import build
from unissl.training.ema import Ema
from unissl.training.learner import Learner
from unissl.training.optim import OptimConfig, build_optimizer, learning_rate, set_learning_rate
from unissl.training.trainer import step_at
from unissl.types import Batch, DataInfo, StreamBatch

STEPS, CLASSES, COUNTS = 20, 4, (4, 3, 2, 1)
SIZES = {"labelled": 6, "heldout": 6, "unlabelled": 10}
OPTIM = OptimConfig(lr=0.03, ema_decay=0.9)
SETTINGS: dict[str, dict[str, Any]] = {
    "calimatch": {"threshold": 0.3},
    "cgmatch": {"momentum": 0.5},
    "fixmatch": {"threshold": 0.5},  # something is selected within twenty steps
    "flexmatch": {"threshold": 0.995, "warm_up": False},  # not everything is
    "freematch": {"momentum": 0.5},
    "scomatch": {"threshold": 0.5, "outlier_min": 0.3, "outlier_max": 0.5},  # something is selected
    "softmatch": {"momentum": 0.5},
    "ssb": {"threshold": 0.5, "warm_up": 0.3, "negative_threshold": 0.4},  # stage 2 has steps and finds negatives
    "meta-expert": {
        "threshold": 0.5,
        "warm_up": 0.2,
        "estimate": 0.2,
    },  # so that all its phases have several steps
    **{f"sage-{form}": {"form": form, "drp_momentum": 0.9} for form in FORMS},
}
CASES = sorted({*all_methods(), *SETTINGS} - {"sage"})


def config_of(case: str) -> MethodConfig:
    name = "sage" if case.startswith("sage-") else case
    return get_method(name).Config(**SETTINGS.get(case, {})).for_data(CLASSES)


def draw_batch(method: type[Method], config: MethodConfig, iteration: int) -> Batch:
    """A class is a pattern; a weak view adds a little noise to it and a strong view more."""
    patterns = np.random.RandomState(0).normal(size=(CLASSES, 1, 8, 8))
    rng = np.random.RandomState(1000 + iteration)
    batch = {}
    for name, stream in method.streams(config).items():
        labels = rng.randint(0, CLASSES, SIZES[stream.source])
        noise = {view: 1.0 if view.startswith("strong") else 0.5 for view in stream.views}
        views = {
            view: torch.from_numpy(patterns[labels] + scale * rng.normal(size=(len(labels), 1, 8, 8)))
            for view, scale in noise.items()
        }
        target = None if stream.source == "unlabelled" else torch.eye(CLASSES)[torch.from_numpy(labels)]
        batch[name] = StreamBatch(views, torch.from_numpy(rng.permutation(30)[: len(labels)]), target)
    return batch


@contextmanager
def one_thread_in(dtype: torch.dtype) -> Iterator[None]:
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(dtype)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


def curve(case: str) -> dict[str, list[float]]:
    """Every loss term, and the total, at each of twenty steps."""
    with one_thread_in(torch.float64):
        torch.manual_seed(0)
        config = config_of(case)
        method = get_method(config.name)
        net = build("wrn-10-1" if method.taps else "small", CLASSES, 1)
        attach_method(net, method)
        tap_dims = {name: net.tap_dims[name] for name in method.taps}
        learner = Learner(net, method(config, DataInfo(CLASSES, net.feat_dim, 30, COUNTS, tap_dims, (1, 8, 8))))
        optimizer, ema = build_optimizer(learner, OPTIM), Ema(learner, OPTIM.ema_decay)
        columns: dict[str, list[float]] = {}
        for iteration in range(STEPS):
            set_learning_rate(optimizer, learning_rate(OPTIM, iteration, STEPS))
            losses = learner.losses(draw_batch(method, config, iteration), step_at(iteration, STEPS, 4))
            optimizer.zero_grad()
            torch.autograd.backward(losses.total)
            optimizer.step()
            ema.update(learner)
            for name, value in {**losses.terms, "total": losses.total}.items():
                columns.setdefault(name, []).append(value.item())
        return columns


def path_of(case: str) -> Path:
    return Path(__file__).with_name(f"{case}.txt")


def write(case: str, columns: dict[str, list[float]]) -> None:
    rows = [f"{value:.10e}" for values in zip(*columns.values(), strict=True) for value in values]
    width = len(columns)
    lines = [" ".join(rows[i : i + width]) for i in range(0, len(rows), width)]
    path_of(case).write_text("\n".join([" ".join(columns), *lines]) + "\n", encoding="utf-8")


def read(case: str) -> dict[str, list[float]]:
    header, *lines = path_of(case).read_text(encoding="utf-8").splitlines()
    table = [[float(value) for value in line.split()] for line in lines]
    return {name: [row[i] for row in table] for i, name in enumerate(header.split())}
