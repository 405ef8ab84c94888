"""Recipes: what a method declares about its runs is in them, and its own optimiser wins over theirs."""

from __future__ import annotations

from typing import Any

import pytest

from unissl.autoconfig.recipes import RECIPES, paper, short, with_recipe
from unissl.methods.registry import all_methods
from unissl.run.config import build_config

ADAM = {"name": "adam", "lr": 3e-3, "weight_decay": 0.0, "schedule": "step", "ema_decay": 0.0}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("method", all_methods())
def test_every_recipe_is_a_configuration_of_every_method(recipe: str, method: str) -> None:
    config = build_config(with_recipe({"method": {"name": method}}, recipe))
    assert config.method.name == method


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_own_optimiser_of_a_method_wins_over_a_recipes(recipe: str) -> None:
    """The recipe photos has a learning rate of 0.2 for SGD, with which Adam would only diverge."""
    assert with_recipe({"method": {"name": "calimatch"}}, recipe)["optim"] == ADAM
    user = {"method": {"name": "calimatch"}, "optim": {"lr": 0.01}}
    assert with_recipe(user, recipe)["optim"] == {**ADAM, "lr": 0.01}
    assert "name" not in with_recipe({"method": {"name": "sage"}}, recipe).get("optim", {})


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("sage", {"drp_momentum": 0.99, "form": "consensus"}),
        ("meta-expert", {"bn_momentum": 0.1}),
        ("cgmatch", {"momentum": 0.99, "queue": 16}),
        ("freematch", {"momentum": 0.99}),
        ("softmatch", {"momentum": 0.99}),
        ("ssb", {"warm_up": 0.5}),
        ("cpg", {"min_votes_fraction": 12 / 185}),
        ("fixmatch", {}),
    ],
)
def test_settings_of_short_runs(method: str, expected: dict[str, Any]) -> None:
    assert short(method).get("method", {}) == expected


def test_on_features_sage_has_its_default_form() -> None:
    """Distillation replaces the classifier, so there is nothing to refit."""
    frozen = {"net": {"freeze_backbone": True, "name": "efficientnet-lite0"}}
    for tree in (with_recipe({}, "photos"), with_recipe(frozen, "short")):
        assert tree["method"] == {"drp_momentum": 0.99, "form": "default"}
    for form in ("released", "paper"):
        assert build_config(with_recipe({"method": {"form": form}}, "short")).method.readout == "head"


def test_settings_of_the_published_runs() -> None:
    assert "method" not in paper("sage")
    assert paper("cgmatch")["method"] == {"scan_every": 1}
    assert paper("ssb")["batch"] == paper("scomatch")["batch"] == {"unlabelled": 128}
    assert paper("calimatch")["batch"] == {"labelled": 50, "unlabelled": 50}


def test_periods_of_methods_are_as_many_as_in_the_published_protocol() -> None:
    assert {name: recipe("simpro")["train"]["method_periods"] for name, recipe in RECIPES.items()} == {
        "paper": 256,
        "short": 10,
        "photos": 10,
        "digits": 20,
    }
