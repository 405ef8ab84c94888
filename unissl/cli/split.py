"""unissl split"""

from __future__ import annotations

from pathlib import Path

from unissl.cli.options import DataOptions, Overrides, combine_overrides
from unissl.utils.printing import echo


def split(
    *,
    data: DataOptions | None = None,
    recipe: str | None = None,
    config: Path | None = None,
    out: Path | None = None,
    set_: Overrides = (),
) -> None:
    """Show how a data set is split into labelled images and unlabelled pool; --out also writes the split.

    Example: unissl split --data digits --pool-distribution long-tailed --gamma 10 --max-count 110 --out split.json

    Args:
        recipe: Starting point of the configuration; by default the one that suits the data.
        config: TOML file with differences from the recipe.
        out: File to write the split to (JSON); an existing one is not overwritten.
        set_: Any other setting as key=value.
    """
    import numpy as np
    from rich.table import Table

    from unissl.autoconfig.recipes import with_recipe
    from unissl.errors import UserError
    from unissl.run.config import build_config, fit_to_data
    from unissl.run.inputs import build_split
    from unissl.splits import write_split
    from unissl.splits.open_set import load_data
    from unissl.types import OOD, UNLABELLED
    from unissl.utils.printing import show

    settings = build_config(with_recipe(combine_overrides((data or DataOptions()).tree(), config, set_), recipe))
    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    dataset = load_data(settings.data, settings.split)
    settings = fit_to_data(settings, dataset)
    names = dataset.train.class_names
    rows = build_split(settings, dataset)
    truth = dataset.train.labels[rows.unlabelled]
    table = Table("class", "labelled", "pool", title=f"{dataset.name}, seed {settings.seed}")
    pool = np.bincount(truth[truth >= 0], minlength=len(names))
    for name, labelled, unlabelled in zip(names, rows.labelled_counts, pool, strict=True):
        table.add_row(name, str(labelled), str(unlabelled) if (truth != UNLABELLED).all() else "?")
    if (truth == OOD).any():
        table.add_row("out-of-distribution", "0", str((truth == OOD).sum()))
    table.add_row("all", str(len(rows.labelled)), str(len(rows.unlabelled)), end_section=True)
    show(table)
    if out is not None:
        write_split(rows, out, overwrite=False)
        echo(f"written to {out}")
