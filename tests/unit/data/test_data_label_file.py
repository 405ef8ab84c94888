"""A label file as spreadsheets, scripts and people write it; and each way in which it can be wrong."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from unissl.data.folder.labels import read_label_file
from unissl.errors import UserError

FILES = ("a.png", "sub/b.JPG", "sub/c.jpeg", "d.png", "d.jpg", "two\nlines.png", "semi;colon,comma.png", "é.png")
EXPECTED = {"a.png": "cat", "sub/b.JPG": "dog"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).touch()
    (tmp_path / "outside.png").touch()
    return tmp_path / "photos"


def read(root: Path, text: str | bytes, name: str = "labels.csv") -> dict[str, str | None]:
    path = root / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_label_file(path, root, sorted(FILES)).labels


def refused(root: Path, text: str | bytes) -> str:
    with pytest.raises(UserError) as error:
        read(root, text)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("file", ["file", "FileName", "File Name", "image", "path", "ID", "img-path", "Image_ID"])
@pytest.mark.parametrize("label", ["label", "Class", "CATEGORY", "target", "class name"])
def test_columns_are_found_by_name(root: Path, file: str, label: str) -> None:
    text = f"width,{label},x,{file}\n3,cat,,a.png\n4,dog,,sub/b.JPG\n"
    assert read(root, text) == EXPECTED


def test_an_id_is_the_file_only_where_there_is_no_better_column(root: Path) -> None:
    assert read(root, "id,label_id,path,label\n7,0,a.png,cat\n8,1,sub/b.JPG,dog\n") == EXPECTED


@pytest.mark.parametrize(
    "text",
    [
        "a.png,cat\nsub/b.JPG,dog\n",
        "cat,a.png\ndog,sub/b.JPG\n",
        "my own name,label\na.png,cat\nsub/b.JPG,dog\n",
        "file,what it is\na.png,cat\nsub/b.JPG,dog\n",
        "a.png;cat\r\nsub/b.JPG;dog\r\n",
        "a.png\tcat\nsub/b.JPG\tdog",
        "\ufeff\"file\",\"label\"\r\n\"a.png\",\"cat\"\r\n\r\n\"sub/b.JPG\",\"dog\"\r\n",
        "a.png , cat \n sub\\b.JPG, dog\n,\n",
        ".\\a.png,cat\n./sub/../sub/b.JPG,dog\n",
        "a,cat\nsub/b,dog\n",
        "A.PNG,cat\nSub/B.jpg,dog\n",
        "photos/a.png,cat\nphotos/sub/b,dog\n",
        "a.png,cat\nsub/b.JPG,dog\na.png,cat\n./a.png,cat\na,cat\n",
        "a.png,cat\rsub/b.JPG,dog\r",
    ],
)  # fmt: skip
def test_all_of_these_mean_the_same(root: Path, text: str) -> None:
    (root.parent / "beside.csv").write_bytes(text.encode())
    found = read_label_file(root.parent / "beside.csv", root, sorted(FILES))
    assert found.labels == EXPECTED and not found.conflicts and not found.issues()


def test_absolute_paths_also_through_a_link(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    text = f"{root}/a.png,cat\n{link}/sub/b,dog\n"
    assert read(root, text) == EXPECTED
    assert read_label_file(root / "labels.csv", link, sorted(FILES)).labels == EXPECTED


def test_a_class_that_is_called_like_a_column(root: Path) -> None:
    assert read(root, "a.png,target\nsub/b.JPG,class\n") == {"a.png": "target", "sub/b.JPG": "class"}


def test_names_that_need_quotes(root: Path) -> None:
    text = 'file;label\n"two\nlines.png";"a;b"\n"semi;colon,comma.png";cat\n'
    assert read(root, text) == {"two\nlines.png": "a;b", "semi;colon,comma.png": "cat"}


def test_commas_in_labels_do_not_pass_for_separators(root: Path) -> None:
    assert read(root, "a.png;cat, small\nsub/b.JPG;dog\n") == {"a.png": "cat, small", "sub/b.JPG": "dog"}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_may_be_composed_or_not(root: Path, form: str) -> None:
    assert read(root, unicodedata.normalize(form, "é.png,cat\na.png,dog\n"))["é.png"] == "cat"  # type: ignore[arg-type]


def test_empty_label_is_unlabelled(root: Path) -> None:
    assert read(root, "file,label\na.png,\nsub/b.JPG,-1\nd.png,cat\n") == {
        "a.png": None,
        "sub/b.JPG": None,
        "d.png": "cat",
    }


def test_where_the_file_system_takes_two_spellings_for_one_file_the_listing_decides(root: Path) -> None:
    os.link(root / "a.png", root / "A.PNG")  # what a disk that ignores capitals would answer
    (root / "labels.csv").write_text("A.PNG,cat\n")
    assert read_label_file(root / "labels.csv", root, ["a.png"]).labels == {"a.png": "cat"}


@pytest.mark.parametrize("other", ["a.png", "./a.png", "A", "sub/../a.png"])
def test_a_file_with_several_labels_is_used_without_any(root: Path, other: str) -> None:
    text = f"a.png,cat\nd.png,cat\nd.jpg,dog\n{other},dog\nsub/b.JPG,dog\nsub/b.JPG,\né.png,dog\né.png,cat\n"
    (root / "labels.csv").write_text(text, encoding="utf-8")
    found = read_label_file(root / "labels.csv", root, sorted(FILES))
    assert found.labels == {"a.png": None, "d.png": "cat", "d.jpg": "dog", "sub/b.JPG": None, "é.png": None}
    assert found.issues() == {
        "has several labels in the label file ('cat' and 'dog'); used without a label": ("a.png", "é.png"),
        "has several labels in the label file ('dog' and none); used without a label": ("sub/b.JPG",),
    }


def test_several_labels_are_refused_where_a_class_would_lose_its_last(root: Path) -> None:
    said = refused(root, "a.png,cat\nd.png,cat\na.png,dog\n")
    assert (
        "gives a.png several labels, 'cat' and 'dog', and no other image is labelled 'dog'; keep one of them." in said
    )
    assert "several labels, 'cat' and none, and no other" in refused(root, "a.png,cat\na.png,\n")
    assert r"'two\nlines.png'" in refused(root, '"two\nlines.png",cat\n"two\nlines.png",dog\n')


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "d,cat\n",
            "Line 1 of {path} names 'd', which may be 'd.jpg' or 'd.png'; write the path in full.",
        ),
        ("a.png,cat\nnone.png,dog\n", "Line 2 of {path} names 'none.png', and there is no such file in {root}"),
        ("a.png,cat\n" + "x" * 5000 + ".png,dog\n", "no such file"),
        ("a.png,cat\n../outside.png,dog\n", "names '../outside.png', which is outside {root}; move it there"),
        ("a.png,cat\nsub,dog\n", "Line 2 of {path} names 'sub', and there is no such file"),
        ("a.png,cat\nsub/b.JPG\n", "Line 2 of {path} has too few columns"),
        ("a.png cat\nsub/b.JPG dog\n", "needs a header line with the columns file and label, separated by , ; or tab"),
        ("a.png,cat,1\n", "needs a header line"),
        ("when,who,what\n1,a.png,cat\n", "(found: when, who, what)"),
        ("file,label,label\na.png,cat,dog\n", "has 2 columns named 'label'; rename or remove all but one of them."),
        ("File Name,file-name,label\na.png,a.png,dog\n", "has 2 columns named 'file_name'"),
        ("label,label\ncat,a.png\n", "has 2 columns named 'label'"),
        ('"a.png,cat\nsub/b.JPG,dog\n', "is not a table of cells"),
        ("\n\r\n , \n", "is empty"),
        ("é.png,cat\n".encode("latin-1"), "is not UTF-8 text; save it as CSV with UTF-8 encoding"),
        ("a.png,cat\n".encode("utf-16"), "is not UTF-8 text"),
    ],
)
def test_refusals(root: Path, text: str | bytes, sentence: str) -> None:
    assert sentence.format(path=root / "labels.csv", root=root) in refused(root, text)


def test_most_lines_are_matched_without_a_look_at_the_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million lines take seconds: relative to the folder or to the file, absolute, with backslashes."""
    images = [f"{folder}/{number}.png" for folder in "ab" for number in range(50)]
    forms = ("{}", "photos/{}", f"{root}/{{}}", "./{}")
    lines = [f"{forms[row % 4].format(image)},{row % 3}" for row, image in enumerate(images)]
    lines += [image.replace("/", "\\") + ",0" for image in images[::3]]
    path = root.parent / "labels.csv"
    path.write_text("\n".join(lines))
    calls = []
    isfile, listdir = os.path.isfile, os.listdir
    monkeypatch.setattr(os.path, "isfile", lambda path: calls.append(path) or isfile(path))
    monkeypatch.setattr(os, "listdir", lambda path: calls.append(path) or listdir(path))
    expected = {image: str(row % 3) for row, image in enumerate(images)}
    assert read_label_file(path, root, images).labels == expected
    assert len(calls) <= 10  # once per folder, not per line
