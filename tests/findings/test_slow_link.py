"""Rule slow-link: what NCCL's log, the topology or the bandwidth that was reached says of the link, and its line."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from nsyspipe.analysis.links import LinkVerdict, SlowestLink
from nsyspipe.findings.slow_link import LACKING, judge_link, slow_link
from nsyspipe.model import schema
from nsyspipe.report import words
from tests.findings.make import (
    FIRES,
    NOT_JUDGED,
    case,
    collective,
    evidence,
    link,
    of,
    step,
    steps,
    threshold,
)

SHM = link("shm", "SHM/direct/direct", "NV18", nominal=63e9)
NVLINK = link("nvlink", "P2P/CUMEM", "NV18", nominal=450e9)
P2P = link("p2p", "P2P/CUMEM")
SOCKET = link("net", "NET/Socket/0")
H200 = ("NVIDIA H200",)
# NVLink of an H200 promises 450 GB/s; 15 % of that are 67.5 bytes per ns.


def run(
    *links, transfer=1000, hidden=0, gpu_names=H200, copied=0, per_ns=None, of_collective=(), **more
):
    """Return a run of two ranks whose all-reduce transfers for `transfer` ns, of steps of 5000.

    Its payload tells how many bytes per ns of 1000 ns go over the bus, or DDP copied so many bytes
    of gradients.
    """
    rows = steps(2, wall=5000, exposed=transfer - hidden, hidden=hidden, grad_copy_bytes=copied)
    sized = {} if per_ns is None else {"message_bytes": 16_000_000, "bus_bytes": 1000 * per_ns}
    met = collective(1, (0, 0), transfer, **sized | dict(of_collective))
    return evidence(rows, met, links=list(links) or None, gpu_names=gpu_names, **more)


def buckets(n_bytes):
    """Return three all-reduces, of which two are of closed buckets, 1 MiB each at least."""
    met = [row for seq in range(3) for row in collective(1, (0, 0), 300, seq=seq)]
    return evidence(
        steps(2, exposed=900, grad_copy_bytes=n_bytes),
        met,
        links=[SHM | {"nominal_bytes_per_s": None}],
    )


def beside(kind, transfer, copied=45_000):
    """Return a run of two ranks that all-reduce what they copied in 1000 ns, beside another collective."""
    met = [
        *collective(1, (0, 0), 1000),
        *collective(1, (2000, 2000), 2000 + transfer, seq=1, kind=kind),
    ]
    return evidence(
        steps(2, wall=5000, exposed=1000 + transfer, grad_copy_bytes=copied), met, gpu_names=H200
    )


# At 45 GB/s compute is slower by at most 1.6 x (0.03 + 0.47 x log10(45 / 30)).
MOST = 1.6 * (0.03 + 0.47 * math.log10(45 / 30))
# The ring of two hosts: NVLink inside each, InfiniBand between them.
TWO_HOSTS = NVLINK, link("net", "NET/IB/0/GDRDMA", edge=(1, 2))
SETTINGS = {"NCCL_ALGO": "Ring", "NCCL_SHM_DISABLE": "0", "NCCL_P2P_LEVEL": "LOC"}
OFF = {"NCCL_P2P_DISABLE": "1"}

UNKNOWN = link("unknown", None, "NV18")
BY_ENVIRONMENT = of(
    slow_link,
    case("P2P is off", run(environment=OFF), saving=1000, link_kind="shm"),
    case(
        "P2P is off, by a topology too", run(UNKNOWN, environment=OFF), saving=1000, link_kind="shm"
    ),
    case(
        "of some processes",
        run(environment={"NCCL_P2P_DISABLE": "1 | not set"}),
        saving=1000,
        nccl_settings={"NCCL_P2P_DISABLE": "1 | not set"},
    ),
    case("a bandwidth that is slow", run(per_ns=45, environment=OFF), saving=900, link_kind="shm"),
    case(
        "SHM is off too",
        run(environment=OFF | {"NCCL_SHM_DISABLE": "1"}),
        saving=1000,
        link_kind="net",
    ),
    # 67.5 bytes per ns are the least that NVLink gives: then the program has set it again.
    case("NVLink's bandwidth", run(per_ns=68, environment=OFF)),
    case("NCCL's log has another way", run(NVLINK, environment=OFF)),
    case("NCCL's log does not name it", run(environment=OFF, nccl_settings={}), NOT_JUDGED),
    case("P2P is on", run(environment={"NCCL_P2P_DISABLE": "0"}), NOT_JUDGED),
    case("between hosts", run(environment=OFF, n_hosts=2), NOT_JUDGED),
    *threshold(
        "5 % of the step", run(transfer=250, environment=OFF), run(transfer=249, environment=OFF)
    ),
)
# A link, whether NVLink is then assumed, and what else is unlike the other runs.
ASSUMED: list[tuple[dict[str, Any], bool | None, dict[str, Any]]] = [
    (SHM, None, {}),
    (SHM | {"path": None}, True, {}),
    (SHM | {"path": None}, None, {"gpu_names": ("NVIDIA A10 PCIe",)}),
    (SOCKET, None, {"n_hosts": 2}),
    (SOCKET, True, {}),
]
BY_LINK = of(
    slow_link,
    case("all that is exposed could go", run(SHM), saving=1000),
    *(
        case(
            f"the log is asked for where NCCL_DEBUG is {said}",
            run(per_ns=45, environment={"NCCL_DEBUG": said}),
            saving=900,
            is_conditional=True,
        )
        for said in ("INFO", "trace", "WARN")
    ),
    # A topology tells that NVLink is there; NCCL's log alone does not.
    *(
        case(
            f"NVLink assumed: {assumed}, of {one['kind']} by {one['path']}",
            run(one, **more),
            is_nvlink_assumed=assumed,
        )
        for one, assumed, more in ASSUMED
    ),
    # A tenth of what NVLink promises was reached: 100 of the 1000 ns would stay.
    case("NVLink would need a tenth", run(SHM, per_ns=45), saving=900),
    # These 100 fit under what hides 700.
    case("most is hidden", run(SHM, hidden=700, per_ns=45), saving=300 + 700 * MOST / (1 + MOST)),
    # Rank 0 waits 600 of its 1000 for rank 1: transfer 400.
    case(
        "waiting would not go",
        evidence(
            [step(0, exposed=1000, wait=600, wall=5000), step(1, exposed=400, wall=5000)],
            collective(1, (0, 600), 1000),
            links=[SHM],
        ),
        saving=400,
    ),
    *(
        case(f"{one['kind']} {one['transport']}", run(one), saving=1000, link_kind=one["kind"])
        for one in (
            link("p2p_pcie", "P2P/IPC", "SYS"),
            SOCKET,
            link("net", "NET/IB/0", "NV18"),
            link("unknown", None, "SYS"),
            link("unknown", "NEW/THING", "NODE"),
        )
    ),
    case(
        "the slowest edge counts",
        run(NVLINK, SHM | {"from_rank": 1, "to_rank": 0}),
        link_kind="shm",
    ),
    # SHM gives 63 bytes per ns: what carries 95 is no SHM, whatever the log says, and 94 may be.
    case("more than the link carries", run(SHM, per_ns=95)),
    *threshold("as much as that", run(SHM, per_ns=94), run(SHM, per_ns=95)),
    case("NVLink, even if little came of it", run(NVLINK, per_ns=1)),
    case("a network between hosts", run(*TWO_HOSTS, n_hosts=2), NOT_JUDGED),
    case("is all there is", run(*TWO_HOSTS, n_hosts=2, per_ns=45)),
    *threshold("5 % of step time", run(SHM, transfer=250), run(SHM, transfer=249)),
    case("one rank", evidence([step(exposed=500)], collective(1, (0,), 500), links=[SHM])),
    case("no communication", evidence(steps(2), links=[SHM])),
    case("direct access needs the topology", run(P2P), NOT_JUDGED),
    case("direct access, slow", run(P2P, per_ns=10), FIRES),
    # Peer to peer below a host bridge is the best there is without NVLink.
    *(
        case(
            f"{kind} over {path}", run(link(kind, "P2P/IPC" if kind == "p2p_pcie" else None, path))
        )
        for kind in ("p2p_pcie", "unknown")
        for path in ("PIX", "PXB", "PHB")
    ),
)
BY_SETTINGS = of(
    slow_link,
    case(
        "settings",
        run(SHM, nccl_settings=SETTINGS),
        nccl_settings={"NCCL_P2P_LEVEL": "LOC", "NCCL_SHM_DISABLE": "0"},
    ),
    case("no settings", run(SHM, nccl_settings={}), nccl_settings={}),
    *(
        case(
            f"switched off, {value}, {over}",
            run(one, nccl_settings={"NCCL_P2P_DISABLE": value}),
            link_kind=one["kind"],
            nccl_settings={"NCCL_P2P_DISABLE": value},
        )
        for one, over in [
            (SHM, "host memory"),
            (link("net", "NET/Socket/0", "NV18"), "a network"),
            (link("unknown", None, "SYS"), "something slower"),
        ]
        for value in ("1", "0 | 1")
    ),
    case(
        "left on",
        run(SHM, nccl_settings={"NCCL_P2P_DISABLE": "0"}),
        nccl_settings={"NCCL_P2P_DISABLE": "0"},
    ),
    case(
        "no way between hosts",
        run(SOCKET, n_hosts=2, nccl_settings=OFF),
        saving=None,
        link_kind="net",
    ),
    # Host memory inside each host, beside a network that cannot be avoided: of what goes there
    # NVLink saves nothing.
    case(
        "inside hosts",
        run(*TWO_HOSTS, SHM | {"from_rank": 2, "to_rank": 3}, n_hosts=2, nccl_settings=OFF),
        saving=None,
        link_kind="shm",
    ),
)
BY_BANDWIDTH = of(
    slow_link,
    *threshold("15 % of NVLink", run(per_ns=67.4), run(per_ns=67.5)),
    # 45 000 bytes of gradients per rank and 1000 ns; with two ranks busbw = algbw.
    case("bytes that were copied", run(copied=45_000), saving=900),
    # The topology alone says that NVLink is there: what is not known is why it is not used.
    case(
        "NVLink is there",
        run(link("unknown", None, "NV18"), copied=45_000),
        saving=900,
        is_conditional=None,
    ),
    case(
        "NVLink is there between some",
        run(
            link("unknown", None, "NV18"),
            link("unknown", None, "SYS") | {"to_rank": 2},
            copied=45_000,
        ),
        is_conditional=True,
        link_nominal_bytes_per_s=None,
    ),
    case(
        "whether NVLink is there was not recorded",
        run(copied=45_000),
        saving=900,
        is_conditional=True,
    ),
    # 45 000 bytes of each rank in 1000 ns: the others take 50 of 1050 ns, which is below a
    # twentieth, or 60.
    case("a metric is gathered", beside("all_gather", 50), busbw_bytes_per_s=45e9),
    case("buffers are broadcast", beside("broadcast", 50), busbw_bytes_per_s=45e9),
    case("much else", beside("all_gather", 60), NOT_JUDGED),
    case("as much as closed buckets hold", buckets(2 << 20), busbw_source="gradient copies"),
    case("less than they hold", buckets((2 << 20) - 1), busbw_source=None),
    # 2 x 3/4 of 40 bytes per ns.
    case(
        "of four ranks",
        evidence(
            steps(4, wall=5000, exposed=1000, grad_copy_bytes=40_000),
            collective(1, (0,) * 4, 1000),
            gpu_names=H200,
        ),
        busbw_bytes_per_s=60e9,
    ),
    # 2 x 1/2: each shares its gradients with one, whatever the world is.
    case(
        "of pairs of four ranks",
        evidence(
            steps(4, wall=5000, exposed=1000, grad_copy_bytes=40_000),
            collective(1, (0,) * 4, 1000, n_ranks=2),
            gpu_names=H200,
            world_size=4,
        ),
        busbw_bytes_per_s=40e9,
    ),
    case("ranks that may have come last are absent", run(world_size=4), NOT_JUDGED),
    case("between hosts", run(n_hosts=2, per_ns=10)),
    *(
        case(what, given, NOT_JUDGED)
        for what, given in {
            "no sizes": run(),
            "compressed, perhaps": run(copied=10_000, of_collective={"datatype": "bf16"}),
            "not gradients": run(copied=10_000, of_collective={"kind": "all_gather"}),
            "copies not recorded": run(copied=None),
            "not matched": run(copied=10_000, of_collective={"transfer_ns": None}),
            "a GPU without NVLink": run(gpu_names=("NVIDIA L4",), per_ns=1),
            "no GPU name": run(gpu_names=(), per_ns=1),
            "small messages": run(per_ns=1, of_collective={"message_bytes": 15_999_999}),
            "cards": run(per_ns=1, gpu_names=("NVIDIA A100-PCIE-40GB",)),
        }.items()
    ),
)

CASES = BY_LINK + BY_SETTINGS + BY_BANDWIDTH + BY_ENVIRONMENT


def verdict(*, nominal=63e9, text="a link", n_edges=4, **reached):
    edge = SlowestLink("shm", 3, 0, nominal, text, 2, 0, n_edges, is_of_ring=True)
    return LinkVerdict(True, True, False, text, (), {}, edge, **reached)


def link_text(link, codes=()):
    return words.link_text(
        SimpleNamespace(
            link=link,
            problem_rows=[{"code": code} for code in codes],
            counters=schema.COUNTERS.empty,
        )
    )


PAYLOAD = {"busbw_bytes_per_s": 25e9, "busbw_source": "payload"}
COPIES = {"busbw_bytes_per_s": 25e9, "busbw_source": "gradient copies"}
REACHED = {
    "measured, nominal known": (63e9, PAYLOAD),
    "estimated, nominal known": (63e9, COPIES),
    "estimated": (None, COPIES),
    "nominal alone": (63e9, {}),
    "no figure": (None, {}),
}


@pytest.mark.parametrize(("nominal", "reached"), REACHED.values(), ids=REACHED)
def test_what_is_measured_and_what_is_estimated(nominal, reached, worded):
    worded(link_text(verdict(nominal=nominal, **reached)))


@pytest.mark.parametrize("links", [(NVLINK,), (SHM, SOCKET)])
def test_bandwidth_within_hosts_is_no_limit_for_traffic_between_hosts(links):
    alone, across = (
        judge_link(run(*links[:1], n_hosts=1, per_ns=1)),
        judge_link(run(*links, n_hosts=2, per_ns=1)),
    )
    assert alone.slowest.nominal_bytes_per_s == links[0]["nominal_bytes_per_s"]
    assert across.slowest.nominal_bytes_per_s is None
    assert not judge_link(run(n_hosts=2, per_ns=1)).is_slow


def test_the_words_of_a_link_make_room_for_its_figures(worded):
    line = link_text(verdict(text=400 * "x", n_edges=128, **COPIES))
    worded(line)
    assert len(line) == 285


def test_that_a_log_is_of_other_processes_stands_in_the_line(worded):
    worded(link_text(verdict(**PAYLOAD), ["log-of-other-processes"]))


def test_nothing_is_said_of_a_link_that_is_not_known():
    assert link_text(None) is None
    assert link_text(LinkVerdict(None, False, False, "", (LACKING.reason,), {}, **COPIES)) is None
