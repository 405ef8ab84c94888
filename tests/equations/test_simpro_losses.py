"""SimPro: whole steps over several epochs against loops, as the method means it and as its released port."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from slow_reference import START, TinyNet, affine, draw_batch, entropy, features, gradients, mean, softmax
from torch import Tensor

from unissl.methods.simpro import SimPro, SimProConfig
from unissl.types import Batch, DataInfo, Step

pytestmark = pytest.mark.usefixtures("double")
C, D, SIZES = 3, 4, {"labelled": 4, "unlabelled": 6}
COUNTS, POOL, EPOCH = (1, 6, 3), 200, 3


def make(**settings: Any) -> tuple[SimPro, TinyNet]:
    torch.manual_seed(0)
    return SimPro(SimProConfig(**settings), DataInfo(C, D, POOL, COUNTS)), TinyNet(D, C)


def period_start(method: SimPro) -> None:
    method.on_period_start(SimpleNamespace(step=START))  # type: ignore[arg-type]


@dataclass
class Reference:
    """SimPro with plain lists."""

    threshold: float
    tau: float
    port: bool
    est: list[float] = field(default_factory=lambda: [1 / C] * C)
    adapt: list[float] = field(default_factory=lambda: [n / sum(COUNTS) for n in COUNTS])
    n_l: list[float] = field(default_factory=lambda: [0.0] * C)
    n_u: list[float] = field(default_factory=lambda: [0.0] * C)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Refresh the adjustments and the counters."""
        self.a, self.u = (
            torch.tensor([math.log(p**self.tau + 1e-12) for p in shares]) for shares in (self.adapt, self.est)
        )
        self.n_l, self.n_u = [0.0] * C, [0.0] * C

    def estimate(self) -> None:
        both = [x + y for x, y in zip(self.n_l, self.n_u, strict=True)]
        self.est = [0.9 * e + 0.1 * n / (sum(self.n_u) + 1) for e, n in zip(self.est, self.n_u, strict=True)]
        self.adapt = [0.9 * a + 0.1 * n / sum(both) for a, n in zip(self.adapt, both, strict=True)]

    def period_start(self, first: bool) -> None:
        if not first and not self.port:
            self.estimate()
        self.begin()

    def step(self, net: TinyNet, batch: Batch) -> tuple[dict[str, Tensor], float]:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        n, m = len(lb), len(ulb)
        rows = features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
        logits = [affine(net.head, row) for row in rows]
        sup = mean([entropy(lb.targets[i].tolist(), logits[i] + self.a) for i in range(n)])
        for i in range(n):
            self.n_l[int(lb.targets[i].argmax())] += 1
        unsup, kept = [], 0
        for j in range(n, n + m):
            q = softmax(logits[j].detach() + self.u)
            if max(q) >= self.threshold:
                unsup.append(entropy(q, logits[j + m] + self.a))
                self.n_u = [x + y for x, y in zip(self.n_u, q, strict=True)]
                kept += 1
            else:
                unsup.append(torch.zeros(()))
        if self.port:
            self.estimate()
        return {"sup": sup, "unsup": mean(unsup)}, kept / m


@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("tau", [1.0, 2.0])
@pytest.mark.parametrize("port", [False, True])
def test_steps_equal_loops_in_value_gradient_and_state(threshold: float, tau: float, port: bool) -> None:
    method, net = make(threshold=threshold, tau=tau, port=port)
    reference = Reference(threshold, tau, port)
    rho = POOL / sum(COUNTS)
    if not port:
        rho = (POOL / SIZES["unlabelled"]) / (sum(COUNTS) / SIZES["labelled"])
    shares = []
    for iteration in range(4 * EPOCH):
        if iteration % EPOCH == 0:
            period_start(method)
            reference.period_start(first=iteration == 0)
        batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=iteration)
        losses = method.losses(net, batch, Step(iteration, 4 * EPOCH, iteration // EPOCH, 4))
        expected, kept = reference.step(net, batch)
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-10
        )
        assert losses.logs["selected"].item() == pytest.approx(kept)
        assert method.pool_prior.tolist() == pytest.approx(reference.est, rel=1e-12)
        assert method.seen_prior.tolist() == pytest.approx(reference.adapt, rel=1e-12)
        total = expected["sup"] / rho + expected["unsup"]
        parameters = list(net.parameters())
        for grad, expected_grad in zip(gradients(losses.total, parameters), gradients(total, parameters), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)
        shares.append(kept)
    assert any(0 < share < 1 for share in shares) or threshold in (0.0, 1.0)  # the cases in between do cut
    assert max(abs(a - n / sum(COUNTS)) for a, n in zip(reference.adapt, COUNTS, strict=True)) > 1e-2


def test_the_port_silences_the_labels_further_and_hurries_the_estimate() -> None:
    """The labels count 6/4 times less, as the batch sizes are, and one epoch moves the mixes as three do."""
    default, net = make(threshold=0.5)
    port, _ = make(threshold=0.5, port=True)
    batches = [draw_batch(default.streams(default.cfg), C, SIZES, seed=seed) for seed in range(EPOCH)]
    start = default.seen_prior.clone()
    weights, moves = [], []
    for method in (default, port):
        period_start(method)
        for batch in batches:
            losses = method.losses(net, batch, START)
        assert method.seen_adjustment.exp().tolist() == pytest.approx(start.tolist())  # within an epoch nothing changes
        period_start(method)
        weights.append(losses.weights["sup"])
        moves.append((method.seen_prior - start).abs().sum().item())
    assert weights == pytest.approx([(10 / 4) / (200 / 6), 10 / 200])
    assert moves[1] > 2 * moves[0]
    batch = draw_batch(default.streams(default.cfg), C, SIZES, seed=9)
    one, other = (method.losses(net, batch, START) for method in (default, port))
    assert abs(one.terms["sup"].item() - other.terms["sup"].item()) > 1e-3


def test_rho_can_be_given() -> None:
    for port in (False, True):
        method, net = make(rho=2.5, port=port)
        losses = method.losses(net, draw_batch(method.streams(method.cfg), C, SIZES, seed=1), START)
        assert losses.weights["sup"] == pytest.approx(0.4)


def test_the_first_epoch_start_changes_nothing() -> None:
    method, _ = make()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    period_start(method)
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


@pytest.mark.parametrize("port", [False, True])
def test_an_empty_mask_shrinks_the_pool_mix_alike_and_harms_nothing(port: bool) -> None:
    method, net = make(threshold=1.0, port=port)
    batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=1)
    for _ in range(400):
        period_start(method)
        losses = method.losses(net, batch, START)
    assert losses.terms["unsup"].item() == 0
    assert losses.total.item() == losses.weights["sup"] * losses.terms["sup"].item()
    assert torch.isfinite(method.pool_adjustment).all()
    assert len(set(method.pool_adjustment.tolist())) == 1
    assert method.pool_prior.sum().item() < 1e-12
    assert method.seen_prior.sum().item() == pytest.approx(1)


def test_a_confidence_at_the_threshold_counts_and_a_tie_is_shared() -> None:
    """Equal logits and a uniform mix: q is 1/C everywhere, here a power of two."""
    method = SimPro(SimProConfig(threshold=0.25), DataInfo(4, D, 9, (1, 1, 1, 1)))
    net = TinyNet(D, 4)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    losses = method.losses(net, draw_batch(method.streams(method.cfg), 4, SIZES, seed=1), START)
    assert losses.logs["selected"].item() == 1
    assert method.pool_seen.tolist() == pytest.approx([1.5] * 4)
    assert not gradients(losses.terms["unsup"], [net.head.bias])[0].abs().gt(1e-12).any()


def test_one_confident_class_takes_over_the_pool_mix() -> None:
    method, net = make(threshold=0.99)
    with torch.no_grad():
        net.head.bias[1] = 50.0
    for seed in range(200):
        method.losses(net, draw_batch(method.streams(method.cfg), C, SIZES, seed=seed), START)
        period_start(method)
    # n_u / (sum n_u + 1) of one step's six images.
    assert method.pool_prior.tolist() == pytest.approx([0, 6 / 7, 0], abs=1e-8)


def test_pseudo_labels_get_no_gradient() -> None:
    method, net = make(threshold=0.0)
    net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=1, requires_grad=True)
    losses = method.losses(net, batch, START)
    weak, strong = batch["unlabelled"].views["weak"], batch["unlabelled"].views["strong"]
    of_weak, of_strong = gradients(losses.total, [weak, strong])
    assert not of_weak.any()
    assert of_strong.any()


def test_prediction_has_no_class_mix() -> None:
    method, net = make()
    net.eval()
    images = draw_batch(method.streams(method.cfg), C, SIZES, seed=1)["unlabelled"].views["weak"]
    assert torch.equal(method.predict(net, images).logits, net(images).logits)
