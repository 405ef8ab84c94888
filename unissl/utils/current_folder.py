"""The folder that a command is run in may be a stranger's, as a run folder that was handed over is: what lies there is
data, and nothing of it is run or obeyed.

Python searches it first for modules of ``python -c`` and ``python -m``, which is how multiprocessing, torch.compile and
we ourselves start processes; matplotlib and numba read settings there. docs/untrusted_input.md says what remains.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

NEUTRAL = sys.prefix
"""A folder to start processes in. Whoever may write to it can change Python's modules anyway; of a temporary folder,
which others write to, that is not true."""
SAFE_PATH = "PYTHONSAFEPATH"
"""With it, as with ``python -P``, the current folder is not searched for modules."""
FIGURE_SETTINGS = "matplotlibrc"
LOOP_SETTINGS = ".numba_config.yaml"


@contextmanager
def ignore_current_folder() -> Iterator[None]:
    """Inside, for a process of the command, neither it nor processes that it starts take anything from its folder.

    Not for the library: in somebody else's program, the current folder may well be where the modules are.
    """
    ignore_settings()
    with _safe_path():
        yield


def ignore_settings() -> None:
    """Have libraries that read settings in the current folder look for them elsewhere.

    Only where there are such files, since it costs the import of the library; and early, before there are threads that
    would notice a change of the folder.
    """
    if os.path.lexists(FIGURE_SETTINGS) and "matplotlib" not in sys.modules:
        with elsewhere():
            import_module("matplotlib")  # reads them once, before those that the user has at home
    if os.path.lexists(LOOP_SETTINGS):
        with elsewhere():
            try:
                config = import_module("numba.core.config")
            except ImportError:
                return
        config._config_fname = os.path.join(NEUTRAL, LOOP_SETTINGS)  # type: ignore[attr-defined]  # read at every compilation


@contextmanager
def elsewhere() -> Iterator[None]:
    """Inside, the current folder is a neutral one, and processes that are started look for no modules in theirs."""
    with ExitStack() as stack:
        with suppress(FileNotFoundError):  # it was removed: nothing is in it
            stack.enter_context(chdir(NEUTRAL))
        stack.enter_context(_safe_path())
        yield


def start(process: BaseProcess) -> None:
    """Start a process of multiprocessing.

    A server that it is forked from imports everything in the neutral folder; the process itself then changes to ours.
    """
    if getattr(process, "_start_method", None) == "forkserver":
        from multiprocessing.forkserver import ensure_running  # not on every system

        with elsewhere():
            ensure_running()
    with _safe_path():
        process.start()


@contextmanager
def _safe_path() -> Iterator[None]:
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
