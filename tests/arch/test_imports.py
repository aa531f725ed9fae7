"""The direction of dependence, as law. Judged on the source by ast and on fresh interpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {"torch", "torch_npu", "mindspore", "mindtorch", "tensorflow", "jax"}
# Module that may import a library -> the library. Everything else goes through these.
HOMES = {
    "h5py": ("msformat.stores.hdf5",),
    "zarr": ("msformat.stores.zarr",),
    "numcodecs": ("msformat.stores.zarr", "msformat.stores.hdf5", "msformat.stores.codecs"),
    "pandas": ("msformat.table",),
    "pyarrow": ("msformat.table", "msformat.compare.export"),
    "openpyxl": ("msformat.compare.export",),
    "yaml": ("msformat.compare.mapping",),
    "polars": ("msformat.table",),
    "xarray": ("msformat.xarrays",),
    "dask": ("msformat.xarrays",),
    "matplotlib": ("msformat.plot",),
    "fsspec": ("msformat.filesystem",),
    "distributed": ("msformat.cluster",),
    "rich": ("msformat.cli",),
}
DENIED = (
    "torch",
    "mindspore",
    "h5py",
    "zarr",
    "numcodecs",
    "pandas",
    "pyarrow",
    "openpyxl",
    "yaml",
    "polars",
    "xarray",
    "dask",
    "matplotlib",
    "IPython",
    "tensorflow",
    "rich",
    "fsspec",
    "distributed",
)


def _modules(package: str) -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MSFORMAT = _modules("msformat")
CAPTURE = _modules("capture")


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _imports(path: Path, *, top_only: bool = False) -> Iterator[str]:
    """Dotted names a file imports, ``from a import b`` as ``a.b``, and literal names given to an import function."""
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if _is_type_checking(node) or (top_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
            "optional",
        ):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _module_of(name: str, modules: dict[str, Path]) -> str | None:
    """``msformat.names.parse_entry`` is in ``msformat.names``."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name if name in modules else None


@pytest.mark.parametrize("module", MSFORMAT)
def test_msformat_imports_neither_frameworks_nor_capture(module: str) -> None:
    roots = {name.partition(".")[0] for name in _imports(MSFORMAT[module])}
    assert not roots & (FRAMEWORKS | {"capture"})


def test_frameworks_are_named_in_interop_only() -> None:
    """interop.py takes the name as an argument of its own, which no import statement shows."""
    source = (ROOT / "msformat" / "interop.py").read_text("utf-8")
    assert source.count("import_module(") == 1
    assert '_framework("torch"' in source
    for module, path in MSFORMAT.items():
        constants = {n.value for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Constant)}
        if module != "msformat.interop":
            calls = "import_module(" in path.read_text("utf-8")
            assert not (calls and constants & FRAMEWORKS), module


@pytest.mark.parametrize("module", MSFORMAT)
def test_libraries_are_imported_in_their_own_place_only(module: str) -> None:
    for name in _imports(MSFORMAT[module]):
        homes = HOMES.get(name.partition(".")[0])
        # hdf5_chunks, zarr_read and the like belong to the store whose name they begin with.
        assert homes is None or module.startswith(homes), f"{module} imports {name}"


@pytest.mark.parametrize("module", CAPTURE)
def test_capture_imports_public_names_only(module: str) -> None:
    import msformat

    for name in _imports(CAPTURE[module]):
        if name.partition(".")[0] == "msformat":
            assert name == "msformat" or name.removeprefix("msformat.") in msformat.__all__, f"{module} imports {name}"


def test_no_import_cycles() -> None:
    modules = MSFORMAT | CAPTURE
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        found = {_module_of(name, modules) for name in _imports(path, top_only=True)}
        edges[module] = {name for name in found if name is not None and name != module}
    # Take away what imports nothing that is left; what remains is in a cycle or needs one.
    while ready := [module for module, needs in edges.items() if not needs & edges.keys()]:
        for module in ready:
            del edges[module]
    assert not edges


def _fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    ["import msformat", "import msformat; msformat.open", "import msformat.cli", "import msformat; msformat.plot"],
)
def test_importing_loads_no_framework_and_no_store_library(code: str) -> None:
    assert _fresh(f"import sys; {code}; print([m for m in {DENIED!r} if m in sys.modules])") == "[]"


def test_importing_has_no_side_effects() -> None:
    state = "(list(sys.path), dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT), threading.active_count())"
    code = (
        f"import os, signal, sys, threading; a = {state}; import msformat, capture; msformat.open; print(a == {state})"
    )
    assert _fresh(code) == "True"


def test_importing_is_cheap() -> None:
    """Below twice ``import numpy``; the best of three, because other work on the machine only ever adds."""
    clock = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    ours = min(float(_fresh(clock.format("msformat"))) for _ in range(3))
    numpy = min(float(_fresh(clock.format("numpy"))) for _ in range(3))
    assert ours < 2 * numpy
