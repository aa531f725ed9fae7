"""The columnar index beside a large document of a container: written with it, used only while it is its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import xxhash

from msformat.columnbuild import ColumnBuilder, Columns
from msformat.columnfile import ColumnFile, decode_columns, encode_columns, most_bytes
from msformat.documents import DumpDocument
from msformat.errors import FormatError, MsformatError
from msformat.stores.base import COLUMNS, ReadOnlyBuffer, Store

__all__ = ["check_columns", "document_columns", "find_columns", "put_columns", "put_document_columns"]

_ENTRY_DOCUMENTS = ("dump.json", "debug.json")
# Of a smaller document the table is there in 25 ms without an index, whose making would take a training as long.
_LEAST_DOCUMENT = 1 << 20


def document_columns(document: DumpDocument) -> Columns:
    """The columns of a document.

    Raises
    ------
    FormatError
        An entry of it cannot be read.
    """
    builder = ColumnBuilder()
    builder.add_texts(document.texts())
    return builder.finish()


def put_document_columns(store: Store, documents: Mapping[str, ReadOnlyBuffer]) -> None:
    """:func:`put_columns` of documents that were put before; nothing where they need no index, or can have none.

    Raises
    ------
    StoreError
        As :meth:`msformat.stores.base.Store.put_columns`.
    """
    name = _only_document(documents) if store.keeps_columns else None
    if name is None or len(documents[name]) < _LEAST_DOCUMENT:
        return
    try:
        columns = document_columns(DumpDocument.parse(documents[name], name))
    except FormatError:
        return  # whoever reads the document hears what is wrong with it
    _put(store, name, documents[name], columns)


def put_columns(store: Store, name: str, data: ReadOnlyBuffer, texts: Iterable[tuple[str, bytes]]) -> None:
    """Write the index of a large document, in stores that keep one.

    Parameters
    ----------
    store
        The document was put there before, and it is its only one of entries.
    name, data
        The document.
    texts
        Its entries, encoded.

    Raises
    ------
    StoreError
        As :meth:`msformat.stores.base.Store.put_columns`.
    """
    if not store.keeps_columns or len(data) < _LEAST_DOCUMENT or _only_document(store.documents()) != name:
        return
    builder = ColumnBuilder()
    try:
        builder.add_texts(texts)
    except FormatError:
        return
    _put(store, name, data, builder.finish())


def _put(store: Store, name: str, data: ReadOnlyBuffer, columns: Columns) -> None:
    found = store.document_seal(name)
    if found is not None and found[0] == len(data):
        store.put_columns(encode_columns(ColumnFile(name, len(data), _digest(data), found[1], columns)))


def _digest(data: ReadOnlyBuffer) -> str:
    return str(xxhash.xxh3_128_hexdigest(data))


def _only_document(names: Iterable[str]) -> str | None:
    found = [name for name in names if name in _ENTRY_DOCUMENTS]
    return found[0] if len(found) == 1 else None


# --- reading ---------------------------------------------------------------------------------------------------------


def find_columns(store: Store) -> Columns | None:
    """The columns of the unit's only document, None where there are none that can be used."""
    if not store.keeps_columns:
        return None
    try:
        return _usable(store)
    except (MsformatError, OSError):
        return None  # the document says the same, and `verify` what is wrong with the index


def _usable(store: Store) -> Columns | None:
    name = _only_document(store.documents())
    data = store.get_document(COLUMNS) if name is not None else None
    seal = store.document_seal(name) if name is not None and data is not None else None
    if name is None or data is None or seal is None or len(data) > most_bytes(seal[0]):
        return None
    file = decode_columns(data)
    if (file.document, file.length) != (name, seal[0]):
        return None
    if file.seal == seal[1]:
        return file.columns
    # A tool may have packed the document anew.
    document = store.get_document(name)
    return file.columns if document is not None and _digest(document) == file.digest else None


def check_columns(store: Store, documents: Mapping[str, ReadOnlyBuffer]) -> list[str]:
    """What is wrong with the index of a store, in sentences. Compares it with its document, entry by entry."""
    name = _only_document(documents)
    try:
        data = store.get_document(COLUMNS) if store.keeps_columns else None
        if data is None:
            return []
        if name is None:
            return ["the index of columns belongs to no document; readers ignore it"]
        file = decode_columns(data)
        if file.document != name or file.length != len(documents[name]) or file.digest != _digest(documents[name]):
            return [f"the index of columns is stale: it was made from another {name}; readers ignore it"]
        expected = document_columns(DumpDocument.parse(documents[name], name))
        if encode_columns(ColumnFile(name, file.length, file.digest, file.seal, expected)) != bytes(data):
            return [f"the index of columns says something else than {name}"]
    except (MsformatError, OSError) as error:
        return [f"the index of columns cannot be used: {error}"]
    return []
