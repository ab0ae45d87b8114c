"""A page as a person meets it: in headless Chromium, from a file, without a network; and what it complains about."""

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
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

    def show(self, element_id: str) -> None:
        scroll = (
            "id => document.getElementById(id).scrollIntoView({behavior: 'instant', block: "
            "'center'})"
        )
        self.page.evaluate(scroll, element_id)
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def point(self, chart: str, x: float, y: float) -> tuple[float, float]:
        """Return where a point of a chart lies in the window; `x`, `y` are pixels in the chart."""
        box = self.page.locator(f"#{chart} .chart-area").bounding_box()
        return box["x"] + x, box["y"] + y

    def tooltip(self) -> str:
        # that of another chart goes a moment later
        seen = "one => one.checkVisibility({ visibilityProperty: true })"
        self.wait(f"[...document.querySelectorAll('.tip')].filter({seen}).length === 1")
        return self.page.locator(".tip:visible").inner_text().replace("\u202f", " ")


def watch(opened: Opened) -> Opened:  # and let nothing leave the machine
    page = opened.page
    page.route(
        "**/*",
        lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort(),
    )
    page.on("request", lambda request: opened.requests.append(request.url))
    page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: opened.complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (opened.dialogs.append(dialog.message), dialog.dismiss()))
    return opened
