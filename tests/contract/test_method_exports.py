"""What every method ships can be written as ONNX; a new method is enrolled by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from method_cases import make_split, make_state
from unissl.inference.onnx import disagreement, onnx_graph

from unissl.features import FrozenBackbone, WithBackbone
from unissl.inference.model import Model, TemperatureScaled
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
    names = tuple("abcde")
    return Model(module.eval(), names, (size, size), channels, (0.4,) * channels, (0.3,) * channels)


def gap(model: Model) -> float:
    """Over more images than are taken at once, and a last batch of one."""
    shape = (model.batch + 1, *model.size, model.channels)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return disagreement(onnx_graph(model).SerializeToString(), model, images)


@pytest.mark.parametrize("name", [*SHIP_MORE, "sage"])
def test_every_kind_of_shipped_module(name: str) -> None:
    state = make_state(all_methods()[name].Config(name=name), make_split(5), channels=1)
    assert gap(model_of(state.learner.method.inference_module(state.learner.net), 1, 8)) < 1e-5


def test_a_temperature() -> None:
    state = make_state(all_methods()["fixmatch"].Config(name="fixmatch"), make_split(5), channels=3)
    assert gap(model_of(TemperatureScaled(state.learner.net, 2.5), 3, 8)) < 1e-5


def test_behind_a_frozen_network() -> None:
    torch.manual_seed(0)
    front = FrozenBackbone.empty("efficientnet-lite0", 3)
    assert gap(model_of(WithBackbone(front, MLPHead(1280, 5, bn_momentum=0.5)), 3, 32)) < 1e-5
