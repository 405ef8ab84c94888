"""Full-size configurations against the published hyper-parameters, written out here once more (sections 2-23)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from unissl.config import to_tree
from unissl_paper.experiments import EXPERIMENTS
from unissl_paper.grid.plan import PlannedRun, Selection, plan

COMMON = {
    "augment.pad": 4, "augment.flip": True, "augment.randaugment_n": 3, "augment.geometry_scale": 1.0,
    "augment.cutout_max": 0.5,
    "net.name": "wrn-28-2", "net.bn_momentum": 0.001, "net.freeze_backbone": False, "net.pretrained": False,
    "batch.labelled": 64, "batch.unlabelled": 448, "batch.evaluation": 256,
    "optim.name": "sgd", "optim.lr": 0.03, "optim.momentum": 0.9, "optim.weight_decay": 5e-4,
    "optim.schedule": "cosine", "optim.ema_decay": 0.999,
    "train.steps": 262144, "train.evaluations": 256, "train.method_periods": 256, "train.log_every": 256,
    "train.precision": "float32",
    "split.labels_per_class": 4, "split.labelled_distribution": "uniform", "split.gamma_l": 1.0,
}  # fmt: skip
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "food101": {"augment.pad": 0, "augment.crop": 32},
    "cifar10-n10-a100": {"split.labels_per_class": 1},
    "cifar10-resnet50-a100": {"net.name": "resnet-50"},
    "imagenet127": {"split.labelled_fraction": 0.1, "split.pool_distribution": "natural"},
    "ssb": {"batch.unlabelled": 128},
    "scomatch": {"batch.unlabelled": 128},
    "calimatch": {
        "batch.labelled": 50, "batch.unlabelled": 50, "optim.name": "adam", "optim.lr": 3e-3,
        "optim.weight_decay": 0.0, "optim.schedule": "step", "optim.ema_decay": 0.0,
    },
}  # fmt: skip
"""By data set, setting or method."""

SPLITS = {
    "cifar10": (4996, {50, 100, 150, 300}),
    "cifar100": (496, {5, 10, 15}),
    "svhn": (4996, {150}),
    "food101": (496, {15}),
}
"""M_max and the values of gamma_u."""

METHODS: dict[str, dict[str, Any]] = {
    "fixmatch": {"threshold": 0.95, "unsup_weight": 1.0},
    "freematch": {"momentum": 0.999, "fair_weight": 0.05, "max_threshold": 1.0, "unsup_weight": 1.0},
    "softmatch": {"momentum": 0.999, "n_sigma": 2.0, "align": True, "unsup_weight": 1.0},
    "cgmatch": {
        "queue": 1000, "warm_up": 2048 / 262144, "scan_every": 1, "momentum": 0.999, "ambiguous_weight": 1.0,
        "exponent": 0.7, "unsup_weight": 1.0,
    },
    "acr": {"threshold": 0.95, "strength": 2.0, "momentum": 0.9},
    "simpro": {"threshold": 0.95, "tau": 1.0, "momentum": 0.9},
    "cdmad": {"threshold": 0.95, "debias_from": 51 / 256, "soft": False},
    "meta-expert": {
        "threshold": 0.95, "taus": [0.0, 2.0, 4.0], "balance": 0.99, "warm_up": 19 / 256, "estimate": 1 / 256,
        "bn_momentum": 0.001,
    },
    "cpg": {
        "warm_up": 30 / 256, "update_every": 5 / 256, "threshold": 0.95, "agreement": 0.8, "smoothing": 0.1,
        "copies": 10,
    },
    "fully-supervised": {},
    "logit-adjust": {},
    "labels-only": {},
    "ssb": {
        "threshold": 0.95, "warm_up": 475 / 512, "entropy_weight": 0.1, "consistency_weight": 0.5,
        "negative_threshold": 0.01, "hidden": 1024,
    },
    "scomatch": {"threshold": 0.95, "outlier_min": 0.75, "outlier_max": 0.95, "queue": 256, "pushes": 1},
    "calimatch": {
        "threshold": 0.95, "inlier_threshold": 0.5, "ova_weight": 0.1, "ova_cal_weight": 0.1, "socr_weight": 0.5,
        "cal_weight": 1.0, "fix_weight": 1.0, "bins": 30, "temperature": 1.5, "warm_up": 5 / 100,
    },
    "sage": {
        "ridge": 0.1, "self_bias": 2.0, "smoothing": 0.1, "smoothing_phase": 30 / 256, "drp_momentum": 0.999,
        "n_sigma": 2.0, "auxiliary": True, "weighting": "drp", "contrastive": True, "consistency": True,
        "normalise": True, "nodes": "both", "diagonal": "drop", "prior_adjustment": True,
    },
}  # fmt: skip
FEW, MANY = (
    {"sage": {"walk_steps": 5, "sim_temperature": 0.5, "graph_temperature": 0.25}, "logit-adjust": {"tau": 2.5}},
    {"sage": {"walk_steps": 3, "sim_temperature": 1.0, "graph_temperature": 0.5}, "logit-adjust": {"tau": 1.5}},
)
"""What the number of classes decides: up to ten, and more."""


def flat(tree: dict[str, Any], where: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{where}{key}.") if isinstance(value, dict) else {f"{where}{key}": value}
    return found


@cache
def all_runs() -> tuple[PlannedRun, ...]:
    return tuple(run for one in EXPERIMENTS.values() for run in plan(one, "full"))


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    return {key: found.get(key) for key, value in wanted.items() if found.get(key) != value}


def test_protocol_of_every_run() -> None:
    for run in all_runs():
        tree = flat(to_tree(run.config))
        data, method = tree["data.name"], tree["method.name"]
        wanted = dict(COMMON)
        for place in (data, run.column.name, method):
            wanted |= EXCEPTIONS.get(place, {})
        assert differing(tree, wanted) == {}, (run.experiment.name, run.column.name, method)
        assert "data.image_size" not in tree  # 32 x 32 as they are, or as their loader makes them
        assert tree["split.reveal_pool_labels"] == (method in ("fully-supervised", "logit-adjust"))


def test_splits_of_every_run() -> None:
    for run in all_runs():
        split, data = run.config.split, run.config.data.name
        if data in SPLITS:
            largest, gammas = SPLITS[data]
            assert split.max_count == largest and split.gamma in gammas
            kind = {"u": "uniform", "lt": "long-tailed", "a": "arbitrary"}[
                run.column.name.split("-")[-1].rstrip("0123456789")
            ]
            assert split.pool_distribution == kind and run.column.name.endswith(str(int(split.gamma)))
        else:
            assert split.max_count is None and data in ("stl10", "imagenet127")
        assert (split.ood_data, split.ood_data_classes) == (
            ("imagenet127", 10) if run.column.name == "cifar10-open-a100" else (None, None)
        )


def test_hyper_parameters_of_every_plain_method() -> None:
    seen = set()
    for run in all_runs():
        method, data = run.config.method.name, run.config.data.name
        if run.variant.name != method:
            continue  # forms and ablations have a test of their own
        seen.add(method)
        by_classes = FEW if data in ("cifar10", "svhn", "stl10") else MANY
        wanted = METHODS[method] | by_classes.get(method, {})
        if method == "cgmatch" and data == "svhn":
            wanted = wanted | {"threshold_min": 0.9, "threshold_max": 0.95}
        if method == "meta-expert" and by_classes is FEW:
            wanted = wanted | {"cuts": [2, 4]}
        assert differing(to_tree(run.config.method), wanted) == {}, (method, data)
        assert run.seed in (0, 1, 2)
    assert seen == set(METHODS)


@pytest.mark.parametrize(
    ("experiment", "variant", "wanted"),
    [
        ("table4", "v1", {"auxiliary": False, "weighting": "none", "contrastive": False, "consistency": False}),
        ("table4", "v2", {"auxiliary": True, "weighting": "none", "contrastive": False, "consistency": False}),
        ("table4", "v3", {"auxiliary": True, "weighting": "drp", "contrastive": False, "consistency": False}),
        ("gri-losses", "no-con", {"contrastive": False, "consistency": True}),
        ("gri-losses", "no-sim", {"contrastive": True, "consistency": False}),
        ("lambda", "lambda-0.5", {"ridge": 0.5}),
        ("beta", "beta-8", {"walk_steps": 8}),
        ("anchors-k", "k-50", {"num_anchors": 50}),
        ("forms", "released", {"cross": "swapped", "graph_impl": "dense", "labelled_strong": True, "self_bias": 2.0}),
        ("forms", "text", {"normalise": False, "nodes": "weak", "self_bias": 0.0, "smoothing": 0.0, "n_sigma": 1.0}),
        ("exact", "dense", {"graph_impl": "dense", "cross": "stacked"}),
        ("anchors", "k-50-seed-1", {"num_anchors": 50, "anchor_seed": 1}),
        ("ports", "meta-expert-port", {"gate": "untrained", "counting": "indexed", "warm_up": 1 / 256}),
        ("ports", "cdmad-port", {"port": True}),
    ],
)
def test_forms_and_ablations_differ_as_they_say(experiment: str, variant: str, wanted: dict[str, Any]) -> None:
    runs = [run for run in plan(EXPERIMENTS[experiment], "full") if run.variant.name == variant]
    assert runs
    for run in runs:
        assert differing(to_tree(run.config.method), wanted) == {}


def test_runs_that_experiments_share_have_one_key() -> None:
    by_cell = {(run.experiment.name, run.variant.name, run.column.name, run.seed): run.key for run in all_runs()}
    cell = ("sage", "cifar10-a100", 2)
    shared = {
        by_cell[name, *cell] for name in ("table1", "table4", "gri-losses", "lambda", "beta", "anchors-k", "forms")
    }
    assert len(shared) == 1
    assert by_cell["motivation", "cpg", "svhn-a150", 2] == by_cell["table3", "cpg", "svhn-a150", 2]
    assert by_cell["table1", "sage", "cifar10-a100", 1] not in shared


def test_the_claim_at_mid_scale() -> None:
    """As published but for network, batches, steps and evaluations. A change of a hash would repeat runs of hours."""
    full, mid = (plan(EXPERIMENTS["claim"], scale, Selection()) for scale in ("full", "mid"))
    methods = ["sage", "fixmatch", "freematch", "cpg", "cgmatch", "labels-only"]
    assert [run.config.method.name for run in mid] == methods and {run.seed for run in mid} == {2}
    for one, other in zip(full, mid, strict=True):
        before, after = flat(to_tree(one.config)), flat(to_tree(other.config))
        assert {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)} == {
            "net.name": "wrn-10-1",
            "batch.labelled": 16,
            "batch.unlabelled": 112,
            "train.steps": 2**15,
            "train.evaluations": 64,
            "train.checkpoint_every": 512,
        }
        assert after["train.diagnostics"] and (after["optim.ema_decay"], after["net.bn_momentum"]) == (0.999, 0.001)
    assert [run.key for run in mid] == [
        *("e986770b4f4edf86", "983c6bedef03bb79", "81551ace705731a5"),
        *("099b1f4617a58d9b", "77bd0ef8d0cc3093", "43221cc4fadccf6e"),
    ]
