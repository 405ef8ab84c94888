"""CPU seconds to read a label file, in every spelling of the files that it may have.

    python benchmarks/label_file.py --rows 1000000

The images are not on disk: the folder was walked before the label file is read. Prints a line per spelling.
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
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    files = [f"c{number * FOLDERS // rows:02d}/img_{number:07d}.jpg" for number in range(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.csv"
        for name, lines in spellings(files, Path(folder)).items():
            path.write_text("\n".join(lines))
            start = time.process_time()
            labels = read_label_file(path, Path(folder), files).labels
            print(f"{name}: {time.process_time() - start:.1f} s CPU for {len(labels):,} rows", flush=True)


if __name__ == "__main__":
    main()
