"""The page of a run in a browser: it loads by itself, its charts are drawn, and it fits the screen."""

from __future__ import annotations

import pytest

from tests.browser.chromium import DESKTOP, PHONE

RUNS = ("ddp-4gpu-shm", "ddp-2gpu-straggler", "one-rank", "steady", "hostile")
# Share of a canvas's pixels that are not empty.
PAINTED = """id => {
  const canvas = document.querySelector(`#${id} canvas`);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let painted = 0;
  for (let at = 3; at < data.length; at += 4) painted += data[at] > 0;
  return painted / (data.length / 4);
}"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN = "(all, open) => all.forEach(one => { one.open = open; })"


@pytest.mark.parametrize("name", RUNS)
def test_a_page_loads_alone_draws_every_chart_and_is_not_wider_than_the_screen(name, written, open_page, screenshot):
    # Requests, console and policy are checked when `open_page` ends.
    opened = open_page(written(name))
    opened.draw()
    page = opened.page
    figures = page.locator("figure[data-chart]").evaluate_all("all => all.map(one => one.id)")
    assert {"chart-step-bars", "chart-timeline", "chart-step-columns"} <= set(figures)
    assert ("chart-collectives" in figures) == (name != "one-rank")
    for figure in figures:
        assert opened.chart("chart.getOption().series.length", figure) > 0
        assert page.evaluate(PAINTED, figure) > 0.01
    for width, height in (DESKTOP, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        page.locator("details").evaluate_all(OPEN, arg=True)
        opened.wait(f"{OVERFLOW} === 0")
        # What is wider scrolls in its own box, which the keyboard reaches.
        boxes = "all => all.filter(one => one.scrollWidth > one.clientWidth && one.tabIndex < 0).length"
        assert page.locator(".scroll").evaluate_all(boxes) == 0
        page.locator("details").evaluate_all(OPEN, arg=False)
        screenshot(page, f"{name}-{width}", full_page=True)


def test_the_first_screen_says_what_is_wrong_and_what_to_do(written, open_page, screenshot):
    page = open_page(written("ddp-4gpu-shm")).page
    heading = page.locator("h1").inner_text().replace("\xa0", " ")
    assert heading == "Communication is 45 % of step time, 45 % exposed; 0 % of it hides under backward."
    first = page.locator(".finding").first
    assert first.locator("h3").inner_text() == "Unset NCCL_P2P_DISABLE: data goes over host memory"
    screenshot(page, "ddp-4gpu-shm")
    for selector in ("h1", ".tiles", ".finding >> nth=2", "#chart-step-bars .chart-area"):
        box = page.locator(selector).bounding_box()
        assert box["y"] + box["height"] <= DESKTOP[1], selector


@pytest.mark.parametrize(
    ("name", "dark"),
    [("ddp-2gpu-straggler", False), ("ddp-2gpu-straggler", True), ("one-rank", True), ("hostile", False)],
)
def test_a_page_is_accessible(name, dark, written, open_page, check_accessible, screenshot):
    opened = open_page(written(name), dark=dark)
    opened.draw()
    # Definitions are long, and the same on every page.
    closed = "details" if name == "one-rank" else "details:not(.definition)"
    opened.page.locator(closed).evaluate_all(OPEN, arg=True)
    check_accessible(opened.page)
    if dark:
        screenshot(opened.page, f"{name}-dark", full_page=True)


def test_without_scripts_the_words_and_tables_are_there(written, open_page):
    opened = open_page(written("ddp-4gpu-shm"), java_script_enabled=False)
    assert "Charts need JavaScript" in opened.page.locator("body").inner_text()
    opened.page.locator("#chart-step-bars summary").click()
    assert opened.page.locator("#chart-step-bars table").is_visible()


def test_the_page_of_another_size_is_redrawn(written, open_page):
    opened = open_page(written("steady"))
    opened.page.set_viewport_size({"width": 900, "height": 900})
    width = "document.querySelector('#chart-step-bars canvas').clientWidth"
    opened.wait(f"{width} < 860")
    assert opened.chart("chart.getWidth()", "chart-step-bars") == opened.page.evaluate(width)
