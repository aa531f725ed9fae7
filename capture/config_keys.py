"""Every key a configuration may hold: what it means, how it is read, and which ones other tools own.

The tables here are the reference: ``docs/config.md`` is made from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from capture import config_values as values
from capture.config_values import Reader

__all__ = ["INERT", "KEYS", "LEVELS", "OTHER_TASKS", "STORAGE_KEYS", "TASKS", "Inert", "Key"]

Place: TypeAlias = Literal["top", "task"]

TASKS = ("statistics", "tensor", "structure")
LEVELS = ("L0", "L1", "L2", "mix", "debug")


@dataclass(frozen=True, slots=True)
class Key:
    """One key that capture follows.

    Attributes
    ----------
    name
        As written in the file, and as a constructor's argument.
    place
        Beside ``task``, or in the object named after the task.
    kind
        What may stand there, in words.
    read
        Checks and translates the value.
    default
        Meaning when the key is absent, translated already; a ``default_text`` says it where that is not readable.
    meaning
        One paragraph for the reference.
    """

    name: str
    place: Place
    kind: str
    read: Reader
    default: Any
    meaning: str
    default_text: str = ""


@dataclass(frozen=True, slots=True)
class Inert:
    """A key of the peer that capture does not follow.

    Attributes
    ----------
    harmless
        Values that ask for nothing; None always does.
    anything
        Every value is harmless: the key belongs to a feature that another key switches on.
    refused
        Whether another value is an error, because the dump would not be what was asked for; else it is noted.
    reason
        Why, and what to do instead.
    """

    name: str
    place: Place
    reason: str
    harmless: tuple[Any, ...] = ()
    refused: bool = False
    anything: bool = field(default=False, kw_only=True)


KEYS = (
    Key(
        "task", "top", "text", values.choice(*TASKS), "statistics",
        "`statistics`: Max, Min, Mean and Norm of every tensor. `tensor`: its data too. `structure`: names, call "
        "stacks and the module tree only, no values.",
    ),
    Key(
        "dump_path", "top", "path", values.path, None,
        "Directory of the dump; made when the first data come. A relative path is resolved when the debugger is made.",
        default_text="none: it is required",
    ),
    Key(
        "rank", "top", "numbers", values.numbers, None,
        "Ranks that record: a list of whole numbers, `\"3\"` and `\"4-6\"`. Leave it empty in a run of one process.",
        default_text="`[]`: all ranks",
    ),
    Key(
        "step", "top", "numbers", values.numbers, None,
        "Steps that are recorded, written like ranks. Outside them the hooks are out of the way.",
        default_text="`[]`: all steps",
    ),
    Key(
        "level", "top", "text", values.choice(*LEVELS), "L1",
        "`L0`: modules. `L1`: APIs. `mix`: both. `debug`: only what `PrecisionDebugger.save` is given. `L2`: the "
        "kernels of one API, or of a static graph of MindSpore, as the device dumps them.",
    ),
    Key(
        "async_dump", "top", "true or false", values.boolean, default=False, meaning=
        "Accepted as msprobe has it. Writing is done by a thread of its own either way and its queue is bounded by "
        "`max_queue_bytes`, so task `tensor` needs no `list` with it, and it goes with `summary_mode: md5`. At level "
        "L2 in static graphs, MindSpore dumps behind the device (`e2e_dump_settings.enable` false).",
    ),
    Key(
        "extra_info", "top", "true or false", values.boolean, default=True, meaning=
        "`false`: neither call stacks nor the tree of modules are recorded.",
    ),
    Key(
        "dump_enable", "top", "true or false", values.boolean, None,
        "Switches capture while the program runs: the file is read again whenever it changed, and this key alone is "
        "taken from it. A file that cannot be read changes nothing.",
        default_text="absent: always on, and the file is never read again",
    ),
    Key(
        "risk_level", "top", "text", values.risk, "ALL",
        "Which APIs are recorded at levels L1 and mix when neither `scope` nor `list` is given. `ALL`: every one. "
        "`FOCUS`: those that only move, view, convert or create data are left out (`reshape`, `to`, `zeros`, …). "
        "`CORE`: only matrix products, convolutions, normalisations, embeddings, attention, fused NPU operators and "
        "communication. Modules are always recorded. (msprobe 26.2.0 takes FOCUS when the key is absent; 8.1.0 "
        "records everything, and that is the default here.)",
    ),
    Key(
        "precision", "top", "text", values.choice("high", "low"), "high",
        "What statistics of 16-bit types are computed in: `high` accumulates in float32, `low` in the type of the "
        "tensor, as msprobe does. May also stand in the object of the task.",
    ),
    Key(
        "scope", "task", "list of names", values.names, (),
        "Two entry names; what lies between them is recorded, both included. Names of APIs at L1, of modules at L0, "
        "either at mix: `[\"Module.conv1.Conv2d.forward.0\", \"Module.fc2.Linear.forward.0\"]`.",
        default_text="`[]`",
    ),
    Key(
        "list", "task", "list of names", values.names, (),
        "Entry names, or parts of names: `[\"relu\"]`. At level mix, a module that is named stands for everything "
        "that happens while it runs. With a `scope`, what both allow is recorded. At level L2: exactly one entry name "
        "of an API (`[\"Functional.linear.0.backward\"]`); in static graphs of MindSpore names of kernels, their "
        "types, or `name-regex(Default/.+)`, and none for all kernels.",
        default_text="`[]`",
    ),
    Key(
        "tensor_list", "task", "list of names", values.names, (),
        "Parts of names whose data are saved too, in task `statistics`.",
        default_text="`[]`",
    ),
    Key(
        "data_mode", "task", "list of words", values.data_mode, values.DataMode(),
        "`[\"all\"]`, or any of `forward`, `backward`, `input` and `output`: `[\"forward\", \"input\"]` records the "
        "inputs of forward calls, `[\"backward\"]` inputs and outputs of backward calls. At level L2 `[\"all\"]`, "
        "`[\"input\"]` or `[\"output\"]`.",
        default_text="`[\"all\"]`",
    ),
    Key(
        "summary_mode", "task", "text or list", values.summary_mode, "statistics",
        "`md5` adds to the statistics the CRC-32 of every tensor, which the format calls md5. At level L2 in static "
        "graphs, where MindSpore computes them, `md5` stands alone, and a list chooses: `[\"max\", \"mean\", "
        "\"nan count\"]`.",
    ),
    Key(
        "file_format", "task", "text", values.choice("npy", "bin"), "npy",
        "What MindSpore writes at level L2 for graphs that run as a whole (jit_level O2), in task `tensor`: `.npy` "
        "files, or the device's own files.",
    ),
    Key(
        "device", "task", "text", values.choice("host", "device"), "host",
        "Where MindSpore computes statistics at level L2 in static graphs, in task `statistics`.",
    ),
    Key(
        "storage", "top", "object", dict, None,
        "How and where the bytes are kept; see below.",
        default_text="files, as msprobe writes them",
    ),
    Key(
        "on_error", "top", "text", values.choice("continue", "raise"), "continue",
        "When the dump cannot be written any more (disk full): `continue` trains on, with one warning and a dump "
        "that is marked incomplete; `raise` raises in the training loop.",
    ),
    Key(
        "max_queue_bytes", "top", "size", values.size, None,
        "Bytes that may wait for the writer; the training loop waits while there are more. A number, or `\"2 GiB\"`.",
        default_text="1 GiB, or an eighth of the machine's memory where that is less",
    ),
)  # fmt: skip

STORAGE_KEYS = (
    Key(
        "format", "top", "text", values.choice("files", "hdf5", "zarr"), "files",
        "`files`: one `.pt` or `.npy` a tensor, which every tool of msprobe reads. `hdf5`, `zarr`: one container a "
        "step and rank.",
    ),
    Key(
        "compression", "top", "text", str, "auto",
        "`auto`, `none`, or what the store offers: `gzip:4`, `zstd`, `lz4`, `blosc-zstd:5+bitshuffle`. Files are "
        "never compressed.",
    ),
    Key(
        "links", "top", "true or false", values.boolean, default=True, meaning=
        "Keep equal content once; `false` writes every copy.",
    ),
    Key(
        "durability", "top", "text", values.choice("fsync", "process"), "fsync",
        "What is promised to survive: `fsync` a power failure, `process` only the death of the process, and is faster.",
    ),
    Key(
        "overwrite", "top", "true or false", values.boolean, default=False, meaning=
        "`true` removes an earlier dump of the same step and rank; otherwise capture refuses to begin where one lies.",
    ),
    Key(
        "kernels", "top", "text", values.choice("keep", "convert", "move"), "keep",
        "What becomes of the files of a kernel dump (level L2) after each step. `keep`: they stay as the device wrote "
        "them, and `msformat` reads them there. `convert`: they are also taken into the dump's store, behind the "
        "training. `move`: and removed once the store was read back and found equal.",
    ),
)  # fmt: skip

# Tasks, and objects of the file, that belong to other tools: the object is passed over, the task is refused.
OTHER_TASKS = {
    "run_ut": "capture with task tensor or statistics, then run msprobe's accuracy checker on that dump",
    "acc_check": "capture with task tensor or statistics, then run msprobe's accuracy checker on that dump",
    "overflow_check": "capture with task statistics, then `msformat report`: the first NaN or infinity stands on top",
    "nan_check": "capture with task statistics, then `msformat report`: the first NaN or infinity stands on top",
    "exception_dump": "capture with task tensor: what was recorded before the exception stays readable",
    "grad_probe": "capture with task statistics at level L0 or mix: gradients of parameters are recorded there",
    "free_benchmark": "it perturbs the training, which capture never does: use msprobe for it",
    "diff_check": "capture both runs with task statistics, then compare the dumps with `msformat diff`",
}

INERT = (
    Inert(
        "enable_dataloader", "top", "is deprecated: call start(), stop() and step() in the training loop", (False,),
        refused=True,
    ),
    Inert("load", "top", "replaces inputs of modules, which capture never does", ({},), refused=True),
    Inert(
        "custom_op_namespaces", "top", "has no effect: custom operators are named with register_custom_api()", ([],)
    ),
    Inert("online_run_ut", "task", "is the online accuracy checker: use msprobe for it", (False,), refused=True),
    Inert("online_run_ut_recompute", "task", "belongs to online_run_ut", anything=True),
    Inert("nfs_path", "task", "belongs to online_run_ut", anything=True),
    Inert("tls_path", "task", "belongs to online_run_ut", anything=True),
    Inert("host", "task", "belongs to online_run_ut", anything=True),
    Inert("port", "task", "belongs to online_run_ut", anything=True),
    Inert("slice", "task", "is not available: whole tensors are recorded", ([],), refused=True),
    Inert("request_id", "task", "is not available: whole tensors are recorded", ("",), refused=True),
    Inert(
        "bench_path", "task", "compares while running: capture both runs, then compare the dumps with `msformat diff`",
        ("",), refused=True,
    ),
    Inert("overflow_nums", "task", "belongs to task overflow_check", anything=True),
    Inert("check_mode", "task", "belongs to task overflow_check", anything=True),
    Inert("diff_nums", "task", "belongs to task diff_check", anything=True),
)  # fmt: skip
