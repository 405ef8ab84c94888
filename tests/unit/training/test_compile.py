"""Compiled and bfloat16 networks: the same training within rounding, and no state left behind."""

from __future__ import annotations

import copy

import pytest
import torch

from unissl.nets import build
from unissl.training import compile as module
from unissl.training.compile import CompiledNet, compile_net, forward_and_backward
from unissl.types import Outputs

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return build("wrn-10-1", 4, 1).train()


def test_off_is_the_network_itself(net: torch.nn.Module) -> None:
    assert compile_net(net, "off", False, IMAGES, 10**9) is None


def test_bfloat16_is_near_and_in_full_precision_again(net: torch.nn.Module) -> None:
    compiled = compile_net(net, "off", True, IMAGES, 10)
    assert compiled is not None and compiled.feat_dim == net.feat_dim and compiled.head is net.head
    plain, half = net(IMAGES), compiled(IMAGES)
    assert half.logits.dtype == half.feat.dtype == torch.float32
    assert not torch.equal(plain.feat, half.feat)
    torch.testing.assert_close(half.feat, plain.feat, rtol=0.1, atol=0.05)


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")  # of torch, on 3.13.0 only
def test_compiled_gives_the_same_numbers_within_rounding(
    net: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "torch_compile", lambda net: torch.compile(net, backend="aot_eager"))
    with caplog.at_level("INFO", "unissl"):
        compiled = compile_net(net, "on", False, IMAGES, 10)
    assert compiled is not None and caplog.messages[0].startswith("compiled the network in")
    torch.testing.assert_close(compiled(IMAGES).logits, net(IMAGES).logits, rtol=1e-5, atol=1e-6)


def test_auto_does_not_try_where_it_cannot_pay_and_keeps_what_is_faster(
    net: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "unissl")

    def never(net: torch.nn.Module) -> None:
        raise AssertionError("compiled although it cannot pay")

    monkeypatch.setattr(module, "torch_compile", never)
    assert compile_net(net, "auto", False, IMAGES, 3) is None
    assert "too few" in caplog.messages[0]

    monkeypatch.setattr(module, "torch_compile", lambda net: net)
    for quick, used in ((0.5, True), (2.0, False)):
        seconds = iter([1.0, quick])
        monkeypatch.setattr(module, "seconds_of_pass", lambda net, images, seconds=seconds: next(seconds))
        caplog.clear()
        assert (compile_net(net, "auto", False, IMAGES, 10**6) is not None) == used
        assert ("not used" in caplog.messages[0]) != used


def test_trying_changes_nothing(net: torch.nn.Module) -> None:
    before = copy.deepcopy(net.state_dict())

    def call(x: torch.Tensor) -> Outputs:
        out: Outputs = net(x)
        return out

    forward_and_backward(CompiledNet(net, call, bf16=False), IMAGES)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
