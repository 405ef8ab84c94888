"""FixMatch, Eq. (3) and (4) of its paper: the whole step against loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from slow_reference import (
    END,
    START,
    TinyNet,
    affine,
    draw_batch,
    entropy,
    features,
    gradients,
    mean,
    softmax,
    spread,
)
from torch import Tensor

from unissl.methods.fixmatch import FixMatch, FixMatchConfig
from unissl.types import Batch, DataInfo, Step

pytestmark = pytest.mark.usefixtures("double")
C, D, SIZES = 3, 4, {"labelled": 3, "unlabelled": 5}


def make(**settings: Any) -> tuple[FixMatch, TinyNet]:
    torch.manual_seed(0)
    return FixMatch(FixMatchConfig(**settings), DataInfo(C, D, 9, (1, 1, 1))), TinyNet(D, C)


def fixmatch_by_loops(net: TinyNet, batch: Batch, threshold: float) -> tuple[dict[str, Tensor], float]:
    """Both terms, and the share of unlabelled images that pass the cut-off."""
    lb, ulb = batch["labelled"], batch["unlabelled"]
    rows = features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
    logits = [affine(net.head, row) for row in rows]
    n, m = len(lb), len(ulb)
    sup = [entropy(lb.targets[i].tolist(), logits[i]) for i in range(n)]
    unsup, kept = [], 0
    for weak, strong in zip(logits[n : n + m], logits[n + m :], strict=True):
        q = softmax(weak.detach())
        chosen = max(range(C), key=lambda c: q[c])  # the first of equals
        if q[chosen] >= threshold:
            unsup.append(entropy(spread(chosen, C, 0), strong))
            kept += 1
        else:
            unsup.append(torch.zeros(()))
    return {"sup": mean(sup), "unsup": mean(unsup)}, kept / m


@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("step", [START, END])
def test_step_equals_loops_in_value_and_gradient(threshold: float, step: Step) -> None:
    method, net = make(threshold=threshold, unsup_weight=0.7)
    batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=1)
    losses = method.losses(net, batch, step)
    expected, kept = fixmatch_by_loops(net, batch, threshold)
    assert 0 < kept < 1 or threshold in (0.0, 1.0)  # the cases in between do cut
    assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
        {name: term.item() for name, term in expected.items()}, rel=1e-10
    )
    assert losses.logs["selected"].item() == pytest.approx(kept)
    total = expected["sup"] + 0.7 * expected["unsup"]
    assert losses.total.item() == pytest.approx(total.item(), rel=1e-10)
    parameters = list(net.parameters())
    for grad, expected_grad in zip(gradients(losses.total, parameters), gradients(total, parameters), strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)


def test_an_empty_mask_leaves_the_supervised_loss_alone() -> None:
    method, net = make(threshold=1.0)
    losses = method.losses(net, draw_batch(method.streams(method.cfg), C, SIZES, seed=1), START)
    assert losses.terms["unsup"].item() == 0
    assert losses.total.item() == losses.terms["sup"].item()
    assert all((g == 0).all() for g in gradients(losses.terms["unsup"], list(net.parameters())))


def test_everything_confident_is_the_plain_mean() -> None:
    method, net = make(threshold=0.999)
    with torch.no_grad():
        net.head.bias[1] = 50.0
    batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=1)
    losses = method.losses(net, batch, START)
    expected, kept = fixmatch_by_loops(net, batch, 0.0)
    assert kept == losses.logs["selected"].item() == 1
    assert losses.terms["unsup"].item() == pytest.approx(expected["unsup"].item(), rel=1e-10, abs=1e-15)


def test_a_confidence_at_the_threshold_counts_and_a_tie_goes_to_the_first_class() -> None:
    """Equal logits: every confidence is exactly 1/C, here a power of two."""
    method = FixMatch(FixMatchConfig(threshold=0.25), DataInfo(4, D, 9, (1, 1, 1, 1)))
    net = TinyNet(D, 4)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    losses = method.losses(net, draw_batch(method.streams(method.cfg), 4, SIZES, seed=1), START)
    assert losses.logs["selected"].item() == 1
    (slope,) = gradients(losses.terms["unsup"], [net.head.bias])
    torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))


def test_pseudo_labels_get_no_gradient() -> None:
    method, net = make(threshold=0.0)
    net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=1, requires_grad=True)
    losses = method.losses(net, batch, START)
    weak, strong = batch["unlabelled"].views["weak"], batch["unlabelled"].views["strong"]
    of_weak, of_strong = gradients(losses.total, [weak, strong])
    assert not of_weak.any()
    assert of_strong.any()
