"""What the edges of a ring cross, and which is the slowest."""

from pathlib import Path

import pytest

from nsyspipe.analysis.links import SlowestLink, classify_transport, links, nominal_speed, slowest
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
    places = [(rank, host, hosts[:rank].count(host)) for rank, host in enumerate(hosts)]
    return tuple(CommMember(rank, host, 100 + rank, nvml_device=gpu) for rank, host, gpu in places)


def ring(*transports, hosts=None, comm_id="0x1", rings=True):
    """Return a communicator whose ring 0 -> 1 -> ... -> 0 has these transports; None was not logged."""
    n_ranks = len(transports)
    known = [
        (rank, transport.split(", ")) for rank, transport in enumerate(transports) if transport
    ]
    edges = tuple(Edge(rank, (rank + 1) % n_ranks, tuple(words), 2) for rank, words in known)
    around = {0: tuple(range(n_ranks))} if rings else None
    return Communicator(
        comm_id, n_ranks, members(*(hosts or ["a"] * n_ranks)), around, 2, None, edges or None
    )


def one_log(*comms):
    return NcclLog("2.28.9", tuple(comms))


def row(start, end, transport, path, kind, speed=None, source=None, *, comm_id="0x1", n=2):
    return dict(
        zip(
            LINKS.names[:-1],
            (comm_id, start, end, transport, n, path, kind, speed, source),
            strict=True,
        )
    )


def rows(*args, **options):
    table, _ = links(*args, **options)
    assert table.schema == LINKS.arrow
    return table.drop_columns("algorithms").to_pylist()


TRANSPORTS = {
    "p2p": ("P2P/CUMEM", "P2P/CUMEM/read", "P2P/IPC", "P2P/direct pointer"),
    "nvlink": ("P2P/MNNVL", "P2P/indirect/1[1]"),
    "shm": ("SHM/direct/direct", "SHM", "direct shared memory"),
    "net": ("NET/IB/0/GDRDMA", "NET/AWS Libfabric/0", "COLLNET/SHARP/0"),
    "unknown": ("CXL/0", ""),
}


def test_transports_say_what_they_can_say_alone():
    assert all(
        classify_transport(word) == kind for kind, words in TRANSPORTS.items() for word in words
    )
    assert {*TRANSPORTS, "p2p_pcie"} == set(LINK_KINDS)


# Bandwidth of NVLink in both directions, GB/s, and lanes of PCIe by name; sources differ of a
# GH200, which has no PCIe to its CPU.
SHEETS = {
    (160, PCIE_3): ("Tesla P100-SXM2-16GB",),
    (300, PCIE_3): ("Tesla V100-SXM2-32GB",),
    (600, PCIE_4): ("NVIDIA A100-SXM4-80GB",),
    (400, PCIE_4): ("NVIDIA A800-SXM4-80GB",),
    (200, PCIE_4): ("NVIDIA A30",),
    (112.5, PCIE_4): ("NVIDIA A40", "NVIDIA RTX A6000"),
    (900, PCIE_5): ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H20"),
    (400, PCIE_5): ("NVIDIA H800",),
    (900, None): ("NVIDIA GH200 480GB",),
    (1800, None): ("NVIDIA B200", "NVIDIA GB200"),
    (None, PCIE_4): ("NVIDIA L4", "NVIDIA L40S", "NVIDIA A10G", "NVIDIA RTX 6000 Ada Generation"),
    (None, None): ("AMD Instinct MI300X", "", None),
}


@pytest.mark.parametrize(
    ("sheet", "name"), [(sheet, name) for sheet, names in SHEETS.items() for name in names]
)
def test_speeds_of_nvlink_and_pcie_are_what_data_sheets_say(sheet, name):
    speeds = nominal_speed([name, name]), nominal_speed([name, name], "PCIe")
    assert (speeds[0] and speeds[0].bytes_per_s * 2 / 1e9) == sheet[0]
    assert (speeds[1] and speeds[1].bytes_per_s) == (sheet[1] and pytest.approx(sheet[1]))


def test_fewer_links_and_the_slower_model_count():
    assert nominal_speed(["NVIDIA H100 PCIe"] * 2, "NV12").bytes_per_s == 300e9
    slower = nominal_speed(["NVIDIA B200", "NVIDIA H200"], "NV2")
    assert (slower.bytes_per_s, slower.source) == (50e9, "NVLink 4, 2 x 25 GB/s (H200)")
    assert nominal_speed([H200, None]) is None


def edge(start, end, transport="P2P/IPC"):
    return Edge(start, end, (transport,), 1)


def comm_of(*place, edges):
    return Communicator("0x1", 3, place, None, 1, None, edges)


P2P, SHM = "P2P/IPC", "SHM/direct/direct"
SOURCE, TO_HOST = "NVLink 4, 18 x 25 GB/s (H200)", "PCIe 4.0 x16 (A100) to host memory"
TRIANGLE = {"g01": "NV18", "g02": "SYS", "g12": "SYS"}
H200S = dict.fromkeys(range(4), H200)
NVL18 = ("NV18", "nvlink", 450e9, SOURCE)
UNUSED_5 = ("unknown", pytest.approx(PCIE_5), "PCIe 5.0 x16 (H200)")
TO_PCIE_4 = (pytest.approx(PCIE_4), "PCIe 4.0 x16 (L4)")
NO_LOG = {"comm_id": None, "n": None}
# The same GPUs the other way round.
SWAPPED = Communicator(
    "0x2",
    2,
    (CommMember(0, "a", 101, nvml_device=1), CommMember(1, "a", 100, nvml_device=0)),
    None,
    2,
    None,
    (edge(0, 1, "SHM"),),
)
# GPUs are found by NVML, then CUDA, then local rank.
BY_INDEX = CommMember(0, "a", 1, cuda_device=0, nvml_device=3), CommMember(1, "a", 2, 1)
# Ranks 0 and 1 have one index, which is none of the host then.
SHARED = [CommMember(rank, "a", rank, cuda_device=rank // 2) for rank in range(3)]
INDICES, LOCAL = {"g31": "PIX", "g32": "PHB"}, {"local_ranks": {0: 0, 1: 0, 2: 2}}


@pytest.mark.parametrize(
    ("comms", "paths", "names", "options", "expected"),
    [
        # Direct access over the wires that the topology names.
        (
            [ring("P2P/CUMEM", P2P, "P2P/CUMEM")],
            {"g01": "NV18", "g12": "SYS"},
            H200S,
            {},
            [
                row(0, 1, "P2P/CUMEM", *NVL18),
                row(1, 2, P2P, "SYS", "p2p_pcie", pytest.approx(PCIE_5), "PCIe 5.0 x16 (H200)"),
                row(2, 0, "P2P/CUMEM", None, "p2p"),
            ],
        ),
        # Shared memory is as fast as the way to host memory, whatever connects the GPUs.
        (
            [ring(SHM, SHM)],
            {"g01": "NV12"},
            {0: "A100-SXM4", 1: "NVIDIA H200"},
            {},
            [row(at, 1 - at, SHM, "NV12", "shm", pytest.approx(PCIE_4), TO_HOST) for at in (0, 1)],
        ),
        # The topology holds inside hosts only: ranks 1 and 2 are on different ones, on GPU 1 and
        # GPU 0.
        (
            [ring(P2P, "NET/IB/0", P2P, "NET/IB/0", hosts=["a", "a", "b", "b"])],
            {"g01": "NV18"},
            H200S,
            {},
            [
                row(0, 1, P2P, *NVL18),
                row(1, 2, "NET/IB/0", None, "net"),
                row(2, 3, P2P, *NVL18),
                row(3, 0, "NET/IB/0", None, "net"),
            ],
        ),
        # NVLink between hosts has all links of the model, and through a third GPU none that is
        # known.
        (
            [ring("P2P/MNNVL", "P2P/indirect/2[2]", hosts=["a", "b"])],
            {"g01": "SYS"},
            dict.fromkeys(range(2), "NVIDIA GB200"),
            {},
            [
                row(0, 1, "P2P/MNNVL", None, "nvlink", 900e9, "NVLink 5, 18 x 50 GB/s (GB200)"),
                row(1, 0, "P2P/indirect/2[2]", None, "nvlink"),
            ],
        ),
        # Of several transports on an edge the slowest is its kind.
        (
            [ring("NET/IB/0, P2P/CUMEM", "P2P/CUMEM, SHM")],
            {"g01": "NV18"},
            {},
            {},
            [
                row(0, 1, "NET/IB/0, P2P/CUMEM", "NV18", "net"),
                row(1, 0, "P2P/CUMEM, SHM", "NV18", "shm"),
            ],
        ),
        # An edge that was not logged has no transport and no channels; another communicator of the
        # same GPUs may tell one.
        (
            [ring(P2P, None)],
            {"g01": "PIX"},
            dict.fromkeys(range(2), "NVIDIA L4"),
            {},
            [
                row(0, 1, P2P, "PIX", "p2p_pcie", *TO_PCIE_4),
                row(1, 0, None, "PIX", "unknown", *TO_PCIE_4, n=None),
            ],
        ),
        (
            [ring("SHM", None), SWAPPED],
            None,
            {},
            {},
            [row(0, 1, "SHM", None, "shm"), row(1, 0, "SHM", None, "shm", n=None)],
        ),
        # Without rings all connected edges count; one rank has none.
        (
            [ring("SHM", "SHM", None, rings=False)],
            None,
            {},
            {},
            [row(at, at + 1, "SHM", None, "shm") for at in (0, 1)],
        ),
        ([ring(None)], {"g01": "NV18"}, {}, {"local_ranks": {0: 0, 1: 1}}, []),
        # GPUs by NVML's index, then CUDA's, then the local rank; an index that two ranks of a host
        # have is none.
        (
            [comm_of(*BY_INDEX, edges=[edge(0, 1)])],
            INDICES,
            {},
            LOCAL,
            [row(0, 1, P2P, "PIX", "p2p_pcie", n=1)],
        ),
        (
            [comm_of(*BY_INDEX, edges=[edge(0, 2)])],
            INDICES,
            {},
            LOCAL,
            [row(0, 2, P2P, "PHB", "p2p_pcie", n=1)],
        ),
        (
            [comm_of(*SHARED, edges=[edge(0, 1), edge(1, 2)])],
            {"g01": "NV18"},
            {},
            {},
            [row(at, at + 1, P2P, None, "p2p", n=1) for at in (0, 1)],
        ),
        # A topology alone gives pairs that nothing says are used; nor does a log that does not say
        # who connects to whom.
        *(
            (
                comms,
                TRIANGLE,
                H200S,
                {"local_ranks": {0: 0, 1: 1, 2: 2}, "hosts": dict.fromkeys(range(3), "a")},
                [
                    row(0, 1, None, "NV18", "unknown", 450e9, SOURCE, **NO_LOG),
                    *(row(at, 2, None, "SYS", *UNUSED_5, **NO_LOG) for at in (0, 1)),
                ],
            )
            for comms in (None, [], [Communicator("0x1", 3, members("a", "a", "a"))])
        ),
        # Pairs are of one host.
        (
            None,
            {"g01": "NV18"},
            {},
            {"local_ranks": {0: 0, 1: 1, 2: 0, 3: 1, 4: None}, "hosts": dict(enumerate("aabbb"))},
            [row(at, at + 1, None, "NV18", "unknown", **NO_LOG) for at in (0, 2)],
        ),
        (None, None, H200S, {"local_ranks": {0: 0, 1: 1}}, []),
        (None, {"g01": "NV18"}, {}, {}, []),
    ],
)
def test_what_each_edge_crosses(comms, paths, names, options, expected):
    assert (
        rows(
            None if comms is None else one_log(*comms),
            paths and topology(**paths),
            names,
            **options,
        )
        == expected
    )


def test_a_row_of_a_gpu_that_is_no_column_is_no_path():
    topo = Topology((0,), {("GPU0", "GPU1"): "NV18", ("GPU1", "GPU0"): "NV18"})
    assert rows(one_log(ring(P2P, P2P)), topo)[0]["path"] is None


def test_the_communicator_is_chosen_by_ranks_then_order_then_processes():
    first, second, small = (
        ring("SHM", "SHM"),
        ring("SHM", "SHM", comm_id="0x2"),
        ring(None, comm_id="0x0"),
    )
    other = Communicator("0x3", 2, (CommMember(0, "a", 7),), {0: (0, 1)})
    cases = (
        ((small, first, second), [], "0x1"),
        ((first, other), [7, 8], "0x3"),
        ((first, other), [9], "0x1"),
    )
    for comms, pids, comm_id in cases:
        assert rows(one_log(*comms), None, pids=pids)[0]["comm_id"] == comm_id, comms


def test_a_smaller_communicator_uses_only_a_link_name_that_all_share():
    log, topo = one_log(ring(P2P, P2P)), topology(g01="NV4")
    mixed = {0: "NVIDIA A40", 1: "NVIDIA A40", 2: H200, 3: H200}
    for names, speed in ((dict.fromkeys(range(4), "NVIDIA A40"), 56.25e9), (mixed, None)):
        assert rows(log, topo, names, n_ranks=4)[0]["nominal_bytes_per_s"] == speed, names


def slowest_of(transports, paths=None, names=None, hosts=None, **options):
    log = transports and one_log(ring(*transports, hosts=hosts))
    return slowest(links(log, paths and topology(**paths), names or {}, **options)[0])


def test_shared_memory_although_there_is_nvlink(worded):
    log = read_nccl_logs([REAL / "ddp-4gpu-shm.nccl.log"])
    table, _ = links(log, read_topology(REAL / "topo-4gpu.txt"), dict.fromkeys(range(4), H200))
    slow = slowest(table)
    assert slow == SlowestLink("shm", 0, 1, pytest.approx(PCIE_5), slow.text, 4, 0, 4, True)
    worded(slow.text)
    found = [(one["transport"], one["n_channels"], one["path"]) for one in table.to_pylist()]
    assert found == [("SHM/direct/direct", 4, "NV18")] * 4


CUMEM = ["P2P/CUMEM"] * 3


@pytest.mark.parametrize(
    ("paths", "names", "expected"),
    [
        # The slowest kind, then the least bandwidth: NV2 of the A100 is 2 x 25 GB/s.
        (("NV18", "NV4", "NV2"), (H200, H200, "NVIDIA A100"), ("nvlink", 2, 0, 50e9, 1)),
        (
            ("PIX", "NV4", "NV2"),
            (H200, H200, "NVIDIA A100"),
            ("p2p_pcie", 0, 1, pytest.approx(PCIE_5), 1),
        ),
        # A bandwidth that one link of the kind lacks is not known.
        (("NV18", "NV18", "NV18"), (H200, H200, None), ("nvlink", 0, 1, None, 3)),
    ],
)
def test_which_link_is_the_slowest(paths, names, expected):
    link = slowest_of(
        CUMEM, dict(zip(("g01", "g12", "g02"), paths, strict=True)), dict(enumerate(names))
    )
    assert (
        link.kind,
        link.from_rank,
        link.to_rank,
        link.nominal_bytes_per_s,
        link.n_links,
    ) == expected


CARDS = ", ".join(f"NET/IB/{card}/GDRDMA" for card in range(8))


# Of many cards a few are named; one that is not direct makes the whole wait in host memory, named
# or not.
CROSSED = [
    ("P2P/MNNVL", "SYS"),
    ("P2P/IPC", "PHB"),
    ("SHM/direct/direct", "SYS"),
    ("direct shared memory", "NV2"),
    ("NET/IB/0/GDRDMA", "SYS"),
    ("NET/IB/0/GDRDMA, NET/IB/1", "NV4"),
    ("NET/Socket/0", "SYS"),
    ("CXL/0", "SYS"),
    (None, "NV18"),
    ("P2P/CUMEM", None),
    (None, None),
    (CARDS, None),
    (f"{CARDS}, NET/IB/8", None),
]
NV, NET = "P2P/CUMEM", "NET/IB/0"


# Edges are those that the text holds for, not all of the kind; without a log they are pairs.
EDGES = [
    (["SHM"] * 4, None),
    (["SHM"] * 2, None),
    ([NV, NV, NV, NET, NV, NV, NV, NET], None),
    ([NV, "SHM", NV], None),
    ([NV, "SHM", None], None),
    ([None, None, None], None),
    ([NV, "NET/IB/1", NET], None),
    ([P2P] * 4, {"g01": "PIX", "g12": "SYS", "g23": "PIX", "g30": "SYS"}),
    (None, TRIANGLE),
    (None, {"g01": "NV18"}),
]


def test_what_is_said_of_the_slowest_link(pinned):
    lines = [
        f"{words}, {path}: {slowest_of([words] * 2, path and {'g01': path}).text}"
        for words, path in CROSSED
    ]
    for transports, paths in EDGES:
        places = {
            gpu: gpu
            for gpu in range(3)
            if not transports and any(str(gpu) in pair for pair in paths)
        }
        lines.append(
            f"{transports}, {paths}: "
            f"{slowest_of(transports, paths, H200S, local_ranks=places).edges}"
        )
    pinned("names/links.txt", "\n".join([*lines, ""]))
    assert slowest_of(None) is None


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
    silent = NcclLog("2.28.9", (), {"NCCL_P2P_DISABLE": "1"})
    assert silent.of_run(pids, world_sizes) is silent  # without communicators it is of any run


def test_real_logs_name_the_processes_of_their_reports():
    log = read_nccl_logs([REAL / "ddp-2gpu.nccl.log"])
    assert sizes(log.of_run({862}, {4})) == [2]
    assert log.of_run({950, 961, 967, 957}, {4}) is None


@pytest.mark.parametrize(
    ("said", "is_on"), [((), None), ((None,), None), ((False, None), False), ((False, True), True)]
)
def test_one_communicator_over_nvlink_sharp_is_enough(said, is_on):
    comms = tuple(Communicator(f"0x{at}", 2, is_nvls_on=one) for at, one in enumerate(said))
    assert NcclLog(None, comms).facts.nvls is is_on


LOGGED = one_log(
    Communicator(
        "0x1", 2, (CommMember(0, "a", 1, nvml_device=2), CommMember(1, "a", 2, nvml_device=3))
    )
)
TWO_GPUS, FOUR_GPUS, AABB = {0: 0, 1: 1}, {0: 0, 1: 1, 2: 2, 3: 3}, {0: "a", 1: "a", 2: "b", 3: "b"}


@pytest.mark.parametrize(
    ("log", "pair", "n_ranks", "local_ranks", "hosts", "gpus"),
    [
        (None, "g01", 2, TWO_GPUS, {}, []),
        (None, "g01", 4, FOUR_GPUS, {}, [2, 3]),
        # Of two hosts with two GPUs each; and where every process sees only its own as GPU 5.
        (None, "g01", 4, {0: 0, 1: 1, 2: 0, 3: 1}, AABB, []),
        (None, "g01", 2, {0: 5, 1: 5}, {}, []),
        (None, "g01", 2, {0: None}, {}, []),
        (None, None, 2, {0: 9}, {}, []),
        # The log's indices count more than local ranks; of a communicator that does not span the
        # run, ranks have other numbers.
        (LOGGED, "g01", 2, TWO_GPUS, {}, [2, 3]),
        (LOGGED, "g23", 2, TWO_GPUS, {}, []),
        (LOGGED, "g23", 4, FOUR_GPUS, {}, []),
    ],
)
def test_a_topology_lacks_what_ranks_run_on(log, pair, n_ranks, local_ranks, hosts, gpus):
    topo = pair and topology(**{pair: "NV18"})
    assert links(log, topo, n_ranks=n_ranks, local_ranks=local_ranks, hosts=hosts)[1] == gpus
