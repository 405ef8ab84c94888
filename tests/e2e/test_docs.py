"""The documents say what is true: commands, links, file names, tables and code in them are checked or run."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_method_imports as import_contract
import test_methods as contract
from cli_helpers import make_photos, succeed
from hub_models import save_vit
from method_tables import between_markers, tables
from safetensors.torch import save_file

import unissl.methods
from unissl.autoconfig.recipes import RECIPES, with_recipe
from unissl.cli import app, main
from unissl.config import merge, parse_overrides
from unissl.data import known
from unissl.methods.registry import all_methods
from unissl.methods.sage import SAGEConfig
from unissl.nets import DEFAULT_BACKBONE, backbone_installed, build
from unissl.nets import list_networks as known_nets
from unissl.run.config import build_config
from unissl.run.pipeline import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FORMS = ("default", "released", "paper")
FEW_STEPS = [
    *("--set", "train.steps=2", "--set", "train.evaluations=2", "--set", "data.image_size=32"),
    *("--set", "batch.labelled=4", "--set", "batch.unlabelled=8"),
]
"""What makes a command of a page a matter of seconds."""
needs_weights = pytest.mark.skipif(not backbone_installed(DEFAULT_BACKBONE), reason="needs unissl[photos]")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))


def commands(page: Path) -> list[str]:
    """Every ``unissl VERB ...`` in shell blocks, continued lines joined, and in inline code."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    found = [re.match(r"(?:\w+=\S+ )*(?:\.venv/bin/)?(unissl \w.*)", line) for line in [*lines, *inline_code(page)]]
    return [match[1] for match in found if match]


def named_block(page: Path, name: str) -> str:
    """The block of code whose first line is a comment with the name of its file."""
    (found,) = [text for _, text in FENCE.findall(page.read_text(encoding="utf-8")) if text.startswith(f"# {name}\n")]
    return str(found)


COMMANDS = sorted({command for page in PAGES for command in commands(page)})


def carry_out(page: Path, *also: str) -> None:
    """Run a page from top to bottom in the current folder: its Python, and its commands with few steps and ``also``."""
    names: dict[str, Any] = {}
    for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            short = re.sub(r'(steps"?[=:] ?)[0-9]+', r"\g<1>2", text)
            exec(compile(short, page.name, "exec", dont_inherit=True), names)
        elif language == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                program, verb, *words = shlex.split(line)
                assert program == "unissl"
                extra = [*FEW_STEPS, *also] if verb == "train" and "--resume" not in words else []
                succeed(verb, *words, *extra)


def make_labelled_photos(place: Path) -> None:
    """The folders and the file that the pages speak of."""
    make_photos(place / "photos")
    make_photos(place / "photos-test", each=2, pool=0)
    lines = [f"{name}/{number}.png,{name}" for name in ("cat", "dog") for number in range(4)]
    (place / "labels.csv").write_text("\n".join(["file,label", *lines]), encoding="utf-8")


class Reached(Exception):
    """A command went as far as starting work."""


@pytest.fixture
def example_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """CONTRIBUTING's method, registered as if its file lay in the package."""
    folder, module = tmp_path / "added", "unissl.methods.pseudo_label"
    folder.mkdir()
    text = named_block(ROOT / "CONTRIBUTING.md", "unissl/methods/pseudo_label.py")
    (folder / "pseudo_label.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(unissl.methods, "__path__", [*unissl.methods.__path__, str(folder)])
    importlib.invalidate_caches()
    all_methods.cache_clear()
    yield "pseudo-label"
    all_methods.cache_clear()
    sys.modules.pop(module, None)
    vars(unissl.methods).pop("pseudo_label", None)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    app.parse_args(shlex.split(command, comments=True)[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[1] in ("train", "split") and "--help" not in c])
@pytest.mark.usefixtures("example_method")
def test_settings_in_commands_exist(command: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command gets past the checks of its settings, to where it would load data or take up a run."""

    def reached(*_: Any, **__: Any) -> None:
        raise Reached

    for place in ("unissl.run.pipeline.run", "unissl.run.pipeline.resume", "unissl.splits.open_set.load_data"):
        monkeypatch.setattr(place, reached)
    monkeypatch.setattr("unissl.cli.process.prepare_process", lambda: None)
    monkeypatch.setattr("unissl.autoconfig.suggest.seconds_per_image", lambda name, channels, passes: 1e-3)
    make_labelled_photos(here)
    (here / "settings.toml").write_text(named_block(ROOT / "README.md", "settings.toml"), encoding="utf-8")
    with pytest.raises(Reached):
        main(shlex.split(command, comments=True)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_flags_in_prose_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for code in inline_code(page):
        if setting := re.fullmatch(r"(?:--set )?([a-z]+\.[a-z_]+=\S+)", code):
            build_config(parse_overrides([setting[1]]))
    for verb in ("train", "predict", "export", "split"):
        app([verb, "--help"], result_action="return_value")
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {code.split()[0] for code in inline_code(page) if code.startswith("--")} - flags == set()


def test_both_commands_of_the_readme_are_in_the_makefile() -> None:
    said = "".join(blocks(ROOT / "README.md", "sh"))
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in ("demo", "test"):
        assert f"make {target}\n" in said and target in targets
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_version_of_torch_in_the_readme_is_the_pinned_one() -> None:
    (pinned,) = re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"pip install {pinned} --index-url" in "".join(blocks(ROOT / "README.md", "sh"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    local = [link.split("#")[0] for link in links if "://" not in link and not link.startswith("#")]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    missing = []
    for code in inline_code(page):
        if not re.match(r"(unissl|tests|docs|benchmarks)/\S*$", code):
            continue
        file, _, test = code.partition("::")
        if not (ROOT / file).exists() or (test and f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")):
            missing.append(code)
    assert missing == []


def test_architecture_names_every_package() -> None:
    named = set(inline_code(ROOT / "docs" / "architecture.md"))
    entries = [path for path in (ROOT / "unissl").iterdir() if not path.name.startswith("_")]
    parts = {f"unissl/{path.name}/" if path.is_dir() else f"unissl/{path.name}" for path in entries}
    assert parts - named == set()


def table(text: str) -> list[list[str]]:
    """Rows of a Markdown table without its two head lines; code marks removed."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_forms_is_that_of_the_code() -> None:
    def shown(form: str, setting: str) -> str:
        values = [getattr(SAGEConfig.model_validate({"form": form}).for_data(classes), setting) for classes in (10, 11)]
        few, many = (str(value).lower() for value in values)
        return few if few == many else f"{few}, {many}"

    expected = {
        setting: [shown(form, setting) for form in FORMS] for setting in SAGEConfig.model_fields if setting != "form"
    }
    expected = {setting: cells for setting, cells in expected.items() if len(set(cells)) > 1}
    text = (ROOT / "docs" / "sage.md").read_text(encoding="utf-8")
    rows = table(text.split("<!-- forms:start -->")[1].split("<!-- forms:end -->")[0])
    assert {row[0]: row[1:4] for row in rows} == expected
    assert all(row[5].startswith("tests/") for row in rows)


def test_every_equation_of_the_paper_has_a_test_in_the_symbol_table() -> None:
    text = (ROOT / "docs" / "sage.md").read_text(encoding="utf-8")
    rows = table(text.split("## Symbols")[1].split("\n## ")[0])
    numbers = {int(n) for row in rows if row[3].startswith("tests/") for n in re.findall(r"\((\d+)\)", row[2])}
    assert numbers == set(range(1, 11))


def test_the_tables_of_methods_are_those_of_the_registry() -> None:
    for path, expected in tables().items():
        assert between_markers(path.read_text(encoding="utf-8")) == expected, "run 'make method-files'"


def test_the_switches_in_the_docs_exist() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = table(text.split("## Where published code")[1].split("\n## ")[0])
    for name, _, switch in rows:
        build_config(merge({"method": {"name": name}}, parse_overrides([switch])))
    assert {"simpro", "meta-expert", "cgmatch", "cdmad"} <= {row[0] for row in rows}


def test_names_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named, data = text.split("## What there is")[1].split("\nData (")
    assert {row[0] for row in table(named)} == set(all_methods())
    names = {name for row in table(data.split("Networks:")[0]) for name in row[0].split(", ") if " " not in name}
    assert names == {card.name for card in known()}
    nets = re.findall(r"`([\w-]+)`", data.split("Networks:")[1].split("\n\n")[0])
    assert {net for net in nets if not net.startswith("-")} <= set(known_nets())
    recipes = re.search(r"\*recipe\* \(([^;]*);", text)
    assert recipes is not None and set(re.findall(r"`(\w+)`", recipes[1])) == set(RECIPES)


def shown(folder: Path) -> set[str]:
    """What is in a folder, but for hidden files such as the lock."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_the_run_folder_holds_what_the_readme_says_and_its_python_runs(here: Path) -> None:
    (snippet,) = blocks(ROOT / "README.md", "python")
    for long, short in (('"steps": 400', '"steps": 2'), ('"seed": 1', '"seed": 1, "net": {"name": "small"}')):
        assert long in snippet
        snippet = snippet.replace(long, short)
    exec(compile(snippet, "README.md", "exec", dont_inherit=True), {})
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("### What a run folder holds")[1]
    said = {name.rstrip("/") for row in table(section.split("\n### ")[0]) for name in row[0].split(", ")}
    assert shown(here / "runs" / "from-python") == said


@needs_weights
def test_the_tutorial_goes_through(here: Path) -> None:
    page = ROOT / "docs" / "tutorial.md"
    carry_out(page)
    assert len(list((here / "photos").iterdir())) == 120
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("### What a run folder holds")[1]
    listed, cases = section.split("\nBeside these")
    always = {name.rstrip("/") for row in table(listed) for name in row[0].split(", ")} - {"test_predictions.parquet"}
    at_times = {name.rstrip("/") for name in re.findall(r"`([^`]+)`", cases.split("\n\n")[0])}
    assert shown(here / "runs" / "photos") == always | at_times
    columns = (here / "predictions.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert columns == [name for row in table(page.read_text(encoding="utf-8")) for name in row[0].split(", ")]
    assert (here / "report.html").exists()


@needs_weights
def test_the_commands_of_the_page_on_settings_run(here: Path) -> None:
    make_labelled_photos(here)
    save_vit(here / "models" / "vit")
    save_file(build("wrn-10-1", 2).state_dict(), here / "weights.safetensors")
    (here / "my_networks.py").write_text(
        "from torch import nn\n\n\n"
        "def tiny():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n",
        encoding="utf-8",
    )
    carry_out(ROOT / "docs" / "settings.md", "--no-baseline", "--no-report", "--set", "train.cv_folds=0")
    sys.modules.pop("my_networks", None)
    assert {path.name for path in (here / "runs").iterdir()} == {"tuned", "vit", "weights", "factory", "tuned-blocks"}


def test_the_settings_and_recipes_of_the_page_exist() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    settings, recipes = text.split("\n## Recipes")
    config = build_config({})
    keys = [key for row in table(settings) for key in row[0].split(", ") if not key.startswith("--")]
    assert [key for key in keys if not hasattr(getattr(config, key.split(".")[0]), key.split(".")[1])] == []
    assert {row[0] for row in table(recipes)} == set(RECIPES)


@needs_weights
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_python_of_the_api_page_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.autoconfig.suggest.seconds_per_image", lambda name, channels, passes: 60.0)
    make_labelled_photos(here)
    carry_out(ROOT / "docs" / "api.md")
    assert (here / "digits.onnx.json").exists()


def test_the_example_method_of_contributing_trains(example_method: str, tmp_path: Path) -> None:
    tiny = {"net": {"name": "small"}, "train": {"steps": 3, "log_every": 1}, "batch": {"labelled": 4, "unlabelled": 8}}
    tree = with_recipe(merge(tiny, {"method": {"name": example_method}}), "digits")
    finished = run(build_config(tree), tmp_path / "run")
    lines = [line for line in finished.folder.read_metrics() if line["kind"] == "train"]
    assert [sorted(line["loss"]) for line in lines] == [["sup", "unsup"]] * 3


def test_the_example_method_of_contributing_keeps_the_contract(example_method: str, tmp_path: Path) -> None:
    contract.test_losses_are_finite_and_reach_every_parameter(example_method, 4, 3)
    contract.test_losses_draw_no_random_numbers(example_method)
    contract.test_resumes_bit_for_bit(example_method, tmp_path)
    contract.test_documents_itself(all_methods()[example_method])
    import_contract.test_imports(tmp_path / "added" / "pseudo_label.py")


@pytest.mark.usefixtures("example_method", "double")
def test_the_example_test_of_contributing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "equations")
    text = named_block(ROOT / "CONTRIBUTING.md", "tests/equations/test_pseudo_label_losses.py")
    names: dict[str, Any] = {}
    exec(compile(text, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test()
