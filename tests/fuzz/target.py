"""What a fuzz target is. Targets know no fuzzing engine: a test runs them with the inputs that were kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TypeAlias

__all__ = ["KEPT_CORPUS", "KEPT_FINDS", "NAMES", "Change", "Target", "kept_inputs", "load_target"]

NAMES = (
    "documents", "filenames", "hdf5", "index", "journal", "kernel", "mapping", "names", "npy", "pt", "trees", "zarr",
)  # fmt: skip
KEPT_CORPUS = Path(__file__).parent / "corpus"
KEPT_FINDS = Path(__file__).parent / "finds"

#: Some bytes, changed at random: the engine's own mutation.
Change: TypeAlias = "Callable[[bytes], bytes]"


@dataclass(frozen=True)
class Target:
    """One reader, and what it promises of any input.

    Attributes
    ----------
    check
        Gives the input to the reader, in an empty directory of its own; whatever it raises is a find.
    seeds
        Inputs to begin with, made of real dumps.
    mutate
        Changes an input inside of its structure, so that checksums and lengths still fit; None: bytes are changed.
    words
        What the engine may put in.
    most_bytes
        Of an input.
    """

    check: Callable[[bytes, Path], None]
    seeds: Callable[[], Iterable[bytes]]
    mutate: Callable[[bytes, Change, Random], bytes] | None = None
    words: tuple[bytes, ...] = ()
    most_bytes: int = 4096


def load_target(name: str) -> Target:
    """The target of that name."""
    found: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return found


def kept_inputs(name: str) -> list[Path]:
    """Files of the committed corpus and of the finds of a target, in a fixed order."""
    return [path for place in (KEPT_CORPUS, KEPT_FINDS) for path in sorted((place / name).glob("*"))]
