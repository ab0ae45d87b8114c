"""What the edges of a ring cross, and which is the slowest."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsyspipe.analysis.links import (
    SlowestLink,
    absent_gpus,
    classify_transport,
    links,
    nvlink_speed,
    pcie_speed,
    slowest,
)
from nsyspipe.model.schema import LINK_KINDS, LINKS
from nsyspipe.model.side_files import CommMember, Communicator, Edge, NcclLog, Topology
from nsyspipe.reader.fabric import read_nccl_logs, read_topology

REAL = Path(__file__).parent.parent / "real" / "logs"
H200 = "NVIDIA H200"
# 32 GT/s and lane x 16 lanes x 128/130 / 8 bits = 63.0 GB/s; 31.5 for half, 15.75 for a quarter.
PCIE_5, PCIE_4, PCIE_3 = 512e9 / 8.125, 256e9 / 8.125, 128e9 / 8.125


def topology(**paths):
    """Return a topology from words like ``g01="NV18"``."""
    both = {}
    for name, path in paths.items():
        one, other = f"GPU{name[1]}", f"GPU{name[2]}"
        both |= {(one, other): path, (other, one): path}
    return Topology(tuple(sorted({int(name[3:]) for pair in both for name in pair})), both)


def members(*hosts):
    """Return a member per host name; GPUs are numbered from 0 on each."""
    return tuple(
        CommMember(rank, host, 100 + rank, nvml_device=hosts[:rank].count(host)) for rank, host in enumerate(hosts)
    )


def ring(*transports, hosts=None, comm_id="0x1", rings=True):
    """Return a communicator whose ring 0 -> 1 -> ... -> 0 has these transports; None was not logged."""
    n_ranks = len(transports)
    edges = tuple(
        Edge(rank, (rank + 1) % n_ranks, tuple(transport.split(", ")), 2)
        for rank, transport in enumerate(transports)
        if transport
    )
    around = {0: tuple(range(n_ranks))} if rings else None
    place = members(*(hosts or ["a"] * n_ranks))
    return Communicator(comm_id, n_ranks, place, around, 2, None, edges or None)


def one_log(*comms):
    return NcclLog("2.28.9", tuple(comms))


def row(start, end, transport, path, kind, speed=None, source=None, *, comm_id="0x1", n=2):
    return dict(zip(LINKS.names, (comm_id, start, end, transport, n, path, kind, speed, source), strict=True))


def rows(*args, **options):
    table = links(*args, **options)
    assert table.schema == LINKS.arrow
    return table.to_pylist()


# --- transports ---------------------------------------------------------------------------------


TRANSPORTS = {
    "p2p": ("P2P/CUMEM", "P2P/CUMEM/read", "P2P/IPC", "P2P/direct pointer"),
    "nvlink": ("P2P/MNNVL", "P2P/indirect/1[1]"),
    "shm": ("SHM/direct/direct", "SHM", "direct shared memory"),
    "net": ("NET/IB/0/GDRDMA", "NET/AWS Libfabric/0", "COLLNET/SHARP/0"),
    "unknown": ("CXL/0", ""),
}


def test_transports_say_what_they_can_say_alone():
    assert {kind: tuple(map(classify_transport, words)) for kind, words in TRANSPORTS.items()} == {
        kind: (kind,) * len(words) for kind, words in TRANSPORTS.items()
    }
    assert {*TRANSPORTS, "p2p_pcie"} == set(LINK_KINDS)


# --- data sheets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "total_gb_per_s", "pcie"),
    [
        ("Tesla P100-SXM2-16GB", 160, PCIE_3),
        ("Tesla V100-SXM2-32GB", 300, PCIE_3),
        ("NVIDIA A100-SXM4-80GB", 600, PCIE_4),
        ("NVIDIA A800-SXM4-80GB", 400, PCIE_4),
        ("NVIDIA A30", 200, PCIE_4),
        ("NVIDIA A40", 112.5, PCIE_4),
        ("NVIDIA RTX A6000", 112.5, PCIE_4),
        ("NVIDIA H100 80GB HBM3", 900, PCIE_5),
        ("NVIDIA H200", 900, PCIE_5),
        ("NVIDIA H20", 900, PCIE_5),
        ("NVIDIA H800", 400, PCIE_5),
        # Its sources differ, and a GH200 has no PCIe to its CPU.
        ("NVIDIA GH200 480GB", 900, None),
        ("NVIDIA B200", 1800, None),
        ("NVIDIA GB200", 1800, None),
        *(
            (name, None, PCIE_4)
            for name in ("NVIDIA L4", "NVIDIA L40S", "NVIDIA A10G", "NVIDIA RTX 6000 Ada Generation")
        ),
        *((name, None, None) for name in ("AMD Instinct MI300X", "", None)),
    ],
)
def test_nvlinks_in_both_directions_and_lanes_of_pcie_are_what_data_sheets_say(name, total_gb_per_s, pcie):
    speeds = nvlink_speed([name, name]), pcie_speed([name, name])
    assert (speeds[0] and speeds[0].bytes_per_s * 2 / 1e9) == total_gb_per_s
    assert (speeds[1] and speeds[1].bytes_per_s) == (pcie and pytest.approx(pcie))


def test_fewer_links_and_the_slower_model_count():
    assert nvlink_speed(["NVIDIA H100 PCIe"] * 2, 12).bytes_per_s == 300e9
    slower = nvlink_speed(["NVIDIA B200", "NVIDIA H200"], 2)
    assert (slower.bytes_per_s, slower.source) == (50e9, "NVLink 4, 2 x 25 GB/s (H200)")
    assert nvlink_speed([H200, None]) is None


# --- edges --------------------------------------------------------------------------------------


def test_direct_access_over_the_wires_that_the_topology_names():
    log = one_log(ring("P2P/CUMEM", "P2P/IPC", "P2P/CUMEM"))
    topo = topology(g01="NV18", g12="SYS")
    source = "NVLink 4, 18 x 25 GB/s (H200)"
    assert rows(log, topo, dict.fromkeys(range(3), H200)) == [
        row(0, 1, "P2P/CUMEM", "NV18", "nvlink", 450e9, source),
        row(1, 2, "P2P/IPC", "SYS", "p2p_pcie", pytest.approx(PCIE_5), "PCIe 5.0 x16 (H200)"),
        row(2, 0, "P2P/CUMEM", None, "p2p"),
    ]


def test_shared_memory_is_as_fast_as_the_way_to_host_memory_whatever_connects_the_gpus():
    log = one_log(ring("SHM/direct/direct", "SHM/direct/direct"))
    speed = pytest.approx(PCIE_4), "PCIe 4.0 x16 (A100) to host memory"
    assert rows(log, topology(g01="NV12"), {0: "A100-SXM4", 1: "NVIDIA H200"}) == [
        row(start, 1 - start, "SHM/direct/direct", "NV12", "shm", *speed) for start in (0, 1)
    ]


def test_the_topology_holds_inside_hosts_only():
    # Rank 1 and 2 are on different hosts, on GPU 1 and GPU 0.
    log = one_log(ring("P2P/IPC", "NET/IB/0", "P2P/IPC", "NET/IB/0", hosts=["a", "a", "b", "b"]))
    found = rows(log, topology(g01="NV18"), dict.fromkeys(range(4), H200))
    assert [(one["path"], one["kind"]) for one in found] == [("NV18", "nvlink"), (None, "net")] * 2
    assert [one["nominal_bytes_per_s"] for one in found] == [450e9, None, 450e9, None]


def test_nvlink_between_hosts_has_all_links_of_the_model_and_through_a_third_gpu_none_that_is_known():
    log = one_log(ring("P2P/MNNVL", "P2P/indirect/2[2]", hosts=["a", "b"]))
    found = rows(log, topology(g01="SYS"), dict.fromkeys(range(2), "NVIDIA GB200"))
    assert [(one["kind"], one["path"], one["nominal_bytes_per_s"]) for one in found] == [
        ("nvlink", None, 900e9),
        ("nvlink", None, None),
    ]


def test_of_several_transports_on_an_edge_the_slowest_is_its_kind():
    log = one_log(ring("NET/IB/0, P2P/CUMEM", "P2P/CUMEM, SHM"))
    found = rows(log, topology(g01="NV18"), {})
    assert [(one["transport"], one["kind"]) for one in found] == [
        ("NET/IB/0, P2P/CUMEM", "net"),
        ("P2P/CUMEM, SHM", "shm"),
    ]


def test_an_edge_that_was_not_logged_has_no_transport_and_no_channels():
    log = one_log(ring("SHM", None))
    found = rows(log, topology(g01="PIX"), {0: "NVIDIA L4", 1: "NVIDIA L4"})
    assert found[1] == row(1, 0, None, "PIX", "unknown", pytest.approx(PCIE_4), "PCIe 4.0 x16 (L4)", n=None)


def test_another_communicator_of_the_same_gpus_tells_the_transport_but_not_the_channels():
    pair = Communicator(
        "0x2", 2, (CommMember(0, "a", 101, nvml_device=1), CommMember(1, "a", 100, nvml_device=0)),
        None, 2, None, (Edge(0, 1, ("SHM",), 2),),
    )  # fmt: skip
    found = rows(one_log(ring("SHM", None), pair), None)
    assert found[1] == row(1, 0, "SHM", None, "shm", n=None)


def test_without_rings_all_connected_edges_count():
    log = one_log(ring("SHM", "SHM", None, rings=False))
    assert [(one["from_rank"], one["to_rank"]) for one in rows(log, None)] == [(0, 1), (1, 2)]


def test_one_rank_has_no_edges():
    assert rows(one_log(ring(None)), topology(g01="NV18"), local_ranks={0: 0, 1: 1}) == []


# --- which communicator, which ranks ------------------------------------------------------------


def test_the_communicator_of_most_ranks_then_the_first_then_the_one_of_the_runs_processes():
    first, second = ring("SHM", "SHM", comm_id="0x1"), ring("SHM", "SHM", comm_id="0x2")
    small = ring(None, comm_id="0x0")
    assert rows(one_log(small, first, second), None)[0]["comm_id"] == "0x1"
    other = Communicator("0x3", 2, (CommMember(0, "a", 7),), {0: (0, 1)})
    assert rows(one_log(first, other), None, pids=[7, 8])[0]["comm_id"] == "0x3"
    assert rows(one_log(first, other), None, pids=[9])[0]["comm_id"] == "0x1"


def test_a_communicator_of_fewer_ranks_than_the_run_uses_only_a_name_that_all_share():
    log, topo = one_log(ring("P2P/IPC", "P2P/IPC")), topology(g01="NV4")
    same = rows(log, topo, dict.fromkeys(range(4), "NVIDIA A40"), n_ranks=4)
    assert same[0]["nominal_bytes_per_s"] == 56.25e9
    mixed = rows(log, topo, {0: "NVIDIA A40", 1: "NVIDIA A40", 2: H200, 3: H200}, n_ranks=4)
    assert mixed[0]["nominal_bytes_per_s"] is None


def test_gpus_are_found_by_nvml_then_cuda_then_local_rank():
    place = CommMember(0, "a", 1, cuda_device=0, nvml_device=3), CommMember(1, "a", 2, 1)
    comm = Communicator("0x1", 3, place, None, 1, None, (Edge(0, 1, ("P2P/IPC",), 1),))
    more = Communicator("0x1", 3, place, None, 1, None, (Edge(0, 2, ("P2P/IPC",), 1),))
    topo = topology(g31="PIX", g32="PHB")
    assert rows(one_log(comm), topo, local_ranks={0: 0, 1: 0, 2: 2})[0]["path"] == "PIX"
    assert rows(one_log(more), topo, local_ranks={0: 0, 1: 0, 2: 2})[0]["path"] == "PHB"


def test_an_index_that_two_ranks_of_a_host_have_is_no_index_of_the_host():
    place = tuple(CommMember(rank, "a", rank, cuda_device=rank // 2) for rank in range(3))
    edges = Edge(0, 1, ("P2P/IPC",), 1), Edge(1, 2, ("P2P/IPC",), 1)
    comm = Communicator("0x1", 3, place, None, 1, None, edges)
    assert [one["path"] for one in rows(one_log(comm), topology(g01="NV18"))] == [None, None]


# --- only one of the two ------------------------------------------------------------------------


def test_a_topology_alone_gives_pairs_that_nothing_says_are_used():
    topo = topology(g01="NV18", g02="SYS", g12="SYS")
    places = {"local_ranks": {0: 0, 1: 1, 2: 2}, "hosts": dict.fromkeys(range(3), "a")}
    names = dict.fromkeys(range(3), H200)
    nvlink, pcie = "NVLink 4, 18 x 25 GB/s (H200)", "PCIe 5.0 x16 (H200)"
    nothing = {"comm_id": None, "n": None}
    expected = [
        row(0, 1, None, "NV18", "unknown", 450e9, nvlink, **nothing),
        row(0, 2, None, "SYS", "unknown", pytest.approx(PCIE_5), pcie, **nothing),
        row(1, 2, None, "SYS", "unknown", pytest.approx(PCIE_5), pcie, **nothing),
    ]
    assert rows(None, topo, names, **places) == expected
    # A log that does not say who connects to whom is no better.
    assert rows(NcclLog("2.28.9"), topo, names, **places) == expected
    silent = NcclLog("2.28.9", (Communicator("0x1", 3, members("a", "a", "a")),))
    assert rows(silent, topo, names) == expected


def test_pairs_are_of_one_host():
    topo = topology(g01="NV18")
    hosts = {0: "a", 1: "a", 2: "b", 3: "b", 4: "b"}
    local_ranks = {0: 0, 1: 1, 2: 0, 3: 1, 4: None}
    found = rows(None, topo, local_ranks=local_ranks, hosts=hosts)
    assert [(one["from_rank"], one["to_rank"]) for one in found] == [(0, 1), (2, 3)]


def test_nothing_gives_nothing():
    assert rows(None, None, {0: H200}, local_ranks={0: 0, 1: 1}) == []
    assert rows(None, topology(g01="NV18")) == []
    assert slowest(links(None, None)) is None


# --- the slowest --------------------------------------------------------------------------------


def text_of(log, topo=None, names=None, **options):
    return slowest(links(log, topo, names or {}, **options)).text


def test_shared_memory_although_there_is_nvlink():
    log = read_nccl_logs([REAL / "ddp-4gpu-shm.nccl.log"])
    table = links(log, read_topology(REAL / "topo-4gpu.txt"), dict.fromkeys(range(4), H200))
    text = "SHM through host memory, although the GPUs are connected by NV18"
    assert slowest(table) == SlowestLink("shm", 0, 1, pytest.approx(PCIE_5), text, 4, 0, 4, True)
    assert [(one["transport"], one["n_channels"], one["path"]) for one in table.to_pylist()] == [
        ("SHM/direct/direct", 4, "NV18")
    ] * 4


def test_the_slowest_kind_then_the_least_bandwidth():
    log = one_log(ring("P2P/CUMEM", "P2P/CUMEM", "P2P/CUMEM"))
    names = {0: H200, 1: H200, 2: "NVIDIA A100"}
    found = slowest(links(log, topology(g01="NV18", g12="NV4", g02="NV2"), names))
    assert (found.from_rank, found.to_rank, found.nominal_bytes_per_s) == (2, 0, 50e9)
    found = slowest(links(log, topology(g01="PIX", g12="NV4", g02="NV2"), names))
    assert (found.kind, found.from_rank, found.n_links) == ("p2p_pcie", 0, 1)


def test_a_bandwidth_that_one_link_of_the_kind_lacks_is_not_known():
    log = one_log(ring("P2P/CUMEM", "P2P/CUMEM", "P2P/CUMEM"))
    topo = topology(g01="NV18", g12="NV18", g02="NV18")
    found = slowest(links(log, topo, {0: H200, 1: H200, 2: None}))
    assert (found.from_rank, found.nominal_bytes_per_s) == (0, None)


@pytest.mark.parametrize(
    ("transport", "path", "text"),
    [
        ("P2P/MNNVL", "SYS", "NVLink (P2P/MNNVL)"),
        ("P2P/IPC", "PHB", "direct access over PCIe (P2P/IPC, PHB: across a PCIe host bridge, usually the CPU)"),
        ("SHM/direct/direct", "SYS", "SHM through host memory"),
        ("direct shared memory", "NV2", "SHM through host memory, although the GPUs are connected by NV2"),
        ("NET/IB/0/GDRDMA", "SYS", "network (NET/IB/0/GDRDMA)"),
        ("NET/IB/0/GDRDMA, NET/IB/1", "NV4", "network (NET/IB/0/GDRDMA, NET/IB/1) through host memory, although the GPUs are connected by NV4"),
        ("NET/Socket/0", "SYS", "network (NET/Socket/0) through host memory"),
        ("CXL/0", "SYS", "CXL/0, a transport that nsyspipe does not know; the GPUs are connected by SYS"),
        (None, "NV18", "no NCCL log says what NCCL uses; the GPUs are connected by NV18"),
    ],
)  # fmt: skip
def test_texts(transport, path, text):
    assert text_of(one_log(ring(transport, transport)), topology(g01=path)) == text


def test_texts_without_a_topology():
    asked = "direct access to GPU memory (P2P/CUMEM); nvidia-smi topo -m tells whether over NVLink or PCIe"
    assert text_of(one_log(ring("P2P/CUMEM", "P2P/CUMEM"))) == asked
    assert text_of(one_log(ring(None, None))) == "no NCCL log says what NCCL uses"
    assert text_of(one_log(ring("SHM", None))) == ("SHM through host memory")


def test_of_many_cards_of_a_network_a_few_are_named():
    cards = ", ".join(f"NET/IB/{card}/GDRDMA" for card in range(8))
    text = "network (NET/IB/0/GDRDMA, NET/IB/1/GDRDMA and 6 more)"
    assert text_of(one_log(ring(cards, cards, hosts=["a", "b"]))) == text
    # One that is not direct makes the whole wait in host memory, named or not.
    cards += ", NET/IB/8"
    text = "network (NET/IB/0/GDRDMA, NET/IB/1/GDRDMA and 7 more) through host memory"
    assert text_of(one_log(ring(cards, cards, hosts=["a", "b"]))) == text


# --- which edges ----------------------------------------------------------------------------------

NV, NET = "P2P/CUMEM", "NET/IB/0"


@pytest.mark.parametrize(
    ("transports", "edges"),
    [
        (["SHM"] * 4, "all 4 edges"),
        (["SHM"] * 2, "both edges"),
        ([NV, NV, NV, NET, NV, NV, NV, NET], "2 of 8 edges, rank 3 to 4 first"),
        ([NV, "SHM", NV], "1 of 3 edges, rank 1 to 2"),
        ([NV, "SHM", None], "1 of 3 edges, rank 1 to 2, 1 not known"),
        ([None, None, None], "all 3 edges"),
        # Both are networks, but what is said of the first does not hold for the second.
        ([NV, "NET/IB/1", NET], "1 of 3 edges, rank 1 to 2"),
    ],
)
def test_edges_are_those_that_the_text_holds_for(transports, edges):
    assert slowest(links(one_log(ring(*transports)), None)).edges == edges


def test_paths_that_differ_are_told_apart():
    topo = topology(g01="PIX", g12="SYS", g23="PIX", g30="SYS")
    found = slowest(links(one_log(ring(*["P2P/IPC"] * 4)), topo, dict.fromkeys(range(4), H200)))
    assert (found.text.count("PIX"), found.edges) == (1, "2 of 4 edges, rank 0 to 1 first")


def test_without_a_log_they_are_pairs():
    topo = topology(g01="NV18", g02="SYS", g12="SYS")
    found = slowest(links(None, topo, dict.fromkeys(range(3), H200), local_ranks={0: 0, 1: 1, 2: 2}))
    assert (found.text[-3:], found.edges) == ("SYS", "2 of 3 pairs, rank 0 to 2 first")
    assert slowest(links(None, topo, {}, local_ranks={0: 0, 1: 1})).edges == "rank 0 to 1"


# --- of this run, of this machine -----------------------------------------------------------------


def sizes(log):
    return None if log is None else [comm.n_ranks for comm in log.communicators]


@pytest.mark.parametrize(
    ("pids", "world_sizes", "kept"),
    [
        # ring() numbers its processes from 100; larger communicators of others go.
        ({100}, {5}, [2]),
        ({7}, {5}, [2, 8]),
        # Containers have other processes: the run's size is enough.
        ({1}, {2, None}, [2]),
        ({1}, {2, 8}, [2, 8]),
        ({1}, {4, None}, None),
    ],
)
def test_a_log_is_of_the_run_by_its_processes_or_its_size(pids, world_sizes, kept):
    log = one_log(ring("SHM", "SHM"), Communicator("0x3", 8, (CommMember(0, "a", 7),)))
    assert sizes(log.of_run(pids, world_sizes)) == kept


def test_a_log_without_communicators_is_of_any_run():
    silent = NcclLog("2.28.9", (), {"NCCL_P2P_DISABLE": "1"})
    assert silent.of_run({1}, {4}) is silent


def test_real_logs_name_the_processes_of_their_reports():
    log = read_nccl_logs([REAL / "ddp-2gpu.nccl.log"])
    assert sizes(log.of_run({862}, {4})) == [2]
    assert log.of_run({950, 961, 967, 957}, {4}) is None


@pytest.mark.parametrize(
    ("said", "is_on"), [((), None), ((None,), None), ((False, None), False), ((False, True), True)]
)
def test_one_communicator_over_nvlink_sharp_is_enough(said, is_on):
    comms = tuple(Communicator(f"0x{at}", 2, is_nvls_on=one) for at, one in enumerate(said))
    assert NcclLog(None, comms).is_nvls_on is is_on


def absent(log, topo, n_ranks=2, local_ranks=None, hosts=None):
    found = {"n_ranks": n_ranks, "local_ranks": local_ranks or {}, "hosts": hosts or {}}
    return absent_gpus(log, topo, **found, pids=())


def test_a_topology_lacks_what_ranks_run_on():
    topo = topology(g01="NV18")
    assert absent(None, topo, local_ranks={0: 0, 1: 1}) == []
    assert absent(None, topo, 4, local_ranks={0: 0, 1: 1, 2: 2, 3: 3}) == [2, 3]
    # Of two hosts with two GPUs each; and where every process sees only its own as GPU 5.
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    assert absent(None, topo, 4, local_ranks={0: 0, 1: 1, 2: 0, 3: 1}, hosts=hosts) == []
    assert absent(None, topo, local_ranks={0: 5, 1: 5}) == []
    assert absent(None, topo, local_ranks={0: None}) == []
    assert absent(None, None, local_ranks={0: 9}) == []


def test_the_logs_indices_count_more_than_local_ranks():
    place = CommMember(0, "a", 1, nvml_device=2), CommMember(1, "a", 2, nvml_device=3)
    log = one_log(Communicator("0x1", 2, place))
    local_ranks = {0: 0, 1: 1}
    assert absent(log, topology(g01="NV18"), local_ranks=local_ranks) == [2, 3]
    assert absent(log, topology(g23="NV18"), local_ranks=local_ranks) == []
    # Of a communicator that does not span the run, ranks have other numbers.
    assert absent(log, topology(g23="NV18"), 4, local_ranks={0: 0, 1: 1, 2: 2, 3: 3}) == []


def test_a_row_of_a_gpu_that_is_no_column_is_no_path():
    topo = Topology((0,), {("GPU0", "GPU1"): "NV18", ("GPU1", "GPU0"): "NV18"})
    assert rows(one_log(ring("P2P/IPC", "P2P/IPC")), topo)[0]["path"] is None
