"""The page of a run in a browser: it loads by itself, its charts are drawn, and it fits the screen."""

from __future__ import annotations

import pytest

from tests.browser.chromium import DESKTOP, PHONE

RUNS = ("ddp-4gpu-shm", "ddp-2gpu-straggler", "fsdp-4gpu", "one-rank", "steady")
# Share of a canvas's pixels that are not empty.
PAINTED = """id => {
  const canvas = document.querySelector(`#${id} canvas`);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let painted = 0;
  for (let at = 3; at < data.length; at += 4) painted += data[at] > 0;
  return painted / (data.length / 4);
}"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("name", RUNS)
def test_a_page_loads_alone_and_draws_every_chart(name, written, open_page):
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


def test_the_first_screen_says_what_is_wrong_and_what_to_do(written, open_page, screenshot):
    page = open_page(written("ddp-4gpu-shm")).page
    heading = page.locator("h1").inner_text().replace("\xa0", " ")
    assert heading == "Communication is 45 % of step time, 45 % exposed; 0 % of it hides under backward."  # fmt: skip
    first = page.locator(".finding").first
    assert first.locator("h3").inner_text() == "Unset NCCL_P2P_DISABLE: data goes over host memory"
    screenshot(page, "ddp-4gpu-shm")
    for selector in ("h1", ".tiles", ".finding >> nth=2", "#chart-step-bars .chart-area"):
        box = page.locator(selector).bounding_box()
        assert box["y"] + box["height"] <= DESKTOP[1], selector


def test_the_first_screen_names_the_straggler(written, open_page, screenshot):
    page = open_page(written("ddp-2gpu-straggler")).page
    assert "Rank 1 makes the others wait, mostly in forward" in page.locator("h1").inner_text()
    assert page.locator(".finding h3").first.inner_text().startswith("Rank 1 makes the others wait")
    screenshot(page, "ddp-2gpu-straggler")


@pytest.mark.parametrize("name", [*RUNS, "hostile"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_nothing_is_wider_than_the_screen(name, size, written, open_page, screenshot):
    opened = open_page(written(name), size=size)
    opened.draw()
    page = opened.page
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert page.evaluate(OVERFLOW) == 0
    # What is wider scrolls in its own box, which the keyboard reaches.
    boxes = "all => all.filter(one => one.scrollWidth > one.clientWidth && one.tabIndex < 0).length"
    assert page.locator(".scroll").evaluate_all(boxes) == 0
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = false; })")
    screenshot(page, f"{name}-{size[0]}", full_page=True)


@pytest.mark.parametrize("name", ["ddp-2gpu-straggler", "fsdp-4gpu", "one-rank", "hostile"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_is_accessible(name, dark, written, open_page, check_accessible, screenshot):
    opened = open_page(written(name), dark=dark)
    opened.draw()
    # Definitions are long, and the same on every page.
    closed = "details" if name == "one-rank" else "details:not(.definition)"
    opened.page.locator(closed).evaluate_all("all => all.forEach(one => { one.open = true; })")
    check_accessible(opened.page)
    if dark:
        screenshot(opened.page, f"{name}-dark", full_page=True)


def test_without_scripts_the_words_and_tables_are_there(written, open_page):
    opened = open_page(written("ddp-4gpu-shm"), java_script_enabled=False)
    text = opened.page.locator("body").inner_text()
    assert "Charts need JavaScript" in text
    opened.page.locator("#chart-step-bars summary").click()
    assert opened.page.locator("#chart-step-bars table").is_visible()


def test_the_page_of_another_size_is_redrawn(written, open_page):
    opened = open_page(written("steady"))
    opened.page.set_viewport_size({"width": 900, "height": 900})
    width = "document.querySelector('#chart-step-bars canvas').clientWidth"
    opened.wait(f"{width} < 860")
    assert opened.chart("chart.getWidth()", "chart-step-bars") == opened.page.evaluate(width)
