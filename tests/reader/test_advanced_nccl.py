"""The advanced NCCL trace (nsys 2025.6), as NVIDIA documents it. No real report was available."""

import pytest

from nsyspipe.model.comm_kernels import comm_call_of, usual_text_of
from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.payload import read_payloads
from nsyspipe.reader.ranges import read_ranges
from nsyspipe.reader.report import open_report
from tests.build.trace import TraceBuilder

VERSION = "3.28.1 2026.4.1"


def built(domain="NCCL"):
    """Return a group of two calls: the API Group is around the calls and the launch."""
    report = TraceBuilder(VERSION).domain(domain, 1)
    report.range(10, 90, "API Group", domain=1)
    report.range(20, 30, "AllReduce", domain=1).range(30, 40, "AllReduce", domain=1)
    report.range(50, 80, "GroupLaunch", domain=1).range(60, 70, "KernelLaunch", domain=1)
    return report.range(100, 110, "AllReduce")


def calls(folder, report):
    with open_report(report.write(folder / "r.sqlite")) as opened:
        table = read_ranges(opened, read_strings(opened), []).comm_calls
    return [(row["start_ns"], row["end_ns"], row["text"]) for row in table.to_pylist()]


def test_ranges_without_prefix_are_calls_in_the_domain_of_nccl_only(tmp_path):
    group = [(10, 10, "ncclGroupStart"), (20, 30, "ncclAllReduce"), (30, 40, "ncclAllReduce")]
    assert sorted(calls(tmp_path, built())) == [*group, (50, 80, "ncclGroupEnd")]
    assert calls(tmp_path, built("my.AllReduce")) == []


@pytest.mark.parametrize(
    ("text", "usual"),
    [
        ("ReduceScatter", "ncclReduceScatter"),
        ("Send", "ncclSend"),
        ("Recv", "ncclRecv"),
        ("ncclAllReduce", "ncclAllReduce"),
        ("GroupRuntime", "GroupRuntime"),
        ("CE Sync", "CE Sync"),
        ("CommInit", "CommInit"),
    ],
)
def test_the_usual_text_of_a_range(text, usual):
    assert usual_text_of(text) == usual
    assert (comm_call_of(usual) is None) == (not usual.startswith("nccl"))


def sizes(folder, report):
    with open_report(report.write(folder / "r.sqlite")) as opened:
        table = read_payloads(opened, read_strings(opened)).table
    return [(row["start_ns"], row["message_bytes"]) for row in table.to_pylist()]


@pytest.mark.parametrize("name", ["apiId", "operationId"])
def test_the_ranges_of_one_operation_are_one_call(tmp_path, name):
    report = TraceBuilder(VERSION).domain("NCCL", 1)
    for at, operation in ((10, 7), (15, 7), (20, 8), (40, 7), (50, 0), (60, 0)):
        fields = {"commHash": 5, "count": 4, "dataType": 7, name: operation}
        report.table_payload(at, "AllReduce", fields)
    # Another communicator counts its own operations.
    fields = {"commHash": 6, "count": 4, "dataType": 7, name: 7}
    report.table_payload(70, "AllReduce", fields)
    # Two ranks of one process share the number.
    for at, rank in ((80, 0), (90, 1)):
        fields = {"commHash": 9, "commRank": rank, "count": 4, "dataType": 7, name: 7}
        report.table_payload(at, "AllReduce", fields, schema=99)
    # Four numbers of float32. 0 is no number of an operation.
    assert sizes(tmp_path, report) == [(at, 16) for at in (10, 20, 50, 60, 70, 80, 90)]
