"""Hooks of mkdocs: README, CONTRIBUTING and CHANGELOG, which are outside docs/, become pages of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""File of the repository -> page of the site."""
ASSETS = ("LICENSE", "CITATION.cff")


def on_files(files: Files, config: Any) -> Files:
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=re.sub(r"\]\(docs/", "](", text)))
    for name in ASSETS:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links from docs/ to the files of the repository lead to their pages."""
    for name, target in PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(name)}", f"]({_up(page)}{target}", markdown)
        markdown = markdown.replace(f"]({name}", f"]({_up(page)}{target}")
    return markdown


def _up(page: Any) -> str:
    return "../" * page.file.src_uri.count("/")
