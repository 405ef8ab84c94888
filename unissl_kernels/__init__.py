"""Compiled CPU kernels for training: Winograd convolutions, and BatchNorm + activation + convolution fused.

The package is optional: without this folder, :mod:`unissl.nets.base`, its only importer, runs plain torch layers. So do
``UNISSL_DISABLE_KERNELS=1``, GPUs, evaluation, small maps, and systems where the kernels cannot be compiled. Results
are equal to rounding, and state_dict keys are the same. Training on a CPU is then slower (docs/performance.md). Its
tests are ``tests/unit/kernels`` and a part of ``tests/unit/bench``.
"""

from unissl_kernels.norm_act_conv import apply_norm_act_conv
from unissl_kernels.winograd import SWITCH, Conv3x3

__all__ = ["SWITCH", "Conv3x3", "apply_norm_act_conv"]
