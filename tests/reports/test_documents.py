"""Reports on documents that are written anew: strict JSON (R114) and gigabytes of it (R128)."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import msformat
from msformat import spool
from tests.reports.cases import call, plain_record, run, strict_json, write_documents

KEY = "Functional.f.0.forward"
NAN, INF = math.nan, math.inf


def not_finite() -> dict[str, Any]:
    """Entries with every number that JSON lacks, and with texts that only look like one."""
    value = {
        **call(plain_record(Max=NAN, Min=-INF, Mean=INF, Norm=None), plain_record(Max=1.0), [plain_record(Max=-INF)]),
        "input_kwargs": {
            "NaN": {"type": "float", "value": NAN},
            "text": {"type": "str", "value": 'a "NaN", -Infinity, NaN\\'},
            "slice": {"type": "slice", "value": [None, INF, -INF]},
        },
    }
    return {KEY: value, "Functional.NaN: NaN.0.forward": call(plain_record(Max=NAN)), "Functional.none.0.forward": None}


def spelled(value: Any) -> Any:
    """What strict JSON makes of a value, said without the code under test."""
    if isinstance(value, dict):
        return {key: spelled(part) for key, part in value.items()}
    if isinstance(value, list):
        return [spelled(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@pytest.mark.parametrize("name", ["o", "o.h5", "o.zarr"])
@pytest.mark.parametrize("indent", [1, None])
def test_r114_documents_in_strict_json(tmp_path: Path, name: str, indent: int | None) -> None:
    unit = write_documents(tmp_path / "d/step0/rank0", not_finite(), odd=NAN)
    plain = json.loads((unit / "dump.json").read_text())
    (unit / "dump.json").write_text(json.dumps(plain, indent=indent))
    (unit / "construct.json").write_text('{"NaN": null}')
    target = tmp_path / name
    assert run("convert", tmp_path / "d", target, "--strict-json").code == 0
    with msformat.open(target) as dump:
        text = bytes(dump[0].document("dump.json") or b"").decode()
        assert strict_json(text) == spelled(plain)
        assert text == json.dumps(spelled(plain), indent=indent)
        assert bytes(dump[0].document("construct.json") or b"") == b'{"NaN": null}'
    # Both spellings say the same to whoever asks for numbers, and a strict document is a good one.
    assert run("verify", target).code == 0
    for statistic in ("Max", "Min", "Mean", "Norm"):
        before, after = (msformat.open(place).table().numbers(statistic) for place in (tmp_path / "d", target))
        assert before.tolist() == pytest.approx(after.tolist(), nan_ok=True)
    done = run("diff", tmp_path / "d", target)
    assert done.code == 0, done.out
    # It stays so on the way on, and asked for twice it changes nothing.
    for options in ((), ("--strict-json",)):
        again = tmp_path / f"again{len(options)}"
        assert run("convert", target, again, *options).code == 0
        assert (again / "step0/rank0/dump.json").read_text() == text


def test_r114_a_document_of_finite_numbers_keeps_every_byte(tmp_path: Path) -> None:
    text = ' {"task":"tensor", "level" : "mix","framework":"pytorch","dump_data_dir":null,\n\n"data":{"NaN":null}}\n'
    unit = tmp_path / "d/step0/rank0"
    unit.mkdir(parents=True)
    (unit / "dump.json").write_text(text)
    assert run("convert", tmp_path / "d", tmp_path / "o", "--strict-json").code == 0
    assert (tmp_path / "o/step0/rank0/dump.json").read_text() == text


def test_r128_what_is_made_in_pieces_lies_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_IN_MEMORY", 1 << 20)

    def pieces() -> Iterator[bytes]:
        yield from (bytes([number]) * (1 << 18) for number in range(200))

    tracemalloc.start()
    try:
        found = spool.spooled(pieces(), str(tmp_path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert list(tmp_path.iterdir()) == []  # it has no name
    assert len(found) == 200 << 18
    assert all(found[number << 18] == found[((number + 1) << 18) - 1] == number for number in range(200))
    with pytest.raises(FileNotFoundError):
        spool.spooled(pieces(), str(tmp_path / "missing"))


@pytest.mark.parametrize("name", ["o", "o.h5", "o.zarr"])
@pytest.mark.parametrize("options", [("--dialect", "26"), ("--filter", "Functional"), ("--strict-json",)])
def test_r128_a_document_that_is_written_anew(
    tmp_path: Path, name: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On disk meanwhile, it is the same as in memory."""
    entries = {
        f"Functional.f.{number}.forward": {**call(plain_record(Max=NAN)), "is_recompute": False} for number in range(50)
    }
    write_documents(tmp_path / "d/step0/rank0", {**entries, "Module.a.A.parameters_grad": {"w": [plain_record()]}})
    texts = []
    for limit in (64 << 20, 100):
        monkeypatch.setattr(spool, "_IN_MEMORY", limit)
        target = tmp_path / str(limit) / name
        done = run("convert", tmp_path / "d", target, *options)
        assert done.code == 0, done.err
        texts.append(bytes(msformat.open(target)[0].document("dump.json") or b""))
        assert [path.name for path in target.parent.iterdir()] == [name]
    assert texts[0] == texts[1]
    assert texts[0] != (tmp_path / "d/step0/rank0/dump.json").read_bytes()
