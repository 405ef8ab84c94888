"""SSB: whole steps through both stages against loops, its border, masks and prediction; one-vs-all operations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from slow_reference import TinyNet, affine, draw_batch, entropy, features, gradients, mean, softmax, spread
from torch import Tensor, nn

from unissl.batches import draw_positions
from unissl.methods.base import attach_method
from unissl.methods.ssb import SSB, SSBConfig, one_vs_all
from unissl.ops.open_set import inlier_probabilities, ova_consistency, ova_entropy, ova_log_probabilities
from unissl.types import Batch, DataInfo, Losses, Step

pytestmark = pytest.mark.usefixtures("double")
C, D, SIZES = 3, 4, {"labelled": 4, "unlabelled": 6, "pool": 5}
TOTAL = 6
WEIGHTS = {"unsup": 0.7, "ova": 0.9, "entropy": 0.2, "consistency": 0.6, "negatives": 0.8}
SETTINGS = {"ova_weight": 0.9, "entropy_weight": 0.2, "consistency_weight": 0.6, "negative_weight": 0.8}
DETECTOR = ("ova", "entropy", "consistency", "negatives")


def make(num_classes: int = C, **settings: Any) -> tuple[SSB, TinyNet]:
    torch.manual_seed(0)
    net = TinyNet(D, num_classes)
    attach_method(net, SSB)
    cfg = {"hidden": 5, "warm_up": 0.5, "threshold": 0.6, "negative_threshold": 0.3, "unsup_weight": 0.7, **SETTINGS}
    method = SSB(SSBConfig(**{**cfg, **settings}), DataInfo(num_classes, D, 9, (1,) * num_classes))
    for layer in method.heads.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.bias)  # probabilities from low to high
    return method, net


def step_at(iteration: int, total: int = TOTAL) -> Step:
    return Step(iteration, total, iteration, total)


def draw(method: SSB, seed: int = 1, num_classes: int = C, requires_grad: bool = False) -> Batch:
    return draw_batch(method.streams(method.cfg), num_classes, SIZES, seed, requires_grad)


def head_by_loops(head: nn.Sequential, row: Tensor) -> Tensor:
    """Three affine maps with ReLU between them."""
    for layer in (head[0], head[2]):
        row = torch.stack([value if value > 0 else 0 * value for value in affine(layer, row)])
    return affine(head[4], row)


def log_pair(logits: Tensor, c: int) -> tuple[Tensor, Tensor]:
    """log p_out(c) and log p_in(c): of 2C outputs the first C speak for out and the last C for in."""
    out, inside = logits[c], logits[len(logits) // 2 + c]
    total = torch.log(torch.exp(out) + torch.exp(inside))
    return out - total, inside - total


def binary_entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the binary answers of one image."""
    pairs = [log_pair(logits, c) for c in range(len(logits) // 2)]
    return mean([-sum((torch.exp(log_p) * log_p for log_p in pair), torch.zeros(())) for pair in pairs])


def fixmatch_by_loops(weak: list[Tensor], strong: list[Tensor], threshold: float) -> tuple[Tensor, float]:
    values, kept = [], 0
    for of_weak, of_strong in zip(weak, strong, strict=True):
        q = softmax(of_weak.detach())
        chosen = max(range(len(q)), key=lambda c: q[c])
        used = q[chosen] >= threshold
        values.append(entropy(spread(chosen, len(q), 0), of_strong) if used else torch.zeros(()))
        kept += used
    return mean(values), kept / len(values)


def stage_1_by_loops(method: SSB, net: TinyNet, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
    lb, ulb = batch["labelled"], batch["unlabelled"]
    rows = features(net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
    logits = [head_by_loops(method.heads.classifier, row) for row in rows]
    n, m = len(lb), len(ulb)
    sup = mean([entropy(lb.targets[i].tolist(), logits[i]) for i in range(n)])
    unsup, kept = fixmatch_by_loops(logits[n : n + m], logits[n + m :], method.cfg.threshold)
    return {"sup": sup, "unsup": unsup, **{name: torch.zeros(()) for name in DETECTOR}}, {"selected": kept, "mined": 0}


def stage_2_by_loops(method: SSB, net: TinyNet, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
    lb, ulb, pool, heads = batch["labelled"], batch["unlabelled"], batch["pool"], method.heads
    groups = [lb.views[name] for name in ("weak", "flip", "strong", "strong2")]
    groups += [pool.views[name] for name in ("weak", "flip", "strong")]
    rows = features(net, [image for group in groups for image in group])  # one joint batch
    lb_rows, pool_rows = rows[: 4 * len(lb)], rows[4 * len(lb) :]
    labels = [int(row.argmax()) for row in lb.targets] * 4

    sup = mean(
        [
            entropy(spread(label, C, 0), head_by_loops(heads.classifier, row))
            for row, label in zip(lb_rows[: 2 * len(lb)], labels, strict=False)
        ]
    )
    positives, negatives = [], []
    for i, (row, label) in enumerate(zip(lb_rows, labels, strict=True)):
        outputs = head_by_loops(heads.detector, row)
        if i < 2 * len(lb):  # weak and flipped
            positives.append(-log_pair(outputs, label)[1])
        for c in range(C):
            negatives.append(torch.zeros(()) if c == label else -log_pair(outputs, c)[0])

    detected = [head_by_loops(heads.detector, row) for row in pool_rows]
    m = len(pool)
    weak, flip, strong = detected[:m], detected[m : 2 * m], detected[2 * m :]
    oem = (mean([binary_entropy(row) for row in weak]) + mean([binary_entropy(row) for row in flip])) / 2
    socr, neg, ruled_out = [], [], 0
    for w, f, s in zip(weak, flip, strong, strict=True):
        pairs = [(log_pair(w, c), log_pair(f, c)) for c in range(C)]
        squares = [(torch.exp(a) - torch.exp(b)) ** 2 for p, q in pairs for a, b in zip(p, q, strict=True)]
        socr.append(sum(squares, torch.zeros(())))
        out = [c for c in range(C) if log_pair(w, c)[1].detach().exp() <= method.cfg.negative_threshold]
        neg.append(sum((-log_pair(s, c)[0] for c in out), torch.zeros(())))
        ruled_out += len(out)

    ulb_rows = features(net, [*ulb.views["weak"], *ulb.views["strong"]])  # a batch of its own
    logits = [head_by_loops(heads.classifier, row) for row in ulb_rows]
    unsup, kept = fixmatch_by_loops(logits[: len(ulb)], logits[len(ulb) :], method.cfg.threshold)
    terms = {
        "sup": sup,
        "unsup": unsup,
        "ova": mean(positives) + mean(negatives),
        "entropy": oem,
        "consistency": mean(socr),
        "negatives": mean(neg),
    }
    return terms, {"selected": kept, "mined": ruled_out / (m * C)}


def compare(losses: Losses, expected: dict[str, Tensor], logs: dict[str, float], parameters: list[Tensor]) -> None:
    assert set(losses.terms) == set(expected)
    for name, term in expected.items():
        assert losses.terms[name].item() == pytest.approx(term.item(), rel=1e-10, abs=1e-14), name
    assert {name: value.item() for name, value in losses.logs.items()} == pytest.approx(logs)
    total = sum((WEIGHTS.get(name, 1.0) * term for name, term in expected.items()), torch.zeros(()))
    assert losses.total.item() == pytest.approx(total.item(), rel=1e-10)
    for grad, expected_grad in zip(gradients(losses.total, parameters), gradients(total, parameters), strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("threshold", "negative_threshold"), [(0.6, 0.3), (0.0, 1.0), (1.0, 0.0)])
def test_steps_through_both_stages_equal_loops(threshold: float, negative_threshold: float) -> None:
    """Three steps of each stage, with weights that move from step to step."""
    method, net = make(threshold=threshold, negative_threshold=negative_threshold)
    parameters = [*net.parameters(), *method.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    shares: dict[str, set[float]] = {"selected": set(), "mined": set()}
    for iteration in range(TOTAL):
        batch = draw(method, seed=iteration)
        by_loops = stage_1_by_loops if iteration < 3 else stage_2_by_loops
        losses = method.losses(net, batch, step_at(iteration))
        expected, logs = by_loops(method, net, batch)
        compare(losses, expected, logs, parameters)
        for name, value in logs.items():
            if name == "selected" or iteration >= 3:
                shares[name].add(value)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    if 0 < threshold < 1:  # the masks of this case do cut
        assert any(0 < share < 1 for share in shares["selected"])
        assert any(0 < share < 1 for share in shares["mined"])
    else:  # the others take all or nothing
        assert shares == {"selected": {1 - threshold}, "mined": {negative_threshold}}


@pytest.mark.parametrize(
    ("total", "first"), [(2**19, 475 * 1024), (2**18, 475 * 512), (512, 475), (12, 11), (5, 4), (1, 0)]
)
def test_the_detector_is_trained_after_475_of_512_parts_and_at_least_once(total: int, first: int) -> None:
    method, net = make(warm_up=SSBConfig().warm_up)
    batch = draw(method)
    for iteration in {max(first - 1, 0), first, total - 1}:
        found = method.losses(net, batch, step_at(iteration, total)).total
        slopes = torch.autograd.grad(found, list(method.heads.detector.parameters()), allow_unused=True)
        assert [slope is not None for slope in slopes] == [iteration >= first] * 6


def test_without_warm_up_the_first_step_trains_everything() -> None:
    method, net = make(warm_up=0.0)
    losses = method.losses(net, draw(method), step_at(0))
    assert all(slope.any() for slope in gradients(losses.total, list(method.parameters())))


def test_pseudo_labels_are_not_filtered_by_the_detector() -> None:
    """A detector that calls every image an outlier of every class changes neither pseudo-labels nor their share."""
    method, net = make()
    batch = draw(method)
    before = method.losses(net, batch, step_at(4))
    with torch.no_grad():
        method.heads.detector[4].bias[:C] += 50.0
    after = method.losses(net, batch, step_at(4))
    assert before.logs["selected"] > 0
    assert after.logs["mined"] == 1
    assert after.terms["unsup"].item() == before.terms["unsup"].item()
    assert after.logs["selected"] == before.logs["selected"]


def test_empty_masks_give_zero_and_no_gradient() -> None:
    method, net = make(threshold=1.0, negative_threshold=0.0)
    losses = method.losses(net, draw(method), step_at(4))
    for name in ("unsup", "negatives"):
        assert losses.terms[name].item() == 0
        assert not any(g.any() for g in gradients(losses.terms[name], [*net.parameters(), *method.parameters()]))
    assert losses.logs["selected"].item() == losses.logs["mined"].item() == 0


def test_values_at_a_threshold_count_and_a_tie_goes_to_the_first_class() -> None:
    """Heads that say nothing: with four classes every confidence is 1/4 and every binary answer 1/2, exactly."""
    method, net = make(num_classes=4, threshold=0.25, negative_threshold=0.5)
    for head in (method.heads.classifier, method.heads.detector):
        nn.init.zeros_(head[4].weight)
        nn.init.zeros_(head[4].bias)
    losses = method.losses(net, draw(method, num_classes=4), step_at(4))
    assert losses.logs["selected"].item() == losses.logs["mined"].item() == 1
    log_2 = math.log(2)
    assert {name: losses.terms[name].item() for name in DETECTOR} == pytest.approx(
        {"ova": log_2 + 3 / 4 * log_2, "entropy": log_2, "consistency": 0.0, "negatives": 4 * log_2}
    )
    (slope,) = gradients(losses.terms["unsup"], [method.heads.classifier[4].bias])
    torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))


@pytest.mark.parametrize("side", [1000.0, -1000.0])
def test_certain_answers_stay_finite(side: float) -> None:
    """One confident class, and a detector whose probabilities are 0 and 1 to the last bit."""
    method, net = make(threshold=0.999)
    with torch.no_grad():
        method.heads.classifier[4].bias[1] = 50.0
        method.heads.detector[4].bias[:C] = side
    losses = method.losses(net, draw(method), step_at(4))
    assert losses.logs["selected"] == 1
    assert losses.logs["mined"] == (side > 0)
    assert losses.terms["entropy"].item() == losses.terms["consistency"].item() == 0
    assert losses.terms["ova"].item() == pytest.approx(1000 if side > 0 else 1000 * (C - 1) / C, rel=0.02)
    assert all(torch.isfinite(g).all() for g in gradients(losses.total, [*net.parameters(), *method.parameters()]))


def test_what_decides_gets_no_gradient() -> None:
    method, net = make(threshold=0.0, negative_threshold=1.0)
    net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw(method, requires_grad=True)
    losses = method.losses(net, batch, step_at(4))
    for term, stream in (("unsup", "unlabelled"), ("negatives", "pool")):
        views = batch[stream].views
        weak, strong = gradients(losses.terms[term], [views["weak"], views["strong"]])
        assert not weak.any()
        assert strong.any()
    for term in ("entropy", "consistency"):  # here both views learn
        assert all(g.any() for g in gradients(losses.terms[term], [batch["pool"].views[v] for v in ("weak", "flip")]))


def test_soft_labels_are_mixtures_of_hard_ones() -> None:
    """Labelled targets may be soft; all labelled terms are linear in them."""
    generator = torch.Generator().manual_seed(0)
    weak, strong = torch.randn(2, 2, 2 * C, generator=generator).unbind(0)
    first, second = torch.eye(C)[[0, 1]], torch.eye(C)[[2, 1]]
    mixed = one_vs_all(weak, strong, 0.25 * first + 0.75 * second)
    torch.testing.assert_close(mixed, 0.25 * one_vs_all(weak, strong, first) + 0.75 * one_vs_all(weak, strong, second))


def test_both_batches_of_the_pool_are_drawn_independently() -> None:
    streams = SSB.streams(SSBConfig())
    names = [name for name, stream in streams.items() if stream.source == "unlabelled"]
    assert names == ["unlabelled", "pool"]
    first, second = (draw_positions(0, name, 100, 0, 100).tolist() for name in names)
    assert sorted(first) == sorted(second)
    assert first != second


def test_prediction_scores_the_predicted_class() -> None:
    method, net = make()
    net.eval()
    images = 5 * torch.randn(9, 1, 2, 3, generator=torch.Generator().manual_seed(3))
    found = method.predict(net, images)
    shipped = method.inference_module(net)(images)
    assert found.outlier is not None
    classes = set()
    for i in range(len(images)):
        row = net.norm(affine(net.first, images[i].flatten())[None])[0]
        logits, outputs = head_by_loops(method.heads.classifier, row), head_by_loops(method.heads.detector, row)
        chosen = int(logits.argmax())
        classes.add(chosen)
        torch.testing.assert_close(found.logits[i], logits)
        torch.testing.assert_close(found.features[i], row)
        torch.testing.assert_close(found.outlier[i], torch.exp(log_pair(outputs, chosen)[0]))
    assert len(classes) > 1
    assert torch.equal(shipped.logits, found.logits)
    assert torch.equal(shipped.outlier, found.outlier)


def test_equal_logits_score_the_first_class() -> None:
    method, net = make()
    nn.init.zeros_(method.heads.classifier[4].weight)
    nn.init.zeros_(method.heads.classifier[4].bias)
    net.eval()
    images = torch.randn(4, 1, 2, 3)
    outputs = method.heads.detector(net(images).feat)
    found = method.predict(net, images).outlier
    assert found is not None
    torch.testing.assert_close(found, 1 - inlier_probabilities(outputs)[:, 0])


def test_the_first_half_of_the_outputs_is_out_and_the_second_in() -> None:
    logits = torch.tensor([[0.0, math.log(3), -800.0, math.log(4), math.log(3), 800.0]])
    torch.testing.assert_close(inlier_probabilities(logits), torch.tensor([[0.8, 0.5, 1.0]]))
    log_out, log_in = ova_log_probabilities(logits)
    torch.testing.assert_close(log_out, torch.tensor([[math.log(0.2), math.log(0.5), -1600.0]]))
    torch.testing.assert_close(log_in, torch.tensor([[math.log(0.8), math.log(0.5), 0.0]]))


def test_operations_by_hand() -> None:
    """Inlier probabilities 0.8 and 0.5 in one view, 0.5 and 0.5 in the other; a second image is the same in both."""
    one = torch.tensor([[0.0, 0.0, math.log(4), 0.0], [1.0, 2.0, 3.0, 4.0]])
    other = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    assert ova_consistency(one, other).item() == pytest.approx((2 * 0.3**2 + 0) / 2)
    assert ova_consistency(other, one).item() == pytest.approx(ova_consistency(one, other).item())
    assert ova_entropy(other[:1]).item() == pytest.approx(math.log(2))
    assert ova_entropy(one[:1]).item() == pytest.approx((-0.8 * math.log(0.8) - 0.2 * math.log(0.2) + math.log(2)) / 2)
