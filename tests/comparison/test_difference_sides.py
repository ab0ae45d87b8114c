"""What a difference takes for a side, and what it refuses; differences of real captures and of saved runs."""

import re

import pytest

import nsyspipe
from nsyspipe.api import compare, diff, load
from nsyspipe.comparison.metrics import overall_verdict
from nsyspipe.comparison.side import Side
from nsyspipe.errors import OptionError, ReportNotFoundError
from nsyspipe.report.difference import verdict_text
from nsyspipe.report.scoreboard import doubts
from nsyspipe.store.write import save

STEPS = [(1000 + 3 * (number % 2), 100, 40, 60) for number in range(8)]


@pytest.fixture(scope="module")
def run(made):
    return made(STEPS, STEPS)


@pytest.mark.slow
def test_a_side_is_a_side_a_run_or_a_path(run):
    folder = run.inputs[0].parent
    for given in (Side("x", (run,)), run, folder, str(folder / "run_*.sqlite")):
        assert diff(given, run, force=True).verdict == "no change", given
    assert repr(diff(run, run)) == "<RunDifference 'run' -> 'run (2)': inconclusive>"
    # It is shown by its label or what tells it from the other.
    assert (Side("x", (run,)).name, Side("x", (run,), "runs/x").name) == ("x", "runs/x")
    assert "'runs/x' -> 'x'" in repr(diff(Side("x", (run,), "runs/x"), Side("x", (run,))))


@pytest.mark.slow
def test_a_list_of_runs_is_several_captures_and_a_store_all_its_runs(run, made, tmp_path, worded):
    other = made(STEPS[1:], STEPS[1:])
    assert [
        len(side.runs) for side in (diff([run, other], run).baseline, diff((other,), run).baseline)
    ] == [2, 1]
    for one in (run, other):
        save(one, tmp_path / "store")
    assert len(compare(tmp_path / "store").sides) == len(compare(run, other).sides) == 2
    assert Side("x", run) == Side("x", [run])
    folder = str(run.inputs[0].parent)
    for case, refused in (
        ("compare one run", lambda: compare(folder)),
        ("diff names", lambda: diff(["a_0.sqlite", "a_1.sqlite"], run)),
        ("whatif of two runs", lambda: nsyspipe.whatif([run, other])),
    ):
        with pytest.raises(OptionError) as caught:
            refused()
        worded(str(caught.value).replace(folder, "FOLDER"), case)
    assert nsyspipe.whatif(run.inputs[0].parent) == nsyspipe.whatif(run)
    with pytest.raises(ReportNotFoundError):
        nsyspipe.whatif("nowhere")
    with pytest.raises(ReportNotFoundError):
        diff("nowhere", run)
    with pytest.raises(ReportNotFoundError):
        compare("nowhere")


@pytest.mark.slow
def test_runs_that_are_not_comparable_are_judged_by_force_only(run, made, worded):
    slower = made(*[[(900 + one, *rest) for one, *rest in STEPS]] * 3)
    found = diff(run, slower)
    assert not found.is_comparable
    assert found.verdict == "inconclusive"
    row = found.metrics.to_pylist()[0]
    worded(row["why"])
    assert (row["baseline"], row["candidate"]) == (1201.5, 2101.5)  # the figures are there
    forced = diff(run, slower, force=True)
    assert forced.verdict == "regression"
    assert not forced.is_comparable


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["improvement", "no change"], "improvement"),
        (["no change", "no change"], "no change"),
        (["improvement", "inconclusive", "no change"], "inconclusive"),
        (["inconclusive", "regression", "improvement"], "regression"),
        # What has no direction does not enter beside what has one, and alone it is never better nor
        # worse.
        (["neither change", "no change"], "no change"),
        (["neither inconclusive", "improvement"], "improvement"),
        (["neither no change"], "no change"),
        (["neither change", "neither no change"], "inconclusive"),
        (["neither inconclusive"], "inconclusive"),
    ],
)
def test_several_metrics_have_one_verdict_of_the_contract(verdicts, expected):
    rows = [
        {
            "verdict": one.removeprefix("neither "),
            "better": "neither" if one.startswith("neither") else "lower",
        }
        for one in verdicts
    ]
    assert overall_verdict(rows) == expected
    assert overall_verdict(rows[::-1]) == expected


@pytest.mark.slow
def test_kernels_of_one_step_add_up_to_its_compute_and_communication(runs):
    before, after = (runs(f"ddp-4gpu-{name}") for name in ("before", "after"))
    kernels = diff(before, after).kernels.to_pylist()
    for side, one in (("baseline", before), ("candidate", after)):
        steps = one.breakdown()
        for is_comm, column in ((True, "comm_ns"), (False, "compute_ns")):
            total = sum(
                row[f"{side}_ns_per_step"]
                for row in kernels
                if row["name"].startswith("nccl") == is_comm
            )
            assert total == pytest.approx(
                sum(steps[column].to_pylist()) / steps.num_rows, rel=0.02
            ), is_comm


def test_one_step_is_too_few_and_more_are_asked_for(runs, worded):
    found = diff(runs("ddp-4gpu"), runs("ddp-4gpu-shm"))
    row = found.metrics.to_pylist()[0]
    assert (row["n_baseline"], row["n_candidate"], row["ci_low"], row["ci_high"]) == (
        1,
        1,
        None,
        None,
    )
    assert (row["verdict"], row["delta"] > 0) == ("inconclusive", True)
    worded(verdict_text(found))


@pytest.mark.slow
def test_captures_of_one_side_in_another_precision_are_no_spread(real, worded):
    names = ("2gpu-gpt-b25-shm", "2gpu-gpt-b25-shm-bf16hook", "2gpu-gpt-b25")
    plain, compressed, other = (load(real / f"{name}_*.sqlite", jobs=1) for name in names)
    sides = Side("both", [plain, compressed]), other
    for case, found in (("baseline", diff(*sides)), ("candidate", diff(*sides[::-1]))):
        assert found.verdict == "inconclusive", case
        worded(found.metrics["why"][0].as_py(), case)
    (row,) = compare([sides[0]]).checks.to_pylist()
    assert (row["label"], row["against"], row["check"], row["blocks"]) == (
        "both",
        "both",
        "unlike-captures",
        True,
    )


def test_a_run_alone_whose_captures_have_other_ranks_is_said_to_have(made, worded):
    board = compare({"x": [made(STEPS), made(STEPS, STEPS)]})
    assert ("world-size", True) in zip(
        *(board.checks[name].to_pylist() for name in ("check", "blocks")), strict=True
    )
    worded(doubts(board))


@pytest.mark.slow
def test_two_captures_of_one_side_put_their_spread_into_the_interval(runs, worded):
    before, after = (runs(f"ddp-4gpu-{name}") for name in ("before", "after"))
    found = diff(Side("both", (before, after)), after)
    # 645 and 572 ms are no one configuration: with such a spread nothing can be said of 36 ms, and
    # nothing would settle it.
    why = found.metrics["why"][0].as_py()
    assert re.findall(r"\d[\d.]*(?=%| and| ms| collectives)", why) == [
        "13",
        "572.1",
        "644.8",
        "37",
        "1",
    ]
    worded(why, "why")
    assert not found.is_comparable
    forced = diff(Side("both", (before, after)), after, force=True).metrics.to_pylist()[0]
    assert (forced["verdict"], forced["settle_steps"], forced["settle_captures"]) == (
        "inconclusive",
        None,
        None,
    )
    alone = compare([Side("both", (before, after))])
    beside = compare([after, Side("both", (before, after))])
    assert doubts(beside)[0] == doubts(alone)[0]
    worded(doubts(alone)[0], "doubt")
    worded(alone.verdict, "verdict")
    row = found.metrics.to_pylist()[0]
    assert row["ci_low"] < 0 < row["ci_high"]
    assert found.has_spread_between_captures
