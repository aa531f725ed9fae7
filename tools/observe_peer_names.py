"""Records the names that msprobe gives to expressions, for tests/capture/pytorch/peer_names.json.

Run it with the Python of an environment in which msprobe 8.1.0 is installed::

    .venv-peer/bin/python tools/observe_peer_names.py tests/capture/pytorch/peer_names.json

The file holds the statements and what came of them at level L1; the statements are read from it and their entry keys
written back, so a new statement is added by writing it with an empty list.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch


def namespace(setup: str) -> dict[str, Any]:
    """Variables that a statement finds, made anew for each, by the code that the file keeps."""
    torch.manual_seed(0)
    variables: dict[str, Any] = {}
    exec(setup, variables)
    return variables


def observe(setup: str, statements: list[str]) -> dict[str, list[str]]:
    """Entry keys that the peer writes for each statement, each in a step of its own."""
    from msprobe.pytorch import PrecisionDebugger

    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        settings = {"task": "statistics", "dump_path": folder, "rank": [], "step": [], "level": "L1", "statistics": {}}
        config.write_text(json.dumps(settings))
        debugger = PrecisionDebugger(config_path=str(config))
        for statement in statements:
            variables = namespace(setup)
            debugger.start()
            exec(statement, variables)
            debugger.stop()
            debugger.step()
        return {text: _keys(Path(folder) / f"step{number}") for number, text in enumerate(statements)}


def _keys(step: Path) -> list[str]:
    documents = list(step.rglob("dump.json"))
    return list(json.loads(documents[0].read_text())["data"]) if documents else []


def main() -> None:
    """Write the names into the file given as the argument."""
    path = Path(sys.argv[1])
    table = json.loads(path.read_text())
    table["names"] = observe(table["setup"], list(table["names"]))
    path.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
