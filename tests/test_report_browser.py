"""The report in a real browser: widths, schemes, keyboard, accessibility, and silence on the network.

Chromium is driven by its own protocol over a pipe, so nothing but the browser is needed.
Where there is none, ``conftest.py`` leaves this file out and says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from fixtures_state import MakeState

from evalgate.reports import html
from evalgate.reports.state_view import build_state_view
from evalgate.reports.view import build_view

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]
KINDS = ("pass", "block", "open", "error", "plain", "state")


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, send: BinaryIO, receive: BinaryIO) -> None:
        self.send, self.receive = send, receive
        self.last = 0
        self.session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send one command and wait for its answer; events on the way are kept."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": params, **self.session}
        self.send.write(json.dumps(message).encode() + b"\0")
        self.send.flush()
        while (answer := self.message()).get("id") != self.last:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def message(self) -> dict[str, Any]:
        """The next message from the browser."""
        found = bytearray()
        while (byte := self.receive.read(1)) != b"\0":
            assert byte, "the browser is gone"
            found += byte
        parsed: dict[str, Any] = json.loads(found)
        return parsed

    def show(self, path: Path, width: int, scheme: str = "light", height: int = 900) -> None:
        """Load a file at a width and colour scheme, and wait until it is laid out."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())

    def value(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def heard(self, method: str) -> list[Any]:
        """Parameters of every event of this name since the page was shown."""
        return [event["params"] for event in self.events if event["method"] == method]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running browser; it ends with the tests of this file."""
    command = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert command, "conftest.py collects this file only where there is a browser"
    profile = tmp_path_factory.mktemp("chromium")
    # The browser reads commands on descriptor 3 and answers on 4; the pipes must not lie there themselves.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (*os.pipe(), *os.pipe())]
    process = os.posix_spawn(
        command,
        [command, *FLAGS, f"--user-data-dir={profile}"],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, ends[0], 3),
            (os.POSIX_SPAWN_DUP2, ends[3], 4),
        ],
    )
    os.close(ends[0])
    os.close(ends[3])
    with os.fdopen(ends[1], "wb") as send, os.fdopen(ends[2], "rb") as receive:
        page = Browser(send, receive)
        yield page
        page.session = {}
        with contextlib.suppress(AssertionError, OSError):
            page.call("Browser.close")
    os.waitpid(process, 0)


@pytest.fixture(scope="module")
def pages(
    report_cases: dict[str, Any], make_state: MakeState, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The written page of each kind of report, and of a measured state."""
    folder = tmp_path_factory.mktemp("reports")
    paths = {name: folder / f"{name}.html" for name in report_cases}
    for name, path in paths.items():
        html.write(build_view(*report_cases[name]), path)
    paths["state"] = folder / "state.html"
    paths["state"].write_text(html.render_state(build_state_view(make_state())), encoding="utf-8")
    return paths


@pytest.mark.parametrize("width", [1280, 760, 400, 320])
@pytest.mark.parametrize("kind", KINDS)
def test_page_never_scrolls_sideways(browser: Browser, pages: dict[str, Path], kind: str, width: int) -> None:
    """The page is as wide as the window; what is wider scrolls inside its own frame."""
    browser.show(pages[kind], width)

    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.value("innerWidth") == width
    assert browser.value(wide) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_silent(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    """Nothing is fetched but the page, nothing is logged, no script exists, and hostile answers changed nothing."""
    browser.show(pages[kind], 1280)

    assert [event["request"]["url"] for event in browser.heard("Network.requestWillBeSent")] == [pages[kind].as_uri()]
    assert browser.heard("Log.entryAdded") == []
    assert browser.heard("Runtime.consoleAPICalled") == []
    assert browser.heard("Runtime.exceptionThrown") == []
    assert browser.value("document.scripts.length") == 0
    assert "owned" not in browser.value("document.title")


def test_style_is_allowed_and_injected_style_is_not(browser: Browser, pages: dict[str, Path]) -> None:
    """The page's own style sheet passes its policy; a style added to the page does not."""
    browser.show(pages["block"], 1280)
    add = "const s = document.createElement('style'); s.textContent = 'main {display: none}'; document.body.append(s)"
    browser.value(f"{{ {add}; 0 }}")

    assert browser.value("getComputedStyle(document.querySelector('h1')).fontSize") == "44px"
    assert browser.value("getComputedStyle(document.querySelector('main')).display") == "block"


@pytest.mark.parametrize("width", [1280, 400])
def test_first_screen_has_verdict_and_reason(browser: Browser, pages: dict[str, Path], width: int) -> None:
    """Verdict, reason and the key numbers stand in the first window; at full width the first cells do too."""
    browser.show(pages["block"], width)

    def bottom(what: str) -> float:
        return float(browser.value(f"document.querySelector('{what}').getBoundingClientRect().bottom"))

    assert bottom(".reason") < 450
    assert bottom(".facts") < 900
    if width == 1280:
        assert bottom(".card") < 900


def test_dark_scheme_is_dark(browser: Browser, pages: dict[str, Path]) -> None:
    """The page follows the reader's colour scheme."""
    grounds = []
    for scheme in ("light", "dark"):
        browser.show(pages["block"], 1280, scheme)
        grounds.append(browser.value("getComputedStyle(document.body).backgroundColor"))

    assert grounds == ["rgb(255, 255, 255)", "rgb(17, 22, 27)"]


def test_narrow_page_keeps_its_tables(browser: Browser, pages: dict[str, Path]) -> None:
    """A screen reader finds the same headings, tables and header cells whether the page is wide or narrow."""
    counts = []
    for width in (1280, 400):
        browser.show(pages["block"], width)
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = [node["role"]["value"] for node in nodes if not node.get("ignored")]
        counts.append({role: roles.count(role) for role in ("heading", "table", "row", "rowheader", "columnheader")})

    assert counts[0] == counts[1]
    assert counts[0]["heading"] >= 15
    assert counts[0]["table"] >= 15


def test_keyboard_reaches_links_and_frames(browser: Browser, pages: dict[str, Path]) -> None:
    """The first stop skips to the cells; every link and every scrolling frame is a stop, and its outline shows."""
    browser.show(pages["block"], 400)
    stops = []
    for _ in range(browser.value("document.querySelectorAll('a, [tabindex]').length")):
        for kind in ("rawKeyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        stops.append(browser.value("document.activeElement.getAttribute('href') || document.activeElement.className"))

    assert stops[0] == "#cells"
    assert "#verify" in stops
    assert stops.count("scroll") == 7
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_drawings_of_a_state_are_seen(browser: Browser, pages: dict[str, Path]) -> None:
    """Every histogram and chart has a size, its shapes a colour that differs from the page in light and dark."""
    for scheme in ("light", "dark"):
        for width in (1280, 400):
            browser.show(pages["state"], width, scheme)
            drawn = "[...document.querySelectorAll('.hist, .curve')].map(s => s.getBoundingClientRect())"
            assert browser.value(f"{drawn}.every(r => r.width >= 150 && r.height >= 30 && r.right <= innerWidth)")
            ground = browser.value("getComputedStyle(document.body).backgroundColor")
            for shape, way in ((".hist .bars", "fill"), (".hist .rest", "stroke"), (".curve .line", "stroke")):
                colour = browser.value(f"getComputedStyle(document.querySelector('{shape}')).{way}")
                assert colour not in {ground, "none", "rgba(0, 0, 0, 0)"}


@pytest.mark.parametrize("kind", KINDS)
def test_page_prints(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    """A printed report is a PDF with the verdict on it, and nothing is cut at the paper's edge."""
    browser.show(pages[kind], 794)
    pdf = browser.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]

    assert pdf.startswith("JVBERi")  # %PDF- in base64
