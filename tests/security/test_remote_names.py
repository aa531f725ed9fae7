"""Names of tensors are data at a URL, too; and what a URL is opened with is never shown."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pytest

import msformat
from msformat.cli import main
from msformat.convert import ConvertOptions, convert
from msformat.credentials import hide_credentials
from msformat.errors import MsformatError, StoreError, UnsafeInputError
from msformat.filesystem import open_remote
from msformat.stores.registry import open_store
from tests.small_dumps import write_unit

NAMES = [
    "../../../escape.npy", "/absolute.npy", "a/../b.npy", "..", "a//b.npy", "*.npy", "[a-z].npy", "{a,b}.npy",
    "a?versionId=1.npy", "a?versionId=2.npy", "a#b.npy", "a%2Fb.npy", "a::memory://other/x.npy", "s3://other/x.npy",
    "a\\b.npy", "nul\0.npy", "aten::add.0.npy", "plain.npy",
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("memory_url")


@pytest.mark.parametrize("backend", ["files", "zarr"])
def test_names_stay_below_the_prefix_and_apart(backend: str) -> None:
    url = "memory://bucket/inside/unit"
    with open_store(backend, url, mode="w") as store:
        for number, name in enumerate(NAMES):
            store.put(name, np.full(20_000, number, np.float32), msformat.dtype_named("float32"))
    stored = fsspec.filesystem("memory").store
    assert all(path.startswith("/bucket/inside/unit/") for path in stored)
    # What fsspec or a shell would read as something else than a name.
    assert not any(sign in path for path in stored for sign in ("?", "*", "::", "/../", "\\", "\0"))
    with open_store(backend, url) as store:
        assert sorted(store.keys()) == sorted(NAMES)
        for number, name in enumerate(NAMES):
            assert store.get(name).numpy()[0] == number, name


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a/./b", "x?versionId=1", "nul\0"])
def test_no_path_leads_out(path: str) -> None:
    fs = open_remote("memory://bucket/inside")
    actions = (fs.kind, fs.read, fs.remove, fs.files, lambda p: fs.write(p, b""), lambda p: fs.copy(p, "a"))
    for action in actions:
        with pytest.raises(UnsafeInputError):
            action(path)


def test_wildcards_remove_nothing_else() -> None:
    fs = open_remote("memory://bucket")
    for name in ("a", "b", "*"):
        fs.write(name, b"x")
    fs.remove("*")
    assert sorted(fs.files()) == ["a", "b"]


SECRETS = [
    ("sftp://me:hunter2@host/dump", "hunter2"),
    ("https://host/d?X-Amz-Credential=AKIA123&X-Amz-Signature=deadbeef&x=1", "deadbeef"),
    ("https://host/d?sig=deadbeef", "deadbeef"),
]


@pytest.mark.parametrize(("url", "secret"), SECRETS)
def test_credentials_are_hidden(url: str, secret: str) -> None:
    for text in (hide_credentials(f"{url}: bad"), str(StoreError(f"{url}: bad"))):
        assert secret not in text
        assert "***" in text
        assert "host/d" in text


def test_the_command_line_shows_no_password(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_unit(tmp_path / "src/step0/rank", {"Functional.relu.0.forward": np.zeros(3, np.float32)})
    for arguments in (
        ["info", "nosuchprotocol://me:hunter2@host/d"],
        ["verify", "--json", "nosuchprotocol://me:hunter2@host/d"],
        ["convert", str(tmp_path / "src"), "nosuchprotocol://me:hunter2@host/d"],
        ["convert", str(tmp_path / "src"), "nosuchprotocol://me:hunter2@host/../d"],
    ):
        assert main(arguments) == 2
        found = capfd.readouterr()
        assert "hunter2" not in found.out + found.err
        assert "host" in found.err


def test_a_report_shows_no_password(tmp_path: Path) -> None:
    write_unit(tmp_path / "src/step0/rank", {"Functional.relu.0.forward": np.zeros(3, np.float32)})
    with pytest.raises((MsformatError, ValueError)) as raised:
        convert(tmp_path / "src", "nosuchprotocol://me:hunter2@host/d", ConvertOptions(to="files"))
    assert "hunter2" not in str(raised.value)
