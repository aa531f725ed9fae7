"""Libraries that a user may lack: imported when a function needs them, or missing with a word on how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from msformat.errors import BackendMissingError

__all__ = ["optional"]


def optional(module: str, extra: str, purpose: str) -> Any:
    """Import a module of a library that an extra of this distribution brings.

    Parameters
    ----------
    module
        Dotted name: ``pyarrow.parquet``.
    extra
        Name of the extra.
    purpose
        What needs it, for the message.

    Raises
    ------
    BackendMissingError
        The library is not installed. One that is there and broken speaks for itself.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name not in (package, module):
            raise
        raise BackendMissingError(package, extra, purpose) from error
