"""The network for vectors, layer by layer."""

from __future__ import annotations

import pytest
import torch

from unissl.nets.heads import MLPHead


def test_forward_layer_by_layer(double: object) -> None:
    """In eval mode with statistics away from their start: linear, normalise, leak, twice; then the head."""
    torch.manual_seed(0)
    net = MLPHead(7, 3, bn_momentum=0.1)
    net(torch.randn(20, 7))  # moves the statistics
    net.eval()
    state, x = net.state_dict(), torch.randn(4, 7)
    want = x
    for linear, norm in ((0, 1), (3, 4)):
        of_norm = {key: state[f"stages.map.{norm}.{key}"] for key in ("weight", "bias", "running_mean", "running_var")}
        want = want @ state[f"stages.map.{linear}.weight"].T
        want = (want - of_norm["running_mean"]) / (of_norm["running_var"] + 1e-5).sqrt()
        want = want * of_norm["weight"] + of_norm["bias"]
        want = torch.where(want > 0, want, 0.1 * want)
    out = net(x)
    torch.testing.assert_close(out.feat, want)
    torch.testing.assert_close(out.logits, want @ state["head.weight"].T + state["head.bias"])
    assert out.feat.shape == (4, net.feat_dim) == (4, 128) and not out.taps


def test_momentum_and_seed() -> None:
    net = MLPHead(7, 3, bn_momentum=0.25)
    assert {m.momentum for m in net.modules() if isinstance(m, torch.nn.BatchNorm1d)} == {0.25}
    nets = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        nets.append(MLPHead(7, 3, 0.1).state_dict()["stages.map.0.weight"])
    assert torch.equal(nets[0], nets[1]) and not torch.equal(nets[0], nets[2])


def test_every_parameter_learns() -> None:
    torch.manual_seed(0)
    net = MLPHead(5, 4, 0.1)
    torch.autograd.backward(net(torch.randn(6, 5)).logits.square().sum())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_there_are_no_inner_maps() -> None:
    net = MLPHead(5, 4, 0.1)
    assert not net.tap_dims
    net.wanted_taps = ()
    with pytest.raises(ValueError, match="no tap 'map'"):
        net.wanted_taps = ("map",)
