"""Refusals that scikit-learn understands: to it, bad input is a ValueError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unissl.errors import UserError


class RefusedInput(UserError, ValueError):
    """A UserError for those who expect a ValueError."""


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Let every UserError of the package come out as a ValueError too."""
    try:
        yield
    except RefusedInput:
        raise
    except UserError as error:
        raise RefusedInput(str(error)) from error
