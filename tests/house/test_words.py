"""One word per concept: phrases that the glossary of CONTRIBUTING.md replaces are refused wherever a user reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import unissl

PACKAGE = Path(unissl.__file__).parent
ROOT = PACKAGE.parent
OLD = {
    r"said": "name the thing: predictions, overrides, outputs",
    r"settle\w*": "plan",
    r"take_place|carry_out|carried out|carry out": "run",
    r"glances?": "probe",
    r"the pool was worth|worth of the pool": "gain over the baseline",
    r"class mix(es)?|mix of (the )?(classes|pool)|unknown mix": "class distribution",
    r"none of these|none-of-these|none of the classes": "outlier (score), out-of-distribution (label)",
    r"outsiders?|strangest|strange images?": "outlier",
    r"get it anew|anew": "download it again, again",
    r"(?<!feature )(?<!support )(?<!test )vectors": "features",
    r"labels alone": "labels-only baseline",
    r"trained? further|further training|last stages trained": "distillation, fine-tuned",
    r"trains_further|further_training|finish_training": "distillation",
    r"pictures?": "crops (data), charts (report), thumbnails (gallery), images",
    r"answers (of|about|for) (the )?(pool|test|images?)": "predictions",
    r"told of|is told|tells of": "reported",
    r"remarks?": "image issue",
    r"oddit(y|ies)": "image issue",
    r"--reference|--no-reference|--profile|--onnx": "--baseline, --pool-distribution, --format",
    r"draft": "partial file, journal",
    r"advice|advis(e|es|ed)": "suggestion",
    r"who looks like whom|what it says about|speaks? against": "say what the component computes",
    r"middle squares?|blown up|blows? up": "centre crop, enlarged",
    r"mistakes and trust|map of the images|labels to check|perhaps none": "a heading of the report",
    r"taken up|takes? up (a|the|this|that) (run|training|build|state|command)": "resume",
    r"train\.(epochs|folds)|data\.(size|groups|holdout)": "settings of 0.2",
    r"optim\.(ema|backbone_lr)|net\.(frozen|train_blocks)": "settings of 0.2",
    r"split\.(heldout|profile|labelled_profile|labelled_share|counts|label_pool|unknown_\w+)": "settings of 0.2",
    r"augment\.(copies|dropout|label_dropout|geometry|operations|cutout)": "settings of 0.2",
    r"distil\.(pictures|neighbours)|method\.(steps|con|sim|anchors|exact)": "settings of 0.2",
    r"labels-only/|estimate\.json|(?<!image_)data\.json|UNISSL_BFLOAT16|transformers:(FOLDER|NAME)": "names of 0.2",
    r"paper run \S+ --only|--settings": "--methods, --columns",
}
ALLOWED = (
    "slow reference",
    "feature vectors",
    "support vectors",
    "test vectors",
    "vectors of a register",
    "a picture of the report",
    "image.draft(",  # of Pillow
)
"""Contexts in which a word of the list is the field's own."""


def old_words(text: str) -> list[str]:
    for context in ALLOWED:
        text = re.sub(re.escape(context), "", text, flags=re.IGNORECASE)
    found = []
    for pattern, instead in OLD.items():
        for match in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", text, re.IGNORECASE):
            found.append(f"{match[0]!r} (instead: {instead})")
    return found


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Messages, help texts and docstrings of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


KERNELS = {"kernels", "augment"}
"""Where "vectors" are those of SIMD registers."""
PAPER = ROOT / "unissl_paper"
SOURCES = sorted(path for top in (PACKAGE, PAPER) for path in top.rglob("*.py") if not KERNELS & set(path.parts))
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_and_docstrings(path: Path) -> None:
    assert [(line, word) for line, text in strings(path) for word in old_words(text)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    if path.name == "CONTRIBUTING.md":  # its glossary names the old words
        lines = [line for line in lines if "->" not in line and "| instead of |" not in line]
    assert [(number, word) for number, line in enumerate(lines, 1) for word in old_words(line)] == []


def test_report_template() -> None:
    text = (PACKAGE / "report" / "page.html.jinja").read_text(encoding="utf-8")
    visible = re.sub(r"\{[%{#].*?[%}#]\}|<style>.*?</style>", "", text, flags=re.DOTALL)
    assert old_words(visible) == []


def test_identifiers_and_comments() -> None:
    pattern = re.compile(r"\b(said|settle\w*|take_place|carry_out|glance)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted([*PACKAGE.rglob("*"), *PAPER.rglob("*")])
        if path.suffix in {".py", ".jinja"}
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_list_catches_old_words_and_leaves_the_fields_own() -> None:
    assert (
        old_words("The pool was worth +3 points") and old_words("vectors of the backbone") and old_words("get it anew")
    )
    assert (
        not old_words("feature vectors (n, D)") and not old_words("a slow reference") and not old_words("predictions")
    )
