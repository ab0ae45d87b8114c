"""A page as a person meets it: in headless Chromium, from a file, without a network; and what it complains about."""

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# The first is Chromium without the windows that nobody sees: the same pages take three quarters of
# the time.
_NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
_PATIENCE_S = 5
DESKTOP, PHONE = (1440, 900), (360, 780)  # the whole first screen, and a phone


def chromium_path() -> str:
    """Return the browser that is installed; skip where there is none, but not in CI."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None and "CI" not in os.environ:
        pytest.skip(f"no Chromium: none of {', '.join(_NAMES)} is on the path")
    assert found, f"CI needs a Chromium: none of {', '.join(_NAMES)} is on the path"
    return found


@dataclass
class Opened:
    """A page in a browser, with what it asked for and what it said."""

    page: Any
    path: Path
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def chart(self, expression: str, chart: str) -> Any:
        """Evaluate an expression over ``chart``, an ECharts instance by the figure's id."""
        return self.page.evaluate(
            f"id => {{ const chart = nsyspipe.charts.get(id); return {expression}; }}", chart
        )

    def zoom(self, chart: str) -> tuple[float, float]:
        zoom = "chart.getOption().dataZoom[0]"
        start, end = self.chart(f"[{zoom}.start, {zoom}.end]", chart)
        return start, end

    def wait(
        self, expression: str
    ) -> None:  # Playwright's own way evaluates text, which the page forbids
        end = time.monotonic() + _PATIENCE_S
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"still not: {expression}"
            self.page.wait_for_timeout(20)

    def draw(self) -> None:
        self.page.evaluate("nsyspipe.lifecycle.drawAll()")

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, and wait until the charts are drawn for it."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.wait_for_frames()

    def wait_for_frames(self) -> None:
        """Wait until the page has drawn what is asked of it now, and what that asks for."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def show(self, element_id: str) -> None:
        scroll = (
            "id => document.getElementById(id).scrollIntoView({behavior: 'instant', block: "
            "'center'})"
        )
        self.page.evaluate(scroll, element_id)
        self.wait_for_frames()

    def point(self, chart: str, x: float, y: float) -> tuple[float, float]:
        """Return where a point of a chart lies in the window; `x`, `y` are pixels in the chart."""
        box = self.page.locator(f"#{chart} .chart-area").bounding_box()
        return box["x"] + x, box["y"] + y

    def tooltip(self) -> str:
        # that of another chart goes a moment later
        seen = "one => one.checkVisibility({ visibilityProperty: true })"
        self.wait(f"[...document.querySelectorAll('.tip')].filter({seen}).length === 1")
        return self.page.locator(".tip:visible").inner_text().replace("\u202f", " ")


class Tab:
    """A tab of the browser that shows one page after another, and lets none of them reach a network.

    A new tab costs a process, in which a page loads at a third of the usual speed.
    """

    def __init__(self, browser: Any, *, run_scripts: bool) -> None:
        # A window of its own: Chromium draws a tab behind another once a second.
        self._window = browser.new_context(java_script_enabled=run_scripts)
        self.page = self._window.new_page()
        self._shown: Opened | None = None
        self.page.route("**/*", self._allow_files)
        self.page.on("request", self._note_request)
        self.page.on("console", self._note_message)
        self.page.on("pageerror", self._note_error)
        self.page.on("dialog", self._note_dialog)

    def show(
        self,
        path: Path,
        *,
        size: tuple[int, int] = DESKTOP,
        is_dark: bool = False,
    ) -> Opened:
        """Load a page in a window of this size, for a reader who wants no motion."""
        width, height = size
        self.page.set_viewport_size({"width": width, "height": height})
        scheme = "dark" if is_dark else "light"
        self.page.emulate_media(media="screen", color_scheme=scheme, reduced_motion="reduce")
        self._shown = Opened(self.page, path)
        self.page.goto(path.as_uri())
        return self._shown

    def clear(self) -> None:
        """Leave the page: the next one inherits neither its state nor the pointer's place."""
        self._shown = None
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)

    def close(self) -> None:
        self._window.close()

    def _allow_files(self, route: Any) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            route.abort()

    def _note_request(self, request: Any) -> None:
        if self._shown:
            self._shown.requests.append(request.url)

    def _note_message(self, message: Any) -> None:
        if self._shown:
            self._shown.complaints.append(f"{message.type}: {message.text}")

    def _note_error(self, error: Any) -> None:
        if self._shown:
            self._shown.complaints.append(f"error: {error}")

    def _note_dialog(self, dialog: Any) -> None:
        if self._shown:
            self._shown.dialogs.append(dialog.message)
        dialog.dismiss()


class Tabs:
    """The tabs of one browser: a test takes what it needs, and gives it back for the next one."""

    def __init__(self, browser: Any, *, run_scripts: bool) -> None:
        self.run_scripts = run_scripts
        self._browser = browser
        self._free: list[Tab] = []

    def take(self) -> Tab:
        if self._free:
            return self._free.pop()
        return Tab(self._browser, run_scripts=self.run_scripts)

    def give_back(self, tab: Tab) -> None:
        tab.clear()
        self._free.append(tab)
