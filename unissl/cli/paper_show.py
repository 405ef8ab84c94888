"""unissl paper table, unissl paper figure: what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def table(
    name: str,
    /,
    *,
    format: Literal["md", "csv", "latex", "html"] = "md",
    scale: Literal["full", "mini"] = "full",
    only: str | None = None,
    settings: str | None = None,
    seeds: str | None = None,
    runs: str = "runs/paper",
    out: Path | None = None,
) -> None:
    """Print the table of an experiment from its finished runs, holes shown, with the published numbers.

    Means and sample deviations over seeds of accuracy three ways: last, mean of the last 20, best. Published numbers
    stand beside ours at full size only; in miniature they have a table of their own.

    Example: unissl paper table table1 --scale mini

    Parameters
    ----------
    name
        An experiment (see `unissl paper list`), or gain for the average gain over data sets.
    format
        md, latex and html for people; csv for programs, a number per line.
    scale
        Which runs: full or mini.
    only
        Rows, with commas between them, e.g. sage,fixmatch.
    settings
        Columns, with commas between them, e.g. cifar10-a100.
    seeds
        Seeds, e.g. 0,1,2 or 0-4, where others than the experiment's were run.
    runs
        Folder of all runs of all experiments: what `unissl paper run` has as --out.
    out
        File to write; an existing one is not overwritten. By default the table is printed.
    """
    from unissl.errors import UserError

    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    from unissl.cli.paper_run import seed_list, words
    from unissl.paper.grid.plan import Part
    from unissl.paper.tables.formats import render
    from unissl.paper.tables.registry import make_tables

    text = render(make_tables(name, scale, runs, Part(words(only), words(settings), seed_list(seeds))), format)
    if out is None:
        print(text, end="")
        return
    from unissl.run_folder import write_text

    write_text(out, text)
    print(f"written to {out}")


def figure(
    name: str,
    /,
    *folders: str,
    scale: Literal["full", "mini"] = "full",
    runs: str = "runs/paper",
    root: str | None = None,
    out: Path | None = None,
) -> None:
    """Draw a figure of the paper, from any finished runs or from an experiment's own.

    Runs that differ in nothing but the seed are drawn as one. `NAME=FOLDER` gives a run a name in the legend.

    Example: unissl paper figure pseudo-labels runs/fixmatch SAGE=runs/sage --out pseudo-labels.pdf

    Parameters
    ----------
    name
        settings, pseudo-labels, tsne, silhouette, similarity, stability, ablation, ablation-pseudo-labels, gri-losses,
        lambda, beta, anchors-k, failure-boundary or overhead.
    folders
        Run folders; without any, the experiment's own runs of the given scale.
    scale
        Which runs of the experiment: full or mini.
    runs
        Folder of all runs of all experiments: what `unissl paper run` has as --out.
    root
        For settings without run folders: where the data set lies.
    out
        File to write, .svg, .pdf or .png; an existing one is not overwritten. By default NAME.svg.
    """
    from unissl.errors import UserError

    place = out or Path(f"{name}.svg")
    if place.exists():
        raise UserError(f"{place} exists already; choose another --out.")
    from unissl.cli.process import prepare_process

    prepare_process()
    from unissl.paper.figures.registry import draw_experiment, draw_runs, get_figure
    from unissl.paper.figures.style import refuse_format, save, small_print

    get_figure(name)
    refuse_format(place)
    with small_print():
        drawn = draw_runs(name, folders) if folders else draw_experiment(name, scale, runs, root)
        save(drawn, place)
    print(drawn.caption)
    print(f"written to {place}")
