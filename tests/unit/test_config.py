"""Configuration: wrong keys name the right one, overrides, files, merging, identity."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from unissl.config import Settings, check, fingerprint, merge, parse_overrides, read_toml, to_toml, to_tree
from unissl.errors import UserError
from unissl.methods.registry import all_methods
from unissl.methods.sage import FORMS
from unissl.run.config import build_config, config_hash


def sentence(tree: dict[str, object]) -> str:
    with pytest.raises(UserError) as caught:
        build_config(tree)
    return str(caught.value)


@pytest.mark.parametrize(
    ("tree", "key", "meant"),
    [
        ({"sed": 1}, "sed", "seed"),
        ({"optim": {"learning_rat": 1}}, "optim.learning_rat", "Known: backbone_lr_scale, ema_decay, lr, momentum"),
        ({"optim": {"momentun": 0.5}}, "optim.momentun", "Did you mean 'momentum'?"),
        ({"batch": {"labeled": 4}}, "batch.labeled", "Did you mean 'labelled'?"),
        ({"method": {"walk_step": 3}}, "method.walk_step", "Did you mean 'walk_steps'?"),
        ({"method": {"name": "fixmatch", "treshold": 0.9}}, "method.treshold", "Did you mean 'threshold'?"),
        (
            {"method": {"name": "fixmatch", "ridge": 0.9}},
            "method.ridge",
            "Known: name, readout, threshold,",
        ),
    ],
)
def test_a_wrong_key_names_the_right_one(tree: dict[str, object], key: str, meant: str) -> None:
    message = sentence(tree)
    assert message.startswith(f"Unknown setting '{key}'.")
    assert meant in message


@pytest.mark.parametrize(
    ("tree", "parts"),
    [
        ({"optim": {"lr": -1}}, ["'optim.lr'", "greater than 0", "given: -1"]),
        ({"train": {"steps": "many"}}, ["'train.steps'", "valid integer", "given: 'many'"]),
        ({"method": {"form": "papr"}}, ["'method.form'", "'default', 'released', 'paper' or 'consensus'"]),
        ({"method": {"form": ["paper"]}}, ["'method.form'", "'default', 'released', 'paper' or 'consensus'"]),
        ({"method": {"name": "sgae"}}, ["no method 'sgae'", "Did you mean 'sage'?"]),
        ({"method": {"cross": "swapped"}}, ["swapped cross blocks need method.graph_impl = 'dense'"]),
        ({"method": {"normalise": False}}, ["a dropped diagonal without normalise needs method.graph_impl = 'dense'"]),
        ({"optim": 3}, ["'optim' is a group of settings"]),
        ({"method": "fixmatch"}, ["'method' is a group of settings", "method.NAME"]),
    ],
)
def test_a_wrong_value_is_one_sentence(tree: dict[str, object], parts: list[str]) -> None:
    message = sentence(tree)
    assert "\n" not in message and message.endswith((".", "?"))
    assert [part for part in parts if part not in message] == []


def test_settings_are_frozen() -> None:
    config = build_config({})
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3


@pytest.mark.parametrize("name", [*all_methods()])
def test_a_resolved_configuration_survives_its_file(name: str) -> None:
    config = build_config({"seed": 4, "method": {"name": name}, "train": {"steps": 7}})
    config = config.model_copy(update={"method": config.method.for_data(100)})
    again = build_config(tomllib.loads(to_toml(config)))
    assert again == config
    assert config_hash(again) == config_hash(config)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_survives_its_file_with_what_was_set_beside_it(form: str) -> None:
    config = build_config({"method": {"form": form, "n_sigma": 1.5, "num_anchors": 9}})
    assert build_config(tomllib.loads(to_toml(config))) == config


def test_overrides_are_read_as_toml_and_else_as_text() -> None:
    tree = parse_overrides(
        ["method.walk_steps=3", "net.name=wrn-10-1", "method.contrastive=false", "optim.lr = 1e-2", "a.b=[1, 2]"]
    )
    assert tree == {
        "method": {"walk_steps": 3, "contrastive": False},
        "net": {"name": "wrn-10-1"},
        "optim": {"lr": 0.01},
        "a": {"b": [1, 2]},
    }
    assert parse_overrides(["x=1", "x=2"]) == {"x": 2}
    assert parse_overrides(["data.root=/a=b"]) == {"data": {"root": "/a=b"}}
    assert parse_overrides(['data.root="3"']) == {"data": {"root": "3"}}


@pytest.mark.parametrize("text", ["method.walk_steps", "=3", ""])
def test_an_override_without_a_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--set takes key=value"):
        parse_overrides([text])


def test_merge_goes_key_by_key_and_changes_nothing() -> None:
    one, other = {"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "c": {"z": 4}}
    merged = merge(one, other)
    assert merged == {"a": {"x": 1, "y": 3}, "b": 1, "c": {"z": 4}}
    merged["a"]["x"] = merged["c"]["z"] = 9
    assert one == {"a": {"x": 1, "y": 2}, "b": 1} and other == {"a": {"y": 3}, "c": {"z": 4}}
    assert merge({"a": 1}, {"a": {"x": 2}}, {"a": 3}) == {"a": 3}


def test_a_config_file_that_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = \n")
    with pytest.raises(UserError, match="not valid TOML"):
        read_toml(broken)
    broken.write_bytes(b"seed = '\xff'")
    with pytest.raises(UserError, match="not valid TOML"):
        read_toml(broken)
    with pytest.raises(UserError, match="no config file"):
        read_toml(tmp_path / "missing.toml")
    with pytest.raises(UserError, match="is a folder"):
        read_toml(tmp_path)


def test_identity_is_what_decides_the_numbers() -> None:
    config = build_config({"seed": 1})
    assert config_hash(build_config({"seed": 1, "machine": {"threads": 3}})) == config_hash(config)
    assert config_hash(build_config({"seed": 2})) != config_hash(config)
    assert config_hash(build_config({"seed": 1, "method": {"ridge": 0.2}})) != config_hash(config)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_nothing_is_written_for_none() -> None:
    class Example(Settings):
        steps: int | None = None
        name: str = "x"

    assert to_tree(check(Example, {})) == {"name": "x"}
    assert check(Example, tomllib.loads(to_toml(Example()))) == Example()
