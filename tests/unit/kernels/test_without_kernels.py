"""Networks with and without the compiled kernels: equal to rounding, so the package can be left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unissl.nets import build, channels_last
from unissl_kernels import SWITCH, winograd

NETS = ["wrn-10-1", "wrn-16-2", "resnet-18-cifar"]


@pytest.fixture(autouse=True)
def whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(winograd, "PIXELS_PER_CHANNEL", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the maps that the kernel convolved."""
    shapes: list[tuple[int, ...]] = []
    forward = winograd.forward

    def counted(x: Tensor, *others: object) -> Tensor:
        shapes.append(tuple(x.shape))
        return forward(x, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(winograd, "forward", counted)
    return shapes


def train_once(name: str) -> list[Tensor]:
    """Logits, gradients and buffers after one pass in training, then the logits in evaluation."""
    torch.manual_seed(0)
    net = channels_last(build(name, 4).double())
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64).to(memory_format=torch.channels_last)
    logits = net.train()(x).logits
    parameters = [value for key, value in net.named_parameters() if key not in net.untrained_parameters()]
    gradients = torch.autograd.grad(logits.square().sum(), parameters)
    return [logits, *gradients, *net.buffers(), net.eval()(x).logits]


@pytest.mark.parametrize("name", NETS)
def test_results_are_equal_without_kernels(
    name: str, calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernels = train_once(name)
    assert bool(calls) == winograd.kernels_available()
    monkeypatch.setenv(SWITCH, "1")
    calls.clear()
    without = train_once(name)
    assert not calls
    for one, other in zip(with_kernels, without, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_networks_work_without_the_package(tmp_path: Path) -> None:
    """In a process that cannot import it: the same keys, and the same logits in evaluation."""
    script = """
import sys
sys.modules["unissl_kernels"] = None
import torch
from unissl.nets import build, channels_last
torch.manual_seed(0)
net = channels_last(build("wrn-10-1", 4).double())
x = torch.arange(3 * 256, dtype=torch.float64).reshape(1, 3, 16, 16) / 256
torch.save((list(net.state_dict()), net.train()(x).logits.detach()), sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "out.pt")], check=True)
    torch.manual_seed(0)
    net = channels_last(build("wrn-10-1", 4).double())
    x = torch.arange(3 * 256, dtype=torch.float64).reshape(1, 3, 16, 16) / 256
    keys, logits = torch.load(tmp_path / "out.pt")
    assert keys == list(net.state_dict())
    torch.testing.assert_close(logits, net.train()(x).logits, rtol=1e-8, atol=1e-9)
