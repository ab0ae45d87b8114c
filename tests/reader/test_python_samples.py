"""Samples of Python: frames, threads, texts, and payloads of an unexpected form."""

import pytest

from nsyspipe.model.problems import CATALOGUE
from nsyspipe.model.python_files import NOT_SEEN
from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.python_samples import MAX_FRAMES, PythonSamples, read_python_samples
from nsyspipe.reader.ranges import read_ranges
from nsyspipe.reader.report import open_report
from tests.build.python_samples import (
    BOOTSTRAP,
    DOMAIN,
    HEADER,
    HELD,
    SITE,
    payload,
    sample,
    with_domain,
)
from tests.build.trace import NVTX, TraceBuilder, steady_rank

VERSION = "3.20.3 2025.3.2"
MAIN = ("<module>", "/home/me/job/train.py", 60)
LOADER = ("fetch", f"{SITE}/torch/utils/data/dataloader.py", 733)
READ = ("read", "/usr/lib/python3.12/gzip.py", 300)


def a_rank() -> TraceBuilder:
    return with_domain(steady_rank(0, world_size=1, version=VERSION))


def read(tmp_path, builder) -> PythonSamples:
    path = builder.write(tmp_path / "a_0.sqlite")
    with open_report(path) as report:
        strings = read_strings(report)
        domains = read_ranges(report, strings, []).python_domains
        return read_python_samples(report, strings, domains)


def places(read_samples, column):
    lines = read_samples.lines.to_pylist()
    rows = read_samples.samples[column].to_pylist()
    return [(lines[row]["path"], lines[row]["line"]) if row >= 0 else None for row in rows]


def codes(read_samples):
    return [problem.code for problem in read_samples.problems]


def test_each_sample_has_its_innermost_line_and_that_of_the_program(tmp_path):
    builder = sample(a_rank(), 400, READ, LOADER, MAIN)
    sample(builder, 300, MAIN)
    sample(builder, 500, READ)
    found = read(tmp_path, builder)
    assert found.samples["time_ns"].to_pylist() == [300, 400, 500]
    assert places(found, "innermost") == [MAIN[1:], READ[1:], READ[1:]]
    assert places(found, "in_program") == [MAIN[1:], MAIN[1:], None]
    assert codes(found) == []


def test_a_thread_without_a_line_of_the_program_lets_go_at_its_innermost_line(tmp_path):
    found = read(tmp_path, sample(a_rank(), 400, READ, state=HELD))
    assert places(found, "let_go") == [READ[1:]]


def test_a_thread_lets_go_of_the_lock_at_a_line_of_the_program(tmp_path):
    builder = sample(a_rank(), 300, READ, MAIN)
    sample(builder, 400, READ, MAIN, state=HELD)
    found = read(tmp_path, builder)
    assert places(found, "let_go") == [None, MAIN[1:]]
    assert found.samples["n_frames"].to_pylist() == [1, 0]


TRAIN = "/home/me/job/train.py"
FORWARD = [READ, ("forward", TRAIN, 21), ("train", TRAIN, 184), MAIN]
OPTIMIZER = [READ, ("train", TRAIN, 191), MAIN]


def test_a_thread_holds_the_lock_after_the_line_of_its_last_sample_before(tmp_path):
    builder = sample(a_rank(), 300, *OPTIMIZER)
    for at in (410, 510):
        sample(builder, at, *FORWARD, state=HELD)
    found = read(tmp_path, builder)
    assert places(found, "held_after") == [None, (TRAIN, 191), (TRAIN, 191)]
    assert places(found, "let_go") == [None, (TRAIN, 184), (TRAIN, 184)]


def test_without_a_sample_before_it_is_not_known_after_which_line_the_lock_was_held(tmp_path):
    builder = sample(a_rank(), 300, *OPTIMIZER, category=2)
    sample(builder, 310, *FORWARD, BOOTSTRAP, category=1, state=HELD)
    sample(builder, 410, *FORWARD, category=2, state=HELD)
    found = read(tmp_path, builder)
    assert places(found, "held_after") == [None, (TRAIN, 191)]
    assert found.samples_of_others["held_after"].to_pylist() == [-1]


def test_a_sample_that_was_not_taken_in_time_shows_no_line(tmp_path):
    builder = sample(a_rank(), 300, READ, MAIN)
    sample(builder, 400, READ, MAIN, state=HELD)
    found = read(tmp_path, builder)
    assert places(found, "innermost") == [READ[1:], (NOT_SEEN, 0)]
    assert places(found, "in_program") == [MAIN[1:], None]


def test_only_samples_of_the_main_thread_are_read(tmp_path):
    builder = sample(a_rank(), 400, MAIN, category=2)
    sample(builder, 400, ("spin", "/home/me/job/train.py", 52), BOOTSTRAP, category=1)
    assert places(read(tmp_path, builder), "innermost") == [MAIN[1:]]


SPIN = ("spin", "/home/me/job/train.py", 52)


def lines_of_holder(found):
    lines = found.lines.to_pylist()
    return [lines[row]["line"] for row in found.samples_of_others["in_program"].to_pylist()]


def test_the_only_other_thread_is_read_where_it_holds_the_lock(tmp_path):
    builder = sample(a_rank(), 400, MAIN, category=2)
    sample(builder, 410, SPIN, BOOTSTRAP, category=1)
    sample(builder, 420, SPIN, BOOTSTRAP, category=1, state=HELD)
    found = read(tmp_path, builder)
    assert found.samples_of_others["time_ns"].to_pylist() == [420]
    assert found.samples_of_others["held_after"] == found.samples_of_others["let_go"]
    assert lines_of_holder(found) == [52]


def test_with_two_other_threads_none_is_read(tmp_path):
    builder = sample(a_rank(), 400, MAIN, category=2)
    for category in (1, 3):
        sample(builder, 420, SPIN, BOOTSTRAP, category=category, state=HELD)
    assert lines_of_holder(read(tmp_path, builder)) == []


@pytest.mark.parametrize(
    "threads", [[(1, BOOTSTRAP), (2, BOOTSTRAP)], [(1, MAIN), (2, MAIN)], [(None, MAIN)]]
)
def test_no_sample_is_read_if_the_main_thread_is_not_known(tmp_path, threads):
    builder = a_rank()
    for category, outermost in threads:
        sample(builder, 400, READ, outermost, category=category)
    found = read(tmp_path, builder)
    assert found.samples.num_rows == 0
    assert codes(found) == ["python-thread-unknown"]


def test_texts_have_no_escapes_and_no_control_characters(tmp_path):
    frame = ("&lt;lambda&gt;", "/home/me/\x1b[31m&amp;job.py", 7)
    found = read(tmp_path, sample(a_rank(), 400, frame))
    line = found.lines.to_pylist()[0]
    assert line["function"] == "<lambda>"
    assert line["path"] == "/home/me/\N{REPLACEMENT CHARACTER}[31m&job.py"


UNDEFINED = payload([(2**63 + 5, 2**40, 1)])
HOSTILE = {
    "no header": b"\x01",
    "only a header": HEADER,
    "no frame": payload([]),
    "too few frames": payload([(1, 1, 1)], n_frames=2),
    "too many frames": payload([(1, 1, 1)] * 3, n_frames=2),
    "a negative number": payload([(1, 1, 1)], n_frames=-1),
    "100 000 frames": payload([(1, 1, 1)] * 100_000),
    "undefined strings": UNDEFINED,
}


@pytest.mark.parametrize("blob", HOSTILE.values(), ids=HOSTILE)
def test_a_payload_of_an_unexpected_form_is_one_problem(tmp_path, blob):
    builder = sample(a_rank(), 400, MAIN)
    for at in (500, 501):
        sample(builder, at, blob=blob)
    found = read(tmp_path, builder)
    assert places(found, "innermost") == [MAIN[1:]]
    (problem,) = found.problems
    assert problem.message.startswith("nsyspipe ignored 2 samples of Python of 3")


def test_the_most_frames_are_read(tmp_path):
    builder = a_rank()
    ids = (builder.string("f"), builder.string("/home/me/a.py"), 3)
    sample(builder, 400, blob=payload([ids] * MAX_FRAMES))
    assert read(tmp_path, builder).samples.num_rows == 1


def test_only_hostile_payloads_leave_no_sample(tmp_path):
    found = read(tmp_path, sample(a_rank(), 400, blob=UNDEFINED))
    assert found.samples.num_rows == 0
    assert codes(found) == ["python-samples-undecoded"]


def test_a_time_that_no_clock_reaches_is_ignored(tmp_path):
    builder = sample(a_rank(), 400, MAIN)
    sample(builder, 2**62, MAIN)
    found = read(tmp_path, builder)
    assert found.samples["time_ns"].to_pylist() == [400]
    assert codes(found) == ["python-samples-undecoded"]


def test_an_export_without_frames_says_how_to_export_them(tmp_path):
    builder = with_domain(steady_rank(0, world_size=1))
    sample(builder, 400, MAIN)
    for row in builder.rows["NVTX_EVENTS"]:
        row.pop("binaryData", None)
    found = read(tmp_path, builder)
    assert codes(found) == ["python-samples-without-lines"]
    assert "--include-blobs=true" in CATALOGUE["python-samples-without-lines"].fix


def test_too_many_bytes_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("nsyspipe.reader.python_samples.MAX_BYTES", 100)
    found = read(tmp_path, sample(sample(a_rank(), 400, MAIN), 401, MAIN))
    assert found.samples.num_rows == 0
    assert codes(found) == ["python-samples-too-large"]


def test_marks_of_other_domains_and_processes_are_not_samples(tmp_path):
    builder = sample(a_rank(), 400, MAIN)
    sample(builder, 500, MAIN)
    builder.rows["NVTX_EVENTS"][-1]["domainId"] = 3
    sample(builder, 600, MAIN)
    builder.rows["NVTX_EVENTS"][-1]["globalTid"] = builder.global_tid(pid=77)
    found = read(tmp_path, builder)
    assert found.samples["time_ns"].to_pylist() == [400]
    assert codes(found) == []


def test_without_the_domain_nothing_is_asked_of_the_report():
    assert read_python_samples(None, None, ()).samples.num_rows == 0


def in_tables(*, domain=DOMAIN, field=""):
    """Return a sample of schema 3.28 without payload, and a table of payloads of a domain."""
    builder = with_domain(steady_rank(0, world_size=1, version="3.28.1 2026.4.1"))
    sample(builder, 400, MAIN)
    builder.rows[NVTX][-1]["binaryData"] = None
    name = f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{builder.global_pid()}_{domain}_77{field}"
    builder.schema = builder.schema | {name: {"eventId": "INTEGER", "line": "INTEGER"}}
    return builder.add(name, eventId=1, line=60)


@pytest.mark.parametrize("field", ["", "_frames"])
def test_samples_in_tables_are_unknown_with_the_reason(tmp_path, field):
    found = read(tmp_path, in_tables(field=field))
    assert found.samples.num_rows == 0
    assert codes(found) == ["python-samples-in-tables"]


def test_tables_of_other_domains_are_no_samples(tmp_path):
    assert codes(read(tmp_path, in_tables(domain=DOMAIN + 1))) == ["python-samples-without-lines"]


def test_samples_of_schema_3_28_are_read_from_payloads(tmp_path):
    builder = with_domain(steady_rank(0, world_size=1, version="3.28.1 2026.4.1"))
    found = read(tmp_path, sample(builder, 400, READ, MAIN))
    assert places(found, "in_program") == [MAIN[1:]]
