"""BatchNorm over the rows of processes equals torch's over the whole batch: values, gradients, statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from process_group import on_processes
from torch import Tensor, nn

from unissl.distributed.batch_norm import GlobalBatchNorm, over_rows, with_global_batch_norm
from unissl.distributed.collectives import average_gradients
from unissl.distributed.data_parallel import gather_rows
from unissl.distributed.rows import local_slice
from unissl.errors import UserError

CASES: dict[str, tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = {
    "maps": (nn.BatchNorm2d, {"momentum": 0.3}, (7, 3, 4, 2)),
    "vectors": (nn.BatchNorm1d, {"momentum": 0.001, "eps": 1e-3}, (5, 4)),
    "two rows": (nn.BatchNorm1d, {}, (2, 4)),
    "not affine": (nn.BatchNorm2d, {"affine": False}, (4, 3, 2, 2)),
    "plain mean": (nn.BatchNorm2d, {"momentum": None}, (6, 3, 2, 2)),
    "no memory": (nn.BatchNorm2d, {"track_running_stats": False}, (6, 3, 2, 2)),
}


def batches(shape: tuple[int, ...]) -> Tensor:
    """Two of them, far from zero, where sums of squares would lose digits."""
    return 100 + torch.randn(2, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def outcome(case: str) -> dict[str, Tensor]:
    """Two steps of a BatchNorm inside a module, on as many processes as there are."""
    kind, settings, shape = CASES[case]
    net = nn.Sequential(kind(shape[1], **settings)).double()
    for number, parameter in enumerate(net.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))
    with_global_batch_norm(net)
    found = {}
    for step, x in enumerate(batches(shape)):
        x.requires_grad_()
        with over_rows(len(x)):
            (y,) = gather_rows(len(x), net(x[local_slice(len(x))]))
        net.zero_grad()
        (y.tanh() * torch.arange(y.numel()).view(y.shape)).sum().backward()
        # What stands for parameters before the BatchNorm: the gradient of its input, on whatever process the row is.
        net.register_parameter("x", nn.Parameter(torch.zeros_like(x)))
        net.x.grad = x.grad
        average_gradients(net)
        found |= {f"y{step}": y.detach(), f"dx{step}": x.grad}
        found |= {f"{name} {step}": p.grad for name, p in net.named_parameters() if name != "x"}
        net.register_parameter("x", None)
    net.eval()
    return found | {"eval": net(x).detach()} | net.state_dict() | {"kinds": [type(m) for m in net]}  # type: ignore[dict-item]


def all_outcomes() -> dict[str, dict[str, Tensor]]:
    return {case: outcome(case) for case in CASES}


@pytest.fixture(scope="module")
def on_two() -> list[dict[str, dict[str, Tensor]]]:
    return on_processes(2, all_outcomes)


@pytest.mark.parametrize("case", CASES)
def test_equals_torch_on_the_whole_batch(on_two: list[dict[str, dict[str, Tensor]]], case: str) -> None:
    expected = outcome(case)
    assert expected.pop("kinds") == [CASES[case][0]]
    for process in on_two:
        assert process[case]["kinds"] == [GlobalBatchNorm]
        for name, value in expected.items():
            torch.testing.assert_close(process[case][name], value, rtol=1e-10, atol=1e-10, msg=lambda m: f"{name}: {m}")  # noqa: B023


class Strange(nn.BatchNorm2d):
    pass


def refused() -> str:
    with pytest.raises(UserError) as error:
        with_global_batch_norm(nn.Sequential(Strange(3)))
    return str(error.value)


def test_a_batch_norm_of_another_kind_is_refused() -> None:
    assert "Strange" in on_processes(2, refused)[0]
    with_global_batch_norm(nn.Sequential(Strange(3)))  # alone it may be what it likes
