"""Useful arithmetic of a network: the operations of direct convolutions, whatever algorithm computes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def convolution_flops(net: nn.Module, channels: int, height: int, width: int) -> int:
    """Multiplications and additions in the convolutions, forward and backward, for one image.

    Backward costs the forward pass twice, once for the weights and once for the input; the images themselves need no
    gradient, so the convolutions that read them cost it once.
    """
    total = 0
    image = torch.zeros(1, channels, height, width, dtype=next(net.parameters()).dtype)

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(module, nn.Conv2d)
        forward = 2 * output.numel() * module.weight[0].numel()
        total += (2 if inputs[0] is image else 3) * forward

    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    handles = [module.register_forward_hook(count) for module in convolutions]
    was_training = net.training
    net.eval()  # running statistics stay as they are
    try:
        with torch.no_grad():
            net(image)
    finally:
        net.train(was_training)
        for handle in handles:
            handle.remove()
    return total
