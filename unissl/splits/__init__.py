"""Splits into labelled images and the unlabelled pool: class distributions, the seeded draw, and the split file."""

from unissl.splits.distributions import Distribution, class_counts
from unissl.splits.file import read_split, write_split
from unissl.splits.make import SplitConfig, make_split

__all__ = ["Distribution", "SplitConfig", "class_counts", "make_split", "read_split", "write_split"]
