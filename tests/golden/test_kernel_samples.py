"""Every kernel sample through the reader and the stores.

Judge: the values and header fields that came with the samples, made by another reader and the published definitions of
the messages; ``hashlib`` for bytes. ATB values are taken from the files themselves, behind their text.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.filesystem import open_filesystem
from msformat.foreign.kernel_dump.binary import read_records
from tests.conftest import GOLDEN_DATA

ARCHIVE = GOLDEN_DATA / "kernel" / "kernel_dump.zip"


def _expected() -> dict[str, Any]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return dict(json.loads(archive.read("kernel_dump/expected.json")))


EXPECTED = _expected()
READABLE = [name for name, said in EXPECTED.items() if said["status"] in ("ok", "partial", "suspect")]
REFUSED = [name for name, said in EXPECTED.items() if said["status"] == "error"]
WITH_BLOCKS = [name for name in READABLE if EXPECTED[name].get("blocks")]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kernel")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(root)
    return root / "kernel_dump"


@pytest.fixture(scope="module")
def values(samples: Path) -> dict[str, np.ndarray]:
    with np.load(samples / "expected.npz") as archive:
        return dict(archive)


def _entry(path: Path, **options: Any) -> Any:
    (unit,) = msformat.open(path, **options)
    return unit[next(iter(unit))]


def _tensor(entry: Any, slot: str, index: int) -> Any:
    return (entry.inputs if slot == "input" else entry.outputs)[index]


def _check(tensor: Any, expected: np.ndarray) -> None:
    """Equal in type, shape and values; types that numpy lacks are in the judge's file as the type that holds them."""
    found = tensor.numpy()
    if found.dtype != expected.dtype:
        assert found.dtype.name in ("bfloat16", "int4") or found.dtype.name.startswith("float8_")
        found = found.astype(expected.dtype)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def _judged(name: str) -> Iterator[tuple[str, int, str | None, str | None]]:
    for block in EXPECTED[name].get("blocks", ()):
        yield block["kind"], block["index"], block["value"], block["host"]
    for slot in ("input0", "input1", "output0"):
        if slot in EXPECTED[name]:
            yield slot[:-1], int(slot[-1]), EXPECTED[name][slot], None


@pytest.mark.parametrize("name", READABLE)
def test_values(samples: Path, values: dict[str, np.ndarray], name: str) -> None:
    for layout in ("framework", "device"):
        entry = _entry(samples / name, layout=layout)
        for slot, index, device, host in _judged(name):
            key = host if host and layout == "framework" else device
            if key is not None:
                _check(_tensor(entry, slot, index), values[key])


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_headers_and_places(samples: Path, name: str) -> None:
    """Field for field as the published message definitions decoded them, and the bytes at the right place."""
    said = EXPECTED[name]
    record = read_records(open_filesystem(str(samples)), name)[0]
    assert (record.version, record.op_name, record.dump_time) == (said["version"], said["op_name"], said["dump_time"])
    content = (samples / name).read_bytes()
    assert len(record.blocks) == len(said["blocks"])
    for block, expected in zip(record.blocks, said["blocks"], strict=True):
        assert (block.slot, block.index, block.start) == (expected["kind"], expected["index"], expected["offset"])
        assert (block.sub_format, block.address) == (expected["sub_format"], expected["address"])
        for found, shape in ((block.shape, "shape"), (block.original_shape, "original_shape")):
            assert (None if found is None else list(found)) == expected[shape]
        stored = content[block.start :][: expected["nbytes"]]
        assert hashlib.sha256(stored).hexdigest() == expected["sha256"]


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_files_are_refused_by_name(samples: Path, tmp_path: Path, name: str) -> None:
    (unit,) = msformat.open(samples / name)
    with pytest.raises(msformat.FormatError, match=Path(name).name):
        list(unit)
    report = msformat.convert_dump(samples / name, tmp_path / "out")
    assert report.exit_code == 2
    assert Path(name).name in report.units[0].problems[0]


@pytest.mark.parametrize("name", [name for name, said in EXPECTED.items() if said["status"] == "suspect"])
def test_suspects_open_with_a_problem(samples: Path, tmp_path: Path, name: str) -> None:
    (unit,) = msformat.open(samples / name)
    assert len(unit) == 1
    assert not unit.complete
    (problem,) = unit.problems
    assert Path(name).name in problem
    assert msformat.convert_dump(samples / name, tmp_path / "out").exit_code == 1


def test_a_short_tensor_leaves_the_others(samples: Path, values: dict[str, np.ndarray]) -> None:
    name = "odd/Short.tensor.10.1.1735011096426349"
    entry = _entry(samples / name)
    assert not entry.inputs[0].has_data
    with pytest.raises(msformat.TensorNotFoundError, match="needs 24 bytes, there are 16"):
        entry.inputs[0].numpy()
    _check(entry.outputs[0], values[f"{name}|output|0"])


@pytest.mark.parametrize("backend", ["files", "hdf5", "zarr"])
@pytest.mark.parametrize("folder", ["good", "odd", "bad", "nano", "debug", "ffts", "atb"])
def test_converting_a_directory(samples: Path, tmp_path: Path, folder: str, backend: str) -> None:
    """What is bad is named and left out, what is good comes out as it went in, and the result is a dump in itself."""
    statuses = {said["status"] for name, said in EXPECTED.items() if name.startswith(f"{folder}/")}
    report = msformat.convert_dump(samples / folder, tmp_path / "out", msformat.ConvertOptions(to=backend))
    assert report.exit_code == (1 if statuses & {"error", "partial", "suspect"} else 0)
    assert msformat.verify_dump(tmp_path / "out").exit_code == 0
    (source,), (made,) = msformat.open(samples / folder), msformat.open(tmp_path / "out")
    assert list(made) == list(source)
    for before, after in zip(source.tensors(), made.tensors(), strict=True):
        assert after.has_data == before.has_data
        if before.has_data:
            assert after.bits().tobytes() == before.bits().tobytes()
            assert (after.numpy().dtype, after.shape) == (before.numpy().dtype, before.shape)
        assert after.meta.extra == before.meta.extra


def test_what_is_known_of_a_kernel_is_kept(samples: Path) -> None:
    (unit,) = msformat.open(samples / "good")
    entry = unit["MatMul.fmt_nz.11.10.1735011096426359"]
    assert entry.name.class_name == "MatMul"
    facts = {name: fact.value for name, fact in entry.value["kernel"].items()}
    assert (facts["op_type"], facts["task_id"], facts["stream_id"]) == ("MatMul", 11, 10)
    assert (facts["op_name"], facts["dump_time"]) == ("Add", 1735011096426349)
    packed = entry.outputs[0].meta
    assert (packed.dtype, packed.shape) == ("int8", (40, 70))
    assert packed.extra["format"] == "FRACTAL_NZ"
    assert packed.extra["device_shape"] == [3, 3, 16, 32]


def test_types_without_a_form_are_raw_bytes_with_their_name(samples: Path) -> None:
    (unit,) = msformat.open(samples / "odd")
    bits = unit["Bits.packed.12.1.1735011096426349"]
    tensor = bits.inputs[0]
    assert (tensor.dtype_name, tensor.shape, tensor.meta.extra["device_dtype"]) == ("uint8", (2,), "uint1")
    assert tensor.meta.extra["device_shape"] == [16]
    unknown = unit["Enum.unknown.7.1.1735011096426349"].inputs[0]
    assert (unknown.meta.extra["device_dtype"], unknown.meta.extra["format"]) == ("unknown_77", "unknown_200")
    hinted = unit["Undef.rawbytes.8.1.1735011096426349"].inputs[1]
    assert hinted.meta.extra["itemsize"] == 2


def test_two_dumps_under_one_name_are_two_entries(samples: Path) -> None:
    (unit,) = msformat.open(samples / "odd")
    name = "Twice.appended.15.1.1735011096426349"
    assert [key for key in unit if key.startswith("Twice")] == [name, f"{name}#2"]
    np.testing.assert_array_equal(unit[name].outputs[0].numpy(), unit[f"{name}#2"].outputs[0].numpy())
    assert any("appended-record" in note for note in unit.store.notes)


def test_slices_of_threads_are_joined(samples: Path, values: dict[str, np.ndarray]) -> None:
    (unit,) = msformat.open(samples / "ffts")
    (key,) = unit
    assert key == "Relu.sgt_graph_0_Relu.3.5.1735011096426349"
    names = sorted(name for name in EXPECTED if name.startswith("ffts/"))
    for slot in ("input", "output"):
        whole = np.concatenate([values[f"{name}|{slot}|0"] for name in names])
        _check(_tensor(unit[key], slot, 0), whole)
        np.testing.assert_array_equal(_tensor(unit[key], slot, 0)[1:3, ::2], whole[1:3, ::2])
    assert unit.complete


def test_a_slice_that_is_missing_is_said(samples: Path, tmp_path: Path, values: dict[str, np.ndarray]) -> None:
    name = "Relu.sgt_graph_0_Relu.3.5.1735011096426350.4.7.1.0"
    shutil.copy(samples / "ffts" / name, tmp_path)
    (unit,) = msformat.open(tmp_path)
    (problem,) = unit.problems
    assert "missing-slice" in problem
    _check(unit[next(iter(unit))].outputs[0], values[f"ffts/{name}|output|0"])


def test_overflow_records(samples: Path) -> None:
    (unit,) = msformat.open(samples / "debug")
    old, vector, cpu = (unit[key].value["kernel"]["overflow"].value[0] for key in unit)
    common = {"model_id": 1, "stream_id": 2, "task_id": 3, "task_type": 4, "context_id": 5}
    assert vector == {
        "version": 1, "valid": True, "acc_type": "AIV", **common, "thread_id": 6, "pc_start": 7, "para_base": 8,
        "core_id": 9, "block_id": 10, "status": [11, 12, 13, 14],
    }  # fmt: skip
    assert cpu == {
        "version": 0, "valid": True, "acc_type": "AICPU", **common, "cpu_id": 6, "thread_id": 7, "status": 8,
    }  # fmt: skip
    data = (samples / "debug/Opdebug.Node_OpDebug.13.18.1735011096426349").read_bytes()[-2048:]
    words = np.frombuffer(data, "<u8")
    assert old["dha_atomic_add"]["model_id"] == words[0] == 1
    assert old["l2_atomic_add"]["stream_id"] == words[128 // 8 + 1]
    assert old["ai_core"]["task_id"] == words[256 // 8 + 2]
    assert old["ai_core"]["status"] == words[1024 // 8 + 2]


_ATB_TYPES = {"0": "<f4", "2": "<i1", "3": "<i4", "9": "<i8", "11": "<f8"}


def test_atb(samples: Path) -> None:
    (unit,) = msformat.open(samples / "atb")
    assert unit.label == "step0/rank0"
    (entry,) = unit.values()
    assert entry.key == "0_WordEmbedding.0_GatherOperation"
    checked = 0
    for path in sorted((samples / "atb").rglob("*.bin")):
        head, _, payload = path.read_bytes().partition(b"$End=1\n")
        fields = dict(line.split("=", 1) for line in head.decode().splitlines())
        index = int(path.stem.removeprefix("intensor"))
        if fields["dtype"] not in _ATB_TYPES or EXPECTED[str(path.relative_to(samples))]["status"] != "ok":
            continue
        shape = tuple(int(part) for part in fields["dims"].split(",") if part)
        expected = np.frombuffer(payload, _ATB_TYPES[fields["dtype"]]).reshape(shape)
        _check(entry.inputs[index], expected)
        checked += 1
    assert checked == 6
    np.testing.assert_array_equal(entry.inputs[8].float32()[0], [1.0, 2.0])
    # Stored once: the second name leads to the same values.
    np.testing.assert_array_equal(entry.inputs[10].numpy(), entry.inputs[0].numpy())
    assert entry.inputs[10].meta.extra["same_as"].endswith("intensor0.bin")
