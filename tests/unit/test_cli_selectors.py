"""Lists of steps and ranks as people type them."""

from __future__ import annotations

import argparse

import pytest

from msformat.cli.selectors import parse_ranks, parse_steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [("0", {0}), ("0,2-4", {0, 2, 3, 4}), (" 7 , step3 ", {3, 7}), ("10-10", {10}), ("9" * 18, {10**18 - 1})],
)
def test_steps(text: str, steps: set[int]) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize(
    ("text", "ranks"), [("0-2", {0, 1, 2}), ("rank", {"rank"}), ("proc12,3", {"proc12", 3}), ("rank10", {"rank10"})]
)
def test_ranks(text: str, ranks: set[int | str]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", ",", "x", "4-2", "-1", "1.5", "0-99999999", "٣", "9" * 19, "9" * 5000])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_steps(text)
    with pytest.raises(argparse.ArgumentTypeError):
        parse_ranks(text)
