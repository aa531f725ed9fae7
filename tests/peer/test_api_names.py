"""What was once observed of the peer, and is kept in files, is what it still does."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


def _observed(peer_python: str, tool: str, kept: Path, target: Path) -> dict[str, object]:
    """The kept file and what the tool makes of it now."""
    shutil.copy(kept, target)
    done = subprocess.run(
        [peer_python, ROOT / "tools" / tool, target], cwd=target.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(target.read_text())
    return found


def test_the_functions_that_are_replaced(tmp_path: Path, peer_python: str) -> None:
    kept = ROOT / "capture" / "pytorch" / "api_names.json"
    expected = json.loads(kept.read_text())
    # A file that names nothing yet, so that nothing kept can hide what is gone.
    (tmp_path / "empty.json").write_text(json.dumps(expected | {"replaced": {}}))
    found = _observed(peer_python, "observe_peer_apis.py", tmp_path / "empty.json", tmp_path / "names.json")
    if torch.__version__.partition("+")[0] in expected["torch"]:
        assert found == expected


def test_the_names_of_statements(tmp_path: Path, peer_python: str) -> None:
    kept = ROOT / "tests" / "capture" / "pytorch" / "peer_names.json"
    assert _observed(peer_python, "observe_peer_names.py", kept, tmp_path / "names.json") == json.loads(
        kept.read_text()
    )
