"""Links out of an images folder are not followed unless ``data.follow_links`` asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from unissl.data import DataConfig, load, scan_folder
from unissl.data.folder.index import LINK_OUT, find_images, index_test_folder
from unissl.errors import UserError
from unissl.inference.image_source import open_images
from unissl.run.config import build_config, config_hash, effective_tree

pytestmark = pytest.mark.adversary


def make_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (200, 30, 30)).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        make_image(tmp_path / "photos" / name / "a.png")
    make_image(tmp_path / "elsewhere" / "z.png")
    return tmp_path / "photos"


def test_a_link_out_is_skipped_and_listed(photos: Path) -> None:
    elsewhere = photos.parent / "elsewhere"
    (photos / "unlabeled").mkdir()
    (photos / "unlabeled" / "folder").symlink_to(elsewhere)
    (photos / "unlabeled" / "file.png").symlink_to(elsewhere / "z.png")
    (photos / "cat" / "inside.png").symlink_to(photos / "dog" / "a.png")
    table = load(DataConfig(name="folder", root=str(photos))).train
    assert table.files == ("cat/a.png", "cat/inside.png", "dog/a.png")
    assert table.skipped == (("unlabeled/file.png", LINK_OUT), ("unlabeled/folder", LINK_OUT))
    followed = load(DataConfig(name="folder", root=str(photos), follow_links=True)).train
    assert followed.files is not None and {"unlabeled/file.png", "unlabeled/folder/z.png"} < set(followed.files)


def test_the_system_is_not_walked(photos: Path) -> None:
    (photos / "cat" / "proc").symlink_to("/proc")
    (photos / "cat" / "root").symlink_to("/")
    assert list(find_images(photos).files) == ["cat/a.png", "dog/a.png"]


@pytest.mark.parametrize("name", ["bird", "unlabeled"])
def test_a_class_folder_or_pool_that_is_a_link_is_refused_with_the_switch(photos: Path, name: str) -> None:
    (photos / name).symlink_to(photos.parent / "elsewhere")
    with pytest.raises(UserError, match=rf"photos/{name} is a link to .*elsewhere.*--set data\.follow_links=true"):
        scan_folder(DataConfig(name="folder", root=str(photos)))


def test_a_class_folder_full_of_links_is_refused_with_the_switch(photos: Path) -> None:
    (photos / "bird").mkdir()
    (photos / "bird" / "z.png").symlink_to(photos.parent / "elsewhere" / "z.png")
    with pytest.raises(UserError, match=r"photos/bird holds only links to files elsewhere.*data\.follow_links=true"):
        scan_folder(DataConfig(name="folder", root=str(photos)))


@pytest.mark.parametrize("file", ["link.png", "folder/z.png"])
def test_a_label_file_names_nothing_behind_a_link(photos: Path, file: str) -> None:
    (photos / "link.png").symlink_to(photos.parent / "elsewhere" / "z.png")
    (photos / "folder").symlink_to(photos.parent / "elsewhere")
    (photos / "labels.csv").write_text(f"file,label\ncat/a.png,cat\n{file},dog\n")
    config = DataConfig(name="folder", root=str(photos), labels="labels.csv")
    with pytest.raises(UserError, match=r"behind a link out of .*data\.follow_links=true"):
        scan_folder(config)
    index = scan_folder(config.model_copy(update={"follow_links": True}))
    assert index is not None and file in index.files


def test_test_folders_and_predictions_skip_them_too(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    (photos / "dog" / "z.png").symlink_to(photos.parent / "elsewhere" / "z.png")
    assert index_test_folder(photos, ("cat", "dog")).files == ("cat/a.png", "dog/a.png")
    with caplog.at_level("WARNING", logger="unissl"):
        assert len(open_images(photos)) == 2
    assert "dog/z.png: a link out of the folder" in caplog.text
    assert len(open_images(photos / "dog" / "z.png")) == 1  # named by the user
    (photos / "bird").symlink_to(photos.parent / "elsewhere")
    with pytest.raises(UserError, match=r"photos/bird is a link"):
        index_test_folder(photos, ("bird", "cat", "dog"))


def test_the_setting_is_part_of_the_configuration_only_where_it_is_on() -> None:
    off, on = (build_config({"data": {"name": "folder", "root": "x", "follow_links": on}}) for on in (False, True))
    assert "follow_links" not in effective_tree(off)["data"] and effective_tree(on)["data"]["follow_links"]
    assert config_hash(off) != config_hash(on)
