"""The one grammar of entry keys and tensor names; nothing else takes such a name apart or puts one together.

Entry keys::

    API             {Prefix}.{api}.{n}.{forward|backward}                 Functional.relu.0.forward
    primitive       Primitive.{attribute}.{Class}.{n}.{stage}             Primitive.matmul.MatMul.0.forward
    module          {Module|Cell}.{path}.{Class}.{forward|backward}.{n}   Module.blocks.0.Linear.forward.1
    gradients       {Module|Cell}.{path}.{Class}.parameters_grad[.{n}]    with an index since 26.2.0
    saved variable  {name}.{n}.debug                                      8.1.0, 26.2.0
    saved variable  {name}.{n}                                            1.2.2
    kernel          {Type}.{name}.{task}[.{stream}].{timestamp}           level L2, nine digits or more

Tensor names: ``{entry}.{category}{.path}{suffix}`` with the categories input, output, kwargs and parameters;
``{entry}{.path}{suffix}`` for saved variables and parameter gradients; ``{entry}.tensor.{path}{suffix}`` for saved
variables of 1.2.2, where a bare tensor leaves the path empty (``y.0.tensor..pt``).

Nothing in a name is quoted, so some strings have two readings. The choice is always the same:

* An entry key is, in this order: ``….{n}.debug``, a module (kind ``Module`` or ``Cell``), an API, a kernel,
  ``{name}.{n}``.
* Keys are read from the right: modules may be called ``forward`` or ``0``, variables may hold dots and digits.
* A tensor name of an API or module ends its entry at the *leftmost* place where a complete entry is followed by a
  category: a module called ``input`` is no such place, a dict key in an argument comes after it.
* A tensor name of a saved variable ends its entry at the *rightmost* ``.{n}.debug`` or ``.{n}.tensor.``; API and module
  readings go first. Who knows the entry passes it to :func:`parse_data_name` and needs no such choice.
* Prefixes that msprobe does not define may hold dots (``register_custom_api`` uses the module's name): then the last
  part is the API. Behind a known prefix everything is the API (``Torch.linalg.norm``).

Parsing never raises; what fits no form gives None.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from msformat.atomic import is_temporary
from msformat.errors import FormatError

__all__ = [
    "API_PREFIXES",
    "CATEGORIES",
    "MODULE_KINDS",
    "SUFFIXES",
    "NaturalKey",
    "OpName",
    "TensorName",
    "build_data_name",
    "build_entry",
    "is_plain_call",
    "key_matches",
    "natural_key",
    "parse_data_name",
    "parse_entry",
    "safe_data_name",
]

MODULE_KINDS = frozenset({"Module", "Cell"})
# PyTorch and MSAdapter first, then what only MindSpore has.
_PREFIXES = (
    "Tensor Torch Functional NPU VF Aten Distributed MindSpeed Jit Primitive Mint MintFunctional MintDistributed"
)
API_PREFIXES = frozenset(_PREFIXES.split())
CATEGORIES = ("input", "output", "kwargs", "parameters")
SUFFIXES = (".pt", ".npy")

_STAGES = ("forward", "backward")
_GRADIENTS = "parameters_grad"
_DEBUG = "debug"
_TENSOR_122 = "tensor"
# No leading zero, so that a number is rebuilt as it was; 18 digits keep int() far from its digit limit.
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")
# The type of a kernel holds no dots, the name should not; no variable was ever saved as often as a timestamp is large.
_KERNEL = re.compile(r"([^.]*)\.(.*?)\.([0-9]{1,20}(?:\.[0-9]{1,20})?)\.([1-9][0-9]{8,19})")
_NAME_BYTES = 255
_HARMFUL = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")
_READABLE_BYTES = 160

NaturalKey: TypeAlias = "tuple[tuple[str | tuple[int, str], ...], str]"


@dataclass(frozen=True, slots=True)
class OpName:
    """What an entry key says.

    Attributes
    ----------
    kind
        ``Functional``, ``Module``, ``Primitive``, a custom prefix; ``""`` for a saved variable.
    path
        API name, module path (``0.blocks.1`` when models were given as a list), or variable name. ``""`` for a module
        key without path, which only other tools write.
    class_name
        Class of a module or primitive, type of a kernel, else None.
    index
        Which call, from 0; None for parameter gradients of 1.2.2 and 8.1.0. A kernel's timestamp.
    stage
        ``forward``, ``backward``, ``parameters_grad``, ``debug``; ``""`` for a saved variable of 1.2.2. A kernel's
        task and stream, ``5.2``.
    order
        Where the index stands: ``api`` before the stage, ``module`` after it, ``saved`` after the variable, ``kernel``
        after task and stream.
    """

    kind: str
    path: str
    class_name: str | None
    index: int | None
    stage: str
    order: Literal["api", "module", "saved", "kernel"]

    def __str__(self) -> str:
        return build_entry(self)


@dataclass(frozen=True, slots=True)
class TensorName:
    """What a tensor name says.

    Attributes
    ----------
    entry
        Key of the entry the tensor belongs to.
    category
        ``input``, ``output``, ``kwargs``, ``parameters``; ``tensor`` for a saved variable of 1.2.2; ``""`` for other
        saved variables and for parameter gradients.
    path
        Indices and keys that lead to the tensor. A dict key with a dot in it counts as several.
    suffix
        ``.pt``, ``.npy`` or ``""``.
    """

    entry: str
    category: str
    path: tuple[str, ...]
    suffix: str

    def __str__(self) -> str:
        return build_data_name(self)


# --- entry keys ----------------------------------------------------------------------------------------------------


def parse_entry(key: str) -> OpName | None:
    """Take an entry key apart; None for a key of no known form. ``build_entry`` gives the same string back."""
    parts = key.split(".")
    return _parse_debug(parts) or _parse_module(parts) or _parse_api(parts) or _parse_kernel(key) or _parse_saved(parts)


def is_plain_call(key: str) -> bool:
    """Whether a key is surely that of a call, no saved variable and no gradients; False says nothing.

    :func:`parse_entry` would say the same, but takes ten times as long.
    """
    parts = key.split(".")
    if parts[-1] in _STAGES:
        return True
    is_module = len(parts) > 4 and parts[0] in MODULE_KINDS and parts[-2] in _STAGES
    return is_module and parts[1] != "" and parts[-3] != "" and _is_index(parts[-1])


def build_entry(name: OpName) -> str:
    """Put an entry key together.

    Raises
    ------
    FormatError
        No key has this form: unknown stage for the order, a missing or negative index, a module without class, an
        API without prefix.
    """
    if name.order == "module":
        return _build_module(name)
    if name.order == "kernel":
        return f"{name.class_name}.{name.path}.{name.stage}.{_index_text(name)}"
    stage_ok = name.stage in _STAGES if name.order == "api" else name.stage in ("", _DEBUG)
    if not stage_ok or (name.order == "api" and not name.kind):
        raise _no_key(name)
    if name.order == "api":
        middle = name.path if name.class_name is None else f"{name.path}.{name.class_name}"
        return f"{name.kind}.{middle}.{_index_text(name)}.{name.stage}"
    return f"{name.path}.{_index_text(name)}" + (f".{name.stage}" if name.stage else "")


def _build_module(name: OpName) -> str:
    if not name.class_name or name.stage not in (*_STAGES, _GRADIENTS):
        raise _no_key(name)
    head = ".".join(filter(None, (name.kind, name.path, name.class_name, name.stage)))
    if name.index is None and name.stage == _GRADIENTS:
        return head
    return f"{head}.{_index_text(name)}"


def _index_text(name: OpName) -> str:
    if name.index is None or name.index < 0:
        raise _no_key(name)
    return str(name.index)


def _no_key(name: OpName) -> FormatError:
    return FormatError(f"no entry key has order {name.order!r}, stage {name.stage!r}, index {name.index!r} ({name!r})")


def _is_index(text: str) -> bool:
    return _INDEX.fullmatch(text) is not None


def _parse_debug(parts: Sequence[str]) -> OpName | None:
    if len(parts) < 3 or parts[-1] != _DEBUG or not _is_index(parts[-2]):
        return None
    return OpName("", ".".join(parts[:-2]), None, int(parts[-2]), _DEBUG, "saved")


def _parse_kernel(key: str) -> OpName | None:
    found = _KERNEL.fullmatch(key)
    return OpName("", found[2], found[1], int(found[4]), found[3], "kernel") if found else None


def _parse_saved(parts: Sequence[str]) -> OpName | None:
    if len(parts) < 2 or not _is_index(parts[-1]):
        return None
    return OpName("", ".".join(parts[:-1]), None, int(parts[-1]), "", "saved")


def _parse_module(parts: Sequence[str]) -> OpName | None:
    if parts[0] not in MODULE_KINDS:
        return None
    if parts[-1] == _GRADIENTS:
        index, end = None, len(parts) - 1
    elif len(parts) > 2 and parts[-2] in (*_STAGES, _GRADIENTS) and _is_index(parts[-1]):
        index, end = int(parts[-1]), len(parts) - 2
    else:
        return None
    if not _is_module_head(parts, end):
        return None
    return OpName(parts[0], ".".join(parts[1 : end - 1]), parts[end - 1], index, parts[end], "module")


def _is_module_head(parts: Sequence[str], end: int) -> bool:
    """Whether ``parts[:end]`` is kind, path and class. An empty path has no dot of its own: ``Module..X`` is none."""
    return end >= 2 and parts[end - 1] != "" and not (end == 3 and parts[1] == "")


def _parse_api(parts: Sequence[str]) -> OpName | None:
    if len(parts) < 4 or parts[0] == "" or parts[-1] not in _STAGES or not _is_index(parts[-2]):
        return None
    kind, path, class_name = _split_api(parts[:-2])
    return OpName(kind, path, class_name, int(parts[-2]), parts[-1], "api")


def _split_api(head: Sequence[str]) -> tuple[str, str, str | None]:
    """Prefix, API name, class of ``{Prefix}.{api}`` or ``Primitive.{attribute}.{Class}``."""
    if head[0] == "Primitive" and len(head) > 2:
        return head[0], ".".join(head[1:-1]), head[-1]
    if head[0] in API_PREFIXES or head[0] in MODULE_KINDS:
        return head[0], ".".join(head[1:]), None
    return ".".join(head[:-1]), head[-1], None


# --- tensor names --------------------------------------------------------------------------------------------------


def parse_data_name(data_name: str, entry: str | None = None) -> TensorName | None:
    """Take a tensor name apart; None for one of no known form. ``build_data_name`` gives the same string back.

    Parameters
    ----------
    data_name
        Name of the tensor, suffix included.
    entry
        Key of the entry that refers to it, where known: the name is then split there and nowhere else.
    """
    suffix = next((s for s in SUFFIXES if data_name.endswith(s)), "")
    stem = data_name.removesuffix(suffix)
    if entry is not None:
        return _split_known(stem, entry, suffix)
    parts = stem.split(".")
    for find in (_end_of_module, _end_of_api, _end_of_gradients, _end_of_debug, _end_of_saved):
        end = find(parts)
        if end:
            return _split_known(stem, ".".join(parts[:end]), suffix)
    return None


def build_data_name(name: TensorName) -> str:
    """Put a tensor name together. Whether it may serve as a file name is for :func:`safe_data_name` to say."""
    if name.category == _TENSOR_122:
        return f"{name.entry}.{_TENSOR_122}.{'.'.join(name.path)}{name.suffix}"
    parts = (name.entry, name.category, *name.path) if name.category else (name.entry, *name.path)
    return ".".join(parts) + name.suffix


def _split_known(stem: str, entry: str, suffix: str) -> TensorName | None:
    op = parse_entry(entry)
    if op is None or op.order == "kernel" or not (stem == entry or stem.startswith(entry + ".")):
        return None
    rest = stem[len(entry) + 1 :]
    path = tuple(rest.split(".")) if stem != entry else ()
    if op.order == "saved" and op.stage == _DEBUG:
        return TensorName(entry, "", path, suffix)
    if op.stage == _GRADIENTS:
        return TensorName(entry, "", path, suffix) if path else None
    if op.order == "saved":
        bare = path[1:] == ("",)
        return TensorName(entry, _TENSOR_122, () if bare else path[1:], suffix) if _is_122(path) else None
    return TensorName(entry, path[0], path[1:], suffix) if path and path[0] in CATEGORIES else None


def _is_122(path: Sequence[str]) -> bool:
    return len(path) > 1 and path[0] == _TENSOR_122


def _end_of_module(parts: Sequence[str]) -> int:
    """Where the entry key ends, 0 for nowhere: behind the index of the leftmost ``….forward.{n}.{category}``."""
    if parts[0] not in MODULE_KINDS:
        return 0
    for at in range(2, len(parts) - 2):
        complete = parts[at] in _STAGES and parts[at + 2] in CATEGORIES and _is_index(parts[at + 1])
        if complete and _is_module_head(parts, at):
            return at + 2
    return 0


def _end_of_api(parts: Sequence[str]) -> int:
    if parts[0] == "":
        return 0
    for at in range(3, len(parts) - 1):
        if parts[at] in _STAGES and parts[at + 1] in CATEGORIES and _is_index(parts[at - 1]):
            return at + 1
    return 0


def _end_of_gradients(parts: Sequence[str]) -> int:
    if parts[0] not in MODULE_KINDS:
        return 0
    for at in range(2, len(parts) - 1):
        if parts[at] == _GRADIENTS and _is_module_head(parts, at):
            # A gradient belongs to a parameter, so a number with nothing behind it names the parameter.
            return at + 2 if at + 2 < len(parts) and _is_index(parts[at + 1]) else at + 1
    return 0


def _end_of_debug(parts: Sequence[str]) -> int:
    for at in range(len(parts) - 1, 1, -1):
        if parts[at] == _DEBUG and _is_index(parts[at - 1]):
            return at + 1
    return 0


def _end_of_saved(parts: Sequence[str]) -> int:
    for at in range(len(parts) - 2, 1, -1):
        if parts[at] == _TENSOR_122 and _is_index(parts[at - 1]):
            return at
    return 0


# --- names as file names, and their order --------------------------------------------------------------------------


def safe_data_name(raw: str) -> str:
    """A tensor name that is harmless as a file name.

    Returns
    -------
    str
        ``raw`` itself if it is neither empty nor ``.`` nor ``..``, holds no ``/``, ``\\`` or control character, takes
        at most 255 bytes in UTF-8, and is no name that clean-up after a crash would remove. Otherwise a readable part,
        ``~`` and 32 hex digits of a digest of ``raw``, with the suffix of ``raw``.
    """
    if _is_harmless(raw):
        return raw
    suffix = next((s for s in SUFFIXES if raw.endswith(s)), "")
    # No run of dots survives: a name that reads like a path upwards frightens people and tools.
    readable = re.sub(r"[^\w.-]+|\.{2,}", "_", raw.removesuffix(suffix)[: 4 * _READABLE_BYTES])
    readable = readable.encode("utf-8", "ignore")[:_READABLE_BYTES].decode("utf-8", "ignore").strip(".")
    digest = hashlib.blake2b(raw.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{readable or 'tensor'}~{digest}{suffix}"


def _is_harmless(raw: str) -> bool:
    if raw in ("", ".", "..") or _HARMFUL.search(raw) or is_temporary(raw):
        return False
    try:
        return len(raw.encode("utf-8")) <= _NAME_BYTES
    except UnicodeEncodeError:
        # A lone surrogate: no file system and no JSON reader agrees on what it is.
        return False


def key_matches(key: str, pattern: str) -> bool:
    """Whether a pattern is a part of a key, or a glob (``Module.*.forward.*``) of all of it. Case matters."""
    return pattern in key or fnmatchcase(key, pattern)


def natural_key(text: str) -> NaturalKey:
    """Sort key under which runs of digits compare as numbers, of any length: ``rank2`` before ``rank10``."""
    pieces: list[str | tuple[int, str]] = []
    for at, piece in enumerate(re.split(r"([0-9]+)", text)):
        digits = piece.lstrip("0")
        # Length first, then text, orders numbers without int() and its limit of 4300 digits.
        pieces.append((len(digits), digits) if at % 2 else piece)
    return tuple(pieces), text
