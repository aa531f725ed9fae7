"""``.npy`` headers, parsed as data."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.dtypes import dtype_named
from msformat.errors import CorruptTensorError, FormatError, MsformatError, UnsafeInputError
from msformat.stores.files import FilesStore
from msformat.stores.npyfile import MAGIC, parse_npy_header


def npy(header: str, data: bytes = b"") -> bytes:
    raw = header.encode("latin-1")
    return MAGIC + b"\x01\x00" + len(raw).to_bytes(2, "little") + raw + data


def fields(descr: str = "'<f4'", shape: str = "(3,)", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def open_one(tmp_path: Path, content: bytes) -> Any:
    directory = tmp_path / "dump_tensor_data"
    directory.mkdir(exist_ok=True)
    (directory / "x.npy").write_bytes(content)
    return FilesStore(str(tmp_path)).get("x.npy")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["<f4", ">i8", "|b1", "<U3", "<M8[ns]", "|S4", "<c8", "|u1", "|V2"]),
    st.lists(st.integers(0, 1 << 40), max_size=5),
    st.booleans(),
)
def test_headers_as_numpy_writes_them(descr: str, shape: list[int], fortran: bool) -> None:
    with io.BytesIO() as stream:
        header = {"descr": descr, "fortran_order": fortran, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(stream, header)
        raw = stream.getvalue()
    assert parse_npy_header(raw, "x") == (np.dtype(descr), fortran, tuple(shape), len(raw))


def test_headers_written_another_way() -> None:
    for header in (
        '{"shape": (3, 4), "descr": "<f4", "fortran_order": False}',
        "{'descr':'<f4','fortran_order':False,'shape':(3,4)}",
        "  {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
    ):
        assert parse_npy_header(npy(header), "x")[:3] == (np.dtype("<f4"), False, (3, 4))


@pytest.mark.parametrize(
    "descr", ["'bfloat16'", "'<E2'", "'float32'", "'f4,f4'", "'(2,3)f4'", "'<f5'", "'<U0'", "''", "3", "[('a', '<f4')]"]
)
def test_element_types_that_are_none(tmp_path: Path, descr: str) -> None:
    with pytest.raises(FormatError, match=r"x\.npy"):
        open_one(tmp_path, npy(fields(descr), bytes(64)))


@pytest.mark.parametrize("descr", ["'|O'", "'O'", "'|O8'"])
def test_python_objects_are_refused_by_name(tmp_path: Path, descr: str) -> None:
    with pytest.raises(UnsafeInputError, match="Python objects"):
        open_one(tmp_path, npy(fields(descr), bytes(64)))


def test_an_object_array_of_numpy_is_refused(tmp_path: Path) -> None:
    with io.BytesIO() as stream:
        np.save(stream, np.array([{}, 1], object))
        content = stream.getvalue()
    with pytest.raises(UnsafeInputError, match="Python objects"):
        open_one(tmp_path, content)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{",
        "[]",
        "__import__('os')",
        fields(shape="(3, -1)"),
        fields(shape="(True,)"),
        fields(shape="3"),
        fields(shape="(1.0,)"),
        fields(fortran="1"),
        fields(shape=f"({'1,' * 70})"),
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
        "(" * 4000,
        "[" * 9000,
        "-" * 9000 + "1",
    ],
)
def test_damaged_headers(tmp_path: Path, header: str) -> None:
    with pytest.raises(FormatError):
        open_one(tmp_path, npy(header, bytes(64)))


def test_a_header_of_absurd_size(tmp_path: Path) -> None:
    with pytest.raises(UnsafeInputError):
        open_one(tmp_path, MAGIC + b"\x02\x00" + (1 << 31).to_bytes(4, "little") + b"{")
    with pytest.raises(UnsafeInputError):
        open_one(tmp_path, MAGIC + b"\x09\x00" + (10).to_bytes(2, "little") + b"{" * 10)


@pytest.mark.parametrize("shape", ["(4,)", "(1000000000000,)", "(4611686018427387904, 4)", "(9223372036854775807,)"])
def test_a_declared_size_that_the_file_cannot_back(tmp_path: Path, shape: str) -> None:
    with pytest.raises(CorruptTensorError, match="needs"):
        open_one(tmp_path, npy(fields(shape=shape), bytes(12)))


def test_files_cut_short(tmp_path: Path) -> None:
    whole = npy(fields(), bytes(12))
    for length in range(len(whole)):
        with pytest.raises((FormatError, CorruptTensorError)):
            open_one(tmp_path, whole[:length])


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    stored = open_one(tmp_path, npy(fields(shape="(100000,)"), bytes(400_000)))
    (tmp_path / "dump_tensor_data" / "x.npy").write_bytes(b"short")
    with pytest.raises(CorruptTensorError):
        stored.bits()


def test_an_empty_shape_with_an_absurd_length(tmp_path: Path) -> None:
    stored = open_one(tmp_path, npy(fields(shape="(0, 9223372036854775807, 9223372036854775807)")))
    with pytest.raises(MsformatError):
        stored.bits()


def test_raw_void_elements_are_kept_as_bits(tmp_path: Path) -> None:
    """numpy writes arrays of ml_dtypes.bfloat16 under the code ``<V2``."""
    stored = open_one(tmp_path, npy(fields("'<V2'"), b"\x01\x02\x03\x04\x05\x06"))
    assert stored.bits().tolist() == [0x0201, 0x0403, 0x0605]


def test_a_sidecar_that_contradicts_its_file(tmp_path: Path) -> None:
    (tmp_path / "tensors.jsonl").write_text('{"file": "x.npy", "dtype": "bfloat16"}\n')
    values = np.array([1.0, 1.0 + 2**-20, 2.0], np.float32)
    with pytest.raises(CorruptTensorError, match="bfloat16"):
        open_one(tmp_path, npy(fields(), values.tobytes())).bits()
    assert open_one(tmp_path, npy(fields(), values[::2].tobytes() + bytes(4))).dtype == dtype_named("bfloat16")
    (tmp_path / "tensors.jsonl").write_text('{"file": "x.npy", "dtype": "float64"}\n')
    with pytest.raises(FormatError, match="float64"):
        open_one(tmp_path, npy(fields(), values.tobytes())).bits()
    (tmp_path / "tensors.jsonl").write_text('{"file": "x.npy", "dtype": "<f16"}\n')
    with pytest.raises(FormatError):
        open_one(tmp_path, npy(fields("'|u1'", "(2, 15)"), bytes(30)))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=120))
def test_any_header_is_read_or_refused(raw: bytes) -> None:
    with_length = MAGIC + b"\x01\x00" + len(raw).to_bytes(2, "little") + raw
    with contextlib.suppress(MsformatError):
        parse_npy_header(with_length, "x")
