"""docs/config.md says what the code does: it is made from the code, and its examples load."""

from __future__ import annotations

import json
import re
from pathlib import Path

from capture.config import load_config
from capture.config_keys import INERT, KEYS, OTHER_TASKS, STORAGE_KEYS
from tools.config_reference import TARGET, reference


def test_the_page_is_up_to_date() -> None:
    assert TARGET.read_text("utf-8") == reference(), "run python -m tools.config_reference"


def test_every_key_is_on_the_page() -> None:
    text = TARGET.read_text("utf-8")
    for name in (*(key.name for key in (*KEYS, *STORAGE_KEYS, *INERT)), *OTHER_TASKS):
        assert f"| `{name}` |" in text


def test_its_example_loads(tmp_path: Path) -> None:
    (text,) = re.findall(r"```json\n(.*?)```", TARGET.read_text("utf-8"), re.DOTALL)
    path = tmp_path / "config.json"
    path.write_text(text)
    found = load_config(path)
    assert found.list == tuple(json.loads(text)["statistics"]["list"])
    assert (found.steps, found.storage.format, found.md5) == ({0, 10, 11, 12}, "zarr", True)
