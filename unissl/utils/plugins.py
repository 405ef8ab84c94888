"""Extension points by folder: a class is registered by being defined in a module of the package."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def classes_in_package(package: ModuleType, base: type[T], key: str) -> dict[str, type[T]]:
    """Name -> class for every subclass of ``base`` that a module of ``package`` defines, in alphabetical order; the
    name is its class attribute ``key``. A class without the attribute is an intermediate base and is left out."""
    classes: dict[str, type[T]] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for value in vars(module).values():
            if not (isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__):
                continue
            name = getattr(value, key, None)
            if name is None:
                continue
            if name in classes:
                raise ValueError(f"two classes of {package.__name__} are called {name!r}")
            classes[name] = value
    return dict(sorted(classes.items()))
