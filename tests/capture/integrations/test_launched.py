"""``python -m capture run`` on whole programs: they print and leave the same, and the dump is the edited one's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tests.capture.integrations.dumps import entries, steps

ROOT = str(Path(__file__).resolve().parents[3])
LAUNCHER = ["-m", "capture", "run"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

TRAIN = """
    import sys
    import torch
    from torch import nn
    {imports}

    def main(path):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        {debugger}
        for number in range(3):
            batch = torch.full((2, 4), number + 1.0)
            {start}
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            {stop}
            optimizer.zero_grad()
            print(number, loss.item())
        torch.save(model.state_dict(), path)
        sys.exit(7)

    if __name__ == "__main__":
        main(sys.argv[1])
"""
EDITS = {
    "imports": "from capture.pytorch import PrecisionDebugger",
    "debugger": 'debugger = PrecisionDebugger(config_path="edited.json")',
    "start": "debugger.start(model)",
    "stop": "debugger.stop(); debugger.step()",
}
DDP = """
    import torch
    from torch import nn

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        model(torch.full((2, 4), rank + 1.0)).sum().backward()
        optimizer.step()
    torch.distributed.destroy_process_group()
"""
FORKED = """
    import multiprocessing
    import torch
    from torch import nn

    def train():
        model = nn.Sequential(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
    print(process.exitcode)
"""


def run(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
    whole = [sys.executable, *command]
    return subprocess.run(whole, cwd=place, capture_output=True, text=True, check=False, env=variables)


def write(place: Path, name: str, program: str) -> None:
    (place / name).write_text(textwrap.dedent(program).strip() + "\n")


def test_a_program_trains_and_prints_the_same_and_its_dump_is_the_edited_one_s(tmp_path: Path) -> None:
    write(tmp_path, "train.py", TRAIN.format(**dict.fromkeys(EDITS, "")))
    write(tmp_path, "edited.py", TRAIN.format(**EDITS))
    for name in ("launched", "edited"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"level": "mix", "dump_path": f"dump_{name}"}))
    plain = run(tmp_path, "train.py", "plain.pt")
    launched = run(tmp_path, *LAUNCHER, "--capture", "launched.json", "train.py", "launched.pt")
    edited = run(tmp_path, "edited.py", "edited.pt")
    assert plain.returncode == launched.returncode == edited.returncode == 7
    assert launched.stdout == plain.stdout
    assert launched.stderr == f"capture run: 3 steps captured into {tmp_path / 'dump_launched'}\n"
    weights = [torch.load(tmp_path / f"{name}.pt") for name in ("plain", "launched")]
    assert [value.numpy().tobytes() for value in weights[0].values()] == [
        value.numpy().tobytes() for value in weights[1].values()
    ]
    assert steps(tmp_path / "dump_launched") == steps(tmp_path / "dump_edited") == ["step0", "step1", "step2"]
    for step in range(3):
        found = entries(tmp_path / "dump_launched", step)
        assert found == entries(tmp_path / "dump_edited", step)
        assert {"Module.0.Linear.forward.0", "Functional.linear.1.backward"} <= set(found)


def test_each_process_of_torchrun_captures(tmp_path: Path) -> None:
    write(tmp_path, "train.py", DDP)
    done = run(tmp_path, *TORCHRUN, *LAUNCHER, "--level", "L0", "--dump-path", "dump", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("2 steps captured into") == 2
    for rank in range(2):
        found = entries(tmp_path / "dump", 1, f"rank{rank}")
        assert found["Module.0.Linear.forward.0"]["input_args"][0]["Max"] == rank + 1
        assert "Module.1.Linear.parameters_grad" in found


def test_a_forked_training_is_not_captured_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, "train.py", FORKED)
    done = run(tmp_path, *LAUNCHER, "--dump-path", "dump", "train.py")
    assert done.stdout == "0\n"
    assert "a training in a process forked by the program is not captured" in done.stderr
    assert "nothing was captured: no optimizer of torch stepped" in done.stderr
    assert not (tmp_path / "dump").exists()


HUGGINGFACE = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    {imports}

    if not hasattr(torch.cpu, "set_device"):
        torch.cpu.set_device = lambda device: None  # PyTorch 2.1 lacks what accelerate calls on processors

    def collate(rows):
        return {{name: torch.stack([row[name] for row in rows]) for name in rows[0]}}

    torch.manual_seed(0)
    rows = [{{"input_ids": row, "labels": row}} for row in torch.arange(48).reshape(8, 6) * 7 % 32]
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1, use_cache=False,
    ))
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=2, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
        save_strategy="no", dataloader_pin_memory=False, eval_strategy="steps", eval_steps=1,
    )
    Trainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows, data_collator=collate,
        callbacks=[{callback}],
    ).train()
"""
LIGHTNING = """
    import lightning.pytorch as pl
    import torch
    from torch import nn
    {imports}

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

        def training_step(self, batch, _):
            return self.layers(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    pl.Trainer(
        max_steps=2, accelerator="cpu", devices={devices}, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[{callback}],
    ).fit(Net(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
"""


@pytest.mark.parametrize(("library", "program"), [("huggingface", HUGGINGFACE), ("lightning", LIGHTNING)])
def test_a_library_s_training_is_captured_as_by_its_callback(tmp_path: Path, library: str, program: str) -> None:
    """Modules and their statistics: around them the two begin and end a step at other functions of the library."""
    write(tmp_path, "train.py", program.format(imports="", callback="", devices=1))
    imports = f"from capture.integrations.{library} import PrecisionCallback"
    callback = 'PrecisionCallback(dump_path="by_callback", level="L0")'
    write(tmp_path, "edited.py", program.format(imports=imports, callback=callback, devices=1))
    launched = run(tmp_path, *LAUNCHER, "--level", "L0", "--dump-path", "dump", "train.py")
    assert launched.returncode == 0, launched.stderr
    assert run(tmp_path, "edited.py").returncode == 0
    assert steps(tmp_path / "dump") == steps(tmp_path / "by_callback") == ["step0", "step1"]
    for step in range(2):
        found = entries(tmp_path / "dump", step)
        assert found == entries(tmp_path / "by_callback", step)
        assert found


@pytest.mark.parametrize(("library", "program"), [("huggingface", HUGGINGFACE), ("lightning", LIGHTNING)])
def test_a_callback_captures_in_each_process(tmp_path: Path, library: str, program: str) -> None:
    """Names are those of one process: the callbacks see past the wrapper."""
    imports = f"from capture.integrations.{library} import PrecisionCallback"
    callback = 'PrecisionCallback(dump_path="dump", level="L0")'
    write(tmp_path, "train.py", program.format(imports=imports, callback=callback, devices=2))
    done = run(tmp_path, *TORCHRUN, "train.py")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        for step in range(2):
            found = entries(tmp_path / "dump", step, f"rank{rank}")
            assert any(".parameters_grad" in key for key in found)
            assert not [key for key in found if ".module." in key]
