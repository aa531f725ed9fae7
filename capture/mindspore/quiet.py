"""A block in which capture's own operations leave no trace in the autograd graph, and the wait before it looks."""

from __future__ import annotations

from types import TracebackType

from mindspore._c_expression import PyNativeExecutor_

from capture.errors import mark_foreign

__all__ = ["Quiet", "settle"]

# The object behind ``mindspore.common.api``, which 2.10 moved and warns about.
_executor = PyNativeExecutor_.get_instance()


class Quiet:
    """Inside, operations are recorded by no autograd graph; ``mindspore._no_grad`` does the same, more slowly."""

    __slots__ = ("_grad",)

    def __enter__(self) -> None:
        self._grad: bool = _executor.enable_grad()
        if self._grad:
            _executor.set_enable_grad(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._grad:
            _executor.set_enable_grad(True)


def settle() -> None:
    """Wait for what the program has started, and let through what went wrong in it.

    Kernels run behind the program (PyNative). The error of one is raised once, by the next call that waits, whoever
    makes it, and is gone then (observed with MindSpore 2.7.1 and 2.10.0). Capture therefore waits on purpose, where
    the program's errors may come out, before it looks at a tensor.

    Raises
    ------
    Exception
        Whatever a kernel of the program raised: RuntimeError, TypeError, ValueError, …
    """
    try:
        _executor.sync()
    except Exception as error:
        mark_foreign(error)
        raise
