"""What was learnt of a content once is used again, and never for another content, however that came to be.

Each write below happens between two looks at the same tensor; torch's own reductions of a clone, and its bits, judge.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from capture.framework import Wanted
from capture.pytorch.tensors import TorchFramework
from tests.capture.pytorch.describing import CHECKSUMS, EVERY_WAY, STATISTICS, TENSORS, describe

COUNT = 4099  # no round number: the last element is in no whole block


def through_data(tensor: torch.Tensor) -> None:
    tensor.data[-1] = 7


def through_data_arithmetic(tensor: torch.Tensor) -> None:
    tensor.data.mul_(1.5)


def through_numpy(tensor: torch.Tensor) -> None:
    tensor.detach().numpy()[COUNT // 2] = -9


def through_dlpack(tensor: torch.Tensor) -> None:
    torch.from_dlpack(tensor.detach().__dlpack__())[3] = 5


def through_memory(tensor: torch.Tensor) -> None:
    ctypes.c_float.from_address(tensor.data_ptr() + 4 * 17).value = 2.5


def through_storage(tensor: torch.Tensor) -> None:
    tensor.untyped_storage()[0] = 1


def through_a_permutation(tensor: torch.Tensor) -> None:
    tensor.data.copy_(tensor.detach().flip(0).clone())


def through_two_neighbours(tensor: torch.Tensor) -> None:
    first, second = tensor.data[5].item(), tensor.data[6].item()
    tensor.data[5], tensor.data[6] = second, first


def through_a_sign(tensor: torch.Tensor) -> None:
    tensor.data.neg_()


def through_out(tensor: torch.Tensor) -> None:
    torch.add(torch.ones(COUNT), 1, out=tensor.data)


def through_foreach(tensor: torch.Tensor) -> None:
    torch._foreach_add_([tensor.data], 1.0)


def through_an_optimizer(tensor: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(tensor.data)  # shares memory, not the version
    parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW([parameter], lr=0.1).step()


def through_no_grad(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


def through_batch_norm(tensor: torch.Tensor) -> None:
    torch.nn.functional.batch_norm(torch.randn(4, COUNT), tensor.data, torch.ones(COUNT), training=True)


def through_a_view(tensor: torch.Tensor) -> None:
    tensor.data.view(-1)[10:20].zero_()


def through_set_data(tensor: torch.Tensor) -> None:
    tensor.data = torch.full((COUNT,), 0.25)


WRITES = [value for name, value in list(globals().items()) if name.startswith("through_")]


def check(tensor: torch.Tensor, framework: TorchFramework, wanted: Wanted) -> None:
    """What is recorded now is what a framework that has seen nothing records of a clone, and what torch says."""
    found, fresh = describe(tensor, wanted, framework), describe(tensor.detach().clone(), wanted)
    assert {**found.node, "requires_grad": False} == fresh.node
    assert found.node["Max"] == tensor.max().item()
    if wanted.data:
        assert found.host is not None
        assert found.host.bits is not None
        np.testing.assert_array_equal(found.host.bits, tensor.detach().clone().numpy())


@pytest.mark.parametrize("wanted", EVERY_WAY, ids=lambda wanted: "".join("sdm"[i] for i in range(3) if wanted[i]))
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_every_write_is_seen(write: Callable[[torch.Tensor], None], wanted: Wanted, requires_grad: bool) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(COUNT).requires_grad_(requires_grad and write is not through_no_grad)
    framework = TorchFramework()
    for _ in range(3):
        check(tensor, framework, wanted)
        check(tensor, framework, wanted)
        write(tensor)
    check(tensor, framework, wanted)


@pytest.mark.parametrize("wanted", EVERY_WAY)
def test_writes_to_the_memory_of_an_array_are_seen(wanted: Wanted) -> None:
    array = np.zeros(COUNT, dtype=np.float32)
    tensor, framework = torch.from_numpy(array), TorchFramework()
    for number in range(5):
        array[number] = number + 1
        check(tensor, framework, wanted)


def test_a_host_copy_does_not_change_with_its_tensor() -> None:
    tensor = torch.zeros(10)
    host = describe(tensor, TENSORS).host
    tensor.fill_(3)
    assert host is not None
    assert host.bits is not None
    assert not host.bits.any()


def test_an_address_given_to_the_next_tensor_means_nothing() -> None:
    framework = TorchFramework()
    for number in range(200):
        tensor = torch.full((COUNT,), float(number))
        assert describe(tensor, STATISTICS, framework).node["Max"] == number
        del tensor


# --- the same content once -------------------------------------------------------------------------------------------


def counted(framework: TorchFramework, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many elements each real reduction had."""
    calls: list[int] = []
    known = framework.element_type(torch.float32)
    reduce = known.reduce

    def count(tensor: torch.Tensor) -> Any:
        calls.append(tensor.numel())
        return reduce(tensor)

    known.reduce = count
    return calls


def test_equal_content_is_reduced_and_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = TorchFramework()
    calls = counted(framework, monkeypatch)
    tensor = torch.randn(6, 4)
    same = [tensor, tensor.detach(), tensor.clone(), torch.nn.Parameter(tensor), tensor.t().contiguous().t()]
    hosts = {id(describe(one, TENSORS, framework).host) for one in same}
    assert len(hosts) == 1
    assert calls == [24]
    describe(tensor.t(), STATISTICS, framework)  # in memory it is the same
    assert calls == [24]


def test_shapes_share_memory_and_types_do_not() -> None:
    framework, tensor = TorchFramework(), torch.randn(6, 4)
    first, second = (describe(one, TENSORS, framework).host for one in (tensor, tensor.view(4, 6)))
    third = describe(tensor.view(torch.int32), TENSORS, framework).host
    assert first is not None
    assert second is not None
    assert third is not None
    assert first is not second
    assert first.bits is not None
    assert second.bits is not None
    assert np.shares_memory(first.bits, second.bits)
    assert second.bits.shape == (4, 6)
    assert third.dtype.name == "int32"


def test_content_whose_bits_are_stored_is_known_still() -> None:
    framework, tensor = TorchFramework(), torch.randn(6, 4)
    host = describe(tensor, TENSORS, framework).host
    assert host is not None
    host.bits, host.name = None, "stored.pt"
    assert describe(tensor, TENSORS, framework).host is host
    other = describe(tensor.view(-1), TENSORS, framework).host  # another shape is another file
    assert other is not None
    assert other.bits is not None


def test_nodes_are_not_shared() -> None:
    framework, tensor = TorchFramework(), torch.randn(3)
    first, second = (describe(tensor, TENSORS, framework).node for _ in range(2))
    first["data_name"] = "a.pt"
    first["shape"].append(9)
    assert "data_name" not in second
    assert second["shape"] == [3]


def test_a_checksum_is_computed_once() -> None:
    framework, tensor = TorchFramework(), torch.randn(50)
    crc = describe(tensor, CHECKSUMS, framework).node["md5"]
    host = describe(tensor, TENSORS, framework).host
    assert host is not None
    assert host.crc == crc


def test_a_new_step_forgets() -> None:
    framework, tensor = TorchFramework(), torch.randn(50)
    first = describe(tensor, TENSORS, framework).host
    framework.new_step()
    assert describe(tensor, TENSORS, framework).host is not first


def test_no_tensor_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = TorchFramework()
    gc.collect()
    gc.disable()
    try:
        for wanted in EVERY_WAY:
            tensor = torch.randn(20, 30, requires_grad=True)
            storage, gone = weakref.ref(tensor), []
            weakref.finalize(tensor, gone.append, True)
            for view in (tensor, tensor.t(), tensor[:, ::2], tensor * 1):
                describe(view, wanted, framework)
            del view, tensor
            assert storage() is None
            assert gone
    finally:
        gc.enable()


def test_without_steps_it_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = TorchFramework()
    known = framework.element_type(torch.float32)
    monkeypatch.setattr(type(known), "_MAX_CONTENTS", 10)
    for number in range(100):
        describe(torch.full((3,), float(number)), STATISTICS, framework)
    assert len(known.contents) <= 10
