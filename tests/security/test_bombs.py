"""Small files that unpack to more than there is: refused by size, named, and the rest goes on."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from msformat import room
from msformat.cli import main
from msformat.errors import UnsafeInputError
from tests.judges import judge
from tests.small_dumps import write_tree

zarr = judge("zarr")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.err


@pytest.fixture(params=["out.h5", "out.zarr"])
def container(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Two units in one container."""
    target = tmp_path / str(request.param)
    assert run(capsys, "convert", write_tree(tmp_path / "dump"), target)[0] == 0
    return target


def blanks(container: Path, count: int) -> None:
    """Replace a document by blanks, which pack like nothing else."""
    unit = "step0/rank/documents"
    if container.suffix == ".h5":
        with h5py.File(container, "a") as file:
            del file[unit]["dump.json"]
            piece = np.full(1 << 20, 32, np.uint8)
            made = file[unit].create_dataset(
                "dump.json", (count,), "u1", chunks=(min(count, 1 << 20),), compression="gzip"
            )
            for start in range(0, count, 1 << 20):
                made[start : start + (1 << 20)] = piece[: count - start]
        return
    group = zarr.open_group(container, path=unit)
    array = group.create_array(
        "dump.json", shape=(count,), chunks=(min(count, 8 << 20),), dtype="u1", overwrite=True,
        compressors=[zarr.codecs.ZstdCodec(level=1)],
    )  # fmt: skip
    array[:] = 32


def test_a_document_that_packs_like_no_text(container: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blanks(container, 80 << 20)
    for command in ("info", "verify", "ls"):
        code, err = run(capsys, command, container)
        assert code == 1
        assert "dump.json" in err
        assert f"unpack to {80 << 20}" in err


def test_tensors_larger_than_memory_are_problems_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = write_tree(tmp_path / "dump", ["step0/rank"])
    key = "Functional.relu.1.forward"
    path = dump / "step0/rank/dump_tensor_data" / f"{key}.output.0.npy"
    np.save(path, np.zeros((300, 400), np.float32))
    document = dump / "step0/rank/dump.json"
    text = json.loads(document.read_text())
    text["data"][key]["output"][0]["shape"] = [300, 400]
    document.write_text(json.dumps(text, indent=1))
    monkeypatch.setattr(room, "memory", lambda: 100_000)
    for arguments in (("verify", dump), ("convert", dump, tmp_path / "out.h5")):
        code, err = run(capsys, *arguments)
        assert code == 1
        assert path.name in err
        assert "480000 bytes do not fit into the 100000 bytes of memory here" in err
    with h5py.File(tmp_path / "out.h5") as file:
        assert len(file["step0/rank/tensors"]) == 2


def test_documents_of_a_dump_are_no_bombs() -> None:
    room.check_document(200 << 20, lambda: 1 << 20, "dump.json")
    room.check_document(1 << 20, lambda: 0, "dump.json")
    with pytest.raises(UnsafeInputError, match=r"dump\.json: 1000 stored bytes unpack to"):
        room.check_document(200 << 20, lambda: 1000, "dump.json")


def test_memory_is_known_here() -> None:
    found = room.memory()
    assert found is not None
    assert found > 1 << 28
