"""Which class is which backend: a literal table for our own, the entry-point group ``msformat.stores`` for others."""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from msformat.arguments import path_text
from msformat.errors import StoreError
from msformat.filesystem import is_url
from msformat.foreign import FORMS
from msformat.stores.base import Mode, Store, StoreOptions

__all__ = ["BUILTIN_STORES", "available_stores", "open_store", "store_class"]

BUILTIN_STORES = {
    "files": "msformat.stores.files:FilesStore",
    "hdf5": "msformat.stores.hdf5:Hdf5Store",
    "zarr": "msformat.stores.zarr:ZarrStore",
    "memory": "msformat.stores.memory:MemoryStore",
}
# What writes to URLs; reading is each store's own.
_REMOTE_WRITERS = {
    "files": "msformat.stores.files_remote:RemoteFilesStore",
    "zarr": "msformat.stores.zarr_remote:RemoteZarrStore",
}


def open_store(
    backend: str,
    location: str,
    *,
    mode: Mode = "r",
    group: str = "",
    options: StoreOptions | None = None,
) -> Store:
    """Open a store of a named backend.

    Raises
    ------
    StoreError
        Unknown backend, or the location cannot be opened in that mode.
    BackendMissingError
        The backend's library is not installed; says which extra brings it.
    """
    location = path_text(location).removeprefix("file://")
    if mode != "r" and is_url(location) and backend in _REMOTE_WRITERS:
        return _loaded(_REMOTE_WRITERS[backend])(location, mode=mode, group=group, options=options)
    return store_class(backend)(location, mode=mode, group=group, options=options)


def _loaded(target: str) -> type[Store]:
    module, _, name = target.partition(":")
    found: type[Store] = getattr(import_module(module), name)
    return found


@lru_cache(maxsize=64)
def store_class(backend: str) -> type[Store]:
    """The class of a backend, imported on first use."""
    target = FORMS[backend].store if backend in FORMS else BUILTIN_STORES.get(backend)
    if target is not None:
        return _loaded(target)
    for point in _plugins():
        if point.name == backend:
            loaded: type[Store] = point.load()
            return loaded
    raise StoreError(f"unknown store {backend!r}; installed: {', '.join(available_stores())}")


def available_stores() -> tuple[str, ...]:
    """Names of all backends that can be written, built-in ones first. A missing library shows when one is opened."""
    return (*BUILTIN_STORES, *sorted({point.name for point in _plugins()} - set(BUILTIN_STORES)))


def _plugins() -> tuple[EntryPoint, ...]:
    found = tuple(entry_points(group="msformat.stores"))
    for point in found:
        if point.name in BUILTIN_STORES:
            warnings.warn(f"{point.value} registers the store {point.name!r}, which is built in: ignored", stacklevel=2)
    return found
