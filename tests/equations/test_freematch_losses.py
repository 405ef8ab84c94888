"""FreeMatch: several steps against loops, with the running values carried along."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from slow_reference import START, TinyNet, affine, draw_batch, entropy, features, gradients, mean, softmax, spread
from torch import Tensor

from unissl.methods.freematch import FreeMatch, FreeMatchConfig
from unissl.types import Batch, DataInfo

pytestmark = pytest.mark.usefixtures("double")
C, D, SIZES = 3, 4, {"labelled": 3, "unlabelled": 7}


def make(num_classes: int = C, **settings: Any) -> tuple[FreeMatch, TinyNet]:
    torch.manual_seed(0)
    info = DataInfo(num_classes, D, 9, (1,) * num_classes)
    return FreeMatch(FreeMatchConfig(**settings), info), TinyNet(D, num_classes)


def draw(method: FreeMatch, seed: int, requires_grad: bool = False) -> Batch:
    return draw_batch(method.streams(method.cfg), method.info.num_classes, SIZES, seed, requires_grad)


def shares(labels: list[int], num_classes: int) -> list[float]:
    return [labels.count(c) / len(labels) for c in range(num_classes)]


class Reference:
    """The facts in loops."""

    def __init__(self, num_classes: int, momentum: float, limit: float = 1.0) -> None:
        self.num_classes, self.momentum, self.limit = num_classes, momentum, limit
        self.tau = 1 / num_classes
        self.p = [1 / num_classes] * num_classes
        self.h = [1 / num_classes] * num_classes

    def move(self, old: float, new: float) -> float:
        return self.momentum * old + (1 - self.momentum) * new

    def step(self, net: TinyNet, batch: Batch) -> tuple[dict[str, Tensor], float]:
        """The three terms, and the share of images in use; the running values change first."""
        lb, ulb = batch["labelled"], batch["unlabelled"]
        rows = features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
        logits = [affine(net.head, row) for row in rows]
        n, m = len(lb), len(ulb)
        weak, strong = [softmax(row.detach()) for row in logits[n : n + m]], logits[n + m :]
        chosen = [q.index(max(q)) for q in weak]  # the first of equals
        hist = shares(chosen, self.num_classes)
        self.tau = min(self.limit, self.move(self.tau, sum(max(q) for q in weak) / m))
        self.p = [self.move(self.p[c], sum(q[c] for q in weak) / m) for c in range(self.num_classes)]
        self.h = [self.move(self.h[c], hist[c]) for c in range(self.num_classes)]

        unsup, used = [], []
        for q, c, row in zip(weak, chosen, strong, strict=True):
            if max(q) >= self.tau * self.p[c] / max(self.p):
                unsup.append(entropy(spread(c, self.num_classes, 0), row))
                used.append(row)
            else:
                unsup.append(torch.zeros(()))
        sup = mean([entropy(lb.targets[i].tolist(), logits[i]) for i in range(n)])
        return {"sup": sup, "unsup": mean(unsup), "fair": self.fairness(used)}, len(used) / m

    def fairness(self, used: list[Tensor]) -> Tensor:
        if not used:
            return torch.zeros(())
        exponentials = [[torch.exp(value) for value in row] for row in used]
        probs = [[value / sum(row) for value in row] for row in exponentials]
        scores = [row.detach().tolist() for row in used]
        hist = shares([row.index(max(row)) for row in scores], self.num_classes)
        found = [
            sum(row[c] for row in probs) / len(probs) / hist[c] if hist[c] > 0 else torch.zeros(())
            for c in range(self.num_classes)
        ]
        wanted = [self.p[c] / self.h[c] if self.h[c] > 0 else 0.0 for c in range(self.num_classes)]
        loss = torch.zeros(())
        for c in range(self.num_classes):
            loss = loss + wanted[c] / sum(wanted) * torch.log(found[c] / sum(found) + 1e-12)
        return loss


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("limit", [1.0, 0.6])
def test_steps_equal_loops_in_value_gradient_and_state(momentum: float, limit: float) -> None:
    method, net = make(momentum=momentum, max_threshold=limit, unsup_weight=0.7, fair_weight=0.3)
    reference = Reference(C, momentum, limit)
    kept_shares, parameters = [], list(net.parameters())
    for seed in range(6):
        batch = draw(method, seed)
        losses = method.losses(net, batch, START)
        expected, kept = reference.step(net, batch)
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-10
        )
        assert losses.logs["selected"].item() == pytest.approx(kept)
        assert method.global_threshold.item() == pytest.approx(reference.tau, rel=1e-12)
        assert method.probability.tolist() == pytest.approx(reference.p, rel=1e-12)
        assert method.histogram.tolist() == pytest.approx(reference.h, rel=1e-12)
        total = expected["sup"] + 0.7 * expected["unsup"] + 0.3 * expected["fair"]
        assert losses.total.item() == pytest.approx(total.item(), rel=1e-10)
        for grad, expected_grad in zip(gradients(losses.total, parameters), gradients(total, parameters), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)
        kept_shares.append(kept)
    assert max(kept_shares) > 0
    if momentum < 0.9:
        assert min(kept_shares) < 1  # the thresholds have moved far enough to cut


def test_the_limit_holds_the_threshold_down() -> None:
    shares_in_use = {}
    for limit in (1.0, 0.4):
        method, net = make(momentum=0.0, max_threshold=limit)
        shares_in_use[limit] = method.losses(net, draw(method, seed=1), START).logs["selected"].item()
        assert (method.global_threshold.item() == 0.4) == (limit == 0.4)
    assert shares_in_use[1.0] < shares_in_use[0.4]


def test_an_empty_mask_leaves_the_supervised_loss_alone() -> None:
    """A threshold near 1 from before and a network that knows nothing."""
    method, net = make(num_classes=4)
    method.global_threshold.fill_(1.0)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    batch = draw(method, seed=1)
    losses = method.losses(net, batch, START)
    assert losses.logs["selected"].item() == losses.terms["unsup"].item() == losses.terms["fair"].item() == 0
    parameters = list(net.parameters())
    of_total, of_sup = gradients(losses.total, parameters), gradients(losses.terms["sup"], parameters)
    assert all(torch.equal(one, other) for one, other in zip(of_total, of_sup, strict=True))


def test_ties_go_to_the_first_class_and_a_confidence_at_the_threshold_counts() -> None:
    """Equal logits: confidence and thresholds are exactly 1/C, here a power of two."""
    method, net = make(num_classes=4, momentum=0.5)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    losses = method.losses(net, draw(method, seed=1), START)
    assert losses.logs["selected"].item() == 1
    assert method.histogram.tolist() == [0.625, 0.125, 0.125, 0.125]
    (slope,) = gradients(losses.terms["unsup"], [net.head.bias])
    torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_one_confident_class_gives_zero_for_one_over_zero(momentum: float) -> None:
    """Only class 1 is predicted: found is its unit vector, and what is wanted elsewhere meets log 1e-12.

    Without momentum the running histogram has empty bins too, and nothing is wanted elsewhere.
    """
    method, net = make(momentum=momentum)
    with torch.no_grad():
        net.head.bias[1] = 80.0
    losses = method.losses(net, draw(method, seed=1), START)
    p, h = method.probability.tolist(), method.histogram.tolist()
    wanted = [p[c] / h[c] if h[c] else 0.0 for c in range(C)]
    expected = (1 - wanted[1] / sum(wanted)) * math.log(1e-12)
    assert losses.terms["fair"].item() == pytest.approx(expected, rel=1e-10, abs=1e-11)
    assert (expected == 0) == (momentum == 0)
    assert all(torch.isfinite(g).all() for g in gradients(losses.total, list(net.parameters())))


def test_gradient_of_the_fairness_term_reaches_the_strong_views_in_use_only() -> None:
    method, net = make(momentum=0.0)
    net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw(method, seed=1, requires_grad=True)
    losses = method.losses(net, batch, START)
    weak, strong = batch["unlabelled"].views["weak"], batch["unlabelled"].views["strong"]
    of_weak, of_strong = gradients(losses.terms["fair"], [weak, strong])
    assert not of_weak.any()
    reached = of_strong.flatten(1).any(1).sum().item()
    assert 0 < reached == round(losses.logs["selected"].item() * len(strong)) < len(strong)
    assert not gradients(losses.terms["unsup"], [weak])[0].any()
