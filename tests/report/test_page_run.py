"""The page of a run as text: the same for the same run, complete, and closed to what names hold."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from nsyspipe import load
from nsyspipe.report.html.page import LIBRARY, read_asset, run_id_of_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE, hostile_log, write_hostile_run
from tests.build.trace import TraceBuilder, steady_rank


def without_library(text):
    return text.replace(read_asset(LIBRARY), "")


def test_the_same_run_gives_the_same_bytes(steady):
    assert run_page(load(steady)) == run_page(load(steady))


def test_the_page_says_which_run_it_is_of(steady, tmp_path):
    run = load(steady, run_id='a"<b>')
    path = tmp_path / "page.html"
    path.write_text(run_page(run), encoding="utf-8")
    assert run_id_of_page(path) == 'a"<b>'


def test_a_saved_run_gives_the_same_page(steady, tmp_path):
    run = load(steady)
    save(run, tmp_path / "store")
    assert run_page(load(tmp_path / "store")) == run_page(run)


def test_every_section_of_the_bar_is_there(steady):
    text = without_library(run_page(load(steady)))
    links = re.findall(r'<li><a href="#([a-z]+)">', text)
    assert len(links) == 12
    for link in links:
        assert text.count(f'id="{link}"') == 1
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_nothing_is_fetched(steady):
    text = without_library(run_page(load(steady)))
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert text.count("<link") == 1


def test_each_chart_has_its_data(steady):
    text = without_library(run_page(load(steady)))
    sources = set(re.findall(r'data-source="([a-z-]+)"', text))
    assert sources == {"step-bars", "timeline", "steps", "collectives"}
    for source in sources:
        assert f'<script type="application/json" id="data-{source}">' in text


def test_hostile_names_are_escaped_everywhere(tmp_path):
    run = load(
        write_hostile_run(tmp_path),
        nccl_log=hostile_log(tmp_path / "nccl.log"),
        label=HOSTILE[0],
        run_id=HOSTILE[3],
    )
    text = without_library(run_page(run))
    for name in HOSTILE[:4]:
        assert name not in text
    assert "&lt;script&gt;window.attacked=1" in text
    assert text.count("<script") == text.count("</script>") == 2 + text.count("<script type=")
    # Neither templates in names are run, nor long names repeated at full length.
    assert "{{7*7}}" in text
    assert "long_name_" * 50 not in text


def test_a_run_of_one_rank_says_that_nobody_waits(tmp_path):
    path = steady_rank(0, world_size=1).write(tmp_path / "alone.sqlite")
    text = without_library(run_page(load(path)))
    assert "One rank: there is nobody to wait for." in text


def test_a_run_without_steps_is_a_page_all_the_same(tmp_path):
    builder = TraceBuilder().kernel(10, 50, launch=1).kernel(60, 90, launch=2)
    text = run_page(load(builder.write(tmp_path / "r.sqlite")))
    assert "there are no steps (no family of NVTX ranges qualifies on every rank)" in text
    assert "Where the time of the capture goes" in text
    assert "Timeline of the capture" in text


def test_a_run_without_gpu_activity_is_a_page_all_the_same(tmp_path):
    text = run_page(load(TraceBuilder().range(0, 10, "step 1").write(tmp_path / "r.sqlite")))
    assert "No GPU activity was recorded" in text
    assert "not recorded" in text


def test_figures_that_were_not_recorded_say_why(tmp_path):
    for rank in range(2):
        builder = steady_rank(rank)
        builder.rows["NVTX_EVENTS"] = [
            row for row in builder.rows["NVTX_EVENTS"] if row["textId"] != builder.string("backward")
        ]
        builder.write(tmp_path / f"r_{rank}.sqlite")
    text = without_library(run_page(load(tmp_path)))
    assert re.search(r"<dt>Hidden</dt>\s*<dd class=\"figure\">not recorded</dd>\s*<dd class=\"meaning\">no backward range", text)  # fmt: skip


def test_a_page_of_two_ranks_is_small(steady):
    assert len(run_page(load(steady)).encode()) < 1_400_000


@pytest.mark.slow
def test_templates_are_loaded_only_for_a_page():
    script = "import sys, nsyspipe.report.html.run_page; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["ddp-4gpu-onefile", "fsdp-4gpu_0"])
def test_other_real_captures_are_pages(real, name):
    text = run_page(load(real / f"{name}.sqlite"))
    assert "<h1>" in text
