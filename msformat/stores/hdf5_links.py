"""Links of a group: keys of tensors and documents as HDF5 takes them for names, and the datasets behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msformat.stores import hdf5_guard as guard

__all__ = ["TensorLinks", "escape", "link_names", "unescape"]

# Asking a link for its kind takes four times as long as to walk past it.
_WALK_AT = 0.25

_UNSAFE = re.compile("[%/\0\ud800-\udfff]")
_ESCAPED = re.compile("%([0-9A-F]{2}|u[0-9A-F]{4})|%")
# Surrogates that do not stand for an undecodable byte cannot be part of a stranger's name.
_LONE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_WHOLE = {"": "%", ".": "%2E", "..": "%2E%2E"}


def escape(key: str) -> bytes:
    """The link name of a key: ``%``, ``/``, NUL and lone surrogates percent-escaped, UTF-8.

    HDF5 takes ``/`` as a step, ``.`` as the group itself, and has no empty name and no NUL.
    """
    return (_WHOLE.get(key) or _UNSAFE.sub(_escape_one, key)).encode()


def _escape_one(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code:02X}" if code < 256 else f"%u{code:04X}"


def unescape(name: bytes) -> str:
    """The key of a link name. A name that :func:`escape` never makes is a stranger's, and is its own key."""
    text = name.decode("utf-8", "surrogateescape")
    if "%" not in text:
        return text
    key = "" if text == "%" else _ESCAPED.sub(lambda m: chr(int(m[1].lstrip("u"), 16)) if m[1] else "%", text)
    return key if escape(key) == name else text


def link_names(key: str) -> Iterator[bytes]:
    """Link names under which a key may stand: ours, then a stranger's own."""
    ours = escape(key)
    yield ours
    theirs = key.encode("utf-8", "surrogateescape") if "\0" not in key and not _LONE.search(key) else ours
    if theirs not in (ours, b"", b".", b"..") and b"/" not in theirs and unescape(theirs) == key:
        yield theirs


class TensorLinks:
    """Finds the datasets of keys, along hard links only.

    Parameters
    ----------
    group
        In h5py's low-level terms; None has no links.
    is_fixed
        Nobody adds links while this is used.
    """

    def __init__(self, group: Any | None, *, is_fixed: bool) -> None:
        self._group = group
        self._may_walk = is_fixed
        self._all_hard = False
        self._wanted = 0

    def expect(self, count: int) -> None:
        """So many keys more will be looked for: for many, all links are asked at once, which one each would be."""
        self._wanted += count
        if self._may_walk and self._group is not None and self._wanted >= _WALK_AT * self._group.get_num_objs():
            self._may_walk = False
            self._all_hard = guard.are_all_hard(self._group)

    def find(self, key: str, label: str) -> Any | None:
        """The dataset of a key, None where there is none. Raises as :func:`hdf5_guard.open_dataset` does."""
        if self._group is None:
            return None
        for name in link_names(key):
            dataset = guard.open_dataset(self._group, name, label, all_hard=self._all_hard)
            if dataset is not None:
                return dataset
        return None
