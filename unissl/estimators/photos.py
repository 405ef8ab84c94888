"""Pixels on a frozen backbone: what ``unissl.train`` does for an array, in a temporary run folder without report."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unissl.autoconfig.recipes import with_recipe
from unissl.autoconfig.suggest import suggest_config
from unissl.config import ConfigTree, check, merge
from unissl.estimators.training import Fit, forked_generator, raise_interrupts
from unissl.inference.model import Model, load_model
from unissl.run import pipeline
from unissl.run.config import MachineConfig, build_config
from unissl.run.given_images import store_images
from unissl.run.predictions_io import read_pool_predictions
from unissl.run.setup import setup_device
from unissl.run_folder import RunFolder
from unissl.types import UNLABELLED, Floats, Labels, Pixels
from unissl.utils.progress import log


@dataclass(frozen=True)
class FittedModel:
    """The model of a run, which is pickled as plain values, fitted to images of one shape (height, width, channels)."""

    image_shape: tuple[int, ...]
    model: Model
    columns: Labels
    """Position (C,) of each class among the classes of the model, which has its own order."""

    def predict_proba(self, images: Pixels) -> Floats:
        return self.model.predict_proba(images)[:, self.columns]


def train_photos(settings: ConfigTree, images: Pixels, codes: Labels, class_names: Sequence[str], *, fast: bool) -> Fit:
    """Train on images (n, h, w, channels) with ``codes`` (n,), the index of the class of each or -1.

    If all images are labelled, copies of them are the pool.
    """
    num_rows, shape = images.shape[0], images.shape[1:]
    if (codes != UNLABELLED).all():
        images, codes = np.concatenate([images, images]), np.concatenate([codes, np.full_like(codes, UNLABELLED)])
    labels = [None if code == UNLABELLED else class_names[code] for code in codes]
    device = setup_device(check(MachineConfig, settings["machine"], where="machine"))
    with forked_generator(device), tempfile.TemporaryDirectory(prefix="unissl-") as temporary, raise_interrupts():
        folder = RunFolder(temporary)
        suggestion = suggest_config(merge(settings, {"data": store_images(images, labels, folder)}), fast=fast)
        for reason in suggestion.reasons:
            log.info(reason)
        tree = with_recipe(suggestion.settings, suggestion.recipe)
        run = pipeline.run(build_config(merge({"output": {"simple_baselines": True}}, tree)), folder.path)
        model = load_model(folder)
        pool = read_pool_predictions(folder, len(class_names))
        metrics = folder.read_metrics()
    columns = np.array([model.class_names.index(name) for name in class_names])
    assert pool is not None and run.config.train.steps is not None
    predicted = codes.copy()
    predicted[pool["row"]] = np.argsort(columns)[pool["class_index"]]
    return Fit(FittedModel(shape, model, columns), predicted[:num_rows], metrics, run.config.train.steps)
