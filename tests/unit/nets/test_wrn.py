"""The wide residual network against its description, re-computed slowly from the state dict."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from unissl.nets import Network, build

State = dict[str, Tensor]
DISCARDED = {f"stages.{group}.0.norm1" for group in ("stage2", "stage3")}


def lively(name: str, **options: int) -> Network:
    """A float64 network whose BatchNorms are far from the identity, so that each of them shows in the output."""
    torch.manual_seed(0)
    net = build(name, 10, **options).double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net


def batch_norm(x: Tensor, state: State, key: str, training: bool, eps: float = 1e-5) -> Tensor:
    mean, var = state[f"{key}.running_mean"], state[f"{key}.running_var"]
    if training:
        mean, var = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), unbiased=False)
    scale, shift = state[f"{key}.weight"], state[f"{key}.bias"]
    per_channel = (1, -1, 1, 1)
    return (x - mean.view(per_channel)) / (var.view(per_channel) + eps).sqrt() * scale.view(per_channel) + shift.view(
        per_channel
    )


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.1 * x)


def slow_wrn(x: Tensor, state: State, depth: int, width: int, training: bool) -> dict[str, Tensor]:
    """Section by section: stem, three groups of (depth - 4) / 6 units, final BN with its own eps, pooling, linear."""
    taps = {"stem": conv2d(x, state["stages.stem.weight"], state["stages.stem.bias"], padding=1)}
    x = taps["stem"]
    widths = [16, 16 * width, 32 * width, 64 * width]
    for group in (1, 2, 3):
        for i in range((depth - 4) // 6):
            unit = f"stages.stage{group}.{i}"
            stride = 2 if group > 1 and i == 0 else 1
            equal_widths = i > 0 or widths[group - 1] == widths[group]
            activated = leaky(batch_norm(x, state, f"{unit}.norm1", training))
            if equal_widths:
                into_branch, shortcut = activated, x
            elif group == 1:
                into_branch = activated
                shortcut = conv2d(activated, state[f"{unit}.shortcut.weight"], stride=stride)
            else:  # the activated input is thrown away
                into_branch, shortcut = x, conv2d(x, state[f"{unit}.shortcut.weight"], stride=stride)
            inner = conv2d(into_branch, state[f"{unit}.conv1.weight"], stride=stride, padding=1)
            inner = leaky(batch_norm(inner, state, f"{unit}.norm2", training))
            x = shortcut + conv2d(inner, state[f"{unit}.conv2.weight"], padding=1)
        taps[f"stage{group}"] = x
    taps["map"] = leaky(batch_norm(x, state, "stages.map.0", training, eps=1e-3))
    taps["feat"] = taps["map"].sum(dim=(2, 3)) / (taps["map"].shape[2] * taps["map"].shape[3])
    taps["logits"] = taps["feat"] @ state["head.weight"].T + state["head.bias"]
    return taps


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 2), (10, 3)])
def test_forward_equals_the_slow_one(depth: int, width: int, training: bool) -> None:
    net = lively(f"wrn-{depth}-{width}").train(training)
    net.wanted_taps = ("stem", "stage1", "stage2", "stage3", "map")
    x = torch.randn(3, 3, 12, 10, dtype=torch.float64)
    expected = slow_wrn(x, {key: value.clone() for key, value in net.state_dict().items()}, depth, width, training)
    out = net(x)
    assert set(out.taps) == set(net.wanted_taps)
    for name, value in {**out.taps, "feat": out.feat, "logits": out.logits}.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("num_classes", "expected"), [(10, 1_467_626), (100, 1_479_236)])
def test_parameter_count(num_classes: int, expected: int) -> None:
    net = build("wrn-28-2", num_classes)
    assert sum(parameter.numel() for parameter in net.parameters()) == expected
    assert net.feat_dim == 128
    assert net.tap_dims == {"stem": 16, "stage1": 32, "stage2": 64, "stage3": 128, "map": 128}


def test_gradient_reaches_all_but_the_discarded() -> None:
    net = lively("wrn-16-2")
    loss = net(torch.randn(4, 3, 8, 8, dtype=torch.float64)).logits.square().sum()
    names, parameters = zip(*net.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    without = {name for name, g in zip(names, gradients, strict=True) if g is None or not g.abs().sum() > 0}
    assert (
        without == net.untrained_parameters() == {f"{key}.{part}" for key in DISCARDED for part in ("weight", "bias")}
    )


def test_discarded_statistics_follow_the_data_in_training_only() -> None:
    net = lively("wrn-10-2")
    net.wanted_taps = ("stage1", "stage2")
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    net.eval()(x)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    taps = net.train()(x).taps
    for key, source in zip(sorted(DISCARDED), ("stage1", "stage2"), strict=True):
        batch_mean = taps[source].mean(dim=(0, 2, 3))
        expected = 0.999 * before[f"{key}.running_mean"] + 0.001 * batch_mean
        torch.testing.assert_close(net.state_dict()[f"{key}.running_mean"], expected)


def test_width_one_has_the_same_untrained_parameters() -> None:
    assert build("wrn-10-1", 2).untrained_parameters() == build("wrn-10-2", 2).untrained_parameters()


@pytest.mark.parametrize("momentum", [0.001, 0.1])
def test_batch_norm_settings(momentum: float) -> None:
    norms = {
        n: m for n, m in build("wrn-28-2", 10, bn_momentum=momentum).named_modules() if isinstance(m, nn.BatchNorm2d)
    }
    assert len(norms) == 2 * 12 + 1
    assert {m.momentum for m in norms.values()} == {momentum}
    assert {n: m.eps for n, m in norms.items() if m.eps != 1e-5} == {"stages.map.0": 1e-3}


def test_initialisation() -> None:
    torch.manual_seed(0)
    net = build("wrn-28-2", 100)
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert_normal(module.weight, math.sqrt(2 / fan_out))
            assert (module.bias is not None) == (name == "stages.stem")
        elif isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all() and module.bias.eq(0).all()
    assert_normal(net.head.weight, math.sqrt(2 / (128 + 100)))
    assert net.head.bias.eq(0).all()


def assert_normal(weight: Tensor, std: float) -> None:
    """Mean 0 and the standard deviation, within four standard errors; a uniform sample would end at 1.73 deviations."""
    n = weight.numel()
    assert weight.abs().max().item() > 2 * std
    assert abs(weight.mean().item()) < 4 * std / math.sqrt(n)
    assert abs(weight.std().item() / std - 1) < 4 / math.sqrt(2 * n)
