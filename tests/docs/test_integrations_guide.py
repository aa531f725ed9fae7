"""Every command and every example of docs/integrations.md runs."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import msformat

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "integrations.md"
# What an example takes for granted.
TRAININGS = {
    "transformers": """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
rows = [{"input_ids": row, "labels": row} for row in torch.arange(24).reshape(4, 6)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0))
arguments = TrainingArguments("out", max_steps=2, use_cpu=True, report_to=[], save_strategy="no")
""",
    "lightning": """
import torch
from lightning.pytorch import LightningModule
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
lightning_module, loader = Net(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)
""",
    "mindspore": """
import numpy as np
from mindspore import nn
from mindspore.dataset import GeneratorDataset
rows = [(np.ones((4,), np.float32), np.ones((1,), np.float32)) for _ in range(4)]
dataset = GeneratorDataset(rows, ["data", "label"]).batch(2)
net, loss = nn.SequentialCell(nn.Dense(4, 1)), nn.MSELoss()
optimizer = nn.SGD(net.trainable_params())
""",
}
TRAIN = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
PREDICT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
with torch.inference_mode():
    for _ in range(3):
        model(torch.ones(2, 4))
"""
# Where a command puts its dump, and its steps.
DUMPS = {
    "dump": [0, 1, 2, 3],
    "captured-mix": [0, 2, 3],
    "captured-module": [0, 1, 2, 3],
    "captured-ranks": [0, 1, 2, 3],
    "captured-inference": [0, 1, 2],
}


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for kind, text in fenced if kind == language]


def run(place: Path, command: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"task": "statistics", "level": "L0", "dump_path": "dump"}')
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "predict.py").write_text(PREDICT)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize("library", TRAININGS)
def test_each_callback(place: Path, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    (code,) = [block for block in blocks("python") if f"from {library}" in block]
    run(place, [sys.executable, "-c", TRAININGS[library] + code])
    with msformat.open(place / "dump") as dump:
        assert [unit.key.step for unit in dump] == [0, 1]
        assert all(unit.complete and len(unit) for unit in dump)


def test_each_command(place: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    lines = [line for block in blocks("") for line in block.splitlines()]
    assert len(lines) == len(DUMPS)
    programs = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
    for line, (path, steps) in zip(lines, DUMPS.items(), strict=True):
        name, *arguments = shlex.split(line)
        run(place, [*programs[name], *arguments])
        with msformat.open(place / path) as dump:
            assert sorted({unit.key.step for unit in dump}) == steps
            assert all(unit.complete for unit in dump)
