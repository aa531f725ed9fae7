"""``msformat report`` and ``msformat view``: a dump, or two compared, as a page for people."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from typing import TYPE_CHECKING, Any

from msformat.cli.bars import EntriesBar
from msformat.cli.diff import add_selection, add_thresholds, options_of
from msformat.cli.inspect import PATH_HELP, add_command, wanted_keys
from msformat.cli.output import bytes_text, check_output, executor_of, plain, print_json, problem

if TYPE_CHECKING:
    from msformat.pages.page import PageReport
    from msformat.pages.server import PageServer
    from msformat.pages.unitpage import PageSource

__all__ = ["add_commands"]

_SIZE = 64
_LARGEST_PORT = 65535


def add_commands(commands: Any) -> None:
    """Add ``report`` and ``view`` to the command line."""
    report = add_command(commands, "report", "one self-contained HTML page about a dump, or two compared")
    _add_dumps(report)
    report.add_argument("-o", "--output", required=True, metavar="FILE", help="where the page goes: report.html")
    report.add_argument(
        "--size", type=_megabytes, default=_SIZE, metavar="MB", help=f"about the largest page to make (default {_SIZE})"
    )
    report.add_argument("--json", action="store_true", help="print what was found at its top as JSON")
    report.set_defaults(run=_report)
    view = add_command(commands, "view", "serve the same page on this machine, for dumps of any size")
    _add_dumps(view)
    view.add_argument("--port", type=_port, default=0, metavar="N", help="port on loopback (default: any that is free)")
    view.add_argument("--open", action="store_true", help="open the page in the browser")
    view.set_defaults(run=_view)


def _add_dumps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=f"the dump: {PATH_HELP}")
    parser.add_argument("b", metavar="B", nargs="?", help="a reference to compare it with, as `msformat diff` does")
    add_selection(parser)
    add_thresholds(parser)
    parser.set_defaults(context=6)


def _megabytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 2000):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give megabytes from 1 to 2000")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _LARGEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


def _report(arguments: argparse.Namespace) -> int:
    from msformat.pages.page import write_page  # noqa: PLC0415 (only this command pays for it)

    check_output(arguments.output, arguments.a, arguments.b)
    source = _source(arguments)
    with _Line() as line:
        done = write_page(source, arguments.output, most_bytes=arguments.size * 1_000_000, tell=line.say)
    for text in (*done.problems, *(f"no room in the page: {text}" for text in done.left_out)):
        problem(text)
    if arguments.json:
        print_json({"path": arguments.output, "bytes": done.size, "units": _units(source, done)})
    else:
        found = _trouble(source, done) or _calm(source, done)
        print(f"{plain(arguments.output)}: {bytes_text(done.size)}; {plain(found)}")
    if not _readable(done):
        return 2
    return 1 if done.problems or done.left_out else 0


def _units(source: PageSource, done: PageReport) -> list[dict[str, Any]]:
    return [{"unit": label, **row} for label, row in zip(source.labels, done.overviews, strict=True)]


def _readable(done: PageReport) -> list[dict[str, Any]]:
    """Overviews of units that could be read and hold something, if no more than a call tree."""
    return [row for row in done.overviews if row.get("entries") or row.get("calls")]


def _calm(source: PageSource, done: PageReport) -> str:
    """The headline in a line, where there is no trouble."""
    rows = _readable(done)
    is_pair = source.about()["kind"] == "comparison"
    tensors = sum(row["tensors"] for row in rows)
    if not rows:
        is_bad = any(row.get("problem") for row in done.overviews)
        return "nothing could be read" if is_bad else "nothing was recorded, or nothing that was asked for"
    if not tensors:
        return "no tensors were recorded"
    if tensors == sum(row["verdicts" if is_pair else "health"]["unknown"] for row in rows):
        return "only shapes and types are known"
    return "nothing differs beyond the thresholds" if is_pair else "no NaN, no overflow"


def _trouble(source: PageSource, done: PageReport) -> str | None:
    """The headline in a line, where there is trouble."""
    for label, row in zip(source.labels, done.overviews, strict=True):
        first = row.get("first")
        if first and first.get("health") != "masked":
            what = {"nan": "first NaN", "infinite": "first overflow"}.get(first.get("health"), "they part first")
            place = ".".join(filter(None, (first["slot"], first["path"]))) or first.get("scalar", "")
            return f"{what} at {first['key']} {place} in {label}"
    return None


def _view(arguments: argparse.Namespace) -> int:
    from msformat.pages.server import PageServer  # noqa: PLC0415

    with PageServer(_source(arguments), arguments.port) as server:
        try:
            _serve(server, arguments)
        except KeyboardInterrupt:
            print("\nstopped")
    return 0


def _serve(server: PageServer, arguments: argparse.Namespace) -> None:
    print(f"Open {server.url}\nin a browser on this machine. Ctrl-C ends it.", flush=True)
    if arguments.open:
        webbrowser.open(server.url)
    server.serve_forever()


def _source(arguments: argparse.Namespace) -> PageSource:
    return _one(arguments) if arguments.b is None else _two(arguments)


def _one(arguments: argparse.Namespace) -> PageSource:
    import msformat  # noqa: PLC0415
    from msformat.pages.dumps import DumpPages  # noqa: PLC0415

    dump = msformat.open(arguments.a, layout=arguments.layout)
    return DumpPages(dump, wanted_keys(dump, arguments.a, arguments), tuple(arguments.filter or ()))


def _two(arguments: argparse.Namespace) -> PageSource:
    import msformat  # noqa: PLC0415
    from msformat.compare.run import diff  # noqa: PLC0415
    from msformat.pages.pairs import ComparisonPages  # noqa: PLC0415

    show = sys.stderr.isatty()
    with executor_of(arguments.dask) as executor, EntriesBar(enabled=show) as bar:
        result = diff(arguments.a, arguments.b, options_of(arguments), bar if show else None, executor=executor)
    dumps = [msformat.open(os.fspath(path), layout=arguments.layout) for path in (arguments.a, arguments.b)]
    return ComparisonPages(result, *dumps)


class _Line:
    """One line on a terminal that says what is being worked on."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def say(self, label: str) -> None:
        """Replace the line."""
        if self._is_shown:
            sys.stderr.write(f"\r\x1b[K{plain(label)[:70]}")
            sys.stderr.flush()
