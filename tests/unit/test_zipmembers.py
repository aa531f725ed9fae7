"""The zip reader and writer, judged by ``zipfile``."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.errors import FormatError, MsformatError
from msformat.stores import zipmembers
from msformat.stores.zipmembers import ALIGNMENT, read_members, zip_parts

names = st.text(st.characters(codec="utf-8", exclude_characters="\0\\"), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.lists(st.binary(max_size=300), max_size=3), min_size=1, max_size=6))
def test_zipfile_reads_what_we_lay_out(content: dict[str, list[bytes]]) -> None:
    data = b"".join(zip_parts(list(content.items())))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {info.filename: archive.read(info) for info in archive.infolist()} == {
            name: b"".join(parts) for name, parts in content.items()
        }
    members = read_members(data, "x")
    for name, parts in content.items():
        member = members[name]
        assert member.offset % ALIGNMENT == 0
        assert data[member.offset : member.offset + member.size] == b"".join(parts)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(names, st.binary(max_size=300), max_size=6), st.binary(max_size=40))
def test_we_read_what_zipfile_stores(content: dict[str, bytes], comment: bytes) -> None:
    with io.BytesIO() as stream:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            archive.comment = comment
            for name, part in content.items():
                archive.writestr(name, part)
        data = stream.getvalue()
    try:
        members = read_members(data, "x")
    except MsformatError:
        # A comment that looks like an end record makes the zip ambiguous; nothing else may be refused.
        assert b"PK\x05\x06" in comment
        return
    assert {name: data[m.offset : m.offset + m.size] for name, m in members.items()} == content


def test_zip64(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit lowered, each wide field is written; the reader finds them by the same limit."""
    monkeypatch.setattr(zipmembers, "_FULL32", 200)
    parts = zip_parts([("a", [b"x" * 300]), ("b", [b"y" * 10]), ("c", [b"z" * 500])])
    data = b"".join(parts)
    members = read_members(data, "x")
    assert {name: data[m.offset : m.offset + m.size] for name, m in members.items()} == {
        "a": b"x" * 300,
        "b": b"y" * 10,
        "c": b"z" * 500,
    }


def test_zip64_as_zipfile_writes_it() -> None:
    """Above 4 GiB, judged by ``zipfile``: the data are views of one page, so that nothing is allocated."""
    page = memoryview(bytes(1 << 20))
    parts = zip_parts([("small", [b"first"]), ("large", [page] * 4100), ("behind", [b"last"])])
    total = sum(len(part) for part in parts)
    assert total > 1 << 32
    stream = _Parts(parts)
    with zipfile.ZipFile(stream) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        assert sizes == {"small": 5, "large": 4100 << 20, "behind": 4}
        assert archive.read("behind") == b"last"
        assert archive.read("small") == b"first"


class _Parts(io.RawIOBase):
    """A file made of parts, without joining them."""

    def __init__(self, parts: list[bytes | memoryview]) -> None:
        self._parts = parts
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + len(part))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._starts[-1])[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._starts[-1] if size is None or size < 0 else min(self._starts[-1], self._at + size)
        found = []
        for part, start in zip(self._parts, self._starts[:-1], strict=True):
            if start < end and start + len(part) > self._at:
                found.append(bytes(part[max(0, self._at - start) : end - start]))
        self._at = end
        return b"".join(found)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members_are_refused_by_name(method: int) -> None:
    with io.BytesIO() as stream:
        with zipfile.ZipFile(stream, "w", method) as archive:
            archive.writestr("archive/data.pkl", b"x" * 1000)
        data = stream.getvalue()
    with pytest.raises(FormatError, match=r"data\.pkl.*compressed"):
        read_members(data, "x")


def test_encrypted_members_are_refused_by_name() -> None:
    data = bytearray(b"".join(zip_parts([("secret", [b"x"])])))
    at = data.rfind(b"PK\x01\x02")
    struct.pack_into("<H", data, at + 8, 1)
    with pytest.raises(FormatError, match=r"secret.*encrypted"):
        read_members(bytes(data), "x")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_an_error_of_ours_or_harmless(data: st.DataObject) -> None:
    whole = bytearray(b"".join(zip_parts([("a/data.pkl", [b"p" * 30]), ("a/data/0", [b"d" * 200])])))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    try:
        members = read_members(bytes(whole[: cut or None]), "x")
    except MsformatError:
        return
    for member in members.values():
        assert 0 <= member.offset <= member.offset + member.size <= len(whole)
