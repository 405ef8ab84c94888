"""What the four forms of SAGE are: the differences between the paper and the released code, one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from method_cases import make_batches, make_split, make_state
from torch import Tensor, nn

from unissl.methods.sage import SAGE, SAGEConfig
from unissl.nets import build
from unissl.training.ema import Ema
from unissl.training.learner import Learner
from unissl.training.optim import OptimConfig, build_optimizer, learning_rate, set_learning_rate
from unissl.training.trainer import step_at
from unissl.types import DataInfo

FORMS = ("paper", "released", "default", "consensus")
TABLE: dict[str, tuple[Any, Any, Any]] = {
    # setting: (paper, released, default); a pair is (up to ten classes, more)
    "normalise": (False, True, True),
    "sim_temperature": ((1.0, 1.0), (0.5, 1.0), (0.5, 1.0)),
    "graph_temperature": ((1.0, 1.0), (0.25, 0.5), (0.25, 0.5)),
    "self_bias": (0.0, 2.0, 2.0),
    "nodes": ("weak", "both", "both"),
    "cross": ("stacked", "swapped", "stacked"),
    "diagonal": ("keep", "drop", "drop"),
    "walk_steps": ((5, 5), (5, 3), (5, 3)),
    "graph_impl": ("thin", "dense", "thin"),
    "smoothing": (0.0, 0.1, 0.1),
    "smoothing_phase": (30 / 256, 30 / 256, 30 / 256),
    "n_sigma": (1.0, 2.0, 2.0),
    "drp_momentum": (0.999, 0.999, 0.999),
    "prior_adjustment": (False, True, True),
    "labelled_strong": (False, True, False),
    "projection_init": ("torch", "xavier", "torch"),
    "ridge": (0.1, 0.1, 0.1),
    "num_anchors": (None, None, None),
    "anchor_seed": (None, None, None),
    "auxiliary": (True, True, True),
    "weighting": ("drp", "drp", "drp"),
    "contrastive": (True, True, True),
    "consistency": (True, True, True),
    "readout": ("head", "head", "head"),
    "pseudo_labels": ("head", "head", "head"),
}
CONSENSUS = {"pseudo_labels": "consensus", "readout": "consensus"}
"""In which the form of that name differs from ``default``."""
NOT_PART_OF_A_FORM = {"name", "form", "threshold"}


def sage_on_wrn(num_classes: int, **settings: Any) -> Learner:
    net = build("wrn-28-2", num_classes)
    info = DataInfo(num_classes, net.feat_dim, 100, (4,) * num_classes)
    return Learner(net, SAGE(SAGEConfig(**settings), info))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("num_classes", [10, 100])
@pytest.mark.parametrize("form", FORMS)
def test_settings_of_the_forms(form: Any, num_classes: int) -> None:
    config = SAGEConfig(form=form).for_data(num_classes)
    column = FORMS.index("default" if form == "consensus" else form)
    expected = {setting: values[column] for setting, values in TABLE.items()}
    expected |= CONSENSUS if form == "consensus" else {}
    expected = {k: v[num_classes > 10] if isinstance(v, tuple) else v for k, v in expected.items()}
    assert config.model_dump(exclude=NOT_PART_OF_A_FORM) == expected


def test_the_border_is_at_ten_classes() -> None:
    assert [SAGEConfig().for_data(c).walk_steps for c in (2, 10, 11)] == [5, 5, 3]


@pytest.mark.parametrize("form", FORMS)
def test_a_setting_beside_the_form_wins(form: Any) -> None:
    config = SAGEConfig(form=form, walk_steps=7, n_sigma=3.0, graph_temperature=0.3).for_data(100)
    assert (config.walk_steps, config.n_sigma, config.graph_temperature) == (7, 3.0, 0.3)


@pytest.mark.parametrize("num_classes", [10, 100])
@pytest.mark.parametrize("form", FORMS)
def test_initial_state(form: str, num_classes: int) -> None:
    """DRP starts at mean 1/C and variance 1; K = d + 1 = 129 anchors; the adjustment is log pi_l or nothing."""
    method = sage_on_wrn(num_classes, form=form).method
    assert isinstance(method, SAGE)
    for tracker in (method.drp_confidence, method.drp_margin):
        assert [tracker.mean.item(), tracker.var.item()] == pytest.approx([1 / num_classes, 1.0])
    assert method.anchors.shape == (129, 128)
    prior = 0.0 if form == "paper" else -math.log(num_classes)
    assert method.log_prior.tolist() == pytest.approx([prior] * num_classes)
    assert method.project is not None
    norm = method.project[1]
    assert isinstance(norm, nn.BatchNorm1d) and (norm.momentum, norm.eps) == (0.001, 0.001)
    activation = method.project[2]
    assert isinstance(activation, nn.LeakyReLU) and activation.negative_slope == 0.1


@pytest.mark.parametrize("form", FORMS)
def test_initial_projection_head(form: str) -> None:
    """The released network draws every linear layer from Xavier's normal distribution and sets its bias to zero;
    PyTorch draws both from a uniform one of a third of the variance, so that no weight exceeds 1 / sqrt(d)."""
    torch.manual_seed(0)
    method = sage_on_wrn(10, form=form).method
    assert isinstance(method, SAGE) and method.project is not None
    for layer in (method.project[0], method.project[3]):
        assert isinstance(layer, nn.Linear)
        largest, std = layer.weight.abs().max().item(), layer.weight.std().item()
        if form == "released":
            assert not layer.bias.any()
            assert std == pytest.approx(math.sqrt(2 / 256), rel=0.03) and largest > 3 * math.sqrt(2 / 256)
        else:
            assert layer.bias.any()
            assert std == pytest.approx(math.sqrt(1 / (3 * 128)), rel=0.03) and largest <= math.sqrt(1 / 128)


@pytest.mark.parametrize("form", FORMS)
def test_images_of_one_forward_pass(form: Any) -> None:
    """The released form passes the labelled strong view too; the auxiliary head never sees the weak unlabelled one."""
    split = make_split(4)
    config = SAGEConfig(form=form).for_data(4)
    learner, batches = make_state(config, split).learner, make_batches(config, split)
    assert isinstance(learner.method, SAGE) and learner.method.aux is not None
    seen: dict[str, list[int]] = {"net": [], "auxiliary": []}

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name].append(len(inputs[0]))

        return hook

    learner.net.register_forward_pre_hook(note("net"))
    learner.method.aux.register_forward_pre_hook(note("auxiliary"))
    learner.losses(batches.at(0), step_at(0, 4, 1))
    labelled, unlabelled = batches.config.labelled, batches.config.unlabelled
    views_of_labelled = 2 if form == "released" else 1
    assert seen["net"] == [views_of_labelled * labelled + 2 * unlabelled]
    assert sorted(seen["auxiliary"]) == [labelled, unlabelled]


@pytest.mark.parametrize(
    ("num_classes", "released", "inference"), [(10, 1_502_712, 1_467_626), (100, 1_525_932, 1_479_236)]
)
def test_parameter_counts(num_classes: int, released: int, inference: int) -> None:
    """The published count includes a 4-way rotation head that takes part in nothing and that is left out here."""
    learner = sage_on_wrn(num_classes)
    rotation_head = 128 * 4 + 4
    assert count(learner) + rotation_head == released
    assert count(learner.method.inference_module(learner.net)) == inference


@pytest.mark.parametrize(
    ("iteration", "rate"), [(0, 0.03), (65536, 0.02825), (131072, 0.02319), (196608, 0.01542), (262144, 0.00585)]
)
def test_learning_rate(iteration: int, rate: float) -> None:
    assert learning_rate(OptimConfig(), iteration, 2**18) == pytest.approx(rate, abs=5e-6)


def test_weight_decay_is_for_tensors_of_two_or_more_dimensions() -> None:
    learner = sage_on_wrn(10)
    decayed, plain = build_optimizer(learner, OptimConfig()).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (5e-4, 0.0)
    names = {id(p): name for name, p in learner.named_parameters()}
    in_groups = [{names[id(p)] for p in group["params"]} for group in (decayed, plain)]
    assert in_groups[0] == {name for name, p in learner.named_parameters() if p.ndim >= 2}
    assert in_groups[0] | in_groups[1] == set(names.values()) and not in_groups[0] & in_groups[1]
    assert {"net.head.bias", "net.stages.stem.bias", "net.stages.map.0.weight", "method.aux.bias"} <= in_groups[1]
    assert all(group["momentum"] == 0.9 and group["nesterov"] for group in (decayed, plain))


@pytest.mark.usefixtures("double")
def test_optimiser_and_average_equal_their_recursions() -> None:
    """SGD with Nesterov momentum and decay, its cosine rate and the EMA, all by hand on one weight and one bias."""
    layer = nn.Linear(1, 1)
    config = OptimConfig(lr=0.1, weight_decay=0.01, ema_decay=0.7)
    optimizer, ema, total = build_optimizer(layer, config), Ema(layer, config.ema_decay), 5
    values = [layer.weight.item(), layer.bias.item()]
    shadow, velocity = list(values), [0.0, 0.0]
    for t in range(total):
        set_learning_rate(optimizer, learning_rate(config, t, total))
        optimizer.zero_grad()
        # d/dx of the sum is 2x, so each tensor follows its own recursion.
        torch.autograd.backward(layer.weight.square().sum() + layer.bias.square().sum())
        optimizer.step()
        ema.update(layer)
        rate = 0.1 * math.cos(7 * math.pi * t / (16 * total))
        for i, decay in enumerate((0.01, 0.0)):
            slope = 2 * values[i] + decay * values[i]
            velocity[i] = slope if t == 0 else 0.9 * velocity[i] + slope
            values[i] -= rate * (slope + 0.9 * velocity[i])
            shadow[i] = 0.7 * shadow[i] + 0.3 * values[i]
        assert [layer.weight.item(), layer.bias.item()] == pytest.approx(values, rel=1e-12)
        assert [ema.shadow["weight"].item(), ema.shadow["bias"].item()] == pytest.approx(shadow, rel=1e-12)


def test_default_average_of_the_protocol() -> None:
    assert OptimConfig().ema_decay == 0.999
    layer = nn.Linear(2, 2)
    ema, start = Ema(layer, OptimConfig().ema_decay), layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight += 1
    ema.update(layer)
    torch.testing.assert_close(ema.shadow["weight"], start + 0.001)
