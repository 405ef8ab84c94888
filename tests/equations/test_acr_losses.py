"""ACR: whole steps over several epochs against loops, with and without the estimation of the pool's class mix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from slow_reference import (
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

from unissl.methods.acr import ACR, ACRConfig, reversed_prior
from unissl.types import Batch, DataInfo, Step

pytestmark = pytest.mark.usefixtures("double")
D, SIZES = 4, {"labelled": 4, "unlabelled": 6}
COUNTS = (1, 6, 3)
"""Labelled counts with gamma_l > 1 and not in order of size."""
EPOCH = 3
"""Steps per epoch of the trainings below."""


def make(counts: tuple[int, ...] = COUNTS, **settings: Any) -> tuple[ACR, TinyNet]:
    torch.manual_seed(0)
    classes = len(counts)
    method, net = ACR(ACRConfig(**settings), DataInfo(classes, D, 9, counts)), TinyNet(D, classes)
    torch.nn.init.normal_(method.standard.weight)  # confidences from low to high
    return method, net


def period_start(method: ACR) -> None:
    method.on_period_start(SimpleNamespace(step=START))  # type: ignore[arg-type]


@dataclass
class Reference:
    """ACR with plain lists. ``tau1`` is the strength for the standard head's pseudo-labels."""

    counts: tuple[int, ...]
    threshold: float
    estimate: bool = True
    start: float = 6 / 500
    tau1: float = 2.0
    u: list[float] = field(default_factory=list)
    distances: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.classes = len(self.counts)
        self.prior = [n / sum(self.counts) for n in self.counts]
        self.u = [1 / self.classes] * self.classes

    def a(self, tau: float) -> Tensor:
        return torch.tensor([math.log(p**tau + 1e-12) for p in self.prior])

    def anchors(self) -> list[list[float]]:
        """Consistent, uniform, reversed: the most frequent class takes the share of the rarest, and so on."""
        ranked = sorted(range(self.classes), key=lambda c: -self.prior[c])
        backwards = [0.0] * self.classes
        for rank, c in enumerate(ranked):
            backwards[c] = self.prior[ranked[self.classes - 1 - rank]]
        return [self.prior, [1 / self.classes] * self.classes, backwards]

    def step(self, net: TinyNet, method: ACR, batch: Batch, fraction: float) -> tuple[dict[str, Tensor], float]:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        n, m = len(lb), len(ulb)
        rows = features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
        standard, balanced = ([affine(head, row) for row in rows] for head in (method.standard, net.head))
        truth = [row.tolist() for row in lb.targets]
        terms: dict[str, list[Tensor]] = {"unsup": [], "unsup_balanced": []}
        terms["sup"] = [entropy(truth[i], standard[i]) for i in range(n)]
        terms["sup_balanced"] = [entropy(truth[i], balanced[i] + self.a(2.0)) for i in range(n)]
        histogram, kept = [0] * self.classes, 0
        for j in range(n, n + m):
            raw, raw_b = standard[j].detach(), balanced[j].detach()
            adapted, adjusted = softmax(raw - self.a(self.tau1)), softmax(raw - self.a(2.0))
            y1, y2 = adapted.index(max(adapted)), adjusted.index(max(adjusted))
            m1 = max(adapted) >= self.threshold or max(softmax(raw)) >= self.threshold
            m2 = max(softmax(raw_b)) >= self.threshold or max(adjusted) >= self.threshold
            terms["unsup"].append(float(m1) * entropy(spread(y1, self.classes, 0), standard[j + m]))
            terms["unsup_balanced"].append(float(m2) * entropy(spread(y2, self.classes, 0), balanced[j + m]))
            kept += m2
            guess = softmax(raw_b)
            if max(guess) >= self.threshold:
                histogram[guess.index(max(guess))] += 1
        if self.estimate and fraction >= self.start and sum(histogram) > 0:
            self.u = [0.9 * u + 0.1 * h / sum(histogram) for u, h in zip(self.u, histogram, strict=True)]
            self.distances.append([0.5 * kl(self.u, p) + 0.5 * kl(p, self.u) for p in self.anchors()])
        return {name: mean(values) for name, values in terms.items()}, kept / m

    def period_start(self) -> None:
        if self.distances:
            means = [sum(column) / len(self.distances) for column in zip(*self.distances, strict=True)]
            self.tau1 = 2 * math.exp(means[0]) / sum(math.exp(value) for value in means)
        self.distances = []


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("estimate", [True, False])
@pytest.mark.parametrize("counts", [COUNTS, (8, 4, 2, 1)])
def test_steps_equal_loops_in_value_gradient_and_state(
    threshold: float, estimate: bool, counts: tuple[int, ...]
) -> None:
    method, net = make(counts, threshold=threshold, estimate=estimate, unsup_weight=0.7)
    reference = Reference(counts, threshold, estimate)
    shares = []
    for iteration in range(3 * EPOCH):
        step = Step(iteration, 3 * EPOCH, iteration // EPOCH, 3)
        if iteration % EPOCH == 0:
            period_start(method)
            reference.period_start()
        batch = draw_batch(method.streams(method.cfg), len(counts), SIZES, seed=iteration)
        losses = method.losses(net, batch, step)
        expected, kept = reference.step(net, method, batch, step.fraction)
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-10
        )
        assert losses.logs["selected"].item() == pytest.approx(kept)
        assert losses.logs["strength"].item() == pytest.approx(reference.tau1, rel=1e-12)
        assert method.pool_prior.tolist() == pytest.approx(reference.u, rel=1e-12)
        total = sum((0.7 if "unsup" in name else 1.0) * term for name, term in expected.items())
        assert isinstance(total, Tensor)
        parameters = [*net.parameters(), *method.parameters()]
        for grad, expected_grad in zip(gradients(losses.total, parameters), gradients(total, parameters), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)
        shares.append(kept)
    assert any(0 < share < 1 for share in shares) or threshold in (0.0, 1.0)  # the cases in between do cut
    assert (reference.tau1 != 2) == (estimate and threshold < 1)  # the state did move


def fed(method: ACR, classes: list[int], steps: int = 60) -> float:
    """The strength for the standard head after an epoch in which the balanced head was sure of these classes."""
    probs = 0.97 * torch.eye(len(COUNTS))[classes] + 0.01
    for _ in range(steps):
        method.watch(probs)
    period_start(method)
    return method.standard_strength.item()


def test_a_pool_like_the_labels_takes_least_out_and_a_reversed_one_most() -> None:
    """Balanced pools are in between; all are below the fixed strength of the port."""
    alike = fed(make()[0], [0] + [1] * 6 + [2] * 3)
    uniform = fed(make()[0], [0, 1, 2])
    opposite = fed(make()[0], [0] * 6 + [1] + [2] * 3)
    assert 0 < alike < uniform < opposite < 2
    assert alike < 0.5 < 0.9 < opposite


def test_the_estimation_changes_the_standard_head_only() -> None:
    """What the released port left out: it is not seen by the balanced head's own terms."""
    default, net = make(threshold=0.0)
    port, _ = make(threshold=0.0, estimate=False)
    for method in (default, port):
        torch.nn.init.zeros_(method.standard.weight)  # the guess is that of the adjustment and of this bias
        with torch.no_grad():
            method.standard.bias.copy_(torch.tensor([0.0, 2.0, 0.0]))
    fed(default, [0, 1, 2])
    period_start(port)
    batch = draw_batch(default.streams(default.cfg), 3, SIZES, seed=2)
    one, other = (method.losses(net, batch, START).terms for method in (default, port))
    assert abs(one["unsup"].item() - other["unsup"].item()) > 1e-2
    assert all(one[name].item() == other[name].item() for name in ("sup", "sup_balanced", "unsup_balanced"))


def test_with_balanced_labels_the_estimation_changes_nothing() -> None:
    default, net = make((2, 2, 2), threshold=0.6)
    port, _ = make((2, 2, 2), threshold=0.6, estimate=False)
    assert fed(default, [0, 0, 1]) == pytest.approx(2 / 3)
    batch = draw_batch(default.streams(default.cfg), 3, SIZES, seed=2)
    one, other = (method.losses(net, batch, START).terms for method in (default, port))
    assert {n: t.item() for n, t in one.items()} == pytest.approx({n: t.item() for n, t in other.items()}, rel=1e-12)


def test_before_its_phase_and_without_confident_guesses_nothing_is_estimated() -> None:
    for step, threshold in ((Step(5, 500, 5, 500), 0.0), (Step(6, 500, 6, 500), 1.0)):
        method, net = make(threshold=threshold)
        method.losses(net, draw_batch(method.streams(method.cfg), 3, SIZES, seed=2), step)
        period_start(method)
        assert method.standard_strength.item() == 2
        assert method.pool_prior.tolist() == pytest.approx([1 / 3] * 3)
    method, net = make(threshold=0.0)
    method.losses(net, draw_batch(method.streams(method.cfg), 3, SIZES, seed=2), Step(6, 500, 6, 500))
    period_start(method)
    assert method.standard_strength.item() != 2


def test_a_class_that_is_never_seen_stays_finite() -> None:
    method, _ = make()
    strength = fed(method, [1] * 5, steps=10_000)
    assert 0 < strength < 2
    assert method.pool_prior.tolist() == pytest.approx([0, 1, 0], abs=1e-9)


def test_an_empty_mask_leaves_the_supervised_losses_alone() -> None:
    method, net = make(threshold=1.0)
    losses = method.losses(net, draw_batch(method.streams(method.cfg), 3, SIZES, seed=1), START)
    assert losses.terms["unsup"].item() == losses.terms["unsup_balanced"].item() == 0
    assert losses.total.item() == (losses.terms["sup"] + losses.terms["sup_balanced"]).item()


def test_a_confidence_at_the_threshold_counts_and_a_tie_goes_to_the_first_class() -> None:
    method, net = make((1, 1, 1, 1), threshold=0.25)
    for head in (net.head, method.standard):
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    losses = method.losses(net, draw_batch(method.streams(method.cfg), 4, SIZES, seed=1), START)
    assert losses.logs["selected"].item() == losses.logs["selected_standard"].item() == 1
    for name, head in (("unsup", method.standard), ("unsup_balanced", net.head)):
        (slope,) = gradients(losses.terms[name], [head.bias])
        torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))


def test_one_confident_class_is_one_class_in_the_estimate() -> None:
    method, net = make(threshold=0.99)
    with torch.no_grad():
        net.head.bias[1] = 50.0
    losses = method.losses(net, draw_batch(method.streams(method.cfg), 3, SIZES, seed=1), Step(9, 10, 9, 10))
    assert losses.logs["selected"].item() == 1
    assert method.pool_prior.tolist() == pytest.approx([0.3, 0.4, 0.3])


def test_pseudo_labels_get_no_gradient() -> None:
    method, net = make(threshold=0.0)
    net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw_batch(method.streams(method.cfg), 3, SIZES, seed=1, requires_grad=True)
    losses = method.losses(net, batch, START)
    weak, strong = batch["unlabelled"].views["weak"], batch["unlabelled"].views["strong"]
    of_weak, of_strong = gradients(losses.total, [weak, strong])
    assert not of_weak.any()
    assert of_strong.any()


def test_prediction_is_the_balanced_head() -> None:
    method, net = make()
    torch.nn.init.constant_(method.standard.bias, 100.0)
    net.eval()
    images = draw_batch(method.streams(method.cfg), 3, SIZES, seed=1)["unlabelled"].views["weak"]
    assert torch.equal(method.predict(net, images).logits, net(images).logits)
    assert method.inference_module(net) is net


def test_reversed_prior_swaps_the_most_and_the_least_frequent() -> None:
    assert reversed_prior(torch.tensor([0.6, 0.3, 0.1])).tolist() == [0.1, 0.3, 0.6]  # in order: the order reversed
    assert reversed_prior(torch.tensor([0.1, 0.6, 0.3])).tolist() == [0.6, 0.1, 0.3]
    assert reversed_prior(torch.tensor([0.4, 0.3, 0.3])).tolist() == [0.3, 0.3, 0.4]
