"""unissl paper: list and run the experiments of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from unissl.cli.paper_show import figure, table
from unissl.cli.printing import echo
from unissl.errors import UserError

paper = App(
    name="paper",
    help="Run the experiments of the SAGE paper, at full size or in miniature.",
    help_epilogue="Example: unissl paper list",
)
paper.command(table)
paper.command(figure)
Format = Literal["table", "md", "csv", "json"]
Flag = Annotated[bool, Parameter(negative="")]


@paper.command(name="list")
def list_(*, format: Format = "table") -> None:
    """List every experiment with its number of runs and its published results.

    Example: unissl paper list

    Parameters
    ----------
    format
        table for people, md for documents, csv or json for programs.
    """
    from unissl_paper.experiments.listing import HEAD, format_listing, listing

    if format != "table":
        echo(format_listing(listing(), format), end="")
        return
    from rich.table import Column, Table

    from unissl.cli.printing import show

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
    scale: Literal["full", "mini", "mid"] = "full"
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

    Parameters
    ----------
    name
        The experiment, e.g. table1 (see `unissl paper list`).
    """
    from unissl.cli.paper_run import run_experiment
    from unissl.cli.process import prepare_process

    run_experiment(name, options or GridOptions(), prepare_process)
