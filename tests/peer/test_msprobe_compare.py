"""The real msprobe 8.1.0, in an environment of its own, judges what we export (``make test-peer``)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

READ_RESULT = """
import glob, json, sys
import pandas
table = pandas.read_excel(glob.glob(sys.argv[1] + "/compare_result_*.xlsx")[0])
print(json.dumps(table.astype(object).where(table.notna(), None).to_dict("records")))
"""


def msformat(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "msformat", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def compare(peer_python: str, ours: Path, original: Path, out: Path) -> list[dict[str, object]]:
    """Rows of ``msprobe compare`` of two units."""
    config = out.with_suffix(".json")
    config.write_text(
        json.dumps(
            {
                "npu_path": str(ours / "dump.json"),
                "bench_path": str(original / "dump.json"),
                "stack_path": str(ours / "stack.json"),
                "is_print_compare_log": False,
            }
        )
    )
    command = [Path(peer_python).with_name("msprobe"), "-f", "pytorch", "compare", "-i", config, "-o", out, "-s"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert "ends successfully" in done.stdout + done.stderr, done.stdout + done.stderr
    read = subprocess.run([peer_python, "-c", READ_RESULT, str(out)], capture_output=True, text=True, check=True)
    rows: list[dict[str, object]] = json.loads(read.stdout)
    return rows


def saved_names(rows: list[dict[str, object]]) -> set[str]:
    return {str(row["NPU Name"]) for row in rows if row["Data_name"] and ".pt" in str(row["Data_name"])}


@pytest.mark.parametrize("way", ["hdf5", "zarr"])
@pytest.mark.parametrize("name", ["torch_8.1.0_mix_tensor", "torch_8.1.0_L0_tensor", "torch_8.1.0_L1_tensor"])
def test_msprobe_finds_every_exported_tensor_equal(
    golden: Callable[[str], Path], tmp_path: Path, peer_python: str, name: str, way: str
) -> None:
    original = golden(name)
    msformat("convert", original, tmp_path / "stored", "--to", way)
    msformat("convert", tmp_path / "stored", tmp_path / "exported", "--to", "files")
    # msprobe's own second step at L1 came out empty, which it refuses to compare.
    steps = [step for step in ("step0", "step1") if (original / step / "rank" / "dump_tensor_data").is_dir()]
    assert steps
    for step in steps:
        rows = compare(peer_python, tmp_path / "exported" / step / "rank", original / step / "rank", tmp_path / step)
        assert len(saved_names(rows)) > 10
        for row in rows:
            if row["Cosine"] != "unsupported":  # msprobe gives no cosine for 0-d and non-float tensors
                assert row["Cosine"] == 1, row
            assert row["MaxAbsErr"] in (0, "unsupported"), row
            assert row["Accuracy Reached or Not"] in ("Yes", None), row
        assert any(row["Accuracy Reached or Not"] == "Yes" for row in rows)


def test_the_judge_sees_a_planted_difference(golden: Callable[[str], Path], tmp_path: Path, peer_python: str) -> None:
    original = golden("torch_8.1.0_L0_tensor")
    msformat("convert", original, tmp_path / "exported", "--to", "files", "--no-links")
    unit = tmp_path / "exported" / "step0" / "rank"
    victim = next(iter(sorted((unit / "dump_tensor_data").glob("Module.norm.*.forward.*.output.0.pt"))))
    torch.save(torch.load(victim) + 1.0, victim)
    rows = compare(peer_python, unit, original / "step0" / "rank", tmp_path / "planted")
    unequal = [row for row in rows if row["MaxAbsErr"] not in (0, "unsupported")]
    assert [row["NPU Name"] for row in unequal] == [victim.name.removesuffix(".pt")]


@pytest.mark.parametrize("dialect", ["8.1"])
@pytest.mark.parametrize("source", ["torch_1.2.2_L0_tensor", "torch_26.2.0_L0_tensor"])
def test_msprobe_reads_other_versions_after_translation(
    golden: Callable[[str], Path], tmp_path: Path, peer_python: str, source: str, dialect: str
) -> None:
    msformat("convert", golden(source), tmp_path / "exported", "--to", "files", "--dialect", dialect)
    unit = tmp_path / "exported" / "step0" / "rank"
    rows = compare(peer_python, unit, unit, tmp_path / "result")
    assert len(rows) > 20
    assert all(row["MaxAbsErr"] in (0, "unsupported") for row in rows)


def test_msprobe_and_we_agree_on_crc32(golden: Callable[[str], Path]) -> None:
    """The ``md5`` field of msprobe's own md5 dump is what our canonical CRC-32 gives on the tensor dump's data."""
    from msformat.digest import canonical_crc32
    from msformat.dtypes import parse_dtype

    with_data = json.loads((golden("torch_8.1.0_mix_tensor") / "step0/rank/dump.json").read_text())["data"]
    with_md5 = json.loads((golden("torch_8.1.0_mix_md5") / "step0/rank/dump.json").read_text())["data"]
    key = "Functional.embedding.0.forward"
    for meta, wanted in zip(with_data[key]["input_args"][:2], with_md5[key]["input_args"][:2], strict=True):
        tensor = torch.load(golden("torch_8.1.0_mix_tensor") / "step0/rank/dump_tensor_data" / meta["data_name"])
        dtype = parse_dtype(meta["dtype"])
        assert dtype is not None
        assert canonical_crc32(np.asarray(tensor.detach().numpy()), dtype) == wanted["md5"]
