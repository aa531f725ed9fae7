"""Which store a unit's directory uses, told by the names in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msformat.atomic import is_temporary
from msformat.filesystem import Item
from msformat.stores.registry import BUILTIN_STORES, available_stores

__all__ = [
    "CONTAINERS",
    "DOCUMENTS",
    "JOURNAL_NAME",
    "MARKER",
    "TENSORS",
    "UNIT_FILES",
    "backend_of",
    "has_container",
    "has_item",
    "is_marked",
    "telling_name",
    "without_special",
]

JOURNAL_NAME = "journal.jsonl"
DOCUMENTS = ("dump.json", "debug.json")
TENSORS = "dump_tensor_data"
# Containers inside a unit directory, the preferred one first.
CONTAINERS = {"dump.h5": "hdf5", "dump.zarr": "zarr"}
_CONTAINER_STEM = "dump."
# What makes a directory a unit of canonical files.
_FILES = (*DOCUMENTS, TENSORS)
# What the name of an object begins with that says: what lies beside it is not whole (msformat.destination_remote).
MARKER = ".unit"
# Naming one of these names its unit.
UNIT_FILES = {*DOCUMENTS, "stack.json", "construct.json", "dump_error_info.log", "tensors.jsonl", JOURNAL_NAME}


def without_special(items: Iterable[Item]) -> list[Item]:
    """What is neither special (a device, a link that leads outside) nor a temporary of ours."""
    return [item for item in items if item.kind != "special" and not is_temporary(item.name)]


def is_marked(items: Iterable[Item]) -> bool:
    """Whether a conversion writes here, or died here."""
    return any(item.name.startswith(MARKER) and is_temporary(item.name) and item.kind == "file" for item in items)


def has_item(items: Iterable[Item], name: str, kind: str) -> bool:
    """Whether a directory has a file (or directory) of that name."""
    return any(item.name == name and item.kind == kind for item in items)


def has_container(items: Sequence[Item], name: str) -> bool:
    """Whether a directory has a container of that name, in the form of its store."""
    return has_item(items, name, "directory" if name.endswith(".zarr") else "file")


def telling_name(items: Sequence[Item]) -> str:
    """The name that decides what backend a unit has; ``""`` for none."""
    for name in DOCUMENTS:
        if has_item(items, name, "file"):
            return name
    if has_item(items, TENSORS, "directory"):
        return TENSORS
    return next((name for name in CONTAINERS if has_container(items, name)), "") or _plugin_name(items)


def _plugin_name(items: Sequence[Item]) -> str:
    """``dump.{backend}`` of a store that another package registers."""
    names = [item.name for item in items if item.name.startswith(_CONTAINER_STEM)]
    # Plug-ins are asked for only where something might be theirs: that reads the metadata of all packages.
    backends = set(available_stores()) - set(BUILTIN_STORES) if names else set()
    return next((name for name in names if name.removeprefix(_CONTAINER_STEM) in backends), "")


def backend_of(items: Sequence[Item]) -> str | None:
    """The store of a unit with this content, None for no unit.

    Canonical files come before containers: they are what msprobe itself would read.
    """
    found = telling_name(items)
    if found:
        return "files" if found in _FILES else CONTAINERS.get(found) or found.removeprefix(_CONTAINER_STEM)
    # Killed before the first tensor: containers are made when they are opened, so this was to become files.
    return "files" if has_item(items, JOURNAL_NAME, "file") else None
