"""``msformat diff``: compare a dump with a reference."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msformat.cli.bars import EntriesBar
from msformat.cli.diffprint import print_result
from msformat.cli.inspect import PATH_HELP
from msformat.cli.output import check_output, executor_of, print_json, tell_problems
from msformat.cli.selectors import DASK_HELP, add_selectors

if TYPE_CHECKING:
    from msformat.compare.run import DiffOptions

__all__ = ["add_commands", "add_selection", "add_thresholds", "options_of"]

_EPILOG = """examples:
  msformat diff npu_dump/ gpu_dump/                 where do they part, and which tensors differ
  msformat diff a.h5 b.zarr -o result.xlsx          any two stores; the columns of `msprobe compare`
  msformat diff ms_dump/ torch_dump/ --map names.yaml --ignore-missing
                                                    MindSpore against PyTorch, with names that you know better
  msformat diff today/ golden/ --rtol 1e-3 --quiet  in CI: exit code 0 the same within thresholds, 1 not

exit codes: 0 the same within the thresholds, 1 different (or in part unreadable), 2 nothing could be compared
"""


def add_commands(commands: Any) -> None:
    """Add ``diff`` to the command line."""
    parser = commands.add_parser(
        "diff",
        help="compare a dump with a reference: where do they part first",
        description="Compare a dump with a reference: where do they part first, and how far is each tensor off.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help=f"the dump in question: {PATH_HELP}")
    parser.add_argument("b", metavar="B", help="the reference")
    add_selection(parser)
    add_thresholds(parser)
    _add_output(parser)
    parser.set_defaults(run=_run)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """What is compared, and how."""
    add_selectors(parser, filters=True)
    parser.add_argument("--map", metavar="FILE", help="names of A and what they are called in B, JSON or YAML")
    parser.add_argument(
        "--ignore-missing", action=argparse.BooleanOptionalAction, default=None,
        help="what one side lacks is no difference (default: only where frameworks differ)",
    )  # fmt: skip
    parser.add_argument(
        "--scalars", action=argparse.BooleanOptionalAction, default=True, help="compare plain arguments (default: yes)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="units at the same time (default 1)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="tensors of a unit at the same time (default 1, 8 for URLs)"
    )
    parser.add_argument("--dask", metavar="ADDRESS", help=f"{DASK_HELP}, instead of --jobs")


def add_thresholds(parser: argparse.ArgumentParser) -> None:
    """When a tensor is different."""
    group = parser.add_argument_group("thresholds", "what is beyond one of them is different; see docs/diff.md")
    group.add_argument("--rtol", type=float, metavar="X", help="norm of the error by that of B (default: by dtype)")
    group.add_argument("--atol", type=float, default=1e-8, metavar="X", help="errors up to this are none (1e-8)")
    group.add_argument("--exact", action="store_true", help="any bit that differs is a difference")
    group.add_argument("--cosine", type=float, metavar="X", help="least cosine")
    group.add_argument("--max-abs", type=float, metavar="X", help="largest absolute error")
    group.add_argument("--max-rel", type=float, metavar="X", help="largest relative error")
    group.add_argument("--within-01", type=float, metavar="X", help="least share of elements within 0.1 %% (0 to 1)")
    group.add_argument("--within-05", type=float, metavar="X", help="least share of elements within 0.5 %%")
    group.add_argument(
        "--rules", choices=("msformat", "msprobe"), default="msformat",
        help="msprobe: the verdict of `msprobe compare`, cosine and largest error only",
    )  # fmt: skip


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", "--output", action="append", metavar="FILE",
        help="write all tensors, by suffix: .csv, .parquet, .xlsx (columns of msprobe), .json (may repeat)",
    )  # fmt: skip
    for name in ("csv", "parquet", "xlsx"):
        group.add_argument(f"--{name}", metavar="FILE", help=f"write {name.upper() if name == 'csv' else name}")
    group.add_argument("--json", action="store_true", help="print the whole result as JSON")
    group.add_argument("--rows", type=int, default=20, metavar="N", help="tensors to list (default 20; 0 for none)")
    group.add_argument(
        "--sort", choices=("order", "worst"), default="order", help="list the first in order, or the worst"
    )
    group.add_argument("--all", action="store_true", help="list tensors that are close or the same, too")
    group.add_argument("--context", type=int, default=5, metavar="N", help="entries before the divergence (default 5)")
    group.add_argument("--quiet", action="store_true", help="no progress; one line, and the exit code")


def _run(arguments: argparse.Namespace) -> int:
    from msformat.compare.document import as_json  # noqa: PLC0415 (only this command pays for it)
    from msformat.compare.run import diff  # noqa: PLC0415

    outputs = list(_outputs(arguments))
    for _, path in outputs:
        check_output(path, arguments.a, arguments.b, arguments.map)
    options = options_of(arguments)
    show = not (arguments.quiet or arguments.json) and sys.stderr.isatty()
    with executor_of(arguments.dask) as executor, EntriesBar(enabled=show) as progress:
        result = diff(arguments.a, arguments.b, options, progress if show else None, executor=executor)
    for writer, path in outputs:
        writer(result, path)
    if arguments.json:
        print_json(as_json(result))
    else:
        print_result(result, arguments)
    tell_problems(result, name="label")
    return result.exit_code


def options_of(arguments: argparse.Namespace) -> DiffOptions:
    """What :func:`add_selection` and :func:`add_thresholds` took in; a mapping is read.

    ``context`` comes from an option of the command's own.
    """
    from msformat.compare.mapping import load_mapping  # noqa: PLC0415
    from msformat.compare.run import DiffOptions  # noqa: PLC0415
    from msformat.compare.thresholds import Thresholds  # noqa: PLC0415

    thresholds = Thresholds(
        rtol=arguments.rtol, atol=arguments.atol, exact=arguments.exact, cosine=arguments.cosine,
        max_abs=arguments.max_abs, max_rel=arguments.max_rel, within_01=arguments.within_01,
        within_05=arguments.within_05, rules=arguments.rules,
    )  # fmt: skip
    return DiffOptions(
        thresholds=thresholds,
        mapping=load_mapping(arguments.map) if arguments.map else None,
        steps=arguments.steps,
        ranks=arguments.ranks,
        filter=tuple(arguments.filter or ()),
        layout=arguments.layout,
        ignore_missing=arguments.ignore_missing,
        scalars=arguments.scalars,
        jobs=arguments.jobs,
        threads=arguments.threads,
        context=arguments.context,
    )


def _outputs(arguments: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    """Writers and files, refused before minutes of work where a suffix is unknown."""
    from msformat.compare.export import FORMATS, writer_for  # noqa: PLC0415

    for path in arguments.output or ():
        yield writer_for(path), path
    for name in ("csv", "parquet", "xlsx"):
        path = getattr(arguments, name)
        if path:
            yield FORMATS[f".{name}"], path
