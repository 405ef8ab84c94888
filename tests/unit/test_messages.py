"""Messages are one line of bounded length without control characters, whatever a file holds."""

from __future__ import annotations

import logging
import re
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from rich.table import Table

import unissl
from unissl.cli import _explain
from unissl.data.folder.labels import read_label_file
from unissl.errors import MAX_SENTENCE, UserError, visible
from unissl.inference.prediction_table import write_csv
from unissl.utils.printing import echo, plain_console, show
from unissl.utils.progress import log_to_stderr

HOSTILE = "a\x1b]0;title\x07\x9b2Jb\u202ec"
ESCAPED = "a\\x1b]0;title\\x07\\x9b2Jb\\u202ec"


def test_an_error_is_short_and_keeps_its_fix() -> None:
    message = str(UserError(f"Line 3 names {'x' * 2_300_000}, which is no file; correct that line."))
    assert len(message) <= MAX_SENTENCE
    assert message.startswith("Line 3 names xxx") and message.endswith("x, which is no file; correct that line.")
    assert str(UserError(message)) == message
    assert str(UserError("Short,\n  on two  lines.")) == "Short, on two  lines."


@pytest.mark.adversary
def test_a_file_with_ten_thousand_labels_is_refused_in_one_sentence(tmp_path: Path) -> None:
    lines = ["file,label", *(f"a.png,class {number}" for number in range(10_000))]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    with pytest.raises(UserError) as error:
        read_label_file(tmp_path / "labels.csv", tmp_path, ["a.png"])
    assert len(str(error.value)) <= MAX_SENTENCE and str(error.value).endswith("; keep one of them.")


@pytest.mark.adversary
def test_control_characters_reach_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(UserError(HOSTILE)) == visible(HOSTILE) == ESCAPED
    assert visible("caf\u00e9 \U0001f469\u200d\U0001f52c\u00a0x") == "caf\u00e9 \U0001f469\u200d\U0001f52c\u00a0x"
    echo(f"{HOSTILE}\n\t{HOSTILE}")
    assert capsys.readouterr().out == f"{ESCAPED}\n\t{ESCAPED}\n"
    _explain(PermissionError(13, "no", HOSTILE * 100))
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and len(shown) <= MAX_SENTENCE + len("error: \n")
    log_to_stderr()
    logging.getLogger("unissl").warning("%s", HOSTILE)
    assert capsys.readouterr().err == f"warning: {ESCAPED}\n"


def test_nor_do_those_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("class", HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE, "1")
    show(table)
    assert capsys.readouterr().out.count(ESCAPED) == 3
    stream = StringIO()
    plain_console(file=stream, force_terminal=True, color_system=None, width=80).print(HOSTILE)
    assert stream.getvalue() == f"{ESCAPED}\n"


@pytest.mark.adversary
def test_csv_on_standard_output_has_none_and_a_file_has_the_exact_name() -> None:
    table = pa.table({"file": [HOSTILE, "-a\nb"], "class": ["x\x1b", "y"]})
    printed, saved = StringIO(newline=""), StringIO(newline="")
    write_csv(printed, [table], escape_controls=True)
    assert printed.getvalue() == f"file,class\r\n{ESCAPED},x\\x1b\r\n'-a\\nb,y\r\n"
    write_csv(saved, [table])
    assert saved.getvalue() == f'file,class\r\n{HOSTILE},x\x1b\r\n"\'-a\nb",y\r\n'


def test_verbs_print_through_echo() -> None:
    package = Path(unissl.__file__).parent
    paper = [package.with_name("unissl_paper") / name for name in ("cli.py", "run.py")]
    verbs = [*sorted((package / "cli").glob("*.py")), *paper, package / "utils" / "printing.py"]
    found = [path.name for path in verbs if re.search(r"(?<![.\w])print\(", path.read_text(encoding="utf-8"))]
    assert found == ["printing.py"]
