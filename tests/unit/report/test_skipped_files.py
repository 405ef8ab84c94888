"""Skipped files: grouped by reason, none lost."""

from __future__ import annotations

from unissl.report.data import group_skipped_files


def skipped(*reasons: str) -> list[dict[str, str]]:
    return [{"file": f"{number}.jpg", "reason": reason} for number, reason in enumerate(reasons)]


def test_every_file_is_in_one_kind_and_frequent_kinds_come_first() -> None:
    found = group_skipped_files(skipped("empty", "a pipe", "a pipe", "empty", "a pipe"))
    assert found == [
        ("a pipe", ["1.jpg", "2.jpg", "4.jpg"]),
        ("empty", ["0.jpg", "3.jpg"]),
    ]


def test_details_of_a_file_make_no_kind() -> None:
    found = group_skipped_files(
        skipped(
            "more than 100 megapixels (9 x 9)",
            "more than 100 megapixels (8 x 8)",
            "2 image(s) loose",
            "1 image(s) loose",
        )
    )
    assert [len(files) for _, files in found] == [2, 2]
    assert found[0][0] == "more than 100 megapixels (9 x 9)"


def test_a_rare_kind_is_not_hidden_by_a_frequent_one() -> None:
    found = group_skipped_files(skipped(*["empty"] * 1000, "a pipe"))
    assert [reason for reason, _ in found] == ["empty", "a pipe"]
    assert group_skipped_files([]) == []
