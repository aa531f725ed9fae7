"""Looks at the configuration before the program begins, in a process of its own: the program's has no numpy yet."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from capture.config import load_config
from capture.earlier import refuse_earlier
from capture.errors import CaptureError

__all__ = ["main"]


def main(given: dict[str, Any]) -> int:
    """Print where the dump goes, as JSON, or what is wrong.

    Returns
    -------
    int
        Exit code: 0, or 2.
    """
    try:
        config = load_config(**given)
        if config.level in ("debug", "L2"):
            records = {"debug": "only what the program hands to save()", "L2": "kernels"}[config.level]
            raise CaptureError(f"level {config.level} records {records}: edit the script and use PrecisionDebugger")
        if not config.storage.overwrite and not _is_restart():
            refuse_earlier(
                Path(config.dump_path), _rank_name(), lambda step: config.steps is None or step in config.steps
            )
    except CaptureError as error:
        print(error, file=sys.stderr)  # noqa: T201 (what the launcher shows)
        return 2
    print(json.dumps({"dump_path": config.dump_path}))  # noqa: T201
    return 0


def _rank_name() -> str:
    """As it will be, if the program joins the process group that its launcher prepared."""
    return f"rank{os.environ['RANK']}" if "RANK" in os.environ else "rank"


def _is_restart() -> bool:
    """Whether an elastic launcher started the program again: that must work, whatever lies there."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
