"""What every page must keep to: valid in the strict sense, and nothing in it that would ask the network."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import html5lib

NETWORKED = {"script", "link", "iframe", "object", "embed", "video", "audio", "source", "base", "form"}


def parsed(page: str) -> Any:
    """The page as an element tree without namespaces; a parse error fails the test."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)


def local_name(name: str) -> str:
    return name.rpartition("}")[2]


def assert_loads_nothing(page: str) -> None:
    for element in parsed(page).iter():
        if not isinstance(element.tag, str):
            continue
        assert local_name(element.tag) not in NETWORKED, element.tag
        for key, value in element.attrib.items():
            assert not local_name(key).startswith("on"), key
            if local_name(key) in ("src", "href", "srcset", "data", "poster", "background", "action"):
                assert value.startswith(("data:image/", "#")), value
            for target in re.findall(r"url\(([^)]*)\)", value):
                assert target.startswith("#"), target
        if local_name(element.tag) == "style":
            assert not re.search(r"url\(|@import|@font-face", element.text or "")


def assert_sound(page: str) -> None:
    """Unique ids, links that lead somewhere, alternative texts, one first heading and no level left out."""
    elements = [e for e in parsed(page).iter() if isinstance(e.tag, str)]
    ids = [e.attrib["id"] for e in elements if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    targets = {v[1:] for e in elements for k, v in e.attrib.items() if local_name(k) == "href"}
    assert targets <= set(ids)
    assert all(e.attrib.get("alt") for e in elements if local_name(e.tag) == "img")
    assert all(e.attrib.get("aria-label") for e in elements if local_name(e.tag) == "svg")
    levels = [int(e.tag[1]) for e in elements if re.fullmatch(r"h[1-6]", e.tag)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
