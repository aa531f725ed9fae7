"""Reports on msprobe itself and its integrations (R001 to R042), as far as they concern what is stored."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import msformat
from msformat import DumpWriter, FormatError, Header, dtype_named, tensor_stats
from tests.judges import judge, torch_type
from tests.reports.cases import (
    BACKENDS,
    call,
    everywhere,
    plain_record,
    run,
    run_python,
    save,
    write_documents,
    write_dump,
    writer,
)
from tools.packing import build_sdist, build_wheel

torch = judge("torch")

HEADER = Header("tensor", "mix", "pytorch")
KEY = "Functional.f.0.forward"


@pytest.mark.parametrize("backend", BACKENDS)
def test_r001_a_split_view_and_a_buffer_that_is_used_again(tmp_path: Path, backend: str) -> None:
    q, _ = torch.randn(2, 40).bfloat16().split([32, 8], -1)
    buffer = np.random.default_rng(0).standard_normal((400, 1000)).astype(np.float32)
    kept = buffer[:, ::2].copy()
    with writer(tmp_path / "step0/rank0", backend) as to:
        save(to, "q.0.debug", q.view(torch.int16).numpy().view(np.uint16), dtype_named("bfloat16"))
        save(to, "buffer.0.debug", buffer[:, ::2])
        buffer[:] = -1
    unit = msformat.open(tmp_path)[0]
    assert torch.equal(unit["q.0.debug"].value.to_torch(), q.contiguous())
    assert np.array_equal(unit["buffer.0.debug"].value.numpy(), kept)


@pytest.mark.parametrize("backend", BACKENDS)
def test_r002_names_that_look_like_numbered_names(tmp_path: Path, backend: str) -> None:
    keys = ["a.0.debug", "a.1.debug", "a.2.debug", "a.0.0.debug", "a.0.debug.0.debug"]
    for step in (0, 1):
        with writer(tmp_path / f"d/step{step}/rank0", backend) as to:
            for number, key in enumerate(keys):
                save(to, key, np.full(2, 10 * step + number, np.float32))
    for target in everywhere(tmp_path / "d"):
        for step, unit in enumerate(msformat.open(target)):
            assert list(unit) == keys
            assert [entry.value[0] for entry in unit.values()] == [10 * step + number for number in range(len(keys))]


def test_r002_a_tensor_is_never_overwritten(tmp_path: Path) -> None:
    with writer(tmp_path / "step0/rank0") as to:
        first, second = (to.data_name("a.0.debug.pt") for _ in range(2))
        assert first != second
        to.put_tensor(first, np.zeros(2, np.float32), dtype_named("float32"))
        with pytest.raises(msformat.StoreError, match="already stored"):
            to.put_tensor(first, np.ones(2, np.float32), dtype_named("float32"))


def test_r012_the_metadata_of_a_dtensor_survives(tmp_path: Path) -> None:
    more = {"placements": ["Shard(dim=0)"], "mesh": {"shape": [2], "dim_names": ["dp"]}, "local_shape": [2, 4]}
    name = "w.0.debug.pt"
    with writer(tmp_path / "d/step0/rank0") as to:
        to.put_tensor(name, np.ones((2, 4), np.float32), dtype_named("float32"))
        to.put_entry("w.0.debug", {**plain_record((2, 4), data_name=name), "type": "DTensor", **more})
    for options in ((), ("--tensors", "npy")):
        for target in everywhere(tmp_path / "d", *options):
            tensor = msformat.open(target)[0]["w.0.debug"].value
            assert tensor.meta.extra == more
            assert tensor.meta.type == "DTensor"
            shutil.rmtree(target) if target.is_dir() else target.unlink()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"])
def test_r013_narrow_floats_keep_bits_and_name(tmp_path: Path, name: str) -> None:
    dtype = dtype_named(name)
    bits = np.arange(32, dtype=np.uint8) + 64
    wanted = torch.from_numpy(bits.copy()).view(torch_type(name))
    with writer(tmp_path / "d/step0/rank0") as to:
        save(to, "x.0.debug", bits, dtype)
    for target in everywhere(tmp_path / "d"):
        found = msformat.open(target)[0]["x.0.debug"].value
        assert found.stored.dtype.name == name
        assert found.to_torch().dtype == wanted.dtype
        assert found.to_torch().view(torch.uint8).tolist() == bits.tolist()
    stats = tensor_stats(bits, dtype)
    if name.startswith("float8"):
        values = wanted.double()
        assert (stats.max, stats.min) == (values.max().item(), values.min().item())
    else:
        assert (stats.max, stats.min, stats.mean, stats.norm) == (None,) * 4
    assert tensor_stats(np.zeros(2, np.uint8), dtype_named("hifloat8")).max is None


def test_r016_scalars_of_numpy_are_written(tmp_path: Path) -> None:
    shape = list(torch.Size([np.int64(2)]))
    stats = {"Max": np.float64(3), "Min": np.int64(-1), "Mean": np.float16(0.5), "Norm": np.float32("nan")}
    value = {
        **call(plain_record(tuple(shape), **stats)),
        "input_kwargs": {
            "a": {"type": "float", "value": np.float32(1.5)},
            "b": {"type": "bool", "value": np.bool_(True)},
            "c": {"type": "list", "value": (np.uint8(7), {np.int64(3): np.longdouble(0.25)})},
        },
    }
    with DumpWriter(tmp_path / "d/step0/rank0", HEADER) as to:
        to.put_entry(KEY, value)
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        found = json.loads(bytes(msformat.open(target)[0].document("dump.json")))["data"][KEY]  # type: ignore[arg-type]
        assert found["input_kwargs"] == {
            "a": {"type": "float", "value": 1.5},
            "b": {"type": "bool", "value": True},
            "c": {"type": "list", "value": [7, {"3": 0.25}]},
        }
        record = found["input_args"][0]
        assert (record["shape"], record["Max"], record["Min"], record["Mean"]) == ([2], 3, -1, 0.5)
        assert np.isnan(record["Norm"])


def test_r018_deep_and_self_containing_lists(tmp_path: Path) -> None:
    deep: list[object] = [plain_record()]
    for _ in range(60):
        deep = [deep]
    endless: list[object] = []
    endless.append(endless)
    with writer(tmp_path / "d/step0/rank0") as to:
        to.put_entry("before.0.debug", [plain_record()])
        with pytest.raises(FormatError, match="Circular reference"):
            to.put_entry("endless.0.debug", endless)
        to.put_entry("deep.0.debug", deep)
    for target in everywhere(tmp_path / "d"):
        unit = msformat.open(target)[0]
        assert list(unit) == ["before.0.debug", "deep.0.debug"]
        assert unit["deep.0.debug"].tensors[0].path == ".".join(["0"] * 61)


def test_r022_what_matches_nothing_is_said(tmp_path: Path) -> None:
    write_documents(tmp_path / "d/step0/rank0", {KEY: call()})
    for command in ("info", "ls", "table"):
        for option in (("--ranks", "4,5"), ("--steps", "7")):
            done = run(command, tmp_path / "d", *option)
            assert (done.code, "step0/rank0" in done.err) == (2, True), (command, option)
    for command in ("ls", "table"):
        done = run(command, tmp_path / "d", "--filter", "nomatch")
        assert (done.code, "nothing matches 'nomatch'" in done.err) == (1, True), command
    for number, option in enumerate((("--ranks", "4,5"), ("--steps", "7"))):
        done = run("convert", tmp_path / "d", tmp_path / f"o{number}", *option)
        assert (done.code, "there are step0/rank0" in done.err) == (2, True)
    done = run("convert", tmp_path / "d", tmp_path / "o", "--filter", "nomatch")
    assert (done.code, "no entry matches 'nomatch'" in done.err) == (2, True)
    assert not (tmp_path / "o").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without network from what stands in pyproject.toml, by way of the sdist."""
    place = tmp_path_factory.mktemp("dist")
    return build_wheel(build_sdist(place), place)


def test_r024_the_wheel_is_pure_and_needs_no_framework(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    root = Path(msformat.__file__).parents[1]
    tree = [path for name in ("msformat", "capture") for path in (root / name).rglob("*") if path.is_file()]
    assert {str(path.relative_to(root)) for path in tree if "__pycache__" not in path.parts} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".pyd"))]
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert not [line for line in needed if any(word in line for word in ("torch", "mindspore", "h5py", "zarr"))]


def test_r024_what_was_built_converts_a_dump(wheel: Path, golden: Callable[[str], Path], tmp_path: Path) -> None:
    """The wheel laid out as pip does, far from the working tree; ``make test-matrix`` does it with pip and no extra."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = """
import sys
sys.path.insert(0, "installed")
import msformat
from msformat.cli import main
print(msformat.__file__)
sys.exit(main(sys.argv[1:]))
"""
    source = golden("torch_8.1.0_mix_tensor")
    for target in ("a.h5", "a.zarr", "back"):
        done = run_python(code, "convert", source, target, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert str(tmp_path / "installed") in done.stdout
    original = (source / "step0/rank/dump.json").read_bytes()
    assert (tmp_path / "back/step0/rank/dump.json").read_bytes() == original


def test_r028_no_framework_is_needed(tmp_path: Path) -> None:
    """Also ``.pt`` is read without torch; only ``to_torch`` wants it, and says so."""
    unit = tmp_path / "d/step0/rank0"
    (unit / "dump_tensor_data").mkdir(parents=True)
    np.save(unit / "dump_tensor_data/a.0.debug.npy", np.ones(2, np.float32))
    torch.save(torch.arange(2.0), unit / "dump_tensor_data/b.0.debug.pt")
    data = {name[:-4].removesuffix("."): plain_record(data_name=name) for name in ("a.0.debug.npy", "b.0.debug.pt")}
    write_documents(unit, data, name="debug.json", level="debug")
    code = """
import sys
class Gone:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("torch", "mindspore"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
import msformat
from msformat.cli import main
source = sys.argv[1]
print([main([command, source, *rest]) for command, *rest in (["convert", source + ".h5"], ["info"], ["verify"])])
tensor = msformat.open(source + ".h5")[0].tensor("b.0.debug.pt")
print(tensor.numpy().tolist())
try:
    tensor.to_torch()
except msformat.BackendMissingError as error:
    print(error)
"""
    done = run_python(code, tmp_path / "d")
    assert done.returncode == 0, done.stderr
    assert "[0, 0, 0]" in done.stdout
    assert "[0.0, 1.0]" in done.stdout
    assert "to_torch() needs torch" in done.stdout


def test_r038_two_runs_in_one_place_are_never_two_ranks(tmp_path: Path) -> None:
    for label in ("proc100", "proc200"):
        write_documents(tmp_path / f"d/step0/{label}", {KEY: call()})
    dump = msformat.open(tmp_path / "d")
    assert [key.rank_number for key in dump.units] == [None, None]
    for command in (("info",), ("convert", tmp_path / "o")):
        done = run(command[0], tmp_path / "d", *command[1:])
        assert done.code == 1
        assert "proc100, proc200 are separate runs into one path" in done.err
    assert sorted(path.name for path in (tmp_path / "o/step0").iterdir()) == ["proc100", "proc200"]
    assert run("convert", tmp_path / "d", tmp_path / "one", "--ranks", "proc200").code in (0, 1)
    assert [path.name for path in (tmp_path / "one/step0").iterdir()] == ["proc200"]


def test_r040_a_dump_that_was_moved(tmp_path: Path) -> None:
    """Data lie beside the document; an absolute path in it is never followed, neither stale nor planted."""
    write_dump(tmp_path / "old", {"a.0.debug": np.ones(2, np.float32), "b.0.debug": np.zeros(2, np.float32)})
    document = tmp_path / "old/step0/rank0/debug.json"
    top = json.loads(document.read_text())
    secret = tmp_path / "secret"
    secret.mkdir()
    document.write_text(json.dumps({**top, "dump_data_dir": str(secret)}, indent=1))
    (tmp_path / "old").rename(tmp_path / "new")
    for target in everywhere(tmp_path / "new"):
        assert msformat.open(target)[0]["a.0.debug"].value.numpy().tolist() == [1, 1]
    name = "b.0.debug.pt"
    (tmp_path / "new/step0/rank0/dump_tensor_data" / name).rename(secret / name)
    done = run("convert", tmp_path / "new", tmp_path / "without")
    assert (done.code, f"tensor '{name}' is missing" in done.err) == (1, True)
    assert not (tmp_path / "without/step0/rank0/dump_tensor_data" / name).exists()


def test_r042_every_file_is_of_the_declared_python(tmp_path: Path) -> None:
    """The grammar, at least, of the oldest Python that pyproject.toml promises; the suite itself runs there in CI."""
    import ast

    declared = next(
        line for line in (Path(msformat.__file__).parents[1] / "pyproject.toml").read_text().splitlines()
        if line.startswith("requires-python")
    )  # fmt: skip
    oldest = tuple(int(part) for part in declared.split(">=")[1].strip('"').split("."))
    assert oldest <= sys.version_info[:2]
    root = Path(msformat.__file__).parents[1]
    files = [path for name in ("msformat", "capture", "tools", "tests") for path in (root / name).rglob("*.py")]
    assert len(files) > 300
    for path in files:
        ast.parse(path.read_text("utf-8"), feature_version=oldest)
