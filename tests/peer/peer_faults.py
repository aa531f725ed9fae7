"""What msprobe 8.1.0 adds to a dump by its own doing, and where it is wrong: the only differences a capture may show.

Each :class:`Fault` explains differences and says why they are the peer's; it looks at both dumps and explains nothing
beyond that. test_capture_names counts what each explained, so that one which is no longer needed is found.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.peer.capture_compare import Difference, Unit

# Calls that nobody's program made, by the file of torch that made them.
TRACES = {
    # Views that torch makes to hang a full backward hook on a module; our hooks listen to the graph instead.
    "Tensor.view_as": "torch/utils/hooks.py",
    # The gradient 1.0 that backward() begins with.
    "Torch.ones_like": "torch/autograd/__init__.py",
}
TRACE = re.compile(rf"\b({'|'.join(map(re.escape, TRACES))})\.(\d+)\.(?=forward|backward)")


def without_traces(peer: Unit) -> Unit:
    """The peer's dump without calls that its own hooks caused, later calls of these APIs numbered anew."""
    numbers = kept_numbers(peer)

    def is_kept(name: str) -> bool:
        found = TRACE.match(name)
        return found is None or found.groups() in numbers

    def rename(text: str) -> str:
        return TRACE.sub(lambda found: f"{found[1]}.{numbers.get(found.groups(), 'left out')}.", text)

    def kept(names: dict[str, Any]) -> dict[str, Any]:
        return {rename(name): value for name, value in names.items() if is_kept(name)}

    data = json.loads(rename(json.dumps({name: value for name, value in peer.data.items() if is_kept(name)})))
    construct, stacks, files = kept(peer.construct), kept(peer.stacks), kept(peer.files)
    return replace(peer, dump={**peer.dump, "data": data}, construct=construct, stacks=stacks, files=files)


def kept_numbers(peer: Unit) -> dict[tuple[str | Any, ...], int]:
    """New number of each call that the program made, by API and old number."""
    counts: Counter[str] = Counter()
    found: dict[tuple[str | Any, ...], int] = {}
    calls = [(call, frames) for key, frames in peer.stacks.items() if (call := TRACE.match(key))]
    for call, frames in sorted(calls, key=lambda one: int(one[0][2])):
        if not any(TRACES[call[1]] in frame for frame in frames[:6]):
            found[call.groups()] = counts[call[1]]
            counts[call[1]] += 1
    return found


@dataclass(frozen=True)
class Fault:
    """One way in which the peer is wrong."""

    name: str
    reason: str
    explains: Callable[[Difference, Unit, Unit], bool]


def claimed(difference: Difference, peer: Unit, ours: Unit, used: Counter[str]) -> bool:
    """Whether a fault of the peer explains a difference; counts which."""
    for fault in FAULTS:
        if fault.explains(difference, peer, ours):
            used[fault.name] += 1
            return True
    return False


# --- parents ----------------------------------------------------------------------------------------------------------


def is_outside(found: Difference, peer: Unit, ours: Unit) -> bool:
    return found.where == "parent" and found.expected == "" and found.got is None


def is_structural(found: Difference, peer: Unit) -> bool:
    """Whether ours is the backward of the module that the peer itself gives as parent of the forward."""
    if found.where != "parent" or "backward" not in found.entry:
        return False
    above = peer.construct.get(other_pass(found.entry)) or None
    return found.got == (other_pass(above) if above else None)


def other_pass(name: str) -> str:
    """Forward of a backward and the reverse, in both spellings of names."""
    one, two = ("forward", "backward") if "backward" in name else ("backward", "forward")
    return re.sub(rf"\b{two}\b", one, name)


def is_closed_at_once(found: Difference, peer: Unit, ours: Unit) -> bool:
    if not is_structural(found, peer) or found.got not in peer.construct:
        return False
    # The peer writes a backward of a module down when it is over.
    order = list(peer.construct)
    return order.index(str(found.got)) < order.index(found.entry)


def is_under_an_open_module(found: Difference, peer: Unit, ours: Unit) -> bool:
    return is_structural(found, peer) and never_closed(str(found.expected), peer)


def never_closed(module: str, peer: Unit) -> bool:
    """The peer entered a module's backward, which is when it names the parents of others, and never left it."""
    return "backward" in module and module in peer.construct and module not in peer.data


def is_after_recompute(found: Difference, peer: Unit, ours: Unit) -> bool:
    return is_structural(found, peer) and any(value.get("is_recompute") for value in peer.data.values())


# --- gradients --------------------------------------------------------------------------------------------------------


def is_input_returned(found: Difference, peer: Unit, ours: Unit) -> bool:
    key = entry_key(found, ours)
    forward = ours.data.get(other_pass(key), {})
    if "backward" not in key or not forward.get("output"):
        return False
    one, two = ({**each[0], "data_name": ""} for each in (forward["input_args"], forward["output"]))
    return key.startswith("Functional.dropout") and one == two


# --- entries ----------------------------------------------------------------------------------------------------------


def entry_key(found: Difference, unit: Unit) -> str:
    """The entry that a difference belongs to, which for one of a file is not named but begins its name."""
    if not found.where.startswith("file"):
        return found.entry
    parts = found.entry.split(".")
    return next((key for at in range(len(parts), 0, -1) if (key := ".".join(parts[:at])) in unit.data), "")


def is_added(found: Difference) -> bool:
    return found.where.endswith(" added")


def is_lost_after_early_stop(found: Difference, peer: Unit, ours: Unit) -> bool:
    key = entry_key(found, ours)
    unfinished = any(value.get("is_recompute") and "output" not in value for value in peer.data.values())
    none = "checkpoint" in peer.run and all(one.startswith("Module.") for one in peer.data)
    lost = none or (unfinished and bool(ours.data.get(key, {}).get("is_recompute")))
    return is_added(found) and not key.startswith("Module.") and lost


def is_in_place_backward(found: Difference, peer: Unit, ours: Unit) -> bool:
    return is_added(found) and never_closed(entry_key(found, ours), peer)


def is_dataclass_output(found: Difference, peer: Unit, ours: Unit) -> bool:
    if is_structural(found, peer):
        key = str(found.got)
    elif is_added(found):
        key = entry_key(found, ours)
    else:
        return False
    outputs = ours.data.get(other_pass(key), {}).get("output")
    lone = isinstance(outputs, list) and len(outputs) == 1 and isinstance(outputs[0], dict)
    return ".backward." in key and key not in peer.data and lone and "logits" in outputs[0]


def is_unused_output(found: Difference, peer: Unit, ours: Unit) -> bool:
    key = entry_key(found, peer)
    gradients = peer.data.get(key, {}).get("input")
    return found.where.endswith(" missing") and "backward" in key and gradients == [None] and key not in ours.data


def is_order_of_joined_outputs(found: Difference, peer: Unit, ours: Unit) -> bool:
    if found.where != "entry order" or "backward" not in found.entry:
        return False
    name: str | None = found.entry
    while name:
        forward = peer.data.get(other_pass(name), {})
        if name.startswith("Module.") and len(trained(forward.get("output"))) > 1:
            return True
        name = ours.construct.get(name)
    return False


def trained(value: Any) -> list[Any]:
    """Tensors in a value that require a gradient."""
    if isinstance(value, dict):
        return [value] if value.get("requires_grad") else [one for each in value.values() for one in trained(each)]
    return [one for each in value for one in trained(each)] if isinstance(value, list) else []


# --- values -----------------------------------------------------------------------------------------------------------


def node_of(found: Difference, unit: Unit) -> Any:
    """The node that holds what differs."""
    value = unit.data[found.entry]
    for part in found.where.split(" ")[0].split("/")[1:-1]:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def statistic(found: Difference) -> str:
    """Name of the statistic that differs, or nothing."""
    match = re.search(r"/(Max|Min|Mean|Norm) of", found.where)
    return match[1] if match else ""


def is_negative_norm(found: Difference, peer: Unit, ours: Unit) -> bool:
    if statistic(found) != "Norm" or not isinstance(found.expected, int | float) or found.expected >= 0:
        return False
    return abs(float(str(found.got)) + found.expected) <= 1e-6 * abs(found.expected)


def is_read_too_late(found: Difference, peer: Unit, ours: Unit) -> bool:
    in_place = re.match(r"\w+\.\w*[a-z]_\.\d+\.forward$", found.entry)
    return bool(statistic(found) and in_place and "/input_args" in found.where and node_of(found, ours)["shape"] == [])


def is_of_low_precision(found: Difference, peer: Unit, ours: Unit) -> bool:
    rounding = next((size for name, size in LOW_PRECISION.items() if found.where.endswith(name)), 0.0)
    if statistic(found) not in {"Mean", "Norm"} or not rounding:
        return False
    node = node_of(found, ours)
    scale = max(abs(node["Max"]), abs(node["Min"]), abs(node["Norm"]))
    return abs(float(str(found.expected)) - float(str(found.got))) <= rounding * scale


LOW_PRECISION = {"torch.float16": 2.0**-10, "torch.bfloat16": 2.0**-7}


def is_unnamed_object(found: Difference, peer: Unit, ours: Unit) -> bool:
    return found.where.endswith("/ names") and found.expected == [] and found.got == ["type", "value"]


def is_called_in_backward(found: Difference, peer: Unit, ours: Unit) -> bool:
    recomputed = any("torch/utils/checkpoint.py" in frame for frame in ours.stacks.get(found.entry, []))
    return found.where == "/is_recompute" and found.expected is True and not recomputed


def is_part_of_a_gradient(found: Difference, peer: Unit, ours: Unit) -> bool:
    if ".parameters_grad" not in found.entry:
        return False
    if found.where == "file bits":
        return is_last_part(found.entry, peer, ours)
    if found.where == "file added":
        gradients = ours.data[entry_key(found, ours)].values()
        return any(len(sums) > 1 and found.entry in [node["data_name"] for node in sums] for sums in gradients)
    return isinstance(found.got, list) and isinstance(found.expected, list) and len(found.got) > len(found.expected)


def is_last_part(name: str, peer: Unit, ours: Unit) -> bool:
    """Whether the peer's gradient is what the last of several passes added to ours."""
    key, parameter = entry_key(Difference(name, "file", "", ""), ours), name.removesuffix(".pt").rsplit(".", 1)[1]
    sums = [torch.load(ours.files[node["data_name"]]) for node in ours.data[key][parameter]]
    return len(sums) > 1 and torch.allclose(sums[0] - sums[1], torch.load(peer.files[name]), rtol=1e-5, atol=1e-6)


def is_order_of_sums(found: Difference, peer: Unit, ours: Unit) -> bool:
    if not re.search(r"\b(backward|parameters_grad)\b", found.entry):
        return False
    if found.where == "file bits":
        one, two = (torch.load(unit.files[found.entry]) for unit in (peer, ours))
        return bool(torch.allclose(one, two, rtol=0, atol=4e-7 * float(one.abs().max())))
    if found.where.endswith("/md5"):
        one, two = (node_of(found, unit) for unit in (peer, ours))
        scale = max(abs(one[name]) for name in ("Max", "Min"))
        return all(abs(one[name] - two[name]) <= 4e-7 * scale for name in ("Max", "Min", "Mean"))
    if not statistic(found):
        return False
    scale = max(abs(node_of(found, ours)[name] or 0) for name in ("Max", "Min", "Norm"))
    return abs(float(str(found.expected)) - float(str(found.got))) <= 4e-7 * scale


FAULTS = [
    Fault(
        "outside of modules",
        'calls before the first module have the parent "" and calls after it null: null is what format.md says',
        is_outside,
    ),
    Fault(
        "closed at once",
        "a module whose positional inputs need no gradient is over before the backward of what ran inside it",
        is_closed_at_once,
    ),
    Fault(
        "never closed",
        "the backward of an in-place module is entered and never left; everything after it hangs below it",
        is_under_an_open_module,
    ),
    Fault(
        "recompute",
        "a forward that is run again in backward leaves the peer's stack of modules wrong",
        is_after_recompute,
    ),
    Fault(
        "early stop",
        "when checkpointing ends the second forward by an exception, APIs of later second forwards are not recorded",
        is_lost_after_early_stop,
    ),
    Fault("in-place module", "the backward of a module that works in place is not recorded", is_in_place_backward),
    Fault("dataclass output", "the backward of a module that returns a dataclass is not recorded", is_dataclass_output),
    Fault(
        "unused output",
        "outputs of a module are joined in one node of the graph, which calls those nobody used, with no gradient: "
        "training without the peer does not",
        is_unused_output,
    ),
    Fault(
        "joined outputs",
        "outputs of a module are joined in one node of the graph, so that no part of it begins before the gradients of "
        "all are there: an order that training without the peer has not",
        is_order_of_joined_outputs,
    ),
    Fault(
        "input returned",
        "gradients of a dropout with p=0, which returns its input, are those of whatever made the input",
        is_input_returned,
    ),
    Fault("negative norm", "the norm of a 0-d tensor is given as its value", is_negative_norm),
    Fault("read too late", "0-d inputs of in-place calls are looked at when they were overwritten", is_read_too_late),
    Fault("low precision", "float16 and bfloat16 are summed in their own type", is_of_low_precision),
    Fault("unnamed object", "a torch.dtype is recorded as {}", is_unnamed_object),
    Fault("called in backward", "calls in the backward of a custom Function count as recompute", is_called_in_backward),
    Fault(
        "part of a gradient",
        "of a parameter with several backward passes what the last one added is recorded, not the gradient",
        is_part_of_a_gradient,
    ),
    Fault(
        "order of sums",
        "views for backward hooks change the order in which gradients of a tensor used twice are added: last bits "
        "differ from training without the peer",
        is_order_of_sums,
    ),
]
