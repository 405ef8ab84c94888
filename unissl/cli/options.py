"""Flags that several verbs share, and how they become one configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from unissl.errors import UserError

if TYPE_CHECKING:  # brings pydantic, which --help can do without
    from unissl.config import ConfigTree


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which images, and how they are split."""

    data: str | None = None
    "Name of a data set (see `unissl datasets`), a folder of images, or a parquet file."
    root: Path | None = None
    "Folder of the data set, if it is not in the usual place."
    images: Path | None = None
    "Folder of your own images."
    labels: Path | None = None
    "CSV file with the columns file and label, and optionally group, for --images."
    test: Path | None = None
    "Test images: a folder with one subfolder per class, or a parquet file."
    groups: Literal["folder"] | None = None
    "Keep the images of each folder together in folds and hold-outs; a column group of the label file does the same."
    holdout: int | None = None
    "Set this many labelled images aside for testing."
    labels_per_class: int | None = None
    "Labelled images per class."
    pool_distribution: str | None = None
    "Class distribution of a simulated unlabelled pool: uniform, long-tailed, arbitrary or natural."
    gamma: float | None = None
    "Imbalance ratio of the unlabelled pool (largest / smallest class)."
    max_count: int | None = None
    "Images of the largest class of the pool."
    seed: int | None = None
    "Random seed for split, initialisation, batch order and augmentation."

    def tree(self) -> ConfigTree:
        from unissl.config import without_none
        from unissl.data import names

        data: dict[str, Any] = {"name": self.data, "root": self.root, "labels": self.labels, "test": self.test}
        data |= {"test_holdout": self.holdout, "groups": self.groups}
        if self.images is not None:
            if self.data is not None:
                raise UserError("Give either --data or --images, not both.")
            data |= {"name": "folder", "root": self.images}
        elif self.data is not None and self.data not in names() and (Path(self.data).exists() or "/" in self.data):
            name = "parquet" if Path(self.data).suffix == ".parquet" else "folder"
            data |= {"name": name, "root": self.data}
        names_of_split = ("labels_per_class", "pool_distribution", "gamma", "max_count")
        split = {name: getattr(self, name) for name in names_of_split}
        return without_none({"data": data, "split": split, "seed": self.seed})


Overrides = Annotated[tuple[str, ...], Parameter(name="--set", negative="", consume_multiple=False)]


def combine_overrides(flags: ConfigTree, config: Path | None, overrides: tuple[str, ...]) -> ConfigTree:
    """Config file, then flags, then ``--set``: the later wins."""
    from unissl.config import merge, parse_overrides, read_toml
    from unissl.run.budget import replace_budget

    budget = flags.get("train", {})
    if "steps" in budget and "minutes" in budget:
        raise UserError("Give either --steps or --minutes, not both.")
    tree: ConfigTree = {}
    for layer in ({} if config is None else read_toml(config, pipes=True), flags, parse_overrides(overrides)):
        replace_budget(tree, layer)
        tree = merge(tree, layer)
    return tree
