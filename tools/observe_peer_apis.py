"""Makes capture/pytorch/api_names.json: the API functions that msprobe replaces, seen by watching it do so.

Run it with the Python of an environment in which msprobe 8.1.0 is installed; it needs nothing of this project::

    .venv-peer/bin/python tools/observe_peer_apis.py capture/pytorch/api_names.json

Every attribute of PyTorch is noted before and after a ``PrecisionDebugger`` is made and started. What changed is listed
by the prefix that the peer gives its names and by the place where the attribute stands; ``other`` are replacements that
record nothing by themselves. A file that is there already is added to, so that runs under several versions of PyTorch
join their names.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed.distributed_c10d

# What ``torch._VF`` offers is looked up on demand, so it is asked for the names that stand behind it.
BEHIND = {"torch._VF": torch._C._VariableFunctions}


def _places() -> dict[str, Any]:
    modules = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "torch"}
    return {n: m for n, m in modules.items() if isinstance(m, types.ModuleType)} | {"torch.Tensor": torch.Tensor}


def _attributes(name: str, place: Any) -> dict[str, Any]:
    names = dir(BEHIND[name]) if name in BEHIND else dir(place) if isinstance(place, type) else list(vars(place))
    return {attribute: getattr(place, attribute, None) for attribute in names}


def _snapshot() -> dict[str, dict[str, Any]]:
    return {name: _attributes(name, place) for name, place in _places().items()}


def _prefix(function: Any) -> str | None:
    """The prefix under which a replacement records: it is bound in its closure, beside the name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells["prefix"].cell_contents if "prefix" in cells else None


def _replaced(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for place, attributes in after.items():
        for name, value in attributes.items():
            old = before.get(place, {}).get(name)
            if isinstance(value, types.FunctionType) and value is not old and "msprobe" in value.__module__:
                prefix = _prefix(value) or "other"
                found.setdefault(prefix, {}).setdefault(place, []).append(name)
    return found


def _run_peer() -> None:
    from msprobe.pytorch import PrecisionDebugger

    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        settings = {"task": "statistics", "dump_path": folder, "rank": [], "step": [], "level": "mix", "statistics": {}}
        config.write_text(json.dumps(settings))
        debugger = PrecisionDebugger(config_path=str(config))
        debugger.start(torch.nn.Linear(2, 2))
        debugger.stop()


def _join(one: dict[str, dict[str, list[str]]], other: dict[str, dict[str, list[str]]]) -> dict[str, Any]:
    prefixes = sorted(one.keys() | other.keys())
    return {
        prefix: {
            place: sorted({*one.get(prefix, {}).get(place, ()), *other.get(prefix, {}).get(place, ())})
            for place in sorted(one.get(prefix, {}).keys() | other.get(prefix, {}).keys())
        }
        for prefix in prefixes
    }


def main() -> None:
    """Write what the peer of this environment replaces to the file named as the argument."""
    target = Path(sys.argv[1])
    before = _snapshot()
    _run_peer()
    replaced, torches = _replaced(before, _snapshot()), [torch.__version__.partition("+")[0]]
    if target.exists():
        earlier = json.loads(target.read_text())
        replaced, torches = _join(replaced, earlier["replaced"]), sorted({*torches, *earlier["torch"]})
    found = {
        "msprobe": importlib.metadata.version("mindstudio-probe"),
        "torch": torches,
        "replaced": _join(replaced, {}),
    }
    target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
