"""What a person types: lists of steps and ranks (``0,2-4``, ``rank``, ``proc123``), and names."""

from __future__ import annotations

import argparse
import os
import re

__all__ = ["DASK_HELP", "FILTER_HELP", "add_selectors", "parse_name", "parse_ranks", "parse_steps"]

FILTER_HELP = "only names that contain PATTERN, or match it as a glob (Module.*.forward.*)"

# As in msformat.foreign.views, whose import would cost the command line its quick start.
_LAYOUTS = ("framework", "device")
DASK_HELP = "run units on the dask cluster at this address (tcp://host:8786) or of this scheduler file"
_LAYOUT_HELP = "axes of tensors in kernel dumps: the framework's, or as on the device (default framework)"

_MOST = 1_000_000


def add_selectors(parser: argparse.ArgumentParser, *, filters: bool = False) -> None:
    """Options that choose units, and the layout of kernel dumps; with ``filters``, entries by several patterns too."""
    parser.add_argument("--steps", type=parse_steps, metavar="LIST", help="only these steps: 0,2-4")
    parser.add_argument("--ranks", type=parse_ranks, metavar="LIST", help="only these ranks: 0,2-4, rank, proc123")
    if filters:
        parser.add_argument(
            "--filter", type=parse_name, action="append", metavar="PATTERN", help=f"{FILTER_HELP} (may repeat)"
        )
    parser.add_argument("--layout", choices=_LAYOUTS, default="framework", help=_LAYOUT_HELP)


def parse_name(text: str) -> str:
    """A name as it stands in documents, which are Unicode, also from a terminal whose locale is not (``LC_ALL=C``)."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def parse_steps(text: str) -> frozenset[int]:
    """``"0,2-4"`` as ``{0, 2, 3, 4}``; ``step3`` is fine too."""
    steps: set[int] = set()
    for part in _parts(text):
        found = _interval(part.removeprefix("step"))
        if found is None:
            raise argparse.ArgumentTypeError(f"{part!r} is no step: give numbers and intervals such as 0,2-4")
        steps.update(found)
    return frozenset(steps)


def parse_ranks(text: str) -> frozenset[int | str]:
    """``"0-3,rank,proc123"``: numbers mean ``rank{N}``, words are the directory's name."""
    ranks: set[int | str] = set()
    for part in _parts(text):
        found = _interval(part)
        if found is not None:
            ranks.update(found)
        elif re.fullmatch(r"rank|rank[0-9]+|proc[0-9]+", part):
            ranks.add(part)
        else:
            raise argparse.ArgumentTypeError(f"{part!r} is no rank: give 0,2-4, rank, rank3 or proc123")
    return frozenset(ranks)


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise argparse.ArgumentTypeError("the list is empty")
    return parts


def _interval(part: str) -> range | None:
    found = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
    if found is None:
        return None
    first = int(found[1])
    last = int(found[2]) if found[2] else first
    if last < first or last - first > _MOST:
        raise argparse.ArgumentTypeError(f"{part!r} is no interval")
    return range(first, last + 1)
