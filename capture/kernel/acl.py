"""The dump functions of Ascend's own library, for frameworks that do not offer them.

``aclmdlInitDump``, ``aclmdlSetDump(path)`` and ``aclmdlFinalizeDump`` (``acl/acl_mdl.h`` of CANN) return 0 when all is
well. Written from the vendor's documentation and run against a double only, for want of a device.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

__all__ = ["LIBRARY", "AclDevice", "load_acl"]

LIBRARY = "libascendcl.so"
_FUNCTIONS = ("aclmdlInitDump", "aclmdlSetDump", "aclmdlFinalizeDump")


def load_acl() -> Any:
    """The library, once a framework on Ascend has loaded it.

    Raises
    ------
    OSError
        There is none.
    """
    return ctypes.CDLL(LIBRARY)


class AclDevice:
    """Dumps by ACL; implements :class:`capture.kernel.device.KernelDevice`.

    Parameters
    ----------
    synchronize
        Waits until the device has done all it was given.
    reason
        Why this program has no such device, in words; None when it has. Asked before the library is.
    load
        Gives the library.
    """

    def __init__(
        self,
        synchronize: Callable[[], object],
        reason: Callable[[], str | None],
        load: Callable[[], Any] = load_acl,
    ) -> None:
        self._synchronize, self._reason, self._load = synchronize, reason, load
        self._library: Any = None

    def why_not(self) -> str | None:
        """Why there is no dump here; None when there is one."""
        reason = self._reason()
        if reason is not None:
            return reason
        try:
            self._functions()
        except (OSError, AttributeError) as error:
            return f"{LIBRARY} of CANN cannot be used: {error}"
        return None

    def begin(self, config_path: str) -> None:
        """See the protocol.

        Raises
        ------
        RuntimeError
            ACL says so, with its number.
        """
        library = self._functions()
        self._synchronize()
        _checked(library.aclmdlInitDump(), "aclmdlInitDump")
        _checked(library.aclmdlSetDump(os.fsencode(config_path)), "aclmdlSetDump")
        self._synchronize()

    def end(self) -> None:
        """See the protocol.

        Raises
        ------
        RuntimeError
            ACL says so, with its number.
        """
        try:
            self._synchronize()
        finally:
            _checked(self._functions().aclmdlFinalizeDump(), "aclmdlFinalizeDump")
        self._synchronize()

    def _functions(self) -> Any:
        if self._library is None:
            library = self._load()
            for name in _FUNCTIONS:
                getattr(library, name).restype = ctypes.c_int
            library.aclmdlSetDump.argtypes = [ctypes.c_char_p]
            self._library = library
        return self._library


def _checked(code: int, name: str) -> None:
    if code != 0:
        raise RuntimeError(f"{name} returned {code}")
