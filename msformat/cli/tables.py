"""Tables for people: columns where they fit the terminal, a paragraph a row where they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msformat.cli.output import console, plain

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["print_table"]

# Of longer ones rich takes a millisecond a row, to draw the same.
_PLAIN_FROM = 200
# Wider than any terminal: what a table would like to be.
_ENDLESS = 100_000


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    right: Sequence[str] = (),
    total: Sequence[object] | None = None,
) -> None:
    """Print rows below the names of their columns. None is an empty cell.

    Parameters
    ----------
    columns, rows
        Names, and as many cells a row. On a terminal too narrow for them each row becomes a paragraph that begins with
        its first cell: nobody reads cells folded after five letters.
    title
        A line above.
    right
        Columns with numbers.
    total
        A last row, set apart; left out below fewer than two rows.
    """
    from rich.measure import Measurement  # noqa: PLC0415 (only commands that draw pay for it)

    cells = [_cells(row) for row in rows]
    last = _cells(total) if total is not None and len(cells) > 1 else None
    target = console()
    if len(cells) > _PLAIN_FROM:
        _print_plain(columns, cells, last, title, right, target.width)
        return
    table = _table(columns, cells, last, title, right)
    wanted = Measurement.get(target, target.options.update(max_width=_ENDLESS), table).maximum
    if wanted <= target.width:
        target.print(table)
        return
    _print_paragraphs(columns, [*cells, last] if last else cells, title, target.width)


def _print_paragraphs(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, width: int) -> None:
    if title:
        print(title)
    for row in rows:
        print("\n".join(_paragraph(columns, row, width)))


def _print_plain(
    columns: Sequence[str],
    cells: list[list[str]],
    last: list[str] | None,
    title: str,
    right: Sequence[str],
    width: int,
) -> None:
    """The table that rich draws of short ones: columns two spaces apart, rules below their names and above the sums."""
    rows = [*cells, last] if last else cells
    widths = [max(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    whole = sum(widths) + 2 * len(widths)
    if whole > width:
        _print_paragraphs(columns, rows, title, width)
        return
    rule = " " + "─" * whole
    lines = [title] if title else []
    lines += [_aligned(columns, columns, widths, right), rule]
    lines += [_aligned(columns, row, widths, right) for row in cells]
    lines += [rule, _aligned(columns, last, widths, right)] if last else []
    print("\n".join(lines))


def _aligned(columns: Sequence[str], row: Sequence[str], widths: Sequence[int], right: Sequence[str]) -> str:
    padded = (
        " " * (width - _width(cell)) + cell if name in right else cell + " " * (width - _width(cell))
        for name, cell, width in zip(columns, row, widths, strict=True)
    )
    return " " + "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415

    return cell_len(text)


def _cells(row: Sequence[object]) -> list[str]:
    return ["" if cell is None else plain(str(cell)) for cell in row]


def _table(
    columns: Sequence[str], cells: list[list[str]], last: list[str] | None, title: str, right: Sequence[str]
) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    if last is not None:
        table.add_section()
        table.add_row(*map(Text, last))
    return table


def _paragraph(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """The first cell, then ``name cell`` pairs as many as fit a line. Names and cells are never cut."""
    from rich.cells import cell_len  # noqa: PLC0415

    yield row[0]
    line = ""
    for name, cell in zip(columns[1:], row[1:], strict=True):
        if not cell:
            continue
        pair = f"  {name} {cell}"
        if line and cell_len(line) + cell_len(pair) > width:
            yield line
            line = ""
        line += pair
    if line:
        yield line
