"""3 x 3 convolutions with a quarter of the multiplications (Lavin and Gray, 2016, https://arxiv.org/abs/1509.09308).

A tile Y of 4 x 4 outputs depends on the 6 x 6 inputs d around it. With weights g of 3 x 3,

    Y = A^T [ sum over input channels of (G g G^T) * (B^T d B) ] A,

where * is elementwise: 36 products for 16 outputs in place of 144. Over all tiles and channels these are 36 matrix
products M_p = V_p U_p, with V = B^T d B, U = G g G^T. Backwards, with D = A dL/dY A^T,

    dL/dg = G^T [ V_p^T D_p ] G,    dL/dd = B [ D_p U_p^T ] B^T, summed where inputs of tiles overlap.

The result is that of the direct sum to rounding, which is about ten times as large in float32 (0.4e-5 to 1.5e-5 of the
largest value). A number that is not finite spoils a whole tile. Training on a CPU uses it for maps that are large
enough; torch computes all else. Second derivatives are not supported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from unissl_kernels import winograd_ir as code

SWITCH = "UNISSL_DISABLE_KERNELS"
"""Environment variable: 1 leaves all convolutions to torch."""
MIN_ELEMENTS = 1 << 17
"""Elements of a map from which the gain exceeds the cost of the call."""
PIXELS_PER_CHANNEL = 8
"""Pixels of a batch, per channel and thread, from which the gain exceeds the cost of transforming the weights."""
CHANNELS = 16
"""Channel counts must be multiples of this, so that SIMD vectors of any processor fit."""
TILE = 4
G = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)


class Conv3x3(nn.Conv2d):
    """A 3 x 3 convolution with stride 1, zero padding 1 and no bias."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(width_in, width_out, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and can_use_kernel(x, self.weight):
            return convolve(x, self.weight)
        return super().forward(x)


def can_use_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel supports the tensors and is faster than torch."""
    return (
        os.environ.get(SWITCH) != "1"
        and not torch.compiler.is_compiling()
        and _is_plain(x)
        and _is_plain(weight)
        and x.ndim == 4
        and x.shape[1] == weight.shape[1]
        and x.dtype == weight.dtype
        and is_large_enough(x, weight)
        and all(count % CHANNELS == 0 for count in weight.shape[:2])
        and all(side % TILE == 0 for side in x.shape[2:])
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.is_autocast_enabled("cpu")
        and torch._C._functorch.peek_interpreter_stack() is None
        and kernels_available()
    )


def _is_plain(tensor: Tensor) -> bool:
    """Whether machine code can read the tensor's memory."""
    in_memory = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"
    return in_memory and tensor.dtype in (torch.float32, torch.float64)


def is_large_enough(x: Tensor, weight: Tensor) -> bool:
    outputs, inputs = weight.shape[:2]
    threads = torch.get_num_threads()
    min_elements = PIXELS_PER_CHANNEL * threads * inputs * max(inputs, outputs)
    return len(x) >= threads and x.numel() >= max(MIN_ELEMENTS, min_elements)


@cache
def kernels_available() -> bool:
    """Whether kernels can be compiled and run here: LLVM is installed, torch uses GNU OpenMP, and a trial agrees with
    torch. Any error means no: torch computes everything without them."""
    x = torch.linspace(-1, 1, 16 * 16, device="cpu").reshape(1, 4, 4, 16).permute(0, 3, 1, 2)
    weight = torch.linspace(-1, 1, 16 * 16 * 9, device="cpu").reshape(16, 16, 3, 3)
    try:
        return torch.allclose(forward(x, weight), torch.conv2d(x, weight, padding=1), rtol=0, atol=1e-3)
    except Exception:
        return False


class AffineActivation(NamedTuple):
    """phi(a x + b), to be convolved in place of x: a, b and the mean of x for each channel, and phi's slope."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    slope: float


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return forward(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = saved_tensors(ctx)
        dx, dweight, _ = backward(x, weight, dy)
        return dx, dweight


convolve = cast(Callable[[Tensor, Tensor], Tensor], _Convolve.apply)


def forward(x: Tensor, weight: Tensor, affine: AffineActivation | None = None) -> Tensor:
    """The convolution of x, or of phi(a x + b) where ``affine`` is given."""
    from unissl_kernels import winograd_ir as code

    shape, threads = shape_of(x, len(weight)), torch.get_num_threads()
    u = packed(_transform_weights(weight), shape.panel(shape.outputs))
    y = x.new_empty((len(x), *x.shape[2:], shape.outputs)).permute(0, 3, 1, 2)  # channels last
    work = x.new_zeros(threads, shape.work)
    tensors = [x, u, y, work]
    if affine is not None:
        tensors += [affine.scale, affine.shift]
    compiled = code.forward(shape, None if affine is None else affine.slope)
    compiled(threads, len(x), *(t.data_ptr() for t in tensors))
    return y


def backward(
    x: Tensor, weight: Tensor, dy: Tensor, affine: AffineActivation | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x and the weights; x is channels last. With ``affine``, in place of the first, g = phi'(a x + b)
    dL/dphi and the table (images, 2, channels) of the sums of g and of g (x - mean) over each image."""
    from unissl_kernels import winograd_ir as code

    dy = dy.contiguous(memory_format=torch.channels_last)
    shape, threads = shape_of(x, len(weight)), torch.get_num_threads()
    u = packed(_transform_weights(weight).transpose(1, 2), shape.panel(shape.inputs))
    dx = torch.empty_like(x)
    du = x.new_zeros(threads, code.POSITIONS, shape.inputs, shape.outputs)
    work = x.new_zeros(threads, shape.work)
    sums = x.new_zeros(0 if affine is None else len(x), 2, shape.inputs)
    tensors = [x, dy, u, dx, du, work]
    if affine is not None:
        tensors += [affine.scale, affine.shift, affine.mean, sums]
    compiled = code.backward(shape, None if affine is None else affine.slope)
    compiled(threads, len(x), *(t.data_ptr() for t in tensors))
    return dx, _transform_weight_gradient(du.sum(0)).to(weight.dtype), sums


def saved_tensors(ctx: Any) -> tuple[Tensor, ...]:
    """The tensors saved for the backward pass, the map x first. Hooks on saved tensors may have changed its layout."""
    x, *others = ctx.saved_tensors
    return x.contiguous(memory_format=torch.channels_last), *others


def shape_of(x: Tensor, outputs: int) -> code.Shape:
    """Sizes of a map x that is convolved to so many channels."""
    from unissl_kernels.winograd_ir import Shape

    return Shape(x.shape[2], x.shape[3], x.shape[1], outputs, x.dtype)


def _transform_weights(weight: Tensor) -> Tensor:
    """U = G g G^T, (36, inputs, outputs) of weights (outputs, inputs, 3, 3); in float64, which costs nothing here."""
    by_position = weight.permute(2, 3, 1, 0).double().flatten(2).flatten(0, 1)  # (9, inputs * outputs)
    return (_weight_transform() @ by_position).to(weight.dtype).reshape(-1, weight.shape[1], weight.shape[0])


def _transform_weight_gradient(du: Tensor) -> Tensor:
    """dL/dg = G^T dL/dU G."""
    by_position = _weight_transform().T @ du.double().flatten(1)
    return by_position.reshape(3, 3, *du.shape[1:]).permute(3, 2, 0, 1)


@cache
def _weight_transform() -> Tensor:
    """The matrix (36, 9) that maps g to G g G^T, both flattened."""
    g = torch.tensor(G, dtype=torch.float64, device="cpu")
    return torch.kron(g, g)


def packed(matrices: Tensor, panel: int) -> Tensor:
    """(36, depth, columns) panel by panel: (36, columns / panel, depth, panel)."""
    positions, depth, columns = matrices.shape
    return matrices.reshape(positions, depth, columns // panel, panel).transpose(1, 2).contiguous()
