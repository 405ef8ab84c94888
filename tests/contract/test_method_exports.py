"""What every method ships can be written as ONNX; a new method is enrolled by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from method_cases import make_split, make_state

from unissl.evaluation.calibrators import TemperatureScaling
from unissl.features import FrozenBackbone, WithBackbone
from unissl.inference.exporters.base import max_difference
from unissl.inference.exporters.onnx import OnnxExporter
from unissl.inference.manifest import Manifest
from unissl.inference.model import Calibrated, Model
from unissl.methods.base import Method
from unissl.methods.registry import all_methods
from unissl.nets.heads import MLPHead

SHIP_THE_NETWORK = [name for name, kind in all_methods().items() if kind.inference_module is Method.inference_module]
SHIP_MORE = [name for name in all_methods() if name not in SHIP_THE_NETWORK]


def model_of(module: torch.nn.Module, channels: int, size: int) -> Model:
    """With normalisation statistics that are not those of the start."""
    module.train()
    with torch.no_grad():
        module(torch.randn(8, channels, size, size))
    manifest = Manifest(
        unissl="0",
        net="small",
        method={"name": "sage"},
        labelled_counts=[1] * 5,
        pool_images=1,
        class_names=list("abcde"),
        height=size,
        width=size,
        channels=channels,
        mean=[0.4] * channels,
        std=[0.3] * channels,
    )
    return Model(module.eval(), manifest)


def gap(model: Model) -> float:
    """Over more images than are taken at once, and a last batch of one."""
    shape = (model.batch_size + 1, *model.manifest.image_shape)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    exporter = OnnxExporter()
    return max_difference(exporter.load(exporter.encode(model, {})), model, images)


@pytest.mark.parametrize("name", [*SHIP_MORE, "sage"])
def test_every_kind_of_shipped_module(name: str) -> None:
    state = make_state(all_methods()[name].Config(name=name), make_split(5), channels=1)
    assert gap(model_of(state.learner.method.inference_module(state.learner.net), 1, 8)) < 1e-5


def test_a_calibrator() -> None:
    state = make_state(all_methods()["fixmatch"].Config(name="fixmatch"), make_split(5), channels=3)
    assert gap(model_of(Calibrated(state.learner.net, TemperatureScaling(temperature=2.5)), 3, 8)) < 1e-5


def test_behind_a_frozen_network() -> None:
    torch.manual_seed(0)
    front = FrozenBackbone.empty("efficientnet-lite0", 3)
    assert gap(model_of(WithBackbone(front, MLPHead(1280, 5, bn_momentum=0.5)), 3, 32)) < 1e-5
