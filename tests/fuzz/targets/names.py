"""Keys and tensor names: what parses is built again as it was, and a safe name is safe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msformat.atomic import is_temporary
from msformat.names import (
    build_data_name,
    build_entry,
    is_plain_call,
    natural_key,
    parse_data_name,
    parse_entry,
    safe_data_name,
)
from tests.fuzz.samples import golden_members
from tests.fuzz.target import Target

_KEYS = (
    "Functional.relu.0.forward", "Primitive.matmul.MatMul.0.forward", "Module.blocks.0.Linear.forward.1",
    "Module.a.B.parameters_grad", "Cell.a.B.parameters_grad.3", "loss.0.debug", "y.0", "MatMul.x.5.2.1735011096426349",
    "y.0.tensor..pt", "Module.a.B.parameters_grad.weight.pt", "Functional.relu.0.forward.input.0.npy",
)  # fmt: skip


def check(data: bytes, place: Path) -> None:
    """Any text."""
    text = data.decode("utf-8", "surrogateescape")
    parsed = parse_entry(text)
    assert parsed is None or build_entry(parsed) == text
    if is_plain_call(text):
        assert parsed is None or parsed.stage in ("forward", "backward")
    _check_tensor_name(text)
    safe = safe_data_name(text)
    assert safe == os.path.basename(safe)
    assert safe not in ("", ".", "..")
    assert len(os.fsencode(safe)) <= 255
    assert not is_temporary(safe)
    assert safe_data_name(safe) == safe
    assert natural_key(text) == natural_key(text)


def _check_tensor_name(text: str) -> None:
    name = parse_data_name(text)
    if name is None:
        return
    assert build_data_name(name) == text
    assert parse_entry(name.entry) is not None
    assert parse_data_name(text, name.entry) == name


def seeds() -> Iterator[bytes]:
    """One of each form, and names of real tensors."""
    yield from (key.encode() for key in _KEYS)
    names = sorted({Path(name).name for suffix in (".pt", ".npy") for name, _ in golden_members(suffix, 1 << 20)})
    yield from (name.encode() for name in names[:: max(1, len(names) // 40)])


TARGET = Target(
    check,
    seeds,
    words=tuple(
        word.encode() for word in (*_KEYS, ".forward", ".backward", ".debug", ".parameters_grad", ".input", ".output",
                                   ".kwargs", ".parameters", ".tensor", ".0", ".1", "Module.", "Cell.", ".pt", ".npy")
    ),
    most_bytes=600,
)  # fmt: skip
