"""Two entries that are the same call: which of their tensors and arguments belong together, and how they compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msformat.compare.mapping import NameMapping
from msformat.compare.model import Role, ScalarChange, TensorResult, Verdict
from msformat.compare.tensors import side_of
from msformat.compare.translate import parameter_alias
from msformat.entries import Entry, Tensor
from msformat.model import Scalar

__all__ = ["TensorPair", "alone", "compare_scalars", "pair_tensors", "role_of"]

TensorPair: TypeAlias = "tuple[Tensor | None, Tensor | None]"

_SLOTS = {"input_args": "input", "input": "input", "input_kwargs": "input", "parameters_grad": "gradient"}
# A rounding of a number that was printed and read.
_SCALAR_RTOL = 1e-6
_LONGEST = 200


def role_of(tensor: Tensor) -> Role:
    """What a tensor is to its call."""
    slot = _SLOTS.get(tensor.slot, tensor.slot)
    if slot in ("input", "output", "gradient"):
        return slot  # type: ignore[return-value]  # one of the literals
    return "parameter" if slot == "parameters" else "value"


def alone(tensor: Tensor, *, in_a: bool) -> TensorResult:
    """The result for a tensor that one side has."""
    side = side_of(tensor)
    reason = (f"only in {'a' if in_a else 'b'}",)
    if in_a:
        return TensorResult(side, None, role_of(tensor), "only_a", "description", reason)
    return TensorResult(None, side, role_of(tensor), "only_b", "description", reason)


def pair_tensors(a: Entry, b: Entry, mapping: NameMapping | None = None) -> list[TensorPair]:
    """Tensors of two entries that belong together, in the order of A; those of one side alone among and behind them.

    First by slot and path, then parameters by the names of frameworks, then what is left of a slot in its order:
    arguments given by position here and by name there, outputs in a list or not. Two different functions that do one
    thing (``Primitive.layer_norm`` and ``Functional.layer_norm``) number their arguments in their own ways: there the
    order of the tensors comes first.
    """
    if mapping is None and [*map(_place, a.tensors)] == [*map(_place, b.tensors)] and not _are_other_functions(a, b):
        return list(zip(a.tensors, b.tensors, strict=True))
    free = {_place(tensor): tensor for tensor in b.tensors}
    given = mapping or NameMapping()
    found = _pair_as_told(a.tensors, free, given.tensors)
    if _are_other_functions(a, b):
        _pair_by_order(a.tensors, free, found)
    for name_of in (_place, lambda tensor: _named_place(tensor, given)):
        theirs = {name_of(tensor): tensor for tensor in free.values()}
        for at, tensor in enumerate(a.tensors):
            other = theirs.get(name_of(tensor)) if at not in found else None
            if other is not None and free.pop(_place(other), None) is not None:
                found[at] = other
    _pair_by_order(a.tensors, free, found)
    return [(tensor, found.get(at)) for at, tensor in enumerate(a.tensors)] + [(None, other) for other in free.values()]


def _are_other_functions(a: Entry, b: Entry) -> bool:
    if a.name is None or b.name is None or a.name.order != "api":
        return False
    return (a.name.kind, a.name.path) != (b.name.kind, b.name.path)


def _pair_as_told(
    ours: Sequence[Tensor], free: dict[tuple[str, ...], Tensor], names: Mapping[str, str]
) -> dict[int, Tensor]:
    """Tensors that the user's mapping names."""
    found: dict[int, Tensor] = {}
    theirs = {side_of(tensor).name: tensor for tensor in free.values()} if names else {}
    for at, tensor in enumerate(ours) if theirs else ():
        other = theirs.get(names.get(side_of(tensor).name, ""))
        if other is not None and free.pop(_place(other), None) is not None:
            found[at] = other
    return found


def _place(tensor: Tensor) -> tuple[str, ...]:
    return tensor.slot, *tensor.keys


def _named_place(tensor: Tensor, mapping: NameMapping) -> tuple[str, ...]:
    """Place in the names of the other side."""
    path = mapping.parameter(tensor.path) if mapping.parameters else tensor.path
    role = role_of(tensor)
    return role, parameter_alias(path) if role in ("parameter", "gradient") else path


def _pair_by_order(ours: Sequence[Tensor], free: dict[tuple[str, ...], Tensor], found: dict[int, Tensor]) -> None:
    """What is left of inputs, and of outputs, where both sides have as many of them, of the same shapes."""
    for role in ("input", "output"):
        mine = [at for at, tensor in enumerate(ours) if at not in found and role_of(tensor) == role]
        theirs = [tensor for tensor in free.values() if role_of(tensor) == role]
        if [ours[at].shape for at in mine] == [tensor.shape for tensor in theirs]:
            for at, tensor in zip(mine, theirs, strict=True):
                found[at] = free.pop(_place(tensor))


# --- plain arguments --------------------------------------------------------------------------------------------------


def compare_scalars(a: Entry, b: Entry) -> tuple[ScalarChange, ...]:
    """Plain arguments that stand at the same place of both and differ."""
    theirs = dict(_scalars(b.value))
    return tuple(
        _change(a.key, path, scalar, theirs[path])
        for path, scalar in _scalars(a.value)
        if path in theirs and not _are_same(scalar.value, theirs[path].value)
    )


def _scalars(value: Any) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    """Plain values of a bound tree with the way to them, without recursion."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, Scalar):
            yield path, node
        elif isinstance(node, dict):
            waiting.extend(((*path, key), child) for key, child in reversed(node.items()))
        elif isinstance(node, tuple):
            waiting.extend(((*path, str(at)), child) for at, child in reversed(list(enumerate(node))))


def _are_same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def _change(key: str, path: Iterable[str], a: Scalar, b: Scalar) -> ScalarChange:
    name = ".".join((key, *(_SLOTS.get(part, part) if at == 0 else part for at, part in enumerate(path))))
    return ScalarChange(name, _text(a.value), _text(b.value), _scalar_verdict(a.value, b.value))


def _scalar_verdict(a: Any, b: Any) -> Verdict:
    """Numbers and flags matter; text names devices, dtypes and places."""
    if not isinstance(a, (bool, int, float)) or not isinstance(b, (bool, int, float)):
        return "close"
    try:
        return "close" if math.isclose(a, b, rel_tol=_SCALAR_RTOL) else "different"
    except OverflowError:
        return "different"


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
