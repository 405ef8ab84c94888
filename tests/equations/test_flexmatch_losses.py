"""FlexMatch: several steps against loops, with the stored classes carried along."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from slow_reference import START, TinyNet, affine, draw_batch, entropy, features, gradients, mean, softmax, spread
from torch import Tensor

from unissl.methods.flexmatch import FlexMatch, FlexMatchConfig
from unissl.types import Batch, DataInfo

pytestmark = pytest.mark.usefixtures("double")
C, D, POOL, SIZES = 3, 4, 9, {"labelled": 3, "unlabelled": 6}


def make(num_classes: int = C, **settings: Any) -> tuple[FlexMatch, TinyNet]:
    torch.manual_seed(0)
    info = DataInfo(num_classes, D, POOL, (1,) * num_classes)
    return FlexMatch(FlexMatchConfig(**settings), info), TinyNet(D, num_classes)


def draw(method: FlexMatch, seed: int, index: list[int] | None = None) -> Batch:
    """A batch whose unlabelled images have given places in the pool, by default a window that wanders through it."""
    batch = dict(draw_batch(method.streams(method.cfg), method.info.num_classes, SIZES, seed))
    places = index or [(seed * 4 + i) % POOL for i in range(SIZES["unlabelled"])]
    return batch | {"unlabelled": replace(batch["unlabelled"], index=torch.tensor(places))}


class Reference:
    """The facts in loops: one stored class per image of the pool, -1 for none."""

    def __init__(self, num_classes: int, threshold: float, warm_up: bool) -> None:
        self.num_classes, self.threshold, self.warm_up = num_classes, threshold, warm_up
        self.stored = [-1] * POOL

    def learnt(self, c: int) -> float:
        counts = [self.stored.count(k) for k in range(self.num_classes)]
        largest = max([*counts, self.stored.count(-1)] if self.warm_up else counts)
        return counts[c] / largest if largest else 0.0

    def step(self, net: TinyNet, batch: Batch) -> tuple[dict[str, Tensor], float]:
        """Both terms, and the share of images in use; the stored classes change after the mask was made."""
        lb, ulb = batch["labelled"], batch["unlabelled"]
        rows = features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
        logits = [affine(net.head, row) for row in rows]
        n, m = len(lb), len(ulb)
        unsup, kept, stores = [], 0, []
        for i in range(m):
            q = softmax(logits[n + i].detach())
            chosen = q.index(max(q))  # the first of equals
            learnt = self.learnt(chosen)
            if q[chosen] >= self.threshold * learnt / (2 - learnt):
                unsup.append(entropy(spread(chosen, self.num_classes, 0), logits[n + m + i]))
                kept += 1
            else:
                unsup.append(torch.zeros(()))
            if q[chosen] >= self.threshold:
                stores.append((int(ulb.index[i]), chosen))
        for place, chosen in stores:
            self.stored[place] = chosen
        sup = mean([entropy(lb.targets[i].tolist(), logits[i]) for i in range(n)])
        return {"sup": sup, "unsup": mean(unsup)}, kept / m


@pytest.mark.parametrize("warm_up", [True, False])
@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.9, 1.0])
def test_steps_equal_loops_in_value_gradient_and_state(threshold: float, warm_up: bool) -> None:
    method, net = make(threshold=threshold, warm_up=warm_up, unsup_weight=0.7)
    reference = Reference(C, threshold, warm_up)
    shares, parameters = [], list(net.parameters())
    for seed in range(8):
        batch = draw(method, seed)
        losses = method.losses(net, batch, START)
        expected, kept = reference.step(net, batch)
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-10
        )
        assert losses.logs["selected"].item() == pytest.approx(kept)
        assert method.stored.tolist() == reference.stored
        total = expected["sup"] + 0.7 * expected["unsup"]
        assert losses.total.item() == pytest.approx(total.item(), rel=1e-10)
        for grad, expected_grad in zip(gradients(losses.total, parameters), gradients(total, parameters), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)
        shares.append(kept)
    assert shares[0] == 1  # nothing is learnt yet, so every threshold is zero
    if threshold in (0.6, 0.9):
        assert len(set(reference.stored)) == C + 1 or -1 not in reference.stored
        assert min(shares) < 1  # the thresholds have risen enough to cut
    else:
        assert set(shares) == {1.0}  # 0 lets all pass; 1 is never reached, so nothing is learnt


def test_thresholds_by_hand() -> None:
    """Counts 3, 1, 0 and five images without a class: largest 5 with warm-up, 3 without."""
    stored = torch.tensor([0, 0, 0, 1, -1, -1, -1, -1, -1])
    for warm_up, largest in [(True, 5), (False, 3)]:
        method, _ = make(threshold=0.95, warm_up=warm_up)
        method.stored.copy_(stored)
        expected = [0.95 * n / largest / (2 - n / largest) for n in (3, 1, 0)]
        assert method.thresholds().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("warm_up", [True, False])
def test_thresholds_at_the_ends(warm_up: bool) -> None:
    method, _ = make(threshold=0.95, warm_up=warm_up)
    assert method.thresholds().tolist() == [0, 0, 0]  # nothing stored
    method.stored.fill_(2)
    assert method.thresholds().tolist() == [0, 0, 0.95]  # one class has the whole pool
    method.stored.copy_(torch.arange(POOL) % C)
    assert method.thresholds().tolist() == [0.95] * C  # all learnt alike: FixMatch


def test_an_empty_mask_leaves_the_supervised_loss_alone() -> None:
    method, net = make(threshold=1.0)
    method.stored.copy_(torch.arange(POOL) % C)  # all thresholds are 1
    losses = method.losses(net, draw(method, seed=1), START)
    assert losses.logs["selected"].item() == losses.terms["unsup"].item() == 0
    assert losses.total.item() == losses.terms["sup"].item()
    assert all((g == 0).all() for g in gradients(losses.terms["unsup"], list(net.parameters())))


def test_one_confident_class_raises_its_own_threshold_only() -> None:
    method, net = make(threshold=0.95, warm_up=False)
    with torch.no_grad():
        net.head.bias[1] = 50.0
    losses = method.losses(net, draw(method, seed=0), START)
    assert losses.logs["selected"].item() == 1
    assert method.stored.tolist() == [1] * 6 + [-1] * 3
    assert method.thresholds().tolist() == [0, 0.95, 0]


def test_ties_go_to_the_first_class_and_a_confidence_at_the_threshold_is_stored() -> None:
    """Equal logits: every confidence is exactly 1/C, here a power of two."""
    method, net = make(num_classes=4, threshold=0.25)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    losses = method.losses(net, draw(method, seed=0), START)
    assert method.stored.tolist() == [0] * 6 + [-1] * 3
    (slope,) = gradients(losses.terms["unsup"], [net.head.bias])
    torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))


def test_an_image_twice_in_a_batch_keeps_its_last_confident_class() -> None:
    method, _ = make()
    method.store(torch.tensor([5, 2, 5, 5]), torch.tensor([0, 1, 2, 1]), torch.tensor([True, False, True, False]))
    assert method.stored.tolist() == [-1, -1, -1, -1, -1, 2, -1, -1, -1]


def test_an_unsure_prediction_does_not_take_a_stored_class_away() -> None:
    method, net = make(threshold=1.0)
    method.stored.fill_(2)
    method.losses(net, draw(method, seed=1), START)
    assert method.stored.tolist() == [2] * POOL
