"""unissl paper: the experiments of the paper, listed and run."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from unissl.cli.paper_show import figure, table

paper = App(
    name="paper",
    help="Run the experiments of the SAGE paper, at full size or in miniature.",
    help_epilogue="Example: unissl paper list",
)
paper.command(table)
paper.command(figure)
Format = Literal["table", "md", "csv", "json"]
Negative = Parameter(negative="")


@paper.command(name="list")
def list_(*, format: Format = "table") -> None:
    """List every experiment with its number of runs, and what is published about it.

    Example: unissl paper list

    Parameters
    ----------
    format
        table for people, md for documents, csv or json for programs.
    """
    from unissl.paper.experiments.listing import HEAD, listing, write

    if format != "table":
        print(write(listing(), format), end="")
        return
    from rich.table import Column, Table

    from unissl.cli.listings import show

    table = Table(
        Column(HEAD[0], no_wrap=True), HEAD[1], *(Column(head, justify="right") for head in HEAD[2:5]), HEAD[5]
    )
    for row in listing():
        table.add_row(*row.cells())
    show(table)


@paper.command
def run(
    name: str,
    /,
    *,
    only: str | None = None,
    settings: str | None = None,
    seeds: str | None = None,
    scale: Literal["full", "mini"] = "full",
    engine: Literal["local", "ray"] = "local",
    jobs: int = 1,
    root: str | None = None,
    out: str = "runs/paper",
    device: str = "cpu",
    threads: int = 1,
    address: str | None = None,
    cpus: float | None = None,
    gpus: float = 0.0,
    dry_run: Annotated[bool, Negative] = False,
) -> None:
    """Carry out the runs of an experiment that are not done yet.

    Says first how many runs there are and about how long they take. A run that was cut off is continued, one that fails
    is left with its reason while the others go on. Repeat the command to go on where it stopped.

    Example: unissl paper run table1 --scale mini --only sage,fixmatch --seeds 0 --jobs 2

    Parameters
    ----------
    name
        The experiment, e.g. table1 (see `unissl paper list`).
    only
        Rows, with commas between them, e.g. sage,fixmatch.
    settings
        Columns, with commas between them, e.g. cifar10-a100.
    seeds
        Seeds, e.g. 0,1,2 or 0-4; by default the paper's.
    scale
        full as published; mini for the same on small images with a small network, in minutes.
    engine
        local for processes on this machine, ray for a cluster.
    jobs
        Runs side by side on this machine.
    root
        Folder that holds the data sets; by default $UNISSL_DATA.
    out
        Folder of all runs of all experiments, or, with ray, any URL that fsspec knows.
    device
        cpu, cuda or mps.
    threads
        CPU threads of a run.
    address
        Of a Ray cluster, e.g. auto; by default $RAY_ADDRESS, else a Ray on this machine.
    cpus
        CPUs that Ray sets aside for a run; by default its threads.
    gpus
        GPUs that Ray sets aside for a run, e.g. 0.5.
    dry_run
        Say what there is to do, and stop.
    """
    from unissl.cli.paper_run import Request, run_request
    from unissl.cli.process import prepare_process

    request = Request(name, only, settings, seeds, scale, engine, jobs, root, out, device, threads, address, cpus, gpus)
    run_request(request, prepare_process, dry_run=dry_run)
