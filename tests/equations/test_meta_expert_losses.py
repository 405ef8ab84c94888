"""Meta-Expert: whole steps through its phases against loops, its two switches, its borders and its prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from slow_reference import PIXELS, Row, affine, draw_batch, entropy, gradients, mean, softmax, spread
from torch import Tensor, nn

from unissl.methods.meta_expert import MetaExpert, MetaExpertConfig
from unissl.training.optim import OptimConfig, build_optimizer
from unissl.types import Batch, DataInfo, Outputs, Step

pytestmark = pytest.mark.usefixtures("double")
C, SIZES = 5, {"labelled": 4, "unlabelled": 6}
COUNTS = (2, 7, 1, 4, 2)
"""Order by labels: 1, 3, 0, 4, 2 (classes 0 and 4 are equal and keep their order)."""
HEAD, MEDIUM, TAIL = {1}, {3}, {0, 4, 2}
COMMON, RARE = {1, 3}, {0, 4, 2}
DIMS = {"stem": 2, "stage1": 3, "stage2": 2, "stage3": 3, "map": 3}
TOTAL = 10
PHASES = {"warm_up": 0.2, "estimate": 0.2}
"""Steps 0 and 1 warm up, 2 and 3 count, and from 4 on everything is trained."""


class TapNet(nn.Module):
    """Four pixel-wise layers, and a map; what the method sees of a wide residual network."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.feat_dim = DIMS["map"]
        widths = [PIXELS[0], *list(DIMS.values())[:4]]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairwise(widths))
        self.head = nn.Linear(self.feat_dim, num_classes)
        nn.init.normal_(self.head.weight)

    def forward(self, x: Tensor) -> Outputs:
        taps = {}
        for name, layer in zip(DIMS, self.layers, strict=False):
            x = taps[name] = layer(x.tanh())
        taps["map"] = nn.functional.leaky_relu(x, 0.1)
        feat = taps["map"].mean((2, 3))
        return Outputs(self.head(feat), feat, taps)


def make(num_classes: int = C, counts: tuple[int, ...] = COUNTS, **settings: Any) -> tuple[MetaExpert, TapNet]:
    torch.manual_seed(0)
    net = TapNet(num_classes)
    settings = {"threshold": 0.6, "unsup_weight": 0.7, **PHASES, **settings}
    method = MetaExpert(MetaExpertConfig(**settings), DataInfo(num_classes, net.feat_dim, 9, counts, DIMS))
    for expert in method.experts.others:
        nn.init.normal_(expert.weight, std=5.0)  # confidences from low to high
    for norm in method.experts.norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return method, net


def step_at(iteration: int, total: int = TOTAL) -> Step:
    return Step(iteration, total, iteration, total)


@dataclass
class Reference:
    """Meta-Expert in loops, for the classes and counts above."""

    threshold: float = 0.6
    taus: tuple[float, ...] = (0.0, 2.0, 4.0)
    indexed: bool = False
    counts: list[float] = field(default_factory=lambda: [0.0] * C)

    def head_outputs(self, method: MetaExpert, net: TapNet, images: list[Tensor]) -> list[dict[str, Any]]:
        """What the experts and the gate say of each image of one joint batch, in training mode."""
        parts = method.experts
        taps = net(torch.stack(images)).taps  # the network itself is not under test
        behind = [pooled(norm, list(taps["map"]), slope=1.0, eps=1e-5) for norm in parts.norms]
        depths = [
            pooled(branch[0], list(taps[name]), slope=0.1, eps=1e-3)
            for name, branch in zip(("stem", "stage1", "stage2", "stage3"), parts.depths, strict=True)
        ]
        heads = [net.head, *parts.others]
        return [
            self.mixture(parts.gate, heads, [rows[i] for rows in behind], [rows[i] for rows in depths])
            for i in range(len(images))
        ]

    def mixture(self, gate: nn.Module, heads: list[nn.Linear], behind: list[Row], depths: list[Row]) -> dict[str, Any]:
        log_prior = torch.tensor([count / sum(COUNTS) for count in COUNTS]).log()
        by_part = [[affine(head, row) for row in behind] for head in heads]
        logits = [(h + m + t) / 3 for h, m, t in by_part]
        adjusted = [logits[k] + self.taus[k] * log_prior for k in range(3)]
        g1, g2, g3, g4 = depths
        h1 = dense(gate.first[0], g1)
        h2 = dense(gate.first[1], g2 + h1)
        h3 = dense(gate.first[2], g3 + h2)
        h4 = dense(gate.first[3], g4 + h3)
        k1 = dense(gate.second[0], h1)
        k2 = dense(gate.second[1], h2 + k1)
        k3 = dense(gate.second[2], h3 + k2)
        k4 = dense(gate.second[3], h4 + k3)
        v = torch.cat([k4, *(row_softmax(row) for row in adjusted)])
        for layer in gate.last:
            v = dense(layer, v)
        w = row_softmax(v)
        own = []
        for k, group in enumerate((HEAD, MEDIUM, TAIL)):
            p = row_softmax(logits[k])
            own.append(max((p[c] for c in sorted(group)), key=Tensor.item))
        weights = row_softmax(torch.stack([own[k] * w[k] for k in range(3)]))
        return {"by_part": by_part, "logits": logits, "adjusted": adjusted, "v": v, "w": weights}

    def step(self, method: MetaExpert, net: TapNet, batch: Batch, iteration: int) -> tuple[dict[str, Tensor], float]:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        outputs = self.head_outputs(method, net, [*lb.views["weak"], *ulb.views["weak"], *ulb.views["strong"]])
        n, m = len(lb), len(ulb)
        labelled, weak, strong = outputs[:n], outputs[n : n + m], outputs[n + m :]
        labels = [int(row.argmax()) for row in lb.targets]

        sup = torch.zeros(())
        for k in range(3):
            sup = sup + mean([entropy(spread(labels[i], C, 0), labelled[i]["adjusted"][k]) for i in range(n)])

        unsup, kept = torch.zeros(()), 0
        second: list[tuple[int, bool]] = []
        for k in range(3):
            total, number = torch.zeros(()), 0
            for j in range(m):
                q = softmax(weak[j]["logits"][k].detach())
                chosen = q.index(max(q))
                confident = q[chosen] >= self.threshold
                if k == 1:
                    second.append((chosen, confident))
                if not confident:
                    continue
                kept += 1
                for part, wanted in enumerate((HEAD | MEDIUM | TAIL, MEDIUM | TAIL, TAIL)):
                    if chosen in wanted:
                        total = total + entropy(spread(chosen, C, 0), strong[j]["by_part"][k][part])
                        number += 1
            unsup = unsup + total / (number + 1e-12)
        if 2 <= iteration < 4:
            self.count(second)

        terms = {"sup": sup, "unsup": unsup, "fusion": self.fusion(labelled, labels)}
        terms["fusion_unsup"] = self.consistency(weak, strong)
        return terms, kept / (3 * m)

    def count(self, second: list[tuple[int, bool]]) -> None:
        if self.indexed:
            last = dict(second)  # a later sample of the same class replaces an earlier one
            for c, confident in last.items():
                self.counts[c] += float(confident)
        else:
            for c, confident in second:
                self.counts[c] += float(confident)

    def fusion(self, labelled: list[dict[str, Any]], labels: list[int]) -> Tensor:
        class_weights = balanced(list(COUNTS))
        group_weights = balanced([sum(COUNTS[c] for c in group) for group in (HEAD, MEDIUM, TAIL)])
        of_class, of_group, class_total, group_total = torch.zeros(()), torch.zeros(()), 0.0, 0.0
        for one, y in zip(labelled, labels, strict=True):
            fused = sum((one["w"][k] * bar(one["adjusted"][k]) for k in range(3)), torch.zeros(C))
            of_class = of_class + class_weights[y] * entropy(spread(y, C, 0), fused)
            class_total += class_weights[y]
            group = 0 if y in HEAD else 1 if y in MEDIUM else 2
            of_group = of_group + group_weights[group] * entropy(spread(group, 3, 0), one["v"])
            group_total += group_weights[group]
        return of_class / class_total + of_group / group_total

    def consistency(self, weak: list[dict[str, Any]], strong: list[dict[str, Any]]) -> Tensor:
        total = torch.zeros(())
        om = weights_of_experts(self.counts)
        for k in range(3):
            rows = []
            for one, other in zip(weak, strong, strict=True):
                before, after = (
                    sum((outputs["w"][part] * bar(outputs["by_part"][k][part]) for part in range(3)), torch.zeros(C))
                    for outputs in (one, other)
                )
                rows.append(entropy(spread(int(before.argmax()), C, 0), after))
            total = total + om[k] * mean(rows)
        gates = [
            entropy(spread(int(one["v"].argmax()), 3, 0), other["v"]) for one, other in zip(weak, strong, strict=True)
        ]
        return total + mean(gates)


def weights_of_experts(counts: list[float]) -> tuple[float, float, float]:
    """om by the rule on the shares q; a share over nothing is infinite, nothing over nothing is no number."""
    if sum(counts) == 0:
        return (1 / 3, 1 / 3, 1 / 3)
    q = [count / sum(counts) for count in counts]
    first, second = [q[c] for c in sorted(COMMON)], [q[c] for c in sorted(RARE)]
    third = ratio(max(second), min(first)) > 2 and ratio(max(first), min(second)) < 2
    middle = ratio(max(q), min(q)) < 2
    return (1.0 - float(middle + third == 1), float(middle), float(third))


def ratio(a: float, b: float) -> float:
    return a / b if b > 0 else float("inf") if a > 0 else float("nan")


def pooled(norm: nn.BatchNorm2d, maps: list[Tensor], slope: float, eps: float) -> list[Row]:
    """BatchNorm over all pixels of all images, channel by channel, LeakyReLU, and each image's mean over its pixels."""
    channels = []
    for c in range(len(maps[0])):
        pixels = torch.cat([one[c].flatten() for one in maps])
        average = pixels.sum() / len(pixels)
        variance = ((pixels - average) ** 2).sum() / len(pixels)
        means = []
        for one in maps:
            normed = (one[c].flatten() - average) / (variance + eps).sqrt() * norm.weight[c] + norm.bias[c]
            means.append(torch.where(normed > 0, normed, slope * normed).mean())
        channels.append(means)
    return [torch.stack([means[i] for means in channels]) for i in range(len(maps))]


def dense(layer: nn.Module, row: Row) -> Row:
    """Linear, then SiLU."""
    out = affine(layer[0], row)
    return out / (1 + torch.exp(-out))


def row_softmax(row: Row) -> Row:
    exponentials = torch.exp(row)
    return exponentials / exponentials.sum()


def bar(row: Row) -> Row:
    return row - row.min()


def balanced(numbers: list[int]) -> list[float]:
    raw = [(1 - 0.99) / (1 - 0.99**n) for n in numbers]
    return [value * len(raw) / sum(raw) for value in raw]


def parameters(method: MetaExpert, net: TapNet) -> list[Tensor]:
    return [p for p in (*net.parameters(), *method.parameters()) if p.requires_grad]


def draw(method: MetaExpert, seed: int, num_classes: int = C, requires_grad: bool = False) -> Batch:
    return draw_batch(method.streams(method.cfg), num_classes, SIZES, seed, requires_grad)


@pytest.mark.parametrize("counting", ["true", "indexed"])
@pytest.mark.parametrize("threshold", [0.0, 0.6])
def test_steps_of_all_phases_equal_loops_in_value_and_gradient(counting: str, threshold: float) -> None:
    method, net = make(counting=counting, threshold=threshold)
    reference = Reference(threshold, indexed=counting == "indexed")
    for iteration in range(6):
        batch = draw(method, seed=iteration)
        losses = method.losses(net, batch, step_at(iteration))
        expected, kept = reference.step(method, net, batch, iteration)
        if iteration < 4:
            expected |= dict.fromkeys(("fusion", "fusion_unsup"), torch.zeros(()))
        assert {name: term.item() for name, term in losses.terms.items()} == pytest.approx(
            {name: term.item() for name, term in expected.items()}, rel=1e-9
        )
        assert losses.logs["selected"].item() == pytest.approx(kept)
        assert 0 < kept < 1 or threshold == 0.0
        assert method.counts.tolist() == reference.counts
        total = expected["sup"] + 0.7 * expected["unsup"]
        if iteration >= 4:
            total = total + expected["fusion"] + 0.7 * expected["fusion_unsup"]
        assert losses.total.item() == pytest.approx(total.item(), rel=1e-9)
        inputs = parameters(method, net)
        for grad, expected_grad in zip(gradients(losses.total, inputs), gradients(total, inputs), strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-7, atol=1e-10)
    assert sum(reference.counts) > 0


def test_an_empty_mask_leaves_no_pseudo_label_loss_and_no_counts() -> None:
    method, net = make(threshold=1.0)
    for iteration in range(5):
        losses = method.losses(net, draw(method, seed=iteration), step_at(iteration))
        assert losses.terms["unsup"].item() == 0
        assert losses.logs["selected"].item() == 0
        assert all((g == 0).all() for g in gradients(losses.terms["unsup"], parameters(method, net)))
    assert not method.counts.any()
    assert method.consistency_weights().tolist() == pytest.approx([1 / 3] * 3)  # nothing is known of the pool


def test_one_confident_class_in_the_head_trains_the_first_part_only() -> None:
    method, net = make()
    with torch.no_grad():
        for expert in (net.head, *method.experts.others):
            expert.bias[1] = 100.0
    losses = method.losses(net, draw(method, seed=1), step_at(2))
    assert losses.logs["selected"].item() == 1
    assert method.counts.tolist() == [0, 6, 0, 0, 0]
    assert method.consistency_weights().tolist() == [1, 0, 0]
    with torch.no_grad():
        for expert in (net.head, *method.experts.others):
            expert.bias[1] = 3.0  # less sure, so that there is a gradient to look at
            expert.weight.mul_(0.1)
    losses = method.losses(net, draw(method, seed=1), step_at(2))
    reached = [bool(g.any()) for g in gradients(losses.terms["unsup"], [norm.bias for norm in method.experts.norms])]
    assert reached == [True, False, False]


def test_a_confidence_at_the_threshold_counts_and_a_tie_goes_to_the_first_class() -> None:
    """Experts that say nothing: every confidence is exactly a quarter, every pseudo-label class 0."""
    method, net = make(4, (1, 1, 1, 1), threshold=0.25)
    for expert in (net.head, *method.experts.others):
        nn.init.zeros_(expert.weight)
        nn.init.zeros_(expert.bias)
    losses = method.losses(net, draw(method, seed=1, num_classes=4), step_at(3))
    assert losses.logs["selected"].item() == 1
    assert method.counts.tolist() == [6, 0, 0, 0]
    (slope,) = gradients(losses.terms["unsup"], [net.head.bias])
    torch.testing.assert_close(slope, torch.tensor([0.25 - 1, 0.25, 0.25, 0.25]))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([0, 0, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3]),
        ([5, 5, 5, 5, 5], [0, 1, 0]),
        ([5, 9, 5, 9, 5], [0, 1, 0]),  # 9/5 < 2
        ([2, 9, 1, 4, 2], [1, 0, 0]),  # like the labels
        ([4, 1, 9, 2, 4], [0, 0, 1]),  # the other way round
        ([10, 5, 10, 5, 10], [1, 0, 0]),  # a ratio of exactly two is neither even nor upside down
        ([4, 0, 9, 2, 4], [0, 0, 1]),  # over nothing is infinite
        ([0, 0, 0, 7, 0], [1, 0, 0]),
        ([3, 0, 0, 0, 0], [1, 0, 0]),  # nothing over nothing is no number
    ],
)
def test_which_experts_learn_consistency(counts: list[float], expected: list[float]) -> None:
    method, _ = make()
    method.counts.copy_(torch.tensor(counts))
    assert method.consistency_weights().tolist() == pytest.approx(expected)
    assert weights_of_experts(counts) == pytest.approx(tuple(expected))


def test_counting_counts_where_the_published_code_takes_the_last_of_each_class() -> None:
    """Class 0: confident, then unsure. Class 1: unsure, then confident twice. Class 2: unsure. Class 3: confident."""
    pseudo = torch.tensor([0, 1, 1, 0, 2, 3, 1])
    keep = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    expected = {"true": [1, 2, 0, 1, 0], "indexed": [0, 1, 0, 1, 0]}
    for counting, once in expected.items():
        method, _ = make(counting=counting)
        method.count(pseudo, keep)
        assert method.counts.tolist() == once
        method.count(pseudo, keep)
        assert method.counts.tolist() == [2 * n for n in once]


def test_indexed_counting_can_choose_another_expert() -> None:
    """A pool like the labels looks even if a step adds at most one to a class."""
    pseudo, keep = torch.tensor([1] * 9 + [3] * 5 + [0, 4, 2]), torch.ones(17)
    chosen = {}
    for counting in ("true", "indexed"):
        method, _ = make(counting=counting)
        method.count(pseudo, keep)
        chosen[counting] = method.consistency_weights().tolist()
    assert chosen == {"true": [1, 0, 0], "indexed": [0, 1, 0]}


def test_the_published_gate_keeps_its_start_and_the_meant_one_learns() -> None:
    """Both gates send the same gradients to the network, but only the trained one moves and finds the groups."""
    runs = {}
    for gate in ("trained", "untrained"):
        method, net = make(gate=gate)
        optimizer = build_optimizer(nn.ModuleList([net, method]), OptimConfig(lr=0.1))
        start = [p.detach().clone() for p in method.experts.gate.parameters()]
        batch = draw(method, seed=1)
        first = gradients(method.losses(net, batch, step_at(5)).terms["fusion"], list(net.layers.parameters()))
        for _ in range(60):
            optimizer.zero_grad()
            method.losses(net, batch, step_at(5)).terms["fusion"].backward()
            optimizer.step()
        moved = any(not torch.equal(a, b) for a, b in zip(start, method.experts.gate.parameters(), strict=True))
        assert moved == (gate == "trained")
        names = {f"experts.gate.{name}" for name, _ in method.experts.gate.named_parameters()}
        assert method.untrained_parameters() == (frozenset() if moved else names)
        runs[gate] = (first, method.losses(net, batch, step_at(9)).terms["fusion"].item())
    for grad, expected_grad in zip(runs["trained"][0], runs["untrained"][0], strict=True):
        assert grad.any()
        torch.testing.assert_close(grad, expected_grad)
    assert runs["trained"][1] < runs["untrained"][1] - 0.01


@pytest.mark.parametrize(
    ("num_classes", "cuts"),
    [(2, (1, 2)), (3, (1, 2)), (4, (1, 2)), (10, (2, 4)), (100, (20, 40)), (101, (20, 40)), (127, (25, 51))],
)
def test_borders_by_number_of_classes(num_classes: int, cuts: tuple[int, int]) -> None:
    assert MetaExpertConfig().for_data(num_classes).cuts == cuts
    assert MetaExpertConfig(cuts=(3, 9)).for_data(num_classes).cuts == (3, 9)


def test_borders_must_rise() -> None:
    with pytest.raises(ValueError, match="first of cuts must be smaller"):
        MetaExpertConfig(cuts=(4, 4))


def test_groups_follow_the_labelled_counts() -> None:
    group = make()[0].experts.group.tolist()
    assert [{c for c in range(C) if group[c] == k} for k in range(3)] == [HEAD, MEDIUM, TAIL]
    balanced_labels = make(10, (4,) * 10)[0].experts.group.tolist()
    assert balanced_labels == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2]


def test_two_classes_leave_the_tail_empty() -> None:
    method, net = make(2, (3, 1))
    assert method.experts.group.tolist() == [0, 1]
    assert method.group_weight[2].item() == 0
    for iteration in range(6):
        losses = method.losses(net, draw(method, seed=iteration, num_classes=2), step_at(iteration))
        assert all(torch.isfinite(term) for term in losses.terms.values())


def test_phases_have_a_step_to_count_in_however_short_the_run() -> None:
    method, net = make(warm_up=19 / 256, estimate=1 / 256, threshold=0.0)
    seen, fusing = [], []
    for iteration in range(4):
        before = method.counts.sum().item()
        losses = method.losses(net, draw(method, seed=iteration), step_at(iteration, total=12))
        seen.append(method.counts.sum().item() - before)
        fusing.append(losses.terms["fusion"].item() > 0)
    assert seen == [0, 6, 0, 0]
    assert fusing == [False, False, True, True]


def test_the_gate_waits_for_its_losses_without_weight_decay() -> None:
    """A loss of weight 0 would give zero gradients, on which the optimiser decays the gate all through warm-up."""
    method, net = make()
    optimizer = build_optimizer(nn.ModuleList([net, method]), OptimConfig(lr=0.1, weight_decay=0.1))
    start = [p.detach().clone() for p in method.experts.gate.parameters()]
    for iteration in range(5):
        optimizer.zero_grad()
        method.losses(net, draw(method, seed=iteration), step_at(iteration)).total.backward()
        optimizer.step()
        kept = [torch.equal(a, b) for a, b in zip(start, method.experts.gate.parameters(), strict=True)]
        assert all(kept) if iteration < 4 else not any(kept)


def test_prediction_is_the_mixture_without_prior() -> None:
    """Fresh running statistics are mean 0 and variance 1, and gamma and beta are those of ``make``."""
    method, net = make()
    method.eval(), net.eval()
    images = draw(method, seed=8)["unlabelled"].views["weak"]
    prediction = method.predict(net, images)
    shipped = method.inference_module(net)
    assert torch.equal(shipped(images).logits, prediction.logits)
    taps = net(images).taps
    for i in range(len(images)):
        behind = []
        for norm in method.experts.norms:
            scale, shift = norm.weight / (1 + 1e-5) ** 0.5, norm.bias
            behind.append((taps["map"][i] * scale[:, None, None] + shift[:, None, None]).mean((1, 2)))
        depths = []
        for name in ("stem", "stage1", "stage2", "stage3"):
            normed = taps[name][i] / (1 + 1e-3) ** 0.5
            depths.append(torch.where(normed > 0, normed, 0.1 * normed).mean((1, 2)))
        outputs = Reference().mixture(method.experts.gate, [net.head, *method.experts.others], behind, depths)
        expected = sum((outputs["w"][k] * outputs["logits"][k] for k in range(3)), torch.zeros(C))
        assert prediction.logits[i].tolist() == pytest.approx(expected.tolist(), rel=1e-9)
    assert not torch.allclose(prediction.logits, net(images).logits)


def test_pseudo_labels_and_targets_of_consistency_get_no_gradient() -> None:
    method, net = make(threshold=0.0)
    method.eval(), net.eval()  # no BatchNorm statistics that would tie the views together
    batch = draw(method, seed=1, requires_grad=True)
    losses = method.losses(net, batch, step_at(6))
    weak, strong = batch["unlabelled"].views["weak"], batch["unlabelled"].views["strong"]
    for name in ("unsup", "fusion_unsup"):
        of_weak, of_strong = gradients(losses.terms[name], [weak, strong])
        assert not of_weak.any()
        assert of_strong.any()
