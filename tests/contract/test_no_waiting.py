"""A training step asks the device for no value: on a GPU each such question makes the host wait and the device idle.

A CPU has nothing to wait for, but the operations that would wait are the same ones there, so they can be watched for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from method_cases import make_batches, make_split, make_state
from torch.utils._python_dispatch import TorchDispatchMode

from unissl.methods.registry import all_methods, get_method
from unissl.training.trainer import TrainerContext, step_at

WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "bincount",
    "equal",
    "is_nonzero",
}
"""Operations whose result, or its shape, the host must know: ``item``, ``bool``, ``float``, boolean indexing, ..."""
WAITS = {
    "cpg": "the number of copies of a feature, and the labelled set itself, depend on what was chosen",
    "scomatch": "how many images the queue holds decides the size of the batch",
}
"""Methods that cannot do without, and why."""
TOTAL = 12


class Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in WAITING or by_mask or (name == "repeat_interleave" and isinstance(args[0], torch.Tensor)):
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


def questions(case: str) -> Counter[str]:
    """What a run of the method asks in all its phases, hooks apart from scans of the pool included."""
    config, split = get_method(case).Config().for_data(4), make_split(4)
    state, batches = make_state(config, split), make_batches(config, split)
    watch = Watch()
    for iteration in range(TOTAL):
        step = step_at(iteration, TOTAL, 3)
        batch = batches.at(iteration, state.learner.method.promoted())
        context = TrainerContext(state.learner, state.ema.shadow, batches, step)
        with watch:
            losses = state.learner.losses(batch, step)
            torch.autograd.backward(losses.total)
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            state.ema.update(state.learner)
            if not case.startswith("cgmatch"):  # its warm-up scans the pool, which makes batches
                state.learner.method.after_step(context)
    return watch.seen


@pytest.mark.parametrize("case", [name for name in all_methods() if name not in WAITS])
def test_a_step_does_not_wait(case: str) -> None:
    assert questions(case) == {}


@pytest.mark.parametrize("case", WAITS)
def test_exceptions_are_needed(case: str) -> None:
    assert questions(case), f"{case} no longer waits; take it off the list"


def test_the_watch_sees() -> None:
    x = torch.arange(3.0)
    for ask in (lambda: x.sum().item(), lambda: bool(x[0] > 1), lambda: x[x > 1], lambda: x.nonzero()):
        with Watch() as watch:
            ask()
        assert watch.seen
