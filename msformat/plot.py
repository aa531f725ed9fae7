"""Plots of a dump with matplotlib: statistics over layers and steps, extremes, histograms, where NaN begins.

Every function draws into ``ax``, or into a figure of its own, and returns the axes. What is not finite is never left
out in silence: it is marked where it stands, and counted.

::

    from msformat import plot

    plot.over_layers(dump)                                     # the norm of every output, in order of execution
    plot.over_steps(dump, filter="Module.norm")
    plot.envelope(dump[0, 3])
    plot.histogram(entry.outputs[0])
    plot.nonfinite_map(dump)

matplotlib is imported when something is drawn; ``pip install 'msformat[plot]'`` brings it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from msformat.errors import FormatError
from msformat.extras import optional
from msformat.model import STATISTICS
from msformat.plaintext import shortened
from msformat.plotdata import FINITE, INFINITE, NAN, HasTable, Points, counts_of, marks_of, points_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from msformat.entries import Tensor
    from msformat.table import Table

__all__ = ["envelope", "histogram", "nonfinite_map", "over_layers", "over_steps"]

_MOST_LINES = 1000
_MOST_LABELS = 40
_IN_LEGEND = 12
_MOST_ROWS = 500
_NAME = 56
_SIZE = (10.0, 6.0)
_BAD = "tab:red"
# Names come from strangers: nothing in them is mathematics, and none of it reaches TeX.
_VERBATIM: dict[str, Any] = {"usetex": False, "parse_math": False}


def over_layers(
    source: HasTable | Table,
    statistic: str = "Norm",
    *,
    filter: str | None = None,  # noqa: A002 (what it is called everywhere)
    slot: str | None = "output",
    ax: Axes | None = None,
) -> Axes:
    """A statistic of each tensor in the order of execution, a line for each unit.

    Parameters
    ----------
    source
        A dump, a unit or a table.
    statistic
        ``Norm``, ``Max``, ``Min`` or ``Mean``.
    filter
        Only entries whose key contains this, or matches it as a glob (``Module.*.forward.*``).
    slot
        Only tensors of this slot: ``output``, ``input_args``, ``parameters``, ``parameters_grad``; None takes all.
    ax
        Where to draw; None makes a figure.

    Raises
    ------
    FormatError
        No tensor is left, there is no such statistic, or none of them has it.
    BackendMissingError
        matplotlib is not installed.
    """
    points = _with_statistic(points_of(source, filter, slot), statistic)
    units, unit_at = points.column("unit")
    axes = _axes(ax)
    _lines(axes, points.name_at, points.numbers(statistic), unit_at, units)
    _mark(axes, points.name_at, points, (statistic,))
    _label_names(axes, points.names)
    return _finished(axes, ylabel=statistic, title=f"{statistic} over layers")


def over_steps(
    source: HasTable | Table,
    statistic: str = "Norm",
    *,
    filter: str | None = None,  # noqa: A002
    slot: str | None = "output",
    ax: Axes | None = None,
) -> Axes:
    """A statistic over steps, a line for each tensor and rank; parameters and errors as of :func:`over_layers`.

    Raises
    ------
    FormatError
        Also for more than 1000 lines, which show nothing: ask for less with ``filter``.
    """
    points = _with_statistic(points_of(source, filter, slot), statistic)
    steps, step_at = points.column("step")
    ranks, rank_at = points.column("rank")
    count = len(points.names) * len(ranks)
    if count > _MOST_LINES:
        raise FormatError(f"{count} lines show nothing: choose fewer tensors with filter=")
    labels = [f"{name}, {rank}" if len(ranks) > 1 else name for name in points.names for rank in ranks]
    along = _positions(steps)
    axes = _axes(ax)
    _lines(axes, along[step_at], points.numbers(statistic), points.name_at * len(ranks) + rank_at, labels)
    _mark(axes, along[step_at], points, (statistic,))
    _label_steps(axes, steps, along)
    return _finished(axes, xlabel="step", ylabel=statistic, title=f"{statistic} over steps")


def envelope(
    source: HasTable | Table,
    *,
    over: Literal["layers", "steps"] = "layers",
    filter: str | None = None,  # noqa: A002
    slot: str | None = "output",
    ax: Axes | None = None,
) -> Axes:
    """Between the smallest and the largest value, with the mean, over layers or steps.

    Over layers each position takes in all units of ``source``, over steps all its tensors and ranks; the mean is that
    of all their values together. Parameters and errors as of :func:`over_layers`.
    """
    points = _with_statistic(points_of(source, filter, slot), "Max", "Min")
    names, at = (points.names, points.name_at) if over == "layers" else points.column("step")
    lowest = _reduced(np.fmin, at, len(names), points.numbers("Min"))
    highest = _reduced(np.fmax, at, len(names), points.numbers("Max"))
    positions = _positions(names if over == "steps" else range(len(names)))
    axes = _axes(ax)
    axes.fill_between(positions, lowest, highest, alpha=0.3, label="min to max")
    axes.plot(positions, _weighted_mean(points, at, len(names)), label="mean")
    _mark(axes, positions[at], points, ("Max", "Min", "Mean"))
    if over == "layers":
        _label_names(axes, names)
    else:
        _label_steps(axes, names, positions)
    axes.legend()
    return _finished(axes, xlabel="step" if over == "steps" else "", ylabel="value", title=f"extremes over {over}")


def histogram(tensor: Tensor, *, bins: int = 100, log: bool = False, ax: Axes | None = None) -> Axes:
    """How often which value occurs in a tensor; NaN and infinities are counted beside it.

    Parameters
    ----------
    tensor
        One with values. Of complex numbers the absolute value is taken.
    bins
        Number of bars, of equal width.
    log
        Whether the counts are drawn on a logarithmic scale.
    ax
        Where to draw; None makes a figure.

    Raises
    ------
    TensorNotFoundError
        No values were saved; says why.
    DTypeError
        The bits mean no number here.
    BackendMissingError
        matplotlib is not installed.
    """
    found = counts_of(tensor, bins)
    axes = _axes(ax)
    if found.edges.size:
        axes.stairs(found.counts, found.edges, fill=True)
    if log:
        axes.set_yscale("log")
    named = {"NaN": found.nan, "+inf": found.plus_inf, "-inf": found.minus_inf}
    said = [f"{name}: {count}" for name, count in named.items() if count]
    said += [] if found.edges.size else ["no finite values"]
    if said:
        axes.text(0.98, 0.95, "\n".join(said), color=_BAD, ha="right", va="top", transform=axes.transAxes)
    return _finished(axes, xlabel=_shown(tensor.dtype_name), ylabel="count", title=_shown(tensor.label))


def nonfinite_map(
    source: HasTable | Table,
    *,
    filter: str | None = None,  # noqa: A002
    slot: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Where statistics are NaN or infinite: entries from top to bottom in the order of execution, steps to the right.

    A cell shows the worst of the entry's tensors, over all ranks. Of more than 500 entries several share a line, and
    show the worst of them: no NaN is lost in the resolution of a screen. Parameters and errors as of
    :func:`over_layers`.
    """
    points = points_of(source, filter, slot)
    found = marks_of(points, _MOST_ROWS)
    if np.isnan(found.worst).all():
        raise FormatError("nothing to draw: these tensors have no statistics")
    axes = _axes(ax)
    colours = {FINITE: ("finite", "#b7d7b0"), INFINITE: ("infinite", "#e8a33d"), NAN: ("NaN", "#c23b3b")}
    shades = optional("matplotlib.colors", "plot", "msformat.plot").ListedColormap(
        [shade for _, shade in colours.values()]
    )
    axes.imshow(found.worst, aspect="auto", interpolation="nearest", cmap=shades, vmin=FINITE - 0.5, vmax=NAN + 0.5)
    patch = optional("matplotlib.patches", "plot", "msformat.plot").Patch
    handles = [patch(color=shade, label=name) for name, shade in colours.values()]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1))
    # Names of what is bad; where nothing is, as many as can be read.
    shown = _bad_rows(np.where(np.isnan(found.worst), FINITE, found.worst).max(axis=1)) or _spread(len(found.names))
    axes.set_yticks(shown, [_shown(found.names[row]) for row in shown], fontsize="small", **_VERBATIM)
    _label_steps(axes, found.steps, np.arange(len(found.steps)))
    several = "" if found.entries == len(found.names) else f", {-(-found.entries // len(found.names))} to a line"
    return _finished(axes, xlabel="step", ylabel=f"{found.entries} entries{several}", title="NaN and infinities")


def _bad_rows(worst: NDArray[np.float64]) -> list[int]:
    """Lines with NaN, then those with infinities, apart so that names can be read; of neighbours the first."""
    gap = -(-len(worst) // _MOST_LABELS)
    taken: list[int] = []
    for level in (NAN, INFINITE):
        for row in map(int, np.flatnonzero(worst == level)):
            if all(abs(row - other) >= gap for other in taken):
                taken.append(row)
    return sorted(taken)


# --- drawing ---------------------------------------------------------------------------------------------------------


def _axes(ax: Axes | None) -> Axes:
    pyplot = optional("matplotlib.pyplot", "plot", "msformat.plot")
    if ax is not None:
        return ax
    made: Axes = pyplot.subplots(figsize=_SIZE, layout="constrained")[1]
    return made


def _with_statistic(points: Points, *statistics: str) -> Points:
    for statistic in statistics:
        if statistic not in STATISTICS:
            raise FormatError(f"no statistic {statistic!r}: there are {', '.join(STATISTICS)}")
        if not points.known(statistic).any():
            raise FormatError(f"nothing to draw: none of {len(points.table)} tensors has a {statistic}")
    return points


def _lines(
    axes: Axes, at: NDArray[np.int64], values: NDArray[np.float64], line: NDArray[np.int64], labels: Sequence[str]
) -> None:
    """A line for each label, with gaps where there is no finite number."""
    drawn = np.where(np.isfinite(values), values, math.nan)
    order = np.lexsort((at, line))
    ends = np.searchsorted(line[order], np.arange(len(labels) + 1))
    few = len(labels) <= _IN_LEGEND
    for label, first, last in zip(labels, ends[:-1], ends[1:], strict=True):
        rows = order[first:last]
        if rows.size:
            axes.plot(at[rows], drawn[rows], marker=".", label=_shown(label) if few else None)
    if few:
        axes.legend()


def _mark(axes: Axes, at: NDArray[np.int64], points: Points, statistics: Sequence[str]) -> None:
    """Crosses at the lower edge where a statistic is NaN or infinite."""
    bad = np.zeros(len(points.table), np.bool_)
    for statistic in statistics:
        bad |= points.known(statistic) & ~np.isfinite(points.numbers(statistic))
    if bad.any():
        where = np.unique(at[bad])
        label = f"NaN or infinite: {int(bad.sum())}"
        below = axes.get_xaxis_transform()
        axes.plot(where, np.zeros(len(where)), "x", color=_BAD, transform=below, clip_on=False, label=label)
        axes.legend()


def _reduced(how: np.ufunc, at: NDArray[np.int64], count: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The extreme of the finite values at each position; NaN where there are none."""
    found = np.full(count, math.nan)
    how.at(found, at, np.where(np.isfinite(values), values, math.nan))
    return found


def _weighted_mean(points: Points, at: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    means, sizes = points.numbers("Mean"), points.sizes()
    usable = np.isfinite(means) & np.isfinite(sizes)
    total = np.bincount(at[usable], means[usable] * sizes[usable], count)
    weight = np.bincount(at[usable], sizes[usable], count)
    mean: NDArray[np.float64] = np.divide(total, weight, out=np.full(count, math.nan), where=weight > 0)
    return mean


def _label_names(axes: Axes, names: Sequence[str]) -> None:
    shown = _spread(len(names))
    axes.set_xticks(shown, [_shown(names[at]) for at in shown], rotation=90, fontsize="small", **_VERBATIM)


def _positions(steps: Sequence[Any]) -> NDArray[np.int64]:
    """Where steps stand: at their number, if they have any."""
    if all(isinstance(step, int) for step in steps):
        return np.asarray(steps, np.int64)
    return np.arange(len(steps))


def _label_steps(axes: Axes, steps: Sequence[Any], along: NDArray[np.int64]) -> None:
    shown = _spread(len(steps))
    axes.set_xticks(along[shown], ["" if steps[at] is None else str(steps[at]) for at in shown])


def _spread(count: int) -> list[int]:
    """Positions that get a label: all, or as many as can be read."""
    return list(range(0, count, -(-count // _MOST_LABELS) or 1))


def _finished(axes: Axes, *, ylabel: str, title: str, xlabel: str = "") -> Axes:
    axes.set_xlabel(xlabel, **_VERBATIM)
    axes.set_ylabel(ylabel, **_VERBATIM)
    axes.set_title(title, **_VERBATIM)
    legend = axes.get_legend()
    for text in legend.get_texts() if legend is not None else ():
        text.set(**_VERBATIM)
    return axes


def _shown(name: str) -> str:
    """A name of bearable length; matplotlib leaves labels that begin with an underscore out of legends."""
    found = shortened(name, _NAME)
    return f" {found}" if found.startswith("_") else found
