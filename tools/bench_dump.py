"""A real dump for ``make bench``: one step of the GPT of tools/gpt.py, every tensor of level mix.

``python tools/bench_dump.py {msprobe|capture} DUMP LAYERS [NUDGE]``, run as a script in the environment of the tool:
msprobe 8.1.0 where there is one (0.9 GB at four layers), else capture.pytorch with each tensor in a file of its own, as
msprobe writes it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

__all__ = ["make_dump"]


def make_dump(dump: Path, layers: int, peer: str, nudge: float = 0.0) -> str:
    """Write it, with the Python of the peer where that is there; the name of the tool that wrote it.

    Parameters
    ----------
    nudge
        Relative noise on every weight, so that hardly a tensor is what it is in a dump without it.
    """
    tool = "msprobe" if Path(peer).exists() else "capture"
    python = peer if tool == "msprobe" else sys.executable
    command = [python, str(Path(__file__)), tool, str(dump), str(layers), str(nudge)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=dump.parent)
    if done.returncode or not (dump / "step0").exists():
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return "msprobe 8.1.0" if tool == "msprobe" else "capture.pytorch without links"


def main() -> int:
    """Train one step under the tool."""
    tool, dump, layers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    nudge = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    import torch
    from gpt import Training

    torch.set_num_threads(2)
    config: dict[str, object] = {"task": "tensor", "level": "mix", "dump_path": str(dump), "rank": [], "step": [0]}
    config |= {"tensor": {"scope": [], "list": [], "data_mode": ["all"]}}
    if tool == "capture":
        config |= {"storage": {"links": False}}
    file = dump.with_name(f"{dump.name}.json")
    file.write_text(json.dumps(config))
    if tool == "msprobe":
        from msprobe.pytorch import PrecisionDebugger
    else:
        from capture.pytorch import PrecisionDebugger
    debugger = PrecisionDebugger(config_path=str(file))
    training = Training(debugger, layers=layers)
    with torch.no_grad():
        for weight in training.model.parameters():
            weight.mul_(1 + nudge * torch.randn_like(weight))
    training.step()
    if tool == "capture":
        debugger.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
