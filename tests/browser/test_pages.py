"""Pages in a real browser: what a person sees, clicks and types. ``make test-browser``."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import msformat
from msformat.cli import main
from tests.browser.chromium import Page, find_chromium
from tests.security.test_pages import serving
from tests.unit.page_dumps import CALL, HOSTILE, NORM, numbers, slots, write_hostile, write_network
from tests.unit.reader_dumps import record, write_unit

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="there is no chromium: apt-get install chromium"),
]

ROWS = "document.querySelectorAll('#tree .row').length"


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page; MSFORMAT_SCREENSHOTS names a folder to keep its last sight in."""
    with Page() as found:
        yield found
        folder = os.environ.get("MSFORMAT_SCREENSHOTS")
        if folder:
            found.screenshot(Path(folder) / f"{request.node.name}.png")


def report(*arguments: object, out: Path) -> str:
    """The address of a page made by the command."""
    assert main(["report", *map(str, arguments), "-o", str(out)]) == 0
    return out.as_uri()


def test_one_dump(page: Page, tmp_path: Path) -> None:
    page.open(report(write_network(tmp_path / "net", steps=3, fault=float("nan")), out=tmp_path / "a.html"))
    assert page.text("#headline h1").split() == ["First", "NaN:", "layers.0.norm", "layer_norm", "forward"]
    assert "all that went in was finite" in page.text("#headline")
    assert page.run(ROWS) == 5
    assert page.text("#tree .chosen").split()[:2] == ["Functional.layer_norm", "F"]
    assert CALL in page.text("#details")
    assert "model.py:7" in page.text("#details .stacks")
    assert page.run("document.querySelectorAll('#run figure').length") == 3
    assert page.errors == []
    assert len(page.requests) == 1


def test_walking_the_tree(page: Page, tmp_path: Path) -> None:
    page.open(report(write_network(tmp_path / "net"), out=tmp_path / "a.html"))
    assert "No NaN and no infinity" in page.text("#headline")
    page.click("#tree .row:nth-child(2)")
    assert NORM in page.text("#details .key")
    page.click("#tree .row:nth-child(1) .twisty")
    assert page.run(ROWS) == 3
    page.run("document.getElementById('search').focus()")
    page.type("LAYER_norm")
    assert page.run(ROWS) == 3
    assert page.text("#count").startswith("1 of 5")
    page.run("document.getElementById('search').select()")
    page.type("*no such*")
    assert page.text("#tree") == "Nothing matches."
    assert page.errors == []


def test_steps_of_a_tensor(page: Page, tmp_path: Path) -> None:
    page.open(report(write_network(tmp_path / "net", steps=3), out=tmp_path / "a.html"))
    page.click("#tree .row:nth-child(3)")
    page.run("document.querySelector('#details tr.tensor').scrollIntoView()")
    page.click("#details tr.tensor")
    page.wait("document.querySelectorAll('#tensor figure').length === 4")
    assert "msformat view" in page.text("#tensor")
    page.run(
        "document.querySelector('#unit').value = 2; document.querySelector('#unit').dispatchEvent(new Event('change'))"
    )
    page.wait("document.querySelector('#details').innerText === ''")
    assert page.errors == []


def test_a_square_a_unit(page: Page, tmp_path: Path) -> None:
    root = write_network(tmp_path / "net", steps=3)
    (root / "step2/rank0/dump.json").write_text("[]")
    out = tmp_path / "a.html"
    assert main(["report", str(root), "-o", str(out)]) == 1
    page.open(out.as_uri())
    assert "Worth knowing: 1 note" in page.text("#headline")
    assert page.run("document.querySelectorAll('#run .cell').length") == 3
    page.click("#run .cell[title='step1/rank0']")
    page.wait("document.querySelector('#unit').value === '1'")
    page.click("#run .cell[title='step2/rank0']")
    page.wait("document.querySelector('#details').innerText.includes('dump.json')")
    page.click("#run .cell[title='step0/rank0']")
    page.wait(f"{ROWS} === 5")
    assert page.errors == []


def test_two_dumps_in_the_dark(page: Page, tmp_path: Path) -> None:
    bad, good = write_network(tmp_path / "bad", fault=1.3), write_network(tmp_path / "good")
    page.dark()
    page.open(report(bad, good, out=tmp_path / "a.html"))
    assert page.text("#headline h1").startswith("First divergence:")
    assert "layers.0.norm" in page.text("#headline h1")
    assert "the fault lies in this call" in page.text("#headline")
    assert "different" in page.text("#details table")
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    page.click("#top button")
    assert page.run("getComputedStyle(document.body).backgroundColor") != dark
    assert page.errors == []


def test_hostile_names_are_text(page: Page, tmp_path: Path) -> None:
    page.open(report(write_hostile(tmp_path / "net"), out=tmp_path / "a.html"))
    page.run("document.querySelectorAll('#tree .row')[1].click()")
    assert page.run("document.querySelectorAll('#main img, #main script, #tree img, #tree script').length") == 0
    titles = page.run("[...document.querySelectorAll('#tree .row')].map((row) => row.title)")
    assert len(titles) == len(HOSTILE)
    assert any(HOSTILE[0] in title for title in titles)
    assert page.run("document.querySelectorAll('script').length") == 3
    assert page.errors == []


def test_the_policy_lets_nothing_else_run(page: Page, tmp_path: Path) -> None:
    page.open(report(write_network(tmp_path / "net"), out=tmp_path / "a.html"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        page.run(f"""(() => {{
            const script = document.createElement("script");
            script.textContent = "window.harmed = 1";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src={address} onerror='window.harmed = 2'>");
        }})()""")
        assert page.run(f"fetch('{address}').then(() => 'fetched', (error) => error.message)") != "fetched"
        assert page.run("window.harmed ?? null") is None
        # Nobody ever called.
        assert select.select([listener], [], [], 0.5)[0] == []
    assert any("Content Security Policy" in error for error in page.errors)


def _layer(number: int) -> dict[str, object]:
    x = record(np.zeros(2, np.float32), None, **numbers(1.0 + number % 7, -1.0, 0.0, 10.0 + number % 100))
    return {f"Module.layers.{number}.{part}.Linear.forward.0": slots(x, x) for part in ("q", "k", "v", "out")}


def test_a_hundred_thousand_entries(page: Page, tmp_path: Path) -> None:
    data: dict[str, object] = {}
    parents: dict[str, str | None] = {}
    for number in range(20_000):
        block = f"Module.layers.{number}.Block.forward.0"
        inner = _layer(number)
        data.update(inner)
        data[block] = next(iter(inner.values()))
        parents[block] = None
        parents.update(dict.fromkeys(inner, block))
    unit = write_unit(tmp_path / "d" / "step0" / "rank0", data, task="statistics")
    (unit / "construct.json").write_text(json.dumps(parents))
    page.open(report(tmp_path / "d", out=tmp_path / "a.html"))
    assert page.text("#count") == "100,000 entries"
    assert page.run(ROWS) < 150
    page.run("document.getElementById('tree').scrollTop = 1e9")
    page.wait("document.querySelector('#tree .row:last-child').title === 'Module.layers.19999.out.Linear.forward.0'")
    assert page.run(ROWS) < 150
    page.run("document.getElementById('search').focus()")
    page.type("layers.12345.")
    assert page.text("#count").startswith("5 of")
    page.click("#tree .row:nth-child(3)")
    assert "layers.12345.k" in page.text("#details .key")
    assert "100,000 calls" in page.text("#layers")
    assert page.errors == []


def test_view_shows_histograms(page: Page, tmp_path: Path) -> None:
    root = write_network(tmp_path / "net", steps=2, fault=float("inf"))
    with serving(root) as server:
        page.open(server.url)
        assert page.text("#headline h1").startswith("First overflow")
        page.run("document.querySelector('#details tr.tensor').scrollIntoView()")
        page.click("#details tr.tensor")
        page.wait("document.querySelectorAll('#tensor figure').length === 6")
        assert "12 values" in page.text("#tensor")
        assert page.errors == []
        assert all(url.startswith(server.url) for url in page.requests)


def test_a_real_dump(page: Page, tmp_path: Path) -> None:
    import zipfile

    golden = Path(__file__).parents[1] / "golden" / "data" / "torch_8.1.0_mix_tensor.zip"
    with zipfile.ZipFile(golden) as archive:
        archive.extractall(tmp_path)
    root = tmp_path / golden.stem
    page.open(report(root, out=tmp_path / "a.html"))
    assert page.text("#count") == f"{len(list(msformat.open(root)[0].tree()))} entries"
    assert page.errors == []
