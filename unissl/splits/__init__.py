"""Which images are labelled and which are the pool: class mixes, the seeded draw, and the file that records it."""

from unissl.splits.distributions import Distribution, class_counts
from unissl.splits.file import read_split, write_split
from unissl.splits.make import SplitConfig, make_split

__all__ = ["Distribution", "SplitConfig", "class_counts", "make_split", "read_split", "write_split"]
