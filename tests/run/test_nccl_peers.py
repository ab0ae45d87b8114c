"""Sends and receives by peer, from built files of NCCL Inspector beside built reports."""

import pytest

import nsyspipe
from nsyspipe import export
from nsyspipe.model import schema
from nsyspipe.reader import nccl_inspector
from nsyspipe.run.nccl_peers import REASONS, Unknown
from tests.build import inspector
from tests.build.across import load, reports
from tests.build.inspector import lost, sent
from tests.build.tools import codes, problem_of
from tests.store.test_definitions_version import STORE


def built(folder, n_ranks=2, **options):
    """Write ranks 0, 1, ... as processes 1000, 1001, ... of one host."""
    builders = reports(n_ranks)
    for builder in builders:
        builder.host("node0")
    folder.mkdir(exist_ok=True)
    return load(builders, folder, **options)


def peers(run):
    """Return the rows as tuples: rank, peer, direction, calls, bytes, and whether it is all."""
    return [tuple(row.values()) for row in run.peers().to_pylist()]


def received(peer, n_bytes, **more):
    return sent(peer, n_bytes, kind="Recv", **more)


# What rank 1 writes so that both members of the communicator are known.
MEMBER = received(0, 8, rank=1)
OF_MEMBER = (1, 0, "recv", 1, 8, False)


def test_every_column_of_a_peer(tmp_path):
    inspector.write(tmp_path, 0, sent(1, 1000), received(1, 16), sent(1, 24))
    inspector.write(tmp_path, 1, MEMBER, lost(0, n_sends=3, rank=1))
    run = built(tmp_path)
    names = ("rank", "peer_rank", "direction", "n_calls", "message_bytes", "is_lower_bound")
    rows = [
        (0, 1, "recv", 1, 16, False),
        (0, 1, "send", 2, 1000 + 24, False),
        (1, 0, "recv", 1, 8, True),
    ]
    assert run.peers().to_pylist() == [dict(zip(names, row, strict=True)) for row in rows]
    assert "nccl-inspector-peers" not in codes(run)


def test_ranks_of_a_communicator_may_have_other_numbers_than_those_of_the_run(tmp_path):
    # Rank 0 of the run is rank 1 of the communicator, and rank 1 of the run is its rank 0.
    inspector.write(tmp_path, 0, sent(0, 40, rank=1, pid=1000))
    inspector.write(tmp_path, 1, sent(1, 8, rank=0, pid=1001))
    assert peers(built(tmp_path)) == [(0, 1, "send", 1, 40, False), (1, 0, "send", 1, 8, False)]


def test_communicators_of_the_same_ranks_share_a_row(tmp_path):
    inspector.write(tmp_path, 0, sent(1, 100), sent(1, 11, comm="0x8"))
    inspector.write(tmp_path, 1, MEMBER, received(0, 30, rank=1, comm="0x8"))
    assert peers(built(tmp_path)) == [(0, 1, "send", 2, 111, False), (1, 0, "recv", 2, 38, False)]


def test_a_rank_may_send_to_itself(tmp_path):
    inspector.write(tmp_path, 0, sent(0, 64))
    inspector.write(tmp_path, 1, MEMBER)
    assert peers(built(tmp_path)) == [(0, 0, "send", 1, 64, False), OF_MEMBER]


def test_calls_that_are_neither_sends_nor_receives_are_left_out(tmp_path):
    inspector.write(tmp_path, 0, sent(1, 64, kind="Gather"))
    inspector.write(tmp_path, 1, MEMBER)
    assert peers(built(tmp_path)) == [OF_MEMBER]


@pytest.mark.parametrize(
    "lines",
    [
        [sent(1, 8), lost(0, n_sends=1)],
        [sent(1, 8), '{"header": {"id": "0x7", '],
        [sent(1, 8, version="v4.0")],
    ],
    ids=["lost records", "a cut last line", "a format that does not count losses"],
)
def test_sums_are_lower_bounds_if_records_may_be_missing(tmp_path, lines):
    inspector.write(tmp_path, 0, *lines)
    inspector.write(tmp_path, 1, MEMBER)
    assert peers(built(tmp_path)) == [(0, 1, "send", 1, 8, True), OF_MEMBER]


def test_lost_collectives_say_nothing_about_sends(tmp_path):
    inspector.write(tmp_path, 0, sent(1, 8), lost(4))
    inspector.write(tmp_path, 1, MEMBER)
    assert peers(built(tmp_path))[0] == (0, 1, "send", 1, 8, False)


LOG = "".join(
    f"node0:{1000 + rank}:{1000 + rank} [0] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} "
    f"nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init {state}\n"
    for rank in range(2)
    for state in ("START", "COMPLETE")
)


@pytest.mark.parametrize(("log", "peer"), [(LOG, 1), (LOG.replace("0x7", "0x8"), None)])
def test_a_log_has_members_that_wrote_no_file(tmp_path, log, peer):
    inspector.write(tmp_path, 0, sent(1, 8))
    path = tmp_path / "nccl.log"
    path.write_text(log)
    run = built(tmp_path, nccl_log=path)
    assert peers(run) == [(0, peer, "send", 1, 8, False)]
    assert ("nccl-inspector-peers" in codes(run)) == (peer is None)


def test_a_peer_that_only_the_log_has_and_not_the_run_is_unknown(tmp_path):
    inspector.write(tmp_path, 0, sent(1, 8))
    path = tmp_path / "nccl.log"
    path.write_text(LOG.replace("node0:1001:1001", "node0:2001:2001"))
    run = built(tmp_path, nccl_log=path)
    assert peers(run) == [(0, None, "send", 1, 8, False)]
    message = problem_of(run, "nccl-inspector-peers")["message"]
    assert message.endswith(REASONS[Unknown.PEER])


def test_unknown_peers_of_a_rank_share_a_row_before_the_known_ones(tmp_path):
    # The communicator 0x8 has three ranks, and the third wrote no file.
    inspector.write(
        tmp_path, 0, sent(1, 8), *[sent(peer, 5, comm="0x8", n_ranks=3) for peer in (1, 2)]
    )
    inspector.write(tmp_path, 1, MEMBER)
    run = built(tmp_path)
    assert peers(run) == [(0, None, "send", 2, 10, False), (0, 1, "send", 1, 8, False), OF_MEMBER]
    message = problem_of(run, "nccl-inspector-peers")["message"]
    assert message.startswith("2 of 4 ")
    assert message.endswith(REASONS[Unknown.MEMBERS])


@pytest.mark.parametrize(
    "of_other",
    [received(0, 8, rank=0, pid=1001), received(0, 8, rank=1, n_ranks=3, pid=1001)],
    ids=["the same rank twice", "two sizes"],
)
def test_peers_are_unknown_if_records_contradict_each_other(tmp_path, of_other):
    inspector.write(tmp_path, 0, sent(1, 8))
    inspector.write(tmp_path, 1, of_other)
    run = built(tmp_path)
    assert [row[1] for row in peers(run)] == [None, None]
    message = problem_of(run, "nccl-inspector-peers")["message"]
    assert message.endswith(REASONS[Unknown.CONTRADICTION])


def test_a_log_that_contradicts_the_records_gives_no_peer(tmp_path):
    # The records say that process 1000 is rank 0, and the log says that it is rank 1.
    inspector.write(tmp_path, 0, sent(1, 8))
    path = tmp_path / "nccl.log"
    path.write_text(
        LOG.replace("rank 0", "rank 2").replace("rank 1", "rank 0").replace("rank 2", "rank 1")
    )
    assert peers(built(tmp_path, nccl_log=path)) == [(0, None, "send", 1, 8, False)]


def test_two_processes_that_may_be_one_rank_have_no_rows(tmp_path):
    # A redacted report has another name for its host, so that both files may be of its process.
    inspector.write(tmp_path, 0, sent(1, 8, host="a"), host="a")
    inspector.write(tmp_path, 0, sent(1, 8, host="b"), host="b")
    builders = reports(2)
    for builder in builders:
        builder.host("host-1")
    run = load(builders, tmp_path)
    assert peers(run) == []
    message = problem_of(run, "nccl-inspector-peers")["message"]
    assert message.endswith(REASONS[Unknown.RANK])


def test_a_second_file_of_a_process_is_not_added(tmp_path):
    inspector.write(tmp_path, 0, sent(1, 8))
    inspector.write(tmp_path, 1, MEMBER)
    inspector.write(tmp_path / "nccl-inspector-2", 0, sent(1, 8))
    run = built(tmp_path)
    assert peers(run) == [(0, 1, "send", 1, 8, False), OF_MEMBER]
    assert codes(run).count("nccl-inspector-unusable") == 1


@pytest.mark.parametrize(("n_peers", "is_used"), [(2, True), (3, False)])
def test_a_file_with_too_many_peers_is_not_used(tmp_path, monkeypatch, n_peers, is_used):
    monkeypatch.setattr(nccl_inspector, "MAX_PEERS", 2)
    inspector.write(tmp_path, 0, *[sent(peer, 8, n_ranks=4) for peer in range(n_peers)])
    run = built(tmp_path)
    # Their peers are unknown, because the other members wrote no file.
    assert peers(run) == ([(0, None, "send", n_peers, 16, False)] if is_used else [])
    assert ("nccl-inspector-unusable" in codes(run)) != is_used


def test_a_file_with_more_bytes_than_a_number_holds_is_not_used(tmp_path):
    inspector.write(tmp_path, 0, sent(1, 2**62), sent(1, 1))
    inspector.write(tmp_path, 1, received(0, 2**62, rank=1))
    run = built(tmp_path)
    # The members of the communicator are not known without the file of rank 0.
    assert peers(run) == [(1, None, "recv", 1, 2**62, False)]
    assert codes(run).count("nccl-inspector-unusable") == 1


def test_the_document_has_null_without_a_file_and_no_rows_without_sends(tmp_path):
    assert export.document(built(tmp_path / "a"))["peers"] is None
    (tmp_path / "b").mkdir()
    inspector.write(tmp_path / "b", 0, lost(0))
    assert export.document(built(tmp_path / "b"))["peers"] == []


def written(folder):
    inspector.write(folder, 0, sent(1, 8))
    inspector.write(folder, 1, MEMBER)
    return built(folder)


@pytest.mark.slow
def test_a_saved_run_has_the_same_rows(tmp_path):
    run = written(tmp_path)
    again = nsyspipe.load(export.parquet(run, tmp_path / "store"))
    assert again.peers().equals(run.peers())
    assert export.document(again)["peers"] == export.document(run)["peers"]


def test_a_run_saved_before_the_table_existed_has_none():
    old_run = nsyspipe.load(STORE, run_id="ddp-4gpu-before")
    assert old_run.peers().equals(schema.PEERS.empty())
    assert export.document(old_run)["peers"] is None


def test_few_peers_are_a_table_of_the_text(tmp_path, printed, worded):
    inspector.write(tmp_path, 0, *[sent(peer % 2, 10**6, n_ranks=2) for peer in range(3)])
    inspector.write(tmp_path, 1, MEMBER, sent(1, 5, comm="0x8", rank=1), lost(0, n_sends=1, rank=1))
    built(tmp_path)
    worded(part_of(printed("analyze", tmp_path, "-v")))


def test_the_text_has_the_peers_with_most_bytes(tmp_path, printed, worded):
    for rank in range(4):
        others = [peer for peer in range(4) if peer != rank]
        lines = [sent(peer, 1000 * (1 + peer), rank=rank, n_ranks=4) for peer in others]
        inspector.write(tmp_path, rank, *lines)
    built(tmp_path, n_ranks=4)
    worded(part_of(printed("analyze", tmp_path, "-v")))


def part_of(text):
    """Return the part of a text about sends and receives."""
    _, start, rest = text.partition("Sends and receives by peer")
    return start + rest.partition("\n\n")[0]
