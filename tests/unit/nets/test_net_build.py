"""What holds for every network, and how names are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unissl.config import check
from unissl.errors import UserError
from unissl.nets import NetConfig, build, list_networks

FAMILIES = ["small", "wrn-10-1", "resnet-18", "resnet-18-cifar"]
SIZES = [(8, 8), (9, 9), (16, 16), (28, 28), (32, 32), (8, 20), (17, 9)]


@pytest.mark.parametrize("name", list_networks())
def test_every_known_name_is_built(name: str) -> None:
    with torch.device("meta"):
        net = build(name, 7)
    assert net.head.out_features == net.num_classes == 7
    assert net.head.in_features == net.feat_dim == net.tap_dims["map"]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_shapes_for_any_image_size(name: str, channels: int) -> None:
    net = build(name, 4, channels)
    net.wanted_taps = tuple(net.tap_dims)
    for size in SIZES:
        out = net(torch.randn(2, channels, *size))
        assert out.logits.shape == (2, 4)
        assert out.feat.shape == (2, net.feat_dim)
        assert {tap: value.shape[1] for tap, value in out.taps.items()} == net.tap_dims
        torch.testing.assert_close(out.feat, out.taps["map"].flatten(2).mean(2))


@pytest.mark.parametrize("name", FAMILIES)
def test_features_and_logits_agree(name: str) -> None:
    net = build(name, 4).eval()
    x = torch.randn(2, 3, 8, 8)
    out = net(x)
    assert torch.equal(net.features(x), out.feat)
    torch.testing.assert_close(out.logits, out.feat @ net.head.weight.T + net.head.bias)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_reaches_every_parameter_that_can_train(name: str) -> None:
    torch.manual_seed(0)
    net = build(name, 4)
    loss = net(torch.randn(4, 3, 16, 16)).logits.square().sum()
    names, parameters = zip(*net.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    without = {key for key, g in zip(names, gradients, strict=True) if g is None or not g.abs().sum() > 0}
    assert without == net.untrained_parameters()


@pytest.mark.parametrize("name", FAMILIES)
def test_channels_last_and_float64(name: str) -> None:
    torch.manual_seed(0)
    net = build(name, 4).double()
    x = torch.randn(3, 3, 16, 12, dtype=torch.float64)
    expected = net.train()(x).logits
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    moved = net(x.to(memory_format=torch.channels_last)).logits
    assert expected.dtype == torch.float64
    torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_state_dict_is_strict_and_complete(name: str) -> None:
    torch.manual_seed(0)
    first, second = build(name, 4), build(name, 4)
    x = torch.randn(2, 3, 8, 8)
    first(x)  # moves the running statistics
    assert not torch.equal(first.eval()(x).logits, second.eval()(x).logits)
    second.load_state_dict(first.state_dict(), strict=True)
    assert torch.equal(first.eval()(x).logits, second.eval()(x).logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_bn_momentum_reaches_every_norm(name: str) -> None:
    norms = [m for m in build(name, 4, bn_momentum=0.25).modules() if isinstance(m, nn.BatchNorm2d)]
    assert {norm.momentum for norm in norms} == {0.25}


def test_taps_only_when_asked() -> None:
    net = build("small", 4)
    x = torch.randn(2, 3, 8, 8)
    assert net.wanted_taps == () and net(x).taps == {}
    net.wanted_taps = ("stage2",)
    assert list(net(x).taps) == ["stage2"]
    with pytest.raises(ValueError, match="no tap 'stage9'; this network has stage1, stage2, map"):
        net.wanted_taps = ("stage2", "stage9")
    assert net.wanted_taps == ("stage2",)


def test_small_is_small() -> None:
    assert 20_000 < sum(p.numel() for p in build("small", 10).parameters()) < 100_000


def test_same_seed_same_network() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build("small", 4).state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("wrm-28-2", "Did you mean 'wrn-28-2'"),
        ("resnet18", "Did you mean 'resnet-18'"),
        ("resnet-34", "Unknown network 'resnet-34'"),
        ("resnet-18-cifar10", "Did you mean 'resnet-18-cifar'"),
        ("xyz", "Known: .*small.*for example 'wrn-28-2'"),
        ("", "Unknown network ''"),
        ("wrn-28-2 ", "Did you mean 'wrn-28-2'"),
        ("wrn-20-2", "6n . 4; the nearest are 'wrn-16-2' and 'wrn-22-2'"),
        ("wrn-29-3", "the nearest are 'wrn-28-3' and 'wrn-34-3'"),
        ("wrn-4-2", "the nearest is 'wrn-10-2'"),
        ("wrn-28-0", "the width must be at least 1"),
    ],
)
def test_names_that_do_not_exist(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(name, 10)


@pytest.mark.parametrize("momentum", [0, -0.1, 1.5, float("nan")])
def test_bn_momentum_is_a_share(momentum: float) -> None:
    with pytest.raises(UserError, match="net.bn_momentum"):
        check(NetConfig, {"bn_momentum": momentum}, where="net")
    assert check(NetConfig, {"bn_momentum": 1}).bn_momentum == 1
