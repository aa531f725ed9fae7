"""A user's file that says which names of A are which names of B: JSON or YAML.

::

    modules:                     # parts of module paths; the longest that fits counts
      decoder.blocks: layers
    apis:
      Functional.dense: Functional.linear
    entries:                     # whole entry keys
      Module.head.MyHead.forward.0: Module.lm_head.Linear.forward.0
    parameters:                  # last parts of parameter names
      gamma: weight
    tensors:                     # whole tensors, as diff names them
      Functional.topk.0.forward.output.1: Functional.topk.0.forward.output.0

A flat mapping without these sections is sorted by what its names look like. The files of ``msprobe compare`` are read
as they are: its cell mapping (``fc1.Dense: fc1.Linear``), API mapping (a list with ``ms_api`` and ``pt_api``), data
mapping (tensor names) and layer mapping (classes with the names of their children).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from msformat.arguments import path_text
from msformat.errors import FormatError
from msformat.extras import optional
from msformat.jsontext import parse_json
from msformat.names import API_PREFIXES, OpName, parse_data_name, parse_entry
from msformat.plaintext import shortened

__all__ = ["NameMapping", "load_mapping", "parse_mapping"]

_SECTIONS = ("modules", "apis", "entries", "parameters", "tensors")
_SUFFIXES = (".yaml", ".yml")
# A file of names; anything larger is no such file.
_MOST_BYTES = 64 << 20
_TOP_LAYERS = ("TopLayer", "Cell")


@dataclass(frozen=True, slots=True)
class NameMapping:
    """Names of A and what they are called in B.

    Attributes
    ----------
    modules, apis, entries, parameters, tensors
        As in the file.
    children
        Class of a module to names below it (``{"Encoder": {"attn.core": "self_attention"}}``), the layer mapping of
        msprobe; ``""`` for the top.
    """

    modules: Mapping[str, str] = field(default_factory=dict)
    apis: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    children: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Parts of the longest name for a part of a path: a stranger's path may have thousands.
    _longest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = chain(self.modules, *self.children.values())
        object.__setattr__(self, "_longest", max((name.count(".") + 1 for name in names), default=0))

    def name(self, key: str, name: OpName | None, classes: Mapping[str, str]) -> OpName | None:
        """What the entry is called in B; None where the mapping says nothing of it.

        Parameters
        ----------
        classes
            Class of each module path of A, for the layer mapping.
        """
        if key in self.entries:
            return parse_entry(self.entries[key])
        if name is None:
            return None
        if name.order == "module":
            return self._module(name, classes)
        api = self.apis.get(f"{name.kind}.{name.path}" if name.kind else name.path)
        if api is None:
            return None
        kind, _, path = api.partition(".")
        return replace(name, kind=kind, path=path, class_name=None if name.kind != kind else name.class_name)

    def _module(self, name: OpName, classes: Mapping[str, str]) -> OpName | None:
        whole = f"{name.path}.{name.class_name}"
        if whole in self.modules:
            path, _, class_name = self.modules[whole].rpartition(".")
            return replace(name, path=path, class_name=class_name)
        path = self._below(name.path, classes) if self.children else _rewritten(name.path, self.modules, self._longest)
        return replace(name, path=path) if path != name.path else None

    def _below(self, path: str, classes: Mapping[str, str]) -> str:
        """The path with each name replaced as the class above it says."""
        parts, made, at = path.split("."), list[str](), 0
        while at < len(parts):
            names = self.children.get(classes.get(".".join(parts[:at]), ""), {})
            most = min(len(parts), at + self._longest)
            taken = next(
                (end for end in range(most, at, -1) if ".".join(parts[at:end]) in names), at + 1
            )  # fmt: skip
            here = ".".join(parts[at:taken])
            made.append(names.get(here, here))
            at = taken
        return ".".join(made)

    def parameter(self, path: str) -> str:
        """What a parameter is called in B."""
        head, dot, last = path.rpartition(".")
        return head + dot + self.parameters.get(last, last)


def _rewritten(path: str, names: Mapping[str, str], longest: int) -> str:
    """The path with its longest mapped part, from a dot to a dot, replaced; no name has more parts than ``longest``."""
    parts = path.split(".")
    for length in range(min(longest, len(parts)), 0, -1):
        for at in range(len(parts) - length + 1):
            found = names.get(".".join(parts[at : at + length]))
            if found is not None:
                return ".".join(filter(None, (*parts[:at], found, *parts[at + length :])))
    return path


# --- files ----------------------------------------------------------------------------------------------------------


def load_mapping(path: str | os.PathLike[str]) -> NameMapping:
    """Read a mapping file.

    Raises
    ------
    FormatError
        It is no JSON or YAML, or no mapping of names to names.
    BackendMissingError
        It is YAML and PyYAML is not installed.
    OSError
        It cannot be read.
    """
    place = Path(path_text(path))
    if place.stat().st_size > _MOST_BYTES:
        raise FormatError(f"{place}: too large for a mapping of names")
    data = place.read_bytes()
    loader: Callable[[bytes, str], Any] = _load_yaml if place.suffix.lower() in _SUFFIXES else parse_json
    return parse_mapping(loader(data, str(place)), str(place))


def _load_yaml(data: bytes, source: str) -> Any:
    yaml = optional("yaml", "diff", "a mapping in YAML")
    try:
        return yaml.load(data, _text_loader(yaml))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FormatError(f"{source}: {str(error).splitlines()[0]}") from error


def _text_loader(yaml: Any) -> Any:
    """A loader of texts: ``no`` and ``010`` are names, no tag makes a value, no merge (``<<``) grows."""

    class TextLoader(yaml.BaseLoader):  # type: ignore[misc]
        pass

    null = "tag:yaml.org,2002:null"
    TextLoader.add_implicit_resolver(null, re.compile("(~|null|)$"), ["~", "n", ""])
    TextLoader.add_constructor(null, lambda _loader, _node: None)
    return TextLoader


def parse_mapping(value: Any, source: str) -> NameMapping:
    """The mapping that a document means; see the module's docstring.

    Raises
    ------
    FormatError
        It is no mapping of names to names.
    """
    if isinstance(value, list):
        return _of_peer_apis(value, source)
    if not isinstance(value, dict):
        raise FormatError(f"{source}: expected a mapping of names, found {type(value).__name__}")
    if value and all(name in _SECTIONS for name in value):
        return _of_sections({name: _names(section, f"{source}: {name}") for name, section in value.items()})
    if value and all(isinstance(item, dict) for item in value.values()):
        return NameMapping(children=_of_layers(value, source))
    return _sorted_names(_names(value, source))


def _names(value: Any, source: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FormatError(f"{source}: expected names with names, found {_shown(value)}")
    for name, other in value.items():
        if not isinstance(name, (str, int)) or not isinstance(other, (str, int)):
            raise FormatError(f"{source}: expected a name for '{shortened(str(name), 80)}', found {_shown(other)}")
    return {str(name): str(other) for name, other in value.items()}


def _shown(value: Any) -> str:
    """A value for a message. Aliases of YAML make containers endless, or huge once they are written out."""
    return f"a {type(value).__name__}" if isinstance(value, (list, dict)) else shortened(json.dumps(value), 80)


def _of_layers(value: Mapping[str, Any], source: str) -> dict[str, dict[str, str]]:
    found = {}
    for class_name, names in value.items():
        top = "" if class_name in _TOP_LAYERS else str(class_name)
        # ``name(Class)`` is how msprobe's generated files show the class on the other side.
        found[top] = {name: other.partition("(")[0] for name, other in _names(names, f"{source}: {class_name}").items()}
    return found


def _of_peer_apis(value: Iterable[Any], source: str) -> NameMapping:
    apis = {}
    for item in value:
        if not isinstance(item, dict) or not isinstance(item.get("ms_api"), str):
            raise FormatError(f"{source}: expected a list of mappings with ms_api and pt_api")
        apis[item["ms_api"]] = str(item.get("pt_api"))
    return NameMapping(apis=apis)


def _sorted_names(names: Mapping[str, str]) -> NameMapping:
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for name, other in names.items():
        sections[_section_of(name)][name] = other
    return _of_sections(sections)


def _of_sections(sections: Mapping[str, Mapping[str, str]]) -> NameMapping:
    modules, apis, entries, parameters, tensors = (sections.get(name, {}) for name in _SECTIONS)
    return NameMapping(modules, apis, entries, parameters, tensors)


def _section_of(name: str) -> str:
    parsed = parse_entry(name)
    if parsed is not None and parsed.order in ("api", "module"):
        return "entries"
    tensor = parse_data_name(name)
    if tensor is not None and tensor.category not in ("", "tensor"):
        return "tensors"
    return "apis" if name.partition(".")[0] in API_PREFIXES and name.count(".") <= 2 else "modules"
