"""The callback for ``transformers.Trainer``, in real trainings of a tiny GPT-2 made on the spot."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from capture.errors import CaptureError
from capture.integrations.huggingface import PrecisionCallback
from capture.pytorch import PrecisionDebugger
from tests.capture.integrations.dumps import bits, entries, steps, unfinished

WORDS = [{"input_ids": row, "labels": row} for row in torch.arange(8 * 6).reshape(8, 6) * 7 % 32]


class Batches:
    """Collates, and keeps what it made: the Trainer draws the order."""

    def __init__(self) -> None:
        self.made: list[dict[str, torch.Tensor]] = []

    def __call__(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        self.made.append(batch)
        return batch


def gpt() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(
        vocab_size=32,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
        use_cache=False,
        **dropout,
    )
    return GPT2LMHeadModel(config)


def names(found: Iterable[str]) -> Counter[str]:
    """Names of calls without their numbers."""
    return Counter(re.sub(r"\.\d+\.(forward|backward)$", r".\1", key) for key in found)


def arguments(place: Path, **more: Any) -> TrainingArguments:
    given = {
        "output_dir": str(place / "out"), "per_device_train_batch_size": 2, "per_device_eval_batch_size": 4,
        "max_steps": 3, "use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no",
        "logging_strategy": "no", "dataloader_pin_memory": False,
    }  # fmt: skip
    return TrainingArguments(**{**given, **more})


def trainer(place: Path, *callbacks: TrainerCallback, model: Any = None, **more: Any) -> Trainer:
    return Trainer(
        model=model or gpt(), args=arguments(place, **more), train_dataset=WORDS, eval_dataset=WORDS,
        data_collator=Batches(), callbacks=list(callbacks),
    )  # fmt: skip


def test_a_dump_is_that_of_a_loop_written_by_hand(tmp_path: Path) -> None:
    """Every entry, with its statistics: the same batches, the same optimizer, start, stop and step by hand."""
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="L0")
    training = trainer(tmp_path, callback, optim="adamw_torch", lr_scheduler_type="constant", learning_rate=0.1)
    training.train()

    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    debugger = PrecisionDebugger(dump_path=tmp_path / "hand", level="L0")
    model.train()
    # What the loss is divided by: transformers 4.46 knows models, this one among them, that are not told.
    count = {"num_items_in_batch": torch.tensor(12.0)} if training.model_accepts_loss_kwargs else {}
    for batch in training.data_collator.made[:3]:  # it fetches one in advance
        debugger.start(model)
        model(**batch, **count).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        debugger.stop()
        debugger.step()
        optimizer.zero_grad()
    debugger.close()

    assert bits(model) == bits(training.model)
    assert steps(tmp_path / "dump") == steps(tmp_path / "hand") == ["step0", "step1", "step2"]
    for step in range(3):
        assert entries(tmp_path / "dump", step) == entries(tmp_path / "hand", step)
    assert "Module.transformer.h.0.mlp.c_fc.Conv1D.parameters_grad" in entries(tmp_path / "dump", 0)


def test_functions_and_modules_of_the_model_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    """At level mix; around the model the Trainer calls functions of its own."""
    training = trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="mix"), max_steps=1)
    training.train()
    model = gpt()
    with PrecisionDebugger(dump_path=tmp_path / "hand", level="mix").capture(model) as debugger:
        model(**training.data_collator.made[0]).loss.backward()
    debugger.close()
    by_hand, captured = entries(tmp_path / "hand", 0), entries(tmp_path / "dump", 0)
    modules = [key for key in by_hand if key.startswith("Module.")]
    assert [key for key in captured if key.startswith("Module.")] == modules
    assert not names(by_hand) - names(captured)


@pytest.mark.parametrize("more", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}, {"evaluate": True}])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_weights_are_the_same_bits_with_and_without(tmp_path: Path, level: str, more: dict[str, Any]) -> None:
    """Also the state of random numbers, the losses in the log, and every event other callbacks see."""
    more = {"eval_strategy": "steps", "eval_steps": 1} if "evaluate" in more else more

    def run(*callbacks: TrainerCallback) -> tuple[Any, ...]:
        training = trainer(tmp_path, *callbacks, logging_strategy="steps", logging_steps=1, **more)
        training.train()
        log = [(line.get("loss"), line.get("grad_norm"), line.get("eval_loss")) for line in training.state.log_history]
        return bits(training.model), torch.get_rng_state().numpy().tobytes(), log

    assert run(PrecisionCallback(dump_path=tmp_path / "dump", level=level)) == run()
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]


def test_a_step_is_an_optimizer_step(tmp_path: Path) -> None:
    trainer(
        tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="mix"), gradient_accumulation_steps=2
    ).train()
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    for step in range(3):
        found = entries(tmp_path / "dump", step)
        calls = [key for key in found if key.startswith("Module.lm_head.Linear.forward")]
        assert calls == ["Module.lm_head.Linear.forward.0", "Module.lm_head.Linear.forward.1"]
        assert len(found["Module.lm_head.Linear.parameters_grad"]["weight"]) == 2


def test_mixed_precision_is_recorded_as_it_runs(tmp_path: Path) -> None:
    trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="mix"), bf16=True, max_steps=1).train()
    found = entries(tmp_path / "dump", 0)
    assert found["Module.lm_head.Linear.forward.0"]["output"][0]["dtype"] == "torch.bfloat16"


def test_evaluation_is_captured_only_when_asked(tmp_path: Path) -> None:
    asked = PrecisionCallback(dump_path=tmp_path / "asked", level="L0", during="evaluation")
    # Four steps, for at the end of three some releases evaluate once more.
    every_second = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    training = trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"), **every_second)
    training.add_callback(asked)
    training.train()
    for step in range(4):
        assert "Module.lm_head.Linear.forward.1" not in entries(tmp_path / "dump", step)
    asked.debugger.wait()
    # After steps 2 and 4, two batches each.
    assert steps(tmp_path / "asked") == ["step0", "step1", "step2", "step3"]
    found = entries(tmp_path / "asked", 1)
    assert found["Module.lm_head.Linear.forward.0"]["output"][0]["shape"] == [4, 6, 32]
    assert not [key for key in found if "backward" in key]
    training.evaluate()
    asked.close()
    assert len(steps(tmp_path / "asked")) == 6
    assert not training.model._forward_pre_hooks
    copy.deepcopy(training.model)
    pickle.dumps(training.model)


def test_trainings_of_several_models_are_captured_by_one_callback(tmp_path: Path) -> None:
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="L0")
    trainer(tmp_path, callback, max_steps=1).train()
    training = trainer(tmp_path, callback)
    training.train()
    for step in range(3):
        assert "Module.lm_head.Linear.forward.0" in entries(tmp_path / "dump", step)


def test_a_resumed_training_goes_on_counting(tmp_path: Path) -> None:
    trainer(tmp_path, save_strategy="steps", save_steps=2, max_steps=2).train()
    training = trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"), max_steps=4)
    training.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert steps(tmp_path / "dump") == ["step2", "step3"]


def test_only_wanted_steps_are_captured_and_nothing_is_hooked_elsewhere(tmp_path: Path) -> None:
    hooks: list[int] = []

    class Looks(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
            hooks.append(sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()))
            hooks[-1] += torch.nn.functional.linear is not linear

    linear = torch.nn.functional.linear
    trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="mix", step=[1]), Looks()).train()
    assert hooks[0] == hooks[2] == 0
    assert hooks[1] > 0
    assert steps(tmp_path / "dump") == ["step1"]
    assert torch.nn.functional.linear is linear


class Breaks(TrainerCallback):  # type: ignore[misc]
    """Raises between the backward pass and the optimizer of the second step."""

    def on_pre_optimizer_step(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if state.global_step == 1:
            raise ZeroDivisionError("planted")


def test_an_exception_ends_the_step_and_the_next_training_works(tmp_path: Path) -> None:
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="L0")
    training = trainer(tmp_path, callback, Breaks())
    with pytest.raises(ZeroDivisionError):
        training.train()
    training.remove_callback(Breaks)
    callback.close()
    assert steps(tmp_path / "dump") == ["step0", "step1"]
    assert unfinished(tmp_path / "dump") == [1]
    assert not any(module._forward_hooks for module in training.model.modules())


def test_an_exception_without_close_is_settled_by_the_next_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"), Breaks())
    with pytest.raises(ZeroDivisionError):
        training.train()
    training.remove_callback(Breaks)
    training.args.max_steps = 3
    with caplog.at_level(logging.WARNING, "msformat.capture"):
        training.train()
    assert "step 1 was not finished" in caplog.text
    # The first two lie there already.
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    assert "holds another dump" in caplog.text
    assert unfinished(tmp_path / "dump") == [1]


def test_a_dump_in_the_way_stops_the_training_before_its_first_step(tmp_path: Path) -> None:
    trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"), max_steps=1).train()
    training = trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"), max_steps=1)
    with pytest.raises(CaptureError, match="never overwritten"):
        training.train()
    assert training.state.global_step == 0


def test_a_failing_capture_ends_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="L0")

    def fail(*_: Any) -> None:
        raise OSError("planted")

    monkeypatch.setattr(callback.debugger, "step", fail)
    training = trainer(tmp_path, callback)
    training.train()
    assert training.state.global_step == 3
    assert bits(training.model) == bits(_trained(tmp_path))
    assert "capture ends, training goes on: OSError: planted" in caplog.text
    callback.close()


def _trained(place: Path) -> Any:
    training = trainer(place)
    training.train()
    return training.model


@pytest.mark.parametrize("given", [{"lvel": "L0"}, {"level": "L9"}])
def test_a_bad_configuration_is_said_when_the_callback_is_made(tmp_path: Path, given: dict[str, str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"dump_path": "x", **given}))
    with pytest.raises(CaptureError, match=next(iter(given))):
        PrecisionCallback(config_path=tmp_path / "config.json")
    with pytest.raises(CaptureError, match="during"):
        PrecisionCallback(dump_path=tmp_path / "dump", during="training ")  # type: ignore[arg-type]


def test_arguments_are_those_of_the_debugger(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "a")
    assert PrecisionCallback().debugger is debugger
    copied: PrecisionCallback = pickle.loads(pickle.dumps(PrecisionCallback(dump_path=tmp_path / "b", step=[3])))
    assert copied.debugger.config.dump_path == str(tmp_path / "b")
    assert copied.debugger.config.steps == {3}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)
