"""SoftMatch: several steps against loops, with the running values carried along; uniform alignment by itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from slow_reference import START, TinyNet, affine, draw_batch, entropy, features, gradients, mean, softmax, spread
from torch import Tensor

from unissl.methods.softmatch import SoftMatch, SoftMatchConfig
from unissl.ops.alignment import UniformAlignment
from unissl.types import Batch, DataInfo

pytestmark = pytest.mark.usefixtures("double")
C, D, SIZES = 3, 4, {"labelled": 3, "unlabelled": 5}


def make(num_classes: int = C, **settings: Any) -> tuple[SoftMatch, TinyNet]:
    torch.manual_seed(0)
    info = DataInfo(num_classes, D, 9, (1,) * num_classes)
    return SoftMatch(SoftMatchConfig(**settings), info), TinyNet(D, num_classes)


def draw(method: SoftMatch, seed: int, requires_grad: bool = False) -> Batch:
    return draw_batch(method.streams(method.cfg), method.info.num_classes, SIZES, seed, requires_grad)


class Reference:
    """The facts in loops."""

    def __init__(self, num_classes: int, momentum: float, n_sigma: float, align: bool) -> None:
        self.num_classes, self.momentum, self.n_sigma, self.align = num_classes, momentum, n_sigma, align
        self.p_model: list[float] | None = None
        self.mu, self.var = 1 / num_classes, 1.0

    def move(self, old: float, new: float) -> float:
        return self.momentum * old + (1 - self.momentum) * new

    def aligned(self, rows: list[list[float]]) -> list[list[float]]:
        average = [sum(row[c] for row in rows) / len(rows) for c in range(self.num_classes)]
        if self.p_model is None:
            self.p_model = average
        else:
            self.p_model = [self.move(old, new) for old, new in zip(self.p_model, average, strict=True)]
        uniform = 1 / self.num_classes
        result = []
        for row in rows:
            scaled = [q * (uniform + 1e-6) / (p + 1e-6) for q, p in zip(row, self.p_model, strict=True)]
            result.append([value / sum(scaled) for value in scaled])
        return result

    def step(self, net: TinyNet, batch: Batch) -> tuple[dict[str, Tensor], list[float]]:
        """Both terms, and the weights; the running values change first."""
        lb, ulb = batch["labelled"], batch["unlabelled"]
        rows = features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
        logits = [affine(net.head, row) for row in rows]
        n, m = len(lb), len(ulb)
        weak, strong = [softmax(row.detach()) for row in logits[n : n + m]], logits[n + m :]
        confidences = [max(row) for row in (self.aligned(weak) if self.align else weak)]
        average = sum(confidences) / m
        self.mu = self.move(self.mu, average)
        self.var = self.move(self.var, sum((value - average) ** 2 for value in confidences) / (m - 1))
        weights = [
            math.exp(-(min(0.0, value - self.mu) ** 2) * self.n_sigma**2 / (2 * self.var)) for value in confidences
        ]
        unsup = []
        for weight, q, row in zip(weights, weak, strong, strict=True):
            label = q.index(max(q))  # of the prediction as it is; the first of equals
            unsup.append(weight * entropy(spread(label, self.num_classes, 0), row))
        sup = mean([entropy(lb.targets[i].tolist(), logits[i]) for i in range(n)])
        return {"sup": sup, "unsup": mean(unsup)}, weights


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.999])
@pytest.mark.parametrize(("n_sigma", "align"), [(2.0, True), (1.0, True), (2.0, False)])
def test_steps_equal_loops_in_value_gradient_and_state(momentum: float, n_sigma: float, align: bool) -> None:
    method, net = make(momentum=momentum, n_sigma=n_sigma, align=align, unsup_weight=0.7)
    reference = Reference(C, momentum, n_sigma, align)
    lightest, parameters = [], list(net.parameters())
    for seed in range(5):
        batch = draw(method, seed)
        losses = method.losses(net, batch, START)
        expected, weights = reference.step(net, batch)
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-10
        )
        assert losses.logs["selected"].item() == pytest.approx(sum(weights) / len(weights), rel=1e-10)
        lightest.append(min(weights))
        assert method.weighting.mean.item() == pytest.approx(reference.mu, rel=1e-12)
        assert method.weighting.var.item() == pytest.approx(reference.var, rel=1e-12)
        if method.alignment is not None:
            assert method.alignment.mean.tolist() == pytest.approx(reference.p_model, rel=1e-12)
        total = expected["sup"] + 0.7 * expected["unsup"]
        assert losses.total.item() == pytest.approx(total.item(), rel=1e-10)
        for grad, expected_grad in zip(gradients(losses.total, parameters), gradients(total, parameters), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)
    assert min(lightest) < 0.9 or momentum > 0.9  # the variance has fallen far enough from 1 to matter


def test_the_pseudo_label_is_that_of_the_prediction_before_alignment() -> None:
    """Class 0 is predicted throughout; alignment would turn some labels over, and must not."""
    method, net = make()
    with torch.no_grad():
        net.head.weight.mul_(0.3)
        net.head.bias[0] = 3.0
    batch = draw(method, seed=1)
    lb, ulb = batch["labelled"], batch["unlabelled"]
    probs = net(torch.cat([lb.views["weak"], ulb.views["weak"], ulb.views["strong"]])).logits[3:8].softmax(-1)
    assert probs.argmax(-1).tolist() == [0] * 5
    assert UniformAlignment(C)(probs).argmax(-1).any()
    losses = method.losses(net, batch, START)
    (slope,) = gradients(losses.terms["unsup"], [net.head.bias])
    assert slope[0] < 0 < min(slope[1], slope[2])  # only class 0 is pulled up


def test_equal_confidences_all_weigh_one_and_ties_go_to_the_first_class() -> None:
    method, net = make(num_classes=4)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    losses = method.losses(net, draw(method, seed=1), START)
    assert losses.logs["selected"].item() == 1
    (slope,) = gradients(losses.terms["unsup"], [net.head.bias])
    torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))


def test_weights_that_vanish_leave_the_supervised_loss_alone() -> None:
    method, net = make(num_classes=4)
    method.weighting.mean.fill_(1.0)
    method.weighting.var.fill_(0.0)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    losses = method.losses(net, draw(method, seed=1), START)
    assert losses.logs["selected"].item() == losses.terms["unsup"].item() == 0
    assert losses.total.item() == losses.terms["sup"].item()


def test_one_confident_class_is_finite() -> None:
    method, net = make(momentum=0.5)
    with torch.no_grad():
        net.head.bias[1] = 80.0
    reference = Reference(C, 0.5, 2.0, True)
    for seed in range(3):
        batch = draw(method, seed)
        losses = method.losses(net, batch, START)
        _, weights = reference.step(net, batch)
        assert losses.logs["selected"].item() == pytest.approx(sum(weights) / 5, rel=1e-10)
        assert all(torch.isfinite(g).all() for g in gradients(losses.total, list(net.parameters())))


def test_pseudo_labels_and_weights_get_no_gradient() -> None:
    method, net = make()
    net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw(method, seed=1, requires_grad=True)
    losses = method.losses(net, batch, START)
    views = batch["unlabelled"].views
    of_weak, of_strong = gradients(losses.total, [views["weak"], views["strong"]])
    assert not of_weak.any()
    assert of_strong.any()


def test_alignment_makes_the_first_batch_even_and_keeps_rows_on_the_simplex() -> None:
    """Two rows that lean to class 0 by the same factor come out even."""
    aligned = UniformAlignment(2)(torch.tensor([[0.9, 0.1], [0.9, 0.1]]))
    torch.testing.assert_close(aligned, torch.full((2, 2), 0.5), rtol=0, atol=1e-5)
    probs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    torch.testing.assert_close(UniformAlignment(4)(probs).sum(-1), torch.ones(6))


def test_alignment_survives_a_class_that_is_never_predicted_and_an_empty_batch() -> None:
    alignment = UniformAlignment(3)
    assert alignment(torch.empty(0, 3)).shape == (0, 3)
    assert not alignment.started
    aligned = alignment(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    assert torch.isfinite(aligned).all()
    assert alignment.mean.tolist() == [0.75, 0.25, 0.0]


def test_alignment_state_travels_and_no_gradient_flows() -> None:
    alignment, other = UniformAlignment(3, momentum=0.5), UniformAlignment(3, momentum=0.5)
    probs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).softmax(-1).requires_grad_()
    assert not alignment(probs).requires_grad
    other.load_state_dict(alignment.state_dict())
    assert set(alignment.state_dict()) == {"mean", "started"}
    assert torch.equal(alignment(probs.detach()[:2]), other(probs.detach()[:2]))
