"""unissl paper table, unissl paper figure"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from unissl.cli.printing import echo


def table(
    name: str,
    /,
    *,
    format: Literal["md", "csv", "latex", "html"] = "md",
    scale: Literal["full", "mini", "mid"] = "full",
    methods: str | None = None,
    columns: str | None = None,
    seeds: str | None = None,
    runs: str = "runs/paper",
    out: Path | None = None,
) -> None:
    """Print the table of an experiment from its finished runs, with the published numbers.

    Means and sample standard deviations over the seeds that are finished, of three accuracies: last, mean of the last
    20, best. At full size the published numbers are in the same table, else in a table of their own.

    Example: unissl paper table table1 --scale mini

    Parameters
    ----------
    name
        An experiment (see `unissl paper list`), or gain for the average gain over data sets.
    format
        md, latex and html for people; csv for programs, a number per line.
    scale
        Which runs: full, mini or mid.
    methods
        Methods (rows), comma-separated, e.g. sage,fixmatch.
    columns
        Columns, comma-separated, e.g. cifar10-a100.
    seeds
        Seeds, e.g. 0,1,2 or 0-4; by default those that are finished.
    runs
        Folder of all runs of all experiments: the --out of `unissl paper run`.
    out
        File to write; an existing one is not overwritten. By default the table is printed.
    """
    from unissl.errors import UserError

    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    from unissl.cli.paper_run import parse_seeds, split_names
    from unissl_paper.grid.plan import Selection
    from unissl_paper.tables import make_tables
    from unissl_paper.tables.sheet import render

    selection = Selection(split_names(methods), split_names(columns), parse_seeds(seeds))
    text = render(make_tables(name, scale, runs, selection), format)
    if out is None:
        echo(text, end="")
        return
    from unissl.utils.atomic import write_text

    write_text(out, text, overwrite=False)
    echo(f"written to {out}")


def figure(
    name: str,
    /,
    *folders: str,
    scale: Literal["full", "mini", "mid"] = "full",
    runs: str = "runs/paper",
    root: str | None = None,
    out: Path | None = None,
) -> None:
    """Draw a figure of the paper from the finished runs of its experiment, or from any run folders.

    Runs that differ only in the seed are one series. `NAME=FOLDER` gives a run a name in the legend.

    Example: unissl paper figure pseudo-labels runs/fixmatch SAGE=runs/sage --out pseudo-labels.pdf

    Parameters
    ----------
    name
        settings, pseudo-labels, tsne, silhouette, similarity, stability, ablation, ablation-pseudo-labels, gri-losses,
        lambda, beta, anchors-k, failure-boundary or overhead.
    folders
        Run folders; by default the experiment's runs of the given scale.
    scale
        Which runs of the experiment: full, mini or mid.
    runs
        Folder of all runs of all experiments: the --out of `unissl paper run`.
    root
        For the figure settings without run folders: folder of the data set.
    out
        File to write, .svg, .pdf or .png; an existing one is not overwritten. By default NAME.svg.
    """
    from unissl.errors import UserError

    path = out or Path(f"{name}.svg")
    if path.exists():
        raise UserError(f"{path} exists already; choose another --out.")
    from unissl.cli.process import prepare_process

    prepare_process()
    from unissl_paper.figures.registry import draw_experiment, draw_runs, get_figure
    from unissl_paper.figures.style import check_format, paper_style, save

    get_figure(name)
    check_format(path)
    with paper_style():
        drawn = draw_runs(name, folders) if folders else draw_experiment(name, scale, runs, root)
        save(drawn, path)
    echo(drawn.caption)
    echo(f"written to {path}")
