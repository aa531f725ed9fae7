"""Which names scope, list and tensor_list let in."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from capture.config import load_config
from capture.scope import Scope

# A step at level mix, as the hooks tell it: "+" a module begins, "-" it ends, else an API begins.
_EVENTS = """
    +Module.net.Net.forward.0
        +Module.net.fc.Linear.forward.0  Functional.linear.0.forward  -Module.net.fc.Linear.forward.0
        Functional.relu.0.forward
        +Module.net.out.Linear.forward.0 Functional.linear.1.forward  -Module.net.out.Linear.forward.0
    -Module.net.Net.forward.0
    Tensor.sum.0.forward
    Tensor.sum.0.backward
    +Module.net.Net.backward.0
        +Module.net.out.Linear.backward.0 Functional.linear.1.backward -Module.net.out.Linear.backward.0
        Functional.relu.0.backward
        +Module.net.fc.Linear.backward.0  Functional.linear.0.backward -Module.net.fc.Linear.backward.0
    -Module.net.Net.backward.0
"""
STEP = _EVENTS.split()
NAMES = [event for event in STEP if event[0] not in "+-"]


def scope(level: str = "mix", **keys: Any) -> Scope:
    return Scope(load_config(dump_path="x", level=level, **keys))


def play(found: Scope, events: Iterable[str] = STEP) -> list[str]:
    """What is recorded: modules are asked about when they begin (forward) or end (backward), as the hooks do."""
    taken = []
    for event in events:
        name = event.lstrip("+-")
        if event[0] == "+":
            found.begin_module(name)
        forward_module = event[0] == "+" and ".forward." in name
        backward_module = event[0] == "-" and ".backward." in name
        if (event[0] not in "+-" or forward_module or backward_module) and found.check(name):
            taken.append(name)
        if event[0] == "-":
            found.end_module(name)
    return taken


def test_without_filters_everything_is_in() -> None:
    found = scope()
    assert not found.is_filtering
    assert len(play(found)) == len(NAMES) + 6
    assert found.unmatched() == []


# --- the interval ----------------------------------------------------------------------------------------------------


def test_an_interval_of_apis_includes_both_ends() -> None:
    found = scope("L1", scope=["Functional.relu.0.forward", "Tensor.sum.0.forward"])
    expected = ["Functional.relu.0.forward", "Functional.linear.1.forward", "Tensor.sum.0.forward"]
    assert play(found, NAMES) == expected
    assert play(found, NAMES) == expected  # the next step


def test_asking_twice_about_an_end_gives_the_same() -> None:
    """Once for the inputs, once for the outputs: nothing of the last entry is lost."""
    found = scope("L1", scope=["Functional.linear.0.forward", "Functional.relu.0.forward"])
    twice = [name for name in NAMES for _ in range(2)]
    assert play(found, twice) == [*["Functional.linear.0.forward"] * 2, *["Functional.relu.0.forward"] * 2]


def test_an_interval_of_modules_includes_what_is_inside_both() -> None:
    found = scope(scope=["Module.net.fc.Linear.forward.0", "Module.net.out.Linear.forward.0"])
    assert play(found) == [
        "Module.net.fc.Linear.forward.0", "Functional.linear.0.forward", "Functional.relu.0.forward",
        "Module.net.out.Linear.forward.0", "Functional.linear.1.forward",
    ]  # fmt: skip
    # A module that is asked about again when it has ended is still in.
    assert found.check("Module.net.out.Linear.forward.0")
    assert not found.check("Tensor.sum.0.forward")


def test_one_module_in_the_other() -> None:
    found = scope("L0", scope=["Module.net.Net.forward.0", "Module.net.fc.Linear.forward.0"])
    assert play(found, [event for event in STEP if event[0] in "+-"]) == [
        "Module.net.Net.forward.0", "Module.net.fc.Linear.forward.0"
    ]  # fmt: skip
    assert found.check("Module.net.Net.forward.0")
    assert not found.check("Module.net.out.Linear.forward.0")  # asking about the first did not open it again


def test_from_a_forward_to_a_backward_in_another_thread() -> None:
    found = scope(scope=["Tensor.sum.0.forward", "Module.net.out.Linear.backward.0"])
    middle = STEP.index("Tensor.sum.0.backward")
    taken = play(found, STEP[:middle])
    thread = threading.Thread(target=lambda: taken.extend(play(found, STEP[middle:])))
    thread.start()
    thread.join()
    assert taken == [
        "Tensor.sum.0.forward", "Tensor.sum.0.backward", "Functional.linear.1.backward",
        "Module.net.out.Linear.backward.0",
    ]  # fmt: skip


def test_an_interval_ends_with_its_step() -> None:
    found = scope("L1", scope=["Functional.relu.0.forward", "Functional.gone.0.forward"])
    assert play(found, NAMES) == NAMES[1:]
    found.new_step()
    assert play(found, NAMES) == NAMES[1:]
    (text,) = found.unmatched()
    assert text.startswith("scope: 'Functional.gone.0.forward' never came after 'Functional.relu.0.forward'")


def test_ends_in_the_wrong_order() -> None:
    found = scope("L1", scope=["Tensor.sum.0.forward", "Functional.relu.0.forward"])
    assert play(found, NAMES) == NAMES[3:]
    assert "never came after" in found.unmatched()[0]


def test_an_interval_that_never_begins() -> None:
    found = scope("L1", scope=["Functional.gelu.0.forward", "Functional.relu.0.forward"])
    assert play(found, NAMES) == []
    (text,) = found.unmatched()
    assert text.startswith("scope: 'Functional.gelu.0.forward' never came, so nothing was recorded; names that came: ")
    assert "Functional.relu" in text


# --- the list --------------------------------------------------------------------------------------------------------


def test_full_names_and_parts() -> None:
    assert play(scope("L1", list=["Functional.linear.1.forward"]), NAMES) == ["Functional.linear.1.forward"]
    assert play(scope("L1", list=["linear.1", "sum"]), NAMES) == [
        "Functional.linear.1.forward", "Tensor.sum.0.forward", "Tensor.sum.0.backward", "Functional.linear.1.backward",
    ]  # fmt: skip
    assert play(scope("L1", list=["Linear"]), NAMES) == []


def test_a_full_name_of_a_module_means_that_call_only() -> None:
    found = scope("L0", list=["Module.fc.Linear.forward.1"])
    assert found.check("Module.fc.Linear.forward.1")
    assert not found.check("Module.fc.Linear.forward.10")
    assert scope("L0", list=["Linear.forward"]).check("Module.fc.Linear.forward.10")


def test_a_module_stands_for_everything_inside_it() -> None:
    assert play(scope(list=["Module.net.fc.Linear.forward.0"])) == [
        "Module.net.fc.Linear.forward.0", "Functional.linear.0.forward"
    ]  # fmt: skip
    assert play(scope(list=["net.fc"])) == [
        "Module.net.fc.Linear.forward.0", "Functional.linear.0.forward",
        "Functional.linear.0.backward", "Module.net.fc.Linear.backward.0",
    ]  # fmt: skip
    assert len(play(scope(list=["Net"]))) == len(play(scope())) - 2  # all but Tensor.sum


def test_modules_are_not_expanded_at_L0() -> None:  # noqa: N802
    modules = [event for event in STEP if event[0] in "+-"]
    assert play(scope("L0", list=["Net.forward"]), modules) == ["Module.net.Net.forward.0"]


def test_nested_modules_of_one_list() -> None:
    found = scope(list=["Net.forward", "fc"])
    events = STEP[: STEP.index("Tensor.sum.0.forward")]
    assert len(play(found, events)) == 6  # the inner one ends, the outer one still runs
    assert not found.check("Tensor.sum.0.forward")


def test_another_thread_is_not_inside_the_module() -> None:
    found = scope(list=["Module.net.Net.forward.0"])
    found.begin_module("Module.net.Net.forward.0")
    answers = [found.check("Functional.relu.0.forward")]
    thread = threading.Thread(target=lambda: answers.append(found.check("Functional.relu.1.forward")))
    thread.start()
    thread.join()
    assert answers == [True, False]


def test_a_module_that_was_never_left_ends_with_the_step() -> None:
    found = scope(list=["Net"])
    found.begin_module("Module.net.Net.forward.0")
    found.new_step()
    assert not found.check("Functional.relu.0.forward")


def test_scope_and_list_together() -> None:
    found = scope(
        scope=["Module.net.Net.forward.0", "Module.net.Net.forward.0".replace("Net.forward", "out.Linear.forward")],
        list=["linear"],
    )
    assert play(found) == ["Functional.linear.0.forward", "Functional.linear.1.forward"]


def test_many_threads() -> None:
    found = scope(list=["fc", "relu", "nothing"])
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                assert len(play(found)) == 6
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# --- what matched nothing --------------------------------------------------------------------------------------------


def test_a_list_that_matches_nothing_says_what_came() -> None:
    found = scope("L1", list=["rellu", "sum"])
    assert found.unmatched() == []  # nothing ran yet: that is another message
    play(found, NAMES)
    assert found.unmatched() == [
        "list: 'rellu' matched nothing; names that came: Functional.relu, Functional.linear, Tensor.sum"
    ]


def test_the_message_stays_short() -> None:
    found = scope("L1", list=["NOTHING"])
    for number in range(5000):
        found.check(f"Torch.op{number}.0.forward")
    (text,) = found.unmatched()
    assert len(text) < 400
    assert text.endswith(" more")


def test_case_is_mended() -> None:
    found = scope("L0", list=["net.FC"])
    play(found, [event for event in STEP if event[0] in "+-"])
    assert "names that came: Module.net.fc.Linear, " in found.unmatched()[0]


# --- data ------------------------------------------------------------------------------------------------------------


def test_tensor_list_saves_data_in_a_statistics_run() -> None:
    found = scope("L1", tensor_list=["relu", "nothing"], summary_mode="md5")
    assert not found.is_filtering
    for name in NAMES:
        assert found.check(name)
        assert found.wants_data(name) == ("relu" in name)
        assert found.wanted(name) == (True, "relu" in name, True)
    assert [text.partition(";")[0] for text in found.unmatched()] == ["tensor_list: 'nothing' matched nothing"]


@pytest.mark.parametrize(("task", "data"), [("tensor", True), ("statistics", False)])
def test_the_task_decides_otherwise(task: str, data: bool) -> None:
    found = scope(task=task)
    assert found.wanted(NAMES[0]) == (True, data, False)
    assert found.wants_data(NAMES[0]) is data
