"""Configuration machinery: frozen models, TOML differences, ``key=value`` overrides. Knows no component.

Every component declares its settings as a subclass of :class:`Settings` next to its code, which is the only
home of its defaults. A configuration is assembled as a nested dictionary of *differences*, checked once, and
written out fully resolved.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from unissl.errors import UserError, did_you_mean, shortened
from unissl.utils.bounded_io import Malformed, read_text, reject_deep_nesting

ConfigTree = dict[str, Any]
S = TypeVar("S", bound="Settings")

MAX_KEY_DEPTH = 8
"""Dots in the name of a setting."""
MAX_TOML_BYTES = 1 << 20
"""Bytes of a config file; a complete one has three thousand."""


class Settings(BaseModel):
    """Base of every component's settings: frozen, and a wrong key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)


def check(model: type[S], tree: Mapping[str, Any], where: str = "") -> S:
    """Validate a nested dictionary; a mistake raises one sentence with its key and the key that was probably meant."""
    try:
        return model.model_validate(dict(tree))
    except ValidationError as error:
        raise UserError(_sentence(model, error, where)) from None


def _sentence(model: type[BaseModel], error: ValidationError, where: str) -> str:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    key = shortened(".".join(([where] if where else []) + path))
    if first["type"] == "extra_forbidden":
        parent = _model_at(model, path[:-1])
        known = list(parent.model_fields) if parent else []
        return f"Unknown setting '{key}'.{did_you_mean(path[-1], known)}"
    message = shortened(first["msg"].removeprefix("Value error, ").rstrip("."), 500)
    value = first.get("input")
    if isinstance(value, str | int | float | bool):
        message += f" (given: {_short_repr(value)})"
    return f"Setting '{key}': {message}." if path else f"{message}."


def _short_repr(value: str | int | float | bool) -> str:
    try:
        return shortened(repr(value))
    except ValueError:  # more digits than Python writes out
        return "a number of thousands of digits"


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    """The settings model at ``path``, or None if there is none."""
    current: type[BaseModel] | None = model
    for name in path:
        if current is None or name not in current.model_fields:
            return None
        annotation = current.model_fields[name].annotation
        candidates = [annotation, *get_args(annotation)]
        current = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return current


def first_mistake(error: ValidationError) -> str:
    """The first validation error of a file, with its key, short enough for a message."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return shortened(f"{where}: {first['msg']}" if where else first["msg"], 200)


def merge(*trees: Mapping[str, Any]) -> ConfigTree:
    """Nested dictionaries merged key by key; the later one wins."""
    result: ConfigTree = {}
    for tree in trees:
        for key, value in tree.items():
            if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
                result[key] = merge(result[key], value)
            else:
                result[key] = merge(value) if isinstance(value, Mapping) else value
    return result


def without_none(tree: Mapping[str, Any]) -> ConfigTree:
    """A nested dictionary without None and without empty groups; paths as text."""
    result: ConfigTree = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if inner := without_none(value):
                result[key] = inner
        elif value is not None:
            result[key] = str(value) if isinstance(value, Path) else value
    return result


def parse_overrides(assignments: Iterable[str]) -> ConfigTree:
    """``["method.walk_steps=3", "net.name=wrn-10-1"]`` as a nested dictionary; values are TOML, else text."""
    tree: ConfigTree = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UserError(
                f"--set takes key=value, for example method.walk_steps=3, not {shortened(repr(assignment))}."
            )
        try:
            value = parse_toml(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        except Malformed as error:
            raise UserError(f"--set {shortened(key)} has a value that is {error}; give a plain one.") from None
        leaf: Any = value
        for part in reversed(key.strip().split(".", MAX_KEY_DEPTH)):
            leaf = {part: leaf}
        tree = merge(tree, leaf)
    return tree


def read_toml(path: Path, *, pipes: bool = False) -> ConfigTree:
    """A TOML file as a nested dictionary; ``pipes`` as in :func:`unissl.utils.bounded_io.read_text`."""
    try:
        return parse_toml(read_text(path, MAX_TOML_BYTES, pipes=pipes))
    except FileNotFoundError:
        raise UserError(f"There is no config file {path}; check the path given with --config.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give --config a TOML file.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give --config another file.") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML ({shortened(str(error))}); correct that line.") from None


def parse_toml(text: str) -> ConfigTree:
    """``TOMLDecodeError`` for invalid TOML, ``Malformed`` for TOML that cannot be settings."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise Malformed("nested too deep") from None
    except ValueError as error:  # a number of thousands of digits
        raise Malformed(str(error)) from None
    reject_deep_nesting(tree)
    return tree


def to_tree(settings: Settings) -> ConfigTree:
    """Plain values only; None is left out, since TOML has no null and a missing key means the default."""
    return settings.model_dump(mode="json", exclude_none=True)


def to_toml(settings: Settings | ConfigTree) -> str:
    return tomli_w.dumps(to_tree(settings) if isinstance(settings, Settings) else settings)


def fingerprint(tree: Mapping[str, Any]) -> str:
    """A short hash that is equal exactly when two configurations are."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]
