"""Read, convert, verify and write msprobe precision dumps: json with npy or pt files, HDF5, Zarr.

::

    import msformat

    dump = msformat.open("my_dump")                  # a tree, a unit, a .h5, a .zarr, a URL
    unit = dump[0, 3]                                # step 0, rank 3
    entry = unit["Module.norm.LayerNorm.forward.0"]
    entry.inputs[0][0, :4]                           # reads only what it needs
    unit.table().to_pandas()                         # a row a tensor

Every public name is in ``__all__`` and is imported on first use, so that ``import msformat`` costs next to nothing and
loads no framework and no store library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import msformat.plot  # noqa: F401 (so that a type checker knows msformat.plot, which is no name of __all__)
    from msformat.compare.mapping import load_mapping
    from msformat.compare.model import DiffResult
    from msformat.compare.run import DiffOptions, diff
    from msformat.compare.thresholds import Thresholds
    from msformat.convert import ConvertOptions, ConvertReport
    from msformat.convert import convert as convert_dump
    from msformat.digest import canonical_crc32, content_digest
    from msformat.dtypes import DType, dtype_from_numpy, dtype_named, known_dtypes, parse_dtype
    from msformat.errors import (
        BackendMissingError,
        CorruptJournalError,
        CorruptTensorError,
        DTypeError,
        EntryNotFoundError,
        FormatError,
        KeyExistsError,
        MsformatError,
        SchemaError,
        StoreError,
        TensorNotFoundError,
        UnitNotFoundError,
        UnsafeInputError,
    )
    from msformat.layout import UnitKey
    from msformat.model import Header, Opaque, Scalar, Stats, TensorMeta
    from msformat.names import (
        OpName,
        TensorName,
        build_data_name,
        build_entry,
        natural_key,
        parse_data_name,
        parse_entry,
        safe_data_name,
    )
    from msformat.reader import Dump, Entry, Tensor, Unit, open_dump
    from msformat.reader import open_dump as open  # noqa: A004 (msformat.open, as h5py.File or zarr.open)
    from msformat.recover import recover as recover_dump
    from msformat.schema import dump_node
    from msformat.stats import tensor_stats
    from msformat.stores.base import Store, StoredTensor, StoreOptions
    from msformat.stores.registry import available_stores, open_store
    from msformat.table import MISSING, Table
    from msformat.tree import Tree
    from msformat.verify import VerifyReport
    from msformat.verify import verify as verify_dump
    from msformat.writer import DumpWriter

__version__ = "0.1.0"

__all__ = [
    "MISSING",
    "BackendMissingError",
    "ConvertOptions",
    "ConvertReport",
    "CorruptJournalError",
    "CorruptTensorError",
    "DType",
    "DTypeError",
    "DiffOptions",
    "DiffResult",
    "Dump",
    "DumpWriter",
    "Entry",
    "EntryNotFoundError",
    "FormatError",
    "Header",
    "KeyExistsError",
    "MsformatError",
    "OpName",
    "Opaque",
    "Scalar",
    "SchemaError",
    "Stats",
    "Store",
    "StoreError",
    "StoreOptions",
    "StoredTensor",
    "Table",
    "Tensor",
    "TensorMeta",
    "TensorName",
    "TensorNotFoundError",
    "Thresholds",
    "Tree",
    "Unit",
    "UnitKey",
    "UnitNotFoundError",
    "UnsafeInputError",
    "VerifyReport",
    "available_stores",
    "build_data_name",
    "build_entry",
    "canonical_crc32",
    "content_digest",
    "convert_dump",
    "diff",
    "dtype_from_numpy",
    "dtype_named",
    "dump_node",
    "known_dtypes",
    "load_mapping",
    "natural_key",
    "open",
    "open_dump",
    "open_store",
    "parse_data_name",
    "parse_dtype",
    "parse_entry",
    "recover_dump",
    "safe_data_name",
    "tensor_stats",
    "verify_dump",
]

_MODULES = {
    "compare.mapping": ("load_mapping",),
    "compare.model": ("DiffResult",),
    "compare.run": ("DiffOptions", "diff"),
    "compare.thresholds": ("Thresholds",),
    "convert": ("ConvertOptions", "ConvertReport", "convert_dump"),
    "digest": ("canonical_crc32", "content_digest"),
    "dtypes": ("DType", "dtype_from_numpy", "dtype_named", "known_dtypes", "parse_dtype"),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "layout": ("UnitKey",),
    "model": ("Header", "Opaque", "Scalar", "Stats", "TensorMeta"),
    "names": ("OpName", "TensorName", *(name for name in __all__ if name.endswith(("_entry", "_data_name", "_key")))),
    "reader": ("Dump", "Entry", "Tensor", "Unit", "open_dump", "open"),
    "recover": ("recover_dump",),
    "schema": ("dump_node",),
    "stats": ("tensor_stats",),
    "stores.base": ("Store", "StoreOptions", "StoredTensor"),
    "stores.registry": ("available_stores", "open_store"),
    "table": ("MISSING", "Table"),
    "tree": ("Tree",),
    "verify": ("VerifyReport", "verify_dump"),
    "writer": ("DumpWriter",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
# Functions called like their module are exported with ``_dump``: importing ``msformat.convert`` binds that name to the
# module, whatever stands here.
_ALIASES = {"open": "open_dump", "convert_dump": "convert", "recover_dump": "recover", "verify_dump": "verify"}
# Modules that are used by their name: ``msformat.plot.histogram(tensor)``.
_SUBMODULES = ("plot",)


if not TYPE_CHECKING:  # a type checker would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return import_module(f"{__name__}.{name}")
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{home}"), _ALIASES.get(name, name))
        globals()[name] = found  # the next use finds it at once
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
