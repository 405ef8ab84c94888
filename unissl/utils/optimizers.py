"""torch's optimisers without their markers for torch.compile, which import the compiler: a second of every process.

Only networks are compiled here, never optimisers. The arithmetic is torch's.
"""

from __future__ import annotations

import inspect

import torch


class _NeverCompiled(torch.optim.Optimizer):
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class SGD(_NeverCompiled, torch.optim.SGD):
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class Adam(_NeverCompiled, torch.optim.Adam):
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
