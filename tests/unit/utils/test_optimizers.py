"""Optimisers that never import torch's compiler."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from unissl.utils.optimizers import SGD, Adam

TRAIN = """
import sys, torch
from unissl.utils.optimizers import SGD, Adam
layer = torch.nn.Linear(3, 2)
for optimizer in (SGD(layer.parameters(), lr=0.1, momentum=0.9), Adam(layer.parameters(), lr=0.1)):
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "foreach": True}),
        (Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
    ],
)
def test_steps_are_those_of_torch(
    ours: type[torch.optim.Optimizer], theirs: type[torch.optim.Optimizer], options: dict[str, object]
) -> None:
    torch.manual_seed(0)
    one = nn.Linear(4, 3)
    other = copy.deepcopy(one)
    optimizers = ours(one.parameters(), **options), theirs(other.parameters(), **options)
    for _ in range(5):
        x = torch.randn(6, 4)
        for layer, optimizer in zip((one, other), optimizers, strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(layer(x).square().sum())
            optimizer.step()
    assert torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)
    first, second = (optimizer.state_dict()["state"][0] for optimizer in optimizers)
    assert first.keys() == second.keys()


def test_the_compiler_is_not_imported() -> None:
    made = subprocess.run([sys.executable, "-c", TRAIN], check=True, capture_output=True, text=True)
    assert made.stdout.strip() == "False"
