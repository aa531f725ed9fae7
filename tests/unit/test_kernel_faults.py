"""The twelve places where msprobe 26.2.0 reads kernel dumps wrongly (kernel dump format, §9): each is right here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import msformat
from tests import kernel_files as kf
from tests.kernel_files import Part

FLOAT = np.arange(6, dtype=np.float32).reshape(2, 3)


def entries(path: Path) -> list[Any]:
    (unit,) = msformat.open(path)
    return list(unit.values())


def entry_of(path: Path) -> Any:
    (entry,) = entries(path)
    return entry


def test_01_every_code_of_small_floats(tmp_path: Path) -> None:
    codes = np.arange(256, dtype=np.uint8)
    parts = [Part(codes.tobytes(), number, (256,)) for number in (33, 34, 35, 36)]
    hifloat8, e5m2, e4m3fn, e8m0 = entry_of(kf.write_dump(tmp_path, parts)).inputs
    # ml_dtypes judges the standard ones.
    for tensor, judge in (
        (e5m2, ml_dtypes.float8_e5m2), (e4m3fn, ml_dtypes.float8_e4m3fn), (e8m0, ml_dtypes.float8_e8m0fnu),
    ):  # fmt: skip
        np.testing.assert_array_equal(tensor.float32(), codes.view(judge).astype(np.float32))
        np.testing.assert_array_equal(tensor.bits(), codes)
    values = hifloat8.float32()
    assert values[0x08] == 1.0  # msprobe: 1.25
    assert (values[0x6F], values[0xEF]) == (np.inf, -np.inf)
    assert np.isnan(values[0x80])
    assert np.isnan(e4m3fn.float32()[[0x7F, 0xFF]]).all()  # msprobe: +/-480
    assert e5m2.float32()[0xFC] == -np.inf  # msprobe: +inf


@pytest.mark.parametrize("number", [13, 28, 30, 31, 32, 36, 37, 38, 39, 40, 41, 99])
def test_02_an_unsupported_type_leaves_the_others(tmp_path: Path, number: int) -> None:
    odd = Part(bytes(range(8)), number, (8,))
    entry = entry_of(kf.write_dump(tmp_path, [Part.of(FLOAT), odd, Part.of(FLOAT + 1)]))
    np.testing.assert_array_equal(entry.inputs[0].numpy(), FLOAT)
    np.testing.assert_array_equal(entry.inputs[2].numpy(), FLOAT + 1)


def test_03_scalars_and_empty_tensors_keep_shape_and_type(tmp_path: Path) -> None:
    parts = [
        Part.of(np.float32(3)),
        Part(b"", kf.INT64, (2, 0, 3)),
        Part(bytes(4), 35, (4,)),
        Part(np.float16(2).tobytes(), kf.FLOAT16, None),
    ]
    scalar, empty, float8, bare = entry_of(kf.write_dump(tmp_path, parts)).inputs
    assert (scalar.numpy().shape, scalar.numpy().dtype) == ((), np.float32)
    assert (empty.numpy().shape, empty.numpy().dtype) == ((2, 0, 3), np.int64)
    assert float8.numpy().dtype == ml_dtypes.float8_e4m3fn
    assert (bare.numpy().shape, bare.numpy()) == ((), np.float16(2))


def test_04_a_tensor_without_memory_is_left_out(tmp_path: Path) -> None:
    missing = Part(b"", kf.FLOAT32, (4,), address=0, size=16)
    path = kf.write_dump(tmp_path, [Part.of(FLOAT), missing, Part.of(FLOAT + 1)], [Part.of(FLOAT + 2)])
    entry = entry_of(path)
    assert not entry.inputs[1].has_data
    for tensor, add in ((entry.inputs[0], 0), (entry.inputs[2], 1), (entry.outputs[0], 2)):
        np.testing.assert_array_equal(tensor.numpy(), FLOAT + add)
    (unit,) = msformat.open(path)
    assert unit.problems == ()
    assert any("null-block" in note for note in unit.store.notes)


def test_05_a_size_that_is_too_small_shifts_nothing(tmp_path: Path) -> None:
    path = kf.write_dump(tmp_path, [Part.of(FLOAT, size=20)], [Part.of(FLOAT + 9)])
    (unit,) = msformat.open(path)
    assert "sizes-repaired" in unit.problems[0]
    np.testing.assert_array_equal(entry_of(path).inputs[0].numpy(), FLOAT)
    np.testing.assert_array_equal(entry_of(path).outputs[0].numpy(), FLOAT + 9)
    assert msformat.convert_dump(path, tmp_path / "out").exit_code == 1


def test_05_what_may_be_shifted_is_named(tmp_path: Path) -> None:
    path = kf.write_dump(tmp_path, [Part.of(FLOAT, size=20)], [Part.of(FLOAT)])
    path.write_bytes(path.read_bytes() + b"x")
    (unit,) = msformat.open(path)
    names = [problem.rpartition("[")[2].rstrip("]") for problem in unit.problems]
    assert sorted(names) == ["left-over", "places-doubtful", "short-tensor"]
    assert any("output 0 may hold wrong values" in problem for problem in unit.problems)
    assert msformat.convert_dump(path, tmp_path / "out").exit_code == 1


@pytest.mark.parametrize("length", [0, 5, 8])
def test_06_files_that_hold_nothing_are_failures(tmp_path: Path, length: int) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / kf.NAME).write_bytes(kf.small_dump()[0][:length])
    report = msformat.convert_dump(tmp_path / "in", tmp_path / "out")
    assert report.exit_code == 2
    assert kf.NAME in report.units[0].problems[0]


def test_06_an_unknown_length_is_derived_or_raw(tmp_path: Path) -> None:
    unknown = (1 << 64) - 1
    derived = Part(FLOAT.tobytes(), kf.FLOAT32, (unknown, 3))
    open_ended = Part(FLOAT.tobytes(), kf.FLOAT32, (unknown, unknown))
    first, second = entry_of(kf.write_dump(tmp_path, [derived, open_ended])).inputs
    np.testing.assert_array_equal(first.numpy(), FLOAT)
    assert (second.shape, second.meta.extra["device_dtype"]) == ((24,), "float32")
    assert second.numpy().tobytes() == FLOAT.tobytes()


def test_07_version_1(tmp_path: Path) -> None:
    inline = [Part.of(FLOAT, inline=FLOAT.tobytes()), Part.of(FLOAT, inline=(FLOAT + 1).tobytes())]
    (tmp_path / kf.NAME).write_bytes(kf.header(inline[:1], inline[1:], version="1.0"))
    entry = entry_of(tmp_path)
    np.testing.assert_array_equal(entry.inputs[0].numpy(), FLOAT)
    np.testing.assert_array_equal(entry.outputs[0].numpy(), FLOAT + 1)
    assert entry.value["kernel"]["form"].value == "v1"


def test_08_fractals_32_wide(tmp_path: Path) -> None:
    whole = np.arange(40 * 70, dtype=np.int64).astype(np.int8).reshape(40, 70)
    padded = np.zeros((48, 96), np.int8)
    padded[:40, :70] = whole
    device = padded.reshape(3, 16, 3, 32).transpose(2, 0, 1, 3)
    part = Part.of(np.ascontiguousarray(device), format=kf.FRACTAL_NZ, original=(40, 70))
    np.testing.assert_array_equal(entry_of(kf.write_dump(tmp_path, [part])).inputs[0].numpy(), whole)


def test_09_nhwc_keeps_its_axes(tmp_path: Path) -> None:
    image = np.arange(2 * 4 * 5 * 3, dtype=np.float32).reshape(2, 4, 5, 3)
    part = Part.of(image, format=kf.NHWC, original=(2, 4, 5, 3))
    other = Part.of(image, format=kf.NHWC, original=(2, 3, 4, 5))
    same, turned = entry_of(kf.write_dump(tmp_path, [part, other])).inputs
    np.testing.assert_array_equal(same.numpy(), image)
    np.testing.assert_array_equal(turned.numpy(), image.transpose(0, 3, 1, 2))


def test_10_names_that_were_too_long(tmp_path: Path) -> None:
    """The first row counts, rows repeat, and either side may be a whole path."""
    place = tmp_path / "in"
    long = f"Cast.{'scope_' * 60}op0.9.10.{kf.STAMP}"
    other = f"Add.{'scope_' * 60}op1.9.10.{kf.STAMP + 1}"
    kf.write_dump(place, [Part.of(FLOAT)], name="8714352940128837465")
    kf.write_dump(place, [Part.of(FLOAT + 1)], name="123")
    rows = [f"8714352940128837465,{long}"] * 2 + [f"/a/b/123,/a/b/{other}"]
    (place / "mapping.csv").write_text("\n".join(rows) + "\n")
    (unit,) = msformat.open(place)
    assert list(unit) == [long, other]
    np.testing.assert_array_equal(unit[other].inputs[0].numpy(), FLOAT + 1)
    assert list(next(iter(msformat.open(place / "123")))) == [other]
    assert msformat.convert_dump(place, tmp_path / "out.h5").exit_code == 0
    assert list(msformat.open(tmp_path / "out.h5")[None]) == [long, other]


def _atb(fields: str, data: bytes) -> bytes:
    return (
        f"$Version=1.0\n$Object.Count=1\n$Object.Length={len(data)}\n{fields}$Object.data=0,{len(data)}\n$End=1\n".encode()
        + data
    )


def test_11_atb_of_every_type_and_appended(tmp_path: Path) -> None:
    place = tmp_path / "atb_dump_data/data/3_77/5/0_Layer/1_Op/before"
    place.mkdir(parents=True)
    kinds = {0: "<f4", 1: "<f2", 2: "<i1", 3: "<i4", 4: "<u1", 6: "<i2", 7: "<u2", 8: "<u4", 9: "<i8", 10: "<u8", 11: "<f8", 12: "?"}  # fmt: skip # noqa: E501
    arrays = {number: np.array([1, 0, 1], kind) for number, kind in kinds.items()}
    for number, array in arrays.items():
        content = _atb(f"format=2\ndtype={number}\ndims=3\n", array.tobytes())
        (place / f"intensor{number}.bin").write_bytes(content + content)
    (place / "intensor20.bin").write_bytes(_atb("format=2\ndtype=0\ndims=\n", np.float32(4).tobytes()))
    (unit,) = msformat.open(tmp_path)
    assert (unit.label, list(unit)) == ("step5/rank3", ["0_Layer.1_Op", "0_Layer.1_Op#2"])
    for entry in unit.values():
        for number, array in arrays.items():
            found = entry.inputs[number].numpy()
            assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())
    assert unit["0_Layer.1_Op"].inputs[20].numpy() == np.float32(4)
    assert unit["0_Layer.1_Op"].inputs[20].shape == ()


def test_12_nano_has_a_name(tmp_path: Path) -> None:
    import struct

    shape = struct.pack("<II2Q", 0, 16, 2, 3)
    tensor = struct.pack("<iiiQQQI", 0, 2, 3, 0, 0, 24, len(shape)) + shape
    body = struct.pack("<I", 1) + tensor
    head = struct.pack("<II", 0x5A5A5A5A, 0) + struct.pack("<II", 4, len(body)) + body
    (tmp_path / "ConcatV2D.concat.0.0.550288649").write_bytes(struct.pack("<Q", len(head)) + head + FLOAT.tobytes())
    entry = entry_of(tmp_path)
    assert entry.value["kernel"]["op_name"].value == "concat"
    np.testing.assert_array_equal(entry.inputs[0].numpy(), FLOAT)


def test_small_files_cost_milliseconds(tmp_path: Path) -> None:
    """msprobe needs 3.7 s for one; a thousand of them take seconds here."""
    import time

    for at in range(1000):
        kf.write_dump(tmp_path / "step0/20241201103000/0", [Part.of(FLOAT + at)], name=f"Add.a{at}.1.2.{kf.STAMP + at}")
    began = time.perf_counter()
    report = msformat.convert_dump(tmp_path / "step0", tmp_path / "out", msformat.ConvertOptions(to="zarr"))
    assert (report.exit_code, report.units[0].entries) == (0, 1000)
    assert time.perf_counter() - began < 60
    table = msformat.open(tmp_path / "out").table()
    assert len(table) == 1000
    json.dumps(report.as_json())
