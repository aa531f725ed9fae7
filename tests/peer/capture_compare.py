"""Two dumps of the same training, msprobe's and ours, compared entry by entry with nothing of msformat.

:func:`differences` reports everything that differs; which of it msprobe has to answer for is said in
:mod:`tests.peer.peer_faults`.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

STATISTICS = ("Max", "Min", "Mean", "Norm")
TESTS = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True)
class Unit:
    """The documents of one step of one run, as they stand on disk."""

    run: str
    step: str
    dump: dict[str, Any]
    construct: dict[str, str | None]
    stacks: dict[str, list[str]]
    files: dict[str, Path]

    @property
    def data(self) -> dict[str, Any]:
        """Entries by key."""
        found: dict[str, Any] = self.dump["data"]
        return found

    @property
    def level(self) -> str:
        """As asked for."""
        return self.run.split("-")[1]


@dataclass(frozen=True)
class Difference:
    """One place where ours is not the peer's. ``where`` is a kind (``parent``, …) or a path in the entry."""

    entry: str
    where: str
    expected: object
    got: object

    def __str__(self) -> str:
        return f"{self.entry}  {self.where}: expected {self.expected!r}, got {self.got!r}"


def load(root: Path, run: str, step: str) -> Unit:
    """Read one unit; a single process writes into ``rank``."""
    folder = root / run / step / "rank"
    documents = [json.loads((folder / f"{name}.json").read_bytes()) for name in ("dump", "construct", "stack")]
    stacks = {key: frames for keys, frames in documents[2].values() for key in keys}
    files = {path.name: path for path in (folder / "dump_tensor_data").glob("*")}
    return Unit(run, step, documents[0], documents[1], stacks, files)


def differences(peer: Unit, ours: Unit) -> Iterator[Difference]:
    """Everything that differs."""
    for name in ("task", "level", "framework"):
        if peer.dump[name] != ours.dump[name]:
            yield Difference("", f"header {name}", peer.dump[name], ours.dump[name])
    yield from keys_of(list(peer.data), list(ours.data), "entry")
    yield from missing(list(peer.construct), list(ours.construct), "construct")
    for key in peer.construct.keys() & ours.construct.keys():
        if peer.construct[key] != ours.construct[key]:
            yield Difference(key, "parent", peer.construct[key], ours.construct[key])
    yield from stacks_of(peer, ours)
    for key in peer.data:
        if key in ours.data:
            yield from entry_of(peer, ours, key)
    yield from files_of(peer, ours)


def missing(peer: list[str], ours: list[str], what: str) -> Iterator[Difference]:
    """Keys one side lacks."""
    yield from (Difference(key, f"{what} missing", key, None) for key in peer if key not in set(ours))
    yield from (Difference(key, f"{what} added", None, key) for key in ours if key not in set(peer))


def keys_of(peer: list[str], ours: list[str], what: str) -> Iterator[Difference]:
    """Keys one side lacks, then those both have whose place differs."""
    yield from missing(peer, ours, what)
    one = [key for key in peer if key in set(ours)]
    two = [key for key in ours if key in set(peer)]
    for tag, at, to, *_ in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if tag in {"delete", "replace"}:
            for key in one[at:to]:
                yield Difference(key, f"{what} order", after(one, key), after(two, key))


def after(keys: list[str], key: str) -> str | None:
    """The key that stands before one."""
    at = keys.index(key)
    return keys[at - 1] if at else None


def stacks_of(peer: Unit, ours: Unit) -> Iterator[Difference]:
    """Which entries have a stack, and their frames that lie in this test's files."""
    for key, frames in peer.stacks.items():
        if key not in ours.stacks:
            yield Difference(key, "stack missing", own_frames(frames), None)
        elif own_frames(frames) != own_frames(ours.stacks[key]):
            yield Difference(key, "stack", own_frames(frames), own_frames(ours.stacks[key]))
    for key in ours.stacks:
        if key not in peer.stacks:
            yield Difference(key, "stack added", None, own_frames(ours.stacks[key]))


def own_frames(frames: list[str]) -> list[str]:
    """Frames of the program, without those of torch and of the debuggers."""
    return [frame for frame in frames if frame.startswith(f"File {TESTS}")]


def entry_of(peer: Unit, ours: Unit, key: str) -> Iterator[Difference]:
    """Slots and what is in them."""
    return value_of(key, "", peer.data[key], ours.data[key])


def value_of(key: str, where: str, peer: Any, ours: Any) -> Iterator[Difference]:
    """Two values of the same place."""
    if isinstance(peer, dict) and isinstance(ours, dict):
        if list(peer) != list(ours):
            yield Difference(key, f"{where}/ names", list(peer), list(ours))
        for name in peer:
            if name in ours and not (name in STATISTICS and "shape" in peer):
                yield from value_of(key, f"{where}/{name}", peer[name], ours[name])
        if "shape" in peer:
            yield from statistics_of(key, where, peer, ours)
    elif isinstance(peer, list) and isinstance(ours, list) and len(peer) == len(ours):
        for at, (one, two) in enumerate(zip(peer, ours, strict=True)):
            yield from value_of(key, f"{where}/{at}", one, two)
    elif not same(peer, ours):
        yield Difference(key, where, peer, ours)


def same(peer: Any, ours: Any) -> bool:
    """Equal in type too; NaN is NaN."""
    if isinstance(peer, float) and isinstance(ours, float) and math.isnan(peer):
        return math.isnan(ours)
    return type(peer) is type(ours) and bool(peer == ours)


def statistics_of(key: str, where: str, peer: dict[str, Any], ours: dict[str, Any]) -> Iterator[Difference]:
    """Max and Min exactly where they are elements, Mean and Norm to float32 rounding of the sums behind them."""
    scale = max((abs(peer[name]) for name in ("Max", "Min") if is_number(peer.get(name))), default=0.0)
    # Of complex numbers the absolute value is reduced, which is rounded itself.
    exact = 0.0 if "complex" not in str(peer.get("dtype")) else 3e-7 * scale
    tolerances = {"Max": exact, "Min": exact, "Mean": 1e-6 * scale}
    for name in STATISTICS:
        one, two = peer.get(name), ours.get(name)
        if is_number(one) and is_number(two) and abs(one - two) <= tolerances.get(name, 2e-6 * abs(one)):
            continue
        if not same(one, two):
            yield Difference(key, f"{where}/{name} of {peer.get('dtype')}", one, two)


def is_number(value: object) -> bool:
    """Finite, and no bool. (The peer gives 1 for a 0-d integer tensor and 1.0 for others; both mean the same.)"""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def files_of(peer: Unit, ours: Unit) -> Iterator[Difference]:
    """Tensors: the same files, each with the same dtype, shape and bits."""
    yield from missing(sorted(peer.files), sorted(ours.files), "file")
    for name in sorted(peer.files.keys() & ours.files.keys()):
        expected, got = (torch.load(unit.files[name], weights_only=True).detach() for unit in (peer, ours))
        if expected.dtype != got.dtype or expected.shape != got.shape:
            yield Difference(name, "file kind", described(expected), described(got))
        elif bits(expected) != bits(got):
            yield Difference(name, "file bits", expected.flatten()[:4].tolist(), got.flatten()[:4].tolist())


def described(tensor: torch.Tensor) -> str:
    """Type and shape."""
    return f"{tensor.dtype} {list(tensor.shape)}"


def bits(tensor: torch.Tensor) -> bytes:
    """The logical values, row by row."""
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return flat.contiguous().flatten().view(torch.uint8).numpy().tobytes() if flat.numel() else b""
