"""What a comparison of two dumps finds: plain values that commands print and reports are built on.

::

    DiffResult            two dumps
      UnitResult          a rank of a step on either side
        EntryResult       a call on either side, in the order of the documents
          TensorResult    a tensor on either side: basis, verdict, metrics
          ScalarChange    a plain argument that differs
        Divergence        where the unit parts first, in order of execution

``a`` is the dump in question, ``b`` the reference: relative errors are relative to ``b``. Everything here is frozen,
may be pickled, and holds no open file and no values of tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msformat.compare.measures import Metrics, NonFinite, StatChange
from msformat.compare.statistics import statistic_changes, statistic_error
from msformat.model import Stats
from msformat.units import UnitKey

__all__ = [
    "BAD",
    "VERDICTS",
    "Basis",
    "DiffResult",
    "Divergence",
    "EntryResult",
    "Match",
    "Metrics",
    "NonFinite",
    "Role",
    "ScalarChange",
    "StatChange",
    "TensorResult",
    "TensorSide",
    "UnitResult",
    "Verdict",
    "worst_verdict",
]

# In order of badness; the verdict of several is the worst of them.
#   same        bit for bit
#   close       not the same bits, but within the thresholds
#   unknown     shape and type agree, and nothing else can be compared (structure dumps, unwritten memory)
#   only_a      the other dump has no such tensor or call
#   only_b
#   unreadable  one side is damaged; reasons say which
#   different   beyond the thresholds, or of another shape
Verdict: TypeAlias = Literal["same", "close", "unknown", "only_a", "only_b", "unreadable", "different"]
VERDICTS: tuple[Verdict, ...] = ("same", "close", "unknown", "only_a", "only_b", "unreadable", "different")
#: Verdicts for which a comparison is not clean.
BAD: frozenset[Verdict] = frozenset(("only_a", "only_b", "unreadable", "different"))

# What a verdict rests on: all bits or values were read, digests of the documents, their statistics, shape and type.
Basis: TypeAlias = Literal["bits", "values", "digest", "statistics", "description"]
# How two entries found each other: same key; same module under another prefix (``module.`` of DDP); moved modules;
# another framework's name; the user's mapping; the same place among calls of the same kind.
Match: TypeAlias = Literal["key", "prefix", "path", "framework", "mapping", "order", "none"]
# What a tensor is to its call.
Role: TypeAlias = Literal["input", "parameter", "output", "gradient", "value"]


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of several; ``same`` of none."""
    return max(verdicts, key=VERDICTS.index, default="same")


@dataclass(frozen=True, slots=True)
class TensorSide:
    """A tensor as one of the dumps describes it.

    Attributes
    ----------
    name
        ``Module.head.Linear.forward.0.output.0``: its entry, category and path, as in tensor files but for the suffix.
    slot, path
        ``output`` and ``0``.
    dtype
        As the document spells it.
    shape, stats, digest, data_name
        As in :class:`msformat.TensorMeta`.
    """

    name: str
    slot: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    stats: Stats | None = None
    digest: str | None = None
    data_name: str | None = None


@dataclass(frozen=True, slots=True)
class TensorResult:
    """A tensor on either side.

    Attributes
    ----------
    a, b
        None on the side that has none.
    role
        What it is to its call.
    verdict, basis
        What came out, and what was looked at.
    reasons
        Why it is not ``same``, in sentences; also what is odd about one that is.
    metrics
        Where values were compared (all zeros for equal bits), else None.
    special_a, special_b
        NaN and infinities, where values were read.
    special_mismatch
        How many elements are of different kinds: NaN on one side, or an infinity, and not on the other.
    """

    a: TensorSide | None
    b: TensorSide | None
    role: Role
    verdict: Verdict
    basis: Basis
    reasons: tuple[str, ...] = ()
    metrics: Metrics | None = None
    special_a: NonFinite | None = None
    special_b: NonFinite | None = None
    special_mismatch: int = 0

    @property
    def changes(self) -> Mapping[str, StatChange]:
        """How ``max``, ``min``, ``mean`` and ``norm`` of the documents differ; empty where one side has none."""
        return statistic_changes(self.a.stats if self.a else None, self.b.stats if self.b else None)

    @property
    def name(self) -> str:
        """Its name in ``a``, or in ``b`` where ``a`` has none."""
        side = self.a or self.b
        assert side is not None
        return side.name

    @property
    def severity(self) -> float:
        """A number to sort and to colour by: relative error of the norm of the difference, or of the statistics.

        Of statistics it is the largest, each beside what the verdict judges it by: a mean near zero is all rounding.
        0 for the same, ``inf`` where NaN, shape or presence differ.
        """
        if self.verdict in ("same", "unknown"):
            return 0.0
        if self.verdict in ("only_a", "only_b", "unreadable"):
            return float("inf")
        if self.metrics is not None:
            return float("inf") if self.special_mismatch else self.metrics.rel_l2
        if self.basis != "statistics" or not (self.a and self.b and self.a.stats and self.b.stats):
            return float("inf")
        return statistic_error(self.a.stats, self.b.stats, self.b.shape)


@dataclass(frozen=True, slots=True)
class ScalarChange:
    """A plain argument that is not the same on both sides: an epsilon, an axis, a flag.

    Attributes
    ----------
    name
        ``Functional.layer_norm.3.forward.input.4``.
    a, b
        The values as text.
    verdict
        ``different`` for numbers, ``close`` for what need not matter (names of devices, rounding of a number).
    """

    name: str
    a: str
    b: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class EntryResult:
    """A call (or saved variable, or the gradients of a module) on either side.

    Attributes
    ----------
    a, b
        Entry keys; None on the side that has none.
    match
        How they found each other; ``none`` for one alone.
    tensors
        Tensors of both in the order of ``a``, those of ``b`` alone behind them.
    scalars
        Only what differs.
    parent
        Key of the enclosing call, in ``a`` where there is one, else in ``b``; None at the top.
    module
        Path of the module it is, or that it ran in: ``layers.3.norm``; ``""`` outside of modules.
    """

    a: str | None
    b: str | None
    match: Match
    tensors: tuple[TensorResult, ...] = ()
    scalars: tuple[ScalarChange, ...] = ()
    parent: str | None = None
    module: str = ""

    @property
    def key(self) -> str:
        """In ``a``, or in ``b`` where ``a`` has none."""
        key = self.a if self.a is not None else self.b
        assert key is not None
        return key

    @property
    def verdict(self) -> Verdict:
        """The worst of its tensors and scalars."""
        if self.b is None or self.a is None:
            return "only_a" if self.b is None else "only_b"
        verdicts = [tensor.verdict for tensor in self.tensors]
        return worst_verdict([*verdicts, *(scalar.verdict for scalar in self.scalars)])

    @property
    def severity(self) -> float:
        """The largest of its tensors."""
        return max((tensor.severity for tensor in self.tensors), default=0.0)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two units part: the first thing, in order of execution, that is not as it should be.

    Inputs and parameters of a call come before what runs inside it, its outputs after.

    Attributes
    ----------
    a, b
        The units.
    entry
        The call.
    tensor
        The tensor; None where a scalar parts, or the call is on one side only.
    scalar
        Likewise.
    role
        ``output``: inputs were as they should be, so the fault lies in this call. ``input``: what comes in has no
        recorded origin that differs. ``parameter``: the weights differ.
    stack_a, stack_b
        Call stacks, innermost frame first; empty where none was recorded.
    parents
        Keys of the calls around it, innermost first.
    before
        The entries before it in order of execution, the nearest last: what was still good.
    """

    a: UnitKey | None
    b: UnitKey | None
    entry: EntryResult
    tensor: TensorResult | None
    scalar: ScalarChange | None
    role: Role
    stack_a: tuple[str, ...] = ()
    stack_b: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    before: tuple[EntryResult, ...] = ()

    @property
    def module(self) -> str:
        """Path of the module it is in: ``layers.3.norm``."""
        return self.entry.module

    @property
    def name(self) -> str:
        """Of the tensor; where none parts, the key of the call."""
        return self.tensor.name if self.tensor is not None else self.entry.key

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong there, in sentences."""
        if self.tensor is not None:
            return self.tensor.reasons
        if self.scalar is not None:
            return (f"{self.scalar.a} against {self.scalar.b}",)
        return (f"only in {'a' if self.entry.b is None else 'b'}",)


@dataclass(frozen=True, slots=True)
class UnitResult:
    """One rank of one step.

    Attributes
    ----------
    a, b
        Keys; None on the side that has none.
    entries
        In the order of ``a``'s document; those of ``b`` alone stand where they were.
    divergence
        The first that is beyond the thresholds; None where none is.
    first_bits
        The first that is not the same bit for bit, thresholds aside; the same as ``divergence`` where that comes first.
    problems, notes
        What could not be read, and what a person should know, in sentences.
    seconds
        Time it took.
    """

    a: UnitKey | None
    b: UnitKey | None
    entries: tuple[EntryResult, ...] = ()
    divergence: Divergence | None = None
    first_bits: Divergence | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def label(self) -> str:
        """``step0/rank3``, or ``step0/rank3 against step0/rank`` where the sides call it differently."""
        if self.a is None or self.b is None or self.a == self.b:
            return str(self.a or self.b)
        return f"{self.a} against {self.b}"

    @property
    def tensors(self) -> Iterator[TensorResult]:
        """Every tensor."""
        return (tensor for entry in self.entries for tensor in entry.tensors)

    @property
    def counts(self) -> Counter[Verdict]:
        """How many tensors have which verdict."""
        return Counter(tensor.verdict for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class DiffResult:
    """Two dumps.

    Attributes
    ----------
    a, b
        Their paths as given, without credentials.
    frameworks
        ``pytorch``, ``mindspore``, … of either side; ``""`` where unknown.
    units
        In order of step and rank; units of one side alone are among them, with no entries.
    problems, notes
        Of the trees, in sentences.
    ignore_missing
        Whether entries and tensors of one side alone are no difference.
    """

    a: str
    b: str
    frameworks: tuple[str, str] = ("", "")
    units: tuple[UnitResult, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ignore_missing: bool = False

    @property
    def divergence(self) -> Divergence | None:
        """The headline: the first divergence of the first step that has one."""
        return next((unit.divergence for unit in self.units if unit.divergence is not None), None)

    @property
    def first_bits(self) -> Divergence | None:
        """The first place that is not the same bit for bit."""
        return next((unit.first_bits for unit in self.units if unit.first_bits is not None), None)

    @property
    def counts(self) -> Counter[Verdict]:
        """How many tensors have which verdict."""
        total: Counter[Verdict] = Counter()
        for unit in self.units:
            total.update(unit.counts)
        return total

    @property
    def only_described(self) -> bool:
        """Whether shapes and types of tensors are all that could be compared."""
        counts = self.counts
        return counts["unknown"] > 0 and not {"same", "close", "different"} & counts.keys()

    @property
    def bad(self) -> frozenset[Verdict]:
        """Verdicts for which this comparison is not clean."""
        return BAD - {"only_a", "only_b"} if self.ignore_missing else BAD

    @property
    def exit_code(self) -> int:
        """For a shell and CI: 0 the same within the thresholds, 1 not, 2 nothing could be compared."""
        if not any(entry.match != "none" for unit in self.units for entry in unit.entries):
            return 2
        alone = any(unit.a is None or unit.b is None for unit in self.units)
        if self.problems or any(unit.problems for unit in self.units) or (alone and not self.ignore_missing):
            return 1
        return int(any(entry.verdict in self.bad for unit in self.units for entry in unit.entries))
