"""`nsyspipe whatif`: the answer first, one document, and a reason instead of a wrong figure."""

from __future__ import annotations

import json
import re

import pytest

import nsyspipe
from nsyspipe.store.write import save
from tests.build.ddp_run import MS, Ddp
from tests.cli.tools import assert_refused, nsyspipe_here


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    """Return the folder of a run with one bucket after the backward pass: see `tests.build.ddp_run.Ddp`."""
    folder = tmp_path_factory.mktemp("ddp")
    Ddp().write(folder)
    return folder


def document(*arguments):
    done = nsyspipe_here("whatif", *arguments, "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_menu_leads_with_the_largest_change_and_fits(ddp):
    for columns in (40, 92, 100):
        done = nsyspipe_here("whatif", ddp, COLUMNS=str(columns))
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert all(len(line) <= columns for line in lines)
    assert lines[0].startswith("Largest single change: gradients as bf16, 39.19 ms (34.1 %) less step time (")
    assert any(line.startswith("change ") and line.endswith("throughput") for line in lines)


@pytest.mark.slow
def test_one_combination_says_what_it_rests_on(ddp):
    done = nsyspipe_here("whatif", ddp, "--no-grad-copy", "--bucket-mb", "25", COLUMNS="100")
    lines = done.stdout.splitlines()
    # 15.1 ms until the first bucket is ready, 80.09 on the link, 4 for the optimizer: 99.19. Beside the 15.6 ms of
    # backward that are left, transfers take 2 % longer (0.31), and each waits for room on the GPU.
    assert lines[0].startswith(
        "With bucket_cap_mb=25, gradient_as_bucket_view=True: 99.71 ms, 15.09 ms (13.1 %) less step time"
    )
    assert "This rests on" in lines


def test_the_document_has_the_menu_or_one_combination(ddp):
    found = document(ddp)
    assert found["step_time_ns"] == pytest.approx(114.8 * MS)
    gains = [one["gain_pct"] for one in found["scenarios"]]
    assert gains == sorted(gains, reverse=True)
    (one,) = document(ddp, "--link", "nvlink4", "--gradient-dtype", "bf16", "--no-wait")["scenarios"]
    assert (one["id"], one["knobs"]) == ("custom", {"link": "nvlink4", "gradient_dtype": "bf16", "no_wait": True})


def test_a_saved_run_answers_as_its_reports_do(ddp, tmp_path):
    save(nsyspipe.load(ddp), tmp_path / "store", events=True)
    assert document(tmp_path / "store") == document(ddp)


@pytest.mark.slow
def test_one_rank_of_two_gets_the_answers_that_it_allows(ddp):
    found = document(ddp / "ddp_0.sqlite")
    answered = {one["id"] for one in found["scenarios"] if not one["refused"]}
    assert {bool(re.search("bucket|grad-copy|grad_copy", one)) for one in answered} == {True}, answered
    assert any(one["refused"] for one in found["scenarios"])
    done = nsyspipe_here("whatif", ddp / "ddp_0.sqlite", "--bucket-mb", "25", COLUMNS="100")
    assert "for this rank alone" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_bytes_that_contradict_the_capture_are_refused_with_both_figures(ddp):
    assert_refused(done := nsyspipe_here("whatif", ddp, "--gradient-bytes", "1e9"))
    assert "--gradient-bytes 1,000,000,000: the capture says 109,051,904 bytes" in done.stderr
