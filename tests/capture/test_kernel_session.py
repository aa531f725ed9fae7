"""Level L2 without a framework: a device is on around one call a step and at no other time, and its files are kept."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import msformat
from capture.config import load_config
from capture.errors import CaptureError
from capture.kernel.session import KernelSession
from tests.capture.fake_framework import FakeFramework
from tests.capture.kernel_device import TIME, VALUES, FakeDevice
from tests.capture.test_session import NoHooks
from tests.kernel_files import NAME, Part, write_dump

FORWARD, BACKWARD = "Functional.relu.1.forward", "Functional.relu.1.backward"


class Bench:
    """A session over a device, and a model of three calls."""

    made: ClassVar[list[KernelSession]] = []

    def __init__(self, path: Path, target: str = FORWARD, device: FakeDevice | None = None, **keys: Any) -> None:
        self.path = path
        self.device = device or FakeDevice()
        self.framework = FakeFramework()
        self.framework.number = keys.pop("rank_number", None)
        config = load_config(dump_path=path, level="L2", task="tensor", list=[target], **keys)
        self.session = KernelSession(config, self.framework, self.device)
        self.made.append(self.session)

    def call(self, name: str = "relu", *, fails: bool = False) -> Any:
        observer, events = self.session.observer, self.device.events
        if not observer.running:
            return None
        call = observer.begin_api("Functional", name, (), {})
        events.append(name)
        if call is not None:
            (observer.fail_api if fails else lambda call: observer.end_api(call, None))(call)
        return call

    def run(self, steps: int = 1, *, calls: tuple[str, ...] = ("relu", "gelu", "relu", "relu")) -> None:
        for _ in range(steps):
            self.session.start(NoHooks(), None)
            for name in calls:
                self.call(name)
            self.session.stop()
            self.session.step()

    def values(self, step: int = 0) -> Any:
        self.session.close()
        unit = msformat.open(self.path)[step]
        entry = unit[next(iter(unit))]
        return np.asarray(entry.inputs[0].numpy()), np.asarray(entry.outputs[0].numpy())


@pytest.fixture(autouse=True)
def _said_and_closed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, logger="msformat.capture")
    yield
    while Bench.made:
        Bench.made.pop().close()


# --- when the device is on -------------------------------------------------------------------------------------------


def test_the_device_is_on_around_the_one_call(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(2)
    assert bench.device.events == ["relu", "gelu", "begin", "relu", "end", "relu"] * 2
    assert [config["dump"]["dump_path"] for config in bench.device.configs] == [
        str(tmp_path / "step0"),
        str(tmp_path / "step1"),
    ]
    assert (tmp_path / "step0" / "kernel_config.json").is_file()


def test_a_rank_has_a_directory_and_settings_of_its_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, rank_number=3)
    bench.run()
    assert bench.device.configs[0]["dump"]["dump_path"] == str(tmp_path / "step0" / "rank3")
    assert (tmp_path / "step0" / "kernel_config_3.json").is_file()
    bench.session.close()
    assert msformat.open(tmp_path)[0, 3].header.level == "L2"


def test_only_wanted_steps_and_ranks(tmp_path: Path) -> None:
    bench = Bench(tmp_path, step=[1])
    bench.run(3)
    assert bench.device.events == ["relu", "gelu", "begin", "relu", "end", "relu"]
    assert sorted(os.listdir(tmp_path)) == ["step1"]
    other = Bench(tmp_path / "other", rank=[0], rank_number=1)
    other.run()
    assert other.device.events == []
    assert not (tmp_path / "other").exists()


def test_several_starts_of_a_step_are_one_dump(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for _ in range(2):
        bench.session.start(NoHooks(), None)
        bench.call()
        bench.call()
        bench.session.stop()
    bench.session.step()
    assert bench.device.events == ["relu", "begin", "relu", "end", "relu", "relu"]


def test_a_call_that_raises_ends_the_dump(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "Functional.relu.0.forward")
    bench.session.start(NoHooks(), None)
    bench.call(fails=True)
    assert bench.device.events == ["begin", "relu", "end"]


def test_a_backward_is_dumped_once_a_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, BACKWARD)
    observer, events = bench.session.observer, bench.device.events
    bench.session.start(NoHooks(), None)
    bench.call()
    call = bench.call()
    assert observer.wants_backward(call)
    assert events == ["relu", "relu"]
    for _ in range(2):
        observer.begin_backward(call)
        observer.end_backward(call)
    assert events[2:] == ["begin", "end"]
    bench.session.stop()
    bench.session.step()
    assert observer.begin_backward(call) is False


def test_a_backward_may_come_after_stop(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "Functional.relu.0.backward")
    bench.session.start(NoHooks(), None)
    call = bench.call()
    bench.session.stop()
    assert bench.session.observer.begin_backward(call)
    bench.session.step()
    assert bench.device.events == ["relu", "begin", "end"]


@pytest.mark.parametrize("how", ["stop", "step", "abandon", "close", "set_init_step"])
def test_whatever_was_left_on_goes_off(tmp_path: Path, how: str) -> None:
    bench = Bench(tmp_path, "Functional.relu.0.backward")
    bench.session.start(NoHooks(), None)
    bench.session.observer.begin_backward(bench.call())
    assert bench.device.is_on
    arguments = {"abandon": (KeyError("crash"),), "set_init_step": (7,)}.get(how, ())
    getattr(bench.session, how)(*arguments)
    assert not bench.device.is_on
    bench.session.close()
    assert bench.device.events == ["relu", "begin", "end"]


def test_a_crash_keeps_what_was_dumped_and_the_next_step_is_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "Functional.relu.0.forward", storage={"kernels": "convert"})
    bench.session.start(NoHooks(), None)
    bench.call()
    bench.session.abandon(KeyError("crash"))
    bench.run()
    bench.session.close()
    assert [unit.key.path for unit in msformat.open(tmp_path)] == ["step0/rank", "step1/rank"]


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_without_a_device_it_is_said_once_and_nothing_happens(tmp_path: Path, caplog: Any) -> None:
    earlier = tmp_path / "dump" / "step0" / TIME / "0"
    earlier.mkdir(parents=True)
    bench = Bench(tmp_path / "dump", storage={"overwrite": True})
    bench.device.reason = "there is none"
    hooks = NoHooks()
    for _ in range(3):
        assert not bench.session.start(hooks, None)
        assert not hooks.is_set
        bench.session.stop()
        bench.session.step()
    bench.session.close()
    assert bench.device.events == []
    assert [record.message for record in caplog.records] == [
        "level L2: no kernels are dumped, because there is none; the training goes on without capture"
    ]
    assert earlier.is_dir(), "nothing was to be written, so nothing was in the way"


@pytest.mark.parametrize(("fails", "events"), [("begin", ["begin", "end", "relu"]), ("end", ["begin", "relu", "end"])])
def test_a_failing_device_is_told_of_and_switched_off(tmp_path: Path, caplog: Any, fails: str, events: Any) -> None:
    bench = Bench(tmp_path, "Functional.relu.0.forward", FakeDevice(fails=(fails,)))
    bench.run(2, calls=("relu",))
    assert bench.device.events == events * 2
    assert caplog.text.count("RuntimeError") == 1
    assert not bench.session.observer.switch.is_on


def test_a_target_that_never_comes_is_said_with_names_that_came(tmp_path: Path, caplog: Any) -> None:
    bench = Bench(tmp_path, "Functional.silu.0.forward")
    bench.run(2)
    bench.session.close()
    assert bench.device.events == ["relu", "gelu", "relu", "relu"] * 2
    assert caplog.text.count("Functional.silu.0.forward did not come between start() and stop()") == 1
    assert "names that came: Functional." in caplog.text


def test_a_backward_that_does_not_run_is_said(tmp_path: Path, caplog: Any) -> None:
    bench = Bench(tmp_path, BACKWARD)
    bench.run()
    assert f"{BACKWARD} did not run" in caplog.text


def test_a_device_that_writes_nothing_is_said(tmp_path: Path, caplog: Any) -> None:
    bench = Bench(tmp_path, device=FakeDevice(writes=False))
    bench.run()
    bench.session.close()
    assert "the device dumped nothing of Functional.relu.1.forward" in caplog.text


def test_an_unwritable_place_ends_capture_not_the_training(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "dump").write_text("a file")
    bench = Bench(tmp_path / "dump")
    bench.run(2)
    assert "begin" not in bench.device.events
    assert caplog.text.count("capture ends, training goes on") == 1


def test_kernels_of_an_earlier_run_are_in_the_way(tmp_path: Path) -> None:
    Bench(tmp_path).run()
    with pytest.raises(CaptureError, match="holds kernels of an earlier run"):
        Bench(tmp_path).run()
    Bench(tmp_path, step=[1]).run(2)
    bench = Bench(tmp_path, step=[0], storage={"overwrite": True})
    bench.device.time = "20250101000000"
    bench.run(2)
    assert {*os.listdir(tmp_path / "step0")} == {"kernel_config.json", "20250101000000"}
    assert (tmp_path / "step1" / TIME).is_dir(), "a step that is not captured stays"


# --- what becomes of the files ---------------------------------------------------------------------------------------


def test_files_stay_as_the_device_wrote_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run()
    given, made = bench.values()
    np.testing.assert_array_equal(given, VALUES)
    np.testing.assert_array_equal(made, VALUES * 2)
    assert sorted(os.listdir(tmp_path / "step0")) == [TIME, "kernel_config.json"]


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("kernels", ["convert", "move"])
@pytest.mark.parametrize("backend", ["files", "hdf5", "zarr"])
def test_files_go_into_the_store(tmp_path: Path, backend: str, kernels: str, rank: int | None) -> None:
    device = FakeDevice(number=5)
    bench = Bench(tmp_path, device=device, rank_number=rank, storage={"format": backend, "kernels": kernels})
    bench.run(2)
    for step in range(2):
        given, made = bench.values(step)
        np.testing.assert_array_equal(given, VALUES)
        np.testing.assert_array_equal(made, VALUES * 2)
    unit = msformat.open(tmp_path)[1]
    assert unit.backend == backend
    assert unit.key.path == ("step1/rank" if rank is None else "step1/rank3")
    directory = tmp_path / "step1" if rank is None else tmp_path / "step1" / "rank3"
    assert (directory / TIME / "5" / NAME).is_file() == (kernels == "convert")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert msformat.verify_dump(tmp_path).exit_code == 0


def test_what_cannot_be_taken_over_stays(tmp_path: Path, caplog: Any) -> None:
    bench = Bench(tmp_path, storage={"format": "hdf5", "kernels": "move"})

    def spoil() -> None:
        bad = tmp_path / "step0" / TIME / "0" / f"Mul.{NAME.partition('.')[2]}"
        bad.parent.mkdir(parents=True)
        bad.write_bytes(b"no dump")

    bench.device.before_end = spoil
    bench.run()
    given, _ = bench.values()
    np.testing.assert_array_equal(given, VALUES)
    assert (tmp_path / "step0" / TIME / "0" / NAME).is_file()
    assert "Mul.Default_Add-op1" in caplog.text
    assert "not removed" in caplog.text


@pytest.mark.parametrize("what", ["notes of mine", "results/x.npy", ".cache/x", "link", "fifo"])
def test_what_is_no_kernel_is_not_removed(tmp_path: Path, caplog: Any, what: str) -> None:
    bench = Bench(tmp_path, storage={"kernels": "move"})
    place = tmp_path / "step0" / TIME / "0"
    outside = tmp_path / "outside"
    outside.write_text("mine")

    def add() -> None:
        place.mkdir(parents=True)
        if what == "link":
            (place / "other").symlink_to(outside)
        elif what == "fifo":
            os.mkfifo(place / "pipe")
        else:
            path = place / what
            path.parent.mkdir(exist_ok=True)
            path.write_text("x")

    bench.device.before_end = add
    bench.run()
    given, _ = bench.values()
    np.testing.assert_array_equal(given, VALUES)
    assert len(os.listdir(place)) == 2
    assert (place / NAME).is_file()
    assert outside.read_text() == "mine"
    assert "not removed" in caplog.text


def test_what_comes_or_changes_during_the_conversion_is_not_removed(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "step0" / TIME / "0"

    def convert(*arguments: Any) -> Any:
        report = msformat.convert_dump(*arguments)
        write_dump(place, [Part.of(VALUES)], name=f"Late.{NAME.partition('.')[2]}")
        return report

    monkeypatch.setattr("capture.kernel.conversion.convert_dump", convert)
    bench = Bench(tmp_path, storage={"kernels": "move"})
    bench.run()
    bench.values()
    assert len(os.listdir(place)) == 2
    assert "came or changed meanwhile" in caplog.text


def test_a_link_in_the_way_of_the_conversion_is_not_followed(tmp_path: Path, caplog: Any) -> None:
    dump, outside = tmp_path / "dump", tmp_path / "outside"
    outside.mkdir()
    dump.mkdir()
    (dump / ".kernels-step0-rank").symlink_to(outside)
    bench = Bench(dump, storage={"kernels": "move"})
    bench.run()
    bench.session.close()
    assert os.listdir(outside) == []
    assert (dump / "step0" / TIME / "0" / NAME).is_file()
    assert "is in the way" in caplog.text


def test_a_dump_that_came_in_the_way_is_not_touched(tmp_path: Path, caplog: Any) -> None:
    bench = Bench(tmp_path, storage={"kernels": "move"})

    def occupy() -> None:
        (tmp_path / "step0" / "rank").mkdir(parents=True)
        (tmp_path / "step0" / "rank" / "dump.json").write_text("{}")

    bench.device.before_end = occupy
    bench.run()
    bench.session.close()
    assert (tmp_path / "step0" / "rank" / "dump.json").read_text() == "{}"
    assert (tmp_path / "step0" / TIME / "0" / NAME).is_file()
    assert "holds another dump" in caplog.text
