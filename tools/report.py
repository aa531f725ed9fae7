"""Tables of measurements in a document: the text above a mark is written by people, what follows by a tool."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from msformat.atomic import output_file

__all__ = ["machine", "markdown_table", "replace_tables"]

MARK = "<!-- Below, everything is written by a tool. -->"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown, pipes in cells escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def replace_tables(path: Path, text: str) -> None:
    """Put ``text`` below the mark of a document, in the place of what was there."""
    known = path.read_text(encoding="utf-8") if path.exists() else f"# {path.stem.capitalize()}\n\n{MARK}\n"
    above = known.split(MARK, maxsplit=1)[0].rstrip("\n")
    with output_file(path) as file:
        file.write(f"{above}\n\n{MARK}\n\n{text.rstrip()}\n".encode())


def machine() -> str:
    """This machine in words: date, processor, memory, system, versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return (
        f"{datetime.now(tz=timezone.utc):%Y-%m-%d}, {_processor()}, {os.cpu_count()} CPUs, {memory} GiB of memory, "
        f"{platform.system()}, Python {platform.python_version()}"
    )


def _processor() -> str:
    """The processor as Linux names it."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
