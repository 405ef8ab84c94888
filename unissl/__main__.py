"""``python -m unissl`` is the command ``unissl``."""

from unissl.cli import main

if __name__ == "__main__":
    main()
