"""Which methods exist: every class in this folder that declares a name is one. Adding a file enrols it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import unissl.methods
from unissl.errors import UserError, did_you_mean, shortened
from unissl.methods.base import Method


@cache
def all_methods() -> dict[str, type[Method]]:
    """Name -> class, in alphabetical order."""
    methods: dict[str, type[Method]] = {}
    for module_info in pkgutil.iter_modules(unissl.methods.__path__):
        module = importlib.import_module(f"unissl.methods.{module_info.name}")
        for value in vars(module).values():
            if not (isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__):
                continue
            if "Config" not in vars(value):
                continue
            name = value.Config.model_fields["name"].default
            if name in methods:
                raise ValueError(f"two methods are called {name!r}")
            methods[name] = value
    return dict(sorted(methods.items()))


def get_method(name: str) -> type[Method]:
    methods = all_methods()
    if name not in methods:
        raise UserError(f"There is no method {shortened(name)!r}.{did_you_mean(name, list(methods))}")
    return methods[name]
