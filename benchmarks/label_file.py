"""CPU seconds to read a label file, in every spelling of the files that it may have.

    python benchmarks/label_file.py --rows 1000000

The images are not on disk: the folder was walked before the label file is read. Prints a line per spelling, and fails
if one takes longer than --limit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from unissl.data.folder.labels import read_label_file

FOLDERS = 100


def spellings(files: list[str], root: Path) -> dict[str, list[str]]:
    """The lines of a label file, by how it names the files."""

    def rows(names: list[str]) -> list[str]:
        return [f"{name},class {number % 10}" for number, name in enumerate(names)]

    return {
        "relative": ["file,label", *rows(files)],
        "without header": rows(files),
        "without suffix": ["file,label", *rows([file.removesuffix(".jpg") for file in files])],
        "without suffix and header": rows([file.removesuffix(".jpg") for file in files]),
        "absolute": ["file,label", *rows([f"{root}/{file}" for file in files])],
        "other case": ["file,label", *rows([file.upper() for file in files])],
        "backslashes": ["file,label", *rows([file.replace("/", "\\") for file in files])],
        "quotes and spaces": ["file,label", *rows([f'" {file} "' for file in files])],
        "not ASCII": ["file,label", *(f"{row} \u00e9" for row in rows([file.upper() for file in files]))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--limit", type=float, default=5.0, help="CPU seconds")
    options = parser.parse_args()
    rows, slow = options.rows, []
    files = [f"c{number * FOLDERS // rows:02d}/img_{number:07d}.jpg" for number in range(rows)]
    with tempfile.TemporaryDirectory() as folder:
        for place, root in (("in", Path(folder)), ("beside", Path(folder) / "images")):
            root.mkdir(exist_ok=True)
            path = Path(folder) / "labels.csv"
            for name, lines in spellings(files, root).items():
                path.write_text("\n".join(lines))
                start = time.process_time()
                labels = read_label_file(path, root, files).labels
                seconds = time.process_time() - start
                slow += [name] if seconds > options.limit else []
                print(f"{place} the folder, {name}: {seconds:.1f} s CPU for {len(labels):,} rows", flush=True)
    if slow:
        raise SystemExit(f"slower than {options.limit} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
