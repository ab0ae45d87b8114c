"""Names from traces are text: nothing in them runs, loads or moves the page."""

from __future__ import annotations

import pytest

from nsyspipe.report.html.page import run_id_of_page
from tests.build.hostile import HOSTILE, HOSTILE_KERNELS


@pytest.fixture(scope="module")
def hostile(written, keep_page):
    opened = keep_page(written("hostile"))
    opened.draw()
    opened.page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    return opened


def test_nothing_of_a_name_runs_and_no_name_adds_elements(hostile):
    page = hostile.page
    page.wait_for_timeout(200)
    assert page.evaluate("window.attacked") is None
    assert hostile.dialogs == []
    assert page.locator("script").count() == 2 + page.locator("script[type='application/json']").count()
    assert page.locator("body img, body iframe, body object, body form, body link").count() == 0
    for attribute in ("onload", "onerror", "onfocus", "onclick"):
        assert page.locator(f"[{attribute}]").count() == 0


def test_names_are_shown_as_they_are(hostile, written):
    page = hostile.page
    assert "<script>window.attacked=9</script>" in page.locator(".facts").inner_text()
    provenance = page.locator("#provenance").inner_text()
    for name in (f"host {HOSTILE[0]}", f"GPU {HOSTILE[1]}", HOSTILE[3], "<img src=x onerror=alert(7)>_0.sqlite"):
        assert name in provenance
    kernels = page.locator("#kernels tbody").inner_text()
    for name in HOSTILE_KERNELS:
        assert name in kernels
    assert HOSTILE[1] in page.locator("#link").inner_text()
    text = page.locator("body").inner_text()
    assert not set(text) & set("\x00\x07\x1b\x7f\u202e\u202c\u200b\u2028\u2029")
    assert "\ufffdesrever\ufffd zero\ufffdwidth" in text
    assert run_id_of_page(written("hostile")) == "\"><script>alert('id')</script>"


def test_tooltips_show_names_as_text(hostile):
    made = hostile.page.evaluate(
        """names => names.map(name => {
      const tip = nsyspipe.tooltip({ title: name, name, rows: [{ label: name, value: name }] });
      document.body.append(tip);
      const found = [tip.querySelector(".tip-name").textContent, tip.querySelectorAll("script, img, svg").length];
      tip.remove();
      return found;
    })""",
        list(HOSTILE),
    )
    assert made == [[name, 0] for name in HOSTILE]


def test_a_bar_with_a_hostile_name_is_pointed_at(hostile):
    hostile.show("chart-timeline")
    bar = hostile.page.evaluate("""() => {
      const { ranks, names } = nsyspipe.data("timeline");
      const { compute } = ranks[0].lanes;
      const row = nsyspipe.timeline.layout(nsyspipe.data("timeline"), false).rows.find(one => one.lane === "compute");
      return { at: compute.start[1] + compute.length[1] / 2, name: names[compute.name[1]], top: row.top };
    }""")
    assert bar["name"].startswith("<img src=x")
    x = hostile.chart(f"chart.convertToPixel({{xAxisIndex: 0}}, {bar['at']})", "chart-timeline")
    hostile.page.mouse.move(*hostile.point("chart-timeline", x, bar["top"] + 15))
    assert bar["name"] in hostile.tooltip()
    assert hostile.page.evaluate("window.attacked") is None
