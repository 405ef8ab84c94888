"""Training from pretrained weights: which stages move, at which rate, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from unissl.errors import UserError
from unissl.nets import Network, build
from unissl.nets.fine_tuning import PretrainedStages, fine_tune, starts_pretrained
from unissl.training.optim import OptimConfig, build_optimizer, set_learning_rate


def tuned(blocks: int | None, name: str = "efficientnet-lite0") -> Network:
    torch.manual_seed(0)
    net = build(name, 3)
    fine_tune(net, blocks, name)
    return net


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def one_step(net: Network, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(1)
    optimizer.zero_grad()
    torch.autograd.backward(net(torch.randn(4, 3, 32, 32)).logits.square().mean())
    optimizer.step()


@pytest.mark.parametrize("blocks, moving", [(None, 9), (8, 8), (2, 2), (1, 1), (0, 0)])
def test_only_the_last_parts_move_in_value_and_in_statistics(blocks: int | None, moving: int) -> None:
    net = tuned(blocks)
    before = values(net)
    net.eval().train()  # as an evaluation between two epochs does
    one_step(net, build_optimizer(net, OptimConfig(lr=0.1)))
    names = list(net.stages)
    still = names[: len(names) - moving]
    for name, value in net.state_dict().items():
        stage = name.split(".")[1]
        assert torch.equal(value, before[name]) == (name.startswith("stages.") and stage in still), name
    assert all(not part.training for stage in still for part in net.stages[stage].modules())
    assert all(net.stages[stage].training for stage in names if stage not in still) and net.head.training


def test_marking_changes_neither_names_nor_outputs() -> None:
    torch.manual_seed(0)
    plain, marked = build("efficientnet-lite0", 3).eval(), tuned(2).eval()
    assert list(plain.state_dict()) == list(marked.state_dict())
    plain.load_state_dict(marked.state_dict(), strict=True)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(plain(x).logits, marked(x).logits)
    assert starts_pretrained(marked) and not starts_pretrained(plain)


def test_a_copy_is_still_in_the_same_places() -> None:
    net = copy.deepcopy(tuned(1))
    assert isinstance(net.stages, PretrainedStages) and not net.train().stages["stage7"].training
    assert not any(parameter.requires_grad for parameter in net.stages["stage7"].parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_pretrained_parts_get_their_share_of_the_rate(optimizer: str) -> None:
    """The same step with the whole rate for all: pretrained parts went exactly a quarter of it, others all of it."""
    moved = {}
    for share in (1.0, 0.25):
        net = tuned(2)
        config = OptimConfig(name=optimizer, lr=0.5, momentum=0, weight_decay=0, backbone_lr_scale=share)  # type: ignore[arg-type]
        built = build_optimizer(net, config)
        set_learning_rate(built, 0.01)
        before = values(net)
        one_step(net, built)
        moved[share] = {name: p.detach() - before[name] for name, p in net.named_parameters()}
    for name, whole in moved[1.0].items():
        factor = 0.25 if name.startswith("stages.") else 1.0
        torch.testing.assert_close(moved[0.25][name], factor * whole, rtol=1e-2, atol=1e-6)


def test_groups_of_the_optimiser() -> None:
    net = tuned(1)
    groups = build_optimizer(net, OptimConfig(lr=0.2, weight_decay=0.3, backbone_lr_scale=0.1)).param_groups
    assert [(group["lr"], group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.2, 0.3, 1),
        (0.2, 0.0, 1),
        (pytest.approx(0.02), 0.3, 1),
        (pytest.approx(0.02), 0.0, 2),
    ]


@pytest.mark.parametrize("blocks", [9, 20])
def test_more_parts_than_there_are(blocks: int) -> None:
    with pytest.raises(UserError, match=f"net.unfreeze_last = {blocks} leaves no stage of .*9 stages .*stem, stage1"):
        tuned(blocks)


def test_a_network_of_one_part_cannot_be_cut() -> None:
    from unissl.nets.heads import MLPHead

    with pytest.raises(UserError, match="has 1 stage .map."):
        fine_tune(MLPHead(4, 2, 0.1), 1, "whole")
