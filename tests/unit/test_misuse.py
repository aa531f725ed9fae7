"""The API in the hands of who errs: odd types, order and values. Each mistake is said at once, and costs nothing."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat import ConvertOptions, DiffOptions, DTypeError, DumpWriter, FormatError, Header, StoreError, StoreOptions
from tests.unit.reader_dumps import RELU, VALUES, X

HEADER = Header(task="tensor", level="L1", framework="pytorch")
FLOAT32 = msformat.dtype_named("float32")
BACKENDS = ("files", "hdf5", "zarr")
SCALAR = {"type": "int", "value": 3}


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "is_there"),
    [
        (0, True), (9, False), ((0, 2), True), ((0, 9), False), ((0, "rank2"), True), ("step0/rank2", True),
        ("step0/rank9", False), ("nonsense", False), (np.int64(0), True), ((np.int64(0), np.int8(2)), True),
        ((0, 2, ""), True), ((0, 2, "graph"), False), ((0, 2, "", 1), False), ((), False), (None, False), ([], False),
        ((0, []), False), (slice(None), False), (np.array([0, 1]), False), (b"step0/rank2", False), (object, False),
    ],
)  # fmt: skip
def test_a_dump_has_what_it_gives(tree: Path, index: Any, is_there: bool) -> None:
    dump = msformat.open(tree)
    assert (index in dump) is is_there
    if not is_there or np.ndim(index) == 0 == index:  # step 0 has two units
        with pytest.raises(msformat.UnitNotFoundError, match="matches 2" if is_there else "no unit"):
            dump[index]
    else:
        assert dump[index].label == "step0/rank2"


def test_a_dump_has_its_own_units(tree: Path) -> None:
    dump = msformat.open(tree)
    assert all(unit in dump and unit.key in dump and unit.label in dump for unit in dump)
    assert dump[0, 2] in msformat.open(tree)


def test_what_is_no_name_names_nothing(stored: Path) -> None:
    unit = msformat.open(stored)[0, 2]
    keys: tuple[Any, ...] = (None, 0, 1.5, True, b"Functional.relu.0.forward", (), msformat.OpName)
    for key in keys:
        with pytest.raises(msformat.EntryNotFoundError, match="a text"):
            unit[key]
        with pytest.raises(msformat.TensorNotFoundError, match="a text"):
            unit.tensor(key)
        with pytest.raises(FormatError, match="no string"):
            unit.document(key)
        assert key not in unit
        assert unit.get(key, "other") == "other"


def test_one_name_alone_is_not_taken_letter_by_letter(stored: Path) -> None:
    unit = msformat.open(stored)[0, 2]
    for alone in (X, unit.tensor(X)):
        with pytest.raises(TypeError, match="not one alone"):
            unit.read(alone)  # type: ignore[arg-type]
    for other in (5, None, b"x", unit[RELU], unit):
        with pytest.raises(TypeError, match="names and tensors"):
            list(unit.read([other]))  # type: ignore[list-item]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_of_another_unit_gives_its_own_values(tmp_path: Path, backend: str) -> None:
    for step in (0, 1):
        write(tmp_path / f"step{step}" / "rank0", backend, {"a.pt": VALUES + step})
    one, other = msformat.open(tmp_path)
    mixed = [one.tensor("a.pt"), other.tensor("a.pt"), pickle.loads(pickle.dumps(one.tensor("a.pt")))]
    assert [float(values.flat[0]) for _, values in one.read(mixed)] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("filter", [5, True, b"x", [], ["relu"], ("relu",)])
def test_a_filter_of_a_table_is_a_text(tree: Path, filter: Any) -> None:  # noqa: A002
    dump = msformat.open(tree)
    for table in (dump.table, dump[0, 2].table):
        with pytest.raises(FormatError, match="filter: a str is needed"):
            table(filter=filter)


def test_columns_of_two_lengths_are_no_table() -> None:
    with pytest.raises(FormatError, match="'b': 2"):
        msformat.Table({"a": [1], "b": [1, 2]})


def test_a_close_in_the_middle_of_a_reading(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread may do it: the reading goes on with a store that is opened anew."""
    unit = msformat.open(stored)[0, 2]
    x, kind = unit.tensor(X), type(unit.store)
    unit.close()
    get: Callable[..., Any] = kind.get
    closed: list[str] = []

    def get_and_close(store: Any, key: str) -> Any:
        found = get(store, key)
        if not closed:
            closed.append(key)
            unit.close()
        return found

    monkeypatch.setattr(kind, "get", get_and_close)
    assert np.array_equal(x.numpy(), VALUES)
    assert closed == [X]


def test_an_error_of_a_reading_is_raised_once(tree: Path) -> None:
    tensor = msformat.open(tree)[0, 2].tensor(X)
    (tree / "step0" / "rank2" / "dump_tensor_data" / X).write_bytes(b"x")
    with pytest.raises(msformat.MsformatError, match="relu"):
        tensor.numpy()


# --- paths -----------------------------------------------------------------------------------------------------------


class Path8(os.PathLike[Any]):
    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path


@pytest.mark.parametrize(
    "spell", [str, os.fsencode, Path, lambda path: Path8(str(path)), lambda path: Path8(os.fsencode(path))]
)
def test_a_path_is_spelt_as_os_spells_it(tree: Path, tmp_path: Path, spell: Any) -> None:
    assert len(msformat.open(spell(tree))) == len(msformat.open(tree))
    assert msformat.verify_dump(spell(tree)).exit_code == 0
    assert msformat.convert_dump(spell(tree), spell(tmp_path / "out.h5")).exit_code == 0
    assert msformat.diff(spell(tree), spell(tmp_path / "out.h5")).exit_code == 0
    DumpWriter(spell(tmp_path / "new"), HEADER).finish()
    with msformat.open_store("hdf5", spell(tmp_path / "out.h5"), group="step0/rank2") as store:
        assert X in store


CALLS: dict[str, Callable[[Any], Any]] = {
    "open": msformat.open, "verify": msformat.verify_dump, "recover": msformat.recover_dump,
    "convert": lambda path: msformat.convert_dump(path, "out"), "to": lambda path: msformat.convert_dump("in", path),
    "diff": lambda path: msformat.diff(path, path), "mapping": msformat.load_mapping,
    "store": lambda path: msformat.open_store("files", path), "writer": lambda path: DumpWriter(path, HEADER),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_path(call: str) -> None:
    paths: tuple[Any, ...] = (None, 5, 1.5, [], {})
    for path in paths:
        with pytest.raises(TypeError, match="expected str, bytes or os"):
            CALLS[call](path)
    with pytest.raises(StoreError, match=r"'a\\x00b': no path holds a NUL"):
        CALLS[call]("a\0b")


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ConvertOptions, DiffOptions])
@pytest.mark.parametrize(
    "given",
    [
        {"steps": 5}, {"steps": "0"}, {"steps": {"0"}}, {"steps": [True]}, {"steps": [0.5]}, {"ranks": "rank1"},
        {"ranks": 1}, {"ranks": [1.5]}, {"ranks": [None]}, {"filter": 5}, {"filter": None}, {"filter": b"x"},
        {"filter": ["a", 5]}, {"jobs": None}, {"jobs": "2"}, {"jobs": 1.5}, {"jobs": 0}, {"jobs": True},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_of_the_wrong_kind_is_named(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=f"^{next(iter(given))}"):
        kind(**given)


@pytest.mark.parametrize(
    "given",
    [{"thresholds": {"rtol": 1}}, {"mapping": {"a": "b"}}, {"context": None}, {"context": -1}, {"threads": 0}],
    ids=str,
)
def test_an_option_of_diff_of_the_wrong_kind_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=f"^{next(iter(given))}"):
        DiffOptions(**given)


@pytest.mark.parametrize("given", [{"rtol": "x"}, {"atol": None}, {"cosine": "x"}, {"extremes": True}], ids=str)
def test_a_threshold_is_a_number(given: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=next(iter(given))):
        msformat.Thresholds(**given)


@pytest.mark.parametrize("compression", [None, 5, b"gzip"])
def test_a_compression_is_a_text(compression: Any) -> None:
    for kind in (StoreOptions, ConvertOptions):
        with pytest.raises(FormatError, match="compression: a str is needed"):
            kind(compression=compression)


@pytest.mark.parametrize("collect", [set, list, tuple, iter, np.array])
def test_any_collection_of_steps_and_ranks_will_do(tree: Path, tmp_path: Path, collect: Any) -> None:
    options = ConvertOptions(steps=collect([0]), ranks=collect([2]), filter=iter(["relu"]), jobs=np.int64(1))  # type: ignore[arg-type]
    assert [unit.key for unit in msformat.convert_dump(tree, tmp_path / "out", options).units] == ["step0/rank2"]


@pytest.mark.parametrize("options", [5, "x", {}, {"to": "hdf5"}, StoreOptions()], ids=str)
def test_options_are_options(tree: Path, tmp_path: Path, options: Any) -> None:
    with pytest.raises(FormatError, match="options: a ConvertOptions is needed"):
        msformat.convert_dump(tree, tmp_path / "out", options)
    with pytest.raises(FormatError, match="options: a DiffOptions is needed"):
        msformat.diff(tree, tree, options)
    assert not (tmp_path / "out").exists()


# --- writing ---------------------------------------------------------------------------------------------------------


def write(unit: Path, backend: str, tensors: dict[str, Any], spoil: Callable[[DumpWriter], None] | None = None) -> None:
    """A finished unit with an entry a tensor; ``spoil`` does something wrong in the middle."""
    with DumpWriter(unit, HEADER, backend=backend) as writer:
        for number, (name, values) in enumerate(tensors.items()):
            if spoil is not None and number == 1:
                spoil(writer)
            writer.put_tensor(name, values, FLOAT32)
            meta = msformat.TensorMeta("torch.Tensor", "torch.float32", np.shape(values), data_name=name)
            writer.put_entry(name.removesuffix(".pt"), msformat.dump_node({"output": (meta,)}))


class Arraylike:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return VALUES


WRONG_BITS: dict[str, Any] = {
    "nothing": None, "number": 5, "list": [1.0, 2.0], "bytes": b"1234", "view": memoryview(b"1234"),
    "arraylike": Arraylike(), "mask": np.ma.masked_array(VALUES, mask=VALUES > 2), "objects": np.array([1, None]),
    "other type": VALUES.astype("f8"), "other order": VALUES.astype(">f4"), "texts": np.array(["a"]),
    "fields": np.zeros(2, [("a", "f4")]),
}  # fmt: skip
WRONG_KEYS: tuple[Any, ...] = (None, 5, b"a.pt", True, [], (), {}, Path("a.pt"))


def put_all_wrong(writer: DumpWriter) -> None:
    for bits in WRONG_BITS.values():
        with pytest.raises(DTypeError, match=r"^tensor 'a"):
            writer.put_tensor("a.pt", bits, FLOAT32)
    for key in WRONG_KEYS:
        for call in (
            lambda key: writer.put_tensor(key, VALUES, FLOAT32),
            lambda key: writer.put_same(key, "0.pt"),
            lambda key: writer.put_same("a.pt", key),
            lambda key: writer.put_entry(key, SCALAR),
            writer.data_name,
        ):
            with pytest.raises(FormatError, match="is no string"):
                call(key)
    for entries, frames in (("abc", ["File"]), (["a"], "File")):
        with pytest.raises(FormatError, match="one text, a list is needed"):
            writer.put_stack(entries, frames)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mistakes_in_the_middle_cost_nothing(tmp_path: Path, backend: str) -> None:
    """A key that is no text was noticed by Zarr when the dump was finished, which then could not be."""
    values = {f"{number}.pt": VALUES + number for number in range(3)}
    write(tmp_path / "unit", backend, values, put_all_wrong)
    assert msformat.verify_dump(tmp_path / "unit").exit_code == 0
    (unit,) = msformat.open(tmp_path / "unit")
    assert {name: found.tolist() for name, found in unit.read()} == {key: v.tolist() for key, v in values.items()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mistake_alone_leaves_nothing(tmp_path: Path, backend: str) -> None:
    with DumpWriter(tmp_path / "unit", HEADER, backend=backend) as writer:
        for bits in WRONG_BITS.values():
            with pytest.raises(DTypeError):
                writer.put_tensor("a.pt", bits, FLOAT32)
    assert not list(tmp_path.iterdir())


def odd_arrays() -> Iterator[tuple[str, Any]]:
    """Arrays that are odd, and keep their bits all the same."""
    still = VALUES.copy()
    still.flags.writeable = False
    yield "read-only", still
    yield "scalar", np.float32(1.5)
    yield "turned", VALUES.T
    yield "backwards", VALUES[::-1, :, ::2]
    yield "broadcast", np.broadcast_to(np.float32(3), (2, 3))
    yield "stride 0", np.lib.stride_tricks.as_strided(VALUES, (4,), (0,))
    yield "columns first", np.asfortranarray(VALUES)
    yield "matrix", VALUES[0].view(np.matrix)
    yield "no mask", np.ma.masked_array(VALUES)


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_arrays_keep_their_bits(tmp_path: Path, backend: str) -> None:
    write(tmp_path / "unit", backend, {f"{name}.pt": values for name, values in odd_arrays()})
    (unit,) = msformat.open(tmp_path / "unit")
    found = dict(unit.read())
    for name, values in odd_arrays():
        assert found[f"{name}.pt"].tobytes() == np.asarray(values).tobytes(), name
        assert found[f"{name}.pt"].shape == np.shape(values), name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"header": None}, "header: a Header is needed"), ({"header": {"task": "tensor"}}, "header: a Header"),
        ({"options": {"links": False}}, "options: a StoreOptions"), ({"options": 0}, "options: a StoreOptions"),
        ({"document": "stack.json"}, "document='stack.json': choose"), ({"document": None}, "document=None: choose"),
        ({"document": "../dump.json"}, "document="), ({"sync_entries": None}, "sync_entries=None"),
        ({"sync_entries": 1.5}, "sync_entries=1.5"), ({"sync_bytes": "1 MiB"}, "sync_bytes="),
        ({"sync_bytes": -1}, "sync_bytes=-1: at least 0"),
    ],
)  # fmt: skip
def test_a_wrong_setting_shows_before_anything_is_put(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        DumpWriter(tmp_path / "unit", **{"header": HEADER, **given})
    assert not list(tmp_path.iterdir())


def test_a_directory_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the one the program runs in."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="has no name"):
        DumpWriter("", HEADER)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_writer_is_not_copied(tmp_path: Path, again: Callable[[Any], Any]) -> None:
    """A copy would finish what the other one still writes, and what that puts would be lost."""
    with DumpWriter(tmp_path / "unit", HEADER) as writer:
        writer.put_entry("a", SCALAR)
        with pytest.raises(TypeError, match="cannot be copied"):
            again(writer)
        writer.put_entry("b", SCALAR)
    assert [*next(iter(msformat.open(tmp_path / "unit")))] == ["a", "b"]
