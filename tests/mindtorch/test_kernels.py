"""Level L2 with the real mindtorch: a double of Ascend's library is switched on and off around one call."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore
import pytest

from capture.kernel.acl import AclDevice
from capture.mindspore import debugger as debugger_module

ON = ["synchronize", "aclmdlInitDump", "aclmdlSetDump", "synchronize"]
OFF = ["synchronize", "aclmdlFinalizeDump", "synchronize"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("Functional.linear.0.forward", [*ON, *OFF, "loss"]),
        ("Functional.linear.0.backward", ["loss", *ON, *OFF]),
        ("Torch.add.0.backward", ["loss", *ON, *OFF]),
    ],
)
def test_the_device_is_on_around_one_call(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, expected: list[str]
) -> None:
    from capture.mindtorch import PrecisionDebugger

    events: list[str] = []

    def function(name: str) -> Any:
        class Function:
            def __call__(self, *_: object) -> int:
                events.append(name)
                return 0

        return Function()

    acl = SimpleNamespace(**{name: function(name) for name in (*ON[1:3], OFF[1])})
    device = AclDevice(lambda: events.append("synchronize"), lambda: None, lambda: acl)
    monkeypatch.setattr(debugger_module, "kernel_device", lambda: device)
    document = {"task": "tensor", "dump_path": str(tmp_path / "dump"), "level": "L2", "tensor": {"list": [target]}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    one = PrecisionDebugger(tmp_path / "config.json")
    model = torch.nn.Linear(3, 3)

    def forward(value: Any) -> Any:
        output = model(value)
        loss = torch.add(output, output).sum()
        events.append("loss")
        return loss

    for _ in range(2):
        one.start(model)
        mindspore.value_and_grad(forward, None, list(model.parameters()))(torch.ones(2, 3))
        one.stop()
        one.step()
    one.close()
    assert events == expected * 2
