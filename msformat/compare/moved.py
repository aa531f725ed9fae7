"""Modules that stand elsewhere in the other model: ``encoder.layers.0.fc`` and ``backbone.layers.0.fc``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msformat.compare.translate import class_alias, without_wrappers

__all__ = ["moved_paths"]


def moved_paths(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Paths of A to paths of B, and no more than is certain.

    Two paths belong together when their ends agree, every number included (layer 3 is never layer 4), with the same
    class at the end, and no other path ends alike.

    Parameters
    ----------
    ours, theirs
        Paths that found no other, with their classes.
    """
    by_end = _by_end(theirs)
    counts = {end: len(paths) for end, paths in _by_end(ours).items()}
    found: dict[str, str] = {}
    taken: set[str] = set()
    for path, class_name in ours.items():
        other = _other(path, class_name, by_end, counts)
        if other is not None and other not in taken:
            found[path] = other
            taken.add(other)
    return found


def _by_end(paths: Mapping[str, str]) -> dict[tuple[str, ...], list[str]]:
    """Every end of every path, with the class behind it."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, class_name in paths.items():
        parts = without_wrappers(path).split(".")
        for at in range(len(parts)):
            found[(*parts[at:], class_alias(class_name))].append(path)
    return found


def _other(
    path: str,
    class_name: str,
    by_end: Mapping[tuple[str, ...], Sequence[str]],
    counts: Mapping[tuple[str, ...], int],
) -> str | None:
    parts = without_wrappers(path).split(".")
    for at in range(len(parts)):
        if any(part.isdecimal() for part in parts[:at]):
            return None
        end = (*parts[at:], class_alias(class_name))
        others = by_end.get(end, ())
        if others:
            is_certain = len(others) == 1 and counts[end] == 1 and _holds_all_numbers(others[0], len(parts) - at)
            return others[0] if is_certain else None
    return None


def _holds_all_numbers(path: str, length: int) -> bool:
    """Whether no number stands before the last parts of a path."""
    return not any(part.isdecimal() for part in without_wrappers(path).split(".")[:-length])
