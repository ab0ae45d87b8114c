"""Numbers that end the names of reports: rank numbers, unless they are process IDs or no rank can have them."""

import pytest

import nsyspipe
from tests.build.trace import TraceBuilder


def write_report(path, pid, session_ns, **variables):
    trace = TraceBuilder(pid=pid).session(session_ns).host("node0").gpu().env(**variables)
    for step in range(4):
        begin = 1_000 * step
        trace.range(begin, begin + 900, f"step {step}").kernel(
            begin + 100, begin + 800, launch=begin + 10
        )
    return trace.write(path)


def numbered(directory, pids, **variables):
    """Return the ranks and their source of reports, by name the process ID of each."""
    named = enumerate(pids.items())
    paths = [
        write_report(directory / f"{stem}.sqlite", pid, 10**18 + at, **variables)
        for at, (stem, pid) in named
    ]
    run = nsyspipe.load(paths)
    source = run.ranks["rank_source"].to_pylist()[0]
    return (
        run.ranks["rank"].to_pylist(),
        source,
        "rank-by-order" in run.problems["code"].to_pylist(),
    )


@pytest.mark.parametrize("stem", ["report_12345", "train.pid-12345", "rank12345"])
def test_the_process_id_of_the_report_is_no_rank(tmp_path, stem):
    assert numbered(tmp_path, {stem: 12345}) == ([0], "order", True)


def test_process_ids_number_several_reports_by_order(tmp_path):
    assert numbered(tmp_path, {"report_4711": 4711, "report_4712": 4712}) == ([0, 1], "order", True)


def test_a_job_id_before_the_rank_leaves_the_rank(tmp_path):
    assert numbered(tmp_path, {"job-12345_0": 77, "job-12345_1": 78}) == (
        [0, 1],
        "file_name",
        False,
    )


def test_a_rank_that_happens_to_be_one_process_id_of_several_stays(tmp_path):
    # Each container has a process 31; one of the reports is rank 31.
    assert numbered(tmp_path, {"ddp_30": 31, "ddp_31": 31}) == ([30, 31], "file_name", False)


@pytest.mark.parametrize(
    ("pid", "source"), [(12361, "order"), (12362, "file_name"), (12344, "file_name")]
)
def test_the_process_id_of_a_shell_is_just_below_that_of_its_program(tmp_path, pid, source):
    assert numbered(tmp_path, {"report_12345": pid})[1] == source


@pytest.mark.parametrize(("stem", "source"), [("ddp_299", "file_name"), ("ddp_300", "order")])
def test_low_process_ids_as_in_containers_say_nothing_of_a_shell(tmp_path, stem, source):
    assert numbered(tmp_path, {stem: int(stem[4:]) + 1})[1] == source


@pytest.mark.parametrize(
    ("stem", "rank", "source"),
    [
        ("ddp_99999", 99_999, "file_name"),
        ("ddp_100000", 0, "order"),
        ("run-20261128", 0, "order"),
    ],
)
def test_no_job_has_as_many_ranks(tmp_path, stem, rank, source):
    assert numbered(tmp_path, {stem: 50})[:2] == ([rank], source)


@pytest.mark.parametrize(("size", "ranks", "source"), [(8, [7], "file_name"), (7, [0], "order")])
def test_a_number_that_the_world_does_not_have_is_no_rank(tmp_path, size, ranks, source):
    assert numbered(tmp_path, {"ddp_7": 50}, WORLD_SIZE=size)[:2] == (ranks, source)


@pytest.mark.parametrize(
    ("stems", "label"),
    [
        (["ddp_0", "ddp_1"], "ddp"),
        (["node0.2041", "node0.2053"], "node0"),
        (["report1", "report2"], "report"),
        (["train.2041.0", "train.2053.1"], "train"),
        (["node0.2041.0", "node1.2042.1"], "node"),
        (["gpt2.0", "gpt2.1"], "gpt2"),
        (["1", "2"], "run"),
    ],
)
def test_a_label_is_what_names_share_less_parts_of_numbers(tmp_path, stems, label):
    paths = [
        write_report(tmp_path / f"{stem}.sqlite", 50 + at, 10**18 + at)
        for at, stem in enumerate(stems)
    ]
    assert nsyspipe.load(paths).label == label
