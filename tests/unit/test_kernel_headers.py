"""Headers, places and element rules of kernel files, on files written byte by byte from the format's description."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.errors import FormatError
from msformat.filesystem import open_filesystem
from msformat.foreign.kernel_dump import enums
from msformat.foreign.kernel_dump.binary import read_records
from msformat.foreign.kernel_dump.header import parse_dump_data
from msformat.foreign.kernel_dump.record import Record
from msformat.foreign.kernel_dump.wire import read_fields, signed32
from tests import kernel_files as kf
from tests.kernel_files import Part

FLOAT = np.arange(6, dtype=np.float32).reshape(2, 3)


def record_of(path: Path) -> Record:
    (record,) = read_records(open_filesystem(str(path.parent)), path.name)
    return record


def entry_of(path: Path, **options: Any) -> Any:
    (unit,) = msformat.open(path, **options)
    (entry,) = unit.values()
    return entry


# --- the wire --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 32, (1 << 64) - 1])
def test_numbers(value: int) -> None:
    data = memoryview(kf.varint(1 << 3) + kf.varint(value))
    (field,) = read_fields(data, 0, len(data), "x")
    assert (field.number, field.wire, field.value) == (1, 0, value)


@pytest.mark.parametrize("value", [0, 1, -1, 65535, -(1 << 31), (1 << 31) - 1])
def test_signed_numbers(value: int) -> None:
    assert signed32(value & (1 << 64) - 1) == value


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\x00", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x0c", "wire type 4"),
        (b"\x0e", "wire type 6"),
        (b"\x0f", "wire type 7"),
        (b"\x08", "ends inside a number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than ten bytes"),
        (b"\x0a\x05abc", "claims 5 bytes of 3"),
        (b"\x09\x00\x00", "ends inside field 1"),
        (b"\x0d\x00\x00", "ends inside field 1"),
    ],
)
def test_what_is_no_message(data: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        list(read_fields(memoryview(data), 0, len(data), "x"))


def test_unknown_fields_are_skipped(tmp_path: Path) -> None:
    strange = kf.number(90, 5) + kf.text(91, "new") + b"\xe1\x05" + bytes(8) + b"\xed\x05" + bytes(4)
    path = kf.write_dump(tmp_path, [Part.of(FLOAT, extra=strange)], extra=strange)
    np.testing.assert_array_equal(entry_of(path).inputs[0].numpy(), FLOAT)


def test_dims_that_are_not_packed(tmp_path: Path) -> None:
    shape = kf.text(3, kf.number(1, 2) + kf.number(1, 3))
    path = kf.write_dump(tmp_path, [Part(FLOAT.tobytes(), extra=shape)])
    np.testing.assert_array_equal(entry_of(path).inputs[0].numpy(), FLOAT)


def test_a_field_of_another_wire_type_is_unknown(tmp_path: Path) -> None:
    path = kf.write_dump(tmp_path, [Part.of(FLOAT, extra=kf.text(5, "size"))])
    np.testing.assert_array_equal(entry_of(path).inputs[0].numpy(), FLOAT)


@pytest.mark.parametrize("count", [65, 1000])
def test_too_many_axes(count: int) -> None:
    head = memoryview(kf.text(4, kf.shape_message(3, [1] * count)))
    with pytest.raises(FormatError, match="more than 64"):
        parse_dump_data(head, 0, len(head), "x", family="v2")


# --- numbers of types and layouts ------------------------------------------------------------------------------------


def test_the_two_enumerations() -> None:
    """From 28 on the second is the first plus one; before, they have nothing in common."""
    assert [enums.proto_type_name(at) for at in (0, 1, 7, 12, 27, 28, 33, 36, 40, 42, 43)] == [
        "undefined", "float32", "int32", "float64", "bfloat16", "int4", "hifloat8", "float8_e8m0fnu", "float4_e1m2",
        "hifloat4_scale", "unknown_43",
    ]  # fmt: skip
    assert [enums.ge_type_name(at) for at in (0, 1, 2, 3, 4, 5, 6, 9, 11, 12, 13, 16, 17, 27, 28, 29, 34, 43, 44)] == [
        "float32", "float16", "int8", "int32", "uint8", "unknown_5", "int16", "int64", "float64", "bool", "string",
        "complex64", "complex128", "bfloat16", "undefined", "int4", "hifloat8", "hifloat4_scale", "unknown_44",
    ]  # fmt: skip
    assert [enums.ge_type_name(at + 1) for at in range(28, 43)] == [enums.proto_type_name(at) for at in range(28, 43)]
    assert enums.ge_type_name(-1) == "unknown_-1"


def test_layout_numbers() -> None:
    known = {0: "NCHW", 2: "ND", 3: "NC1HWC0", 29: "FRACTAL_NZ", 32: "NDC1HWC0", 47: "NCL", 51: "FRACTAL_NZ_C0_32"}
    assert {at: enums.format_name(at) for at in known} == known
    assert (enums.format_name(255), enums.format_name(200)) == ("MAX", "unknown_200")
    assert enums.format_name(4 | 16 << 8) == "FRACTAL_Z"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("DT_FLOAT", "float32"), ("BF16", "bfloat16"), ("Float32", "float32"), ("DT_BF16", "bfloat16"), ("INT4", "int4"),
     ("DT_DOUBLE", "float64"), ("float16", "float16"), ("HIFLOAT8", "hifloat8"), ("FLOAT8_E4M3FN", "float8_e4m3fn")],
)  # fmt: skip
def test_spellings(spelling: str, name: str) -> None:
    assert enums.spelled_type(spelling) == name


# --- what a header says ----------------------------------------------------------------------------------------------


def test_everything_a_header_says_is_kept(tmp_path: Path) -> None:
    original = kf.text(1, "net/add") + kf.number(2, 1) + kf.number(3, kf.FLOAT16) + kf.number(4, kf.NHWC)
    dims = kf.text(10, kf.number(1, 1) + kf.number(2, 9))
    output = Part.of(FLOAT, extra=kf.text(4, original) + dims + kf.number(11, 77) + kf.number(12, 3))
    given = Part.of(FLOAT, extra=kf.number(9, 64) + kf.number(11, 7), sub_format=-1)
    buffer = kf.text(5, kf.number(3, 4))
    space = kf.text(8, kf.number(3, 2) + kf.number(4, 5))
    attr = kf.text(7, kf.text(1, "axis") + kf.text(2, "-1"))
    path = kf.write_dump(tmp_path, [given], [output], extra=buffer + space + attr + kf.text(9, "log text"))
    path.write_bytes(path.read_bytes() + b"buff" + b"sp")
    entry = entry_of(path)
    assert entry.inputs[0].meta.extra.items() >= {
        "format": "ND", "sub_format": -1, "size": 24, "address": kf.ADDRESS, "offset": 64, "input_type": "tiling",
    }.items()  # fmt: skip
    said = entry.outputs[0].meta.extra
    assert said["original_op"] == {"name": "net/add", "output_index": 1, "data_type": "float16", "format": "NHWC"}
    assert (said["dim_range"], said["offset"], said["arg_index"]) == ([[1, 9]], 77, 3)
    (held,), (work,) = entry.value["buffer"], entry.value["space"]
    assert (held.numpy().tobytes(), held.meta.extra["buffer_type"]) == (b"buff", "L1")
    assert (work.numpy().tobytes(), work.meta.extra["space_type"], work.meta.extra["arg_index"]) == (b"sp", "LOG", 5)
    facts = {name: fact.value for name, fact in entry.value["kernel"].items()}
    assert facts["attributes"] == {"axis": "-1"}
    assert (facts["message"], facts["op_name"], facts["file"]) == ("log text", "Default/Add-op1", kf.NAME)
    assert (facts["task_id"], facts["stream_id"], facts["timestamp"]) == (5, 2, kf.STAMP)


def test_groups_in_the_format_of_the_exception_writer(tmp_path: Path) -> None:
    path = kf.write_dump(
        tmp_path, [Part.of(np.zeros((6, 1, 16, 16), "f4"), format=4 | 8 << 8, original=(16, 16, 2, 3))]
    )
    block = record_of(path).blocks[0]
    assert (block.format_name, block.sub_format) == ("FRACTAL_Z", 8)


@pytest.mark.parametrize("kind", ["Opdebug", "OpDebug"])
def test_overflow_of_other_engines(tmp_path: Path, kind: str) -> None:
    words = struct.pack("<IIIIII10Q", 0x5A5A5A5A, 0, 1, 3, 0, 80, *range(1, 11))
    part = Part(words, kf.UINT8, (len(words),))
    path = kf.write_dump(tmp_path, (), [part], name=f"{kind}.Node_OpDebug.1.2.{kf.STAMP}")
    (said,) = entry_of(path).value["kernel"]["overflow"].value
    assert said == {
        "version": 0, "valid": True, "acc_type": "SDMA", "model_id": 1, "stream_id": 2, "task_id": 3, "task_type": 4,
        "context_id": 5, "thread_id": 6, "src_addr": 7, "dst_addr": 8, "channel_id": 9, "status": 10,
    }  # fmt: skip


def test_type_and_name_the_other_way_round(tmp_path: Path) -> None:
    """aclnn operators under MindSpore's O0: the header's name tells."""
    path = kf.write_dump(tmp_path, [Part.of(FLOAT)], name=f"Default_Add-op1.aclnnAdd.5.2.{kf.STAMP}")
    facts = entry_of(path).value["kernel"]
    assert (facts["op_type"].value, facts["op_name"].value) == ("aclnnAdd", "Default/Add-op1")
    straight = kf.write_dump(tmp_path / "b", [Part.of(FLOAT)], name=f"aclnnAdd.Default_Add-op1.5.2.{kf.STAMP}")
    assert entry_of(straight).value["kernel"]["op_type"].value == "aclnnAdd"


# --- from bytes to arrays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f4", "f8", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", "c8", "c16"])
def test_plain_types(tmp_path: Path, name: str) -> None:
    numbers = {"f4": 1, "f2": 2, "i1": 3, "u1": 4, "i2": 5, "u2": 6, "i4": 7, "i8": 8, "u4": 9, "u8": 10, "?": 11,
               "f8": 12, "c8": 16, "c16": 17}  # fmt: skip
    array = np.array([[0, 1, 1], [1, 0, 1]], name)
    tensor = entry_of(kf.write_dump(tmp_path, [Part(array.tobytes(), numbers[name], (2, 3))])).inputs[0]
    assert tensor.numpy().dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal(tensor[1, ::2], array[1, ::2])


def test_bits_are_sacred(tmp_path: Path) -> None:
    """NaN payloads, the sign of zero, and every bfloat16."""
    words = np.array([0x7FA00001, 0xFFC12345, 0x80000000, 0x00000001], np.uint32)
    halves = np.arange(1 << 16, dtype=np.uint16)
    parts = [Part(words.tobytes(), 1, (4,)), Part(halves.tobytes(), kf.BFLOAT16, (256, 256))]
    floats, small = entry_of(kf.write_dump(tmp_path, parts)).inputs
    np.testing.assert_array_equal(floats.numpy().view(np.uint32), words)
    np.testing.assert_array_equal(small.bits().reshape(-1), halves)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_int4(tmp_path: Path, count: int) -> None:
    """The low half is the even element; an odd count is padded to a byte."""
    values = (np.arange(count) * 5 % 16 - 8).astype(np.int8)
    nibbles = np.append(values & 15, np.zeros(count % 2, np.int8)).astype(np.uint8)
    packed = nibbles[::2] | nibbles[1::2] << 4
    tensor = entry_of(kf.write_dump(tmp_path, [Part(packed.tobytes(), kf.INT4, (count,))])).inputs[0]
    assert tensor.dtype_name == "int4"
    assert tensor.numpy().astype(np.int8).tolist() == values.tolist()
    assert tensor.numpy()[-1:].astype(np.int8).tolist() == values[-1:].tolist()


def test_padding_at_the_tail_is_no_doubt(tmp_path: Path) -> None:
    padded = Part(FLOAT.tobytes() + bytes(8), kf.FLOAT32, (2, 3))
    (unit,) = msformat.open(kf.write_dump(tmp_path, [padded, Part.of(FLOAT + 1)]))
    (entry,) = unit.values()
    np.testing.assert_array_equal(entry.inputs[0].numpy(), FLOAT)
    np.testing.assert_array_equal(entry.inputs[1].numpy(), FLOAT + 1)
    assert (unit.problems, unit.store.notes) == ((), ())


def test_complex32_is_kept_as_it_is(tmp_path: Path) -> None:
    words = np.arange(6, dtype=np.uint32)
    tensor = entry_of(kf.write_dump(tmp_path, [Part(words.tobytes(), 32, (2, 3))])).inputs[0]
    assert (tensor.dtype_name, tensor.shape) == ("complex32", (2, 3))
    np.testing.assert_array_equal(tensor.bits().reshape(-1), words)


def test_exception_dumps(tmp_path: Path) -> None:
    """Plain ones know neither type nor shape; others know shapes, and bring tiling and a log."""
    name = f"Add.add.7.{'20250609144925349'}"
    parts = [Part(bytes(range(16)), 0, None, address=0), Part(bytes(12), 0, (3,), address=0)]
    entry = entry_of(kf.write_dump(tmp_path, parts, name=name, op_name="", extra=kf.text(9, "aicore error")))
    assert entry.inputs[0].numpy().tobytes() == bytes(range(16))
    assert entry.inputs[1].meta.extra["itemsize"] == 4
    assert entry.value["kernel"]["message"].value == "aicore error"
    assert entry.value["kernel"]["op_name"].value == "add"


# --- large files -----------------------------------------------------------------------------------------------------

# The kernel's own count: that of getrusage still has what the parent of the process took.
_PEAK = r"""
import re
def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
"""
_OPENING = f"""{_PEAK}
import sys, time
import msformat
began = time.perf_counter()
(unit,) = msformat.open(sys.argv[1])
(entry,) = unit.values()
tensor = entry.inputs[0]
assert tensor.shape == (5 << 28,), tensor.shape
assert tensor[-2:].tolist() == [0.0, 2.5]
print(time.perf_counter() - began, peak())
"""


def test_five_gigabytes_open_at_once(tmp_path: Path) -> None:
    """Header alone: the values are read where they are asked for."""
    size = 5 << 30
    head = kf.header([Part(b"", kf.FLOAT32, (size // 4,), size=size)])
    path = tmp_path / kf.NAME
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(head)) + head)
        stream.truncate(8 + len(head) + size)
        stream.seek(-4, os.SEEK_END)
        stream.write(np.float32(2.5).tobytes())
    done = subprocess.run([sys.executable, "-c", _OPENING, str(path)], capture_output=True, text=True, check=True)
    seconds, kilobytes = map(float, done.stdout.split())
    assert seconds < 20  # a fraction of one, unless the machine is asleep
    assert kilobytes < 100_000


_CONVERTING = f"""{_PEAK}
import sys
import msformat
report = msformat.convert_dump(sys.argv[1], sys.argv[2], msformat.ConvertOptions(to=sys.argv[3]))
assert report.exit_code == 0, report
assert report.units[0].verified
print(peak())
"""


@pytest.mark.parametrize("backend", ["files", "hdf5", "zarr"])
def test_one_large_tensor_takes_no_memory_of_its_size(tmp_path: Path, backend: str) -> None:
    size = 512 << 20
    head = kf.header([Part(b"", kf.FLOAT32, (size // 4,), size=size)])
    path = tmp_path / "in" / kf.NAME
    path.parent.mkdir()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(head)) + head)
        for at in range(32):
            stream.write(np.arange(at, at + (4 << 20), dtype=np.float32).tobytes())
    arguments = [sys.executable, "-c", _CONVERTING, str(path.parent), str(tmp_path / "out"), backend]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 350_000
    (unit,) = msformat.open(tmp_path / "out")
    assert unit[kf.NAME].inputs[0][-2:].tolist() == np.arange(31, 31 + (4 << 20), dtype=np.float32)[-2:].tolist()
