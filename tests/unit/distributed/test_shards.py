"""A tensor cut into shards: layers on it give the gradients of the whole batch, and what cannot be cut is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hub_models import save_convnext, save_vit
from torch import Tensor, nn

from unissl.distributed.shards import Shards, by_shard, refuse_if_inseparable
from unissl.errors import UserError
from unissl.nets import build
from unissl.nets.external import ExternalNet, load


class Scale(nn.Module):
    """A parameter that meets the batch in an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x * self.factor, x.max(1, keepdim=True).values], 1).view(x.shape[0], 5, -1)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.eval()(x)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    "depthwise": lambda: nn.Conv2d(4, 8, 3, groups=4),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
    "layer norm": lambda: nn.LayerNorm([4, 4]),
    "group norm": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.PReLU(4)),
    "operators": Scale,
    "in place": lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
    "frozen": Frozen,
    "used twice": lambda: nn.Sequential(*[nn.Conv2d(4, 4, 1)] * 2),
}


EVEN, UNEVEN = [(6,), (3, 3), (2, 2, 2)], [(3, 2, 1)]


@pytest.mark.parametrize(
    ("layer", "lengths"),
    # "operators" looks at the number of rows, so it cannot be cut unevenly, which has a test of its own below
    [(layer, lengths) for layer in LAYERS for lengths in EVEN + UNEVEN * (layer != "operators")],
)
def test_layers_have_the_values_and_gradients_of_the_whole_batch(layer: str, lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 4, 1), LAYERS[layer]()).double()
    x, found = torch.randn(6, 4, 4, 4, dtype=torch.float64), []
    for cut in (False, True):
        net.zero_grad()
        y = by_shard(net, x.split(lengths)) if cut else net(x)
        if cut:
            assert isinstance(y, Shards) and [len(piece) for piece in y.pieces] == list(lengths)
            y = torch.cat(list(y.pieces))
        (y.tanh() * torch.arange(y.numel()).view(y.shape)).sum().backward()
        found.append([y.detach(), *(p.grad for p in net.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1, -1), x.flatten(2)], 2)


def test_what_is_computed_from_parameters_alone_is_refused() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))
    for net in (Token(), normed):
        with pytest.raises(UserError, match="from its parameters alone"):
            refuse_if_inseparable(net.train(), (4, 3, 3))
        assert net.training


def test_compiled_code_is_refused() -> None:
    net = build("small", 3, 4)
    with warnings.catch_warnings(action="ignore"):  # its days are counted, but such networks are about
        net.stages["stage1"] = torch.jit.trace(net.stages["stage1"].eval(), torch.zeros(1, 4, 8, 8))
    with pytest.raises(UserError, match="cannot be run by shards"):
        refuse_if_inseparable(net, (4, 8, 8))


def test_the_number_of_rows_is_known_only_where_shards_are_equal() -> None:
    with pytest.raises(UserError, match="number of images"):
        by_shard(nn.Sequential(Scale()), torch.zeros(3, 4, 2, 2).split([2, 1]))


@pytest.mark.parametrize("name", ["small", "wrn-10-1", "resnet-18-cifar", "resnet-50", "efficientnet-lite0"])
def test_our_networks_can_be_cut(name: str) -> None:
    """Into parts of any number of rows."""
    net = build(name, 3, 3)
    before = torch.get_rng_state()
    refuse_if_inseparable(net, (3, 32, 32))
    assert torch.equal(torch.get_rng_state(), before)
    logits = by_shard(net.eval(), torch.randn(3, 3, 32, 32).split([2, 1])).logits
    assert isinstance(logits, Shards) and [piece.shape for piece in logits.pieces] == [(2, 3), (1, 3)]


def test_a_network_that_draws_is_refused() -> None:
    net = build("small", 3, 4)
    net.stages["stage1"].append(nn.Dropout(0.1))
    before = torch.get_rng_state()
    with pytest.raises(UserError, match="draws random numbers"):
        refuse_if_inseparable(net, (4, 8, 8))
    assert torch.equal(torch.get_rng_state(), before)


def test_of_networks_from_elsewhere_those_with_a_class_token_are_refused(tmp_path: Path) -> None:
    nets = [
        ExternalNet(load(f"transformers:{save(tmp_path / save.__name__)}"), 3, 3) for save in (save_convnext, save_vit)
    ]
    refuse_if_inseparable(nets[0], (3, 32, 32))
    with pytest.raises(UserError, match="class token"):
        refuse_if_inseparable(nets[1], (3, 32, 32))
