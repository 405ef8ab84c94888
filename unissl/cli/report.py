"""unissl report"""

from __future__ import annotations

from pathlib import Path


def report(run: Path, /, *, out: Path | None = None) -> None:
    """Write one HTML page about a finished run: how good, how sure, what to look at, what to do.

    The page opens offline, on a phone and in print.

    Example: unissl report runs/first

    Parameters
    ----------
    run
        Run folder.
    out
        HTML file to write; an existing one is not overwritten. By default report.html in the run folder.
    """
    from unissl.cli.process import prepare_process
    from unissl.errors import UserError

    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
    prepare_process()
    from unissl.report.html import write_report
    from unissl.run_folder import RunFolder

    written = write_report(RunFolder(run), out)
    if written.reason:
        print(f"without images: {written.reason} Paths in config.toml count from where the run was started.")
    print(f"written to {written.path} ({written.path.stat().st_size / 1e6:.1f} MB); open it in a browser")
