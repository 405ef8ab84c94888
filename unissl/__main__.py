"""``python -m unissl`` and the command ``unissl``."""

import os
import sys


def _leave_out_current_folder() -> None:
    """Import nothing from the current folder, which ``python -m`` puts first, unless unissl itself is located there.

    ``unissl/__init__.py`` comes before this and therefore imports nothing that Python has not loaded by then.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return
    package_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path[:1] == [here] and not sys.flags.safe_path and here != package_root:
        del sys.path[0]


def main() -> None:
    """Handle signals, and only then import the command line: a scheduler may send one within the first 0.2 s."""
    try:
        _main()
    except Exception as error:  # of the imports: an error of a command is explained by the command line
        from unissl.errors import NOT_ENOUGH_MEMORY, is_memory_shortage

        if "--debug" in sys.argv or not is_memory_shortage(error):
            raise
        print(f"error: {NOT_ENOUGH_MEMORY}", file=sys.stderr)
        sys.exit(1)


def _main() -> None:
    from unissl.errors import visible
    from unissl.training.signals import Interrupted, exit_on_signal, interrupt_message

    try:
        with exit_on_signal():
            from unissl.cli import main as run_command

            run_command()
    except Interrupted as stop:
        print(visible(str(stop)), file=sys.stderr)
        sys.exit(stop.exit_code)
    except KeyboardInterrupt as stop:
        print(visible(interrupt_message(stop)), file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    _leave_out_current_folder()
    main()
