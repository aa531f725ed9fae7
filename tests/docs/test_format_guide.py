"""The way to a tensor with zarr-python alone, as docs/format.md tells it, and as the store's docstring does."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import msformat.stores.zarr
from msformat.dtypes import dtype_named
from msformat.stores.zarr import ZarrStore

pytest.importorskip("zarr")

GUIDE = Path(__file__).resolve().parents[2] / "docs/format.md"
KEY = "Functional.relu.0.forward.input.0.pt"
TENSORS: dict[str, tuple[NDArray[Any], str]] = {
    "small": (np.arange(12, dtype=np.float32).reshape(3, 4), "float32"),
    "row": (np.arange(40_000, dtype=np.uint16).reshape(200, 200), "bfloat16"),
    "shard": (np.arange(3 << 20, dtype=np.float32).reshape(3, -1), "float32"),
}


def guide() -> str:
    (code,) = re.findall(
        r"^```python\n(import json.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(code)


def docstring() -> str:
    text = str(msformat.stores.zarr.__doc__)
    code = text[text.index("    unit = zarr.open_group") : text.index("\n\nwhere ``stored``")]
    start = "import json, numpy, zarr\nfrom math import prod\nstored = numpy.dtype('float32')\n"
    return start + textwrap.dedent(code).replace("DST.zarr", "dump.zarr").replace("step0/rank", "step0/rank0")


@pytest.mark.parametrize("code", [guide, docstring])
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: Any) -> None:
    bits, dtype = TENSORS[name]
    with ZarrStore(str(tmp_path / "dump.zarr"), mode="w", group="step0/rank0") as store:
        store.put_document("dump.json", b"{}")
        store.put("another", bits + 1, dtype_named(dtype))
        store.put(KEY, bits, dtype_named(dtype))
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(code(), scope)
    assert scope["bits"].dtype == bits.dtype
    assert np.array_equal(scope["bits"], bits)
