"""A network whose rows are split over processes has the outputs and gradients of one that has them all."""

from __future__ import annotations

import pytest
import torch
from process_group import on_processes
from torch import Tensor

from unissl.distributed.batch_norm import with_global_batch_norm
from unissl.distributed.collectives import average_gradients, broadcast_state
from unissl.distributed.data_parallel import DataParallelNet, data_parallel
from unissl.distributed.group import current
from unissl.nets import build


def outcome() -> dict[str, Tensor]:
    """All that methods do with a network in one step: see the module's tests for what is compared."""
    torch.manual_seed(0)
    dtype = torch.float64
    net = build("wrn-10-1", 4, 1, bn_momentum=0.1).to(dtype)
    net.wanted_taps = ("stage2", "map")
    with_global_batch_norm(net)
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=dtype)
    called = data_parallel(net)
    assert isinstance(called, DataParallelNet) == (current().size > 1)
    first, second, single = called(x), called(x[:4] * 2), called(x[:1])
    with torch.no_grad():
        called(x + 1)
    copied = net.head(first.feat * 1.5)  # the classifier on features that are whole already, as CPG uses it
    loss = (first.logits.square().sum() + copied.tanh().sum()) * (first.feat[0] - first.feat[-1]).square().sum()
    loss = loss + second.taps["stage2"].square().sum() + second.taps["map"].mean() + single.logits.exp().sum()
    loss.backward()
    without = sorted(name for name, p in net.named_parameters() if p.grad is None)
    average_gradients(net)
    net.eval()
    found = {"loss": loss.detach(), "feat": first.feat.detach(), "eval": called(x).logits.detach()}
    found |= {f"d {name}": p.grad for name, p in net.named_parameters() if p.grad is not None}
    return found | net.state_dict() | {"without": without}  # type: ignore[dict-item]


@pytest.mark.parametrize("size", [2, 3])
def test_outputs_gradients_and_buffers_are_those_of_one_process(size: int) -> None:
    """Several calls in one step, fewer rows than processes, no gradient, eval mode, and the classifier used twice."""
    expected = outcome()
    without = expected.pop("without")
    assert without  # parameters that get no gradient do not stall the others
    for process in on_processes(size, outcome):
        assert process.pop("without") == without
        for name, value in expected.items():
            torch.testing.assert_close(process[name], value, rtol=1e-9, atol=1e-11, msg=lambda m: f"{name}: {m}")  # noqa: B023


def differing() -> dict[str, Tensor]:
    state = {"a": torch.full((2, 3), float(current().rank)), "count": torch.tensor(current().rank)}
    broadcast_state(state)
    return state


def test_state_of_the_first_process_is_taken_over() -> None:
    for process in on_processes(2, differing):
        assert torch.equal(process["a"], torch.zeros(2, 3)) and int(process["count"]) == 0
