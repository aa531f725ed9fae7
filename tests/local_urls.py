"""Local files behind a protocol of fsspec, for tests that watch what is asked of it."""

from __future__ import annotations

import os

from fsspec.implementations.local import LocalFileSystem

__all__ = ["LocalUrls"]


class LocalUrls(LocalFileSystem):  # type: ignore[misc] # fsspec has no types
    """Base of a file system whose class attribute ``protocol`` is its own: ``PROTOCOL:///absolute/path``."""

    @classmethod
    def _strip_protocol(cls, path: str | os.PathLike[str]) -> str:
        # Releases before 2024.6 take off no protocol but that of local files.
        return str(super()._strip_protocol(os.fspath(path).removeprefix(f"{cls.protocol}://")))
