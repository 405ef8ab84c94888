"""SAGE: the whole step in its four forms against loops written from the paper and from the released settings.

Covers Eq. (1), (2) through the affinities, Eq. (3), (4), (5) through the anchors a step uses, Eq. (6) over several
steps, Eq. (7), (8), (9), and Eq. (10) for the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from slow_reference import (
    END,
    START,
    Row,
    TinyNet,
    affine,
    batch_norm,
    draw_batch,
    entropy,
    features,
    gradients,
    mean,
    softmax,
    spread,
)
from torch import Tensor, nn

from unissl.methods.sage import SAGE, SAGEConfig
from unissl.ops.consensus import K_NEIGHBOURS, SHARE, pool_consensus
from unissl.ops.neighbours import nearest, transition
from unissl.types import Batch, DataInfo, Losses, Prediction, Step, StreamBatch

pytestmark = pytest.mark.usefixtures("double")
D, SIZES = 4, {"labelled": 4, "unlabelled": 5}
COUNTS = {3: (6, 3, 1), 12: (9, 5, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1)}
"""Labelled counts with gamma_l > 1, by number of classes: at most ten, and more than ten."""
FORMS = ["default", "released", "paper", "consensus"]


@dataclass
class Reference:
    """SAGE as the paper writes it (``form="paper"``) or as it was released; ``default`` has the blocks in place, and
    ``consensus`` averages the probabilities behind the pseudo-labels with those of the pool's consensus."""

    form: str
    num_classes: int
    counts: tuple[int, ...]
    momentum: float = 0.999
    auxiliary: bool = True
    weighting: str = "drp"
    con: bool = True
    sim: bool = True
    ridge: float = 0.1
    beta: int | None = None
    use_prior: bool | None = None
    stop: bool = True
    """Whether sg[.] stops gradients; off only to show that it matters."""
    state: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = {"max": [1 / self.num_classes, 1.0], "gap": [1 / self.num_classes, 1.0]}

    @property
    def released(self) -> bool:
        """What all forms but ``paper`` share."""
        return self.form != "paper"

    def sg(self, x: Tensor) -> Tensor:
        return x.detach() if self.stop else x

    def step(self, net: TinyNet, heads: SAGE, batch: Batch, early: bool) -> tuple[dict[str, Tensor], float]:
        """The four terms and the mean weight."""
        lb, ulb = batch["labelled"], batch["unlabelled"]
        n, m = len(lb), len(ulb)
        unused = [*lb.views["strong"]] if self.form == "released" else []
        f = features(net, [*lb.views["weak"], *unused, *ulb.views["weak"], *ulb.views["strong"]])
        f_lb, f_w, f_s = f[:n], f[-2 * m : -m], f[-m:]
        labels = [int(row.argmax()) for row in lb.targets]
        terms = {"sup": self.supervised(net.head, f_lb, labels, 0.1 if self.released else 0.0)}

        probs = [softmax(affine(net.head, row).detach()) for row in f_w]
        if self.form == "consensus":
            pool = [heads.consensus[int(index)].tolist() for index in ulb.index]
            probs = [[(p + c) / 2 for p, c in zip(*both, strict=True)] for both in zip(probs, pool, strict=True)]
        w, pseudo = self.weigh(probs)
        eps = 0.1 if self.released and early else 0.0
        head = heads.aux if self.auxiliary else net.head
        assert head is not None
        unlabelled = mean(
            [
                w[j] * entropy(spread(pseudo[j], self.num_classes, eps), affine(head, f_s[j]))
                for j in range(m)  # over all of them, not over the sum of the weights
            ]
        )
        if self.auxiliary:
            terms["aux"] = unlabelled + self.supervised(head, f_lb, labels, eps)  # Eq. (8)
        else:
            terms["unsup"] = unlabelled
        if heads.project is not None:
            z = self.project(heads.project, f)
            z_w, z_s = z[-2 * m : -m], z[-m:]
            if self.con:
                terms["con"] = self.contrast(z_w, z_s, heads.anchors)
            if self.sim:
                terms["sim"] = -mean(
                    [cosine(z_w[j], self.sg(f_s[j])) + cosine(z_s[j], self.sg(f_w[j])) for j in range(m)]
                )  # Eq. (4)
        return terms, sum(w) / m

    def supervised(self, head: nn.Linear, rows: list[Row], labels: list[int], eps: float) -> Tensor:
        """Eq. (7); the released form adds log pi_l to the logits."""
        prior = torch.zeros(self.num_classes)
        if self.released if self.use_prior is None else self.use_prior:
            prior = torch.tensor([count / sum(self.counts) for count in self.counts]).log()
        return mean(
            [
                entropy(spread(label, self.num_classes, eps), affine(head, row) + prior)
                for row, label in zip(rows, labels, strict=True)
            ]
        )

    def weigh(self, probs: list[list[float]]) -> tuple[list[float], list[int]]:
        """Eq. (6) with running statistics that are updated before they are used."""
        ordered = [sorted(q, reverse=True) for q in probs]
        pseudo = [q.index(max(q)) for q in probs]
        if self.weighting == "none":
            return [1.0] * len(probs), pseudo
        if self.weighting == "threshold":
            return [float(q[0] >= 0.95) for q in ordered], pseudo
        metrics = {"max": [q[0] for q in ordered], "gap": [q[0] - q[1] for q in ordered]}
        sharpness = 2.0 if self.released else 1.0
        weights = [1.0] * len(probs)
        for name, values in metrics.items():
            average = sum(values) / len(values)
            variance = sum((value - average) ** 2 for value in values) / (len(values) - 1)
            mu, var = self.state[name]
            mu = self.momentum * mu + (1 - self.momentum) * average
            var = self.momentum * var + (1 - self.momentum) * variance
            self.state[name] = [mu, var]
            for j, value in enumerate(values):
                shortfall = min(0.0, value - mu)
                weights[j] *= float(torch.tensor(-(sharpness**2) * shortfall**2 / (2 * var)).exp())
        return weights, pseudo

    def project(self, head: nn.Sequential, rows: list[Row]) -> list[Row]:
        first, norm, _, last = head
        assert isinstance(first, nn.Linear) and isinstance(norm, nn.BatchNorm1d) and isinstance(last, nn.Linear)
        assert norm.eps == 0.001
        hidden = batch_norm(norm, [affine(first, row) for row in rows])
        return [affine(last, torch.where(row > 0, row, 0.1 * row)) for row in hidden]

    def contrast(self, z_w: list[Row], z_s: list[Row], anchors: Tensor) -> Tensor:
        """Eq. (3). ``default`` lacks the constant tr(G)/(t n(n-1)) of the dropped diagonal, as documented."""
        few = self.num_classes <= 10
        t_sim, t_graph, bias = ((0.5, 0.25) if few else (1.0, 0.5)) + (2.0,) if self.released else (1.0, 1.0, 0.0)
        beta = self.beta or (3 if self.released and not few else 5)
        m = len(z_w)
        views = [z_w]
        if self.released:
            views = [[z / (z @ z).sqrt() for z in view] for view in (z_w, z_s)]
        inverse = torch.linalg.inv(anchors @ anchors.T + self.ridge * torch.eye(len(anchors)))
        embedded = [[z @ anchors.T @ inverse for z in view] for view in views]  # Eq. (2)

        n = m * len(views)
        u, a = [[torch.zeros(())] * n for _ in range(n)], [[torch.zeros(())] * n for _ in range(n)]
        for i in range(n):
            for j in range(n):
                view_i, view_j = i // m, j // m
                if self.form == "released" and view_i != view_j:
                    view_i, view_j = view_j, view_i
                u[i][j] = views[view_i][i % m] @ views[view_j][j % m] / t_sim
                a[i][j] = embedded[view_i][i % m] @ embedded[view_j][j % m] / t_graph + bias * (i % m == j % m)
        transition = torch.stack([torch.stack(row).exp() / torch.stack(row).exp().sum() for row in a])
        g = torch.eye(n)
        for _ in range(beta):
            g = g @ transition
        g = self.sg(g)
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j or not self.released]
        s = {(i, j): torch.sigmoid(u[i][j]) for i, j in pairs}
        loss = mean([-g[i, j] * s[i, j].log() - (1 - g[i, j]) * (1 - s[i, j]).log() for i, j in pairs])
        return loss - (g.trace() / (t_sim * n * (n - 1)) if self.form in ("default", "consensus") else 0)


def cosine(x: Row, y: Row) -> Tensor:
    return (x @ y) / ((x @ x).sqrt() * (y @ y).sqrt())


def make(num_classes: int = 3, **settings: Any) -> tuple[SAGE, TinyNet]:
    torch.manual_seed(num_classes)
    info = DataInfo(num_classes, D, 9, COUNTS[num_classes])
    net = TinyNet(D, num_classes)
    method = SAGE(SAGEConfig(**settings), info)
    if method.cfg.pseudo_labels == "consensus":  # some consensus, so that it matters
        method.consensus.copy_(
            torch.rand(method.consensus.shape, generator=torch.Generator().manual_seed(0)).softmax(1)
        )
    return method, net


def draw(method: SAGE, seed: int, requires_grad: bool = False) -> Batch:
    return draw_batch(method.streams(method.cfg), method.info.num_classes, SIZES, seed, requires_grad)


def parameters(method: SAGE, net: TinyNet) -> list[nn.Parameter]:
    return [*net.parameters(), *method.parameters()]


def assert_same_step(losses: Losses, expected: dict[str, Tensor], inputs: list[nn.Parameter]) -> None:
    """Every term, the total of Eq. (9), and the gradient of the total in every parameter."""
    assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
        {name: term.item() for name, term in expected.items()}, rel=1e-9, abs=1e-12
    )
    total = sum(expected.values(), torch.zeros(()))  # Eq. (9)
    assert losses.total.item() == pytest.approx(total.item(), rel=1e-9)
    for grad, expected_grad in zip(gradients(losses.total, inputs), gradients(total, inputs), strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("num_classes", [3, 12])
@pytest.mark.parametrize("form", FORMS)
def test_whole_steps_equal_loops_while_the_statistics_move(form: str, num_classes: int) -> None:
    """A smoothed step, then hard ones; momentum 0.5 moves DRP's state far, the default hardly."""
    shares = []
    for momentum in (0.999, 0.5):
        method, net = make(num_classes, form=form, drp_momentum=momentum)
        reference = Reference(form, num_classes, COUNTS[num_classes], momentum)
        for seed, step in enumerate([START, END, END]):
            batch = draw(method, seed)
            losses = method.losses(net, batch, step)
            expected, selected = reference.step(net, method, batch, early=step == START)
            assert_same_step(losses, expected, parameters(method, net))
            assert losses.logs["selected"].item() == pytest.approx(selected, rel=1e-10)
            shares.append(selected)
        for tracker, name in ((method.drp_confidence, "max"), (method.drp_margin, "gap")):
            assert [tracker.mean.item(), tracker.var.item()] == pytest.approx(reference.state[name], rel=1e-12)
    assert min(shares) < 0.99  # the weights did something


ABLATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"auxiliary": False}, {"auxiliary": False}),
    ({"weighting": "threshold"}, {"weighting": "threshold"}),
    ({"weighting": "none"}, {"weighting": "none"}),
    ({"contrastive": False}, {"con": False}),
    ({"consistency": False}, {"sim": False}),
    ({"contrastive": False, "consistency": False}, {"con": False, "sim": False}),
    ({"num_anchors": 3}, {}),
    ({"num_anchors": D + 1}, {}),
    ({"num_anchors": 9}, {}),
    ({"ridge": 0.5}, {"ridge": 0.5}),
    ({"walk_steps": 2}, {"beta": 2}),
]


@pytest.mark.parametrize(("settings", "changes"), ABLATIONS, ids=[str(settings) for settings, _ in ABLATIONS])
@pytest.mark.parametrize("form", FORMS)
def test_ablations_equal_loops(form: str, settings: dict[str, Any], changes: dict[str, Any]) -> None:
    method, net = make(form=form, **settings)
    reference = replace(Reference(form, 3, COUNTS[3]), **changes)
    batch = draw(method, seed=5)
    expected, _ = reference.step(net, method, batch, early=True)
    assert_same_step(method.losses(net, batch, START), expected, parameters(method, net))
    whole, _ = Reference(form, 3, COUNTS[3]).step(net, make(form=form)[0], batch, early=True)
    same_graph = settings == {"num_anchors": D + 1}
    totals = [sum(terms.values(), torch.zeros(())).item() for terms in (expected, whole)]
    assert same_graph == (totals[0] == pytest.approx(totals[1], rel=1e-6))


def test_ablated_parts_are_not_built() -> None:
    assert make(auxiliary=False)[0].aux is None
    assert make(contrastive=False, consistency=False)[0].project is None
    assert make(contrastive=False)[0].project is not None
    assert make(num_anchors=3)[0].anchors.shape == (3, D)
    assert make()[0].anchors.shape == (D + 1, D)


@pytest.mark.parametrize("form", FORMS)
def test_the_smoothing_phase_ends_at_30_of_256_epochs(form: str) -> None:
    """The last smoothed and the first hard step; weighting "none" so that nothing else differs between them."""
    method, net = make(form=form, weighting="none")
    batch = draw(method, seed=1)
    last, first = (method.losses(net, batch, Step(i, 1024, i // 4, 256)).terms for i in (119, 120))
    assert (last["aux"].item() != first["aux"].item()) == (form != "paper")
    assert all(last[name].item() == first[name].item() for name in ("sup", "con", "sim"))


@pytest.mark.parametrize("form", FORMS)
def test_labelled_class_shares_enter_the_released_forms_only(form: str) -> None:
    """log pi_l moves value and gradient of L_cls and L_aux, unless all classes have as many labels."""
    method, net = make(form=form)
    without, _ = make(form=form, prior_adjustment=False)
    balanced = SAGE(method.cfg, DataInfo(3, D, 9, (4, 4, 4)))
    balanced.load_state_dict({**method.state_dict(), "log_prior": balanced.log_prior})
    batch = draw(method, seed=2)
    adjusted_losses, plain = method.losses(net, batch, START), without.losses(net, batch, START)
    expected, _ = Reference(form, 3, COUNTS[3], use_prior=False).step(net, without, batch, early=True)
    assert_same_step(plain, expected, parameters(without, net))
    adjusted = form != "paper"
    for name in ("sup", "aux"):
        assert (abs(adjusted_losses.terms[name].item() - plain.terms[name].item()) > 1e-3) == adjusted
        slopes = [gradients(losses.terms[name], [net.first.weight])[0] for losses in (adjusted_losses, plain)]
        assert ((slopes[0] - slopes[1]).abs().max().item() > 1e-4) == adjusted
    for name in ("con", "sim"):
        assert adjusted_losses.terms[name].item() == plain.terms[name].item()
    assert balanced.losses(net, batch, START).total.item() == pytest.approx(plain.total.item(), rel=1e-12)


def test_the_labelled_strong_view_acts_through_batch_norm_only() -> None:
    method, net = make(form="released")
    batch = draw(method, seed=3, requires_grad=True)
    strong = batch["labelled"].views["strong"]
    assert gradients(method.losses(net, batch, START).total, [strong])[0].abs().max() > 1e-6
    method.eval(), net.eval()  # fixed statistics
    assert not gradients(method.losses(net, batch, START).total, [strong])[0].any()
    for form in ("default", "paper"):
        assert make(form=form)[0].streams(SAGEConfig(form=form))["labelled"].views == ("weak",)


def reach(method: SAGE, net: TinyNet) -> dict[str, dict[str, bool]]:
    """Term -> what its gradient reaches, with BatchNorm fixed so that images do not mix."""
    method.eval(), net.eval()
    batch = draw(method, seed=4, requires_grad=True)
    places: dict[str, Tensor] = {
        "primary": net.head.weight,
        "labelled": batch["labelled"].views["weak"],
        "weak": batch["unlabelled"].views["weak"],
        "strong": batch["unlabelled"].views["strong"],
    }
    if method.aux is not None:
        places["auxiliary"] = method.aux.weight
    terms = method.losses(net, batch, START).terms
    found = {name: gradients(term, list(places.values())) for name, term in terms.items()}
    return {name: {place: bool(g.any()) for place, g in zip(places, got, strict=True)} for name, got in found.items()}


@pytest.mark.parametrize("form", FORMS)
def test_where_gradients_go(form: str) -> None:
    """The primary head learns from labelled images alone, and pseudo-labels send nothing back to the weak view."""
    nobody = dict.fromkeys(["primary", "labelled", "weak", "strong", "auxiliary"], False)
    assert reach(*make(form=form)) == {
        "sup": nobody | {"primary": True, "labelled": True},
        "aux": nobody | {"labelled": True, "strong": True, "auxiliary": True},
        "con": nobody | {"weak": True, "strong": form != "paper"},
        "sim": nobody | {"weak": True, "strong": True},
    }


def test_without_the_auxiliary_head_pseudo_labels_train_the_primary_one() -> None:
    found = reach(*make(auxiliary=False))
    assert found["unsup"] == {"primary": True, "labelled": False, "weak": False, "strong": True}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("term", ["con", "sim"])
def test_stop_gradients_matter(form: str, term: str) -> None:
    """Without sg[.] the reference has another gradient, so the agreement above is not by chance."""
    method, net = make(form=form)
    batch = draw(method, seed=6)
    grad = gradients(method.losses(net, batch, START).terms[term], [net.first.weight])[0]
    stopped, flowing = (
        gradients(
            Reference(form, 3, COUNTS[3], stop=stop).step(net, method, batch, early=True)[0][term], [net.first.weight]
        )[0]
        for stop in (True, False)
    )
    torch.testing.assert_close(grad, stopped, rtol=1e-7, atol=1e-11)
    assert (flowing - stopped).abs().max() > 1e-4


@dataclass
class Scans:
    """A context whose scans are made up: features, and classes of the labelled images."""

    step: Step
    labelled: Tensor
    labels: Tensor
    pool: Tensor

    def scan(self, source: str, weights: str = "ema", view: str = "weak") -> Iterator[tuple[StreamBatch, Prediction]]:
        """Two images at a time."""
        feats, targets = self.pool, None
        if source == "labelled":
            feats, targets = self.labelled, torch.eye(3)[self.labels]
        for rows in torch.arange(len(feats)).split(2):
            yield (
                StreamBatch({}, rows, None if targets is None else targets[rows]),
                Prediction(feats[:, :3], feats[rows]),
            )


def at_period(period: int, periods: int) -> Scans:
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([0, 1, 2, 2])
    feats = torch.randn(13, D, generator=generator)
    return Scans(Step(period, periods, period, periods), feats[:4], labels, feats[4:])


def test_the_consensus_is_the_limit_of_label_spreading() -> None:
    """F = (1 - a) (I - a S)^-1 Y over the labelled images and the pool, by the graph of their features."""
    method, _ = make(form="consensus")
    context = at_period(1, 4)
    method.on_period_start(context)
    graph = transition(*nearest(torch.cat([context.labelled, context.pool]), K_NEIGHBOURS)).toarray()
    given = np.zeros((13, 3))
    given[range(4), context.labels.numpy()] = 1
    limit = (1 - SHARE) * np.linalg.inv(np.eye(13) - SHARE * graph) @ given
    expected = limit[4:] / limit[4:].sum(1, keepdims=True)
    np.testing.assert_allclose(method.consensus.numpy(), expected, atol=1e-5)


def test_when_the_consensus_is_computed() -> None:
    """Not for a random network, not in other forms, and at most twenty times in a run."""
    method, _ = make(form="consensus")
    for period in (0, 1, 2):  # of 60: every third
        before = method.consensus.clone()
        method.on_period_start(at_period(period, 60))
        assert method.consensus.equal(before)
    method.on_period_start(at_period(3, 60))
    assert not method.consensus.equal(before)
    plain, _ = make(form="default")
    plain.on_period_start(at_period(3, 60))
    assert "consensus" not in plain.state_dict()


def test_an_image_that_no_label_reaches_has_a_uniform_consensus() -> None:
    """Two groups of orthogonal features; all labels are in the first."""
    near, far = torch.tensor([[1.0, 0.0]]).repeat(13, 1), torch.tensor([[0.0, 1.0]]).repeat(12, 1)
    probs = pool_consensus(near[:1], torch.tensor([1]), torch.cat([near[1:], far]), 4)
    torch.testing.assert_close(probs[:12], torch.tensor([[0.0, 1.0, 0.0, 0.0]]).repeat(12, 1))
    torch.testing.assert_close(probs[12:], torch.full((12, 4), 0.25))


def test_prediction_is_the_primary_head() -> None:
    """Eq. (10): y* = argmax_c phi_cls(f*)_c, whatever the auxiliary head says."""
    method, net = make()
    assert method.aux is not None
    nn.init.constant_(method.aux.bias, 100.0)
    method.eval(), net.eval()
    images = draw(method, seed=8)["unlabelled"].views["weak"]
    prediction = method.predict(net, images)
    for i, image in enumerate(images):
        # Fresh running statistics are mean 0 and variance 1.
        feat = affine(net.first, image.flatten()) / (1 + net.norm.eps) ** 0.5
        scores = affine(net.head, feat).tolist()
        assert prediction.logits[i].tolist() == pytest.approx(scores, rel=1e-10)
        assert int(prediction.logits[i].argmax()) == scores.index(max(scores))
    assert prediction.outlier is None
