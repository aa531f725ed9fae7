"""A signal handler may call the debugger wherever it finds the training: in the middle of capture's own code, too.

Python calls handlers between instructions; a tracer does the same at a chosen one. In processes of their own, which a
deadlock would stop.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
import torch
from capture.pytorch import PrecisionDebugger

place, code, how, stride = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
debugger = PrecisionDebugger(dump_path=place, level="debug" if how == "save" else "mix", task="statistics")
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
data = torch.linspace(-1, 1, 6).reshape(2, 3)

def handle():
    if how == "save":
        debugger.save(data, "handler")
    else:
        debugger.stop()

def train():
    if how == "save":
        debugger.save([data, {"x": model[0].weight * 2}], "outer")
        return []
    debugger.start(model)
    model.zero_grad()
    model(data).sum().backward()
    return [parameter.grad.tolist() for parameter in model.parameters()]

def trace(frame, event, _):
    global reached
    if code in frame.f_code.co_filename:
        frame.f_trace_opcodes = True
        if event == "opcode":
            reached += 1
            if reached == wanted:
                sys.settrace(None)
                handle()
        return trace

wanted, reached = -1, 0
expected, tried = train(), -1
while reached >= wanted:
    debugger.stop()
    debugger.step()
    wanted, reached, tried = wanted + stride, 0, tried + 1
    sys.settrace(trace)
    found = train()
    sys.settrace(None)
    assert found == expected, wanted
print("tried", tried > 20)
"""


@pytest.mark.parametrize(
    ("how", "code", "stride"), [("save", "saving.py", 11), ("stop", "pytorch/modes.py", 7), ("stop", "capture/", 997)]
)
def test_the_training_goes_on(tmp_path: Path, how: str, code: str, stride: int) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "dump"), code, how, str(stride)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "tried True\n", done.stderr[-3000:]
