"""Reports on storing tensors in npy, pt, HDF5 and Zarr (R096 to R126, R169); torch, numpy, h5py and zarr judge."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import msformat
from msformat import CorruptTensorError, dtype_named, open_store
from msformat.stores.codecs import chunk_shape, shard_shape
from tests.judges import judge, torch_is_before, torch_saves, torch_types
from tests.reports.cases import (
    BACKENDS,
    FLOAT32,
    counted_calls,
    everywhere,
    plain_record,
    ramp,
    run,
    run_python,
    save,
    strict_json,
    write_documents,
    write_dump,
    writer,
)
from tests.zarr_layout import row_file

torch = judge("torch")
zarr = judge("zarr")

ODD_NAMES = (
    "loss", "loss/aux", "loss/aux/deep", "a//b", "/x", "x/", "a\0b", "a", "a\\b", "x\ny", ".", "..", "", "zarr.json",
    "n" * 300, "a%b", "a%2Fb", "/abs", "c/0", "index.json", "\udc80", "con", "A", "变量", "a/../../b",
)  # fmt: skip


def torch_values() -> dict[str, Any]:
    """16 bytes read as each type that this torch can save."""
    found: dict[str, Any] = {}
    for dtype in {getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}:
        name = str(dtype).removeprefix("torch.")
        if name.startswith("q"):
            continue  # quantised tensors need a scheme and are no plain bits
        raw = torch.arange(1, 17, dtype=torch.uint8) % (2 if dtype == torch.bool else 251)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = raw.view(dtype)
        try:
            pickle.dumps(value.untyped_storage())
            torch.save(value, os.devnull)
        except (KeyError, RuntimeError):
            continue  # sub-byte types have no name in torch's own format
        found[name] = value
    return found


@pytest.fixture(scope="module")
def every_type(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A dump that torch wrote, one tensor of each type."""
    root = tmp_path_factory.mktemp("types") / "d"
    unit = root / "step0/rank0"
    (unit / "dump_tensor_data").mkdir(parents=True)
    values = torch_values()
    for name, value in values.items():
        torch.save(value, unit / f"dump_tensor_data/{name}.0.debug.pt")
    data = {
        f"{name}.0.debug": plain_record(tuple(value.shape), str(value.dtype), data_name=f"{name}.0.debug.pt")
        for name, value in values.items()
    }
    write_documents(unit, data, name="debug.json", level="debug")
    return root, values


def test_r096_plain_zarr_reads_what_it_refuses_to_store(
    every_type: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    root, values = every_type
    assert run("convert", root, tmp_path / "o.zarr").code == 0
    unit = zarr.open_group(tmp_path / "o.zarr", mode="r")["step0/rank0"]
    index = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "complex32"):
        place = index[f"{name}.0.debug.pt"]
        assert place["dtype"] == name
        found = unit[place["pack"]][place["offset"] : place["offset"] + 16]
        assert found.tobytes() == values[name].view(torch.uint8).numpy().tobytes()


def test_r096_a_large_one_is_an_array_with_its_type_beside_it(tmp_path: Path) -> None:
    bits = np.arange(40_000, dtype=np.uint16)
    with writer(tmp_path / "step0/rank0", "zarr") as to:
        save(to, "x.0.debug", bits, dtype_named("bfloat16"))
    unit = zarr.open_group(tmp_path / "step0/rank0/dump.zarr", mode="r")
    place = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]["x.0.debug.pt"]
    array = unit[place["array"]]
    assert (array.dtype, array.attrs["dtype"]) == (np.dtype("uint16"), "bfloat16")
    assert np.array_equal(array[place["row"]], bits)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_r097_r098_every_type_of_torch_there_and_back(every_type: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, values = every_type
    later = torch_types("complex32", "float8_e4m3fn", "float4_e2m1fn_x2", "uint64")
    assert {"bfloat16", *(str(dtype).removeprefix("torch.") for dtype in later if torch_saves(dtype))} <= set(values)
    source = root
    for name, options in (
        ("a.h5", ()),
        ("b.zarr", ()),
        ("c", ("--tensors", "npy")),
        ("d.h5", ()),
        ("e", ("--tensors", "pt")),
    ):
        done = run("convert", source, tmp_path / name, *options)
        assert done.code == 0, done.err
        source = tmp_path / name
    for name, value in values.items():
        found = torch.load(tmp_path / f"e/step0/rank0/dump_tensor_data/{name}.0.debug.pt")
        assert found.dtype == value.dtype
        assert found.view(torch.uint8).tolist() == value.view(torch.uint8).tolist(), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_r100_zero_sized_dimensions(tmp_path: Path, backend: str) -> None:
    shapes = [(0,), (0, 3), (3, 0), (2, 0, 4), ()]
    arrays = {f"s{number}.0.debug": np.zeros(shape, np.float32) for number, shape in enumerate(shapes)}
    write_dump(tmp_path / "d", arrays, backend=backend)
    for target in everywhere(tmp_path / "d"):
        assert [entry.value.numpy().shape for entry in msformat.open(target)[0].values()] == shapes
    with h5py.File(tmp_path / "d_copy.h5") as file:
        assert [item.shape for item in file["step0/rank0/tensors"].values()] == shapes


def test_r101_r102_chunks_are_bounded_whatever_the_shape(tmp_path: Path) -> None:
    """Chunks, and the shards of Zarr, stay below what HDF5 (4 GiB) and blosc (2 GiB) take; both are asked, too."""
    for number, (shape, itemsize) in enumerate(
        (((2**30,), 8), ((1, 2**31), 1), ((3, 2**40), 4), ((2**62,), 1), ((0, 2**50), 8), ((), 16))
    ):
        chunk = chunk_shape(shape, itemsize)
        assert all(1 <= piece <= max(1, whole) for piece, whole in zip(chunk, shape, strict=True))
        assert math.prod(chunk) * itemsize <= 64 << 20
        shard = shard_shape(shape, chunk, itemsize)
        assert math.prod(shard) * itemsize < 2**31
        assert all(long % short == 0 for long, short in zip(shard, chunk, strict=True))
        if 0 in shape or not shape:
            continue  # neither has chunks
        with h5py.File(tmp_path / f"{number}.h5", "w", libver="earliest") as file:
            assert file.create_dataset("x", shape, f"V{itemsize}", chunks=chunk).chunks == chunk
        blosc = zarr.codecs.BloscCodec(typesize=itemsize)
        store = tmp_path / f"{number}.zarr"
        zarr.create_array(
            store, shape=shape, dtype=f"u{min(itemsize, 8)}", chunks=chunk, shards=shard, compressors=blosc
        )


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 has 32 axes")
@pytest.mark.parametrize("backend", BACKENDS)
def test_r101_tensors_of_more_axes_than_hdf5_has(tmp_path: Path, backend: str) -> None:
    """HDF5 takes 32 axes, PyTorch 64: one such tensor must not cost the others of its unit."""
    given = {
        "float32": ramp(8).reshape(2, *(1,) * 40, 4),
        "empty": np.zeros((0, *(1,) * 50, 3), np.float64),
        "bfloat16": np.arange(6, dtype=np.uint16).reshape((1,) * 31 + (2, 3)),
        "complex32": np.arange(12, dtype=np.uint32).reshape(3, *(1,) * 31, 2, 2),
        "large": ramp(40_000).reshape(200, *(1,) * 33, 200),
        "plain": ramp(3),
    }
    types = {"bfloat16": "bfloat16", "complex32": "complex32", "empty": "float64"}
    with writer(tmp_path / "d/step0/rank0", backend) as to:
        for name, bits in given.items():
            save(to, f"{name}.0.debug", bits, dtype_named(types.get(name, "float32")))
    for target in everywhere(tmp_path / "d"):
        with msformat.open(target)[0] as unit:
            for name, bits in given.items():
                found = unit[f"{name}.0.debug"].value
                assert (found.bits().tobytes(), found.bits().shape) == (bits.tobytes(), bits.shape), name
            assert np.array_equal(unit["large.0.debug"].value[3, ..., 5:9], given["large"][3, ..., 5:9])
    with h5py.File(tmp_path / "d_copy.h5") as file:
        stored = file["step0/rank0/tensors/large.0.debug.pt"]
        assert (stored.shape, stored.attrs["dtype"]) == ((40_000,), b"float32")
        assert [int(length) for length in stored.attrs["shape"].split(b",")] == list(given["large"].shape)


@pytest.mark.parametrize("shape", ["2,3", "x", "-1", ",".join(["1"] * 33), ",".join(["1"] * 70 + ["40000"]), ""])
def test_r101_a_shape_that_is_none_is_refused_by_name(tmp_path: Path, shape: str) -> None:
    write_dump(tmp_path / "d", {"a.0.debug": ramp(40_000), "ok.0.debug": ramp(3)})
    assert run("convert", tmp_path / "d", tmp_path / "o.h5").code == 0
    with h5py.File(tmp_path / "o.h5", "a") as file:
        attributes = file["step0/rank0/tensors/a.0.debug.pt"].attrs
        attributes["dtype"], attributes["shape"] = np.bytes_(b"float32"), np.bytes_(shape.encode())
    done = run("convert", tmp_path / "o.h5", tmp_path / "back")
    (line,) = done.err.splitlines()
    assert (done.code, "a.0.debug.pt" in line, "shape" in line) == (1, True, True)
    assert [path.name for path in (tmp_path / "back").rglob("*.pt")] == ["ok.0.debug.pt"]


def test_r104_integers_beyond_64_bits_and_beyond_text(tmp_path: Path) -> None:
    numbers = [2**70, -(2**63) - 1, 2**64]
    endless = 10**5000
    with writer(tmp_path / "d/step0/rank0") as to:
        to.put_entry("a.0.debug", [{"type": "int", "value": number} for number in (*numbers, endless, -endless)])
    for target in everywhere(tmp_path / "d"):
        found = [scalar.value for scalar in msformat.open(target)[0]["a.0.debug"].value]
        assert found[:3] == numbers
        # Text beside its type, as readers refuse numbers of more than 4300 digits; hexadecimal has no such limit.
        assert [int(text, 16) for text in found[3:]] == [endless, -endless]


@pytest.mark.parametrize("backend", BACKENDS)
def test_r105_r106_odd_names(tmp_path: Path, backend: str) -> None:
    keys = [f"{name}.0.debug" for name in ODD_NAMES]
    write_dump(
        tmp_path / "d", {key: np.full(3, number, np.float32) for number, key in enumerate(keys)}, backend=backend
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d"]
    for target in everywhere(tmp_path / "d"):
        unit = msformat.open(target)[0]
        assert list(unit) == keys
        assert [entry.value[0] for entry in unit.values()] == list(range(len(keys)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_r105_r106_odd_names_as_keys_of_a_store(tmp_path: Path, backend: str) -> None:
    location = tmp_path / {"files": "d", "hdf5": "d.h5", "zarr": "d.zarr"}[backend]
    with open_store(backend, str(location), mode="w") as store:
        for number, name in enumerate(ODD_NAMES):
            store.put(name, np.full(9000 if number % 2 else 3, number, np.float32), FLOAT32)
    assert [path.name for path in tmp_path.iterdir()] == [location.name]
    with open_store(backend, str(location)) as store:
        assert sorted(store.keys()) == sorted(ODD_NAMES)
        assert [store.get(name)[0] for name in ODD_NAMES] == list(range(len(ODD_NAMES)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_r108_names_and_paths_that_are_too_long(tmp_path: Path, backend: str) -> None:
    path = ".".join(f"layers_block_{number}_with_a_long_name" for number in range(40))
    key = f"Module.{path}.{'VeryLongClassName' * 12}.forward.0"
    write_dump(tmp_path / "d", {key: np.ones(3, np.float32)}, backend=backend)
    assert max(len(found.name.encode()) for found in tmp_path.rglob("*")) <= 255
    unit = msformat.open(tmp_path / "d")[0]
    assert list(unit) == [key]
    assert unit[key].value.numpy().tolist() == [1, 1, 1]
    deep = tmp_path.joinpath(*["d" * 200] * 17)
    assert run("convert", tmp_path / "d", deep / "d").code == 0
    too_deep = tmp_path.joinpath(*["d" * 200] * 21)
    done = run("convert", tmp_path / "d", too_deep / "d")
    assert (done.code, "too long" in done.err) == (2, True)


def bytes_written() -> int:
    """What this process gave to ``write`` so far."""
    return int(re.search(r"wchar: (\d+)", Path("/proc/self/io").read_text())[1])


@pytest.mark.parametrize("backend", ["hdf5", "zarr"])
def test_r109_many_long_names_take_near_linear_work(tmp_path: Path, backend: str) -> None:
    """A scaled-down run, counted and not timed; the measured one is in reports.md."""
    pad = "layers.very_long_module_name." * 6
    calls, written = [], []
    with open_store(backend, str(tmp_path / "d"), mode="w") as store:
        for lap in range(3):
            before = bytes_written()
            with counted_calls() as counted:
                for number in range(lap * 1500, (lap + 1) * 1500):
                    name = f"Module.{pad}{number}.Linear.forward.0.output.0.pt"
                    store.put(name, np.full(8, number, np.float32), FLOAT32)
                store.sync()
            calls.append(counted.total())
            written.append(bytes_written() - before)
        assert len(store) == 4500
    assert calls[2] < 1.5 * calls[0]
    assert written[2] < 3 * written[0] + (1 << 20)


def test_r110_small_tensors_take_few_files_and_info_counts_them(tmp_path: Path) -> None:
    with writer(tmp_path / "step0/rank0", "zarr") as to:
        for number in range(1000):
            save(to, f"v{number}.0.debug", np.full(4, number, np.float32))
    real = sum(path.is_file() for path in tmp_path.rglob("*"))
    (unit,) = json.loads(run("info", tmp_path, "--json").out)["units"]
    assert unit["tensors"] == 1000
    assert unit["files"] == real < 60


def test_r112_older_zarr_is_refused_by_name(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "v2.zarr", mode="w", zarr_format=2).create_array("x", data=np.arange(4.0))
    draft = tmp_path / "draft.zarr"
    (draft / "meta/root").mkdir(parents=True)
    url = "https://purl.org/zarr/spec/protocol/core/3.0"
    (draft / "zarr.json").write_text(json.dumps({"zarr_format": url, "metadata_encoding": url, "extensions": []}))
    for name in ("v2.zarr", "draft.zarr"):
        done = run("convert", tmp_path / name, tmp_path / "o")
        assert (done.code, "only Zarr v3" in done.err) == (2, True), done.err
    write_dump(tmp_path / "d", {"a.0.debug": ramp(20_000)}, backend="zarr")
    found = list((tmp_path / "d").rglob("zarr.json"))
    assert {json.loads(path.read_text())["zarr_format"] for path in found} == {3}


def test_r113_consolidated_metadata_never_hides_what_was_added(tmp_path: Path) -> None:
    store_path = tmp_path / "d.zarr"
    for step in (0, 1):
        with open_store("zarr", str(store_path), mode="a", group=f"step{step}/rank0") as store:
            store.put("x.pt", np.full(20_000, step, np.float32), FLOAT32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = zarr.open_group(store_path, mode="r")
            assert seen[f"step{step}/rank0/tensors/0"][0, 0] == step
            if step == 0:
                zarr.consolidate_metadata(store_path)
                zarr.consolidate_metadata(store_path / "step0")
    assert [key.path for key in msformat.open(store_path).units] == ["step0/rank0", "step1/rank0"]


def test_r114_what_commands_print_is_strict_json(tmp_path: Path) -> None:
    """Documents stay msprobe's; every command says the same in strict JSON. Spelled-out NaN is read, too."""
    entry = {
        "input_args": [
            plain_record(Max=float("nan"), Min=float("-inf"), Mean=float("inf"), Norm=None),
            plain_record(Max="NaN", Min="-Infinity", Mean="Infinity"),
            {"type": "float", "value": float("nan")},
        ]
    }
    write_documents(tmp_path / "d/step0/rank0", {"Functional.f.0.forward": entry})
    for target in everywhere_unverified(tmp_path / "d"):
        rows = strict_json(run("table", target, "--json").out)
        spelled = [[row[name] for name in ("Max", "Min", "Mean", "Norm")] for row in rows]
        assert spelled == [["NaN", "-Infinity", "Infinity", None], ["NaN", "-Infinity", "Infinity", ""]]
        shown = strict_json(run("show", target, "Functional.f.0.forward", "--json").out)
        assert shown["value"]["input_args"][2]["value"] == "NaN"
        for command in ("info", "ls", "verify"):
            strict_json(run(command, target, "--json").out)
        numbers = msformat.open(target).table().numbers("Max")
        assert np.isnan(numbers).all()
        assert not numbers.mask.any()
    for path in tmp_path.rglob("zarr.json"):
        strict_json(path.read_text() if path.is_file() else "{}")


def everywhere_unverified(source: Path) -> list[Path]:
    """As ``everywhere``, for what no strict schema accepts."""
    targets = [source.with_name(name) for name in ("o", "o.h5", "o.zarr")]
    assert [run("convert", source, target).code for target in targets] == [0, 0, 0]
    return [source, *targets]


@pytest.mark.parametrize("backend", BACKENDS)
def test_r116_looking_into_what_another_process_writes(tmp_path: Path, backend: str) -> None:
    to = writer(tmp_path / "step0/rank0", backend)
    save(to, "a.0.debug", ramp(100))
    to.commit()
    code = "import sys; from msformat.cli import main; sys.exit(main(['info', sys.argv[1]]))"
    done = run_python(code, tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("still being written; entries so far come from its journal") == 1
    assert "Traceback" not in done.stderr
    to.finish()
    assert run_python(code, tmp_path).returncode == 0


def test_r116_a_finished_file_needs_no_lock(tmp_path: Path) -> None:
    write_dump(tmp_path / "d", {"a.0.debug": ramp(100)}, backend="hdf5")
    path = tmp_path / "d/step0/rank0/dump.h5"
    path.chmod(0o444)
    code = "import sys; from msformat.cli import main; sys.exit(main(['show', sys.argv[1], 'a.0.debug.pt']))"
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run_python(code, path)
        assert (done.returncode, "HDF5_USE_FILE_LOCKING=FALSE" in done.stderr) == (2, True)
        assert run_python(code, path, env={**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"}).returncode == 0
    assert run_python(code, path).returncode == 0


LOADER = """
import sys, torch, msformat
class Data(torch.utils.data.Dataset):
    def __init__(self, unit): self.unit = unit
    def __len__(self): return 16
    def __getitem__(self, at): return self.unit[f"t{at}.0.debug"].value.numpy()
unit = msformat.open(sys.argv[1])[0]
unit["t0.0.debug"].value.numpy()  # the parent has the file open
loader = torch.utils.data.DataLoader(Data(unit), num_workers=2, timeout=60, multiprocessing_context="fork")
if __name__ == "__main__":
    found = torch.cat(list(loader))[:, 0].tolist()
    assert found == list(range(16)), found
    print("all there", unit["t3.0.debug"].value[0])
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_r117_r118_workers_that_were_forked_after_the_file_was_opened(tmp_path: Path, backend: str) -> None:
    arrays = {f"t{number}.0.debug": np.full(9000, number, np.float32) for number in range(16)}
    write_dump(tmp_path / "d", arrays, backend=backend)
    done = run_python(LOADER, tmp_path / "d")
    assert done.stdout == "all there 3.0\n", done.stderr
    unit = pickle.loads(pickle.dumps(msformat.open(tmp_path / "d")[0]))
    assert unit["t5.0.debug"].value[0] == 5


FULL = """
import resource, signal, sys
import numpy as np
from msformat import DumpWriter, Header, StoreError, dtype_named
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
header = Header("tensor", "debug", "pytorch")
to = DumpWriter(sys.argv[1], header, backend=sys.argv[2], document="debug.json", sync_entries=1)
def put(key, count):
    bits = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    to.put_tensor(key + ".pt", bits, dtype_named("float32"))
    record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [count], "data_name": key + ".pt"}
    to.put_entry(key, record)
put("a.0.debug", 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
for key in ("b.0.debug", "c.0.debug"):
    try:
        put(key, 100_000)
        to.commit()
        print("no error")
    except StoreError as error:
        print(str(error).replace("\\n", " "))
to.close()
print("training goes on")
"""


@pytest.mark.parametrize(("backend", "limit"), [("files", 1500), ("hdf5", 60_000), ("zarr", 60_000)])
def test_r120_r149_a_full_disk(tmp_path: Path, backend: str, limit: int) -> None:
    done = run_python(FULL, tmp_path / "d/step0/rank0", backend, limit)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, last = done.stdout.splitlines()
    assert "File too large" in first
    assert "cannot be written any more" in second
    assert last == "training goes on"
    assert not [
        path
        for path in tmp_path.rglob("*")
        if "b.0.debug" in path.name and path.is_file() and path.name.endswith((".pt", ".npy"))
    ]
    assert msformat.open(tmp_path / "d")[0]["a.0.debug"].value.numpy().shape == (100,)
    done2 = run("convert", tmp_path / "d", tmp_path / "o")
    assert (done2.code, "was never finished (writing failed" in done2.err) == (1, True)
    loaded = torch.load(tmp_path / "o/step0/rank0/dump_tensor_data/a.0.debug.pt")
    assert loaded.shape == (100,)
    assert "File too large" in (tmp_path / "o/step0/rank0/dump_error_info.log").read_text()


def test_r121_r122_truncated_and_missing_chunks(tmp_path: Path) -> None:
    """Zeros are written out, so a file of chunks that is not there is a loss."""
    arrays = {"big.0.debug": ramp(3_000_000), "zero.0.debug": np.zeros(3_000_000, np.float32), "ok.0.debug": ramp(10)}
    write_dump(tmp_path / "d", arrays)
    assert run("convert", tmp_path / "d", tmp_path / "d.zarr").code == 0
    for name, damage in (("big", "truncate"), ("big", "remove"), ("zero", "remove")):
        file = row_file(tmp_path / "d.zarr/step0/rank0", f"{name}.0.debug.pt")
        content = file.read_bytes()
        if damage == "truncate":
            file.write_bytes(content[: len(content) // 2])
        else:
            file.unlink()
        done = run("verify", tmp_path / "d.zarr")
        (line,) = done.err.splitlines()
        assert (done.code, f"tensor '{name}.0.debug.pt'" in line) == (1, True)
        with msformat.open(tmp_path / "d.zarr")[0] as unit:
            with pytest.raises(CorruptTensorError, match=f"{name}.0.debug"):
                unit[f"{name}.0.debug"].value.numpy()
            assert np.array_equal(unit["ok.0.debug"].value.numpy(), arrays["ok.0.debug"])
        file.write_bytes(content)
    assert run("verify", tmp_path / "d.zarr").code == 0


def test_r122_a_chunk_that_was_never_written(tmp_path: Path) -> None:
    """As HDF5 and zarr-python leave it, by whom all of it reads as zeros without an error."""
    arrays = {"big.0.debug": ramp(3_000_000), "ok.0.debug": ramp(10)}
    write_dump(tmp_path / "d", arrays)
    name = "big.0.debug.pt"
    for target in (tmp_path / "d.h5", tmp_path / "d.zarr"):
        assert run("convert", tmp_path / "d", target).code == 0
        lose = lose_a_chunk_of_hdf5 if target.suffix == ".h5" else lose_a_chunk_of_zarr
        found = lose(target, name)
        assert not found[-100:].any()
        assert np.array_equal(found[:100], arrays["big.0.debug"][:100])
        done = run("verify", target)
        (line,) = done.err.splitlines()
        assert (done.code, f"tensor '{name}'" in line, "chunk" in line) == (1, True, True), line
        back = tmp_path / f"back_{target.suffix[1:]}"
        done = run("convert", target, back)
        assert (done.code, name in done.err) == (1, True)
        assert [path.name for path in back.rglob("*.pt")] == ["ok.0.debug.pt"]


def lose_a_chunk_of_hdf5(path: Path, name: str) -> Any:
    """Write a dataset again without its last chunk; what h5py then reads."""
    with h5py.File(path, "a") as file:
        tensors = file["step0/rank0/tensors"]
        whole, plan = tensors[name][()], tensors[name].chunks
        attributes = dict(tensors[name].attrs)
        del tensors[name]
        again = tensors.create_dataset(name, whole.shape, whole.dtype, chunks=plan, compression="gzip", shuffle=True)
        again[: plan[0]] = whole[: plan[0]]
        again.attrs.update(attributes)
        return again[()]


def lose_a_chunk_of_zarr(path: Path, name: str) -> Any:
    """Have zarr-python write zeros into the last chunk of a row, which it leaves out; what it then reads."""
    unit = zarr.open_group(path, mode="r+")["step0/rank0"]
    place = json.loads(unit["documents/index.json"][:].tobytes())["tensors"][name]
    array = unit[place["array"]]
    before = row_file(path / "step0/rank0", name).stat().st_size
    assert array.shards is not None
    array[place["row"], array.chunks[1] :] = 0
    assert row_file(path / "step0/rank0", name).stat().st_size < before
    return array[place["row"]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_r124_shared_and_strided_tensors(tmp_path: Path, backend: str) -> None:
    x, w, row = torch.randn(30, 40), torch.randn(300, 300), torch.randn(1, 5)
    given = {"t": x.t(), "tied": w, "tied_again": w, "expanded": row.expand(50_000, 5), "strided": x[1:, ::3]}
    with writer(tmp_path / "d/step0/rank0", backend) as to:
        for name, value in given.items():
            save(to, f"{name}.0.debug", value.numpy())
    unit = msformat.open(tmp_path / "d")[0]
    for name, value in given.items():
        assert torch.equal(unit[f"{name}.0.debug"].value.to_torch(), value)
    # Tied weights once, the expanded one at most at its logical size.
    assert unit.usage.bytes < 4 * (w.numel() + 50_000 * 5 + 3000) + 40_000


def test_r124_a_small_view_of_a_big_storage_saved_by_torch(tmp_path: Path) -> None:
    big = torch.randn(300, 300)
    unit = tmp_path / "d/step0/rank0"
    (unit / "dump_tensor_data").mkdir(parents=True)
    given = {"view": big[3, :7], "t": big[:5].t(), "expanded": big[0, :1].expand(1000)}
    for name, value in given.items():
        torch.save(value, unit / f"dump_tensor_data/{name}.0.debug.pt")
    data = {f"{n}.0.debug": plain_record(tuple(v.shape), data_name=f"{n}.0.debug.pt") for n, v in given.items()}
    write_documents(unit, data, name="debug.json", level="debug")
    for target in everywhere(tmp_path / "d"):
        for name, value in given.items():
            assert torch.equal(msformat.open(target)[0][f"{name}.0.debug"].value.to_torch(), value)


class Labelled(torch.Tensor):
    """A user's subclass."""


def test_r125_what_weights_only_refuses(tmp_path: Path) -> None:
    unit = tmp_path / "d/step0/rank0"
    (unit / "dump_tensor_data").mkdir(parents=True)
    good = {
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "plain": torch.randn(3),
    }
    bad = {
        "dict": {"a": np.float32(1)},
        "subclass": torch.randn(3).as_subclass(Labelled),
        "list": [torch.ones(3)],
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.empty(3, device="meta"),
    }
    for name, value in {**good, **bad}.items():
        torch.save(value, unit / f"dump_tensor_data/{name}.0.debug.pt")
    data = {f"{name}.0.debug": plain_record((3,), data_name=f"{name}.0.debug.pt") for name in (*good, *bad)}
    data["conjugate.0.debug"]["dtype"] = "torch.complex64"
    write_documents(unit, data, name="debug.json", level="debug")
    done = run("convert", tmp_path / "d", tmp_path / "o.h5")
    assert done.code == 1
    assert [line.split("'")[1] for line in done.err.splitlines()] == [f"{name}.0.debug.pt" for name in bad]
    with h5py.File(tmp_path / "o.h5") as file:
        for name, value in good.items():
            wanted = value.detach().resolve_conj().numpy()
            assert np.array_equal(file[f"step0/rank0/tensors/{name}.0.debug.pt"][()], wanted)


def test_r125_files_that_are_trusted_are_made_plain_by_torch(tmp_path: Path) -> None:
    """What docs/reader.md shows, which is the way for what is refused here."""
    import torch.distributed as dist

    if torch_is_before("2.5"):
        pytest.skip("PyTorch before 2.5 has no public torch.distributed.tensor")
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    guide = (Path(msformat.__file__).parents[1] / "docs/reader.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(import torch\n.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    unit = tmp_path / "d/step0/rank0"
    data = unit / "dump_tensor_data"
    data.mkdir(parents=True)
    plain = torch.arange(6.0).reshape(2, 3)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        odd = {
            "dtensor": distribute_tensor(plain, mesh, [Shard(0)]),
            "subclass": plain.as_subclass(Labelled),
            "sparse": plain.to_sparse(),
        }
        for name, value in odd.items():
            torch.save(value, data / f"{name}.0.debug.pt")
        records = {f"{name}.0.debug": plain_record((2, 3), data_name=f"{name}.0.debug.pt") for name in odd}
        write_documents(unit, records, name="debug.json", level="debug")
        done = run("convert", tmp_path / "d", tmp_path / "refused")
        assert [line.split("'")[1] for line in done.err.splitlines()] == [f"{name}.0.debug.pt" for name in odd]
        for path in data.iterdir():
            namespace["make_plain"](path)
    finally:
        dist.destroy_process_group()
    for target in everywhere(tmp_path / "d"):
        for entry in msformat.open(target)[0].values():
            assert torch.equal(entry.value.to_torch(), plain)


def test_r126_types_that_only_numpy_has(tmp_path: Path) -> None:
    unit = tmp_path / "d/step0/rank0"
    (unit / "dump_tensor_data").mkdir(parents=True)
    good = {
        "longdouble": np.array([1, 2.5], np.longdouble) / 3,
        "big_endian": np.arange(4, dtype=">f4"),
        "big_ints": np.arange(4, dtype=">i8"),
        "dates": np.array(["2020-01-01", "NaT"], "M8[D]"),
        "text": np.array(["ab", "变"]),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    bad = {"structured": np.zeros(2, [("a", "f4")]), "objects": np.array([1, "a"], object)}
    for name, value in {**good, **bad}.items():
        np.save(unit / f"dump_tensor_data/{name}.0.debug.npy", value, allow_pickle=True)
    data = {
        f"{name}.0.debug": plain_record(value.shape, str(value.dtype), data_name=f"{name}.0.debug.npy")
        for name, value in {**good, **bad}.items()
    }
    write_documents(unit, data, name="debug.json", level="debug", framework="mindspore")
    for name in ("o.h5", "o.zarr", "o"):
        done = run("convert", tmp_path / "d", tmp_path / name)
        assert done.code == 1
        assert [line.split("'")[1] for line in done.err.splitlines()] == [f"{key}.0.debug.npy" for key in bad]
        for key, value in good.items():
            found = msformat.open(tmp_path / name)[0][f"{key}.0.debug"].value.numpy()
            assert np.array_equal(found, value, equal_nan=value.dtype.kind != "U"), key
            assert found.dtype == value.dtype.newbyteorder("="), key


def test_r169_minus_zero_is_not_zero(tmp_path: Path) -> None:
    names = ("small", "large", "real")
    given = {
        "small": np.full(4, complex(-0.0, 0.0), "c8"),
        "large": np.full(50_000, complex(-0.0, 0.0), "c8"),
        "real": np.full(50_000, -0.0, "f4"),
    }
    with writer(tmp_path / "d/step0/rank0") as to:
        for name in names:
            save(to, f"{name}.0.debug", given[name], msformat.dtype_from_numpy(given[name].dtype))
    for target in everywhere(tmp_path / "d"):
        for name in names:
            assert msformat.open(target)[0][f"{name}.0.debug"].value.numpy().tobytes() == given[name].tobytes()
    unit = zarr.open_group(tmp_path / "d_copy.zarr", mode="r")["step0/rank0"]
    place = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]["large.0.debug.pt"]
    assert unit[place["array"]][place["row"]].tobytes() == given["large"].tobytes()
