"""Mappings of names in JSON and YAML: read or refused, small, and usable for any key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msformat.compare.mapping import NameMapping, load_mapping, parse_mapping
from msformat.errors import MsformatError
from msformat.names import OpName, build_entry, parse_entry
from tests.fuzz.target import Target

_KEYS = ("Module.a.b.C.forward.0", "Functional.relu.0.forward", "Primitive.m.M.1.backward", "Cell.a.B.parameters_grad")
_SECTIONS = ("modules", "apis", "entries", "parameters", "tensors")


def check(data: bytes, place: Path) -> None:
    """A file of either kind."""
    for name in ("names.json", "names.yaml"):
        path = place / name
        path.write_bytes(data)
        try:
            mapping = load_mapping(path)
        except MsformatError as error:
            _check_message(str(error))
            continue
        _use(mapping)
        if not mapping.children:
            sections = {section: dict(getattr(mapping, section)) for section in _SECTIONS}
            assert parse_mapping(sections, "m") == mapping


def _check_message(text: str) -> None:
    """Aliases of YAML must not make it endless."""
    assert len(text) < 5000


def _use(mapping: NameMapping) -> None:
    for key in (*_KEYS, *list(mapping.entries)[:3]):
        found = mapping.name(key, parse_entry(key), {"": "C", "a": "C"})
        assert found is None or isinstance(found, OpName)
        try:
            str(found and build_entry(found))
        except MsformatError:
            continue
    assert isinstance(mapping.parameter("a.gamma"), str)


def seeds() -> Iterator[bytes]:
    """One of each kind."""
    yield b"modules:\n  decoder.blocks: layers\napis:\n  Functional.dense: Functional.linear\n"
    yield b"entries:\n  Module.head.H.forward.0: Module.lm.L.forward.0\nparameters:\n  gamma: weight\ntensors: {}\n"
    yield b'{"fc1.Dense": "fc1.Linear", "Functional.dense": "Functional.linear", "a.0.forward.input.0.pt": "b"}'
    yield b"- ms_api: mint.add\n  pt_api: torch.add\n  ms_args: [0]\n"
    yield b'[{"ms_api": "a", "pt_api": "b"}]'
    yield b"TopLayer:\n  network: model\nEncoder:\n  attn.core: self_attention(Attention)\n"
    yield b"a: &x {b: c}\nd: *x\n<<: *x\ne: !!python/object:os.system x\nf: ~\ng: 010\nh: no\n"
    yield b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]\n"


_WORDS = "modules: apis: &a *a <<: !! --- ? { - ms_api TopLayer | %YAML"
TARGET = Target(check, seeds, words=tuple(_WORDS.encode().split(b" ")), most_bytes=1024)
