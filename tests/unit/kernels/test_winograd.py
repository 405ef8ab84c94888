"""Convolutions by tiles against the sum that a convolution is, and against torch."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from unissl.nets import build, channels_last
from unissl_kernels import winograd
from unissl_kernels.winograd import Conv3x3, convolve

if not winograd.kernels_available():
    pytest.skip("kernels cannot be compiled here", allow_module_level=True)
from unissl_kernels import winograd_ir as code

SHAPES = [(1, 16, 16, 4, 4), (5, 32, 16, 16, 16), (3, 16, 48, 8, 32), (7, 64, 128, 8, 8), (9, 48, 16, 4, 12)]
"""Images, channels in and out, height, width: whole handfuls and parts of one, one tile and many."""


@pytest.fixture(autouse=True)
def same_images_each_time() -> None:
    torch.manual_seed(0)


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def by_hand(x: Tensor, weight: Tensor) -> Tensor:
    """y[n, o, h, w] = sum over c, i, j of weight[o, c, i, j] x[n, c, h + i - 1, w + j - 1], zero outside."""
    y = torch.zeros(len(x), len(weight), *x.shape[2:], dtype=x.dtype)
    height, width = x.shape[2:]
    for h, w, i, j in product(range(height), range(width), range(3), range(3)):
        if 0 <= h + i - 1 < height and 0 <= w + j - 1 < width:
            y[:, :, h, w] += x[:, :, h + i - 1, w + j - 1] @ weight[:, :, i, j].T
    return y


def largest(difference: Tensor, residual: Tensor) -> float:
    return (difference.abs().max() / residual.abs().max()).item()


def test_one_tile_is_exact_in_fractions() -> None:
    """Y = A^T [(G g G^T) * (B^T d B)] A, with the matrices as they stand in the code."""
    at, bt = ([[Fraction(v) for v in row] for row in matrix] for matrix in (code.AT, code.BT))
    g_matrix = [[Fraction(v).limit_denominator(24) for v in row] for row in winograd.G]
    d = [[Fraction(3 * i * i - 7 * j + i * j) for j in range(6)] for i in range(6)]
    g = [[Fraction(2 * i - j * j + 1) for j in range(3)] for i in range(3)]

    def around(q: list[list[Fraction]], x: list[list[Fraction]]) -> list[list[Fraction]]:
        """q x q^T"""
        sides = range(len(x))
        return [
            [sum(q[i][a] * x[a][b] * q[j][b] for a in sides for b in sides) for j in range(len(q))]
            for i in range(len(q))
        ]

    u, v = around(g_matrix, g), around(bt, d)
    y = around(at, [[u[i][j] * v[i][j] for j in range(6)] for i in range(6)])
    direct = [[sum(g[a][b] * d[i + a][j + b] for a in range(3) for b in range(3)) for j in range(4)] for i in range(4)]
    assert y == direct


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_the_sum_with_its_gradients(shape: tuple[int, ...]) -> None:
    count, inputs, outputs, height, width = shape
    x, weight = images(count, inputs, height, width).requires_grad_(), images(outputs, inputs, 3, 3).requires_grad_()
    y, expected = convolve(x, weight), by_hand(x, weight)
    assert largest(y - expected, expected) < 1e-13
    assert y.is_contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(y)
    for mine, theirs in zip(*(torch.autograd.grad(out, (x, weight), dy) for out in (y, expected)), strict=True):
        assert largest(mine - theirs, theirs) < 1e-13


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounding_in_single_precision(shape: tuple[int, ...]) -> None:
    """Torch's own sums are within 1e-6 here; the transforms have entries up to 8, so ours are a little further."""
    count, inputs, outputs, height, width = shape
    x, weight = images(count, inputs, height, width), images(outputs, inputs, 3, 3)
    exact = conv2d(x, weight, padding=1)
    assert largest(convolve(x.float(), weight.float()) - exact, exact) < 3e-5


@pytest.mark.parametrize("vector, rows", [(8, 8), (4, 4), (2, 8)], ids=["512 bits", "256 bits", "128 bits"])
def test_on_any_processor(vector: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrower vectors than this processor's, wider ones made of several, and fewer registers."""
    monkeypatch.setattr(code, "vector_width", lambda dtype: vector)
    monkeypatch.setattr(code, "ROWS", rows)
    x, weight = images(5, 32, 8, 8).requires_grad_(), images(16, 32, 3, 3).requires_grad_()
    compiled = code.forward, code.backward
    for function in compiled:
        function.cache_clear()
    try:
        y = convolve(x, weight)
        dx, dw = torch.autograd.grad(y.square().sum(), (x, weight))
    finally:
        for function in compiled:
            function.cache_clear()
    expected = conv2d(x, weight, padding=1)
    want_dx, want_dw = torch.autograd.grad(expected.square().sum(), (x, weight))
    assert largest(y - expected, expected) < 1e-13
    assert largest(dx - want_dx, want_dx) < 1e-13 and largest(dw - want_dw, want_dw) < 1e-13


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_share_images(threads: int) -> None:
    x, weight = images(5, 16, 8, 8).requires_grad_(), images(32, 16, 3, 3).requires_grad_()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = convolve(x, weight)
        dx, dw = torch.autograd.grad(y.square().sum(), (x, weight))
    finally:
        torch.set_num_threads(before)
    expected = conv2d(x, weight, padding=1)
    want_dx, want_dw = torch.autograd.grad(expected.square().sum(), (x, weight))
    assert largest(y - expected, expected) < 1e-13
    assert largest(dx - want_dx, want_dx) < 1e-13 and largest(dw - want_dw, want_dw) < 1e-13


def test_gives_the_same_bits_again_and_an_image_does_not_depend_on_its_neighbours() -> None:
    x, weight = images(11, 32, 16, 16, dtype=torch.float32), images(32, 32, 3, 3, dtype=torch.float32)
    once = convolve(x, weight)
    assert torch.equal(once, convolve(x, weight))
    given = [tensor.clone().requires_grad_() for tensor in (x, weight)]
    first, again = (torch.autograd.grad(convolve(*given).square().sum(), given) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    alone = torch.cat([convolve(images_, weight) for images_ in x.split(1)])
    assert torch.equal(once, alone)


def test_a_number_that_is_not_finite_stays_in_its_image() -> None:
    x, weight = images(3, 16, 8, 8), images(16, 16, 3, 3)
    x[1] = torch.nan
    y = convolve(x, weight)
    assert y[1].isnan().all() and y[[0, 2]].isfinite().all()


def test_gradients_in_another_layout_are_taken() -> None:
    x, weight = images(3, 16, 8, 8).requires_grad_(), images(16, 16, 3, 3).requires_grad_()
    dy = torch.randn(3, 16, 8, 8, dtype=torch.float64)  # not channels last
    dx, dw = torch.autograd.grad(convolve(x, weight), (x, weight), dy)
    want_dx, want_dw = torch.autograd.grad(conv2d(x, weight, padding=1), (x, weight), dy)
    assert largest(dx - want_dx, want_dx) < 1e-13 and largest(dw - want_dw, want_dw) < 1e-13


class OfAnotherKind(Tensor):
    """What it does when it is read is its own affair."""


LARGE = (32, 16, 32, 32)
"""Worth it."""


@pytest.mark.parametrize(
    "x",
    [
        images(*LARGE)[:1],
        torch.randn(LARGE, dtype=torch.float64),
        images(32, 16, 30, 32),
        images(*LARGE).to(torch.bfloat16),
        images(*LARGE, dtype=torch.float32),
        images(32, 24, 32, 32),
        images(2, 512, 16, 16),
        torch.zeros(LARGE, dtype=torch.float64, device="meta"),
        images(*LARGE).as_subclass(OfAnotherKind),
    ],
    ids=["few", "layout", "side", "half precision", "mixed", "channels", "few for them", "device", "kind of tensor"],
)
def test_what_is_not_for_tiles_goes_to_torch(x: Tensor) -> None:
    weight = images(16, x.shape[1], 3, 3)
    if x.dtype == torch.bfloat16:
        weight = weight.to(x.dtype)
    assert not winograd.can_use_kernel(x, weight)


@pytest.mark.parametrize("x", [images(32, 32, 32, 32), images(32, 16, 32, 32)[0]], ids=["channels", "dimensions"])
def test_wrong_shapes_are_left_to_torch(x: Tensor) -> None:
    """Which refuses what does not fit; the machine code would read whatever stands in memory."""
    layer = Conv3x3(16, 32).double()
    assert not winograd.can_use_kernel(x, layer.weight)
    if x.ndim == 4:
        with pytest.raises(RuntimeError, match="channels"):
            layer(x)
    else:
        assert layer(x).shape == (32, 32, 32)


def test_the_layer_takes_tiles_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(winograd, "convolve", lambda x, weight: called.append(len(x)) or convolve(x, weight))
    layer, x = Conv3x3(16, 32).double(), images(*LARGE)
    trained = layer(x)
    assert called == [len(x)]
    torch.testing.assert_close(trained, layer.eval()(x), rtol=1e-10, atol=1e-12)
    assert called == [len(x)]


def test_without_an_llvm_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "kernels_available", lambda: False)
    layer, x = Conv3x3(16, 32).double(), images(*LARGE)
    assert torch.equal(layer(x), conv2d(x, layer.weight, padding=1))


@pytest.mark.parametrize("error", [ImportError, AttributeError, RuntimeError, TypeError])
def test_an_llvm_that_is_not_known_is_not_used(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise error

    code.forward.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(code, "compile_function", refuse)
        assert not winograd.kernels_available.__wrapped__()
    assert winograd.kernels_available.__wrapped__()


def test_code_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "forward", lambda x, weight: conv2d(x, weight, padding=1) + 0.01)
    assert not winograd.kernels_available.__wrapped__()


def test_a_default_device_changes_nothing() -> None:
    x, weight = images(3, 16, 8, 8), images(16, 16, 3, 3)
    winograd._weight_transform.cache_clear()
    with torch.device("meta"):
        y = convolve(x, weight)
    assert y.device.type == "cpu"
    expected = conv2d(x, weight, padding=1)
    assert largest(y - expected, expected) < 1e-13


def test_saved_maps_may_come_back_in_another_layout() -> None:
    x, weight = images(3, 16, 8, 8).requires_grad_(), images(16, 16, 3, 3).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.detach().clone(memory_format=torch.contiguous_format), lambda t: t
    ):
        y = convolve(x, weight)
    dx, dw = torch.autograd.grad(y.square().sum(), (x, weight))
    want_dx, want_dw = torch.autograd.grad(conv2d(x, weight, padding=1).square().sum(), (x, weight))
    assert largest(dx - want_dx, want_dx) < 1e-13 and largest(dw - want_dw, want_dw) < 1e-13


def test_transforms_of_functions_go_to_torch() -> None:
    layer, x = Conv3x3(16, 32).double(), images(*LARGE)
    gradient = torch.func.grad(lambda y: layer(y).square().sum())(x)
    assert gradient.shape == x.shape


def test_half_precision_by_autocast_goes_to_torch() -> None:
    layer, x = Conv3x3(16, 32), images(*LARGE, dtype=torch.float32)
    assert winograd.can_use_kernel(x, layer.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not winograd.can_use_kernel(x, layer.weight)


ORIGINAL = {"forward": winograd.forward, "backward": winograd.backward}


def counted(called: Counter[str], name: str) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        called[name] += 1
        return ORIGINAL[name](*arguments)

    return call


@pytest.mark.parametrize("name", ["wrn-10-1", "wrn-10-2", "resnet-18-cifar"])
def test_a_whole_network_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = channels_last(build(name, 4)).double()
    x = images(12, 3, 16, 16)
    results = []
    for worth in (1, 1 << 40):
        monkeypatch.setattr(winograd, "MIN_ELEMENTS", worth)
        monkeypatch.setattr(winograd, "PIXELS_PER_CHANNEL", 0)
        net, called = copy.deepcopy(first), Counter()
        for function in ("forward", "backward"):
            monkeypatch.setattr(winograd, function, counted(called, function))
        out = net(x)
        out.logits.square().sum().backward()
        gradients = [p.grad for key, p in net.named_parameters() if key not in net.untrained_parameters()]
        assert called["forward"] == called["backward"] and bool(called["forward"]) == (worth == 1)
        results.append((out.logits.detach(), *gradients, *net.buffers()))
    for tiled, direct in zip(*results, strict=True):
        torch.testing.assert_close(tiled, direct, rtol=1e-9, atol=1e-11)
