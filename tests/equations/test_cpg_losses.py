"""CPG: votes, choice of images, radii, copies and losses against loops written from the description of the method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from slow_reference import (
    END,
    PIXELS,
    START,
    Row,
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
from torch import Tensor, nn

from unissl.methods.cpg import CPG, CPGConfig, log_share
from unissl.ops.keyed_random import keyed_generator
from unissl.types import Batch, DataInfo, Outputs, Prediction, Step, StreamBatch

pytestmark = pytest.mark.usefixtures("double")
C, D, POOL = 3, 4, 8
GIVEN = (3, 2, 1)
N = sum(GIVEN)
LABELS = [0, 0, 0, 1, 1, 2]
TOTAL, WARM, EVERY = 40, 4, 6
CUT = 0.5
NOISE_KEY = 5


def images(seed: int, count: int) -> Tensor:
    return torch.randn(count, *PIXELS, generator=torch.Generator().manual_seed(seed))


@dataclass
class Reference:
    """The state as plain lists and dictionaries."""

    similarity: str = "all"
    strong: bool = False
    records: dict[int, list[int]] = field(default_factory=dict)
    seen: int = 0
    promoted: dict[int, list[float]] = field(default_factory=dict)
    n: list[int] = field(default_factory=lambda: list(GIVEN))
    n_sel: list[int] = field(default_factory=lambda: [1] * C)
    k: list[int] = field(default_factory=lambda: [10] * C)
    r: list[float] = field(default_factory=lambda: [1 / C] * C)

    def step(self, net: TinyNet, aux: nn.Linear, batch: Batch, iteration: int) -> tuple[dict[str, Tensor], float]:
        """Both terms, and the share of images with a vote."""
        lb, ulb = batch["labelled"], batch["unlabelled"]
        n, u = len(lb), len(ulb)
        unused = [*lb.views["strong"]] if self.strong else []
        f = features(net, [*lb.views["weak"], *unused, *ulb.views["weak"], *ulb.views["strong"]])
        f_lb, f_w, f_s = f[:n], f[-2 * u : -u], f[-u:]
        share = torch.tensor([count / sum(self.n) for count in self.n]).log()

        targets = []
        for index, truth in zip(lb.index.tolist(), lb.targets.tolist(), strict=True):
            targets.append(spread(truth.index(max(truth)), C, 0.1) if index < N else truth)
        labels = [target.index(max(target)) for target in targets]
        guesses = [int(affine(aux, row).argmax()) for row in f_w]
        if iteration < WARM:
            sup = mean([entropy(t, affine(net.head, row) + share) for t, row in zip(targets, f_lb, strict=True)])
            unlabelled = [entropy(spread(guesses[j], C, 0.1), affine(aux, f_s[j])) for j in range(u)]
            labelled = [entropy(targets[i], affine(aux, f_lb[i]) + share) for i in range(n)]
            return {"sup": sup, "aux": mean(unlabelled) + mean(labelled)}, 0.0

        plan = [i for i in range(n) for _ in range(self.k[labels[i]])]
        noise = torch.randn(len(plan), D, generator=keyed_generator(NOISE_KEY, iteration))
        rows: list[tuple[list[float], Row]] = list(zip(targets, f_lb, strict=True))
        for eps, i in zip(noise, plan, strict=True):
            unit = f_lb[i] / (f_lb[i] @ f_lb[i]).sqrt()
            rows.append((targets[i], f_lb[i] + eps * self.r[labels[i]] * unit))
        sup = mean([entropy(t, affine(net.head, row) + share) for t, row in rows])
        unlabelled = [entropy(spread(guesses[j], C, 0), affine(aux, f_s[j])) for j in range(u)]
        labelled = [entropy(spread(labels[i], C, 0), affine(aux, f_lb[i]) + share) for i in range(n)]

        d = self.prior()
        prior = torch.tensor([value / sum(d) for value in d]).log()
        votes = 0
        for j, index in enumerate(ulb.index.tolist()):
            p_w, p_s = (softmax((affine(net.head, row) + prior).detach()) for row in (f_w[j], f_s[j]))
            label = p_w.index(max(p_w))
            if label == p_s.index(max(p_s)) and max(p_w) >= CUT * 0.9 and max(p_s) >= CUT * 0.9:
                self.records.setdefault(index, []).append(label)
                votes += 1
        self.seen += u
        return {"sup": sup, "aux": mean(unlabelled) + mean(labelled)}, votes / u

    def prior(self) -> list[int]:
        d = [0 if count <= min(GIVEN) else count for count in self.n_sel]
        if not any(d):
            return [1] * C
        return [value if value > 0 else min(v for v in d if v > 0) for value in d]

    def choose(self, min_votes: int = 12, min_votes_fraction: float | None = None) -> None:
        self.promoted = {}
        self.n_sel = [0] * C
        for index, labels in sorted(self.records.items()):
            mode, times = Counter(labels).most_common(1)[0]
            needed = min_votes if min_votes_fraction is None else min_votes_fraction * self.seen / POOL
            if len(labels) > needed and times > 0.8 * len(labels):
                self.promoted[index] = [labels.count(c) / len(labels) for c in range(C)]
                self.n_sel[mode] += 1
        self.n = [given + chosen for given, chosen in zip(GIVEN, self.n_sel, strict=True)]
        self.k = [int(10 * sorted(self.n)[C // 3] / count) for count in self.n]
        self.records, self.seen = {}, 0

    def take_radii(self, feats: list[list[float]], labels: list[int]) -> None:
        """One feature per image of the labelled set."""
        s = [0.0] * C
        for c in range(C):
            members = [feat for feat, label in zip(feats, labels, strict=True) if label == c]
            centre = [sum(column) / len(members) for column in zip(*members, strict=True)]
            for start in range(0, len(labels), 64):
                group = range(start, min(start + 64, len(labels)))
                counted = [(cosine(feats[i], centre) + 1) / 2 for i in group if labels[i] == c]
                s[c] += sum(counted if self.similarity == "all" else counted[-1:]) / len(members)
        inverse = [1 / value for value in s]
        self.r = [value / sum(inverse) for value in inverse]


def cosine(x: list[float], y: list[float]) -> float:
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    return dot / (sum(a * a for a in x) * sum(b * b for b in y)) ** 0.5


class Data:
    """Labelled images and a pool of fixed images; views add a little noise, so that votes can agree."""

    def __init__(self, method: CPG) -> None:
        self.method = method
        self.given, self.pool = images(1, N), images(2, POOL)
        self.step = Step(0, TOTAL, 0, 1)
        self.scans: list[tuple[int, str]] = []

    def labelled(self) -> tuple[Tensor, Tensor]:
        target, promoted = torch.eye(C)[LABELS], self.method.promoted()
        if promoted is None:
            return self.given, target
        return torch.cat([self.given, self.pool[promoted[0]]]), torch.cat([target, promoted[1]])

    def batch(self, seed: int) -> Batch:
        inputs, target = self.labelled()
        generator = torch.Generator().manual_seed(seed)
        lb = torch.randperm(len(inputs), generator=generator)[:5]
        ulb = torch.randint(0, POOL, (6,), generator=generator)

        def view(x: Tensor) -> Tensor:
            return x + 0.3 * torch.randn(x.shape, generator=generator)

        return {
            "labelled": StreamBatch({v: view(inputs[lb]) for v in ("weak", "strong")}, lb, target[lb]),
            "unlabelled": StreamBatch({v: view(self.pool[ulb]) for v in ("weak", "strong")}, ulb),
        }

    def scan(self, source: str, weights: str = "ema", view: str = "weak") -> Iterator[tuple[StreamBatch, Prediction]]:
        assert (source, view) == ("labelled", "weak")
        self.scans.append((self.step.iteration, weights))
        inputs, target = self.labelled()
        for part in torch.arange(len(inputs)).split(4):
            feat = inputs[part].flatten(1)[:, :D]
            yield StreamBatch({}, part, target[part]), Prediction(feat, feat)


def make(**settings: Any) -> tuple[CPG, TinyNet]:
    torch.manual_seed(0)
    timing = {"warm_up": WARM / TOTAL, "update_every": EVERY / TOTAL, "threshold": CUT, "min_visits": 0.0}
    method = CPG(CPGConfig(**{**timing, **settings}), DataInfo(C, D, POOL, GIVEN))
    method.noise_key.fill_(NOISE_KEY)
    net = TinyNet(D, C)
    with torch.no_grad():
        net.head.weight.mul_(2)
    return method, net


@pytest.mark.parametrize(
    "settings",
    [
        {"min_votes": 1},
        {"min_votes_fraction": 12 / 185},
        {"min_votes_fraction": 0.3},
        {"min_votes_fraction": 1.0},
        {"min_votes": 0, "similarity": "last"},
        {"min_votes": 0, "labelled_strong": True},
    ],
    ids=str,
)
def test_whole_run_equals_loops(settings: dict[str, Any]) -> None:
    """Warm-up, first stretch with ten copies, then several choices, with a network that moves."""
    method, net = make(**settings)
    reference = Reference(settings.get("similarity", "all"), settings.get("labelled_strong", False))
    data = Data(method)
    parameters = [*net.parameters(), *method.parameters()]
    sizes = []
    for iteration in range(TOTAL):
        data.step = Step(iteration, TOTAL, 0, 1)
        batch = data.batch(iteration)
        losses = method.losses(net, batch, data.step)
        expected, share = reference.step(net, method.aux, batch, iteration)
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-9
        )
        assert losses.logs["selected"].item() == pytest.approx(share)
        assert losses.logs["promoted"].item() == pytest.approx(len(reference.promoted) / POOL)
        total = expected["sup"] + expected["aux"]
        assert losses.total.item() == pytest.approx(total.item(), rel=1e-9)
        grads, expected_grads = gradients(losses.total, parameters), gradients(total, parameters)
        for one, other in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-11)
        with torch.no_grad():
            for parameter, slope in zip(parameters, grads, strict=True):
                parameter -= 0.02 * slope

        method.after_step(data)
        done = iteration + 1
        if done > WARM and (done - WARM) % EVERY == 0:
            reference.choose(**{key: value for key, value in settings.items() if key.startswith("min_votes")})
        if done >= WARM and (done - WARM) % EVERY == 0:
            inputs, target = data.labelled()
            reference.take_radii(inputs.flatten(1)[:, :D].tolist(), target.argmax(1).tolist())
        found = method.promoted()
        positions = [] if found is None else found[0].tolist()
        assert positions == sorted(reference.promoted)
        if found is not None:
            torch.testing.assert_close(found[1], torch.tensor([reference.promoted[i] for i in positions]))
        assert method.counts.tolist() == reference.n
        assert method.chosen_counts.tolist() == reference.n_sel
        assert method.copies.tolist() == reference.k
        assert method.radii.tolist() == pytest.approx(reference.r, rel=1e-12)
        sizes.append(len(positions))
    assert data.scans == [(done - 1, "live") for done in range(WARM, TOTAL + 1, EVERY)]
    assert len(set(sizes)) > 2 and max(sizes) > 2


def test_the_strong_labelled_view_is_asked_for_only_if_wanted() -> None:
    assert CPG.streams(CPGConfig())["labelled"].views == ("weak",)
    assert CPG.streams(CPGConfig(labelled_strong=True))["labelled"].views == ("weak", "strong")


def test_warm_up_ends_at_30_of_256_epochs() -> None:
    method = CPG(CPGConfig(), DataInfo(C, D, POOL, GIVEN))
    net = TinyNet(D, C)
    batch = draw_batch(method.streams(method.cfg), C, {"labelled": 5, "unlabelled": 6}, seed=1)
    for iteration, votes in ((119, False), (120, True)):
        method.losses(net, batch, Step(iteration, 1024, iteration // 4, 256))
        assert (method.drawn.item() > 0) == votes


def recorded(votes: list[list[int]], visits: float, **settings: Any) -> CPG:
    """A method with these votes after the pool was seen so often, at its next choice."""
    config = CPGConfig(**{"min_votes_fraction": 12 / 185, **settings})
    method = CPG(config, DataInfo(C, D, len(votes), GIVEN))
    method.votes.copy_(torch.tensor(votes))
    method.drawn.fill_(round(visits * len(votes)))
    method.choose()
    return method


@pytest.mark.parametrize("pool", [1000, 12395, 100_000])
def test_more_than_12_votes_are_needed_whatever_the_pool(pool: int) -> None:
    method = CPG(CPGConfig(), DataInfo(C, D, pool, GIVEN))
    method.votes[0, 1], method.votes[1, 1] = 12, 13
    method.drawn.fill_(5 * 1024 * 448)
    method.choose()
    assert method.chosen.nonzero().flatten().tolist() == [1]


def test_12_of_185_visits_are_12_votes_at_the_papers_length() -> None:
    """5 epochs of 1,024 steps with 448 of 12,395 images are 185 visits of each."""
    method = CPG(CPGConfig(min_votes_fraction=12 / 185), DataInfo(C, D, 12395, GIVEN))
    method.votes[0, 1], method.votes[1, 1] = 12, 13
    method.drawn.fill_(5 * 1024 * 448)
    method.choose()
    assert method.chosen.nonzero().flatten().tolist() == [1]


def test_more_than_four_fifths_of_the_votes_have_to_agree() -> None:
    method = recorded([[4, 1, 0], [9, 1, 1], [0, 0, 5], [0, 0, 0], [2, 2, 0]], visits=5)
    assert method.chosen.tolist() == [False, True, True, False, False]
    found = method.promoted()
    assert found is not None
    assert found[0].tolist() == [1, 2]
    torch.testing.assert_close(found[1], torch.tensor([[9 / 11, 1 / 11, 1 / 11], [0.0, 0.0, 1.0]]))
    assert method.counts.tolist() == [4, 2, 2]
    assert not method.votes.any() and method.drawn.item() == 0


def test_nothing_chosen_leaves_the_given_labels() -> None:
    method = recorded([[0, 0, 0]] * 4, visits=5)
    assert method.promoted() is None
    assert method.counts.tolist() == list(GIVEN)
    assert method.chosen_counts.tolist() == [0, 0, 0]
    assert method.vote_prior().tolist() == [1, 1, 1]
    assert method.copies.tolist() == [6, 10, 20]  # the class in the middle has the usual count


def test_one_confident_class_alone_does_not_tilt_the_vote() -> None:
    method = recorded([[0, 3, 0]] * 4, visits=3)
    assert method.chosen_counts.tolist() == [0, 4, 0]
    assert method.vote_prior().tolist() == [4, 4, 4]
    method.chosen_counts.copy_(torch.tensor([5, 1, 3]))  # the rarest given class has one label
    assert method.vote_prior().tolist() == [5, 3, 3]
    torch.testing.assert_close(log_share(method.vote_prior()).exp(), torch.tensor([5 / 11, 3 / 11, 3 / 11]))


def outputs(*rows: list[float]) -> Outputs:
    return Outputs(torch.tensor(rows).log(), torch.zeros(len(rows), D))


def test_a_vote_needs_both_views_sure_of_the_same_class() -> None:
    """The cut is 0.9 of the threshold; an image that occurs twice votes twice; ties go to the first class."""
    method = CPG(CPGConfig(threshold=0.5), DataInfo(C, D, 5, GIVEN))
    weak = outputs(
        [0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.45, 0.45, 0.1]
    )
    strong = outputs(
        [0.5, 0.2, 0.3], [0.3, 0.5, 0.2], [0.4, 0.3, 0.3], [0.2, 0.7, 0.1], [0.2, 0.7, 0.1], [0.46, 0.44, 0.1]
    )
    kept = method.vote(torch.tensor([0, 1, 2, 3, 3, 4]), weak, strong)
    assert kept.tolist()[:5] == [1, 0, 0, 1, 1]
    assert method.votes.tolist()[:4] == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 2, 0]]
    assert method.votes[4, 1:].tolist() == [0, 0]
    assert method.drawn.item() == 6


def test_an_empty_vote_changes_nothing_but_the_visits() -> None:
    method, net = make(threshold=1.0, smoothing=0.0)
    losses = method.losses(net, Data(method).batch(1), END)
    assert losses.logs["selected"].item() == 0
    assert not method.votes.any() and method.drawn.item() == 6


def test_the_pool_is_seen_often_enough_before_a_choice() -> None:
    """Six draws a step from eight images: twelve visits take sixteen steps, not the six of ``update_every``."""
    method, net = make(min_visits=12.0)
    data = Data(method)
    for iteration in range(TOTAL):
        data.step = Step(iteration, TOTAL, 0, 1)
        method.losses(net, data.batch(iteration), data.step)
        method.after_step(data)
    assert [iteration for iteration, _ in data.scans] == [WARM - 1, WARM + 15, WARM + 31]


@pytest.mark.parametrize("similarity", ["all", "last"])
def test_radii_equal_loops(similarity: str) -> None:
    generator = torch.Generator().manual_seed(3)
    feats = torch.randn(150, D, generator=generator) + 1
    labels = torch.randint(0, C, (150,), generator=generator)
    method = CPG(CPGConfig(similarity=similarity), DataInfo(C, D, POOL, GIVEN))
    reference = Reference(similarity)
    reference.take_radii(feats.tolist(), labels.tolist())
    radii = method.class_radii(feats, labels)
    assert radii.tolist() == pytest.approx(reference.r, rel=1e-12)
    assert radii.sum().item() == pytest.approx(1)


def test_counting_the_last_only_makes_radii_follow_the_class_size() -> None:
    """What the slip of the published code does: of equally scattered classes the larger one gets the wider noise."""
    base = torch.randn(8, D, generator=torch.Generator().manual_seed(0)) + 1
    feats = torch.cat([base, base.repeat(3, 1)])
    labels = torch.tensor([0] * 8 + [1] * 24)
    method, slip = (CPG(CPGConfig(similarity=s), DataInfo(2, D, POOL, (1, 1))) for s in ("all", "last"))
    assert method.class_radii(feats, labels).tolist() == pytest.approx([0.5, 0.5])
    assert slip.class_radii(feats, labels).tolist() == pytest.approx([0.25, 0.75])


def test_a_class_without_images_gets_no_radius_and_a_lone_image_a_small_one() -> None:
    method = CPG(CPGConfig(), DataInfo(C, D, POOL, GIVEN))
    feats = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 2.0, 0]])
    radii = method.class_radii(feats, torch.tensor([0, 0, 2]))
    inside = (2**-0.5 + 1) / 2
    assert radii.tolist() == pytest.approx([1 / (1 + inside), 0, inside / (1 + inside)])


def test_copies_carry_targets_and_gradient_and_noise_follows_the_step() -> None:
    method, _ = make()
    method.copies.copy_(torch.tensor([2, 0, 1]))
    feat = torch.randn(3, D, requires_grad=True)
    target = torch.tensor([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.1, 0.1, 0.8]])
    before = torch.get_rng_state()
    feats, targets = method.with_copies(feat, target, 7)
    assert torch.equal(before, torch.get_rng_state())
    assert targets.tolist() == target[[0, 1, 2, 0, 0, 2]].tolist()
    assert torch.equal(feats[:3], feat) and not torch.equal(feats[3], feats[4])
    assert gradients(feats[3:].sum(), [feat])[0].any(1).tolist() == [True, False, True]
    assert torch.equal(feats, method.with_copies(feat, target, 7)[0])
    assert not torch.equal(feats, method.with_copies(feat, target, 8)[0])


def test_only_given_labels_are_smoothed_and_the_auxiliary_head_gets_hard_ones_later() -> None:
    method, net = make()
    truth = torch.tensor([[1.0, 0, 0], [0.9, 0.1, 0]])
    views = {view: images(3, 2) for view in ("weak", "strong")}
    lb = StreamBatch(views, torch.tensor([N - 1, N]), truth)
    torch.testing.assert_close(method.targets(lb), torch.tensor([[0.9, 0.05, 0.05], [0.9, 0.1, 0]]))
    batch = {"labelled": lb, "unlabelled": StreamBatch(views, torch.tensor([0, 1]))}
    hard = {**batch, "labelled": StreamBatch(views, lb.index, torch.tensor([[1.0, 0, 0], [1.0, 0, 0]]))}
    for step, same in ((START, False), (END, True)):
        terms = [method.losses(net, b, step).terms["aux"].item() for b in (batch, hard)]
        assert (terms[0] == terms[1]) == same


def test_pseudo_labels_get_no_gradient() -> None:
    method, net = make()
    net.eval()  # no BatchNorm statistics that would tie the views together
    for step in (START, END):
        batch = draw_batch(method.streams(method.cfg), C, {"labelled": 5, "unlabelled": 6}, 1, requires_grad=True)
        weak, strong = batch["unlabelled"].views["weak"], batch["unlabelled"].views["strong"]
        of_weak, of_strong = gradients(method.losses(net, batch, step).total, [weak, strong])
        assert not of_weak.any()
        assert of_strong.any()


def test_noise_differs_between_seeds_and_steps() -> None:
    """Copies of one feature: the run's seed and the step decide the noise, and nothing else does."""
    feat, target = torch.ones(2, D), torch.eye(C)[:2]
    made = {}
    for seed, iteration in [(0, 50), (0, 51), (1, 50), (1, 49)]:
        torch.manual_seed(seed)
        method = CPG(CPGConfig(), DataInfo(C, D, POOL, GIVEN))
        made[seed, iteration] = method.with_copies(feat, target, iteration)[0]
        assert torch.equal(made[seed, iteration], method.with_copies(feat, target, iteration)[0])
    values = list(made.values())
    assert all(not torch.equal(values[i], values[j]) for i in range(4) for j in range(i))
