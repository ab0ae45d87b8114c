"""Waits for Python's lock (GIL) as nsys records them."""

from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.python_lock import read_lock_ranges
from nsyspipe.reader.ranges import read_ranges
from nsyspipe.reader.report import TIME_LIMIT, open_report
from tests.build.python_samples import LOCK_DOMAIN, lock_range, sample, with_domain
from tests.build.trace import TraceBuilder

VERSION = "3.20.3 2025.3.2"


def a_trace() -> TraceBuilder:
    return TraceBuilder(VERSION).domain("GIL Trace", LOCK_DOMAIN)


def read(tmp_path, builder):
    path = builder.write(tmp_path / "a_0.sqlite")
    with open_report(path) as report:
        strings = read_strings(report)
        ranges = read_ranges(report, strings, [])
        return read_lock_ranges(report, strings, ranges)


def rows(table):
    names = ["start_ns", "end_ns", "is_wait", "is_of_sampler"]
    return [tuple(row.values()) for row in table.select(names).to_pylist()]


def test_ranges_are_in_order_and_those_of_the_sampler_are_marked(tmp_path):
    built = lock_range(a_trace(), "worker", 200, 300, waits=False)
    lock_range(built, "main", 100, 200, waits=True)
    sample(with_domain(built), 50, ("f", "/home/me/a.py", 3))
    found = read(tmp_path, built)
    # The built sample is on the thread "main".
    assert rows(found) == [(100, 200, True, True), (200, 300, False, False)]
    assert found["thread_id"].to_pylist() == [built.global_tid("main"), built.global_tid("worker")]
    assert found["process_id"].to_pylist() == [built.global_pid()] * 2


def test_an_open_range_ends_with_the_report_and_impossible_ones_are_left_out(tmp_path):
    built = lock_range(a_trace(), "main", 100, None, waits=True)
    lock_range(built, "main", 90, 80, waits=True)
    assert rows(read(tmp_path, built)) == [(100, 101, True, False)]


def test_times_that_no_clock_reaches_are_left_out(tmp_path):
    built = lock_range(a_trace(), "main", 100, 200, waits=True)
    lock_range(built, "main", TIME_LIMIT, TIME_LIMIT + 1, waits=True)
    assert rows(read(tmp_path, built)) == [(100, 200, True, False)]


def test_other_texts_domains_and_processes_are_no_waits(tmp_path):
    built = a_trace().range(1, 2, "Waiting for me", domain=LOCK_DOMAIN)
    built.range(1, 2, "Waiting for GIL")
    built.range(1, 2, "Waiting for GIL", domain=LOCK_DOMAIN, pid=77)
    assert rows(read(tmp_path, built)) == []


def test_without_the_domain_nothing_is_known(tmp_path):
    assert read(tmp_path, TraceBuilder(VERSION).range(1, 2, "Waiting for GIL")) is None


def test_waits_are_no_ranges_of_the_program(tmp_path):
    built = lock_range(a_trace(), "main", 100, 200, waits=False).range(1, 2, "mine")
    path = built.write(tmp_path / "a_0.sqlite")
    with open_report(path) as report:
        table = read_ranges(report, read_strings(report), []).table
    assert table["text"].to_pylist() == ["mine"]
