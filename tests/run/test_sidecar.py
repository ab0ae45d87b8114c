"""What an analysis takes from the sidecar beside its reports: over guesses, under options and recorded facts."""

import json
import re
import shutil

import pytest

import nsyspipe
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.report.export import document
from nsyspipe.store.write import save
from tests.build.programs import TOPOLOGY
from tests.build.tools import STEADY, bare, codes, figures, numbered, one_report, problem_of
from tests.build.trace import TraceBuilder, steady_rank
from tests.conftest import REAL
from tests.golden.words import figures as figures_of

AT = "2001-09-09T01:46:40Z"  # the session of `steady_rank` starts 10^18 ns after 1970
LOGS = REAL / "logs"
WITH_PAYLOADS = "3.25.0 2026.2.1 mfu"


def write(folder, *builders):
    for at, builder in enumerate(builders):
        builder.write(folder / f"ddp_{at}.sqlite")


def rank(number, report, pid=None, **more):
    return {"rank": number, "report": report, "pid": pid} | more


def sidecar(folder, *ranks, file="ddp.capture.json", **more):
    content = {"name": "ddp", "captured_at_utc": AT, "ranks": list(ranks)} | more
    path = folder / file
    path.write_text(json.dumps(content))
    return path


def two(folder):
    write(folder, bare(0), bare(1))


def messages(run, code):
    return [
        (row["severity"], row["message"]) for row in run.problems.to_pylist() if row["code"] == code
    ]


SWAPPED = (rank(1, "ddp_0", 1000), rank(0, "ddp_1", 1001))


def test_a_sidecar_numbers_the_ranks_of_one_report(
    tmp_path,
):
    one_report(*(bare(number) for number in range(3))).write(tmp_path / "ddp_node0.sqlite")
    assert numbered(nsyspipe.load(tmp_path), "pid") == ({1000: 0, 1001: 1, 1002: 2}, "order")
    ranks = [
        rank(at, "ddp_node0", pid, local_rank=at - 4)
        for at, pid in ((5, 1001), (4, 1002), (6, 1000))
    ]
    sidecar(tmp_path, *ranks[:2])
    assert numbered(nsyspipe.load(tmp_path), "pid")[1] == "order"
    sidecar(tmp_path, *ranks, world_size=8)
    run = nsyspipe.load(tmp_path)
    assert numbered(run, "pid") == ({1002: 4, 1001: 5, 1000: 6}, "sidecar")
    assert (run.ranks["local_rank"].to_pylist(), run.header.world_size) == ([0, 1, 2], 8)
    assert "rank-by-order" not in codes(run)


IN_ORDER, REVERSED = {1000: 0, 1001: 1}, {1000: 1, 1001: 0}


@pytest.mark.parametrize(
    ("ranks", "build", "options", "numbers", "source"),
    [
        (SWAPPED, bare, {}, REVERSED, "sidecar"),
        (
            SWAPPED,
            lambda at: bare(at, WITH_PAYLOADS).comm_payload(10, n_ranks=2, rank=at),
            {},
            REVERSED,
            "sidecar",
        ),
        # Without process ids a report of one rank is that rank.
        ((rank(1, "ddp_0"), rank(0, "ddp_1")), bare, {}, REVERSED, "sidecar"),
        # A report without its entry leaves ranks to the next source.
        ((rank(7, "ddp_0", 1000),), bare, {}, IN_ORDER, "file_name"),
        ((), bare, {}, IN_ORDER, "file_name"),
        # What the report captured and options go before the sidecar.
        (SWAPPED, lambda at: bare(at, RANK=at), {}, IN_ORDER, "env:RANK"),
        (
            SWAPPED,
            lambda at: bare(at, RANK=at),
            {"rank_map": "ddp_0=8,ddp_1=9"},
            {1000: 8, 1001: 9},
            "rank_map",
        ),
    ],
)
def test_the_sidecar_goes_before_payload_and_file_names(
    tmp_path, ranks, build, options, numbers, source
):
    write(tmp_path, build(0), build(1))
    sidecar(tmp_path, *ranks)
    assert numbered(nsyspipe.load(tmp_path, **options), "pid") == (numbers, source)


def test_host_gpu_and_local_rank_fill_what_reports_lack_and_replace_nothing(tmp_path):
    ranks = [
        rank(at, f"ddp_{at}", 1000 + at, local_rank=3 - at, gpu_name=f"GPU {at}") for at in (0, 1)
    ]
    sidecar(tmp_path, *ranks, host="n7", world_size=64)
    write(tmp_path, steady_rank(0), steady_rank(1))
    run = nsyspipe.load(tmp_path)
    assert run.ranks["local_rank"].to_pylist() == [0, 1]
    assert (run.header.hosts, run.header.gpu_names, run.header.world_size) == (
        ["node0"],
        ["NVIDIA H200"],
        2,
    )
    builders = [bare(at) for at in (0, 1)]
    for builder in builders:
        del builder.rows["TARGET_INFO_GPU"], builder.rows["TARGET_INFO_SYSTEM_ENV"]
    write(tmp_path, *builders)
    run = nsyspipe.load(tmp_path)
    assert [
        tuple(row.values()) for row in run.ranks.select(["gpu_name", "local_rank"]).to_pylist()
    ] == [
        ("GPU 0", 3),
        ("GPU 1", 2),
    ]
    assert (run.header.hosts, run.header.world_size) == (["n7"], 64)
    assert "no-gpu-name" not in codes(run)
    (tmp_path / "ddp.capture.json").unlink()
    assert "no-gpu-name" in codes(nsyspipe.load(tmp_path))


def test_gpus_of_one_report_are_told_apart_by_process(tmp_path):
    builders = [bare(number) for number in (0, 1)]
    for builder in builders:
        del builder.rows["TARGET_INFO_GPU"]
    one_report(*builders).write(tmp_path / "ddp_node0.sqlite")
    for names in (["B", "A"], ["B", None]):
        sidecar(
            tmp_path,
            *(rank(at, "ddp_node0", 1000 + at, gpu_name=name) for at, name in enumerate(names)),
        )
        expected = (
            names if all(names) else [None, None]
        )  # a name for one of them only says nothing of the other
        assert nsyspipe.load(tmp_path).ranks["gpu_name"].to_pylist() == expected, names


def with_batches(builder):
    """Put the first two of every four steps into a larger family, which detection prefers."""
    for at in (0, 2000):
        builder.range(at - 1, at + 1950, f"pair {at}")
    return builder


def test_the_step_pattern_names_the_family_where_it_is_on_every_rank(tmp_path):
    write(tmp_path, with_batches(bare(0)), with_batches(bare(1)))
    assert nsyspipe.load(tmp_path).step_family == "pair #"
    sidecar(tmp_path, rank(0, "ddp_0"), rank(1, "ddp_1"), step_pattern="^step [0-9]+$")
    run = nsyspipe.load(tmp_path)
    assert (run.step_family, figures(run)) == ("step #", STEADY)
    assert nsyspipe.load(tmp_path, step="^pair").step_family == "^pair"
    assert not [code for code in codes(run) if "pattern" in code or "sidecar" in code]


# The last: the launcher's own pattern, in a program that names its steps otherwise.
@pytest.mark.parametrize(
    ("pattern", "is_told"),
    [("^pair [0-9]+$", True), ("^(step|pair) [0-9]+$", True), ("^iteration [0-9]+$", False)],
)
def test_a_pattern_that_misses_a_rank_is_told_and_steps_are_detected(
    tmp_path, pattern, is_told, worded
):
    write(tmp_path, with_batches(bare(0)), bare(1))
    sidecar(tmp_path, rank(0, "ddp_0"), rank(1, "ddp_1"), step_pattern=pattern)
    run = nsyspipe.load(tmp_path)
    assert run.step_family == "step #"
    told = messages(run, "step-pattern-ignored")
    assert [severity for severity, _ in told] == ["info"] * is_told
    for _, message in told:
        worded(message)
        assert "step-pattern-ignored" not in codes(nsyspipe.load(tmp_path, step="^step")), message


DAYS_LATER = "2001-09-30T01:46:40Z"
SIDECARS = {
    "a second and a day later": ({"captured_at_utc": "2001-09-10T01:46:41Z"}, True),
    "a second and a day earlier": ({"captured_at_utc": "2001-09-08T01:46:39Z"}, True),
    "other processes": ({"ranks": [rank(1, "ddp_0", 77), rank(0, "ddp_1", 78)]}, True),
    # A day between clocks is forgiven.
    "a day later": ({"captured_at_utc": "2001-09-10T01:46:39Z"}, False),
    "a day earlier": ({"captured_at_utc": "2001-09-08T01:46:41Z"}, False),
}


@pytest.mark.parametrize(("change", "is_stale"), SIDECARS.values(), ids=SIDECARS)
def test_the_sidecar_of_another_capture_is_not_used_at_all(tmp_path, change, is_stale, worded):
    two(tmp_path)
    sidecar(
        tmp_path, *SWAPPED, **{"host": "n7", "git_commit": "abcdef1", "world_size": 64} | change
    )
    run = nsyspipe.load(tmp_path)
    assert numbered(run, "pid") == ((IN_ORDER, "file_name") if is_stale else (REVERSED, "sidecar"))
    assert (run.header.capture is None) == is_stale
    told = messages(run, "stale-sidecar")
    assert len(told) == is_stale
    for _, message in told:
        worded(message)
    assert run.header.world_size == (None if is_stale else 64)


def test_sidecars_of_another_capture_are_one_warning_for_all_reports(tmp_path):
    two(tmp_path)
    for number in (0, 1):
        report = f"ddp_{number}"
        file = f"{report}.capture.json"
        sidecar(tmp_path, rank(number, report), file=file, captured_at_utc=DAYS_LATER)
    ((severity, message),) = messages(nsyspipe.load(tmp_path), "stale-sidecar")
    assert severity == "warning"
    assert re.findall(r"[\w.]+json", message) == ["ddp_0.capture.json", "ddp_1.capture.json"]
    # The reason is there once.
    assert message.count(DAYS_LATER) == 1


def test_two_contradicting_sidecars_are_both_unused(tmp_path, worded):
    two(tmp_path)
    shutil.copy(sidecar(tmp_path, *SWAPPED), tmp_path / "ddp.node0.capture.json")
    run = nsyspipe.load(tmp_path)
    assert (numbered(run, "pid")[1], messages(run, "conflicting-sidecars")) == ("sidecar", [])
    sidecar(tmp_path, rank(0, "ddp_0", 1000), file="ddp.node0.capture.json")
    run = nsyspipe.load(tmp_path)
    assert numbered(run, "pid")[1] == "file_name"
    worded(problem_of(run, "conflicting-sidecars")["message"])


def test_a_broken_sidecar_costs_a_row_and_nothing_else(tmp_path):
    two(tmp_path)
    before = document(nsyspipe.load(tmp_path))
    (tmp_path / "ddp.capture.json").write_text('{"ranks": [')
    after = document(nsyspipe.load(tmp_path))
    (row,) = [one for one in after["problems"] if one not in before["problems"]]
    assert row["code"] == "unusable-sidecar"
    assert after | {"problems": before["problems"]} == before


def test_ranks_left_out_on_purpose_are_not_missing(tmp_path, worded):
    write(tmp_path, bare(0))
    ranks = [rank(0, "ddp_0"), rank(1, None), rank(2, None)]
    sidecar(tmp_path, *ranks, world_size=3)
    run = nsyspipe.load(tmp_path)
    assert "ranks-missing" not in codes(run)
    ((severity, message),) = messages(run, "ranks-not-captured")
    assert severity == "info"
    # How many, of how many, and which.
    assert {"2", "3", "1"} <= figures_of(message)
    worded(message, "left out")
    ranks = [rank(0, "ddp_0"), rank(1, "ddp_1"), rank(2, None), rank(3, None, problem="no report")]
    sidecar(tmp_path, *ranks, world_size=5)
    run = nsyspipe.load(tmp_path)
    # 2 was left out; 1 was not passed, 3 has none, and of 4 nothing is known.
    missing = problem_of(run, "ranks-missing")["message"]
    assert {"3", "5", "1", "4"} <= figures_of(missing)
    assert "ddp_1" in missing
    worded(missing, "missing")
    left_out = problem_of(run, "ranks-not-captured")["message"]
    assert {"1", "5"} <= figures_of(left_out)


FAILED = {
    "one": [{"status": 0}, {"status": 1}],
    # Those that failed alike are one row.
    "alike": [{"status": 143, "problem": "nsys was ended after 60 s."}] * 3,
}


@pytest.mark.parametrize("ranks", FAILED.values(), ids=FAILED)
def test_ranks_that_failed_are_told(tmp_path, ranks, worded):
    two(tmp_path)
    sidecar(tmp_path, *(rank(at, f"ddp_{at}", **more) for at, more in enumerate(ranks)))
    ((severity, message),) = messages(nsyspipe.load(tmp_path), "capture-failed")
    assert severity == "warning"
    worded(message)


def test_a_rank_that_was_ended_after_its_report_was_whole_has_not_failed(tmp_path):
    two(tmp_path)
    sidecar(tmp_path, *(rank(at, f"ddp_{at}", status=143, is_complete=True) for at in range(2)))
    assert messages(nsyspipe.load(tmp_path), "capture-failed") == []


@pytest.fixture
def linked(real, tmp_path):
    """Return a folder with the reports of a real run, its log and topology, and a sidecar that names both."""
    for at in (0, 1):
        (tmp_path / f"ddp-2gpu_{at}.sqlite").symlink_to(real / f"ddp-2gpu_{at}.sqlite")
    shutil.copy(LOGS / "ddp-2gpu.nccl.log", tmp_path / "ddp-2gpu.nccl.n.1.log")
    shutil.copy(LOGS / "topo-2gpu.txt", tmp_path / "ddp-2gpu.topo.txt")
    return tmp_path


def name_files(folder, **more):
    files = {"nccl_log_files": ["ddp-2gpu.nccl.n.1.log"], "topology_file": "ddp-2gpu.topo.txt"}
    ranks = [rank(at, f"ddp-2gpu_{at}") for at in (0, 1)]
    content = {"name": "ddp-2gpu", "captured_at_utc": None} | files | more
    return sidecar(folder, *ranks, file="ddp-2gpu.capture.json", **content)


@pytest.mark.slow
def test_logs_and_topology_of_a_sidecar_are_used_unless_options_win(linked):
    options = {"nccl_log": LOGS / "ddp-2gpu.nccl.log", "topology": LOGS / "topo-2gpu.txt"}
    alone, given = (
        nsyspipe.load(linked / "*.sqlite", logs=False),
        nsyspipe.load(linked / "*.sqlite", **options),
    )
    assert (alone.links().num_rows, alone.nccl) == (0, None)
    name_files(linked)
    found = nsyspipe.load(linked / "*.sqlite")
    assert found.links().num_rows
    assert (found.links(), found.findings()) == (given.links(), given.findings())
    assert (found.nccl, found.link) == (given.nccl, given.link)
    assert {"files-beside-used"} <= {*codes(found)}
    (linked / "ddp-2gpu.nccl.n.1.log").unlink()
    (linked / "ddp-2gpu.topo.txt").unlink()
    name_files(linked, nccl_log_files=["missing.log"], topology_file="missing.txt")
    for chosen in ({}, options):
        run = nsyspipe.load(linked / "*.sqlite", **chosen)
        assert ("sidecar-file-unusable" in codes(run)) == (run.nccl is None) == (not chosen), chosen


def test_a_log_of_another_run_is_not_used(
    linked,
):
    shutil.copy(LOGS / "ddp-4gpu.nccl.log", linked / "other.log")
    # Names that say nothing of the run, by which no file is found without the sidecar.
    (linked / "ddp-2gpu.nccl.n.1.log").rename(linked / "mine.log")
    (linked / "ddp-2gpu.topo.txt").rename(linked / "links.txt")
    other, stale = {"nccl_log_files": ["other.log"]}, {"captured_at_utc": AT}
    for said, code in ((other, "log-of-another-run"), (stale, "stale-sidecar")):
        name_files(linked, **{"nccl_log_files": ["mine.log"], "topology_file": "links.txt"} | said)
        run = nsyspipe.load(linked / "*.sqlite")
        has_links = bool(run.links().num_rows)
        assert (run.nccl, code in codes(run), has_links) == (
            None,
            True,
            "nccl_log_files" in said,
        ), said


FACTS = {
    "command": ["torchrun", "train.py", "--token", "abc"],
    "git_commit": "0123456789abcdef",
    "git_is_dirty": True,
    "torch_version": "2.9.0",
    "cuda_version": "13.0",
    "nccl_version": "2.27.3",
    "driver_version": "580.159.04",
    "nsys_version": "2025.3.1",
    "python_version": "3.11.9",
    "trace": ["cuda", "nvtx"],
    "capture_range": "cudaProfilerApi",
    "environment": {"NCCL_P2P_DISABLE": "1", "HOME": "/root"},
}
SAID = FACTS | {
    "name": "ddp",
    "captured_at_utc": AT,
    "command": ["torchrun", "train.py", "--token", "***"],
    "hash_key": None,
    "environment": {"NCCL_P2P_DISABLE": "1"},
}


@pytest.mark.slow
def test_the_document_says_how_the_run_was_captured_and_a_saved_run_the_same(tmp_path):
    (reports := tmp_path / "reports").mkdir()
    two(reports)
    before = document(nsyspipe.load(reports))
    assert before["run"]["capture"] is None
    sidecar(reports, *SWAPPED, **FACTS)
    run = nsyspipe.load(reports)
    found = document(run)
    assert found["run"]["capture"] == SAID
    assert [found["run"]["run_id"], found["summary"]] == [
        before["run"]["run_id"],
        before["summary"],
    ]
    assert (found["run"]["label"], nsyspipe.load(reports, label="x").header.label) == ("ddp", "x")
    assert (
        nsyspipe.load(reports / "ddp_0.sqlite").header.label == "ddp"
    )  # a single report has the capture's name too
    save(run, tmp_path / "store")
    assert document(nsyspipe.load(tmp_path / "store")) == found


def test_several_nodes_are_joined(tmp_path):
    two(tmp_path)
    for at in (0, 1):
        variables = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": f"eth{at}"}
        facts = {"driver_version": f"580.{at}", "torch_version": "2.9.0", "git_is_dirty": bool(at)}
        own = rank(1 - at, f"ddp_{at}", 1000 + at)
        sidecar(
            tmp_path,
            own,
            file=f"ddp.node{at}.capture.json",
            environment=variables,
            world_size=2,
            **facts,
        )
    run = nsyspipe.load(tmp_path)
    assert numbered(run, "pid") == (REVERSED, "sidecar")
    capture = run.header.capture
    assert (capture.torch_version, capture.driver_version) == ("2.9.0", "580.0, 580.1")
    assert capture.environment == {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0 | eth1"}
    assert (capture.git_is_dirty, run.header.world_size) == (True, 2)


def test_reports_exported_elsewhere_use_the_sidecar_of_their_source(tmp_path):
    (cache := tmp_path / "cache").mkdir()  # as .nsys-rep files are exported for analyze
    (runs := tmp_path / "runs").mkdir()
    two(cache)
    sidecar(runs, *SWAPPED)
    assert numbered(nsyspipe.load(cache), "pid")[1] == "file_name"
    reports = [
        ReportFile.of(runs / f"ddp_{at}.nsys-rep").exported_to(cache / f"ddp_{at}.sqlite")
        for at in (0, 1)
    ]
    run = nsyspipe.load(reports)
    assert numbered(run, "pid") == ({1000: 1, 1001: 0}, "sidecar")
    assert runs / "ddp.capture.json" in run.inputs


def test_a_run_without_gpu_activity_is_numbered_too(tmp_path):
    for at in (0, 1):
        builder = TraceBuilder(pid=1000 + at).session(10**18)
        for step in range(4):
            builder.range(1000 * step, 1000 * step + 900, f"step {step}")
        builder.write(tmp_path / f"cpu_{at}.sqlite")
    ranks = [rank(1 - at, f"cpu_{at}", 1000 + at) for at in (0, 1)]
    sidecar(tmp_path, *ranks, file="cpu.capture.json", step_pattern="^step [0-9]+$")
    run = nsyspipe.load(tmp_path)
    assert not [code for code in codes(run) if "sidecar" in code or "pattern" in code]
    assert run.header.capture is not None
    assert {(row["rank"], row["report"][:5]) for row in run.host_steps().to_pylist()} == {
        (0, "cpu_1"),
        (1, "cpu_0"),
    }


def test_a_topology_of_the_first_node_holds_for_all(tmp_path):
    two(tmp_path)
    (tmp_path / "t.txt").write_text(TOPOLOGY)
    sidecar(
        tmp_path,
        rank(0, "ddp_0", local_rank=0),
        rank(1, "ddp_1", local_rank=1),
        topology_file="t.txt",
    )
    run = nsyspipe.load(tmp_path)
    assert [(row["from_rank"], row["to_rank"], row["path"]) for row in run.links().to_pylist()] == [
        (0, 1, "NV18")
    ]
