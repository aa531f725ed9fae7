"""Writes docs/config.md from the tables that the configuration is read with: ``python -m tools.config_reference``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from capture.config_keys import INERT, KEYS, OTHER_TASKS, STORAGE_KEYS, Inert, Key
from msformat.atomic import write_atomic

TARGET = Path(__file__).parents[1] / "docs" / "config.md"

_HEAD = """\
# Configuration of capture

`PrecisionDebugger(config_path="config.json")` reads this file; a `config.json` of msprobe 8.1.0 or 26.2.0 works as it
is. Arguments of the constructor win over the file, and without a file the defaults hold. A mistake is a `CaptureError`
that names the file and the key, before anything is recorded.

```json
{
    "task": "statistics",
    "dump_path": "./dump",
    "level": "mix",
    "rank": [],
    "step": [0, "10-12"],
    "storage": {"format": "zarr"},
    "statistics": {"list": ["Module.encoder."], "summary_mode": "md5"}
}
```

This page is made by `python -m tools.config_reference`; change `capture/config_keys.py` instead.
"""

_RULES = """\
## What does not go together

| | |
|---|---|
| `level: L2` with `task: structure`, with `scope`, or for an API with another task than `tensor` | refused |
| `level: L2` with PyTorch, and no or several names in `list`, or one that is no entry name of an API | refused |
| `level: L2` with MindSpore | an entry name of an API in `list`: PyNative mode, as above; else: static graphs |
| `level: L2` in static graphs, with `forward` or `backward` in `data_mode`, a `name-regex` that is none, or a \
`dump_path` with other characters than `A-Z a-z 0-9 - _ /` | refused: MindSpore would end the training over it |
| a list as `summary_mode` at another level than L2 | refused |
| `file_format`, `device`, `storage.kernels` at another level than L2 | no effect, said once |
| `task: structure` with `level: debug` or `summary_mode: md5` | refused: it records no values |
| `task: structure` with `level: L1` | recorded at `mix`, as msprobe does: at L1 there is no tree |
| `tensor_list` with a task other than `statistics` | refused |
| `scope`, `list`, `tensor_list`, `data_mode` at `level: debug` | no effect, said once: `save` says what is recorded |
| `risk_level` beside `scope` or `list`, or at a level without APIs | no effect, said once |
| `scope` with anything but two entry names that the level records | refused |
| `storage.compression` with `format: files` | refused |
| a key twice, an unknown key, a key in the wrong place | refused, with the nearest known key |
| `rank` in a run of one process | nothing is recorded there, said at the start |
"""


def reference() -> str:
    """The page."""
    parts = [
        _HEAD,
        "## Beside the task\n\n" + _table(key for key in KEYS if key.place == "top"),
        "## In the object of the task\n\n"
        'As in `"statistics": {"list": ["relu"]}`. Only the object of the task in use is read. As arguments of the '
        "constructor these stand beside the others.\n\n" + _table(key for key in KEYS if key.place == "task"),
        "## `storage`\n\n" + _table(STORAGE_KEYS),
        _RULES,
        "## Other tools of msprobe\n\nTheir objects in the file are passed over; as `task` they are refused:\n\n"
        + _rows(("task", "instead"), ((f"`{task}`", text) for task, text in OTHER_TASKS.items())),
        "## Keys of msprobe that are not followed\n\n" + _rows(("key", "why", "with a value"), map(_inert, INERT)),
    ]
    return "\n".join(parts)


def _table(keys: Iterable[Key]) -> str:
    return _rows(("key", "value", "default", "meaning"), map(_row, keys))


def _row(key: Key) -> tuple[str, ...]:
    return f"`{key.name}`", key.kind, key.default_text or f"`{json.dumps(key.default)}`", key.meaning


def _inert(inert: Inert) -> tuple[str, ...]:
    harmless = ", ".join(f"`{json.dumps(value)}`" for value in inert.harmless)
    otherwise = "passed over" if inert.anything else "refused" if inert.refused else "noted in the log"
    return f"`{inert.name}`", inert.reason, f"{otherwise}, but for {harmless}" if harmless else otherwise


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main() -> int:
    """Write the page."""
    write_atomic(TARGET, reference().encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
