"""Reports on what is stored, as capture for PyTorch meets them: names, numbers, statistics, full disks, other runs."""

from __future__ import annotations

import math
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest

import msformat
from capture.errors import CaptureError
from tests.reports.cases import BACKENDS, everywhere, run, run_python

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.reports.capturing import BATCH, captured, debugging, node_of, saved  # noqa: E402

ODD_NAMES = (
    "loss", "loss/aux", "a//b", "/x", "x/", "a\0b", "a", "a\\b", "x\ny", ".", "..", "", "zarr.json", "n" * 300, "a%2Fb",
    "变量", "\udc80",
)  # fmt: skip


def test_r038_a_second_run_into_the_same_place(tmp_path: Path) -> None:
    first = saved(tmp_path / "d", torch.zeros(1))
    assert first["a.0.debug"].value[0] == 0
    with pytest.raises(CaptureError, match="overwrite"):
        saved(tmp_path / "d", torch.ones(1))
    assert msformat.open(tmp_path / "d")[0]["a.0.debug"].value[0] == 0
    again = saved(tmp_path / "d", torch.ones(1), storage={"overwrite": True})
    assert again["a.0.debug"].value[0] == 1
    assert len(msformat.open(tmp_path / "d")) == 1


SECOND = """
import sys, torch
from capture.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="debug", task="tensor")
try:
    debugger.save(torch.ones(1), "mine")
    debugger.step()
    debugger.close()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_r082_two_processes_without_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The unit is one's, whole; the other says so and trains on."""
    with debugging(tmp_path / "d", level="debug") as debugger:
        debugger.save(torch.zeros(1), "first")
        done = run_python(SECOND, tmp_path / "d")
        debugger.save(torch.zeros(1), "second")
        debugger.step()
    keys = [key for key in msformat.open(tmp_path / "d")[0] if "_grad" not in key]
    assert done.returncode == 0
    if keys == ["mine.0.debug"]:
        assert "a dump lies here already" in caplog.text
    else:
        assert keys == ["first.0.debug", "second.0.debug"]
        assert "CaptureError" in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_r094_none_and_numbers_as_keys_in_save(tmp_path: Path, backend: str) -> None:
    x, y = torch.ones(2), torch.zeros(3)
    with debugging(tmp_path / "d", level="debug", storage={"format": backend}) as debugger:
        debugger.save((x, [y, None]), "a")
        debugger.save({3: x, "3": y, None: x}, "a")
        debugger.step()
    unit = msformat.open(tmp_path / "d")[0]
    left, (right, nothing) = unit["a.0.debug"].value
    assert (left.numpy().tolist(), right.numpy().tolist(), nothing) == ([1, 1], [0, 0, 0], None)
    named = unit["a.1.debug"].value
    assert {key: tensor.shape for key, tensor in named.items()} == {"3": (3,), "3 (int)": (2,), "None": (2,)}


def test_r100_zero_sized_dimensions_are_captured(tmp_path: Path) -> None:
    shapes = [(0,), (0, 3), (3, 0), (2, 0, 4)]
    saved(tmp_path / "d", [torch.empty(shape) for shape in shapes])
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        found = msformat.open(target)[0]["a.0.debug"].value
        assert [tensor.numpy().shape for tensor in found] == shapes
        assert {tensor.stats.max for tensor in found if tensor.stats is not None} <= {None}


def test_r104_endless_integers_as_arguments(tmp_path: Path) -> None:
    class Taking(nn.Module):
        def forward(self, x: Any, *_numbers: int) -> Any:
            return x

    model = nn.Sequential(Taking())
    captured(tmp_path / "d", lambda: model[0](BATCH, 2**70, -(2**63) - 1, 10**5000), model)
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        found = msformat.open(target)[0]["Module.0.Taking.forward.0"].inputs[1:]
        assert {one.type for one in found} == {"int"}
        assert [int(str(one.value), 0) for one in found] == [2**70, -(2**63) - 1, 10**5000]


@pytest.mark.parametrize("backend", BACKENDS)
def test_r105_r106_r152_odd_names_of_saved_variables(tmp_path: Path, backend: str) -> None:
    names = (*ODD_NAMES, "a/../../b", "../../../../x", str(tmp_path / "absolute"))
    with debugging(tmp_path / "in/d", level="debug", storage={"format": backend}) as debugger:
        for number, name in enumerate(names):
            debugger.save(torch.tensor([float(number)]), name)
        debugger.step()
    assert sorted(path.name for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "in/d")) == [
        "d.config.json",
        "in",
    ]
    for target in (tmp_path / "in/d", *everywhere(tmp_path / "in/d")):
        unit = msformat.open(target)[0]
        keys = [key for key in unit if "_grad." not in key]
        assert [float(unit[key].value[0]) for key in keys] == list(range(len(names)))
        assert keys == [f"{name}.0.debug".replace("\udc80", "\\udc80") for name in names]


def test_r108_modules_nested_deeply(tmp_path: Path) -> None:
    kind = type("L" * 60, (nn.Sequential,), {})
    model: nn.Module = nn.Linear(3, 3)
    for _ in range(40):
        outer = kind()
        outer.add_module("module_with_a_long_name", model)
        model = outer
    with torch.no_grad():
        unit = captured(tmp_path / "d", lambda: model(BATCH), model)
        wanted = model(BATCH)
    deepest = [key for key in unit if "Linear" in key and ".forward." in key]
    assert [key.count("module_with_a_long_name") for key in deepest] == [40]
    assert torch.equal(unit[deepest[0]].outputs[0].to_torch(), wanted)
    assert all(len(path.name.encode()) <= 255 for path in (tmp_path / "d").rglob("*"))


FULL_DISK = """
import resource, signal, sys, torch
from torch import nn
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from capture.pytorch import PrecisionDebugger
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
debugger = PrecisionDebugger(sys.argv[1])
losses = []
for step in range(3):
    if step == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
    debugger.start(model)
    loss = model(torch.ones(2, 100)).sum()
    loss.backward()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
    debugger.wait()
print(len(losses), flush=True)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_r120_r149_a_full_disk_ends_capture_and_not_the_training(tmp_path: Path, backend: str) -> None:
    text = '{"task": "tensor", "level": "L0", "dump_path": "%s", "storage": {"format": "%s"}}'
    (tmp_path / "config.json").write_text(text % (tmp_path / "d", backend))
    done = run_python(FULL_DISK, tmp_path / "config.json")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("training goes on") == 1
    dump = msformat.open(tmp_path / "d")
    assert dump[0].complete
    assert dump[0]["Module.0.Linear.forward.0"].inputs[0].numpy().tolist() == [[1] * 100] * 2
    assert [unit.complete for unit in dump][1:] in ([], [False])
    assert run("convert", tmp_path / "d", tmp_path / "copy").code in (0, 1)
    assert msformat.open(tmp_path / "copy")[0]["Module.0.Linear.forward.0"].inputs[0].shape == (2, 100)


def test_r124_shared_and_strided_tensors_are_captured(tmp_path: Path) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    values = {"tied": x, "again": x, "turned": x.t(), "wide": x[:, :1].expand(2, 1000), "every other": x[:, ::2]}
    saved(tmp_path / "d", values)
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        found = msformat.open(target)[0]["a.0.debug"].value
        assert all(torch.equal(found[name].to_torch(), value) for name, value in values.items())
    stored = sum(path.stat().st_size for path in (tmp_path / "d").rglob("*.pt"))
    assert stored < 20_000


def test_r132_nan_and_nothing_are_two_things(tmp_path: Path) -> None:
    values = {"nan": torch.tensor([1.0, math.nan]), "inf": torch.tensor([1.0, -math.inf]), "none": torch.empty(0)}
    saved(tmp_path / "d", values, task="statistics")
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        found = msformat.open(target)[0]["a.0.debug"].value
        assert math.isnan(found["nan"].stats.max)
        assert found["inf"].stats.min == -math.inf
        assert node_of(found["none"])["Max"] is None


def test_r136_r138_statistics_of_capture_never_overflow(tmp_path: Path) -> None:
    values = {
        "half": torch.full((70_000,), 300.0, dtype=torch.float16),
        "large": torch.full((4,), 1e20),
        "int32": torch.full((1000,), 2**31 - 1, dtype=torch.int32),
        "int8": torch.full((1000,), 127, dtype=torch.int8),
    }
    found = saved(tmp_path / "d", values, task="statistics")["a.0.debug"].value
    for name, mean, norm in (("half", 300.0, 300 * math.sqrt(70_000)), ("large", 1e20, 2e20)):
        assert found[name].stats.mean == pytest.approx(mean, rel=1e-6)
        assert found[name].stats.norm == pytest.approx(norm, rel=1e-6)
    for name, largest in (("int32", 2**31 - 1), ("int8", 127)):
        stats = found[name].stats
        assert (stats.max, stats.min) == (largest, largest)
        assert stats.mean in (None, pytest.approx(largest))
        assert stats.norm in (None, pytest.approx(largest * math.sqrt(1000)))


def test_r137_integers_of_capture_are_exact(tmp_path: Path) -> None:
    values = {
        "wide": torch.tensor([2**53 + 1, -(2**53) - 1, 0]),
        "bytes": torch.arange(256).to(torch.uint8),
        "truth": torch.tensor([True, False]),
    }
    found = saved(tmp_path / "d", values, task="statistics")["a.0.debug"].value
    assert (found["wide"].stats.max, found["wide"].stats.min) == (2**53 + 1, -(2**53) - 1)
    assert (found["bytes"].stats.max, found["bytes"].stats.min) == (255, 0)
    assert (found["truth"].stats.max, found["truth"].stats.min) == (True, False)


def test_r140_a_scalar_is_recorded_as_it_was(tmp_path: Path) -> None:
    loss = torch.tensor(3.0)
    with debugging(tmp_path / "d", level="debug") as debugger:
        debugger.save(loss, "loss")
        loss.mul_(2)
        debugger.step()
    found = msformat.open(tmp_path / "d")[0]["loss.0.debug"].value
    assert (found.stats.max, found.stats.mean, float(found.numpy())) == (3.0, 3.0, 3.0)


def test_r141_checksums_are_of_the_logical_bytes(tmp_path: Path) -> None:
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    values = {"slice": x.flatten()[1:], "scalar": x[1, 1], "turned": x.t(), "half": x.half()[:, 1:]}
    with debugging(tmp_path / "d", level="debug", task="statistics", summary_mode="md5") as debugger:
        for name, value in values.items():
            debugger.save(value, name)
        debugger.step()
    unit = msformat.open(tmp_path / "d")[0]
    for name, value in values.items():
        plain = bytes(value.contiguous().clone().untyped_storage().tolist())
        assert unit[f"{name}.0.debug"].value.digest == f"{zlib.crc32(plain):08x}"
    assert saved(tmp_path / "e", x, summary_mode="md5")["a.0.debug"].value.digest == f"{zlib.crc32(x.numpy()):08x}"


def test_r148_a_step_that_raises_says_so(tmp_path: Path) -> None:
    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ZeroDivisionError("by design")

    model = nn.Sequential(nn.Linear(3, 3), Failing())
    add = torch.add
    with debugging(tmp_path / "d", level="mix") as debugger:
        with pytest.raises(ZeroDivisionError), debugger.capture(model):
            model(BATCH)
        assert not model[0]._forward_hooks
        assert torch.add is add
        with debugger.capture(model):
            model[0](BATCH)
    broken, whole = msformat.open(tmp_path / "d")
    assert "Module.0.Linear.forward.0" in broken
    assert (broken.complete, whole.complete) == (False, True)
    assert "ZeroDivisionError" in str(broken.incomplete_reason)
    assert "writer stopped (step 0 ended by ZeroDivisionError" in run("info", tmp_path / "d").err


RAISING = """
import sys, torch
from torch import nn
from capture.pytorch import PrecisionDebugger
class Failing(nn.Module):
    def forward(self, x):
        raise ZeroDivisionError("by design")
model = nn.Sequential(nn.Linear(3, 3), Failing())
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="L0", task="tensor")
debugger.start(model)
model(torch.ones(2, 3))
"""


def test_r148_a_process_that_ends_by_an_exception(tmp_path: Path) -> None:
    done = run_python(RAISING, tmp_path / "d")
    assert "ZeroDivisionError: by design" in done.stderr
    unit = msformat.open(tmp_path / "d")[0]
    assert unit["Module.0.Linear.forward.0"].inputs[0].numpy().tolist() == [[1, 1, 1]] * 2
    assert not unit.complete


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o077, 0o600, 0o700), (0o022, 0o644, 0o755)])
def test_r150_permissions_of_a_captured_dump(tmp_path: Path, umask: int, file: int, folder: int) -> None:
    before = os.umask(umask)
    try:
        saved(tmp_path / "d", torch.ones(2))
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    for path in (tmp_path / "d").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (folder if path.is_dir() else file), path


@pytest.mark.parametrize("overwrite", [False, True])
def test_r154_capture_removes_nothing_of_a_stranger(tmp_path: Path, overwrite: bool) -> None:
    root = tmp_path / "d"
    strange = [root / "precious.txt", root / "step0/notes.md", root / "step0/rank/mine.bin", root / "step1/rank/x.pt"]
    for path in strange:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    with debugging(root, level="debug", storage={"overwrite": overwrite}) as debugger:
        for _ in range(2):
            debugger.save(torch.ones(1), "a")
            debugger.step()
    assert all(path.read_text() == "mine" for path in strange)
    again = saved(root, torch.zeros(1), storage={"overwrite": True})
    assert again["a.0.debug"].value[0] == 0
    assert all(path.read_text() == "mine" for path in strange)
