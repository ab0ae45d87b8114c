"""The menu of all single changes, and the findings that advise them."""

from __future__ import annotations

import pytest

from nsyspipe.replay.answer import finding_of
from nsyspipe.replay.knobs import Knobs
from tests.build.ddp_run import MS
from tests.build.make_replay import SINGLE

VIEW = SINGLE.changed(has_copies=False)
IDS = {f"link-{name}" for name in ("nvlink5", "nvlink4", "pcie5x16", "pcie4x16", "shm")}
IDS |= {"bucket-25", "bucket-100", "no-grad-copy", "gradient-bf16", "no-wait", "perfect-overlap"}


def test_it_has_every_change_the_largest_gain_first_and_what_is_refused_last(ask):
    found = ask(SINGLE)
    assert {one.id for one in found.scenarios} == IDS
    gains = [one.gain_pct for one in found.scenarios]
    assert gains == sorted(gains, reverse=True)
    for name in ("id", "step_time_ns"):
        assert found.table()[name].to_pylist() == [getattr(one, name) for one in found.scenarios]
    refused = [one.refused is not None for one in ask(VIEW).scenarios]
    assert refused == sorted(refused)
    assert any(refused)


def test_few_steps_are_a_warning_and_enough_are_none(ask):
    found = ask(SINGLE.changed(n_steps=4), no_wait=True)
    (row,) = [one for one in found.problems if one["code"] == "few-steps-to-replay"]
    assert row["severity"] == "warning"
    assert row["message"].startswith("the answers rest on 2 steps")
    assert "few-steps-to-replay" not in [one["code"] for one in ask(SINGLE, no_wait=True).problems]


def test_a_change_names_the_finding_that_advises_it_and_its_bound(ask, loaded):
    by_id = {one.id: one for one in ask(SINGLE).scenarios}
    savings = {row["id"]: row["saving_ns_per_step"] for row in loaded(SINGLE).findings().to_pylist()}
    # Four copies in a row may be of anything, and no rank is late.
    named = {"bucket-25": "single-bucket", "perfect-overlap": "comm-bound", "no-grad-copy": None, "no-wait": None}
    for name, finding in named.items():
        assert (by_id[name].finding, by_id[name].finding_saving_ns) == (finding, savings.get(finding))
    # Of each step 80 ms are exposed.
    assert by_id["perfect-overlap"].finding_saving_ns == pytest.approx(80 * MS)
    # What is refused names it too; several changes answer none.
    (refused,) = ask(VIEW.changed(datatype="bf16"), bucket_mb=25).scenarios
    assert (refused.refused is not None, refused.finding) == (True, "single-bucket")
    (several,) = ask(SINGLE, bucket_mb=25, no_grad_copy=True).scenarios
    assert (several.finding, several.finding_saving_ns) == (None, None)


@pytest.mark.parametrize(("knobs", "finding"), [
    # The finding speaks of 450 GB/s.
    (Knobs(link="nvlink4"), "slow-link"), (Knobs(link="nvlink5"), None),
    (Knobs(bandwidth_bytes_per_s=100e9), "slow-link"), (Knobs(bucket_mb=100), "too-many-buckets"),
    (Knobs(no_wait=True), None), (Knobs(), None),
])  # fmt: skip
def test_it_is_the_rule_that_fired(knobs, finding):
    assert finding_of(knobs, {"slow-link", "too-many-buckets"}, 450e9) == finding
