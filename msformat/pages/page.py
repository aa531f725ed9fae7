"""Pages of HTML: everything in one file that asks nobody for anything, or the same without data, for a server."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from msformat.atomic import output_file
from msformat.errors import MsformatError
from msformat.pages.packing import script_json
from msformat.pages.unitpage import PageSource, encode_unit
from msformat.plaintext import shortened

__all__ = ["PageReport", "served_page", "write_page"]

# In this order they are one script.
_SCRIPTS = ("text.js", "data.js", "tree.js", "chart.js", "figures.js", "details.js", "headline.js", "app.js")
_STYLES = ("page.css",)
_TRIES = 8
# Below so many bytes a part of a unit is not worth having.
_LEAST_ROOM = 1 << 16

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PageReport:
    """What became of a page.

    Attributes
    ----------
    size
        Bytes.
    left_out
        What there was no room for, in sentences.
    problems
        What could not be read, or not all of it, in sentences.
    overviews
        Of each unit, as in the page.
    """

    size: int
    left_out: tuple[str, ...]
    problems: tuple[str, ...]
    overviews: tuple[dict[str, Any], ...]


def write_page(
    source: PageSource, path: str | os.PathLike[str], *, most_bytes: int, tell: Tell | None = None
) -> PageReport:
    """Write a self-contained page, whole or not at all.

    Parameters
    ----------
    source
        What it shows.
    path
        The file.
    most_bytes
        About how large the page may be. Units, and parts of one, that have no room are left out, and the page says so.
    tell
        Called with the label of each unit that is worked on.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    overviews = []
    for at, label in enumerate(source.labels):
        _tell(tell, label)
        overviews.append(source.overview(at))
    blocks, left_out = _unit_blocks(source, overviews, most_bytes, tell)
    about = {**source.about(), "labels": _labels(source), "overviews": overviews, "leftOut": left_out, "served": False}
    data = [_block("about", script_json(about)), *(_block(f"unit-{at}", text) for at, text in blocks.items())]
    page = _page(_title(about), "\n".join(data), served=False).encode()
    with output_file(path) as stream:
        stream.write(page)
    problems = tuple(_problems(source, overviews))
    return PageReport(len(page), tuple(left_out), problems, tuple(overviews))


def served_page(source: PageSource) -> str:
    """The page without units: it asks its server for them."""
    about = {**source.about(), "labels": _labels(source), "overviews": [], "leftOut": [], "served": True}
    return _page(_title(about), _block("about", script_json(about)), served=True)


def _labels(source: PageSource) -> list[str]:
    return [shortened(label, 200) for label in source.labels]


def _title(about: dict[str, Any]) -> str:
    return " against ".join(about["sides"])


def _problems(source: PageSource, overviews: list[dict[str, Any]]) -> Iterator[str]:
    for label, row in zip(source.labels, overviews, strict=True):
        texts = [row["problem"]] if row.get("problem") else row["notes"]
        yield from (f"{label}: {text}" for text in texts)


def _tell(tell: Tell | None, label: str) -> None:
    if tell is not None:
        tell(label)


# --- units, as far as there is room ----------------------------------------------------------------------------------


def _unit_blocks(
    source: PageSource, overviews: list[dict[str, Any]], room: int, tell: Tell | None
) -> tuple[dict[int, str], list[str]]:
    """JSON of units by number, and what was left out. The first unit with trouble goes first."""
    blocks: dict[int, str] = {}
    left_out: list[str] = []
    readable = [at for at, row in enumerate(overviews) if not row.get("problem")]
    for at in sorted(readable, key=lambda at: not overviews[at].get("first")):
        _tell(tell, source.labels[at])
        text, missing = _fitted(source, at, room)
        if missing:
            left_out.append(f"{source.labels[at]}: {missing}")
        if text is not None:
            blocks[at] = text
            room -= len(text)
    return blocks, left_out


def _fitted(source: PageSource, at: int, room: int) -> tuple[str | None, str]:
    """JSON of a unit of at most ``room`` bytes; what had to be left out of it, in words."""
    if room < _LEAST_ROOM:
        return None, "left out whole"
    try:
        unit = source.unit(at)
    except (MsformatError, OSError, MemoryError) as error:
        return None, str(error) or type(error).__name__
    most = len(unit.keys)
    for _ in range(_TRIES):
        text = script_json(encode_unit(unit, most))
        if len(text) <= room:
            missing = len(unit.keys) - most
            return text, f"{missing} of {len(unit.keys)} entries left out" if missing else ""
        most = int(most * min(0.9, 0.95 * room / len(text)))
    return None, "left out whole"


# --- the page ------------------------------------------------------------------------------------------------------


def _block(name: str, text: str) -> str:
    return f'<script type="application/json" id="{name}">{text}</script>'


def _page(title: str, data: str, *, served: bool) -> str:
    # In a block, so that no name of ours becomes one of the window's.
    script, style = f'\n"use strict";\n{{{_asset(_SCRIPTS)}}}\n', _asset(_STYLES)
    parts = {
        "title": html.escape(title),
        "policy": _policy(script, style, served=served),
        "style": style,
        "data": data,
        "script": script,
    }
    template = files("msformat.pages").joinpath("page.html").read_text("utf-8")
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], template)


def _asset(names: tuple[str, ...]) -> str:
    folder = files("msformat.pages")
    return "\n" + "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


def _policy(script: str, style: str, *, served: bool) -> str:
    """A content security policy that lets this script and this style run, and nothing be fetched."""
    allowed = {
        "default-src": "'none'",
        "script-src": _digest(script),
        "style-src": _digest(style),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    if served:
        allowed["connect-src"] = "'self'"
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
