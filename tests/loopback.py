"""A cluster and an S3 server for tests, each in a process of its own on loopback.

Run as ``python -m tests.loopback cluster|s3``: prints its address and serves until standard input ends.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-not-a-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "none",
    "AWS_SHARED_CREDENTIALS_FILE": "none",
}


@contextmanager
def served(what: str) -> Iterator[str]:
    """Address of a server that lives as long as the block."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.loopback", what]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            lines = (line.removeprefix("serving ").strip() for line in server.stdout if line.startswith("serving "))
            address = next(lines, "")
            assert address, f"no {what} came up"
            yield address
        finally:
            server.stdin.close()
            server.wait(timeout=60)


def _serve_cluster() -> None:
    import dask
    import distributed

    # Two dead workers are enough to give a unit up.
    dask.config.set({"distributed.scheduler.allowed-failures": 1})
    # LocalCluster takes workers for gone for good that are not back by then.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        _until_told(cluster.scheduler_address)


def _serve_s3() -> None:
    logging.disable()
    warnings.simplefilter("ignore")  # for the services that are not S3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    _until_told(f"http://{host}:{port}")
    server.stop()


def _until_told(address: str) -> None:
    print(f"serving {address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {"cluster": _serve_cluster, "s3": _serve_s3}[sys.argv[1]]()
