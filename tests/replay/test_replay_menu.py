"""The menu of all single changes, and the steps that it rests on."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.replay.answer import finding_of, whatif
from nsyspipe.replay.knobs import Knobs
from tests.build.ddp_run import MS
from tests.build.make_replay import SINGLE, asked, refusal


@pytest.fixture
def ask(tmp_path):
    def answer(run, **changes):
        return asked(tmp_path / "run", run, **changes)

    return answer


class TestMenu:
    def test_it_has_every_change_and_the_largest_gain_first(self, ask):
        found = ask(SINGLE)
        ids = {one.id for one in found.scenarios}
        links = {f"link-{name}" for name in ("nvlink5", "nvlink4", "pcie5x16", "pcie4x16", "shm")}
        assert ids == links | {
            *("bucket-25", "bucket-100", "no-grad-copy", "gradient-bf16", "no-wait", "perfect-overlap")
        }
        gains = [one.gain_pct for one in found.scenarios]
        assert gains == sorted(gains, reverse=True)

    def test_what_is_refused_comes_last(self, ask):
        found = ask(SINGLE.changed(has_copies=False))
        refused = [one.refused is not None for one in found.scenarios]
        assert refused == sorted(refused)
        assert any(refused)

    def test_its_table_has_a_row_each(self, ask):
        found = ask(SINGLE)
        table = found.table()
        assert table["id"].to_pylist() == [one.id for one in found.scenarios]
        assert table["step_time_ns"].to_pylist() == [one.step_time_ns for one in found.scenarios]


class TestSteps:
    def test_few_steps_are_a_warning(self, ask):
        found = ask(SINGLE.changed(n_steps=4), no_wait=True)
        (row,) = [one for one in found.problems if one["code"] == "few-steps-to-replay"]
        assert row["severity"] == "warning"
        assert row["message"].startswith("the answers rest on 2 steps")

    def test_enough_steps_are_none(self, ask):
        codes = [one["code"] for one in ask(SINGLE, no_wait=True).problems]
        assert "few-steps-to-replay" not in codes

    def test_only_the_first_step_is_no_step(self, ask):
        assert "no complete step after the first" in refusal(ask(SINGLE.changed(n_steps=2)))

    def test_only_a_cut_off_step_is_no_step(self, tmp_path):
        run = nsyspipe.load(SINGLE.changed(n_steps=1).write(tmp_path / "run"), step=".*")
        assert "no step is complete" in refusal(whatif(run))

    def test_one_range_alone_makes_no_steps(self, ask):
        assert "the run has no steps" in refusal(ask(SINGLE.changed(n_steps=1)))


class TestFindings:
    def test_a_change_names_the_finding_that_advises_it_and_its_bound(self, ask, tmp_path):
        by_id = {one.id: one for one in ask(SINGLE).scenarios}
        rows = nsyspipe.load(str(tmp_path / "run")).findings().to_pylist()
        savings = {row["id"]: row["saving_ns_per_step"] for row in rows}
        named = {
            "bucket-25": "single-bucket",
            "perfect-overlap": "comm-bound",
            "no-grad-copy": None,  # four copies in a row may be of anything
            "no-wait": None,  # no rank is late
        }
        for name, finding in named.items():
            assert by_id[name].finding == finding
            assert by_id[name].finding_saving_ns == savings.get(finding)
        # Of each step 80 ms are exposed.
        assert by_id["perfect-overlap"].finding_saving_ns == pytest.approx(80 * MS)

    def test_several_changes_answer_no_finding(self, ask):
        (one,) = ask(SINGLE, bucket_mb=25, no_grad_copy=True).scenarios
        assert one.finding is None
        assert one.finding_saving_ns is None

    def test_what_is_refused_names_it_too(self, ask):
        (one,) = ask(SINGLE.changed(datatype="bf16", has_copies=False), bucket_mb=25).scenarios
        assert one.refused is not None
        assert one.finding == "single-bucket"

    @pytest.mark.parametrize(
        ("knobs", "finding"),
        [
            (Knobs(link="nvlink4"), "slow-link"),
            (Knobs(link="nvlink5"), None),  # the finding speaks of 450 GB/s
            (Knobs(bandwidth_bytes_per_s=100e9), "slow-link"),
            (Knobs(bucket_mb=100), "too-many-buckets"),
            (Knobs(no_wait=True), None),
            (Knobs(), None),
        ],
    )
    def test_it_is_the_rule_that_fired(self, knobs, finding):
        assert finding_of(knobs, {"slow-link", "too-many-buckets"}, 450e9) == finding
