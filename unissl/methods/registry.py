"""Which methods exist: every class in this folder that declares a name is one. Adding a file enrols it."""

from __future__ import annotations

from functools import cache

import unissl.methods
from unissl.errors import UserError, did_you_mean, shortened
from unissl.methods.base import Method
from unissl.utils.plugins import classes_in_package


@cache
def all_methods() -> dict[str, type[Method]]:
    """Name -> class, in alphabetical order."""
    return classes_in_package(unissl.methods, Method, "name")


def get_method(name: str) -> type[Method]:
    methods = all_methods()
    if name not in methods:
        raise UserError(f"There is no method {shortened(name)!r}.{did_you_mean(name, list(methods))}")
    return methods[name]
