"""The command ``unissl``: one file per verb. Verbs import torch when they run, so that ``--help`` answers at once."""

from __future__ import annotations

import sys
from typing import Never

from cyclopts import App, CycloptsError

from unissl import __version__
from unissl.cli.bench import bench
from unissl.cli.catalogue import datasets, methods
from unissl.cli.demo import demo
from unissl.cli.evaluate import evaluate
from unissl.cli.export import export
from unissl.cli.paper import paper
from unissl.cli.predict import predict
from unissl.cli.report import report
from unissl.cli.split import split
from unissl.cli.train import train
from unissl.current_folder import kept_out
from unissl.distributed.group import launched, processes
from unissl.errors import UserError
from unissl.streams import OUTPUT_LOST, OutputLost, steady_streams
from unissl.train.signals import leave_when_asked

app = App(
    name="unissl",
    version=__version__,
    help="Train image classifiers from a handful of labels and many unlabelled images of unknown class mix.",
    help_format="plaintext",  # markdown costs a sixth of the time to the answer
    help_epilogue="Start with `unissl demo`. Every verb has --help with an example; --debug shows tracebacks.",
)
for verb in (demo, train, evaluate, predict, export, report, split, datasets, methods, bench, paper):
    app.command(verb)


def main(arguments: list[str] | None = None) -> Never:
    """Run a verb. Mistakes of the user end in one sentence and code 1 (2 for a wrong command line)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    with steady_streams() as (out, _):
        code = _run([word for word in words if word != "--debug"], debug)
        out.flush()
        if code == 0 and out.error is not None and not out.reader_left:
            print(
                f"error: What the command printed is lost, since standard output cannot be written ("
                f"{out.error.strerror}); direct it to another place. Files that the command writes are complete.",
                file=sys.stderr,
            )
            code = OUTPUT_LOST
    sys.exit(code)


def _run(words: list[str], debug: bool) -> int:
    """The exit code of a verb, its errors told."""
    try:
        with leave_when_asked(), kept_out(), processes():
            if launched() and words[:1] != ["train"]:
                raise UserError("Only `unissl train` runs on several processes; leave out torchrun.")
            app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except OutputLost:
        return 0  # whoever called looks at why
    except (UserError, CycloptsError, PermissionError, MemoryError, KeyboardInterrupt) as error:
        if debug:
            raise
        return _explain(error)
    except Exception as error:
        code: int | None = getattr(error, "exit_code", None)  # a run that was asked to stop
        if code is None or debug:
            raise
        print(error, file=sys.stderr)
        return code
    return 0


def _explain(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 130
    message = " ".join(str(error).split())
    if isinstance(error, PermissionError):
        message = f"{error.filename} may not be read by this user; change its permissions or choose another."
    if isinstance(error, MemoryError):
        message = "There is not enough memory; close other programs, or use fewer or smaller images (data.size)."
    print(f"error: {message}", file=sys.stderr)
    return 2 if isinstance(error, CycloptsError) else 1
