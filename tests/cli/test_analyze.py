"""`nsyspipe analyze` and `whatif`: what stands on stdout, on stderr and in files, the exit code, a reason for what is not answered."""

import json
import re

import pytest

import nsyspipe
from nsyspipe.report.export import document
from nsyspipe.store.write import save
from tests.build.ddp_run import MS, Ddp
from tests.build.tools import STEADY
from tests.build.trace import NVTX, RUNTIME, TraceBuilder, steady_rank
from tests.cli.tools import assert_refused, environment, nsyspipe_here


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_json_on_stdout_is_one_document_and_nothing_else(forks, steady, jobs):
    done = forks.run("analyze", steady, "--json", "-", "-j", jobs, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == document(nsyspipe.load(steady))


def test_the_document_holds_the_hand_computed_figures(steady, invoke):
    found = json.loads(invoke(steady, "--json", "-").stdout)
    assert found["run"]["captured_at_utc"] == "2001-09-09T01:46:40Z"  # 10^18 ns after 1970
    assert found["run"]["n_ranks"] == found["run"]["world_size"] == 2
    assert found["run"]["reports"] == ["steady_0.sqlite", "steady_1.sqlite"]
    assert found["summary"]["skipped_steps"] == [0]
    assert {row["severity"] for row in found["problems"]} == {
        "info"
    }  # strict passes what is only for information
    assert invoke(steady, "--strict").exit_code == 0
    assert found["summary"]["by_rank"]["comm_share"] == {"lowest": [0, 0.06], "highest": [0, 0.06]}
    assert [(row["rank"], row["step"]) for row in found["steps"]] == [
        (r, s) for r in range(2) for s in range(4)
    ]
    assert {name: found["steps"][1][name] for name in STEADY} == STEADY
    assert all(type(found["steps"][1][name]) is int for name in STEADY)


def test_the_lowest_and_highest_rank_are_named(tmp_path, invoke):
    steady_rank(0).write(tmp_path / "a_0.sqlite")
    builder = steady_rank(1)
    for step in range(4):
        builder.kernel(1000 * step + 400, 1000 * step + 500, launch=1000 * step + 95)
    builder.write(tmp_path / "a_1.sqlite")
    found = json.loads(invoke(tmp_path, "--json", "-").stdout)["summary"]
    assert found["compute_share"] == 0.25
    assert found["by_rank"]["compute_share"] == {"lowest": [0, 0.2], "highest": [1, 0.3]}
    assert found["by_rank"]["idle_share"] == {"lowest": [1, 0.66], "highest": [0, 0.76]}


def test_null_is_what_was_not_recorded(tmp_path, invoke):
    steady_rank(0).write(tmp_path / "a_0.sqlite", without=(RUNTIME, "TARGET_INFO_GPU"))
    found = json.loads(invoke(tmp_path, "--json", "-").stdout)
    assert found["ranks"][0]["gpu_name"] is None
    of_run = found["summary"]
    assert of_run["backward_overlap_ratio"] is of_run["by_rank"]["backward_overlap_ratio"] is None


@pytest.mark.parametrize("missing", [NVTX, "TARGET_INFO_SESSION_START_TIME"])
def test_strict_fails_on_a_warning_after_the_answer(tmp_path, invoke, missing):
    for rank in range(2):
        steady_rank(rank).write(tmp_path / f"a_{rank}.sqlite", without=(missing,))
    lax, strict = invoke(tmp_path), invoke(tmp_path, "--strict")
    assert (lax.exit_code, strict.exit_code) == (0, 2)
    assert strict.stdout == lax.stdout


def test_a_report_without_gpu_activity_is_answered(tmp_path, invoke, worded):
    TraceBuilder().range(0, 5, "step 1").range(6, 9, "step 2").write(tmp_path / "a.sqlite")
    # By its name, as lines break where names end.
    done = nsyspipe_here("analyze", "a.sqlite", cwd=tmp_path, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    worded(done.stdout)
    assert invoke(tmp_path, "--strict").exit_code == 2


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        (["--step", "^step [12]$"], ("summary", "n_steps"), 2),
        (["--skip-first", "2"], ("summary", "skipped_steps"), [0, 1]),
        (["--skip-first", "0"], ("summary", "n_summary_steps"), 3),
        (["--comm-kernel", "^gemm"], ("summary", "compute_share"), 0.0),
        (["--backward", "^forward$"], ("summary", "backward_overlap_ratio"), 0.0),
        (["--label", "mine"], ("run", "label"), "mine"),
        (["--run-id", "id7"], ("run", "run_id"), "id7"),
        (["--rank-map", "steady_0=1,steady_1=0"], ("ranks", 0, "rank_source"), "rank_map"),
    ],
)
def test_every_option_reaches_the_analysis(steady, invoke, options, path, value):
    found = json.loads(invoke(steady, "--json", "-", *options).stdout)
    for key in path:
        found = found[key]
    assert found == value


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    """Return the folder of a run with one bucket after the backward pass: see `tests.build.ddp_run.Ddp`."""
    folder = tmp_path_factory.mktemp("ddp")
    Ddp().write(folder)
    return folder


def document_of(*arguments):
    done = nsyspipe_here("whatif", *arguments, "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def figures_of(line):
    return re.findall(r"\d+(?:\.\d+)?", line)


@pytest.mark.slow
def test_the_menu_leads_with_the_largest_change_and_fits(ddp, worded):
    for columns in (40, 92, 100):
        done = nsyspipe_here("whatif", ddp, COLUMNS=str(columns))
        assert (done.returncode, done.stderr) == (0, ""), columns
        lines = done.stdout.splitlines()
        assert all(len(line) <= columns for line in lines), columns
    # Step times before and after, its range, and the saving.
    assert figures_of(lines[0]) == ["115", "39.2", "38.4", "40.0", "65.9"]
    worded(done.stdout)


@pytest.mark.slow
def test_one_combination_says_what_it_rests_on(ddp, worded):
    done = nsyspipe_here("whatif", ddp, "--no-grad-copy", "--bucket-mb", "25", COLUMNS="100")
    # 15.1 ms until the first bucket is ready, 80.09 on the link, 4 for the optimizer: 99.19. Beside
    # the 15.6 ms of backward that are left, transfers take 2 % longer (0.31), and each waits for
    # room on the GPU.
    assert {"115", "99.7", "13.1"} <= {*figures_of(" ".join(done.stdout.splitlines()[:2]))}
    worded(done.stdout)


@pytest.mark.slow
def test_the_document_has_the_menu_or_one_combination(ddp):
    found = document_of(ddp)
    assert found["step_time_ns"] == pytest.approx(114.8 * MS)
    gains = [one["gain_pct"] for one in found["scenarios"]]
    assert gains == sorted(gains, reverse=True)
    (one,) = document_of(ddp, "--link", "nvlink4", "--gradient-dtype", "bf16", "--no-wait")[
        "scenarios"
    ]
    assert (one["id"], one["knobs"]) == (
        "custom",
        {"link": "nvlink4", "gradient_dtype": "bf16", "no_wait": True},
    )


@pytest.mark.slow
def test_a_saved_run_answers_as_its_reports_do(ddp, tmp_path):
    save(nsyspipe.load(ddp), tmp_path / "store", events=True)
    assert document_of(tmp_path / "store") == document_of(ddp)


@pytest.mark.slow
def test_one_rank_of_two_gets_the_answers_that_it_allows(ddp, worded):
    found = document_of(ddp / "ddp_0.sqlite")
    answered = {one["id"] for one in found["scenarios"] if not one["refused"]}
    assert {bool(re.search("bucket|grad-copy|grad_copy", one)) for one in answered} == {True}, (
        answered
    )
    assert any(one["refused"] for one in found["scenarios"])
    done = nsyspipe_here("whatif", ddp / "ddp_0.sqlite", "--bucket-mb", "25", COLUMNS="100")
    worded(done.stdout)


@pytest.mark.slow
def test_bytes_that_contradict_the_capture_are_refused_with_both_figures(ddp, worded):
    said = assert_refused(nsyspipe_here("whatif", ddp, "--gradient-bytes", "1e9"))
    assert re.findall(r"\d+(?:,\d{3})+", said)[:2] == ["1,000,000,000", "109,051,904"]
    worded(said)
