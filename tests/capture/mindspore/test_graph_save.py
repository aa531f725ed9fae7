"""save, save_grad and step in PyNative, under jit and in GRAPH_MODE. np.load and MindSpore's own gradients judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import msformat
from capture.mindspore import graph_save, save, save_grad, step
from capture.mindspore.graph_files import SaveDirectories
from capture.mindspore.quiet import settle

MODES = ("pynative", "jit", "graph")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> SaveDirectories:
    """Steps and numbers from 0, as in a new process."""
    saved = SaveDirectories(lambda: None, settle)
    monkeypatch.setattr(graph_save, "_SAVED", saved)
    return saved


@pytest.fixture(params=MODES)
def compiled(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """What the user does for this mode to a function or a cell."""
    mode: str = request.param
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)

    def prepare(what: Any) -> Any:
        if mode == "jit" and isinstance(what, nn.Cell):
            what.construct = ms.jit(what.construct)
        return ms.jit(what) if mode == "jit" and not isinstance(what, nn.Cell) else what

    return prepare


def files(directory: Path) -> dict[str, Any]:
    """Arrays by path in the directory without the number, which is the order of execution."""
    found = sorted(directory.rglob("*.npy"), key=lambda path: int(path.stem.rpartition("_")[2]))
    named: dict[str, Any] = {}
    for path in found:
        name = str(path.relative_to(directory)).rpartition("_")[0]
        while name in named:
            name += "'"
        named[name] = np.load(path)
    return named


class Net(nn.Cell):
    """The example of msprobe's documents, saving more."""

    def __init__(self, directory: Path, storage: str = "files") -> None:
        super().__init__()
        self.directory, self.storage = str(directory), storage

    def construct(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        save(self.directory, "x", x, self.storage)
        z = save_grad(self.directory, "z", z, self.storage)
        half = save_grad(self.directory, "half", z.astype(ms.bfloat16), self.storage)
        save(self.directory, "half", half, self.storage)
        return x * y * z * half.astype(ms.float32)


def arguments() -> tuple[Tensor, ...]:
    return Tensor([1, 2], ms.float32), Tensor([-2, 3], ms.float32), Tensor([0, 3], ms.float32)


def test_tensor_and_gradient_are_on_disk(compiled: Callable[[Any], Any], tmp_path: Path) -> None:
    net = compiled(Net(tmp_path))
    gradients = ms.grad(net, grad_position=(0, 1, 2))(*arguments())
    # The function is x y z², once through each of two paths to z: as without capture.
    assert [gradient.asnumpy().tolist() for gradient in gradients] == [[0, 27], [0, 18], [0, 36]]
    step()
    found = files(tmp_path)
    assert {name: array.tolist() for name, array in found.items()} == {
        "step0/rank0/x_float32": [1, 2],
        "step0/rank0/half_bfloat16": [0, 3],
        "step0/rank0/half_grad_bfloat16": [0, 18],
        "step0/rank0/z_grad_float32": [0, 36],
    }
    assert all(array.dtype == np.float32 for array in found.values())


def test_the_modes_agree_bit_for_bit(tmp_path: Path) -> None:
    """What lies on disk is what PyNative computes."""
    x = Tensor(np.random.default_rng(7).standard_normal((5, 7)).astype(np.float32))
    left: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
        directory = str(tmp_path / mode)

        def run(x: Tensor) -> Tensor:
            y = save_grad(directory, "y", ops.relu(x) * 3)  # noqa: B023 (each mode compiles its own)
            save(directory, "y", y)  # noqa: B023
            return (y * y).sum()

        ms.grad(ms.jit(run) if mode == "jit" else run)(x)
        settle()
        left[mode] = files(tmp_path / mode)
    for mode in MODES[1:]:
        assert {name: array.tobytes() for name, array in left[mode].items()} == {
            name: array.tobytes() for name, array in left["pynative"].items()
        }
    expected = np.maximum(x.asnumpy(), 0) * np.float32(3)
    np.testing.assert_array_equal(left["graph"]["step0/rank0/y_float32"], expected)
    np.testing.assert_array_equal(left["graph"]["step0/rank0/y_grad_float32"], 2 * expected)


def test_step_moves_the_directory(compiled: Callable[[Any], Any], tmp_path: Path) -> None:
    net = compiled(Net(tmp_path))
    for _ in range(3):
        ms.grad(net, grad_position=(0, 1, 2))(*arguments())
        step()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step0", "step1", "step2"]
    numbers = [int(path.stem.rpartition("_")[2]) for path in tmp_path.rglob("*.npy")]
    assert sorted(numbers) == list(range(12)), "one counter for all that a process saves"


def test_nested_names(compiled: Callable[[Any], Any], tmp_path: Path) -> None:
    directory = str(tmp_path)

    def run(x: Tensor) -> Tensor:
        save(directory, "n", {"a": x, "b": [x + 1, (x + 2, x + 3)], "c": None})
        save(directory, "l", [x, None, x * 2])
        return x

    compiled(run)(Tensor([1.0], ms.float32))
    step()
    assert {name.rpartition("/")[2]: array.tolist() for name, array in files(tmp_path).items()} == {
        "n.a_float32": [1], "n.b.0_float32": [2], "n.b.1.0_float32": [3], "n.b.1.1_float32": [4],
        "l.0_float32": [1], "l.2_float32": [2],
    }  # fmt: skip


_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0)], ids=["scalar", "vector", "empty"])
def test_every_type(compiled: Callable[[Any], Any], tmp_path: Path, shape: tuple[int, ...]) -> None:
    directory = str(tmp_path)
    values = np.array([0, 1, 3][: int(np.prod(shape))]).reshape(shape)

    def run(*tensors: Tensor) -> Tensor:
        save(directory, "t", tensors)
        return tensors[0]

    native = [Tensor(values.astype(name)) for name in _TYPES[:-1]]
    compiled(run)(*native, Tensor(values.astype(np.float32)).astype(ms.bfloat16))
    step()
    found = {name.rpartition("/")[2]: array for name, array in files(tmp_path).items()}
    assert sorted(found) == sorted(f"t.{at}_{name}" for at, name in enumerate(_TYPES))
    for at, name in enumerate(_TYPES):
        kept = np.float32 if name == "bfloat16" else np.dtype(name)
        array = found[f"t.{at}_{name}"]
        assert array.dtype == kept
        np.testing.assert_array_equal(array, values.astype(kept))
        assert array.shape == shape


def test_odd_bits_stay(compiled: Callable[[Any], Any], tmp_path: Path) -> None:
    """NaN with a payload, signalling NaN, -0.0, subnormals, infinities."""
    directory = str(tmp_path)
    words = np.array([0x7FC12345, 0x7F812345, 0xFFC00001, 0x80000000, 0x00000001, 0xFF800000], np.uint32)

    def run(x: Tensor) -> Tensor:
        save(directory, "x", x)
        return x

    compiled(run)(Tensor(words.view(np.float32)))
    step()
    assert files(tmp_path)["step0/rank0/x_float32"].view(np.uint32).tolist() == words.tolist()


def test_save_grad_changes_nothing(compiled: Callable[[Any], Any], tmp_path: Path) -> None:
    directory = str(tmp_path)
    words = np.array([0x7FC12345, 0x80000000, 0x3F800000], np.uint32)

    def run(x: Tensor) -> Tensor:
        return save_grad(directory, "x", x)

    out = compiled(run)(Tensor(words.view(np.float32)))
    assert out.asnumpy().view(np.uint32).tolist() == words.tolist()


def test_a_forgotten_reassignment_is_found(compiled: Callable[[Any], Any], tmp_path: Path) -> None:
    directory = str(tmp_path)

    def run(x: Tensor) -> Tensor:
        save_grad(directory, "lost", x)
        y = save_grad(directory, "kept", x)
        return (y * y).sum()

    gradient = ms.grad(compiled(run))(Tensor([3.0], ms.float32))
    assert gradient.asnumpy().tolist() == [6.0]
    step()
    (unit,) = msformat.verify_dump(tmp_path).units
    (problem,) = unit.problems
    assert "lost_grad" in problem
    assert "lost = save_grad(" in problem


@pytest.mark.parametrize("storage", ["hdf5", "zarr"])
def test_other_storages(compiled: Callable[[Any], Any], tmp_path: Path, storage: str) -> None:
    net = compiled(Net(tmp_path, storage))
    for _ in range(2):
        ms.grad(net, grad_position=(0, 1, 2))(*arguments())
        step()
    assert not list(tmp_path.rglob("*.npy"))
    assert msformat.verify_dump(tmp_path).exit_code == 0
    with msformat.open(tmp_path) as dump:
        assert [str(key) for key in dump.units] == ["step0/rank0", "step1/rank0"]
        unit = dump[1]
        assert (unit.backend, unit.header.framework) == (storage, "mindspore")
        assert unit["z_grad.0.debug"].tensors[0].numpy().tolist() == [0, 36]
        half = unit["half.0.debug"].tensors[0]
        assert half.stored.dtype.name == "bfloat16", "bits, not a wider type"
        assert half.bits().tolist() == [0, 0x4040]
        assert half.stats is not None
        assert (half.stats.max, half.stats.min) == (3.0, 0.0)


@pytest.mark.parametrize("storage", ["hdf5", "files"])
def test_a_forgotten_reassignment_in_another_storage(
    compiled: Callable[[Any], Any], tmp_path: Path, storage: str
) -> None:
    directory = str(tmp_path)

    def run(x: Tensor) -> Tensor:
        save_grad(directory, "lost", x, storage)
        save_grad(directory, "lost", x, storage)
        return (x * x).sum()

    ms.grad(compiled(run))(Tensor([3.0], ms.float32))
    step()
    (problem,) = msformat.verify_dump(tmp_path).units[0].problems
    assert "(times: 2)" in problem


def test_control_flow(compiled: Callable[[Any], Any], tmp_path: Path) -> None:
    directory = str(tmp_path)

    def run(x: Tensor, count: Tensor) -> Tensor:
        i = 0
        while i < count:
            x = save_grad(directory, "w", x * 2)
            i = i + 1
        if count > 1:
            x = save_grad(directory, "big", x * 3)
        return x.sum()

    gradient = ms.grad(compiled(run))(Tensor([1.0, 5.0], ms.float32), Tensor(2))
    step()
    assert gradient.asnumpy().tolist() == [12, 12]
    found = {name.rpartition("/")[2]: array.tolist() for name, array in files(tmp_path).items()}
    assert found == {"big_grad_float32": [1, 1], "w_grad_float32": [3, 3], "w_grad_float32'": [6, 6]}


def test_shapes_known_at_run_time_only_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    directory = str(tmp_path)

    class Dynamic(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            save(directory, "d", x)
            x = save_grad(directory, "d", x)
            return x * 2

    net = Dynamic()
    net.set_inputs(Tensor(shape=[None, 2], dtype=ms.float32))
    for rows in (0, 3):
        assert net(Tensor(np.ones((rows, 2), np.float32))).shape == (rows, 2)
    assert [record.message for record in caplog.records if "run time only" in record.message]
    assert len([record for record in caplog.records if "run time only" in record.message]) == 1


def test_wrong_arguments(compiled: Callable[[Any], Any], tmp_path: Path) -> None:
    directory = str(tmp_path)

    def no_tensor(x: Tensor) -> Tensor:
        save(directory, "n", (x, 3))
        return x

    def no_gradient(x: Tensor) -> Tensor:
        save_grad(directory, "n", (x, x))
        return x

    def no_storage(x: Tensor) -> Tensor:
        return save_grad(directory, "n", x, "hdf6")

    x = Tensor([1.0], ms.float32)
    with pytest.raises(TypeError, match="For 'save', the type of"):
        compiled(no_tensor)(x)
    with pytest.raises(TypeError, match="For 'save_grad', the type of argument 'data' must be"):
        compiled(no_gradient)(x)
    with pytest.raises(ValueError, match="choose one of files, hdf5, zarr"):
        compiled(no_storage)(x)


def test_one_storage_a_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(str(tmp_path), "x", Tensor([1.0]))
    save(str(tmp_path), "y", Tensor([1.0]), "hdf5")
    assert "written as files already" in caplog.text
    step()
    assert [path.name for path in tmp_path.rglob("*_*.npy")] == ["x_float32_0.npy"]


def test_names_lead_nowhere(tmp_path: Path) -> None:
    for name in ("../../x", "a/b", "x" * 300, "ä/ö\n"):
        save(str(tmp_path / "in"), name, Tensor([1.0]))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    unit = tmp_path / "in/step0/rank0"
    assert len(list(unit.iterdir())) == 4
    assert len(msformat.open(tmp_path / "in")[0]) == 4


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/abs",
        "a/b",
        "x" * 5000,
        "x" * 300 + "_grad",
        "_grad" * 9,
        "名" * 100,
        "",
        "..",
        "a\0b",
        "a\nb",
        "\ud800",
    ],
)
def test_gradients_of_odd_names_are_found_again(tmp_path: Path, name: str) -> None:
    """A name that had to be made harmless is the same for the gradient and for the list of what was asked for."""
    gradient = ms.grad(lambda x: (save_grad(str(tmp_path / "dump"), name, x) * 2).sum())(Tensor([1.0, 3.0]))
    assert gradient.asnumpy().tolist() == [2, 2]
    step()
    assert os.listdir(tmp_path) == ["dump"]
    (entry,) = msformat.open(tmp_path / "dump")[0].values()
    assert entry.key.endswith("_grad.0.debug")
    assert entry.tensors[0].numpy().tolist() == [2, 2]
    assert msformat.verify_dump(tmp_path / "dump").exit_code == 0


def test_files_of_an_earlier_run_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(str(tmp_path), "x", Tensor([1.0]))
    monkeypatch.setattr(graph_save, "_SAVED", SaveDirectories(lambda: None, settle))
    save(str(tmp_path), "x", Tensor([2.0]))
    assert {path.name: np.load(path).tolist() for path in tmp_path.rglob("*.npy")} == {
        "x_float32_0.npy": [1.0],
        "x_float32_1.npy": [2.0],
    }
    assert "earlier run" in caplog.text


def test_a_full_disk_costs_the_files_only(
    compiled: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    net = compiled(Net(tmp_path))
    for _ in range(2):
        assert ms.grad(net, grad_position=(0, 1, 2))(*arguments())[0].asnumpy().tolist() == [0, 27]
    assert "No space left on device" in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "save_grad.jsonl"]


def test_two_hundred_steps_cost_the_same(tmp_path: Path) -> None:
    directory = str(tmp_path)

    @ms.jit
    def run(x: Tensor) -> Tensor:
        save(directory, "x", x)
        x = save_grad(directory, "x", x)
        return (x * x).sum()

    train, x = ms.grad(run), Tensor([1.0, 2.0])
    for _ in range(200):
        train(x)
        step()
    assert len(list(tmp_path.iterdir())) == 200
    assert sum(1 for _ in tmp_path.rglob("x_grad_float32_*.npy")) == 200
    assert not graph_save._SAVED._units


_RUN = """
import sys, numpy as np
import mindspore as ms
from capture.mindspore import save, save_grad
ms.set_context(mode=ms.GRAPH_MODE)

class Net(ms.nn.Cell):
    def construct(self, x):
        save(sys.argv[1], "x", x, sys.argv[2])
        x = save_grad(sys.argv[1], "x", x, sys.argv[2])
        return (x * x).sum()

ms.grad(Net())(ms.Tensor(np.array([1.0, 2.0], np.float32)))
"""


@pytest.mark.parametrize("storage", ["files", "hdf5"])
def test_a_program_that_never_calls_step(tmp_path: Path, storage: str) -> None:
    script = tmp_path / "run.py"
    script.write_text(_RUN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, tmp_path / "out", storage], check=True, env=environment, timeout=200)
    unit = msformat.open(tmp_path / "out")[0]
    assert unit.complete
    assert unit["x_grad.0.debug"].tensors[0].numpy().tolist() == [2.0, 4.0]


# Exit handlers in the order they were asked for.
_HANDLERS = """
import atexit
register, asked = atexit.register, []
atexit.register = lambda function, *given, **named: (asked.append(function.__name__), register(function))[1]
"""


def test_the_end_is_awaited_before_hdf5_is_taken_down(tmp_path: Path) -> None:
    """h5py's exit handler is inside the library without its lock; a kernel's thread may be there, too."""
    script = tmp_path / "run.py"
    script.write_text(f"{_HANDLERS}{_RUN}print(*asked)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script, tmp_path / "out", "hdf5"],
        check=True, env=environment, timeout=200, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    asked = done.stdout.split()
    last_first = asked[::-1]
    assert last_first.index("close") < last_first.index("unregister_converters")


def test_a_forked_worker_writes_nothing(tmp_path: Path, fresh: SaveDirectories) -> None:
    fresh._pid += 1  # what a child sees
    save(str(tmp_path / "out"), "x", Tensor([1.0]))
    assert not (tmp_path / "out").exists()


def test_tensordump_itself_is_read(tmp_path: Path) -> None:
    """The files that MindSpore writes on the CPU in PyNative."""
    dump = ops.TensorDump()
    for name in ("float32", "bfloat16", "int64", "bool_"):
        dump(
            f"{tmp_path}/{{step}}/{{rank}}/t_{name}",
            Tensor(np.array([[1.0, 0.0]], np.float32)).astype(getattr(ms, name)),
        )
    unit = msformat.open(tmp_path)[0]
    assert [(t.entry.key, t.dtype_name, t.numpy().astype(float).tolist()) for t in unit.tensors()] == [
        ("t_float32.0.debug", "Float32", [[1.0, 0.0]]),
        ("t_bfloat16.0.debug", "BFloat16", [[1.0, 0.0]]),
        ("t_int64.0.debug", "Int64", [[1.0, 0.0]]),
        ("t_bool_.0.debug", "Bool", [[1.0, 0.0]]),
    ]


def test_the_list_of_what_is_expected_is_plain(tmp_path: Path) -> None:
    save_grad(str(tmp_path), 'odd "name"', Tensor([1.0]))
    (line,) = (tmp_path / "step0/rank0/save_grad.jsonl").read_text().splitlines()
    assert json.loads(line) == {"name": 'odd "name"'}


# --- Ascend, as far as a CPU can tell ------------------------------------------------------------------------------


class _Ascend(ops.PrimitiveWithInfer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("Ascend")

    def __call__(self) -> bool:
        return True

    def __infer__(self) -> dict[str, Any]:
        return {"dtype": None, "shape": None, "value": True}


@pytest.mark.parametrize("what", ["save", "save_grad"])
def test_on_ascend_the_graph_holds_tensordump(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler of a CPU refuses it, and says what it refuses."""
    monkeypatch.setattr(graph_save, "IS_ASCEND", _Ascend())
    directory = str(tmp_path)

    @ms.jit
    def saved(x: Tensor) -> Tensor:
        save(directory, "x", x)
        return (x * x).sum()

    @ms.jit
    def listened(x: Tensor) -> Tensor:
        x = save_grad(directory, "x", x)
        return (x * x).sum()

    with pytest.raises(RuntimeError, match="TensorDump"):
        ms.grad(saved if what == "save" else listened)(Tensor([1.0], ms.float32))


def test_on_ascend_a_graph_saves_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_save, "IS_ASCEND", _Ascend())
    directory = str(tmp_path)

    @ms.jit
    def run(x: Tensor) -> Tensor:
        save(directory, "x", x, "hdf5")
        return x

    with pytest.raises(ValueError, match="msformat convert"):
        run(Tensor([1.0], ms.float32))


def test_on_ascend_step_moves_tensordump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that TensorDump takes for a new step reaches the kernel and what counts in front of it."""
    orders: list[tuple[str, str]] = []
    monkeypatch.setattr(graph_save, "IS_ASCEND", _Ascend())
    monkeypatch.setattr(graph_save.primitive, "_run_op", lambda op, name, args: orders.append((name, args[0])))
    monkeypatch.setattr(graph_save.ops, "tensordump", lambda order, tensor: orders.append(("tensordump", order)))
    save(str(tmp_path), "x", Tensor([1.0]))
    step()
    save(str(tmp_path), "x", Tensor([1.0]))
    order = "<tensordump-update-step>"
    assert orders == [("TensorDump", order), ("tensordump", order)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step0", "step1"]
