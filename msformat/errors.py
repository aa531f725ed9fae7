"""Every error msformat raises on purpose.

::

    MsformatError
    ├── FormatError (ValueError)            a document, name or file is not what the format says
    │   ├── SchemaError                     a JSON document: carries a JSON pointer, what was expected, what was found
    │   ├── UnsafeInputError                the input would reach outside itself, run code or exhaust memory
    │   └── CorruptJournalError             a journal line in the middle does not match its CRC
    ├── DTypeError (TypeError)              an element type that no store can keep
    ├── TensorNotFoundError (KeyError)      no tensor of that key; names near matches
    ├── EntryNotFoundError (KeyError)       no entry of that key; names near matches
    ├── UnitNotFoundError (KeyError)        no such step and rank; says which there are
    ├── StoreError (OSError)                a store cannot be opened, read or written
    │   ├── KeyExistsError                  the key is taken by other content
    │   └── CorruptTensorError              stored bytes are missing, short or do not match their digest
    └── BackendMissingError (ImportError)   an optional dependency is absent; names the extra that brings it

    CaptureError                            lives in ``capture``; a MsformatError too

A caller who knows nothing of msformat still catches the builtin it expects (``ValueError``, ``OSError``, …).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from msformat.credentials import hide_credentials

__all__ = [
    "BackendMissingError",
    "CorruptJournalError",
    "CorruptTensorError",
    "DTypeError",
    "EntryNotFoundError",
    "FormatError",
    "KeyExistsError",
    "MsformatError",
    "SchemaError",
    "StoreError",
    "TensorNotFoundError",
    "UnitNotFoundError",
    "UnsafeInputError",
]


class MsformatError(Exception):
    """Base of every error that msformat raises on purpose. Its text shows no credentials of a URL."""

    def __str__(self) -> str:
        return hide_credentials(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        # By state: exceptions are otherwise remade from their message alone, and worker processes send them home.
        return _remake, (type(self), self.args), self.__dict__


def _remake(kind: type[MsformatError], args: tuple[Any, ...]) -> MsformatError:
    made = kind.__new__(kind, *args)
    made.args = args
    return made


class FormatError(MsformatError, ValueError):
    """A document, name or file is not what the format says."""


class SchemaError(FormatError):
    """A JSON document does not follow the schema.

    Parameters
    ----------
    source
        File or store the document came from.
    pointer
        JSON pointer (RFC 6901) to the offending value, ``""`` for the whole document.
    expected, found
        What the schema wants and what stands there, in words.
    """

    def __init__(self, source: str, pointer: str, *, expected: str, found: str) -> None:
        super().__init__(f"{source}: at {pointer or '/'}: expected {expected}, found {found}")
        self.source = source
        self.pointer = pointer
        self.expected = expected
        self.found = found


class UnsafeInputError(FormatError):
    """The input would reach outside itself, run code, or exhaust memory. It was refused before it could."""


class CorruptJournalError(FormatError):
    """A journal line that is not the last one does not match its CRC."""


class DTypeError(MsformatError, TypeError):
    """An element type that no store can keep, or a spelling that no framework uses."""


class _NotFoundError(MsformatError, KeyError):
    """A key that is not there, with the nearest ones that are, or the reason why it is not."""

    what = "key"

    def __init__(self, key: str, where: str, candidates: Iterable[str] = (), *, reason: str = "") -> None:
        known = list(candidates) if isinstance(key, str) else []  # nothing is like a number
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.6) if known else []
        if not near and known and key:  # a part of a name, or another case
            near = [name for name in known if key.lower() in name.lower()][:3]
        hint = f"; near matches: {', '.join(map(repr, near))}" if near else ""
        super().__init__(f"{where}: no {self.what} {key!r}{f': {reason}' if reason else ''}{hint}")
        self.key = key
        self.near = near

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return hide_credentials(str(self.args[0]))


class TensorNotFoundError(_NotFoundError):
    """A store holds no tensor of that key."""

    what = "tensor"


class EntryNotFoundError(_NotFoundError):
    """A unit holds no entry of that key."""

    what = "entry"


class UnitNotFoundError(_NotFoundError):
    """A dump holds no unit of that step and rank, or several."""

    what = "unit"


class StoreError(MsformatError, OSError):
    """A store cannot be opened, read or written."""


class KeyExistsError(StoreError):
    """``put`` of a key that already holds other content. Nothing was overwritten."""


class CorruptTensorError(StoreError):
    """Stored bytes of a tensor are missing, short, or do not match their digest."""


class BackendMissingError(MsformatError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    package
        The import name that was not found.
    extra
        The extra of the distribution that brings it; empty where none does.
    purpose
        What it is needed for.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        wanted = f"'msformat[{extra}]'" if extra else package
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install {wanted}")
        self.package = package
        self.extra = extra
