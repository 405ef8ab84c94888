"""The command ``unissl``: one file per verb. Verbs import torch when they run, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from typing import Never

from cyclopts import App, CycloptsError

from unissl import __version__
from unissl.cli.cache import cache
from unissl.cli.demo import demo
from unissl.cli.evaluate import evaluate
from unissl.cli.export import export
from unissl.cli.listings import datasets, methods
from unissl.cli.predict import predict
from unissl.cli.report import report
from unissl.cli.split import split
from unissl.cli.train import train
from unissl.distributed.group import launched, processes
from unissl.errors import NOT_ENOUGH_MEMORY, UserError, is_memory_shortage, one_sentence
from unissl.training.signals import exit_on_signal, interrupt_message
from unissl.utils.current_folder import ignore_current_folder
from unissl.utils.printing import echo
from unissl.utils.process import misread_variable, prepare_process, require_address_space, require_current_folder
from unissl.utils.progress import log_to_stderr
from unissl.utils.streams import OUTPUT_LOST, OutputLost, steady_streams
from unissl_paper.cli import paper

app = App(
    suppress_keyboard_interrupt=False,  # its message says what is kept
    name="unissl",
    version=__version__,
    help="Train image classifiers from a handful of labels and many unlabelled images of unknown distribution.",
    help_format="plaintext",  # markdown costs a sixth of the time to the answer
    help_epilogue="Start with `unissl demo`. Every verb has --help with an example; --debug shows tracebacks.",
)
for verb in (demo, train, evaluate, predict, export, report, split, datasets, methods, cache, paper):
    app.command(verb)


def main(arguments: list[str] | None = None) -> Never:
    """Run a verb. A mistake of the user ends in one sentence and code 1 (2 for a wrong command line)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    with steady_streams() as (out, _):
        code = _run([word for word in words if word != "--debug"], debug)
        out.flush()
        if code == 0 and out.error is not None and not out.reader_left:
            echo(
                f"error: The output is lost, since standard output cannot be written ({out.error.strerror}); redirect "
                "it to another file. Files that the command writes are complete.",
                err=True,
            )
            code = OUTPUT_LOST
    sys.exit(code)


def _run(words: list[str], debug: bool) -> int:
    """Run a verb and print its error; the exit code."""
    log_to_stderr()
    os.environ["MPLBACKEND"] = "agg"  # the command opens no windows, and matplotlib fails to load with a wrong name
    os.environ.pop("SOURCE_DATE_EPOCH", None)  # no file has a date, and numpy and compilers fail if it is no number
    try:
        if not {"--help", "-h", "--version"}.intersection(words):
            require_current_folder()
            require_address_space()
            prepare_process()
        if launched() and words[:1] != ["train"]:  # before the processes wait for each other
            fix = "leave out torchrun, or unset RANK and WORLD_SIZE."
            if os.environ["RANK"] != "0":  # the first process tells the reason
                raise UserError(f"This is a further process of a command that needs one; {fix}")
            raise UserError(f"Only `unissl train` runs on several processes; {fix}")
        with exit_on_signal(), ignore_current_folder(), processes():
            app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except OutputLost:
        return 0  # the caller looks at the reason
    except (UserError, CycloptsError, PermissionError, MemoryError, KeyboardInterrupt) as error:
        if debug:
            raise
        return _explain(error)
    except Exception as error:
        if is_memory_shortage(error) and not debug:
            return _explain(MemoryError())
        if isinstance(error, OSError) and error.errno is not None and not debug:
            where = "A file or folder" if error.filename is None else str(error.filename)
            return _explain(UserError(f"{where} cannot be used ({os.strerror(error.errno)}); check the path and disk."))
        if (name := misread_variable(error)) is not None and not debug:
            return _explain(UserError(f"A library cannot read the environment variable {name}; correct or unset it."))
        code: int | None = getattr(error, "exit_code", None)  # a run that was asked to stop
        if code is None or debug:
            raise
        echo(error, err=True)
        return code
    return 0


def _explain(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        echo(interrupt_message(error), err=True)
        return 130
    message = str(error)
    if isinstance(error, PermissionError):
        message = f"{error.filename} may not be read by this user; change its permissions or choose another."
    if isinstance(error, MemoryError):
        message = NOT_ENOUGH_MEMORY
    echo(f"error: {one_sentence(message)}", err=True)
    return 2 if isinstance(error, CycloptsError) else 1
