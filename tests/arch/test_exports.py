"""The public names, pinned. A change here is a change of the API."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

import msformat

ROOT = Path(__file__).resolve().parents[2]

_NAMES = """
    BackendMissingError ConvertOptions ConvertReport CorruptJournalError CorruptTensorError DType DTypeError
    DiffOptions DiffResult Dump DumpWriter Entry EntryNotFoundError FormatError Header KeyExistsError MISSING
    MsformatError OpName Opaque Scalar SchemaError Stats Store StoreError StoreOptions StoredTensor Table Tensor
    TensorMeta TensorName TensorNotFoundError Thresholds Tree Unit UnitKey UnitNotFoundError UnsafeInputError
    VerifyReport available_stores build_data_name build_entry canonical_crc32 content_digest convert_dump diff
    dtype_from_numpy dtype_named dump_node known_dtypes load_mapping natural_key open open_dump open_store
    parse_data_name parse_dtype parse_entry recover_dump safe_data_name tensor_stats verify_dump
"""
PUBLIC = _NAMES.split()


def test_the_public_names() -> None:
    assert sorted(msformat.__all__) == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(msformat))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(msformat, name)
    assert getattr(msformat, name) is found
    assert (found.__doc__ or "").strip()


def test_type_checkers_see_the_same_names() -> None:
    """Lazy names are invisible to mypy: it reads the block under TYPE_CHECKING instead."""
    body = ast.parse((ROOT / "msformat" / "__init__.py").read_text("utf-8")).body
    block = next(node for node in body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name: (node.module, alias.name) for node in imports for alias in node.names}
    assert sorted(seen) == sorted(PUBLIC)
    for public, (module, name) in seen.items():
        assert module == f"msformat.{msformat._HOME[public]}"
        assert name == msformat._ALIASES.get(public, public)


def test_open_is_open_dump() -> None:
    assert msformat.open is msformat.open_dump


def test_a_submodule_never_hides_a_name() -> None:
    modules = {path.stem for path in (ROOT / "msformat").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(PUBLIC)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        msformat.nothing  # noqa: B018


def test_errors_pickle() -> None:
    """Worker processes send them home."""
    error = msformat.SchemaError("dump.json", "/data/x", expected="an object", found="a list")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.pointer, again.expected) == (str(error), "/data/x", "an object")
    missing = pickle.loads(pickle.dumps(msformat.TensorNotFoundError("a.pt", "here", ["b.pt", "aa.pt"])))
    assert (str(missing), missing.near) == ("here: no tensor 'a.pt'; near matches: 'aa.pt', 'b.pt'", ["aa.pt", "b.pt"])
    full = pickle.loads(pickle.dumps(msformat.StoreError(28, "No space left on device")))
    assert full.errno == 28


def test_the_version_is_the_distribution_s() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert re.search(rf'^version = "{re.escape(msformat.__version__)}"$', project, re.MULTILINE)
