"""SCOMatch: whole steps with a moving queue and threshold against loops, its edges, its switches, its prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from slow_reference import (
    PIXELS,
    START,
    TinyNet,
    draw_batch,
    entropy,
    features,
    gradients,
    mean,
    softmax,
    spread,
)
from torch import Tensor, nn

from unissl.methods.scomatch import OutlierQueue, SCOMatch, SCOMatchConfig
from unissl.ops.keyed_random import keyed_generator
from unissl.types import Batch, DataInfo, Outputs, Step, StreamBatch

pytestmark = pytest.mark.usefixtures("double")
C, D, POOL, STEPS = 3, 4, 41, 18
SIZES = {"labelled": 4, "open": 6, "close": 6}
EVERY = 3
"""Steps between two values of tau_ood: floor(41 / (2 x 6))."""
KEY = 5


@dataclass
class Reference:
    """The state as plain Python: the queue is a list of (image, score) whose oldest entry is replaced."""

    tau: float
    lowest: float
    highest: float
    size: int
    pushes: int = 1
    both_views: bool = False
    own_confidence: bool = True
    queue: list[tuple[Tensor, float]] = field(default_factory=list)
    pushed: int = 0
    inliers: int = 0
    outliers: int = 0
    tau_ood: float = 0.95

    def step(self, head: nn.Linear, net: TinyNet, batch: Batch, it: int) -> tuple[dict[str, Tensor], float]:
        lb, open_, close = batch["labelled"], batch["open"], batch["close"]
        n, u = len(lb), len(open_)
        if it > 0 and it % EVERY == 0:
            self.tau_ood = self.highest
            if self.inliers > 0:
                self.tau_ood = min(self.highest, max(self.lowest, self.tau * self.outliers / self.inliers))
            self.inliers = self.outliers = 0
        drawn: list[tuple[Tensor, float]] = []
        if self.pushed >= n:
            order = torch.randperm(len(self.queue), generator=keyed_generator(KEY, it))
            drawn = [self.queue[i] for i in order.tolist()[:n]]
        images = [*lb.views["weak"], *(image for image, _ in drawn)]
        images += [*open_.views["weak"], *open_.views["strong"], *close.views["weak"], *close.views["strong"]]
        rows = [torch.stack([(w * row).sum() for w in head.weight]) for row in features(net, images)]
        labelled, queued, rest = rows[:n], rows[n : n + len(drawn)], rows[n + len(drawn) :]
        open_w, open_s, close_w, close_s = (rest[i * u : (i + 1) * u] for i in range(4))

        sup = mean([entropy([*lb.targets[i].tolist(), 0.0], labelled[i]) for i in range(n)])
        sup_open = torch.zeros(())
        for (_, score), row in zip(drawn, queued, strict=True):
            if score < self.tau:
                sup_open = sup_open + entropy(spread(C, C + 1, 0), row) / len(drawn)

        of_open, scores, used, sure = [], [], 0, []
        for j in range(u):
            p = softmax(open_w[j].detach())
            label = p.index(max(p))
            sure.append(max(p))
            scores.append(max(p[:C]))
            if max(p) >= self.tau:
                self.inliers += label < C
                self.outliers += label == C
            use = max(p) >= (self.tau if label < C else self.tau_ood)
            used += use
            views = [open_w[j], open_s[j]] if self.both_views else [open_s[j]]
            of_open += [use * entropy(spread(label, C + 1, 0), row) for row in views]
        of_close = []
        for j in range(u):
            p, known = softmax(close_w[j].detach()), softmax(close_w[j][:C].detach())
            confident = (max(known) if self.own_confidence else sure[j]) >= self.tau
            use = confident and p.index(max(p)) < C
            used += use
            of_close.append(use * entropy(spread(known.index(max(known)), C, 0), close_s[j][:C]))

        for j in sorted(range(u), key=lambda j: scores[j])[: self.pushes]:
            entry = (open_.views["weak"][j], scores[j])
            if len(self.queue) < self.size:
                self.queue.append(entry)
            else:
                self.queue[self.pushed % self.size] = entry
            self.pushed += 1
        terms = {"sup": sup, "sup_open": sup_open, "unsup_open": mean(of_open), "unsup_close": mean(of_close)}
        return terms, used / (2 * u)


def make(**settings: Any) -> tuple[SCOMatch, TinyNet]:
    torch.manual_seed(0)
    method = SCOMatch(SCOMatchConfig(**settings), DataInfo(C, D, POOL, (2, 1, 1), image_shape=PIXELS))
    method.draw_key.fill_(KEY)
    with torch.no_grad():
        method.heads.weight.mul_(4)  # confidences from low to high
    return method, TinyNet(D, C)


@pytest.mark.parametrize(
    "settings",
    [{}, {"open_views": "both"}, {"close_confidence": "open"}, {"pushes": 2}, {"queue": 3}, {"queue": 300}],
    ids=str,
)
def test_whole_run_equals_loops(settings: dict[str, Any]) -> None:
    tau, lowest, highest = 0.55, 0.2, 0.7
    settings = {"queue": 9, "threshold": tau, "outlier_min": lowest, "outlier_max": highest, **settings}
    method, net = make(**settings)
    reference = Reference(
        tau,
        lowest,
        highest,
        settings["queue"],
        settings.get("pushes", 1),
        "open_views" in settings,
        "close_confidence" not in settings,
        tau_ood=highest,
    )
    parameters = [*list(net.parameters())[:-2], *method.parameters()]  # all but the network's own head
    seen: dict[str, list[float]] = {}
    for iteration in range(STEPS):
        batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=iteration)
        losses = method.losses(net, batch, Step(iteration, STEPS, 0, 1))
        expected, used = reference.step(method.heads, net, batch, iteration)
        for name, term in expected.items():
            assert losses.terms[name].item() == pytest.approx(term.item(), rel=1e-9, abs=1e-12), (iteration, name)
            seen.setdefault(name, []).append(term.item())
        assert losses.terms.keys() == expected.keys()
        assert losses.logs["selected"].item() == pytest.approx(used)
        assert method.tau_ood.item() == losses.logs["tau_ood"].item() == pytest.approx(reference.tau_ood, rel=1e-12)
        assert method.confident.tolist() == [reference.inliers, reference.outliers]
        assert method.queue.pushed.item() == reference.pushed
        for slot, (image, score) in enumerate(reference.queue):
            assert torch.equal(method.queue.images[slot], image)
            assert method.queue.scores[slot].item() == pytest.approx(score, rel=1e-12)
        total = sum(expected.values(), torch.zeros(()))
        assert losses.total.item() == pytest.approx(total.item(), rel=1e-9)
        grads, expected_grads = gradients(losses.total, parameters), gradients(total, parameters)
        for one, other in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-11)
        with torch.no_grad():
            for parameter, slope in zip(parameters, grads, strict=True):
                parameter -= 0.05 * slope
        seen.setdefault("tau_ood", []).append(reference.tau_ood)
        seen.setdefault("used", []).append(used)
    quiet = 4 // reference.pushes  # the queue was given as many images as a labelled batch has
    assert seen["sup_open"][:quiet] == [0] * quiet
    assert min(seen["sup_open"][quiet:]) > 0
    assert len(set(seen["tau_ood"])) > 2 and len(set(seen["used"])) > 2
    assert reference.pushed == STEPS * reference.pushes


class Plain(nn.Module):
    """A network whose feature is the image, so that a test can write down the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.feat_dim = C + 1
        self.head = nn.Linear(C + 1, C)

    def forward(self, x: Tensor) -> Outputs:
        return Outputs(x.flatten(1)[:, :C], x.flatten(1))


def plain(pool: int = POOL, **settings: Any) -> tuple[SCOMatch, Plain]:
    """With it, an image made of log-probabilities is what the head says of it."""
    info = DataInfo(C, C + 1, pool, (2, 1, 1), image_shape=(C + 1, 1, 1))
    method = SCOMatch(SCOMatchConfig(**settings), info)
    nn.init.eye_(method.heads.weight)
    return method, Plain()


def images(*probs: list[float]) -> Tensor:
    return torch.tensor(probs).log()[:, :, None, None]


def batch_of(open_w: Tensor, close_w: Tensor, labelled: int = 2) -> Batch:
    """These weak views; strong views and labelled images that are certain of nothing."""

    def flat(n: int) -> Tensor:
        return torch.zeros(n, C + 1, 1, 1)

    return {
        "labelled": StreamBatch({"weak": flat(labelled)}, torch.arange(labelled), torch.eye(C)[[0] * labelled]),
        "open": StreamBatch({"weak": open_w, "strong": flat(len(open_w))}, torch.arange(len(open_w))),
        "close": StreamBatch({"weak": close_w, "strong": flat(len(close_w))}, torch.arange(len(close_w))),
    }


CAT = [0.97, 0.01, 0.01, 0.01]
UNSURE = [0.4, 0.3, 0.2, 0.1]
OUTLIER = [0.01, 0.01, 0.01, 0.97]
LIKELY_OUTLIER = [0.05, 0.05, 0.1, 0.8]
HIDDEN_CAT = [0.45, 0.001, 0.001, 0.548]
"""Sure of class 0 among the three classes, but an outlier among all four."""


def test_each_kind_of_pseudo_label_has_its_threshold() -> None:
    """An outlier is used from tau_ood on, a known class from tau; the strong views give log 4 and log 3 each."""
    method, net = plain()
    batch = batch_of(images(CAT, UNSURE, OUTLIER, LIKELY_OUTLIER), images(CAT, UNSURE, OUTLIER, HIDDEN_CAT))
    ln3, ln4 = (torch.tensor(float(k)).log().item() for k in (3, 4))
    for tau_ood, used in ((0.95, 2), (0.75, 3)):
        method.tau_ood.fill_(tau_ood)
        losses = method.losses(net, batch, START)
        assert losses.terms["unsup_open"].item() == pytest.approx(used / 4 * ln4)
        assert losses.terms["unsup_close"].item() == pytest.approx(1 / 4 * ln3)
        assert losses.logs["selected"].item() == pytest.approx((used + 1) / 8)
    assert method.confident.tolist() == [2, 2]  # counted at tau, whatever tau_ood


def test_an_empty_mask_leaves_the_labels() -> None:
    method, net = plain()
    losses = method.losses(net, batch_of(images(UNSURE, LIKELY_OUTLIER), images(UNSURE, HIDDEN_CAT)), START)
    assert losses.logs["selected"].item() == 0
    assert {name: losses.terms[name].item() for name in ("sup_open", "unsup_open", "unsup_close")} == {
        "sup_open": 0,
        "unsup_open": 0,
        "unsup_close": 0,
    }
    assert losses.total.item() == losses.terms["sup"].item() > 0


def test_a_pool_of_one_confident_class_takes_the_outlier_threshold_to_its_floor() -> None:
    method, net = plain(pool=8)
    batch = batch_of(images(CAT, CAT), images(CAT, CAT))
    for iteration, expected in enumerate([0.95, 0.95, 0.75, 0.75]):
        losses = method.losses(net, batch, Step(iteration, 10, 0, 1))
        assert losses.logs["tau_ood"].item() == pytest.approx(expected)
        assert losses.logs["selected"].item() == 1


def test_ties_go_to_the_first_class_and_the_first_image_and_a_confidence_at_the_threshold_counts() -> None:
    method, net = plain(threshold=0.25, outlier_min=0.25, outlier_max=0.25)
    even = torch.zeros(3, C + 1, 1, 1)
    method.losses(net, batch_of(even, even, labelled=1), START)
    assert method.confident.tolist() == [3, 0]
    assert method.queue.pushed.item() == 1 and method.queue.scores[0].item() == 0.25
    losses = method.losses(net, batch_of(even, even, labelled=1), Step(1, 256, 0, 256))
    assert losses.logs["selected"].item() == 1
    assert losses.terms["sup_open"].item() == 0  # a score at the threshold is too high for the queue's loss
    marked = even.clone().requires_grad_()
    batch = batch_of(even, even, labelled=1)
    batch = {**batch, "open": StreamBatch({"weak": even, "strong": marked}, torch.arange(3))}
    (slope,) = gradients(method.losses(net, batch, START).terms["unsup_open"], [marked])
    torch.testing.assert_close(slope.flatten(1) * 3, torch.tensor([[0.25 - 1, 0.25, 0.25, 0.25]] * 3))


def test_a_queued_image_of_a_high_score_stays_in_the_mean_but_is_not_learnt_from() -> None:
    method, net = plain()
    method.queue.push(images(CAT, UNSURE), torch.tensor([0.97, 0.4]), 2)
    losses = method.losses(net, batch_of(images(CAT), images(CAT)), START)
    assert losses.terms["sup_open"].item() == pytest.approx(-torch.tensor(0.1).log().item() / 2)


@pytest.mark.parametrize(
    ("inliers", "outliers", "expected"),
    [(10, 0, 0.75), (10, 9, 0.855), (10, 10, 0.95), (10, 30, 0.95), (0, 5, 0.95), (0, 0, 0.95)],
)
def test_the_outlier_threshold_follows_the_counts(inliers: int, outliers: int, expected: float) -> None:
    method, _ = plain(pool=1000)
    method.tau_ood.fill_(0.8)
    for iteration in (0, 1, 2, 4):  # 1000 // (2 x 128) = 3
        method.confident.copy_(torch.tensor([inliers, outliers]))
        method.move_threshold(iteration, batch_size=128)
        assert (method.tau_ood.item(), method.confident.tolist()) == (0.8, [inliers, outliers])
    method.move_threshold(3, batch_size=128)
    assert method.tau_ood.item() == pytest.approx(expected)
    assert method.confident.tolist() == [0, 0]


def test_with_a_small_pool_the_outlier_threshold_moves_in_every_step() -> None:
    method, _ = plain(pool=5)
    for iteration in (1, 2, 3):
        method.tau_ood.fill_(0.8)
        method.move_threshold(iteration, batch_size=4)
        assert method.tau_ood.item() == 0.95


def test_the_published_confidence_of_the_close_batch_is_that_of_other_images() -> None:
    """An unsure close image next to a sure open one is used, a sure one next to an unsure one is not."""
    batch = batch_of(images(CAT, UNSURE, OUTLIER, CAT), images(UNSURE, CAT, UNSURE, OUTLIER))
    one = torch.tensor(3.0).log().item() / 4
    found = {}
    for whose in ("own", "open"):
        method, net = plain(close_confidence=whose)
        found[whose] = method.losses(net, batch, START)
    assert found["own"].terms["unsup_close"].item() == pytest.approx(one)  # the second
    assert found["open"].terms["unsup_close"].item() == pytest.approx(2 * one)  # the first and the third
    assert (found["own"].logs["selected"] * 8).item() == 3 + 1
    assert (found["open"].logs["selected"] * 8).item() == 3 + 2


def test_both_views_learn_if_asked_for() -> None:
    batch = batch_of(images(CAT, UNSURE), images(UNSURE, UNSURE))
    strong, weak = torch.tensor(4.0).log().item(), -torch.tensor(0.97).log().item()
    for views, expected in (("strong", strong / 2), ("both", (strong + weak) / 4)):
        method, net = plain(open_views=views)
        assert method.losses(net, batch, START).terms["unsup_open"].item() == pytest.approx(expected)


@pytest.mark.parametrize("views", ["strong", "both"])
def test_pseudo_labels_get_no_gradient(views: str) -> None:
    method, net = make(threshold=0.0, outlier_min=0.0, outlier_max=0.0, open_views=views)
    net.eval()  # no BatchNorm statistics that would tie the images together
    batch = draw_batch(method.streams(method.cfg), C, SIZES, seed=1, requires_grad=True)
    total = method.losses(net, batch, START).total
    reached = {
        (name, view): bool(gradients(total, [batch[name].views[view]])[0].any())
        for name in ("open", "close")
        for view in ("weak", "strong")
    }
    assert reached == {
        ("open", "weak"): views == "both",
        ("open", "strong"): True,
        ("close", "weak"): False,
        ("close", "strong"): True,
    }


def test_the_queue_forgets_the_oldest_and_draws_different_entries() -> None:
    queue = OutlierQueue(4, (1, 1, 1))
    for value in range(6):
        assert len(queue.draw(5, keyed_generator(KEY, 0))[0]) == (0 if value < 5 else 4)  # the queue holds four
        queue.push(torch.tensor([[9.0], [float(value)]])[:, :, None, None], torch.tensor([1.0, value / 10]), 1)
    assert queue.images.flatten().tolist() == [4, 5, 2, 3]
    drawn, scores = queue.draw(3, keyed_generator(KEY, 1))
    assert len(set(drawn.flatten().tolist())) == 3
    assert scores.tolist() == pytest.approx((drawn.flatten() / 10).tolist())
    orders = {tuple(queue.draw(4, keyed_generator(KEY, iteration))[0].flatten().tolist()) for iteration in range(20)}
    assert len(orders) > 5


def test_more_pushes_than_places_or_images_keep_the_lowest_scores() -> None:
    queue = OutlierQueue(2, (1, 1, 1))
    queue.push(torch.arange(4.0)[:, None, None, None], torch.tensor([0.4, 0.1, 0.3, 0.2]), 5)
    assert queue.images.flatten().tolist() == [1, 3] and queue.pushed.item() == 2


def test_prediction_is_by_known_classes_and_the_outlier_score_is_the_last_probability() -> None:
    method, net = plain()
    outputs = method.predict(net, images(CAT, OUTLIER, HIDDEN_CAT))
    assert outputs.outlier is not None
    assert outputs.outlier.tolist() == pytest.approx([0.01, 0.97, 0.548])
    assert outputs.logits.shape == (3, C)
    assert outputs.logits[2].argmax().item() == 0
    shipped = method.inference_module(net)(images(CAT, OUTLIER, HIDDEN_CAT))
    assert torch.equal(shipped.outlier, outputs.outlier)


def test_defaults_follow_the_number_of_classes() -> None:
    assert [SCOMatchConfig().for_data(c).queue for c in (2, 32, 33, 100)] == [256, 256, 264, 800]
    assert SCOMatchConfig(queue=7).for_data(100).queue == 7
    assert SCOMatch(SCOMatchConfig(), DataInfo(C, D, 5, (1, 1, 1))).heads.bias is None
