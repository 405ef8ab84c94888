"""Useful arithmetic of a network, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from suite.flops import convolution_flops
from suite.plain_net import PlainNet
from torch import nn

from unissl.nets import build


def test_one_convolution_by_hand() -> None:
    """8 x 8 outputs of 5 channels, each from 3 x 3 x 2 inputs: a product and a sum each; no gradient to the image."""
    forward = 2 * 8 * 8 * 5 * 3 * 3 * 2
    assert convolution_flops(nn.Conv2d(2, 5, 3, padding=1), 2, 8, 8) == 2 * forward


def test_stride_groups_and_a_second_layer_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 1, groups=4))
    first, second = 2 * 4 * 4 * 8 * 9 * 4, 2 * 4 * 4 * 8 * 1 * 2
    assert convolution_flops(net, 4, 8, 8) == 2 * first + 3 * second


def test_wrn_28_2_is_known() -> None:
    """The figure that was measured beside the network's times: 1.285 GFLOP an image, forward and backward."""
    flops = convolution_flops(build("wrn-28-2", 10), 3, 32, 32)
    assert flops == pytest.approx(1.285e9, rel=1e-3)
    assert flops == convolution_flops(PlainNet("wrn-28-2", 10), 3, 32, 32)


def test_counting_changes_nothing() -> None:
    net = build("wrn-10-1", 10)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    convolution_flops(net, 3, 16, 16)
    assert net.training and all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())
