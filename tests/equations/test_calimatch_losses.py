"""CaliMatch: whole steps against loops, its accuracy profiles, and what few held-out labels leave of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from slow_reference import PIXELS, Row, TinyNet, draw_batch, entropy, features, gradients, mean, softmax
from torch import Tensor, nn

from unissl.methods.calimatch import EMPTY, CaliMatch, CaliMatchConfig, bin_accuracies, ova_loss, smoothed_confidence
from unissl.types import Batch, DataInfo, Losses, Prediction, Step, StreamBatch

pytestmark = pytest.mark.usefixtures("double")

C, D = 3, 4
TERMS = ("sup", "cal", "ova", "socr", "ova_cal", "fix")


def make(num_classes: int = C, sharp: float = 6.0, **settings: Any) -> tuple[CaliMatch, TinyNet]:
    """``sharp`` makes the heads' confidences run from low to high, which unit features would not let them."""
    torch.manual_seed(0)
    net = TinyNet(D, num_classes)
    method = CaliMatch(CaliMatchConfig(**settings), DataInfo(num_classes, D, 9, (1,) * num_classes))
    with torch.no_grad():
        method.heads.classes.weight.mul_(sharp)
        method.heads.detector.weight.mul_(sharp / 2)
        method.heads.temperatures.copy_(torch.tensor([1.3, 1.7]))
    return method, net


def draw(method: CaliMatch, seed: int, requires_grad: bool = False) -> Batch:
    sizes = {"labelled": 5, "unlabelled": 8}
    return draw_batch(method.streams(method.cfg), method.info.num_classes, sizes, seed, requires_grad)


def step_at(iteration: int, total: int = 20) -> Step:
    return Step(iteration, total, iteration * 10 // total, 10)


@dataclass
class HeldOut:
    """A context with held-out images, in batches of seven."""

    method: CaliMatch
    net: TinyNet
    step: Step
    count: int = 40

    def images(self) -> tuple[Tensor, list[int]]:
        generator = torch.Generator().manual_seed(99)
        images = torch.randn(self.count, *PIXELS, generator=generator)
        return images, [i % self.method.info.num_classes for i in range(self.count)]

    def scan(self, source: str, weights: str = "ema", view: str = "weak") -> Iterator[tuple[StreamBatch, Prediction]]:
        assert (source, weights, view) == ("heldout", "live", "none")
        images, labels = self.images()
        target = torch.eye(self.method.info.num_classes)[torch.tensor(labels)]
        self.net.eval()
        for index in torch.arange(self.count).split(7):
            batch = StreamBatch({"none": images[index]}, index, target[index])
            yield batch, self.method.predict(self.net, images[index])
        self.net.train()


class Reference:
    """The facts of the method, one image at a time."""

    def __init__(self, method: CaliMatch) -> None:
        self.cfg, self.heads, self.classes = method.cfg, method.heads, method.info.num_classes
        self.profiles: dict[str, list[float | None]] = {}
        for head in ("class", "ova"):
            self.profiles[head] = [None] * self.cfg.bins

    def head_outputs(self, feature: Row) -> dict[str, Any]:
        unit = feature / (feature * feature).sum().sqrt()
        logits = torch.stack([(w * unit).sum() for w in self.heads.classes.weight])
        ova = torch.stack([(w * unit).sum() for w in self.heads.detector.weight])
        t_c, t_o = (abs(t.clip(0.2, 5)) + 1e-5 for t in self.heads.temperatures)
        return {"l": logits, "o": ova, "l_scaled": logits / t_c, "o_scaled": ova / t_o}

    def p_in(self, ova: Row, c: int) -> Tensor:
        """The first C of the 2C logits speak for outliers, the last C for inliers."""
        outlier, inlier = torch.exp(ova[c]), torch.exp(ova[self.classes + c])
        return inlier / (outlier + inlier)

    def p_ins(self, ova: Row) -> list[float]:
        return [self.p_in(ova, c).item() for c in range(self.classes)]

    def inlier_score(self, outputs: dict[str, Any]) -> float:
        p = softmax(outputs["l_scaled"].detach())
        return sum(p[c] * self.p_ins(outputs["o_scaled"])[c] for c in range(self.classes))

    def bin(self, confidence: float) -> int:
        for b in range(self.cfg.bins):
            if b / self.cfg.bins < confidence <= (b + 1) / self.cfg.bins:
                return b
        raise AssertionError(confidence)

    def profile(self, probs: list[list[float]], labels: list[int]) -> list[float | None]:
        found: list[float | None] = []
        for b in range(self.cfg.bins):
            inside = [i for i, p in enumerate(probs) if self.bin(max(p)) == b]
            right = [i for i in inside if probs[i].index(max(probs[i])) == labels[i]]
            share = len(right) / len(inside) if inside else None
            found.append(None if share is None else min(max(share, b / self.cfg.bins), (b + 1) / self.cfg.bins))
        return found

    def take_profiles(self, context: HeldOut) -> None:
        """With running BatchNorm statistics, as in eval mode."""
        norm, first = context.net.norm, context.net.first
        images, labels = context.images()
        by_class, by_ova = [], []
        for image in images:
            x = torch.stack([(w * image.flatten()).sum() for w in first.weight]) + first.bias
            feature = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
            outputs = self.head_outputs(feature)
            by_class.append(softmax(outputs["l_scaled"].detach()))
            by_ova.append(self.p_ins(outputs["o_scaled"]))
        self.profiles = {"class": self.profile(by_class, labels), "ova": self.profile(by_ova, labels)}

    def quality(self, head: str, confidence: float, floor: float) -> float:
        accuracy = self.profiles[head][self.bin(confidence)]
        return confidence if accuracy is None else max(accuracy, floor)

    def ova(self, ova: Row, target: list[float]) -> Tensor:
        positive = sum((-target[c] * torch.log(self.p_in(ova, c)) for c in range(self.classes)), torch.zeros(()))
        negative = [-(1 - target[c]) * torch.log(1 - self.p_in(ova, c)) for c in range(self.classes)]
        return positive + max(negative, key=lambda part: part.item())

    def terms(self, net: TinyNet, batch: Batch) -> tuple[dict[str, Tensor], int]:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        groups = [list(lb.views["weak"]), *(list(ulb.views[view]) for view in ("weak", "weak2", "strong"))]
        rows = iter(features(net, [image for group in groups for image in group]))
        lb_w, ulb_w, ulb_w2, ulb_s = ([self.head_outputs(next(rows)) for _ in group] for group in groups)
        sup, cal, ova, ova_cal, socr, fix = ([] for _ in range(6))
        for i, outputs in enumerate(lb_w):
            y = int(lb.targets[i].argmax())
            hot = [float(c == y) for c in range(self.classes)]
            sup.append(entropy(hot, outputs["l"]))
            ova.append(self.ova(outputs["o"], hot))
            q = self.quality("class", max(softmax(outputs["l"].detach())), 1 / self.classes)
            cal.append(entropy([q if h else (1 - q) / (self.classes - 1) for h in hot], outputs["l_scaled"]))
            q = self.quality("ova", max(self.p_ins(outputs["o"])), 1 / 2)
            ova_cal.append(self.ova(outputs["o_scaled"], [q if h else 1 - q for h in hot]))
        for a, b, s in zip(ulb_w, ulb_w2, ulb_s, strict=True):
            differences = [self.p_in(a["o"], c) - self.p_in(b["o"], c) for c in range(self.classes)]
            socr.append(sum((2 * d**2 for d in differences), torch.zeros(())))  # p_out differs as much as p_in
            p, score = softmax(a["l_scaled"].detach()), self.inlier_score(a)
            if score >= self.cfg.inlier_threshold and score > 1 - score and max(p) >= self.cfg.threshold:
                fix.append(entropy([float(c == p.index(max(p))) for c in range(self.classes)], s["l"]))
        found = (sup, cal, ova, socr, ova_cal, fix)
        return {name: mean(v) if v else torch.zeros(()) for name, v in zip(TERMS, found, strict=True)}, len(fix)


def assert_equal_to_loops(losses: Losses, expected: dict[str, Tensor], parameters: list[nn.Parameter]) -> None:
    for name in TERMS:
        assert losses.terms[name].item() == pytest.approx(expected[name].item(), rel=1e-9, abs=1e-12), name
        if expected[name].requires_grad:
            pairs = zip(gradients(losses.terms[name], parameters), gradients(expected[name], parameters), strict=True)
            for grad, expected_grad in pairs:
                torch.testing.assert_close(grad, expected_grad, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("bins", [5, 30])
def test_steps_equal_loops_in_value_and_gradient(bins: int) -> None:
    """The profiles are taken anew at every second step, so that they move with the heads and the temperatures."""
    method, net = make(threshold=0.6, warm_up=0.1, bins=bins)
    reference = Reference(method)
    parameters = [*net.first.parameters(), *net.norm.parameters(), *method.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    used, profiles = [], set()
    for iteration in range(8):
        step = step_at(iteration)
        if iteration % 2 == 0:
            context = HeldOut(method, net, step)
            method.on_period_start(context)
            if iteration >= 2:
                reference.take_profiles(context)
        for head, profile in (("class", method.class_profile), ("ova", method.ova_profile)):
            stored = [EMPTY if a is None else a for a in reference.profiles[head]]
            assert profile.tolist() == pytest.approx(stored, rel=1e-12)
            profiles.add(tuple(stored))
        batch = draw(method, seed=iteration)
        losses = method.losses(net, batch, step)
        expected, count = reference.terms(net, batch)
        assert_equal_to_loops(losses, expected, parameters)
        on = float(iteration >= 2)
        weights = {"cal": on, "ova": 0.1, "socr": 0.5, "ova_cal": 0.1 * on, "fix": on}
        assert losses.weights == pytest.approx(weights)
        assert losses.logs["selected"].item() == pytest.approx(on * count / 8)
        used.append(count)
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    assert 0 < sum(used) < 8 * 8
    assert len(profiles) > 4
    assert not torch.equal(method.heads.temperatures.detach(), torch.tensor([1.3, 1.7]))


def test_before_the_first_profile_the_own_confidence_is_the_target() -> None:
    method, net = make(warm_up=0.5)
    method.on_period_start(HeldOut(method, net, step_at(9)))
    assert (method.class_profile == EMPTY).all()
    assert (method.ova_profile == EMPTY).all()
    method.on_period_start(HeldOut(method, net, step_at(10)))
    assert (method.class_profile != EMPTY).any()
    assert (method.ova_profile != EMPTY).any()


def test_profile_of_full_and_empty_bins() -> None:
    """Four bins: the first empty, the next two clamped to their upper and lower border, the last within itself."""
    confident = torch.tensor([0.3, 0.5, 0.6, 0.75, 0.9, 0.8, 0.99, 1.0, 0.76])
    correct = [True, True, False, False, True, True, True, True, False]
    probs = torch.stack([confident, 1 - confident], 1)
    probs[0, 1] = 0.2  # as the answers of a detector, which need not sum to 1
    truth = torch.tensor([[1.0, 0.0] if right else [0.0, 1.0] for right in correct])
    assert bin_accuracies(probs, truth, 4).tolist() == pytest.approx([EMPTY, 0.5, 0.5, 0.8])
    assert bin_accuracies(probs, truth, 1).tolist() == pytest.approx([6 / 9])


def test_bins_hold_their_upper_border() -> None:
    edges = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    profile = torch.tensor([0.1, 0.3, 0.6, 0.9])
    assert smoothed_confidence(edges, profile, 0.0).tolist() == [0.1, 0.1, 0.3, 0.6, 0.9]


def test_targets_of_full_and_empty_bins_and_the_floor() -> None:
    confidence = torch.tensor([0.2, 0.4, 0.7, 0.95])
    profile = torch.tensor([0.15, EMPTY, 0.55, EMPTY])
    assert smoothed_confidence(confidence, profile, 0.25).tolist() == pytest.approx([0.25, 0.4, 0.55, 0.95])


@pytest.mark.parametrize("bins", [10, 30])
def test_no_target_is_further_than_a_bin_from_the_own_confidence(bins: int) -> None:
    """However wrong the held-out images are: the clamp allows no more."""
    confidence = torch.linspace(0.001, 1, 2000)
    probs = torch.stack([confidence, torch.zeros(2000)], 1)
    for right in (0.0, 1.0):
        truth = torch.tensor([right, 1 - right]).expand(2000, 2)
        profile = bin_accuracies(probs, truth, bins)
        assert (profile != EMPTY).all()
        shift = smoothed_confidence(confidence, profile, 0.0) - confidence
        assert 0.9 / bins < shift.abs().max().item() <= 1 / bins + 1e-12


def test_ten_heldout_images_leave_most_bins_empty() -> None:
    """What is held out of 40 labels of ten classes."""
    method, net = make(num_classes=10)
    method.on_period_start(HeldOut(method, net, step_at(1), count=10))
    for profile in (method.class_profile, method.ova_profile):
        assert len(profile) == 30
        assert 1 <= (profile != EMPTY).sum().item() <= 10


def test_with_empty_bins_the_temperature_goes_to_one_for_right_and_up_for_wrong_answers() -> None:
    """Other classes are even, so that the target is exactly the unscaled prediction of a right answer."""
    for label, at_one in ((0, True), (1, False)):
        method, _ = make()
        slopes = []
        for temperature in (1.5, 1.0 - 1e-5):
            with torch.no_grad():
                method.heads.temperatures.fill_(temperature)
                method.heads.classes.weight.copy_(torch.eye(D)[:1].repeat(C, 1) * torch.tensor([[2.0], [0], [0]]))
            outputs = method.heads(torch.eye(D)[:1])
            target = method.calibration_targets(outputs, torch.eye(C)[[label]])[0]
            slopes.append(gradients(entropy(target[0].tolist(), outputs.scaled[0]), [method.heads.temperatures])[0][0])
        assert slopes[0].item() * (1 if at_one else -1) > 0.01
        assert (abs(slopes[1].item()) < 1e-9) == at_one


@pytest.mark.parametrize("settings", [{"threshold": 1.0}, {"threshold": 0.0, "inlier_threshold": 1.0}])
def test_empty_selection(settings: dict[str, float]) -> None:
    method, net = make(**settings)
    losses = method.losses(net, draw(method, seed=3), step_at(5))
    assert losses.terms["fix"].item() == 0
    assert losses.logs["selected"].item() == 0
    assert not any(g.any() for g in gradients(losses.terms["fix"], list(method.parameters())))
    assert torch.isfinite(losses.total)


def test_an_image_between_inlier_and_outlier_is_not_used() -> None:
    """A detector without an opinion says 1/2 for every class, and the larger of two equals is neither."""
    method, _ = make(num_classes=2, threshold=0.0, inlier_threshold=0.0)
    with torch.no_grad():
        method.heads.classes.weight.zero_()
        method.heads.detector.weight.zero_()
        assert method.select(method.heads(torch.ones(3, D)))[1].tolist() == [0, 0, 0]
        method.heads.detector.weight[2:].fill_(1e-3)
        assert method.select(method.heads(torch.ones(3, D)))[1].tolist() == [1, 1, 1]


def test_one_confident_class() -> None:
    """All weak views of one class at confidence 1 and inlier score 1: everything is used, nothing overflows."""
    method, net = make()
    with torch.no_grad():
        net.norm.weight.zero_()
        net.norm.bias.fill_(1.0)
        method.heads.classes.weight.zero_()
        method.heads.classes.weight[1].fill_(500.0)
        method.heads.detector.weight.zero_()
        method.heads.detector.weight[C + 1].fill_(500.0)
    losses = method.losses(net, draw(method, seed=1), step_at(5))
    assert losses.logs["selected"].item() == 1
    assert losses.terms["fix"].item() == pytest.approx(0, abs=1e-12)
    assert all(torch.isfinite(term) for term in losses.terms.values())
    assert all(g.isfinite().all() for g in gradients(losses.total, list(method.parameters())))


def test_hardest_negative_of_hard_and_soft_targets() -> None:
    """All answers at 1/2 tie: one inlier part and one outlier part for a hard target; soft ones weigh all classes."""
    even = torch.zeros(2, 2 * C)
    hard = torch.eye(C)[:2]
    half = torch.log(torch.tensor(2.0)).item()
    assert ova_loss(even, hard).item() == pytest.approx(2 * half)
    soft = 0.7 * hard + 0.3 * (1 - hard)
    assert ova_loss(even, soft).item() == pytest.approx((0.7 + 2 * 0.3 + 0.7) * half)


def test_pseudo_labels_get_no_gradient_and_leave_the_temperatures_alone() -> None:
    method, net = make(threshold=0.0)
    net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw(method, seed=2, requires_grad=True)
    losses = method.losses(net, batch, step_at(5))
    assert losses.logs["selected"].item() > 0
    views = batch["unlabelled"].views
    of_weak, of_strong, of_temperatures = gradients(
        losses.terms["fix"], [views["weak"], views["strong"], method.heads.temperatures]
    )
    assert not of_weak.any()
    assert of_strong.any()
    assert not of_temperatures.any()


@pytest.mark.parametrize(("temperature", "border"), [(7.0, 5.0), (0.1, 0.2), (-3.0, 0.2)])
def test_a_temperature_outside_its_range_acts_as_the_border_and_is_stuck(temperature: float, border: float) -> None:
    method, net = make()
    with torch.no_grad():
        method.heads.temperatures.fill_(temperature)
    outputs = method.heads(torch.ones(1, D))
    torch.testing.assert_close(outputs.scaled, outputs.logits / (border + 1e-5))
    torch.testing.assert_close(outputs.scaled_ova, outputs.ova / (border + 1e-5))
    losses = method.losses(net, draw(method, seed=0), step_at(5))
    assert not gradients(losses.total, [method.heads.temperatures])[0].any()


def test_a_start_outside_the_range_is_refused() -> None:
    with pytest.raises(ValueError, match="inside temperature_range"):
        CaliMatchConfig(temperature=6.0)


def test_prediction_is_scaled_and_scores_outliers() -> None:
    method, net = make()
    net.eval()
    images = draw(method, seed=4)["unlabelled"].views["weak"]
    prediction = method.predict(net, images)
    shipped = method.inference_module(net)(images)
    assert prediction.outlier is not None
    assert torch.equal(shipped.logits, prediction.logits)
    assert torch.equal(shipped.outlier, prediction.outlier)
    reference = Reference(method)
    for i, feature in enumerate(net(images).feat):
        outputs = reference.head_outputs(feature)
        assert prediction.logits[i].tolist() == pytest.approx(outputs["l_scaled"].tolist(), rel=1e-10)
        assert prediction.outlier[i].item() == pytest.approx(1 - reference.inlier_score(outputs), rel=1e-10)
        assert prediction.logits[i].argmax() == outputs["l"].argmax()
    assert torch.equal(prediction.features, net(images).feat)


def test_without_normalisation_the_length_of_a_feature_counts() -> None:
    feature = torch.randn(2, D, generator=torch.Generator().manual_seed(5))
    for normalise in (True, False):
        heads = make(normalise=normalise)[0].heads
        same = torch.allclose(heads(feature).logits, heads(3 * feature).logits)
        assert same == normalise
