"""The tables of methods in the documents, from the registry: ``python tests/e2e/method_tables.py`` writes them."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

from unissl.cli.listings import methods
from unissl.methods.base import FAMILIES, Method
from unissl.methods.registry import all_methods

ROOT = Path(__file__).parents[2]
START, END = "<!-- methods:start -->\n", "<!-- methods:end -->"


def tables() -> dict[Path, str]:
    """Document -> the text between its two markers."""
    with redirect_stdout(printed := io.StringIO()):
        methods(markdown=True)
    return {ROOT / "README.md": _ideas(), ROOT / "docs" / "methods.md": printed.getvalue()}


def _ideas() -> str:
    """Name, paper and idea, the families in their order and the oldest first."""

    def order(item: tuple[str, type[Method]]) -> tuple[int, str, str]:
        year = "".join(filter(str.isdigit, item[1].venue))
        return FAMILIES.index(item[1].family), year, item[0]

    rows = []
    for name, method in sorted(all_methods().items(), key=order):
        paper = "-" if method.venue == "-" else f"{method.title}, {method.venue}"
        rows.append(f"| `{name}` | {paper} | {method.idea} |")
    return "\n".join(["| name | method | idea |", "|---|---|---|", *rows]) + "\n"


def between_markers(text: str) -> str:
    return text.split(START)[1].split(END)[0]


if __name__ == "__main__":
    for path, table in tables().items():
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(START + between_markers(text), START + table), encoding="utf-8")
        print(f"wrote the table of {path.relative_to(ROOT)}")
