"""``python -m unissl`` is the command ``unissl``."""

import os
import sys


def _leave_out_current_folder() -> None:
    """Look for no modules in the current folder, which ``python -m`` puts first, unless unissl itself lies there.

    ``unissl/__init__.py`` comes before this and therefore imports nothing that Python has not loaded by then.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path[:1] == [here] and not sys.flags.safe_path and here != ours:
        del sys.path[0]


if __name__ == "__main__":
    _leave_out_current_folder()
    from unissl.cli import main

    main()
