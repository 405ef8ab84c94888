"""The documents are true: their commands parse, links and files exist, tables match the code, and Python code runs."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_method_imports as import_contract
import test_methods as contract
from cli_helpers import make_photos, picture, succeed
from hub_models import save_vit
from method_tables import between_markers, tables
from safetensors.torch import save_file

import unissl
import unissl.methods
from unissl import api
from unissl.autoconfig.recipes import RECIPES, with_recipe
from unissl.cli import app, main
from unissl.config import merge, parse_overrides
from unissl.data import DataConfig, known
from unissl.errors import UserError
from unissl.methods.registry import all_methods
from unissl.methods.sage import SAGEConfig
from unissl.nets import DEFAULT_BACKBONE, backbone_installed, build
from unissl.nets import list_networks as known_nets
from unissl.run.budget import PassSeconds
from unissl.run.config import build_config
from unissl.run.pipeline import run

ROOT = Path(__file__).parents[2]
README, SETTINGS, OPERATIONS = ROOT / "README.md", ROOT / "docs" / "settings.md", ROOT / "docs" / "operations.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FORMS = ("default", "released", "paper", "consensus")
FEW_STEPS = [
    *("--set", "train.steps=2", "--set", "train.evaluations=2", "--set", "data.image_size=32"),
    *("--set", "batch.labelled=4", "--set", "batch.unlabelled=8"),
]
"""Flags that make a command of a page a matter of seconds."""
SHORT = {
    "train": {"steps": 2, "evaluations": 2},
    "data": {"image_size": 32},
    "batch": {"labelled": 4, "unlabelled": 8},
}
"""The same for ``unissl.train``."""
VERBS = ("train", "predict", "export", "split", "report", "evaluate", "demo", "paper run", "paper table", "methods")
needs_weights = pytest.mark.skipif(not backbone_installed(DEFAULT_BACKBONE), reason="needs the extra 'photos'")


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


def run_python(page: Path, text: str, names: dict[str, Any]) -> None:
    """Execute a block of Python as it is, with few steps."""
    short = re.sub(r'(steps"?[=:] ?)[0-9]+', r"\g<1>2", text)
    exec(compile(short, page.name, "exec", dont_inherit=True), names)


def run_page(page: Path, *flags: str) -> None:
    """Run a page from top to bottom in the current folder: its Python, and its commands with ``flags``."""
    names: dict[str, Any] = {}
    for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            run_python(page, text, names)
        elif language == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                program, verb, *words = shlex.split(line)
                assert program == "unissl"
                extra = [*FEW_STEPS, *flags] if verb == "train" and "--resume" not in words else []
                succeed(verb, *words, *extra)


@pytest.fixture
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """``unissl.train`` with few steps, so that the text of a page runs as it is."""

    def train(*words: Any, **options: Any) -> Any:
        options["config"] = merge(SHORT, options.get("config", {}))
        return api.train(*words, **options)

    monkeypatch.setattr(unissl, "train", train, raising=False)


def make_labelled_photos(folder: Path) -> None:
    """The folders and the file that the pages name."""
    make_photos(folder / "photos")
    for name in ("photos-test", "test"):
        make_photos(folder / name, each=2, pool=0)
    lines = [f"{name}/{number}.png,{name}" for name in ("cat", "dog") for number in range(4)]
    (folder / "labels.csv").write_text("\n".join(["file,label", *lines]), encoding="utf-8")


def make_tutorial_photos() -> None:
    """photos/ and labels.csv of the tutorial, by its own code, in the current folder."""
    page = ROOT / "docs" / "tutorial.md"
    run_python(page, blocks(page, "python")[0], {})


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
    words = shlex.split(command, comments=True)[1:]
    if len(words) == 1:  # a verb that prose names
        assert words[0] in app
    else:
        app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[1] in ("train", "split") and "--help" not in c])
@pytest.mark.usefixtures("example_method")
def test_settings_in_commands_exist(command: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command gets past the checks of its settings, to where it would load data or resume a run."""

    def reached(*_: Any, **__: Any) -> None:
        raise Reached

    for function in ("unissl.run.pipeline.run", "unissl.api._resume", "unissl.splits.open_set.load_data"):
        monkeypatch.setattr(function, reached)
    monkeypatch.setattr("unissl.cli.prepare_process", lambda: None)
    monkeypatch.setattr("unissl.autoconfig.suggest.measure_passes", lambda name, channels: PassSeconds(1e-3, 1e-3))
    make_labelled_photos(here)
    (here / "config.toml").write_text(named_block(SETTINGS, "config.toml"), encoding="utf-8")
    with pytest.raises(Reached):
        main(shlex.split(command, comments=True)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_flags_in_prose_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for code in inline_code(page):
        if setting := re.fullmatch(r"(?:--set )?([a-z]+\.[a-z_]+=\S+)", code):
            pretrained = {"net": {"name": DEFAULT_BACKBONE}} if setting[1].startswith("net.") else {}
            build_config(merge(pretrained, parse_overrides([setting[1]])))
    for verb in VERBS:
        app([*verb.split(), "--help"], result_action="return_value")
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {code.split()[0] for code in inline_code(page) if code.startswith("--")} - flags == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_of_scripts_exist(page: Path) -> None:
    """``python benchmarks/NAME.py --flag ...`` and the like: the script declares the flag."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    missing = []
    for line in [*lines, *inline_code(page)]:
        if script := re.match(r"(?:python )?((?:benchmarks|tests)/\S+\.py)", line):
            text = (ROOT / script[1]).read_text(encoding="utf-8")
            missing += [f"{script[1]} {flag}" for flag in re.findall(r" (--[a-z-]+)", line) if f'"{flag}"' not in text]
    assert missing == []


def test_both_commands_of_the_readme_are_in_the_makefile() -> None:
    commands = "".join(blocks(README, "sh"))
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in ("demo", "test"):
        assert f"make {target}\n" in commands and target in targets
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_version_of_torch_in_the_readme_is_the_pinned_one() -> None:
    (pinned,) = re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"pip install {pinned} --index-url" in "".join(blocks(README, "sh"))


def test_the_lowest_versions_are_ones_that_were_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch_floor,) = [line.removeprefix("torch>=") for line in project["dependencies"] if line.startswith("torch>=")]
    python_floor = project["requires-python"].removeprefix(">=")
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    assert f"needs Python {python_floor} or newer and torch {torch_floor} or newer" in page
    checked = re.findall(r"torch (\d+)\.(\d+)\.\d+, Python (\d+)\.(\d+)\.", page.split("\n## ")[0])
    assert min((int(a), int(b)) for a, b, _, _ in checked) == tuple(int(part) for part in torch_floor.split("."))
    assert min((int(c), int(d)) for _, _, c, d in checked) == tuple(int(part) for part in python_floor.split("."))


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
    modules = [path for path in entries if path.is_dir() or path.suffix == ".py"]
    parts = {f"unissl/{path.name}/" if path.is_dir() else f"unissl/{path.name}" for path in modules}
    assert parts - named == set()


def test_architecture_lists_packages_in_the_order_of_the_import_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rank = {name: number for number, layer in enumerate(layers) for name in layer.split(" | ")}
    rows = table(text.split("## Packages")[1].split("\n**Import contract")[0])
    names = [name.rstrip("/").removesuffix(".py").replace("/", ".") for row in rows for name in row[0].split(", ")]
    assert [rank[name] for name in names] == sorted(rank[name] for name in names)
    assert set(names) == set(rank) - {"unissl.__main__"}


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
    assert {row[0]: row[1:5] for row in rows} == expected
    assert all(row[6].startswith("tests/") for row in rows)


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


def test_the_readme_is_short_and_names_every_method() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert {row[0] for row in table(between_markers(text))} == set(all_methods())


def test_names_of_data_networks_and_recipes_exist() -> None:
    page = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    listed = page.split("<!-- datasets:start -->")[1].split("<!-- datasets:end -->")[0]
    assert {row[0] for row in table(listed)} == {card.name for card in known()}
    text = SETTINGS.read_text(encoding="utf-8")
    nets = re.findall(r"`([\w-]+)`", text.split("## Networks")[1].split("\n## ")[0])
    named = {net for net in nets if not net.startswith("-")}
    assert named <= set(known_nets()) | {backbone.name for backbone in unissl.list_backbones()}
    assert {backbone.name for backbone in unissl.list_backbones()} <= named
    recipes = re.search(r"\*recipe\* \(([^;]*);", text)
    assert recipes is not None and set(re.findall(r"`(\w+)`", recipes[1])) == set(RECIPES)


def test_the_front_door_of_the_api_page_has_the_arguments_of_train() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    arguments = [name for row in table(text.split("\n## ")[1]) for name in row[0].split(", ")]
    assert sorted(arguments) == sorted(inspect.signature(api.train).parameters)


def shown(folder: Path) -> set[str]:
    """What is in a folder, but for hidden files such as the lock."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def run_folder_files() -> tuple[set[str], set[str]]:
    """Files that docs/operations.md lists: those of every run, and the optional ones."""
    section = OPERATIONS.read_text(encoding="utf-8").split("## The run folder")[1].split("\n## ")[0]
    listed, optional = section.split("\nOptional outputs:")
    always = {name.rstrip("/") for row in table(listed) for name in row[0].split(", ")}
    return always, {name.rstrip("/") for name in re.findall(r"`([^`]+)`", optional.split("\n\n")[0])}


@pytest.mark.usefixtures("short_training")
def test_the_python_of_the_readme_runs_on_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_labelled_photos(here)
    for name in ("a.jpg", "b.jpg"):
        picture(100, seed=3).save(here / "photos" / name)
    (snippet,) = blocks(README, "python")
    assert len([line for line in snippet.splitlines() if line and not line.startswith("import")]) <= 6
    run_python(README, snippet, names := {})
    assert list(names["table"]["file"]) == ["photos/a.jpg", "photos/b.jpg"]
    assert "report.html" in capsys.readouterr().out
    always, optional = run_folder_files()
    assert shown(here / "runs" / "first") <= always | optional


def test_the_run_folder_holds_what_the_page_lists(here: Path) -> None:
    tiny = {"net": {"name": "small"}, "train": {"steps": 2}, "batch": {"labelled": 4, "unlabelled": 8}}
    run(build_config(with_recipe(tiny, "digits")), here / "run")
    assert shown(here / "run") == run_folder_files()[0]


@needs_weights
def test_the_tutorial_goes_through(here: Path) -> None:
    page = ROOT / "docs" / "tutorial.md"
    run_page(page)
    assert len(list((here / "photos").iterdir())) == 120
    always, optional = run_folder_files()
    assert shown(here / "runs" / "photos") == always - {"test_predictions.parquet"} | optional
    columns = (here / "predictions.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert columns == [name for row in table(page.read_text(encoding="utf-8")) for name in row[0].split(", ")]
    assert (here / "report.html").exists()


def test_the_report_has_the_headings_that_the_tutorial_names() -> None:
    template = (ROOT / "unissl" / "report" / "page.html.jinja").read_text(encoding="utf-8")
    headings = set(re.findall(r"<(?:h2|h3|summary)[^>]*>([^<{]+)<", template))
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\*\*([^*]+)\*\*", tutorial.split("## Read the report")[1].split("\n## ")[0]))
    assert named - headings == set()
    assert {heading for heading in re.findall(r"<h2[^>]*>([^<{]+)<", template)} - named == set()


@needs_weights
def test_the_commands_of_the_page_on_settings_run(here: Path) -> None:
    make_labelled_photos(here)
    (here / "config.toml").write_text(named_block(SETTINGS, "config.toml"), encoding="utf-8")
    save_vit(here / "models" / "vit")
    save_file(build("wrn-10-1", 2).state_dict(), here / "weights.safetensors")
    (here / "my_networks.py").write_text(
        "from torch import nn\n\n\n"
        "def tiny():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n",
        encoding="utf-8",
    )
    run_page(SETTINGS, "--no-baseline", "--no-report", "--set", "train.cv_folds=0")
    sys.modules.pop("my_networks", None)
    expected = {"tuned", "from-file", "vit", "weights", "factory", "tuned-blocks"}
    assert {path.name for path in (here / "runs").iterdir()} == expected


def test_the_settings_and_recipes_of_the_page_exist() -> None:
    settings, recipes = SETTINGS.read_text(encoding="utf-8").split("\n## Recipes")
    config = build_config({})
    keys = [key for row in table(settings) for key in row[0].split(", ") if not key.startswith("--")]
    assert [key for key in keys if not hasattr(getattr(config, key.split(".")[0]), key.split(".")[1])] == []
    assert {row[0] for row in table(recipes)} == set(RECIPES)


@needs_weights
@pytest.mark.usefixtures("short_training")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_python_of_the_api_page_runs(here: Path) -> None:
    make_tutorial_photos()
    run_page(ROOT / "docs" / "api.md")
    assert (here / "model.onnx.json").exists() and (here / "predictions.csv").exists()


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"- [^:\n]+: (\S+\.md)$", text.split("\nnav:")[1], re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} - {"package.md"}
    assert sorted(listed) == sorted(pages | {"index.md", "CONTRIBUTING.md", "CHANGELOG.md"})


def test_the_page_of_the_package_has_nothing_that_a_registry_cannot_show() -> None:
    text = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
    assert "](" not in text and 'readme = "docs/package.md"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_citation_has_the_version_and_the_paper_of_the_readme() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {unissl.__version__}\n" in citation and "name: unissl contributors" in citation
    authors = re.findall(r"family-names: (\w+)\n +given-names: (\w+)", citation)
    assert " and ".join(", ".join(names) for names in authors) in README.read_text(encoding="utf-8")


def test_the_example_data_set_loads(here: Path) -> None:
    page = ROOT / "docs" / "extend" / "dataset.md"
    run_python(page, blocks(page, "python")[0], names := {})
    with pytest.raises(UserError, match="tiny was not found"):
        names["load_tiny"](DataConfig(name="tiny", root=str(here)))
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
    np.save(here / "images.npy", images)
    np.save(here / "labels.npy", np.arange(6) % 2)
    dataset = names["load_tiny"](DataConfig(name="tiny", root=str(here)))
    assert np.array_equal(dataset.train.images, images) and dataset.train.labels.tolist() == [0, 1, 0, 1, 0, 1]
    np.save(here / "labels.npy", np.arange(6))
    with pytest.raises(UserError, match="labels outside 0 and 1"):
        names["load_tiny"](DataConfig(name="tiny", root=str(here)))


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
