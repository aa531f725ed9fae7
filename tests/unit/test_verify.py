"""Verify: every kind of damage is named, and nothing is named that is whole."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

from msformat.atomic import temporary_sibling
from msformat.convert import convert
from msformat.dtypes import dtype_named
from msformat.errors import FormatError, StoreError
from msformat.model import Header
from msformat.verify import VerifyReport, verify
from msformat.writer import DumpWriter
from tests.judges import judge
from tests.small_dumps import record, write_document, write_tree, write_unit

torch = judge("torch")

NAME = "Functional.relu.1.forward.output.0.npy"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "dump", ["step0/rank"])


def _unit(dump: Path) -> Path:
    return dump / "step0" / "rank"


def _problem(report: VerifyReport, *parts: str) -> str:
    """The only problem there is, which says all of this."""
    texts = report.problems + [text for unit in report.units for text in unit.problems]
    assert report.exit_code == 1
    assert len(texts) == 1, texts
    assert all(part in texts[0] for part in parts), texts[0]
    return texts[0]


def _change(dump: Path, change: Any, name: str = "dump.json") -> None:
    document = json.loads((_unit(dump) / name).read_text())
    change(document)
    write_document(_unit(dump) / name, document)


def _tensor(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["data"]["Functional.relu.1.forward"]["output"][0]
    return found


def test_a_whole_dump_has_no_problem(dump: Path) -> None:
    report = verify(dump)
    assert report.exit_code == 0
    (unit,) = report.units
    assert (unit.key, unit.entries, unit.tensors, unit.checked) == ("step0/rank", 3, 3, 144)
    assert verify(dump, deep=False).units[0].checked == 0
    json.dumps(report.as_json(), allow_nan=False)


def test_a_missing_tensor(dump: Path) -> None:
    (_unit(dump) / "dump_tensor_data" / NAME).unlink()
    _problem(verify(dump), NAME, "Functional.relu.1.forward", "missing")


def test_a_tensor_no_entry_names(dump: Path) -> None:
    np.save(_unit(dump) / "dump_tensor_data" / "stray.npy", np.zeros(3))
    _problem(verify(dump, deep=False), "stray.npy", "no entry")


@pytest.mark.parametrize("deep", [True, False])
def test_another_shape_or_type_than_the_document_says(dump: Path, deep: bool) -> None:
    _change(dump, lambda document: _tensor(document).update(shape=[4, 3]))
    _problem(verify(dump, deep=deep), NAME, "[3, 4]", "[4, 3]")
    _change(dump, lambda document: _tensor(document).update(shape=[3, 4], dtype="torch.int32"))
    _problem(verify(dump, deep=deep), NAME, "float32", "torch.int32")


@pytest.mark.parametrize(("declared", "stored"), [("BFloat16", "float32"), ("torch.float8_e5m2", "uint8")])
def test_a_type_that_npy_cannot_say_is_no_mismatch(tmp_path: Path, declared: str, stored: str) -> None:
    unit = write_unit(tmp_path / "d" / "step0" / "rank", {"a.0.forward": np.zeros(2, stored)})
    document = json.loads((unit / "dump.json").read_text())
    document["data"]["a.0.forward"]["output"][0]["dtype"] = declared
    write_document(unit / "dump.json", document)
    assert verify(tmp_path / "d").exit_code == 0


def test_a_cut_file(dump: Path) -> None:
    path = _unit(dump) / "dump_tensor_data" / NAME
    path.write_bytes(path.read_bytes()[:-3])
    _problem(verify(dump), NAME)


def test_one_flipped_bit_in_a_store_with_digests(dump: Path, tmp_path: Path) -> None:
    convert(dump, tmp_path / "one.h5")
    with h5py.File(tmp_path / "one.h5", "r+") as file:
        dataset = file["step0/rank/tensors"][NAME]
        values = dataset[...]
        values.view(np.uint32)[0, 0] ^= 1
        dataset[...] = values
    _problem(verify(tmp_path / "one.h5"), NAME, "digest")
    assert verify(tmp_path / "one.h5", deep=False).exit_code == 0
    assert verify(tmp_path / "one.h5").units[0].digests == 3


def test_the_checksum_of_the_document(tmp_path: Path) -> None:
    unit = tmp_path / "d" / "step0" / "rank"
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_unit(unit, {"a.0.forward": values, "b.0.forward": values + 1, "c.0.forward": values + 2})
    half = torch.arange(6, dtype=torch.bfloat16)
    torch.save(half, unit / "dump_tensor_data" / "h.pt")
    document = json.loads((unit / "dump.json").read_text())
    data = document["data"]
    data["a.0.forward"]["output"][0]["md5"] = f"{zlib.crc32(values.tobytes()):08x}"
    data["b.0.forward"]["output"][0]["md5"] = "00000000"
    # The xor of 26.2.0 is another algorithm, and an MD5 too: not compared.
    data["c.0.forward"]["output"][0]["md5"] = "0x0123456789abcdef"
    # bfloat16 is widened first (format page, section 2); numpy and ml_dtypes do it here.
    widened = half.view(torch.int16).numpy().view(ml_dtypes.bfloat16).astype(np.float32)
    entry = record(np.zeros(6, np.float32), "h.pt", md5=f"{zlib.crc32(widened.tobytes()):08x}")
    data["h.0.forward"] = {"output": [{**entry, "dtype": "torch.bfloat16"}]}
    write_document(unit / "dump.json", document)
    report = verify(tmp_path / "d")
    _problem(report, "b.0.forward", "00000000", f"{zlib.crc32((values + 1).tobytes()):08x}")
    assert report.units[0].checksums == 3


def test_documents_that_are_damaged_or_of_a_strange_form(dump: Path) -> None:
    path = _unit(dump) / "dump.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-300])
    report = verify(dump)
    assert report.exit_code == 1
    assert any("whole entries" in text for text in report.units[0].problems)
    path.write_bytes(whole)
    _change(dump, lambda document: document.update(a="b"), "construct.json")
    assert verify(dump).exit_code == 0
    _change(dump, lambda document: document.update(a=[1]), "construct.json")
    _problem(verify(dump), "construct.json", "/a")
    (_unit(dump) / "construct.json").write_text("{}")
    (_unit(dump) / "stack.json").write_text('{"0": [["a"], ["File"]')
    _problem(verify(dump), "stack.json")


def test_an_entry_that_follows_no_schema(dump: Path) -> None:
    _change(dump, lambda document: document["data"].update(odd={"output": [{"type": "int"}]}))
    _problem(verify(dump), "/data/odd")


def test_a_dump_that_was_never_finished(tmp_path: Path) -> None:
    unit = tmp_path / "d" / "step0" / "rank"
    writer = DumpWriter(unit, Header("tensor", "L1", "pytorch"))
    writer.put_tensor("x.npy", np.zeros(3, np.float32), dtype_named("float32"))
    writer.put_entry("a.0.forward", {"output": [record(np.zeros(3, np.float32), "x.npy")]})
    writer.commit()
    _problem(verify(tmp_path / "d"), "still being written")
    writer.close()
    _problem(verify(tmp_path / "d"), "never finished", "1 entries")


def test_what_unfinished_runs_left(dump: Path) -> None:
    left = temporary_sibling(_unit(dump))
    Path(left).mkdir()
    _problem(verify(dump), left)
    Path(left).rmdir()
    inside = temporary_sibling(_unit(dump) / "dump_tensor_data" / NAME)
    Path(inside).touch()
    _problem(verify(dump), inside)


def test_what_an_unfinished_run_left_beside_a_file(dump: Path, tmp_path: Path) -> None:
    convert(dump, tmp_path / "one.h5")
    Path(temporary_sibling(tmp_path / "other.h5")).touch()
    assert verify(tmp_path / "one.h5").exit_code == 0
    left = temporary_sibling(tmp_path / "one.h5")
    Path(left).touch()
    _problem(verify(tmp_path / "one.h5"), left)


def test_nothing_readable_is_exit_code_2(dump: Path, tmp_path: Path) -> None:
    convert(dump, tmp_path / "one.h5")
    unit = tmp_path / "h5" / "step0" / "rank"
    unit.mkdir(parents=True)
    (unit / "dump.h5").write_bytes((tmp_path / "one.h5").read_bytes()[:2000])
    report = verify(tmp_path / "h5")
    assert report.exit_code == 2
    assert report.units[0].problems
    with pytest.raises(FormatError):
        verify(tmp_path)
    with pytest.raises(StoreError):
        verify(tmp_path / "nothing")
