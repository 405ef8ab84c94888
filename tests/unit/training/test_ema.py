"""The averaged parameters, and evaluation with them."""

from __future__ import annotations

import pytest
import torch
from method_cases import make_batches, make_split, make_state
from torch import nn

from unissl.methods.labels_only import LabelsOnlyConfig
from unissl.training.ema import Ema


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
def test_recursion(decay: float) -> None:
    layer = nn.Linear(3, 2).double()
    ema = Ema(layer, decay)
    expected = {name: p.detach().clone() for name, p in layer.named_parameters()}
    for _ in range(4):
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(torch.randn_like(p))
        ema.update(layer)
        for name, p in layer.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach()
            torch.testing.assert_close(ema.shadow[name], expected[name])


def test_buffers_are_not_averaged_and_the_shadow_is_a_copy() -> None:
    norm = nn.BatchNorm1d(2)
    ema = Ema(norm, 0.9)
    assert set(ema.shadow) == {"weight", "bias"}
    with torch.no_grad():
        norm.weight.fill_(7)
    assert ema.shadow["weight"].tolist() == [1, 1]
    assert not ema.shadow["weight"].requires_grad


def test_evaluation_takes_averaged_parameters_and_live_statistics() -> None:
    """The shadow decides the weights; running statistics of BatchNorm are those of the live network."""
    split, config = make_split(3), LabelsOnlyConfig()
    state, other = make_state(config, split, net="small"), make_state(config, split, seed=5, net="small")
    images = next(make_batches(config, split).scan_shares("labelled")).views["none"]
    shadow = {name: p.detach() for name, p in other.learner.named_parameters()}
    seen = state.learner.predict(images, shadow).logits
    torch.testing.assert_close(seen, other.learner.predict(images).logits)
    state.learner.net(images)  # training mode: the live statistics move
    moved = state.learner.predict(images, shadow).logits
    assert not torch.allclose(seen, moved)
    other.learner.load_state_dict({**state.learner.state_dict(), **shadow})
    torch.testing.assert_close(moved, other.learner.predict(images).logits)


@pytest.mark.parametrize("decay", [0.0, 0.75])
def test_tail_average_is_the_plain_mean(decay: float) -> None:
    """The shadow at the start of the tail counts as much as the steps that it looks back; every step counts as one."""
    layer = nn.Linear(2, 1, bias=False).double()
    ema = Ema(layer, decay, tail=True)
    looks_back = 1 / (1 - decay)
    total, count = looks_back * ema.shadow["weight"].clone(), looks_back
    for number in range(1, 6):
        with torch.no_grad():
            layer.weight.add_(torch.randn_like(layer.weight))
        ema.update(layer, tail_step=number)
        total, count = total + layer.weight.detach(), count + 1
        torch.testing.assert_close(ema.shadow["weight"], total / count)


def test_statistics_are_live_before_the_tail_and_averaged_in_it() -> None:
    norm = nn.BatchNorm1d(2).double()
    ema = Ema(norm, 0.5, tail=True)
    assert set(ema.shadow) == {"weight", "bias", "running_mean", "running_var"}
    norm(torch.randn(5, 2).double())
    ema.update(norm)
    assert norm.running_mean is not None
    torch.testing.assert_close(ema.shadow["running_mean"], norm.running_mean)
    before = norm.running_mean.clone()
    norm(torch.randn(5, 2).double())
    ema.update(norm, tail_step=1)
    torch.testing.assert_close(ema.shadow["running_mean"], (2 * before + norm.running_mean) / 3)
