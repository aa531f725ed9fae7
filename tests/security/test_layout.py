"""A tree made by a stranger leads nowhere outside itself, hangs nothing and hides nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from msformat.errors import FormatError, MsformatError, StoreError, UnsafeInputError
from msformat.layout import find_units, unit_backend


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    unit = tmp_path / "tree/step0/rank0"
    unit.mkdir(parents=True)
    (unit / "dump.json").write_bytes(b"{}")
    secret = tmp_path / "secret/step0/rank0"
    secret.mkdir(parents=True)
    (secret / "dump.json").write_bytes(b"{}")
    return tmp_path / "tree"


def found(path: Path) -> list[str]:
    return [unit.key.path for unit in find_units(path)[0]]


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("step1", "../secret/step0"),
        ("step0/rank1", "../../secret/step0/rank0"),
        ("graph", "../secret"),
        ("step0/rank2", "/"),
        ("step0/rank3", "dangling"),
    ],
)
def test_links_out_of_the_tree_are_named_and_not_followed(tree: Path, link: str, target: str) -> None:
    (tree / link).symlink_to(target)
    units, problems = find_units(tree)
    assert [unit.key.path for unit in units] == ["step0/rank0"]
    assert any(problem.startswith(f"{tree / link}: ") for problem in problems)


def test_a_document_that_is_a_link_outside_makes_no_unit(tree: Path) -> None:
    (tree / "step0/rank1").mkdir()
    for name in ("dump.json", "dump.h5", "dump.zarr", "journal.jsonl"):
        (tree / "step0/rank1" / name).symlink_to(tree.parent / "secret/step0/rank0/dump.json")
    assert found(tree) == ["step0/rank0"]
    assert unit_backend(str(tree / "step0/rank1")) is None
    with pytest.raises(FormatError, match="leads outside"):
        find_units(tree / "step0/rank1")


def test_links_inside_the_tree_are_followed(tree: Path) -> None:
    (tree / "step1").symlink_to("step0")
    assert found(tree) == ["step0/rank0", "step1/rank0"]


def test_a_tree_that_is_itself_a_link_is_the_users_choice(tree: Path) -> None:
    (tree.parent / "latest").symlink_to(tree)
    assert found(tree.parent / "latest") == ["step0/rank0"]


def test_links_in_circles_end(tree: Path) -> None:
    (tree / "graph").symlink_to(".")
    (tree / "step0/rank1").symlink_to("..")
    (tree / "again").symlink_to(".")
    (tree / "self").symlink_to("self")
    assert found(tree) == ["step0/rank0", "graph/step0/rank0"]
    (tree / "step0/rank0/dump.json").unlink()
    with pytest.raises(FormatError, match="no dump found"):
        find_units(tree)


@pytest.mark.parametrize("place", ["step0/rank1/dump.json", "step0/rank1", "step1", "dump.json", "step0/rank0/pipe"])
@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_pipes_and_sockets_neither_hang_nor_count(
    tree: Path, place: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree / place
    path.parent.mkdir(exist_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        # Socket paths are limited to about 100 bytes.
        monkeypatch.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    units, problems = find_units(tree)
    assert [unit.key.path for unit in units] == ["step0/rank0"]
    assert any(problem.startswith(f"{path}: ") for problem in problems)
    with pytest.raises(UnsafeInputError):
        find_units(path)


def test_odd_names_do_not_raise(tree: Path) -> None:
    names = ["step" + "9" * 200, "step-1", "step٣", "rank\n", "step0 ", "%2e%2e", "step0\\rank", "Step1", "rank_"]
    for name in names:
        (tree / name).mkdir()
    os.mkdir(os.fsencode(tree) + b"/rank\xff")
    assert found(tree) == ["step0/rank0"]


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "tree/\ud800"])
def test_odd_paths_give_our_errors(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MsformatError):
        find_units(path)


def test_a_directory_that_vanishes_or_cannot_be_read_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "step0/rank1").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("rank1") or str(path) == str(tree.parent / "secret"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    units, problems = find_units(tree)
    assert [unit.key.path for unit in units] == ["step0/rank0"]
    assert any("Permission denied" in problem and "rank1" in problem for problem in problems)
    with pytest.raises(StoreError, match="Permission denied"):
        find_units(tree.parent / "secret")


def test_a_huge_flat_directory_is_searched_only_so_far(tmp_path: Path) -> None:
    for number in range(1005):
        (tmp_path / f"d{number}").mkdir()
    with pytest.raises(FormatError, match="not all were searched"):
        find_units(tmp_path)


def test_no_file_is_opened_to_find_units(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise AssertionError("opened a file")

    monkeypatch.setattr(os, "open", refuse)
    assert found(tree) == ["step0/rank0"]


def test_a_directory_that_cannot_be_listed_is_one_problem(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not bind root, so the system's answer is made up."""
    real = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("step1"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    (tree / "step1").mkdir(exist_ok=True)
    monkeypatch.setattr(os, "scandir", refuse)
    units, problems = find_units(tree)
    assert units
    assert [text for text in problems if "step1" in text] == [
        f"{tree / 'step1'}: cannot be listed: [Errno 13] Permission denied: {str(tree / 'step1')!r}"
    ]
