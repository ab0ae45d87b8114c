"""NCCL logs of several releases, mixed, cut and appended: who talks to whom, and over what."""

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nsyspipe.errors import InputError, NsyspipeError
from nsyspipe.model.side_files import CommMember, Communicator, Edge, NcclLog
from nsyspipe.reader.fabric import Connected, parse_line, read_nccl_logs
from tests.conftest import examples

REAL = Path(__file__).parent.parent / "real" / "logs"
WORLD = "0x1111"


def said(body, *, host="node0", pid=10, thread=None, gpu=0):
    return f"{host}:{pid}:{thread or pid} [{gpu}] NCCL INFO {body}"


def init(rank, n_ranks, what, *, pointer=None, gpu=None, comm_id=WORLD, tail=None):
    gpu = rank if gpu is None else gpu
    tail = f"commId {comm_id}" if tail is None else tail
    return (
        f"ncclCommInitRankConfig comm {pointer or f'0xa{rank}'} rank {rank} nranks {n_ranks}"
        f" cudaDev {gpu} nvmlDev {gpu} busId {gpu + 6}0 {tail} - Init {what}"
    )


def via(start, end, transport, *, channel=0, side=""):
    return f"Channel {channel:02d}/0 : {start}[{start}] -> {end}[{end}]{side} via {transport}"


# What NCCL says of a variable.
SETTING_LOG = "{} set by environment to {}"


def two_ranks():
    zero = [
        "NCCL version 2.28.9+cuda13.0",
        SETTING_LOG.format("NCCL_P2P_LEVEL", "NVL"),
        init(0, 2, "START"),
        "Channel 00/01 : 0 1",
        (
            "1 coll channels, 1 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels "
            "per peer"
        ),
        init(0, 2, "COMPLETE"),
        via(0, 1, "P2P/CUMEM"),
    ]
    one = [init(1, 2, "START"), init(1, 2, "COMPLETE"), via(1, 0, "P2P/CUMEM")]
    return [said(body) for body in zero], [said(body, pid=11, gpu=1) for body in one]


MEMBERS = CommMember(0, "node0", 10, 0, 0, "60"), CommMember(1, "node0", 11, 1, 1, "70")
EDGES = Edge(0, 1, ("P2P/CUMEM",), 1), Edge(1, 0, ("P2P/CUMEM",), 1)
TWO_RANKS = NcclLog(
    "2.28.9+cuda13.0",
    (Communicator(WORLD, 2, MEMBERS, {0: (0, 1)}, 1, False, EDGES),),
    {"NCCL_P2P_LEVEL": "NVL"},
)


def read(folder, *files):
    paths = [folder / f"{number}.log" for number, _ in enumerate(files)]
    for path, lines in zip(paths, files, strict=True):
        path.write_bytes(lines if isinstance(lines, bytes) else "\n".join([*lines, ""]).encode())
    return read_nccl_logs(paths)


def only(log):
    (comm,) = log.communicators
    return comm


def edges(comm):
    return {(edge.from_rank, edge.to_rank): ", ".join(edge.transports) for edge in comm.edges or ()}


ZERO, ONE = two_ranks()
PREFIXES = ["[1,0]<stdout>:", "[default0]:", "\x1b[36m(Worker pid=9)\x1b[0m ", "[2026-11-20] "]
BAR = "".join(f"\r{at}/9999 [00:01]" for at in range(1000))
GARBAGE = b"\xff\xfe\x00 NCCL INFO\n\x1b]0;title\x07\x9b\nnode0:1 [0] NCCL INFO Channel\n"
# The same lines, however they are written down.
FORMS = {
    "mixed": [list(chain.from_iterable(zip(ZERO, [*ONE, *["a step"] * 4], strict=True)))],
    "a file per rank": [ZERO, ONE],
    "in another order and twice": [ONE, ZERO, ONE],
    "colours, line ends of Windows": [
        [PREFIXES[at % 4] + line + "\r" for at, line in enumerate(ZERO + ONE)]
    ],
    "long progress bars": [[BAR + line for line in [*ZERO, *ONE]]],
    "garbage": [b"".join(line.encode() + b"\n" + GARBAGE for line in [*ZERO, *ONE])],
}


@pytest.mark.parametrize("files", FORMS.values(), ids=FORMS)
def test_lines_of_two_ranks_say_the_same_however_they_are_written_down(tmp_path, files):
    assert read(tmp_path, *files) == TWO_RANKS


@given(st.data())
def test_the_order_of_lines_of_different_ranks_does_not_matter(tmp_path_factory, data):
    ranks = [
        [said(body, pid=20 + rank, gpu=rank) for body in world_and_pairs(rank)] for rank in range(4)
    ]
    turns = data.draw(
        st.permutations([rank for rank, lines in enumerate(ranks) for _ in lines]), label="turns"
    )
    queues = [iter(lines) for lines in ranks]
    path = tmp_path_factory.mktemp("logs") / "mixed.log"
    path.write_text("".join(next(queues[rank]) + "\n" for rank in turns))
    found = read_nccl_logs([path])
    path.write_text("".join(f"{line}\n" for lines in ranks for line in lines))
    assert found == read_nccl_logs([path])
    assert [comm.comm_id for comm in found.communicators] == [WORLD, "0x2220", "0x2221"]


def world_and_pairs(rank):
    """Return what a rank of four logs that is also in a pair: 0 with 1, 2 with 3; all connect at the end."""
    pair, own = divmod(rank, 2)
    bodies = [init(rank, 4, "START"), init(rank, 4, "COMPLETE")]
    ids = {"pointer": f"0xb{rank}", "comm_id": f"0x222{pair}", "gpu": rank}
    bodies += [init(own, 2, "START", **ids)]
    bodies += ["Channel 00/01 : 0 1"] if own == 0 else []
    bodies += [init(own, 2, "COMPLETE", **ids)]
    bodies[1:1] = ["Channel 00/01 : 0 1 2 3"] if rank == 0 else []
    after, other = (rank + 1) % 4, rank - own + 1 - own
    in_pair = f"Channel 00/0 : {own}[{rank}] -> {1 - own}[{other}] via SHM/direct/direct"
    return [*bodies, in_pair, via(rank, after, "P2P/IPC")]


def test_a_world_and_two_pairs_are_three_communicators(tmp_path):
    log = read(
        tmp_path, [said(body, pid=20 + r, gpu=r) for r in range(4) for body in world_and_pairs(r)]
    )
    world, first, second = log.communicators
    assert [(comm.comm_id, comm.n_ranks) for comm in log.communicators] == [
        (WORLD, 4),
        ("0x2220", 2),
        ("0x2221", 2),
    ]
    # Rank 0's line to 1 fits both; the younger has its own by then.
    assert edges(world) == dict.fromkeys([(0, 1), (1, 2), (2, 3), (3, 0)], "P2P/IPC")
    assert edges(first) == edges(second) == dict.fromkeys([(0, 1), (1, 0)], "SHM/direct/direct")
    assert [member.pid for member in second.members] == [22, 23]
    assert (world.rings, second.rings) == ({0: (0, 1, 2, 3)}, {0: (0, 1)})


def test_a_split_is_named_by_its_parent_and_colour(tmp_path):
    def rank(number):
        tail = f"parent 0xa{number} splitCount 1 color {number % 2} key {number}"
        ids = {"pointer": f"0xc{number}", "gpu": number, "tail": tail}
        bodies = [init(number, 4, "START"), init(number, 4, "COMPLETE")]
        bodies += [init(number // 2, 2, what, **ids) for what in ("START", "COMPLETE")]
        bodies[2] = bodies[2].replace(
            " - Init", "- Init"
        )  # as 2.19 wrote it: no space before the hyphen
        return [said(body, pid=30 + number, gpu=number) for body in bodies]

    log = read(tmp_path, *(rank(number) for number in range(4)))
    assert [comm.comm_id for comm in log.communicators] == [WORLD, f"{WORLD}/1.0", f"{WORLD}/1.1"]
    assert [member.pid for member in log.communicators[2].members] == [31, 33]


def test_an_appended_log_has_both_runs(tmp_path):
    text = "\n".join([*ZERO, *ONE])
    second = text.replace(":10:10", ":50:50").replace(":11:11", ":51:51").replace(WORLD, "0x3333")
    log = read(tmp_path, f"{text}\n{second}\n".encode())
    assert [comm.comm_id for comm in log.communicators] == [WORLD, "0x3333"]
    assert [len(comm.edges) for comm in log.communicators] == [2, 2]


def test_a_pointer_that_is_used_again_is_another_communicator(tmp_path):
    bodies = [init(0, 2, "START"), init(0, 2, "COMPLETE")]
    bodies += ["comm 0xa0 rank 0 nranks 2 cudaDev 0 busId 60 - Destroy COMPLETE"]
    bodies += [init(0, 2, what, comm_id="0x9999") for what in ("START", "COMPLETE")] + [
        via(0, 1, "P2P/CUMEM")
    ]
    first, second = read(tmp_path, [said(body) for body in bodies]).communicators
    assert (first.comm_id, first.edges) == (WORLD, None)
    assert (second.comm_id, edges(second)) == ("0x9999", {(0, 1): "P2P/CUMEM"})


def test_one_process_with_a_thread_per_gpu(tmp_path):
    lines = [
        said(body, thread=100 + rank, gpu=rank)
        for rank in range(2)
        for body in (
            init(rank, 2, "START"),
            via(rank, 1 - rank, "P2P/direct pointer"),
            init(rank, 2, "COMPLETE"),
        )
    ]
    comm = only(read(tmp_path, lines))
    assert [(member.rank, member.pid, member.nvml_device) for member in comm.members] == [
        (0, 10, 0),
        (1, 10, 1),
    ]
    assert edges(comm) == dict.fromkeys([(0, 1), (1, 0)], "P2P/direct pointer")


def test_a_release_without_communicator_names_gives_only_its_settings(tmp_path):
    """NCCL 2.10 logs neither ids nor begins; GPUs are PCI addresses."""
    bodies = ["NCCL version 2.10.3+cuda11.3", SETTING_LOG.format("NCCL_P2P_LEVEL", "NVL")]
    bodies += ["Channel 00/02 :    0   1", "Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC/read"]
    bodies += ["comm 0x7f5 rank 0 nranks 2 cudaDev 0 busId 1a000 - Init COMPLETE"]
    assert read(tmp_path, [said(body) for body in bodies]) == NcclLog(
        "2.10.3+cuda11.3", (), {"NCCL_P2P_LEVEL": "NVL"}
    )


CONNECTIONS = {
    "Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM": (0, 0, 1, 2, "P2P/CUMEM"),
    "Channel 03/1 : 1[1] -> 2[2] via P2P/CUMEM/read": (3, 1, 1, 2, "P2P/CUMEM/read"),
    "Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC/read": (0, 0, 0, 1, "P2P/IPC/read"),
    "Channel 11 : 0[0] -> 1[1] via SHM/direct/CE": (11, 0, 0, 1, "SHM/direct/CE"),
    "Channel 00 : 0[0] -> 1[1] via P2P/direct pointer": (0, 0, 0, 1, "P2P/direct pointer"),
    "Channel 0/0 : 0[0] -> 3[3] via P2P/indirect/1[1]": (0, 0, 0, 3, "P2P/indirect/1[1]"),
    "Ring 00 : 3 -> 0 via direct shared memory": (0, 0, 3, 0, "direct shared memory"),
    "Channel 02/0 : 7[7] -> 8[0] [send] via NET/IB/0(1)/GDRDMA(PCI)": (
        2,
        0,
        7,
        8,
        "NET/IB/0(1)/GDRDMA(PCI)",
    ),
    "Channel 00 : 1[101d0] -> 8[101c0] [send] via NET/AWS Libfabric/0": (
        0,
        0,
        1,
        8,
        "NET/AWS Libfabric/0",
    ),
    "Channel 00/0 : 0[83000] -> 1[c3000] via P2P/IPC comm 0x5fa3 nRanks 02": (
        0,
        0,
        0,
        1,
        "P2P/IPC",
    ),
}


def test_connections_as_releases_write_them():
    for line, expected in CONNECTIONS.items():
        fact = parse_line(said(line))[2]
        assert isinstance(fact, Connected), line
        assert (
            fact.channel,
            fact.connection,
            fact.from_rank,
            fact.to_rank,
            fact.transport,
        ) == expected, line


def test_edges_between_hosts_have_the_senders_words_else_the_receivers(tmp_path):
    def rank(number, *bodies):
        host = "ab"[number]
        both = [init(number, 2, "START", gpu=0), init(number, 2, "COMPLETE", gpu=0), *bodies]
        return [said(body, host=host, pid=7) for body in both]

    to_one = "Channel {:02d}/0 : 0[0] -> 1[0] [{}] via NET/IB/{}/GDRDMA"
    to_zero = "Channel {:02d}/0 : 1[0] -> 0[0] [{}] via NET/Socket/0"
    zero = [to_one.format(0, "send", 0), to_one.format(1, "send", 1), to_zero.format(0, "receive")]
    one = [to_one.format(0, "receive", 5), to_one.format(1, "receive", 5)]
    comm = only(read(tmp_path, rank(0, *zero), rank(1, *one)))
    assert [member.host for member in comm.members] == ["a", "b"]
    assert comm.edges == (
        Edge(0, 1, ("NET/IB/0/GDRDMA", "NET/IB/1/GDRDMA"), 2),
        Edge(1, 0, ("NET/Socket/0",), 1),
    )


def test_connections_of_point_to_point_calls_count_only_alone(tmp_path):
    bodies = [init(0, 3, "START"), init(0, 3, "COMPLETE"), via(0, 1, "P2P/CUMEM")]
    bodies += [f"Channel {c:02d}/1 : 0[0] -> {to}[{to}] via SHM" for to in (1, 2) for c in (5, 6)]
    comm = only(read(tmp_path, [said(body) for body in bodies]))
    assert comm.edges == (Edge(0, 1, ("P2P/CUMEM",), 1), Edge(0, 2, ("SHM",), 2))


NVLINK_SHARP_LOG = {
    "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels": True,
    "NVLS comm 0x55 headRank 0 nHeads 2 buffSize 1048576 memSize 2097152": True,
    "24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels": False,
    "NVLS multicast support is not available on dev 0": False,
    "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)": None,
    "24 coll channels, 32 p2p channels, 32 p2p channels per peer": None,
}


def test_nvlink_sharp_is_on_when_it_has_channels(tmp_path):
    for body, is_on in NVLINK_SHARP_LOG.items():
        bodies = [init(0, 2, "START"), body, init(0, 2, "COMPLETE")]
        assert only(read(tmp_path, [said(one) for one in bodies])).is_nvls_on is is_on, body


def test_a_log_holds_no_more_than_was_logged(tmp_path):
    assert read(tmp_path, ["NCCL version 2.21.5+cuda12.4", "epoch 1"]) == NcclLog("2.21.5+cuda12.4")
    warned = "node0:5:9 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect failed"
    assert read(tmp_path, [warned]) == NcclLog()
    comm = only(read(tmp_path, [said(init(0, 2, "START"))]))
    assert comm == Communicator(WORLD, 2, (CommMember(0, "node0", 10, 0, 0, "60"),))


def test_settings_are_nccls_only_and_all_their_values(tmp_path):
    lines = [
        said(SETTING_LOG.format("NCCL_IB_HCA", "mlx5_1")),
        said(SETTING_LOG.format("NCCL_IB_HCA", "mlx5_0."), pid=11),
        said(SETTING_LOG.format("OTHER", "secret")),
        said(SETTING_LOG.format("NCCL_ALGO", "ring,tree")),
    ]
    log = read(tmp_path, lines)
    assert log.settings == {"NCCL_ALGO": "ring,tree", "NCCL_IB_HCA": "mlx5_0 | mlx5_1"}


def test_an_unfinished_last_line_of_a_log_is_not_used(tmp_path):
    text = "\n".join([*ZERO, *ONE])
    assert edges(only(read(tmp_path, text.encode()))) == {(0, 1): "P2P/CUMEM"}
    assert edges(only(read(tmp_path, text.removesuffix("MEM").encode()))) == {(0, 1): "P2P/CUMEM"}
    assert (
        only(read(tmp_path, [*ZERO[:-1], ZERO[-1].removesuffix("EM") + ONE[-1], *ONE[:-1]])).edges
        is None
    )


def test_cut_rings_and_impossible_ranks_are_left_out(tmp_path):
    bodies = ["Channel 00/03 : 0 1 2 3", "Channel 01/03 : 0 1", "Channel 02/03 : 0 1 2 2"]
    bodies = [init(0, 4, "START"), *bodies, init(0, 4, "COMPLETE")]
    bodies += [via(0, 9, "SHM"), via(0, 0, "SHM"), via(2, 1, "SHM"), init(7, 4, "START")]
    bodies += [f"Channel 00/0 : {10**30}[0] -> 1[1] via SHM", "Channel 00/0 : 0[0] -> 1[1] via"]
    comm = only(read(tmp_path, [said(body) for body in bodies]))
    assert (comm.rings, comm.edges) == ({0: (0, 1, 2, 3)}, None)


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(range(10))), max_size=20))
@examples(100)
def test_any_bytes_are_read_or_refused(tmp_path_factory, pieces):
    lines = [line.encode() for line in [*ZERO, *ONE]]
    path = tmp_path_factory.mktemp("logs") / "any.log"
    path.write_bytes(b"\n".join(p if isinstance(p, bytes) else lines[p] for p in pieces))
    try:
        log = read_nccl_logs([path])
    except InputError as error:
        log = error.fix
    assert isinstance(log, NcclLog) or "NCCL_DEBUG=INFO" in log


def test_a_real_log_cut_anywhere_is_read(tmp_path):
    whole = (REAL / "ddp-4gpu-shm.nccl.log").read_bytes()
    path = tmp_path / "cut.log"
    for size in range(200, len(whole), 997):
        path.write_bytes(whole[:size])
        log = read_nccl_logs([path])
        transports = {
            ", ".join(edge.transports) for comm in log.communicators for edge in comm.edges or ()
        }
        assert transports <= {"SHM/direct/direct"}, size


def test_a_file_without_nccl_is_refused_as_it_was_named_with_a_way_out(
    tmp_path, monkeypatch, worded
):
    (tmp_path / "0.log").write_text("Throughput: 5 steps/s\nNCCL\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        read_nccl_logs([Path("0.log")])
    assert refused.value.subject == "0.log"
    worded(refused.value.problem)
    assert "NCCL_DEBUG=INFO" in refused.value.fix
    for path in (tmp_path / "missing.log", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(NsyspipeError):
            read_nccl_logs([path])


def test_a_host_name_cannot_drive_a_terminal():
    assert parse_line("a\x07b:1:2 [0] NCCL INFO x") == (("a\N{REPLACEMENT CHARACTER}b", 1), 2, None)


@pytest.mark.parametrize(
    ("name", "n_ranks", "n_channels", "transport"),
    [
        ("ddp-2gpu", 2, 24, "P2P/CUMEM"),
        ("ddp-4gpu", 4, 24, "P2P/CUMEM"),
        ("ddp-4gpu-shm", 4, 4, "SHM/direct/direct"),
    ],
)
def test_real_logs(name, n_ranks, n_channels, transport):
    log = read_nccl_logs([REAL / f"{name}.nccl.log"])
    comm = only(log)
    assert log.version == "2.28.9+cuda13.0"
    assert (comm.n_ranks, comm.n_channels, comm.is_nvls_on) == (n_ranks, n_channels, False)
    assert comm.rings == dict.fromkeys(range(n_channels), tuple(range(n_ranks)))
    around = [(rank, (rank + 1) % n_ranks) for rank in range(n_ranks)]
    assert comm.ring_edges() == around
    assert comm.edges == tuple(Edge(*pair, (transport,), n_channels) for pair in around)
    places = [
        (one.rank, one.host, one.cuda_device, one.nvml_device, one.bus_id) for one in comm.members
    ]
    assert places == [(rank, "node0", rank, rank, f"{rank + 6}0") for rank in range(n_ranks)]
    assert "shm" not in name or log.settings == {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}
