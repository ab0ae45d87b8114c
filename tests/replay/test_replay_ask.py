"""The replay against runs of which every time is known, worked out by hand; what can be asked, and in which words."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

import nsyspipe
from nsyspipe.errors import OptionError
from nsyspipe.replay.answer import Scenario, WhatIf, finding_of, menu_of_links, whatif
from nsyspipe.replay.knobs import LINKS, Knobs, knobs_of, parse_bandwidth
from nsyspipe.report import blocks
from nsyspipe.report.whatif import OF_REPLAYED, headline, menu, refusals, whatif_blocks
from tests.build.ddp_run import MIB, MS, US, Ddp
from tests.build.make_replay import OVERHEAD, SINGLE, STEP, WORK, first_of, only, refusal
from tests.conftest import REAL
from tests.golden.words import figures

pytestmark = pytest.mark.usefixtures("opened_once")

LATE, FAST = SINGLE.changed(late=(0, 20 * MS)), SINGLE.changed(transfer=(10 * MS,))
FOUR = SINGLE.changed(buckets=(1,) * 4, transfer=(20 * MS,) * 4)
ACCUMULATED = SINGLE.changed(n_micro_batches=3)
VIEW = SINGLE.changed(has_copies=False)
BYTES = 104 * MIB
HALF = (
    OVERHEAD + (80 * MS - OVERHEAD) / 2
)  # half of what the bytes take: twice the bandwidth, or two bytes for four
# Four buckets of 25 MiB: the first is ready at 15.1 ms and is beside work; from there on the link
# is busy.
FOUR_END = 15_100 * US + first_of(4) + 4 * OVERHEAD + (80 * MS - OVERHEAD)
# Of 10 ms beside 34.8 ms of work, which they slow by 3 % and 6.5 us per operation (14 in 34.8 ms):
# 10 ms x c / (1 + c).
SLOW = 0.03 + 14 * 6.5 / 34_800
# A transfer of four gradients, the last of 90 MiB of 120, alone takes 3/4 of it, after everything;
# gradients 0 to 2 fill the first bucket: ready at 25.03 ms and over by 45 ms, later than the last
# one is ready.
ONE_LARGE = SINGLE.changed(
    gradients=(10 * MIB, 10 * MIB, 10 * MIB, 90 * MIB), copy=10 * US, scale=10 * US
)
LARGE_LAST = 25_030 * US + first_of(4) + 2 * OVERHEAD + (80 * MS - OVERHEAD)

CASES = {
    "balanced ranks gain nothing": (SINGLE, {"no_wait": True}, STEP, US),
    "of two the faster stands for both": (LATE, {"no_wait": True}, STEP, US),
    "of four the second fastest, late by 1 ms, stands for all": (
        SINGLE.changed(n_ranks=4, late=(9 * MS, 0, MS, 30 * MS)),
        {"no_wait": True},
        STEP + MS,
        US,
    ),
    # Two ranks: bus bytes are the bytes.
    "a bus twice as fast": (SINGLE, {"bandwidth": 2 * BYTES / 0.080}, WORK + HALF, 10 * US),
    # Casts read and write twice what the copies do: 0.8 ms.
    "two bytes per element": (SINGLE, {"gradient_dtype": "bf16"}, WORK + HALF + 800 * US, US),
    "copies are gone": (SINGLE, {"no_grad_copy": True}, STEP - 400 * US, US),
    "copies of every micro-batch are gone": (
        ACCUMULATED,
        {"no_grad_copy": True},
        3 * (STEP - 4 * MS) + 4 * MS - 3 * 4 * 100 * US,
        0,
    ),
    "four buckets, the last one's copy, the optimizer": (
        SINGLE,
        {"bucket_mb": 25},
        FOUR_END + 100 * US + 4 * MS,
        US,
    ),
    "a bucket that holds all": (SINGLE, {"bucket_mb": 1000}, STEP, US),
    "four buckets and no copies": (
        SINGLE,
        {"bucket_mb": 25, "no_grad_copy": True},
        FOUR_END + 4 * MS,
        US,
    ),
    "80 ms on the link are more than the work": (SINGLE, {"perfect_overlap": True}, 80 * MS, 80),
    "overlap costs what communication slows": (
        FAST,
        {"perfect_overlap": True},
        WORK + SLOW / (1 + SLOW) * 10 * MS,
        20 * US,
    ),
    # Half the bytes: 30 us + 4.985 ms, of which 3 to 3.5 % slow the work, and twice what the copies
    # take on top of it.
    "overlap does not hide the casts": (
        FAST,
        {"perfect_overlap": True, "gradient_dtype": "bf16"},
        WORK + 800 * US + 0.0325 * 5_015 * US,
        0.0025 * 5_015 * US,
    ),
    "a large gradient that is ready last": (
        ONE_LARGE,
        {"bucket_mb": 25},
        LARGE_LAST + 90 * US + 4 * MS,
        3 * US,
    ),
    # Four of 0.5 ms are 104 MiB in 2 ms. Over a hundredth of it each takes 50 ms, the first from
    # 15.1 ms on. That the copies waited for one bucket each, the capture does not show: all of them
    # follow the last.
    "a slower link": (
        SINGLE.changed(buckets=(1,) * 4, transfer=(500 * US,) * 4),
        {"bandwidth": BYTES / 0.2},
        15_100 * US + 4 * 50 * MS + 400 * US + 4 * MS,
        100 * US,
    ),
    # Given bytes are spread by the kernels that scale; those that NCCL says are as good.
    "bytes as given": (VIEW, {"bucket_mb": 25, "gradient_bytes": BYTES}, FOUR_END + 4 * MS, US),
    "bytes that NCCL says": (
        VIEW.changed(has_payloads=True),
        {"bucket_mb": 25},
        FOUR_END + 4 * MS,
        US,
    ),
}


@pytest.mark.parametrize(("run", "changes", "expected", "within"), CASES.values(), ids=CASES)
def test_what_a_change_brings_is_what_is_worked_out(ask, run, changes, expected, within):
    assert only(ask(run, **changes)).step_time_ns == pytest.approx(expected, abs=within)


@pytest.mark.slow
def test_the_capture_its_limit_and_the_least_range_are_told(ask):
    found = ask(SINGLE, no_wait=True)
    assert (found.step_time_ns, found.n_steps) == (
        STEP,
        3,
    )  # of five: the first is skipped, the last is cut off
    assert found.limit_step_time_ns == pytest.approx(WORK, abs=US)
    assert found.identity_error_pct == pytest.approx(0, abs=1e-9)
    # Steps that are all equal, and nothing that is not known: 2 % for the model.
    assert (only(found).low_ns, only(found).high_ns) == pytest.approx(
        (0.98 * STEP, 1.02 * STEP), abs=US
    )
    assert ask(LATE, no_wait=True).step_time_ns == STEP + 20 * MS
    # Nothing is faster than without communication.
    assert only(ask(FAST, perfect_overlap=True)).low_ns == pytest.approx(WORK, abs=US)
    for run in (SINGLE.changed(transfer=(MS,)), SINGLE.changed(late=(0, MS))):
        found = ask(run)
        assert found.limit_step_time_ns, run
        for one in found.scenarios:
            if one.refused is None and one.step_time_ns >= found.limit_step_time_ns:
                assert one.low_ns >= found.limit_step_time_ns, one


@pytest.mark.slow
def test_the_link_that_nccl_says_it_uses_gives_what_it_gave(tmp_path):
    run, log = (
        SINGLE.changed(n_ranks=4, late=(0,) * 4).write(tmp_path),
        REAL / "logs" / "ddp-4gpu-shm.nccl.log",
    )
    by_log, without = (whatif(nsyspipe.load(run, nccl_log=log), link="shm") for log in (log, ()))
    assert only(by_log).step_time_ns == by_log.step_time_ns == STEP
    assert only(without).step_time_ns < STEP - MS


def test_only_the_recorded_link_is_no_change_where_another_is_as_fast(worded):
    same = [
        Scenario(
            link, link, {"link": link}, step_time_ns=9.0, low_ns=9.0, high_ns=9.0, mean_gain_ns=0.0
        )
        for link in ("shm", "pcie4x16", "roce-100")
    ]

    def notes(*kinds):
        links = pa.table({"kind": pa.array(kinds, pa.string())})
        run = SimpleNamespace(links=lambda: links)
        found = WhatIf("", "", 3, 9.0, None, None, None, (), (), run)
        return [str(menu(found, [one]).rows[0][0]) for one in same]

    # Of links of two kinds, or of a network, nothing says which is no change.
    nobody_knows = notes()
    assert notes("shm", "p2p_pcie") == notes("net") == nobody_knows
    worded(nobody_knows, "not known")
    worded(notes("shm", "shm"), "host memory")
    worded(notes("p2p_pcie"), "PCIe")


def test_a_link_is_its_bandwidth(ask, worded):
    by_link, by_rate = ask(SINGLE, link="shm"), ask(SINGLE, bandwidth="25GB/s")
    assert only(by_link).step_time_ns == only(by_rate).step_time_ns
    assert (
        only(by_link).high_ns == only(by_rate).high_ns
    )  # what was measured is as sure as a user, a data sheet less
    sheet = LINKS["roce-100"].bus_bytes_per_s
    assert only(ask(SINGLE, link="roce-100")).high_ns > only(ask(SINGLE, bandwidth=sheet)).high_ns
    worded(by_link.scenarios[0].assumptions[0])


@pytest.mark.parametrize(("link", "percent"), [("shm", "10"), ("roce-100", "20")])
def test_the_assumption_of_a_link_says_how_wrong_it_may_be(ask, link, percent):
    # Measured bandwidths are within 10 %, those of a data sheet within 20 %.
    first_assumption = only(ask(SINGLE, link=link)).assumptions[0]
    assert percent in figures(first_assumption)


def test_four_buckets_become_one(ask):
    # 20 ms each from 15.1 ms on; as one it begins at 30.4 ms and saves three overheads. That the
    # 15.3 ms beside communication were slowed by 3 %, and each of their six operations by 6.5 us,
    # is assumed.
    found = ask(FOUR, bucket_mb=1000)
    assert found.step_time_ns == 15_100 * US + 80 * MS + 400 * US + 4 * MS
    slowed = (0.03 * 15_300 * US + 6 * 6_500) / 1.03
    assert only(found).step_time_ns == pytest.approx(STEP - 3 * OVERHEAD - slowed, rel=0.001)
    assert only(found).high_ns > STEP


def test_changes_combine_and_are_named(ask, worded):
    found, label = (
        only(ask(SINGLE, bucket_mb=25, no_grad_copy=True)),
        "bucket_cap_mb=25, gradient_as_bucket_view=True",
    )
    assert (found.id, found.knobs, found.label) == (
        "custom",
        {"bucket_mb": 25, "no_grad_copy": True},
        label,
    )
    worded(only(ask(SINGLE, bucket_mb=25)).assumptions)


@pytest.mark.slow
def test_kernels_like_those_of_the_gradients_do_not_confuse(tmp_path):
    # A model may scale other things by the same kernel: here before each layer, for 7 us.
    class Confusing(Ddp):
        def _step(self, builders, step, free):
            for builder, at in zip(builders, free, strict=True):
                launch = step * 10 * MS + 500 * US
                builder.kernel(
                    at + 10 * MS + 1, at + 10 * MS + 7 * US, "scale_gradient", launch=launch
                )
            return super()._step(builders, step, free)

    paths = [
        kind(launch_every=100 * US).write(tmp_path / kind.__name__) for kind in (Ddp, Confusing)
    ]
    plain, confusing = (only(whatif(nsyspipe.load(path), bucket_mb=25)) for path in paths)
    assert plain.step_time_ns == pytest.approx(confusing.step_time_ns, rel=0.001)


def test_each_micro_batch_waits_for_its_own_collectives(ask):
    # One rank is late in all of them. A TB/s, which is a kB in a ns, leaves 109 us of each of the
    # three transfers.
    found = ask(ACCUMULATED.changed(late=(0, 3 * MS)), bandwidth=1e12)
    assert found.identity_error_pct < 0.01
    assert found.limit_step_time_ns == pytest.approx(3 * (WORK - 4 * MS + 3 * MS) + 4 * MS)
    moved = sum(ACCUMULATED.gradients) / 1000
    assert only(found).step_time_ns == pytest.approx(
        found.limit_step_time_ns + 3 * (OVERHEAD + moved), abs=US
    )


IS_SO = {
    "its buckets": (FOUR, {"bucket_mb": 25, "gradient_bytes": BYTES}, "109,051,904 bytes"),
    "its buckets, by kernels": (
        FOUR.changed(has_copies=False),
        {"bucket_mb": 26, "gradient_bytes": BYTES},
        "109,051,904 bytes",
    ),
    "its bandwidth": (
        FOUR,
        {"bandwidth": BYTES / 0.08, "gradient_bytes": BYTES},
        "109,051,904 bytes",
    ),
    # 104 MiB in 4.4 ms are 24.8 GB/s; through host memory 25 are usual.
    "its link": (SINGLE.changed(transfer=(4_400 * US,)), {"link": "shm"}, "24.78 GB/s"),
}


@pytest.mark.parametrize(("run", "changes", "figure"), IS_SO.values(), ids=IS_SO)
def test_what_a_run_has_already_changes_nothing(ask, run, changes, figure, worded):
    found = ask(run, **changes)
    assert only(found).step_time_ns == pytest.approx(found.step_time_ns, rel=1e-12)
    assert figure in only(found).assumptions[0]
    worded(only(found).assumptions)


def test_the_smallest_bucket_holds_one_gradient_and_very_many_are_refused(ask, worded):
    by_cap, one_each = (only(ask(SINGLE, bucket_mb=mib)).step_time_ns for mib in (1e-300, 25))
    assert by_cap == one_each
    run = SINGLE.changed(scales_alike=False, has_copies=False)
    reason = refusal(ask(run, bucket_mb=1e-7, gradient_bytes=BYTES))
    worded(reason)
    # So many would be, and are.
    assert {"512", "1"} <= figures(reason)


# As bf16 they may have been halved by a hook: twice as many.
@pytest.mark.parametrize(
    ("datatype", "gradients"),
    [("f32", ["27,262,976", "4"]), ("bf16", ["54,525,952", "2"]), ("any", [])],
    ids=["f32", "bf16", "any"],
)
def test_given_bytes_are_told_with_the_type_that_is_known(ask, datatype, gradients, worded):
    found = only(ask(VIEW.changed(datatype=datatype), no_wait=True, gradient_bytes=BYTES))
    # Bytes in all, gradients, and bytes of each.
    assert figures(found.assumptions[0]) == {"109,051,904", *gradients}
    worded(found.assumptions[0])


def test_the_spread_of_bytes_over_collectives_is_an_estimate(ask, worded):
    answers = ask(VIEW), ask(VIEW, gradient_bytes=BYTES)
    plain, by_bytes = ({one.id: one for one in answer.scenarios} for answer in answers)
    assert plain.keys() == by_bytes.keys()
    assert all(
        plain[name].step_time_ns == by_bytes[name].step_time_ns
        for name in ("no-wait", "gradient-bf16")
    )
    worded(only(ask(VIEW, bucket_mb=25, gradient_bytes=BYTES)).assumptions)


def test_bytes_that_no_link_carries_are_refused(ask, worded):
    # 104 MiB in 0.2 ms were 545 GB/s, and NVLink between two H200 gives 450.
    run = VIEW.changed(transfer=(200 * US,), datatype="bf16")
    with pytest.raises(OptionError, match="545 GB/s") as raised:
        ask(run, no_wait=True, gradient_bytes=BYTES)
    worded(raised.value.lines(), "too many")
    assert only(ask(run, no_wait=True, gradient_bytes=BYTES / 2)).step_time_ns
    # 1000 bytes in 0.2 ms are 5 MB/s: no network is as slow.
    with pytest.raises(OptionError, match=r"0\.005 GB/s") as raised:
        ask(run, no_wait=True, gradient_bytes=1000)
    worded(raised.value.lines(), "too few")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "begin"),
    [
        (SINGLE.changed(scales_alike=False), 10 * MS),
        # Not marked, backward is taken for the last two thirds of what leads up to it.
        (SINGLE.changed(scales_alike=False, has_phases=False), 30_400 * US / 3),
    ],
)
def test_gradients_that_were_not_seen_become_ready_evenly(ask, run, begin):
    # Of 104 MiB in 512 parts the first 124 fill a bucket of 25; from then on the link is busy. The
    # last of five buckets holds what is left, 16 parts; its copies begin before: they are as good
    # as over.
    end = (
        (begin + (30_400 * US - begin) * 124 / 512)
        + first_of(4)
        + 5 * OVERHEAD
        + (80 * MS - OVERHEAD)
    )
    found = only(ask(run, bucket_mb=25))
    assert found.step_time_ns == pytest.approx(end + 4 * MS, abs=150 * US)
    assert found.high_ns - found.low_ns > 5 * MS  # they may have been ready earlier, or later


@pytest.mark.parametrize("share", [0.91, 1.09])
def test_bytes_that_nearly_agree_with_the_capture_are_taken(ask, share):
    n_bytes = share * BYTES
    found = only(ask(SINGLE, no_wait=True, gradient_bytes=n_bytes))
    assert f"{n_bytes:,.0f}" in found.assumptions[0]


@pytest.mark.parametrize(
    ("run", "share"),
    [(SINGLE, 0.89), (SINGLE, 4), (VIEW.changed(has_payloads=True), 1.11)],
    ids=["less", "more", "more than NCCL says"],
)
def test_bytes_that_contradict_the_capture_are_refused(ask, run, share, worded):
    n_bytes = share * BYTES
    with pytest.raises(OptionError) as raised:
        ask(run, no_wait=True, gradient_bytes=n_bytes)
    assert f"{n_bytes:,.0f}" in raised.value.subject
    assert "109,051,904 bytes" in raised.value.problem
    worded(raised.value.lines())


def test_a_bandwidth_is_read():
    texts = ("300GB/s", "300 gB/s", "2.5TB/s", "900MBs", "1e9B/s", "12kB/s")
    assert [*map(parse_bandwidth, texts)] == [300e9, 300e9, 2.5e12, 900e6, 1e9, 12e3]


NO_BANDWIDTHS = ["", "fast", "300", "25GB", "-3GB/s", "0GB/s", "300GBps", "1e999GB/s", "GB/s"]
BITS = ["200Gb/s", "200gb/s", "200Gbit/s", "200Gbits/s", "200Gbps", "200 GBit/s"]


@pytest.mark.parametrize("text", NO_BANDWIDTHS + BITS)
def test_a_bad_bandwidth_is_refused_with_an_example(text, worded):
    with pytest.raises(OptionError) as raised:
        parse_bandwidth(text)
    # 200 Gbit are 25 GB.
    readings = {"25GB": {"25GB/s"}} | {bits: {"25GB/s", "200GB/s"} for bits in BITS}
    assert set(re.findall(r"\d+GB/s", raised.value.fix)) == readings.get(text, {"300GB/s"})
    worded(raised.value.lines())


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_dtype": "f64"},
        {"bucket_mb": 0.0},
        {"bucket_mb": float("nan")},
        {"bandwidth": -1.0},
        {"gradient_bytes": 0.0},
        {"gradient_bytes": float("inf")},
        {"link": "shm", "bandwidth": 1e9},
    ],
)
def test_what_cannot_be_used_is_refused(changes):
    with pytest.raises(OptionError):
        knobs_of(**changes)


OF_FLAGS = {"gradient_dtype": "bf16", "no_grad_copy": True, "perfect_overlap": True}
GIVEN = {
    "nothing": ({"gradient_bytes": 5}, {}),
    "buckets": ({"bucket_mb": 25, "no_wait": True}, {"bucket_mb": 25, "no_wait": True}),
    "a bandwidth": (
        {"bandwidth": "2.5GB/s", **OF_FLAGS},
        {"bandwidth_bytes_per_s": 2.5e9, **OF_FLAGS},
    ),
    "a link": ({"link": "shm", "bucket_mb": 0.5}, {"link": "shm", "bucket_mb": 0.5}),
}


@pytest.mark.parametrize(("changes", "given"), GIVEN.values(), ids=GIVEN)
def test_given_holds_only_changed_options(changes, given, worded):
    asked = knobs_of(**changes)
    assert (asked.given, bool(asked)) == (given, bool(given))
    worded(asked.label)


@pytest.mark.parametrize(
    ("word", "link", "rate"),
    [
        ("V100", "nvlink2", 150),
        ("a100", "nvlink3", 300),
        ("H100", "nvlink4", 450),
        ("h200", "nvlink4", 450),
        ("b200", "nvlink5", 900),
        ("pcie3x16", "pcie3x16", 15.75),
        ("pcie6x16", "pcie6x16", 121),
        ("InfiniBand-EDR", "infiniband-edr", 12.5),
        ("infiniband-xdr", "infiniband-xdr", 100),
        ("roce-100", "roce-100", 12.5),
        ("roce-400", "roce-400", 50),
    ],
)
def test_links_are_known_by_their_names_and_those_of_gpus(word, link, rate):
    assert knobs_of(link=word).link == link
    assert LINKS[link].nominal_bytes_per_s == pytest.approx(rate * 1e9, rel=0.001)
    assert LINKS[link].bus_bytes_per_s < LINKS[link].nominal_bytes_per_s


def test_an_unknown_link_or_unit_is_answered_with_the_general_form(worded):
    with pytest.raises(OptionError) as raised:
        knobs_of(link="carrier-pigeon")
    worded(raised.value.lines(), "a link")
    assert ("--bandwidth" in raised.value.fix, "nvlink3 (A100)" in raised.value.found) == (
        True,
        True,
    )
    with pytest.raises(OptionError) as raised:
        knobs_of(bandwidth=300)  # meant in GB/s
    assert 'bandwidth="300GB/s"' in raised.value.fix
    worded(raised.value.lines(), "a unit")
    with pytest.raises(OptionError):
        knobs_of(bandwidth=999_999)
    assert knobs_of(bandwidth=1e6).bandwidth_bytes_per_s == 1e6  # no link is slower


def test_every_link_says_where_its_figure_is_from():
    assert all(link.source and link.bus_bytes_per_s > 0 for link in LINKS.values())
    assert {name for name, link in LINKS.items() if link.is_measured} == {"nvlink4", "shm"}


# --- the menu -------------------------------------------------------------------------------------
IDS = {f"link-{name}" for name in ("nvlink4", "pcie5x16", "pcie4x16", "shm")}  # of an H200
IDS |= {"bucket-25", "bucket-100", "no-grad-copy", "gradient-bf16", "no-wait", "perfect-overlap"}


def test_it_has_every_change_the_largest_gain_first_and_what_is_refused_last(ask):
    found = ask(SINGLE)
    assert {one.id for one in found.scenarios} == IDS
    gains = [one.gain_pct for one in found.scenarios]
    assert gains == sorted(gains, reverse=True)
    for name in ("id", "step_time_ns"):
        assert found.table()[name].to_pylist() == [getattr(one, name) for one in found.scenarios], (
            name
        )
    refused = [one.refused is not None for one in ask(VIEW).scenarios]
    assert refused == sorted(refused)
    assert any(refused)


@pytest.mark.parametrize(
    ("gpus", "nvlinks"),
    [
        (["NVIDIA H200"], {"nvlink4"}),
        (["NVIDIA A100-SXM4-80GB"], {"nvlink3"}),
        (["NVIDIA B200"], {"nvlink5"}),
        (["NVIDIA B200", "NVIDIA H200"], {"nvlink4"}),  # the slower model decides
        (["NVIDIA L4"], set()),
        (["a model of next year"], {"nvlink4", "nvlink5"}),
        ([], {"nvlink4", "nvlink5"}),
    ],
)
def test_a_menu_asks_about_the_nvlink_of_the_gpus(gpus, nvlinks):
    asked = {change.link for change in menu_of_links(gpus).values()}
    assert asked == nvlinks | {"pcie5x16", "pcie4x16", "shm"}


def test_few_steps_are_a_warning_and_enough_are_none(ask, worded):
    found = ask(SINGLE.changed(n_steps=4), no_wait=True)
    (row,) = [one for one in found.problems if one["code"] == "few-steps-to-replay"]
    assert row["severity"] == "warning"
    # Of four steps the first is skipped, the last is cut off.
    assert "2" in figures(row["message"])
    worded([row["message"], row["fix"]])
    assert "few-steps-to-replay" not in [one["code"] for one in ask(SINGLE, no_wait=True).problems]


def test_a_change_names_the_finding_that_advises_it_and_its_bound(ask, loaded):
    by_id = {one.id: one for one in ask(SINGLE).scenarios}
    savings = {
        row["id"]: row["saving_ns_per_step"] for row in loaded(SINGLE).findings().to_pylist()
    }
    # Four copies in a row may be of anything, and no rank is late.
    named = {
        "bucket-25": "single-bucket",
        "perfect-overlap": "comm-bound",
        "no-grad-copy": None,
        "no-wait": None,
    }
    for name, finding in named.items():
        assert (by_id[name].finding, by_id[name].finding_saving_ns) == (
            finding,
            savings.get(finding),
        ), name
    assert by_id["perfect-overlap"].finding_saving_ns == pytest.approx(
        80 * MS
    )  # of each step 80 ms are exposed
    # What is refused names it too; several changes answer none.
    (refused,) = ask(VIEW.changed(datatype="bf16"), bucket_mb=25).scenarios
    assert (refused.refused is not None, refused.finding) == (True, "single-bucket")
    (several,) = ask(SINGLE, bucket_mb=25, no_grad_copy=True).scenarios
    assert (several.finding, several.finding_saving_ns) == (None, None)


def test_findings_are_listed_under_a_heading_of_replayed_ones(ask, loaded):
    run = loaded(SINGLE)
    said = [*whatif_blocks(ask(SINGLE), run)]
    place = next(
        number for number, one in enumerate(said) if one == blocks.Heading(OF_REPLAYED, "dim")
    )
    listed = next(one for one in said[place:] if isinstance(one, blocks.Items)).texts
    replayed = {
        row["id"] for row in run.findings().to_pylist() if "replay_step_time_ns" in row["evidence"]
    }
    assert {item.partition(":")[0] for item in listed} == replayed
    assert len(OF_REPLAYED) < 80  # one line in the narrowest terminal


@pytest.mark.parametrize(
    ("knobs", "finding"),
    [
        # The finding speaks of 450 GB/s.
        (Knobs(link="nvlink4"), "slow-link"),
        (Knobs(link="nvlink5"), None),
        (Knobs(bandwidth_bytes_per_s=100e9), "slow-link"),
        (Knobs(bucket_mb=100), "too-many-buckets"),
        (Knobs(no_wait=True), None),
        (Knobs(), None),
    ],
)
def test_it_is_the_rule_that_fired(knobs, finding):
    assert finding_of(knobs, {"slow-link", "too-many-buckets"}, 450e9) == finding


# --- the sentence that an answer begins with ------------------------------------------------------
def scenario(name, step, low, high, **knobs):
    return Scenario(
        name, name, knobs, step * MS, low * MS, high * MS, 1e9 / (step * MS), 100.0 - step
    )


def answer(*scenarios):
    """Return an answer for a step of 100 ms: a predicted ms is a per cent."""
    return WhatIf("id", "run", 5, 100.0 * MS, 80.0 * MS, 20.0 * MS, 0.0, scenarios, ())


CLEAR, LINK = (
    scenario("b", 95, 94, 96),
    replace(scenario("link x", 80, 79, 81, link="x"), link_place="elsewhere"),
)


OF_ROLE = [
    scenario(f"link {link}", 80, 79, 81, link=link, role="data") for link in ("pcie", "nvlink4")
]
PCIE, NVLINK = (replace(one, link_place="unknown") for one in OF_ROLE)
LIMIT = scenario("perfect-overlap", 70, 69, 71, perfect_overlap=True)
NOTHING = Scenario("a", "a", {}, refused_in_options="nothing to see", refused="nothing to see")
# What is worked out of a step of 100 ms: the predicted step in ms, its range, and the gain in %.
HEADLINES = {
    "the larger of two": (
        (scenario("a", 90, 88, 93), CLEAR),
        ["100", "90.0", "88.0", "93.0", "10.0"],
    ),
    # A setting comes before another machine, which is none.
    "a setting before another machine": ((LINK, CLEAR), ["95.0", "94.0", "96.0", "5.0", "20.0"]),
    "another machine alone": ((LINK, scenario("b", 99, 97, 103)), ["20.0"]),
    "a link that may be there": ((PCIE,), ["20.0"]),
    "NVLink that may be there": ((NVLINK,), ["20.0"]),
    # Perfect overlap is a limit and no change.
    "no limit": ((LIMIT, CLEAR), ["95.0", "94.0", "96.0", "5.0"]),
    # A range with the captured time in it is no clear gain, a loss none.
    "a range about nothing": ((scenario("a", 98, 95, 101),), []),
    "a loss": ((scenario("a", 120, 110, 130),), []),
    "all is refused": ((NOTHING, NOTHING), ["20.0"]),
    # Of a link that these GPUs have nothing is said.
    "a link that is there": (
        (replace(LINK, link_place="here"), CLEAR),
        ["80.0", "79.0", "81.0", "20.0"],
    ),
}


@pytest.mark.parametrize(("scenarios", "expected"), HEADLINES.values(), ids=HEADLINES)
def test_the_largest_clear_gain_leads(scenarios, expected, worded):
    text = headline(answer(*scenarios))
    worded(text)
    assert set(expected) <= figures(text)


def refused(name, why):
    return Scenario(name, name, {}, refused=why, refused_in_options=why)


def test_the_reason_that_the_headline_gives_is_not_given_again():
    found = answer(refused("a", "rare"), refused("b", "usual"), refused("c", "usual"))
    assert "usual" in headline(found)
    assert [one.partition(":")[0] for one in refusals(found)] == ["b, c", "a"]
    assert ["usual" in one for one in refusals(found)] == [False, False]
    assert "rare" in refusals(found)[1]
    # Of one reason the headline says all; where there is an answer it says none.
    assert refusals(answer(refused("b", "usual"), refused("c", "usual"))) == []
    assert refusals(answer(CLEAR, refused("c", "usual"))) == ["c: usual"]


def test_a_gain_that_is_not_clear_is_said_to_be_so(worded):
    found = answer(scenario("a", 98, 95, 101, no_wait=True))
    *_, saved = menu(found, found.scenarios, is_verbose=False).rows[-1]
    worded(saved)


COMBINED = {
    "a loss": (scenario("custom", 120, 110, 130), ["120", "110", "130", "20.0"]),
    "less, perhaps": (scenario("custom", 99, 95, 103), ["99.0", "95.0", "103"]),
    "more, perhaps": (scenario("custom", 101, 97, 105), ["101", "97.0", "105"]),
}


@pytest.mark.parametrize(("one", "expected"), COMBINED.values(), ids=COMBINED)
def test_a_combination_is_told_with_its_range(one, expected, worded):
    text = headline(answer(one))
    worded(text)
    assert set(expected) <= figures(text)
