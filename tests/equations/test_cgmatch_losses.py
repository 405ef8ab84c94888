"""CGMatch: warm-up, memories, thresholds and losses against loops written from the description of the method."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from slow_reference import TinyNet, affine, draw_batch, entropy, features, gradients, mean, softmax, spread
from torch import Tensor

from unissl.methods.cgmatch import SCANS, CGMatch, CGMatchConfig, Memory, generalised_cross_entropy
from unissl.types import Batch, DataInfo, Prediction, Step, StreamBatch

pytestmark = pytest.mark.usefixtures("double")
C, D, POOL, SIZES = 3, 4, 9, {"labelled": 3, "unlabelled": 6}
TOTAL, START = 12, 3


@dataclass
class Reference:
    """The state as plain lists: one queue of predicted classes for each image."""

    queue: int
    momentum: float
    misfiled: bool = False
    num_classes: int = C
    memory: list[deque[int]] = field(default_factory=list)
    share: list[float] | None = None
    mu: float = 1 / C
    gap: float | None = None

    def __post_init__(self) -> None:
        self.memory = [deque(maxlen=self.queue) for _ in range(POOL)]

    def count_gap(self, row: int) -> int:
        ordered = [*sorted(Counter(self.memory[row]).values(), reverse=True), 0, 0]
        return ordered[0] - ordered[1]

    def align(self, probs: list[list[float]]) -> list[list[float]]:
        classes = range(self.num_classes)
        now = [sum(p[c] for p in probs) / len(probs) for c in classes]
        m = self.momentum
        self.share = (
            now if self.share is None else [m * old + (1 - m) * new for old, new in zip(self.share, now, strict=True)]
        )
        scaled = [[p[c] * (1 / self.num_classes + 1e-6) / (self.share[c] + 1e-6) for c in classes] for p in probs]
        return [[value / sum(row) for value in row] for row in scaled]

    def step(self, net: TinyNet, batch: Batch, iteration: int) -> tuple[dict[str, Tensor], float, dict[str, float]]:
        """The three terms, the weight of the ambiguous one, and the shares of easy and ambiguous images."""
        lb, ulb = batch["labelled"], batch["unlabelled"]
        zero = torch.zeros(())
        if iteration < START:  # labelled images alone, in BatchNorm too
            logits = [affine(net.head, row) for row in features(net, [*lb.views["weak"]])]
            sup = mean([entropy(lb.targets[i].tolist(), logits[i]) for i in range(len(lb))])
            return {"sup": sup, "unsup": zero, "ambiguous": zero}, 0.0, {"selected": 0.0, "ambiguous": 0.0}

        rows = features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
        logits = [affine(net.head, row) for row in rows]
        n, u = len(lb), len(ulb)
        weak, strong = logits[n : n + u], logits[n + u :]
        aligned = self.align([softmax(row.detach()) for row in weak])
        labels = [p.index(max(p)) for p in aligned]
        confidence = [max(p) for p in aligned]

        filed = ulb.index.tolist()
        if self.misfiled:
            filed = sorted(filed)
        for row, label in zip(filed, labels, strict=True):
            self.memory[row].append(label)
        gaps = [self.count_gap(row) for row in filed]
        self.mu = self.momentum * self.mu + (1 - self.momentum) * sum(confidence) / u
        if self.gap is None:
            self.gap = sum(self.count_gap(row) for row in range(POOL)) / POOL
        else:
            self.gap = self.momentum * self.gap + (1 - self.momentum) * sum(gaps) / u

        easy, doubtful = [], []
        for j in range(u):
            is_easy = confidence[j] >= self.mu
            is_ambiguous = not is_easy and gaps[j] >= self.gap
            easy.append(entropy(spread(labels[j], self.num_classes, 0), strong[j]) if is_easy else zero)
            doubtful.append(gce(weak[j], labels[j]) + gce(strong[j], labels[j]) if is_ambiguous else zero)
        terms = {
            "sup": mean([entropy(lb.targets[i].tolist(), logits[i]) for i in range(n)]),
            "unsup": mean(easy),
            "ambiguous": mean(doubtful),
        }
        shares = {
            "selected": sum(loss is not zero for loss in easy) / u,
            "ambiguous": sum(loss is not zero for loss in doubtful) / u,
        }
        return terms, ((iteration - START) / (TOTAL - START)) ** 2, shares


def gce(logits: Tensor, label: int, q: float = 0.7) -> Tensor:
    p = torch.exp(logits[label]) / sum((torch.exp(value) for value in logits), torch.zeros(()))
    return (1 - torch.clamp(p, min=1e-7) ** q) / q


@dataclass
class Scan:
    """A context whose network says what the test wants."""

    step: Step
    labels: list[int]
    calls: list[tuple[int, str]]

    def scan(self, source: str, weights: str = "ema", view: str = "weak") -> Iterator[tuple[StreamBatch, Prediction]]:
        assert (source, view) == ("unlabelled", "weak")
        self.calls.append((self.step.iteration, weights))
        for part in torch.arange(len(self.labels)).split(4):
            logits = torch.eye(C)[[self.labels[i] for i in part]]
            yield StreamBatch({}, part), Prediction(logits, logits)


def at(iteration: int, total: int = TOTAL) -> Step:
    return Step(iteration, total, 0, 1)


def make(num_classes: int = C, **settings: Any) -> tuple[CGMatch, TinyNet]:
    torch.manual_seed(0)
    config = CGMatchConfig(**{"warm_up": START / TOTAL, "queue": 4, "momentum": 0.5, **settings})
    return CGMatch(config, DataInfo(num_classes, D, POOL, (1,) * num_classes)), TinyNet(D, num_classes)


def draw(method: CGMatch, seed: int, repeat: bool = False) -> Batch:
    """A batch from all over the pool, in no order, with images that occur twice if ``repeat``."""
    batch = dict(draw_batch(method.streams(method.cfg), method.info.num_classes, SIZES, seed))
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, 4, (6,), generator=generator) if repeat else torch.randperm(POOL, generator=generator)[:6]
    batch["unlabelled"] = replace(batch["unlabelled"], index=index)
    return batch


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("filing", ["own", "sorted"])
@pytest.mark.parametrize(("queue", "momentum"), [(1, 0.5), (4, 0.5), (4, 0.999), (50, 0.8)])
def test_whole_run_equals_loops(queue: int, momentum: float, filing: str, repeat: bool) -> None:
    method, net = make(queue=queue, momentum=momentum, filing=filing, unsup_weight=0.7, ambiguous_weight=0.6)
    reference = Reference(queue, momentum, misfiled=filing == "sorted")
    ambiguous = []
    for iteration in range(TOTAL):
        batch = draw(method, iteration, repeat)
        losses = method.losses(net, batch, at(iteration))
        expected, weight, shares = reference.step(net, batch, iteration)
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-10, abs=1e-15
        )
        assert {name: value.item() for name, value in losses.logs.items()} == pytest.approx(shares)
        total = expected["sup"] + 0.7 * expected["unsup"] + 0.6 * weight * expected["ambiguous"]
        assert losses.total.item() == pytest.approx(total.item(), rel=1e-10)
        inputs = list(net.parameters())
        for grad, expected_grad in zip(gradients(losses.total, inputs), gradients(total, inputs), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)
        ambiguous.append(shares["ambiguous"])

        labels = torch.randint(0, C, (POOL,), generator=torch.Generator().manual_seed(iteration)).tolist()
        method.after_step(Scan(at(iteration), labels, []))
        if iteration < START:
            for row, label in enumerate(labels):
                reference.memory[row].append(label)
        if iteration >= START - 1:  # before, predictions that are pushed out again may be missing
            counts = [[Counter(memory)[c] for c in range(C)] for memory in reference.memory]
            assert method.memory.counts.tolist() == counts
        if iteration >= START:
            assert method.confidence_mean.item() == pytest.approx(reference.mu, rel=1e-12)
            assert method.gap_mean.item() == pytest.approx(reference.gap, rel=1e-12)
    assert momentum == 0.999 or max(ambiguous) > 0  # the third term was at work


@pytest.mark.parametrize("num_classes", [2, 300])
def test_memory_holds_exactly_the_last_predictions(num_classes: int) -> None:
    """Random pushes, with images that occur several times in one, against queues."""
    memory, queues = Memory(POOL, 5, num_classes), [deque[int](maxlen=5) for _ in range(POOL)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows = torch.randint(0, POOL, (7,), generator=generator)
        labels = torch.randint(0, num_classes, (7,), generator=generator)
        memory.push(rows, labels)
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            queues[row].append(label)
        for row, queue in enumerate(queues):
            assert sorted(memory.ring[row].tolist()[: len(queue)]) == sorted(queue)
            assert memory.counts[row].nonzero().flatten().tolist() == sorted(set(queue))
            ordered = [*sorted(Counter(queue).values(), reverse=True), 0, 0]
            assert memory.gap()[row].item() == ordered[0] - ordered[1]


def test_count_gap_of_nothing_ties_and_one_class() -> None:
    memory = Memory(3, 4, C)
    memory.push(torch.tensor([1, 1, 2, 2, 2]), torch.tensor([0, 2, 1, 1, 1]))
    assert memory.gap().tolist() == [0, 0, 3]
    assert memory.gap(torch.tensor([2, 0])).tolist() == [3, 0]


def scanned_at(total: int, **settings: Any) -> list[int]:
    method = CGMatch(CGMatchConfig(**settings), DataInfo(C, D, 1, (1,) * C))
    calls: list[tuple[int, str]] = []
    for iteration in range(total // 64):
        method.after_step(Scan(at(iteration, total), [0], calls))
    assert {weights for _, weights in calls} <= {"ema"}
    return [iteration for iteration, _ in calls]


def test_pool_is_predicted_a_bounded_number_of_times_in_warm_up() -> None:
    assert scanned_at(2**18) == list(range(63, 2048, 64))
    assert len(scanned_at(2**18)) == SCANS
    assert scanned_at(2**18, scan_every=1) == list(range(1048, 2048))  # those before are pushed out of 1000 places
    assert scanned_at(640) == list(range(5))
    assert scanned_at(640, warm_up=0.0) == []
    assert CGMatch(CGMatchConfig(), DataInfo(C, D, 1, (1,) * C)).warm_up_steps(12) == 1


def test_predictions_that_would_be_pushed_out_are_not_missed() -> None:
    """With ``scan_every = 1`` the memory after warm-up is that of a prediction after each of its steps."""
    method, _ = make(queue=2, scan_every=1)
    for iteration, label in enumerate([0, 1, 2]):
        method.after_step(Scan(at(iteration), [label] * POOL, []))
    assert method.memory.counts.tolist() == [[0, 1, 1]] * POOL


def test_misfiled_predictions_make_a_difference() -> None:
    """The port gives the first prediction of a batch to the smallest index, and so on, unless they are in order."""
    runs = {}
    for filing in ("own", "sorted"):
        method, net = make(filing=filing, warm_up=0.0, momentum=0.5)
        weights = [method.losses(net, draw(method, seed), at(seed)).logs["ambiguous"].item() for seed in range(TOTAL)]
        runs[filing] = (weights, method.memory.counts.tolist())
    assert runs["own"][0] != runs["sorted"][0]
    assert runs["own"][1] != runs["sorted"][1]

    own, net = make(filing="own", warm_up=0.0)
    port, _ = make(filing="sorted", warm_up=0.0)
    batch = draw_batch(own.streams(own.cfg), C, SIZES, seed=1)
    assert own.losses(net, batch, at(5)).total.item() == port.losses(net, batch, at(5)).total.item()
    assert torch.equal(own.memory.counts, port.memory.counts)


def test_no_easy_image_leaves_the_steady_ones_and_no_ambiguous_image_leaves_nothing() -> None:
    method, net = make(threshold_min=1.0, warm_up=0.0)
    losses = method.losses(net, draw(method, 1), at(6))
    assert losses.terms["unsup"].item() == losses.logs["selected"].item() == 0
    assert losses.logs["ambiguous"].item() == 1  # each was predicted once, which is above the mean of the pool
    weak_too = method.losses(net, draw(method, 1), at(6)).terms["ambiguous"]
    assert gradients(weak_too, [net.head.bias])[0].any()

    method, net = make(threshold_max=0.0, warm_up=0.0)
    losses = method.losses(net, draw(method, 1), at(6))
    assert losses.logs["selected"].item() == 1
    assert losses.terms["ambiguous"].item() == 0
    assert not any(g.any() for g in gradients(losses.terms["ambiguous"], list(net.parameters())))


def test_equal_logits_are_easy_and_go_to_the_first_class() -> None:
    """Every confidence is exactly the threshold 1/C, a power of two."""
    method, net = make(num_classes=4, warm_up=0.0)
    torch.nn.init.zeros_(net.head.weight)
    torch.nn.init.zeros_(net.head.bias)
    losses = method.losses(net, draw(method, 1), at(0))
    assert losses.logs["selected"].item() == 1
    (slope,) = gradients(losses.terms["unsup"], [net.head.bias])
    torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))
    assert method.memory.counts.sum(0).tolist() == [6, 0, 0, 0]


def test_one_confident_class_is_spread_by_the_alignment() -> None:
    """All say class 1; after alignment the batch mean is uniform and the least sure get another class."""
    method, net = make(warm_up=0.0)
    with torch.no_grad():
        net.head.bias[1] = 8.0
    batch = draw(method, 1)
    assert set(net(batch["unlabelled"].views["weak"]).logits.argmax(1).tolist()) == {1}
    losses = method.losses(net, batch, at(0))
    assert (method.memory.counts.sum(0) > 0).sum() > 1
    assert torch.isfinite(losses.total)


def test_threshold_is_clamped_when_used_but_not_in_the_state() -> None:
    plain, net = make(warm_up=0.0)
    clamped, _ = make(warm_up=0.0, threshold_min=0.9, threshold_max=0.95)
    batch = draw(plain, 2)
    shares = [method.losses(net, batch, at(1)).logs["selected"].item() for method in (plain, clamped)]
    assert plain.confidence_mean.item() == clamped.confidence_mean.item() < 0.9
    assert shares[1] < shares[0]


def test_generalised_cross_entropy_is_bounded_and_clamped() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 0.5], [0.0, 60.0, 0.0]], requires_grad=True)
    labels = torch.tensor([1, 0, 2])
    for q in (0.7, 1.0):
        loss = generalised_cross_entropy(logits, labels, q)
        expected = torch.stack([gce(row, int(label), q) for row, label in zip(logits, labels, strict=True)])
        torch.testing.assert_close(loss, expected)
        (slope,) = gradients(loss.sum(), [logits])
        assert torch.isfinite(slope).all()
        assert not slope[2].any()  # below the clamp
        assert loss.max() <= 1 / q
