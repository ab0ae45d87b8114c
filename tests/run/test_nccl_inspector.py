"""Algorithms and protocols of collectives, from built files of NCCL Inspector beside built reports."""

import json

import pytest

from nsyspipe.reader import beside, nccl_inspector
from nsyspipe.run.doctor import examine
from tests.build import inspector, nccl_layouts
from tests.build.across import every_step, load, reports
from tests.build.inspector import call, line, lost, sent
from tests.build.tools import codes, problem_of

FLOAT = 7
VERSION = "3.25.0 2026.2.1 mfu"  # the oldest with descriptions of payloads
# Of each step: the bytes of its all-reduces. Numbers go on from step to step.
SIZES = (1024, 4096)
FIRST_NUMBER = 100


def built(folder, *, has_numbers=False, comm=7):
    """Write two ranks with 4 steps of two all-reduces, each a call with a payload."""
    builders = reports(2, version=VERSION)
    for builder in builders:
        builder.host("node0").domain("NCCL", 1)
        number = FIRST_NUMBER
        for step in range(4):
            for place, n_bytes in enumerate(SIZES):
                at = 1000 * step + 20 + 100 * place
                fields = {"commHash": comm, "count": n_bytes // 4, "dataType": FLOAT}
                fields |= {"seqNumber": number, "commRank": 0, "nRanks": 2}
                layout = nccl_layouts.NCCL_2_28 if has_numbers else nccl_layouts.NCCL_2_21
                if not has_numbers:
                    fields = {nccl_layouts.COMM: comm, nccl_layouts.BYTES: n_bytes}
                builder.nccl_payload(at, "ncclAllReduce", fields, layout, end=at + 10)
                number += 1
    every_step(builders, 300, 310, end=400, launch=25)
    every_step(builders, 500, 510, end=600, launch=125)
    folder.mkdir(exist_ok=True)
    return load(builders, folder)


def calls(tunings, *, first=FIRST_NUMBER, n_steps=4, **more):
    """Return the lines of all calls of one rank; `tunings` are of each size."""
    return [
        call(first + len(SIZES) * step + place, n_bytes, tunings[place], **more)
        for step in range(n_steps)
        for place, n_bytes in enumerate(SIZES)
    ]


def tunings(run, step=1):
    """Return algorithm and protocol of each collective of a step, by rank."""
    rows = [row for row in run.collectives().to_pylist() if row["step"] == step]
    rows.sort(key=lambda row: (row["rank"], row["start_ns"]))
    return [(row["nccl_algorithm"], row["nccl_protocol"]) for row in rows]


TREE_RING = ("TREE LL", "RING SIMPLE")
KNOWN = [("TREE", "LL"), ("RING", "SIMPLE")] * 2
UNKNOWN = [(None, None)] * 4


def test_a_size_with_one_algorithm_in_all_records_is_known(tmp_path):
    inspector.write(tmp_path, 0, *calls(TREE_RING))
    run = built(tmp_path)
    assert tunings(run) == KNOWN
    # The name of the kernel says what it always says.
    assert {row["algorithm"] for row in run.collectives().to_pylist()} == {"RING_LL"}
    assert "nccl-inspector-used" in codes(run)
    assert tmp_path / "node0-pid1000.log" in run.inputs


def test_files_in_the_directory_that_the_plugin_makes_are_found(tmp_path):
    inspector.write(tmp_path / "nccl-inspector-unknown-jobid", 1, *calls(TREE_RING, rank=1))
    assert tunings(built(tmp_path)) == KNOWN


def test_without_a_file_nothing_is_known_and_nothing_is_said(tmp_path):
    run = built(tmp_path)
    assert tunings(run) == UNKNOWN
    assert not {"nccl-inspector-used", "nccl-inspector-unusable"} & set(codes(run))


def test_the_size_of_calls_with_several_algorithms_is_unknown(tmp_path):
    lines = calls(TREE_RING)
    lines[0] = call(FIRST_NUMBER, SIZES[0], "RING LL")
    inspector.write(tmp_path, 0, *lines)
    assert tunings(built(tmp_path)) == [(None, None), ("RING", "SIMPLE")] * 2


def test_ranks_that_contradict_each_other_are_unknown(tmp_path):
    inspector.write(tmp_path, 0, *calls(TREE_RING))
    inspector.write(tmp_path, 1, *calls(("TREE LL", "TREE SIMPLE"), rank=1))
    assert tunings(built(tmp_path)) == [("TREE", "LL"), (None, None)] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines[:3], *lines[4:]],
        lambda lines: [lost(1), *lines],
        lambda lines: [*lines, '{"header": {"id": "0x7", '],
    ],
    ids=["a gap in the numbers", "lost records", "a cut last line"],
)
def test_sizes_are_unknown_if_records_may_be_missing(tmp_path, change):
    inspector.write(tmp_path, 0, *change(calls(TREE_RING)))
    assert tunings(built(tmp_path)) == UNKNOWN


def test_records_of_other_communicators_do_not_count(tmp_path):
    inspector.write(tmp_path, 0, *calls(TREE_RING, comm="0x8"))
    assert tunings(built(tmp_path)) == UNKNOWN


def test_records_before_v4_2_have_no_algorithm(tmp_path):
    inspector.write(tmp_path, 0, *calls((None, None), version="v4.0"))
    run = built(tmp_path)
    assert tunings(run) == UNKNOWN
    assert "nccl-inspector-used" in codes(run)


def test_numbers_of_calls_tell_calls_of_one_size_apart(tmp_path):
    # The first call of step 1, number 102, has another algorithm than the others of its size.
    lines = calls(TREE_RING)
    lines[2] = call(FIRST_NUMBER + 2, SIZES[0], "NVLS SIMPLE")
    # Lost records matter for sizes alone.
    inspector.write(tmp_path, 0, lost(3), *lines[::-1])
    run = built(tmp_path, has_numbers=True)
    assert tunings(run) == [("NVLS", "SIMPLE"), ("RING", "SIMPLE")] * 2
    assert tunings(run, step=2) == KNOWN


def test_numbers_whose_sizes_differ_are_of_other_calls(tmp_path):
    # Each number is that of the call before: sizes say so, and every size is still clear.
    inspector.write(tmp_path, 0, *calls(TREE_RING, first=FIRST_NUMBER + 1))
    assert tunings(built(tmp_path, has_numbers=True)) == KNOWN


def test_calls_that_ran_as_one_kernel_are_unknown(tmp_path):
    # Two calls of 512 bytes become one kernel of 1024 bytes, a size of other records.
    builders = reports(2, version=VERSION)
    for builder in builders:
        builder.host("node0").domain("NCCL", 1)
        for step in range(4):
            for place in range(2):
                fields = {nccl_layouts.COMM: 7, nccl_layouts.BYTES: 512}
                at = 1000 * step + 20 + 10 * place
                builder.nccl_payload(at, "ncclAllReduce", fields, nccl_layouts.NCCL_2_21)
    every_step(builders, 300, 310, end=400, launch=50)
    inspector.write(tmp_path, 0, *[call(number, 1024) for number in range(20)])
    run = load(builders, tmp_path)
    assert {row["message_bytes"] for row in run.collectives().to_pylist()} == {1024}
    assert set(tunings(run)) == {(None, None)}


def test_files_of_other_processes_are_not_looked_at(tmp_path):
    inspector.write(tmp_path, 0, "no JSON", pid=77)
    inspector.write(tmp_path, 0, "no JSON", host="node7")
    run = built(tmp_path)
    assert not {"nccl-inspector-used", "nccl-inspector-unusable"} & set(codes(run))


def test_no_logs_ignores_the_files(tmp_path):
    inspector.write(tmp_path, 0, *calls(TREE_RING))
    built(tmp_path)
    import nsyspipe  # noqa: PLC0415 - as a user does

    run = nsyspipe.load(tmp_path, logs=False)
    assert tunings(run) == UNKNOWN


def changed(**fields):
    """Return a line whose collective has other fields."""
    record = json.loads(call(1, 1024))
    record["coll_perf"] |= fields
    return json.dumps(record) + "\n"


@pytest.mark.parametrize(
    "bad",
    [
        "no JSON\n",
        "[]\n",
        "[" * 50_000 + "\n",
        '{"header": {}}\n',
        "x" * 70_000 + "\n",
        line(),
        line(coll_perf=None, dump_stats={}, p2p_perf=json.loads(sent(1, 8))["p2p_perf"]),
        changed(coll_sn=-1),
        changed(coll_sn=2**63),
        changed(coll_sn=1.5),
        changed(coll_sn="1"),
        changed(coll_msg_size_bytes=-8),
        changed(coll="A" * 300),
        changed(coll_algo=7),
        call(1, 8, comm="0xG"),
        call(1, 8, comm="7"),
        call(1, 8, comm="0x" + "f" * 17),
        call(1, 8, rank=2, pid=1000),
        call(1, 8, pid=1001),
        call(1, 8, host="node1"),
        call(1, 8, version="v4.3"),
        sent(2, 8),
        sent(-1, 8),
    ],
)
def test_one_bad_line_makes_a_file_unusable_with_one_problem(tmp_path, bad):
    inspector.write(tmp_path, 0, *calls(TREE_RING), bad)
    run = built(tmp_path)
    assert tunings(run) == UNKNOWN
    assert codes(run).count("nccl-inspector-unusable") == 1
    assert "nccl-inspector-used" not in codes(run)
    assert "node0-pid1000.log" in problem_of(run, "nccl-inspector-unusable")["message"]


def test_many_unusable_files_are_one_problem_with_their_number_and_the_first_names(tmp_path):
    n_directories = 5
    for number in range(n_directories):
        inspector.write(tmp_path / f"nccl-inspector-{number}", 0, "no JSON\n")
    run = built(tmp_path)
    assert codes(run).count("nccl-inspector-unusable") == 1
    message = problem_of(run, "nccl-inspector-unusable")["message"]
    assert message.startswith(f"{n_directories} ")
    assert message.count("node0-pid1000.log") == 3


def test_the_file_of_another_rank_stays_usable_beside_a_bad_one(tmp_path):
    inspector.write(tmp_path, 0, *calls(("NVLS LL", "NVLS LL")), "no JSON\n")
    inspector.write(tmp_path, 1, *calls(TREE_RING, rank=1))
    run = built(tmp_path)
    assert tunings(run) == KNOWN
    assert {"nccl-inspector-used", "nccl-inspector-unusable"} <= set(codes(run))


@pytest.mark.parametrize("name", ["\x1b[31m", "<b>", "unknown", "Unknown", "ring", "R" * 40])
def test_names_that_no_algorithm_has_are_unknown(tmp_path, name):
    lines = calls(TREE_RING)
    lines = [json.loads(text) for text in lines]
    for record in lines:
        record["coll_perf"]["coll_algo"] = name
    inspector.write(tmp_path, 0, *[json.dumps(record) + "\n" for record in lines])
    assert tunings(built(tmp_path)) == [(None, "LL"), (None, "SIMPLE")] * 2


@pytest.mark.parametrize(("limit_change", "is_used"), [(0, True), (-1, False)])
def test_files_are_read_up_to_a_size(tmp_path, monkeypatch, limit_change, is_used):
    path = inspector.write(tmp_path, 0, *calls(TREE_RING))
    monkeypatch.setattr(beside, "MOST_INSPECTOR_BYTES", path.stat().st_size + limit_change)
    run = built(tmp_path)
    assert ("nccl-inspector-used" in codes(run)) == is_used
    assert ("nccl-inspector-unusable" in codes(run)) != is_used


def test_a_link_is_refused(tmp_path):
    path = inspector.write(tmp_path / "elsewhere", 0, *calls(TREE_RING))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / path.name).symlink_to(path)
    run = built(tmp_path / "a")
    assert tunings(run) == UNKNOWN
    assert "nccl-inspector-unusable" in codes(run)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (calls((None, None), version="v4.1"), "v4.2"),
        (calls(TREE_RING, comm="0x8"), "hash"),
        ([lost(1), *calls(TREE_RING)], "missing"),
    ],
)
def test_the_reason_why_algorithms_are_unknown_is_a_note(tmp_path, lines, reason):
    inspector.write(tmp_path, 0, *lines)
    row = problem_of(built(tmp_path), "nccl-inspector-unmatched")
    # Two all-reduces in each of four steps of two ranks.
    assert "16 of 16" in row["message"]
    assert reason in row["message"]


def test_without_unknown_algorithms_there_is_no_note(tmp_path):
    inspector.write(tmp_path, 0, *calls(TREE_RING))
    assert "nccl-inspector-unmatched" not in codes(built(tmp_path))


def test_doctor_says_that_the_files_are_used(tmp_path):
    inspector.write(tmp_path, 0, *calls(TREE_RING))
    built(tmp_path)
    paths = sorted(tmp_path.glob("*.sqlite"))
    examination = examine(paths)
    assert "nccl-inspector-used" in [problem.code for problem in examination.problems]


def test_a_bad_file_uses_nothing_of_the_limits_for_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(nccl_inspector, "_MAX_COMMUNICATORS", 2)
    monkeypatch.setattr(nccl_inspector, "_MAX_TUNINGS", 2)
    many = [call(n, 8, f"BAD{n} LL", comm=f"0x{n:x}") for n in range(20, 40)]
    inspector.write(tmp_path, 0, lost(1), *many)
    inspector.write(tmp_path, 1, *calls(TREE_RING, rank=1))
    run = built(tmp_path)
    assert "nccl-inspector-unusable" in codes(run)
    assert tunings(run) == KNOWN
