"""Dumps for the tests of pages: a small network by hand, good or with a fault, and names that nobody should trust."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.reader_dumps import record, write_tensor, write_unit

BLOCK = "Module.layers.0.Block.forward.0"
NORM = "Module.layers.0.norm.LayerNorm.forward.0"
CALL = "Functional.layer_norm.0.forward"
HEAD = "Module.head.Linear.forward.0"
GRADIENT = "Module.head.Linear.parameters_grad"
PARENTS: dict[str, str | None] = {BLOCK: None, NORM: BLOCK, CALL: NORM, HEAD: None}
FRAMES = ["File model.py, line 7, in forward, \n x = self.norm(x)", "File train.py, line 3, in <module>, \n net(x)"]

# Markup, an end of the script block, separators of lines that JSON has and old JavaScript had not, marks that turn the
# direction of writing, quotes, an escape sequence, half a surrogate pair.
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "\u2028\u2029",
    "\u202egnp.exe\u2066",
    "\"'`&amp;${1}@data@",
    "\x1b[31mred\x07",
    "\ud83d",
    "שלום",
)


def numbers(high: float, low: float, mean: float, norm: float) -> dict[str, float]:
    """Statistics of a record."""
    return {"Max": high, "Min": low, "Mean": mean, "Norm": norm}


def slots(inputs: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """A call with one input and one output."""
    return {"input_args": [inputs], "input_kwargs": {}, "output": [output], "is_recompute": False}


def write_network(root: Path, *, steps: int = 1, fault: float = 1.0, dtype: str = "float32") -> Path:
    """A block with a norm in it, and a head. ``fault`` scales what the norm gives, NaN included."""
    for step in range(steps):
        x = np.linspace(-1, 1, 12, dtype=dtype).reshape(3, 4) * (1 + step)
        y = (x * 2 * fault).astype(dtype)
        tensors = {
            f"{CALL}.input.0.npy": x, f"{CALL}.output.0.npy": y, f"{NORM}.input.0.npy": x, f"{NORM}.output.0.npy": y,
            f"{BLOCK}.input.0.npy": x, f"{BLOCK}.output.0.npy": y, f"{HEAD}.input.0.npy": y,
            f"{HEAD}.output.0.npy": y + 1, f"{GRADIENT}.weight.npy": y * 0.5,
        }  # fmt: skip
        unit = root / f"step{step}" / "rank0"
        # Modules are written when they are done: after what runs inside them.
        data = {
            key: slots(*(_record(tensors, f"{key}.{side}.0.npy") for side in ("input", "output")))
            for key in (CALL, NORM, BLOCK, HEAD)
        }
        data[GRADIENT] = {"weight": [_record(tensors, f"{GRADIENT}.weight.npy")]}
        write_unit(unit, data)
        (unit / "construct.json").write_text(json.dumps(PARENTS))
        (unit / "stack.json").write_text(json.dumps({"0": [[CALL, NORM, BLOCK, HEAD], FRAMES]}))
        for name, values in tensors.items():
            write_tensor(unit, name, values)
    return root


def _record(tensors: Mapping[str, np.ndarray], name: str) -> dict[str, Any]:
    values = tensors[name]
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean, norm = float(wide.mean()), math.sqrt(float((wide * wide).sum()))
    found = numbers(float(values.max()), float(values.min()), mean, norm)
    return record(values, name, **found)


def write_hostile(root: Path) -> Path:
    """A unit in which every name, path, type and frame is hostile."""
    value = record(np.zeros(2, np.float32), None, **numbers(1.0, -1.0, 0.0, 1.0))
    data = {
        f"Module.{text}.{text}.forward.0": slots({**value, "dtype": text}, {"__typed": {text: value}, text: value})
        for text in HOSTILE
    }
    write_unit(root / "step0" / "rank0", data, framework=HOSTILE[0], level=HOSTILE[1], task=HOSTILE[2])
    keys = list(data)
    (root / "step0" / "rank0" / "construct.json").write_text(
        json.dumps({keys[0]: None, **dict.fromkeys(keys[1:], keys[0])})
    )
    (root / "step0" / "rank0" / "stack.json").write_text(json.dumps({"0": [keys, list(HOSTILE)]}))
    return root


class Parsed(HTMLParser):
    """What a browser would see in a page: elements with their attributes, and the texts of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._is_open = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        self._is_open = True

    def handle_endtag(self, tag: str) -> None:
        self._is_open = False

    def handle_data(self, data: str) -> None:
        if self._is_open:
            self.texts[-1] += data

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and text of each element with a tag."""
        found = zip(self.elements, self.texts, strict=True)
        return [(attributes, text) for (name, attributes), text in found if name == tag]

    def data(self) -> dict[str, Any]:
        """The JSON blocks by their id."""
        scripts = self.all("script")
        blocks = [(attributes["id"], text) for attributes, text in scripts if attributes.get("type")]
        return {str(name): json.loads(text, parse_constant=_no_constant) for name, text in blocks}


def _no_constant(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON that a browser reads")
