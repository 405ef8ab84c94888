from __future__ import annotations

import pytest
import torch
from torch import nn

from unissl.nets import build
from unissl.nets.resnet import Block


@pytest.mark.parametrize(("name", "expected"), [("resnet-18", 11_689_512), ("resnet-50", 25_557_032)])
def test_well_known_parameter_counts(name: str, expected: int) -> None:
    assert sum(parameter.numel() for parameter in build(name, 1000).parameters()) == expected


@pytest.mark.parametrize(("name", "feat_dim", "last"), [("resnet-18", 512, 2), ("resnet-18-cifar", 512, 8)])
def test_stems_shrink_the_image_by_32_or_8(name: str, feat_dim: int, last: int) -> None:
    net = build(name, 5).eval()
    net.wanted_taps = ("stem", "map")
    out = net(torch.randn(2, 3, 64, 64))
    assert out.taps["map"].shape == (2, feat_dim, last, last)
    assert out.taps["stem"].shape[2:] == (last * 8, last * 8)
    assert (out.taps["map"] >= 0).all()  # activated before pooling


@pytest.mark.parametrize("name", ["resnet-50", "resnet-50-cifar"])
def test_bottlenecks_stride_on_the_3x3(name: str) -> None:
    net = build(name, 5)
    assert net.feat_dim == 2048
    block = net.get_submodule("stages.stage3.0")
    assert isinstance(block, Block)
    strided = [c.kernel_size for c in block.branch if isinstance(c, nn.Conv2d) and c.stride == (2, 2)]
    assert strided == [(3, 3)]


def test_a_block_is_relu_of_branch_plus_shortcut() -> None:
    torch.manual_seed(0)
    block = build("resnet-18-cifar", 5).eval().get_submodule("stages.stage2.0")
    assert isinstance(block, Block) and isinstance(block.shortcut, nn.Sequential)
    x = torch.randn(2, 64, 6, 6)
    conv1, norm1, _, conv2, norm2 = block.branch
    branch = norm2(conv2(norm1(conv1(x)).clamp(min=0)))
    shortcut = block.shortcut[1](block.shortcut[0](x))
    torch.testing.assert_close(block(x), (branch + shortcut).clamp(min=0))
