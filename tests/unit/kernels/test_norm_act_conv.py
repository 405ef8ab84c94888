"""BatchNorm, activation and convolution fused, against the three layers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unissl.distributed.batch_norm import GlobalBatchNorm
from unissl_kernels import norm_act_conv as module
from unissl_kernels import winograd
from unissl_kernels.norm_act_conv import Activation, apply_norm_act_conv
from unissl_kernels.winograd import Conv3x3

if not winograd.kernels_available():
    pytest.skip("kernels cannot be compiled here", allow_module_level=True)


@pytest.fixture(autouse=True)
def whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(winograd, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(winograd, "PIXELS_PER_CHANNEL", 0)


def map_of(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype).contiguous(memory_format=torch.channels_last).requires_grad_()


def lively_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, momentum=0.3, eps=1e-3).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def one_after_the_other(norm: nn.BatchNorm2d, activation: Activation, conv: nn.Conv2d, x: Tensor) -> Tensor:
    return nn.functional.conv2d(activation(norm(x)), conv.weight, padding=1)


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.1), nn.ReLU()], ids=str)
@pytest.mark.parametrize("shape", [(2, 16, 16, 4, 4), (7, 32, 48, 8, 12), (5, 64, 16, 16, 16)], ids=str)
def test_is_the_three_layers_with_their_gradients(
    shape: tuple[int, ...], activation: Activation, momentum: float | None
) -> None:
    count, inputs, outputs, height, width = shape
    norm, conv = lively_norm(inputs), Conv3x3(inputs, outputs).double()
    norm.momentum = momentum
    other = copy.deepcopy(norm)
    x = map_of(count, inputs, height, width)
    assert module.can_fuse(norm, activation, conv, x)
    y, expected = (
        apply_norm_act_conv(norm, activation, conv, x),
        one_after_the_other(other, activation, conv, x),
    )
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-12)
    dy = torch.randn_like(y)
    mine = torch.autograd.grad(y, [x, conv.weight, norm.weight, norm.bias], dy)
    theirs = torch.autograd.grad(expected, [x, conv.weight, other.weight, other.bias], dy)
    for one, another in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-10, atol=1e-11)
    for one, another in zip(norm.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, another, rtol=1e-12, atol=1e-13)


def test_a_mean_that_is_far_from_zero_costs_no_digits() -> None:
    """Squares summed in single precision would leave nothing of a variance of 1 beside a mean of 3000."""
    norm, conv = nn.BatchNorm2d(16), Conv3x3(16, 16)
    x = (map_of(8, 16, 8, 8, dtype=torch.float32) + 3000).detach()
    exact = one_after_the_other(copy.deepcopy(norm).double(), nn.ReLU(), copy.deepcopy(conv).double(), x.double())
    torch.testing.assert_close(apply_norm_act_conv(norm, nn.ReLU(), conv, x).double(), exact, rtol=0, atol=5e-3)


def test_two_passes_before_a_gradient() -> None:
    """The running statistics move between them, and no gradient depends on these."""
    norm, conv, activation = lively_norm(16), Conv3x3(16, 16).double(), nn.ReLU()
    xs = map_of(3, 16, 8, 8), map_of(4, 16, 8, 8)
    sum(apply_norm_act_conv(norm, activation, conv, x).square().sum() for x in xs).backward()
    got = [p.grad for p in (*norm.parameters(), conv.weight)]
    norm.zero_grad(), conv.zero_grad()
    sum(one_after_the_other(norm, activation, conv, x).square().sum() for x in xs).backward()
    for one, another in zip(got, (*norm.parameters(), conv.weight), strict=True):
        torch.testing.assert_close(one, another.grad, rtol=1e-10, atol=1e-10)


def test_of_all_maps_only_the_input_is_kept() -> None:
    norm, conv, x = lively_norm(16), Conv3x3(16, 16).double(), map_of(4, 16, 8, 8)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        apply_norm_act_conv(norm, nn.ReLU(), conv, x)
    assert sorted(saved)[-2:] == sorted([conv.weight.numel(), x.numel()])


def without_bias() -> nn.BatchNorm2d:
    """As ``bias=False`` of newer versions of torch."""
    norm = nn.BatchNorm2d(16)
    norm.register_parameter("bias", None)
    return norm


@pytest.mark.parametrize(
    "make_norm",
    [
        lambda: lively_norm(16).eval(),
        lambda: nn.BatchNorm2d(16, affine=False),
        lambda: nn.BatchNorm2d(16, track_running_stats=False),
        without_bias,
        lambda: GlobalBatchNorm(16),
    ],
    ids=["evaluation", "no parameters", "no statistics", "no bias", "over processes"],
)
def test_other_layers_run_one_after_the_other(make_norm: Callable[[], nn.BatchNorm2d]) -> None:
    norm = make_norm().double()
    conv, x = Conv3x3(16, 16).double().eval(), map_of(4, 16, 8, 8)
    assert not module.can_fuse(norm, nn.ReLU(), conv, x)
    other = copy.deepcopy(norm)
    expected = one_after_the_other(other, nn.ReLU(), conv, x)
    assert torch.equal(apply_norm_act_conv(norm, nn.ReLU(), conv, x), expected)


def test_what_does_not_fit_is_left_to_torch() -> None:
    conv, x = Conv3x3(16, 16).double(), map_of(4, 16, 8, 8)
    with pytest.raises(RuntimeError, match="running_mean"):
        apply_norm_act_conv(lively_norm(32), nn.ReLU(), conv, x)


def test_another_activation_is_not_taken_for_one_of_ours() -> None:
    class Doubled(nn.LeakyReLU):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    conv, x = Conv3x3(16, 16).double().eval(), map_of(4, 16, 8, 8)
    for activation in (nn.SiLU(), Doubled(0.1)):
        norm = lively_norm(16)
        expected = one_after_the_other(copy.deepcopy(norm), activation, conv, x)
        assert torch.equal(apply_norm_act_conv(norm, activation, conv, x), expected)


@pytest.mark.parametrize("place", range(3))
def test_who_hooks_into_a_layer_is_asked(place: int) -> None:
    layers = lively_norm(16), nn.ReLU(), Conv3x3(16, 16).double()
    x, asked = map_of(4, 16, 8, 8), []
    layers[place].register_forward_hook(lambda layer, *_: asked.append(layer))
    apply_norm_act_conv(*layers, x)
    assert asked == [layers[place]]


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_images(threads: int) -> None:
    norm, conv, activation = lively_norm(16), Conv3x3(16, 32).double(), nn.LeakyReLU(0.1)
    other, x = copy.deepcopy(norm), map_of(7, 16, 8, 8)
    expected = one_after_the_other(other, activation, conv, x)
    dy = torch.randn_like(expected)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert module.can_fuse(norm, activation, conv, x)
        y = apply_norm_act_conv(norm, activation, conv, x)
        mine = torch.autograd.grad(y, [x, conv.weight, norm.weight, norm.bias], dy)
    finally:
        torch.set_num_threads(before)
    theirs = torch.autograd.grad(expected, [x, conv.weight, other.weight, other.bias], dy)
    for one, another in zip((y, *mine), (expected, *theirs), strict=True):
        torch.testing.assert_close(one, another, rtol=1e-10, atol=1e-11)


def test_global_hooks_are_called() -> None:
    layers, calls = (lively_norm(16), nn.ReLU(), Conv3x3(16, 16).double()), []
    handle = nn.modules.module.register_module_forward_hook(lambda layer, *_: calls.append(layer))
    try:
        apply_norm_act_conv(*layers, map_of(4, 16, 8, 8))
    finally:
        handle.remove()
    assert calls == list(layers)
    assert module.can_fuse(*layers, map_of(4, 16, 8, 8))
