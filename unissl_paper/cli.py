"""unissl paper: list and run the experiments of the paper, and show their results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from unissl.errors import UserError
from unissl.utils.printing import echo

paper = App(
    name="paper",
    help="Run the experiments of the SAGE paper, at full size or in miniature.",
    help_epilogue="Example: unissl paper list",
)
Format = Literal["table", "md", "csv", "json"]
Scale = Literal["full", "mini", "mid"]
Flag = Annotated[bool, Parameter(negative="")]


@paper.command(name="list")
def list_(*, format: Format = "table") -> None:
    """List every experiment with its number of runs and its published results.

    Example: unissl paper list

    Args:
        format: table for people, md for documents, csv or json for programs.
    """
    from unissl_paper.experiments.listing import HEAD, format_listing, listing

    if format != "table":
        echo(format_listing(listing(), format), end="")
        return
    from rich.table import Column, Table

    from unissl.utils.printing import show

    table = Table(
        Column(HEAD[0], no_wrap=True), HEAD[1], *(Column(head, justify="right") for head in HEAD[2:5]), HEAD[5]
    )
    for row in listing():
        table.add_row(*row.cells())
    show(table)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """Which runs, and how they are run."""

    methods: str | None = None
    "Methods (rows), comma-separated, e.g. sage,fixmatch."
    columns: str | None = None
    "Columns, comma-separated, e.g. cifar10-a100."
    seeds: str | None = None
    "Seeds, e.g. 0,1,2 or 0-4; by default the paper's."
    scale: Scale = "full"
    "full as published; mini on small images with a small network, in minutes; mid for the experiment claim, in hours."
    engine: Literal["local", "ray"] = "local"
    "local for processes on this machine, ray for a cluster."
    jobs: int = 1
    "Parallel runs on this machine."
    root: str | None = None
    "Folder of the data sets; by default $UNISSL_DATA."
    out: str = "runs/paper"
    "Folder of all runs of all experiments, or, with ray, any URL that fsspec supports."
    device: str = "cpu"
    "cpu, cuda or mps."
    threads: int = 1
    "CPU threads of a run."
    address: str | None = None
    "Address of a Ray cluster, e.g. auto; by default $RAY_ADDRESS, else a local Ray."
    cpus: float | None = None
    "CPUs that Ray reserves for a run; by default its threads."
    gpus: float = 0.0
    "GPUs that Ray reserves for a run, e.g. 0.5."
    dry_run: Flag = False
    "Print the numbers of runs and stop."

    def check(self) -> None:
        """Raise for values that cannot be used."""
        for flag, value in (("--jobs", self.jobs), ("--threads", self.threads)):
            if value < 1:
                raise UserError(f"{flag} takes a number of at least 1, not {value}.")
        if self.gpus < 0 or (self.cpus is not None and self.cpus <= 0):
            raise UserError("--cpus and --gpus are shares of a machine; give numbers above 0.")
        if "://" in self.out and self.engine == "local":
            raise UserError("--out is a URL, which is for --engine ray; give --engine local a folder.")
        if self.root is not None and not Path(self.root).is_dir():
            raise UserError(f"There is no folder {self.root}; name the one that holds the data sets with --root.")


@paper.command
def run(name: str, /, *, options: GridOptions | None = None) -> None:
    """Run all unfinished runs of an experiment.

    Prints their number and the estimated time first. Interrupted runs are resumed. A run that fails keeps its reason
    while the others continue. Repeat the command to resume.

    Example: unissl paper run table1 --scale mini --methods sage,fixmatch --seeds 0 --jobs 2

    Args:
        name: The experiment, e.g. table1 (see `unissl paper list`).
    """
    from unissl.utils.process import prepare_process
    from unissl_paper.run import run_experiment

    run_experiment(name, options or GridOptions(), prepare_process)


@paper.command
def table(
    name: str,
    /,
    *,
    format: Literal["md", "csv", "latex", "html"] = "md",
    scale: Scale = "full",
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

    Args:
        name: An experiment (see `unissl paper list`), or gain for the average gain over data sets.
        format: md, latex and html for people; csv for programs, a number per line.
        scale: Which runs: full, mini or mid.
        methods: Methods (rows), comma-separated, e.g. sage,fixmatch.
        columns: Columns, comma-separated, e.g. cifar10-a100.
        seeds: Seeds, e.g. 0,1,2 or 0-4; by default those that are finished.
        runs: Folder of all runs of all experiments: the --out of `unissl paper run`.
        out: File to write; an existing one is not overwritten. By default the table is printed.
    """
    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    from unissl_paper.grid.plan import Selection
    from unissl_paper.run import parse_seeds, split_names
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


@paper.command
def figure(
    name: str,
    /,
    *folders: str,
    scale: Scale = "full",
    runs: str = "runs/paper",
    root: str | None = None,
    out: Path | None = None,
) -> None:
    """Draw a figure of the paper from the finished runs of its experiment, or from any run folders.

    Runs that differ only in the seed are one series. `NAME=FOLDER` gives a run a name in the legend.

    Example: unissl paper figure pseudo-labels runs/fixmatch SAGE=runs/sage --out pseudo-labels.pdf

    Args:
        name: settings, pseudo-labels, tsne, silhouette, similarity, stability, ablation, ablation-pseudo-labels,
            gri-losses, lambda, beta, anchors-k, failure-boundary or overhead.
        folders: Run folders; by default the experiment's runs of the given scale.
        scale: Which runs of the experiment: full, mini or mid.
        runs: Folder of all runs of all experiments: the --out of `unissl paper run`.
        root: For the figure settings without run folders: folder of the data set.
        out: File to write, .svg, .pdf or .png; an existing one is not overwritten. By default NAME.svg.
    """
    path = out or Path(f"{name}.svg")
    if path.exists():
        raise UserError(f"{path} exists already; choose another --out.")
    from unissl_paper.figures.registry import draw_experiment, draw_runs, get_figure
    from unissl_paper.figures.style import check_format, paper_style, save

    get_figure(name)
    check_format(path)
    with paper_style():
        drawn = draw_runs(name, folders) if folders else draw_experiment(name, scale, runs, root)
        save(drawn, path)
    echo(drawn.caption)
    echo(f"written to {path}")
