"""Units on the workers of a dask.distributed cluster.

Workers need msformat, the libraries of the stores, and the same view of the files: paths are made absolute here, so a
shared file system is mounted at the same place everywhere, or source and destination are URLs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from msformat.arguments import path_text
from msformat.errors import BackendMissingError, MsformatError, StoreError

__all__ = ["cluster_executor", "shared_path"]

_CONNECT_SECONDS = 30
_LARGEST_PORT = 65535


@contextmanager
def cluster_executor(address: str) -> Iterator[Executor]:
    """An executor whose calls run on a cluster; what is left of them is cancelled at the end.

    A call whose worker dies is run again by another one, as often as the scheduler's ``allowed-failures`` says.

    Parameters
    ----------
    address
        The scheduler's (``tcp://host:8786``), or the path of its scheduler file.

    Raises
    ------
    BackendMissingError
        distributed is not installed.
    StoreError
        That is no address, no scheduler answers there, it has no workers, or these do not have msformat.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise BackendMissingError("distributed", "dask", f"running on the cluster at {address}") from error
    where = {"scheduler_file": address} if os.path.isfile(address) else {"address": _checked(address)}
    try:
        client = distributed.Client(**where, timeout=_CONNECT_SECONDS, set_as_default=False, name="msformat")
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{address}: no dask scheduler answers there: {error}") from error
    try:
        _check_workers(client, address)
        yield _ClusterExecutor(client)
    finally:
        client.close(timeout=_CONNECT_SECONDS)


def _checked(address: str) -> str:
    """An address that can be one: a client that cannot make sense of it takes a minute to give up."""
    try:
        _, port = import_module("distributed.comm").get_address_host_port(address)
    except ValueError as error:
        raise StoreError(f"{address}: no scheduler file and no dask scheduler's address (tcp://host:8786)") from error
    if not 0 < port <= _LARGEST_PORT:
        raise StoreError(f"{address}: no dask scheduler has a port {port}")
    return address


class _ClusterExecutor(Executor):
    """Dask's own executor keeps results on the workers that made them, and makes them again when these die later."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        asked = self._client.submit(fn, *args, **kwargs, pure=False)
        answer.add_done_callback(lambda answer: asked.cancel() if answer.cancelled() else None)
        asked.add_done_callback(partial(_tell, answer))
        return answer


def _tell(answer: Future[Any], asked: Any) -> None:
    """What a task came to; the cluster may forget it then."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(asked.result())
    except BaseException as error:  # noqa: BLE001 (handed to the thread that waits for it)
        answer.set_exception(error)
    finally:
        asked.release()


def _check_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        client.submit(_here, pure=False).result(timeout=_CONNECT_SECONDS)
    except MsformatError:
        raise
    except TimeoutError as error:
        raise StoreError(f"{address}: the cluster has no worker that answers") from error
    except Exception as error:
        raise StoreError(f"{address}: its workers cannot run msformat: {type(error).__name__}: {error}") from error


def _here() -> bool:
    """Whether a worker finds this module."""
    return True


def shared_path(path: str | os.PathLike[str]) -> str:
    """A path as processes with another working directory find it; URLs as they are."""
    text = path_text(path).removeprefix("file://")
    return text if "://" in text or not text else os.path.abspath(text)
