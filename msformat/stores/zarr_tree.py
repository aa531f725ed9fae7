"""Groups of a Zarr store: making those of a unit, checking those of strangers, finding units."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from msformat.atomic import fsync_directory, is_temporary, make_directories, write_atomic
from msformat.errors import StoreError, UnsafeInputError
from msformat.filesystem import FileSystem, join
from msformat.stores.base import Mode
from msformat.stores.zarr_index import LOG_NAME, Place
from msformat.stores.zarr_metadata import METADATA_NAME, group_document, is_hashed, load_array, load_node, old_zarr
from msformat.stores.zarr_stacks import ROWS

__all__ = [
    "CHILDREN",
    "LAYOUT_VERSION",
    "check_unit",
    "find_groups",
    "foreign_places",
    "make_unit",
    "refuse_old_zarr",
    "remove_temporaries",
]

# In the attribute "msformat" of a unit's group. Readers refuse a higher one.
LAYOUT_VERSION = 2

#: The groups of a unit.
CHILDREN = ("tensors", "packs", "documents")
_GROUP_DEPTH = 4
_OLD_ZARR = (".zgroup", ".zarray", ".zmetadata", "meta/root.group.json", "meta/root.array.json", "meta/root")


def make_unit(fs: FileSystem, group: str, mode: Mode, *, fsync: bool = True) -> None:
    """Make the groups down to a unit and those in it, if nothing speaks against it.

    Raises
    ------
    StoreError
        Something that is no Zarr v3 store lies there, or for mode ``w`` a unit.
    """
    root = fs.describe("")
    make_directories(root, fsync=fsync)
    refuse_old_zarr(fs, "")
    names = [name for name in os.listdir(root) if not is_temporary(name)]
    if names and METADATA_NAME not in names:
        raise StoreError(f"{root}: not empty and no Zarr store; nothing was written")
    if mode == "w":
        held = [name for name in (*CHILDREN, LOG_NAME) if fs.kind(join(group, name)) is not None]
        if held:
            raise StoreError(f"{fs.describe(group)}: already holds {', '.join(held)}")
    parts = group.split("/") if group else []
    for depth in range(len(parts) + 1):
        _make_group(fs, join(*parts[:depth]), unit=depth == len(parts), fsync=fsync)
    for child in CHILDREN:
        _make_group(fs, join(group, child), unit=False, fsync=fsync)


def _make_group(fs: FileSystem, path: str, *, unit: bool, fsync: bool) -> None:
    directory = fs.describe(path)
    if fs.kind(path) not in ("directory", None):
        raise UnsafeInputError(f"{directory}: is no directory inside the store")
    node = load_node(fs, path)
    if node is None:
        os.makedirs(directory, exist_ok=True)
        attributes = {"msformat": {"layout": LAYOUT_VERSION}} if unit else {}
        write_atomic(os.path.join(directory, METADATA_NAME), group_document(attributes), fsync=fsync)
        if fsync:
            fsync_directory(os.path.dirname(directory))
    elif node["node_type"] != "group":
        raise StoreError(f"{directory}: is a Zarr array, not a group")
    elif node != (kept := _kept(node, unit=unit)):
        write_atomic(os.path.join(directory, METADATA_NAME), json.dumps(kept, indent=2).encode(), fsync=fsync)


def _kept(node: dict[str, Any], *, unit: bool) -> dict[str, Any]:
    """A group's metadata as it must be for what is added now."""
    # zarr-python lists what stands there and nothing else, so what is added would stay unseen.
    kept = {name: value for name, value in node.items() if name != "consolidated_metadata"}
    attributes = kept.get("attributes")
    if unit and isinstance(attributes, dict) and "msformat" in attributes and _layout(node) < LAYOUT_VERSION:
        # An older msformat must not take a row for the whole array.
        kept["attributes"] = {**attributes, "msformat": {"layout": LAYOUT_VERSION}}
    return kept


def check_unit(fs: FileSystem, group: str) -> None:
    """Refuse what this reader cannot read as a unit.

    Raises
    ------
    StoreError
        Nothing there, another kind of store, or one of a newer layout.
    """
    where = fs.describe(group)
    node = load_node(fs, group)
    if node is None:
        refuse_old_zarr(fs, "")
        refuse_old_zarr(fs, group)
        raise StoreError(f"{where}: no Zarr store: there is no {METADATA_NAME}")
    if node["node_type"] != "group":
        raise StoreError(f"{where}: is a Zarr array, not a group")
    layout = _layout(node)
    if layout > LAYOUT_VERSION:
        raise StoreError(f"{where}: layout {layout} was written by a newer msformat; this one reads {LAYOUT_VERSION}")


def remove_temporaries(directory: str) -> None:
    """Remove what a dead writer of this store left half-written. Links are not followed."""
    for parent, names, files in os.walk(directory):
        names[:] = [name for name in names if not os.path.islink(os.path.join(parent, name))]
        for name in filter(is_temporary, files):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(parent, name))


def _layout(node: dict[str, Any]) -> int:
    """Layout version; what another program made has none, and nothing in it is older."""
    attributes = node.get("attributes")
    ours = attributes.get("msformat") if isinstance(attributes, dict) else None
    layout = ours.get("layout") if isinstance(ours, dict) else None
    return layout if isinstance(layout, int) else LAYOUT_VERSION


def refuse_old_zarr(fs: FileSystem, node: str) -> None:
    """Look for what older versions of Zarr leave instead of ``zarr.json``.

    Raises
    ------
    StoreError
        It is one.
    """
    for sign in _OLD_ZARR:
        if fs.kind(join(node, sign)) is not None:
            raise old_zarr(fs.describe(node), sign)


def foreign_places(fs: FileSystem, group: str) -> dict[str, Place]:
    """Arrays that another program put into ``tensors``. Only their names are read now."""
    parent = join(group, "tensors")
    if fs.kind(parent) != "directory":
        return {}
    names = sorted((item.name for item in fs.list(parent) if item.kind == "directory"), key=_natural)
    found: dict[str, Place] = {}
    for name in names:
        if is_temporary(name) or fs.kind(join(parent, name, METADATA_NAME)) != "file":
            continue
        if re.fullmatch(r"[0-9]{1,9}", name) and _is_ours(fs, join(parent, name)):
            continue
        meta = load_array(fs, join(parent, name)) if is_hashed(name) else None
        key = str(meta.attributes.get("key", name)) if meta else name
        found[key] = Place(array=f"tensors/{name}")
    return found


def _is_ours(fs: FileSystem, node: str) -> bool:
    """Whether an array holds many tensors, whose keys only a lost index knew."""
    meta = load_array(fs, node)
    return meta is not None and meta.attributes.get(ROWS) is True


def find_groups(fs: FileSystem) -> tuple[str, ...]:
    """Groups that hold a unit: those with ``documents`` or ``tensors``, at most 4 levels deep, naturally sorted.

    Raises
    ------
    StoreError
        Not a Zarr v3 store.
    """
    if load_node(fs, "") is None:
        refuse_old_zarr(fs, "")
        raise StoreError(f"{fs.describe('')}: no Zarr store: there is no {METADATA_NAME}")
    return tuple(sorted(_units_below(fs, "", _GROUP_DEPTH), key=_natural))


def _units_below(fs: FileSystem, path: str, depth: int) -> Iterator[str]:
    names = {item.name for item in fs.list(path) if item.kind == "directory"}
    if names & {"documents", "tensors"}:
        yield path
    if depth == 0:
        return
    for name in names.difference(CHILDREN):
        child = join(path, name)
        if not name.startswith(".") and fs.kind(join(child, METADATA_NAME)) == "file":
            yield from _units_below(fs, child, depth - 1)


def _natural(text: str) -> list[tuple[int, str]]:
    """``step2`` before ``step10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text)]
