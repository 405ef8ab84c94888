"""Optimiser groups and the learning rate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unissl.config import check
from unissl.errors import UserError
from unissl.training.optim import OptimConfig, build_optimizer, learning_rate, set_learning_rate, tail_step


def example() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    module.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    return module


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_decay_by_number_of_dimensions(name: str) -> None:
    module = example()
    optimizer = build_optimizer(module, OptimConfig(name=name, weight_decay=0.3, lr=0.2))  # type: ignore[arg-type]
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert sorted(tuple(p.shape) for p in decayed["params"]) == [(2, 1, 3, 3), (2, 2)]
    assert sorted(tuple(p.shape) for p in plain["params"]) == [(), (2,), (2,), (2,), (2,)]
    assert {group["lr"] for group in optimizer.param_groups} == {0.2}


def test_frozen_parameters_are_left_out() -> None:
    module = example()
    next(module.parameters()).requires_grad_(False)
    groups = build_optimizer(module, OptimConfig()).param_groups
    assert sum(len(group["params"]) for group in groups) == len(list(module.parameters())) - 1


def test_without_momentum_it_is_plain_gradient_descent() -> None:
    layer = nn.Linear(1, 1)
    optimizer = build_optimizer(layer, OptimConfig(lr=0.5, momentum=0.0, weight_decay=0.0))
    before = layer.weight.item()
    for _ in range(2):
        optimizer.zero_grad()
        torch.autograd.backward(layer.weight.sum())
        optimizer.step()
    assert layer.weight.item() == pytest.approx(before - 1.0)


def test_schedules() -> None:
    assert learning_rate(OptimConfig(schedule="constant", lr=0.2), 77, 100) == 0.2
    rates = [learning_rate(OptimConfig(lr=1.0), t, 10) for t in range(11)]
    assert rates[0] == 1 and rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.19509, abs=1e-5)
    to_zero = [learning_rate(OptimConfig(schedule="cosine-to-zero", lr=2.0), t, 10) for t in range(11)]
    assert to_zero == sorted(to_zero, reverse=True)
    assert (to_zero[0], to_zero[5], to_zero[10]) == pytest.approx((2.0, 1.0, 0.0))


def test_steps_of_the_tail() -> None:
    assert [tail_step(OptimConfig(tail_average=0.3), t, 10) for t in range(10)] == [0] * 7 + [1, 2, 3]
    assert {tail_step(OptimConfig(), t, 10) for t in range(10)} == {0}


def test_the_rate_is_set_in_every_group() -> None:
    optimizer = build_optimizer(example(), OptimConfig())
    set_learning_rate(optimizer, 0.123)
    assert [group["lr"] for group in optimizer.param_groups] == [0.123, 0.123]


@pytest.mark.parametrize(
    "tree", [{"lr": 0}, {"momentum": 1}, {"ema_decay": 1.0}, {"weight_decay": -1}, {"name": "lion"}]
)
def test_impossible_settings_are_refused(tree: dict[str, object]) -> None:
    with pytest.raises(UserError, match=f"Setting '{next(iter(tree))}'"):
        check(OptimConfig, tree)
