"""What a replay expects of the findings' advice: the answers of `whatif`, or why there is none."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nsyspipe
from nsyspipe.model import schema
from nsyspipe.replay import answer as expected
from nsyspipe.replay.answer import advised_change, whatif, with_expected_savings
from nsyspipe.replay.knobs import Knobs
from tests.build.ddp_run import MS, US
from tests.build.make_replay import OVERHEAD, SINGLE, STEP, first_of
from tests.build.tools import edit
from tests.conftest import REAL

LATE = 15 * MS

# Which scenario of the menu is the advice of a finding.
LOGS = REAL / "logs"
SHM = {"nccl_log": LOGS / "ddp-4gpu-shm.nccl.log", "topology": LOGS / "topo-4gpu.txt"}
SCENARIOS = {
    "comm-bound": "perfect-overlap",
    "single-bucket": "bucket-25",
    "too-many-buckets": "bucket-100",
    "grad-copy": "no-grad-copy",
    "compress-gradients": "gradient-bf16",
    "straggler": "no-wait",
    "slow-link": "link-nvlink4",
}


def told(table):
    return {row["id"]: row | {"evidence": json.loads(row["evidence"])} for row in table.to_pylist()}


@pytest.mark.slow
def test_it_is_worked_out_for_one_bucket_after_backward(loaded):
    found = told(loaded(SINGLE.changed(late=(0, LATE))).findings())
    gains = {name: row["expected_ns_per_step"] for name, row in found.items()}
    assert gains["comm-bound"] is None  # the advice is no setting: there is but a limit
    *first_ones, last = gains
    assert ({*first_ones}, last) == ({"single-bucket", "straggler"}, "comm-bound")
    assert gains[first_ones[0]] >= gains[first_ones[1]]
    # 80 ms of all-reduce beside all work: what remains is the longer of both.
    assert found["comm-bound"]["evidence"]["replay_limit_ns_per_step"] == pytest.approx(
        STEP + LATE - 80 * MS
    )
    # A bucket each: the first goes after one layer, then one after the other, then the last one's
    # copy.
    first, each = 10 * MS + LATE + 5 * MS + 100 * US, OVERHEAD + (80 * MS - OVERHEAD) / 4
    buckets = first + first_of(4) + 4 * each + 100 * US + 4 * MS
    assert gains["single-bucket"] == pytest.approx(STEP + LATE - buckets, rel=0.002)
    assert gains["straggler"] == pytest.approx(LATE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capture", "files"),
    [("ddp-4gpu-shm", {}), ("ddp-4gpu-shm", SHM), ("ddp-2gpu-straggler", {}), (None, {})],
)
def test_it_is_what_whatif_answers(runs, loaded, capture, files):
    run = runs(capture, **files) if capture else loaded(SINGLE.changed(late=(0, LATE)))
    answers = {one.id: one for one in whatif(run).scenarios}
    found = told(run.findings())
    assert set(found) & set(SCENARIOS)
    for name, row in found.items():
        if name not in SCENARIOS:
            assert row["expected_ns_per_step"] is None, name
            continue
        answer, evidence = answers[SCENARIOS[name]], row["evidence"]
        assert evidence["replay_change"] == answer.label, name
        if answer.refused is not None:
            assert row["expected_ns_per_step"] is None, name
            assert evidence["replay_refused"] == answer.refused, name
            continue
        # No setting, or a link of which it was not recorded whether it connects them.
        what = {"comm-bound": "limit", "slow-link": "" if files else "conditional"}.get(name, "")
        assert answer.is_advised is not bool(what), name
        assert row["expected_ns_per_step"] == (None if what else answer.mean_gain_ns), name
        gains = {one: evidence.get(f"replay_{one}_ns_per_step") for one in ("limit", "conditional")}
        assert gains == {one: answer.mean_gain_ns if one == what else None for one in gains}, name
        # Of a few steps mean and median differ little.
        gain = answer.gain_pct / 100 * evidence["replay_step_time_ns"] / (1 - answer.gain_pct / 100)
        assert answer.mean_gain_ns == pytest.approx(gain, rel=0.02, abs=0.001 * gain), name
        times = [evidence[f"replay_step_time_{name}ns"] for name in ("", "low_", "high_")]
        assert times == [answer.step_time_ns, answer.low_ns, answer.high_ns], name


def test_bounds_order_and_all_else_stay_and_no_bound_cuts_what_is_expected(loaded):
    run = loaded(SINGLE)
    before, after = run.judged_findings(), schema.FINDINGS.from_rows(run.finding_rows)
    assert before["expected_ns_per_step"].null_count == before.num_rows
    kept = [
        name for name in before.column_names if name not in {"expected_ns_per_step", "evidence"}
    ]
    assert after.select(kept).equals(before.select(kept))
    for one, other in zip(told(before).values(), told(after).values(), strict=True):
        assert one["evidence"].items() <= other["evidence"].items(), one
    # What is expected is not cut to the bound.
    low = schema.FINDINGS.from_rows(
        [row | {"saving_ns_per_step": 1e6} for row in before.to_pylist()]
    )
    column = with_expected_savings(run, low)["expected_ns_per_step"]
    assert column.equals(after["expected_ns_per_step"])
    assert min(column.drop_null().to_pylist()) > 1e6


# It cannot be replayed, its reports are gone, or it is so large that it is left to `whatif`, and
# not even tried here.
NOT_REPLAYED = {"no step": (2, None), "reports are gone": (5, None), "large": (5, 10)}


@pytest.mark.parametrize(("n_steps", "most"), NOT_REPLAYED.values(), ids=NOT_REPLAYED)
def test_a_run_that_is_not_replayed_says_why_and_has_its_findings(
    tmp_path, monkeypatch, n_steps, most, worded
):
    run = nsyspipe.load(SINGLE.changed(n_steps=n_steps).write(tmp_path / "run"), jobs=1)
    assert "reports-changed" not in run.problems["code"].to_pylist()
    if most:
        monkeypatch.setattr(expected, "_MAX_KERNELS", most)
        monkeypatch.setattr(expected, "opened_replay", None)
    elif n_steps > 2:
        for report in (tmp_path / "run").iterdir():
            report.unlink()
    found = told(run.findings())
    assert set(found) == {"comm-bound", "single-bucket"}
    for name, row in found.items():
        assert row["expected_ns_per_step"] is None, name
        worded(row["evidence"]["replay_refused"], name)
        assert "replay_step_time_ns" not in row["evidence"], name
    gone = [row["message"] for row in run.problem_rows if row["code"] == "reports-changed"]
    assert bool(gone) == (n_steps > 2 and most is None)
    for message in gone:
        worded(message, "problem")


@pytest.mark.slow
def test_an_executor_that_was_shut_down_is_done_without(tmp_path):
    reports = SINGLE.write(tmp_path / "run")
    with ThreadPoolExecutor(2) as executor:
        run = nsyspipe.load(reports, executor=executor)
        run.steps()
    assert run.findings().equals(nsyspipe.load(reports, jobs=1).findings())
    assert run.timeline().num_rows


@pytest.mark.parametrize("n_bytes", [0, -1])
def test_copies_of_no_bytes_say_nothing_of_the_gradients(tmp_path, n_bytes, worded):
    run = nsyspipe.load(SINGLE.write(tmp_path / "run"), jobs=1)
    for report in (tmp_path / "run").iterdir():
        edit(report, f"update CUPTI_ACTIVITY_KIND_MEMCPY set bytes = {n_bytes}")
    found = told(run.findings())
    assert found["comm-bound"]["evidence"]["replay_limit_ns_per_step"] == pytest.approx(
        STEP - 80 * MS
    )
    worded(found["single-bucket"]["evidence"]["replay_refused"])


def test_without_advice_that_it_knows_nothing_is_replayed(steady, monkeypatch):
    monkeypatch.setattr(expected, "opened_replay", None)
    run = nsyspipe.load(steady)
    other = [one["id"] not in SCENARIOS for one in run.judged_findings().to_pylist()]
    findings = run.judged_findings().filter(other)
    assert with_expected_savings(run, findings) is findings


@pytest.mark.parametrize(("limit", "bound"), [(2e6, 2e6), (0.0, None)])
def test_what_gives_nothing_back_even_without_transfers_is_no_finding(
    loaded, monkeypatch, limit, bound
):
    run = loaded(SINGLE)
    rows = [row for row in run.judged_findings().to_pylist() if row["id"] == "comm-bound"]
    rows += [
        rows[0] | {"id": "comm-slows-compute", "saving_ns_per_step": 5e6},
        rows[0] | {"id": "launch-bound"},
    ]
    replay = expected.opened_replay(run)
    vars(replay)["limits"] = np.stack([replay.captured.windows.step_times() + 1e3] * 2)
    assert replay.limit_gain_ns == 0.0  # never less
    monkeypatch.setattr(type(replay), "limit_gain_ns", limit)
    found = told(with_expected_savings(run, schema.FINDINGS.from_rows(rows)))
    assert (
        "launch-bound" in found,
        found.get("comm-slows-compute", {}).get("saving_ns_per_step"),
    ) == (True, bound)


def test_a_slow_link_is_replayed_with_the_fastest_that_it_speaks_of():
    for promised, link in (
        (900e9, "nvlink5"),
        (450e9, "nvlink4"),
        (63e9, "pcie5x16"),
        (None, None),
    ):
        assert advised_change("slow-link", promised) == (link and Knobs(link=link)), promised
    assert advised_change("launch-bound", None) is None  # an advice that no replay knows
