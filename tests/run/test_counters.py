"""Hardware counters of built reports: the ranks that they belong to, and exact figures."""

import random
import re

import pytest

import nsyspipe
from nsyspipe.analysis.counted_steps import clocks_by_rank, counted_bus, counted_means
from nsyspipe.report.export import document
from nsyspipe.store.write import save
from tests.build.sampled import sampled_run
from tests.build.tools import codes, problem_of
from tests.build.trace import TraceBuilder

H200 = 4_000_000_000_000
SM, TENSOR = "SMs Active [Throughput %]", "Tensor Active [Throughput %]"
READ, WRITE = "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"
NVLINK = "NVLink {} {} User Data [Throughput %]"
PCIE_TX = "PCIe TX Throughput [Throughput %]"
CLOCK = "GPC Clock Frequency [MHz]"
PERIOD = 100_000
STEP = 10 * PERIOD
VERSIONS = ("3.11.1 2024.2.3", "3.20.3 2025.3.2")


def rank(number=0, *, gpu=None, version=VERSIONS[0], n_gpus=2, model="NVIDIA H200", session=10**18):
    """Return a rank of four steps: forward and backward of 300 us each, and an all-reduce of 200 us."""
    builder = TraceBuilder(version, pid=1000 + number)
    builder.env(RANK=number, WORLD_SIZE=2, LOCAL_RANK=number).session(session).host("node0")
    for each in range(n_gpus):
        place = {"uuid": f"uuid-{each}", "busLocation": f"0000:0{each}:00.0"}
        builder.gpu(each, model, memoryBandwidth=H200, **place)
    device = number if gpu is None else gpu
    for step in range(4):
        at = STEP * step
        builder.range(at, at + 900_000, f"step {step}")
        builder.range(at + 10, at + 50, "forward").range(at + 60, at + 160, "backward")
        builder.kernel(at + 1000, at + 301_000, launch=at + 20, device=device)
        builder.kernel(at + 301_000, at + 601_000, launch=at + 70, device=device)
        builder.nccl(at + 601_000, at + 801_000, launch=at + 80, device=device)
    return builder


def every(values, *, first=1000, n_steps=4):
    """Return samples of each step: a value per period, from the start of the window on."""
    samples = {}
    for place in range(n_steps * len(values)):
        samples[first + PERIOD * place] = values[place % len(values)]
    return samples


def sent(per_cent=50):
    """Return what a link sends: nothing, but in the two periods of the all-reduce."""
    return every([0] * 6 + [per_cent] * 2 + [0] * 2)


def load(tmp_path, *builders):
    paths = [builder.write(tmp_path / f"r_{at}.sqlite") for at, builder in enumerate(builders)]
    return nsyspipe.load(paths)


def rows_of(run, phase=None):
    return {
        (row["rank"], row["step"]): row
        for row in run.counters().to_pylist()
        if row["phase"] == phase
    }


@pytest.fixture(params=VERSIONS)
def counted(request):
    """Return a rank of both schemas with the counters of its own GPU."""
    builder = rank(version=request.param)
    builder.counter(SM, every([80] * 6 + [20] * 2 + [0] * 2))
    builder.counter(TENSOR, every([0] * 3 + [60] * 3 + [0] * 4))
    builder.counter(READ, every([25] * 10)).counter(WRITE, every([10] * 5 + [0] * 5))
    for direction in ("RX", "TX"):
        builder.counter(NVLINK.format(direction, "Requests"), sent())
        builder.counter(NVLINK.format(direction, "Responses"), every([0] * 10))
    builder.counter("NVLink TX Requests Protocol Data [Throughput %]", every([100] * 10))
    builder.counter(PCIE_TX, every([1] * 10)).counter(CLOCK, every([1_980_000_000] * 10))
    return builder


def test_figures_of_a_known_rate_are_exact(tmp_path, counted):
    run = load(tmp_path, counted)
    row = rows_of(run)[0, 1]
    # 80 % x 6 + 20 % x 2 of 10 periods, zeros included.
    assert row["sm_active_percent"] == 52
    assert row["tensor_active_percent"] == 18
    # 25 % of 4 TB/s over 1 ms, and 10 % over half of it.
    assert row["dram_read_bytes"] == 1_000_000_000
    assert row["dram_read_bytes_per_s"] == 10**12
    assert row["dram_write_bytes"] == 200_000_000
    # 50 % of 18 x 26.5625 GB/s in 0.2 of 1 ms. Protocol data does not count.
    assert row["nvlink_tx_bytes"] == row["nvlink_rx_bytes"] == 47_812_500
    assert row["nvlink_tx_percent"] == 10
    assert row["nvlink_tx_bytes_per_s"] == 47_812_500_000
    assert row["gpc_clock_hz"] == 1_980_000_000
    assert (row["window_ns"], row["sampled_ns"], row["sampled_ratio"]) == (STEP, STEP, 1)
    assert row["lag_ns"] == 0


def test_every_column_of_the_counters_of_a_step(tmp_path, counted):
    # Ten periods of 100 us, each with one sample per counter. Sums are over periods.
    links = {}
    for direction in ("rx", "tx"):
        # 50 % in 2 of 10 periods, of 18 links x 26.5625 GB/s = 478.125 GB/s
        links[f"nvlink_{direction}_percent"] = 10.0
        links[f"nvlink_{direction}_bytes"] = 47_812_500
        links[f"nvlink_{direction}_bytes_per_s"] = 47_812_500_000.0
    # 1 % of 32 GT/s x 16 lanes x 128 / 130 / 8 = 63.0153 GB/s over 1 ms
    pcie = {"percent": 1.0, "bytes": 630_153, "bytes_per_s": 630_153_000.0}
    assert rows_of(load(tmp_path, counted))[0, 1] == {
        "rank": 0,
        "step": 1,
        "phase": None,
        "window_ns": STEP,
        "sampled_ns": STEP,
        "sampled_ratio": 1.0,
        "lag_ns": 0,
        "sm_active_percent": (6 * 80 + 2 * 20) / 10,
        "tensor_active_percent": 3 * 60 / 10,
        "dram_read_percent": 25.0,
        "dram_read_bytes": H200 // 4 // 1000,
        "dram_read_bytes_per_s": H200 / 4,
        "dram_write_percent": 5 * 10 / 10,
        "dram_write_bytes": H200 // 20 // 1000,
        "dram_write_bytes_per_s": H200 / 20,
        **links,
        # Nothing counted what came over PCIe.
        **dict.fromkeys(("pcie_rx_percent", "pcie_rx_bytes", "pcie_rx_bytes_per_s")),
        **{f"pcie_tx_{name}": value for name, value in pcie.items()},
        "gpc_clock_hz": 1.98e9,
    }


def test_every_column_of_the_counters_in_the_timeline(tmp_path, counted):
    run = load(tmp_path, counted)
    rows = run.counter_bars().to_pylist()
    step = rows[0]["step"]
    # A sample per period: forward, backward without tensor cores, the all-reduce, nothing.
    shown = {0: (80, 0, 10, 0), 3: (80, 60, 10, 0), 6: (20, 0, 0, 50), 9: (0, 0, 0, 0)}
    assert len(rows) == 10
    for place, (sm_active, tensor_active, written, sent_percent) in shown.items():
        start_ns = 1000 + STEP * step + PERIOD * place
        assert rows[place] == {
            "step": step,
            "rank": 0,
            "start_ns": start_ns,
            "end_ns": start_ns + PERIOD,
            "sampled_ns": PERIOD,
            "sm_active_percent": sm_active,
            "tensor_active_percent": tensor_active,
            "dram_read_percent": 25,
            "dram_write_percent": written,
            "nvlink_rx_percent": sent_percent,
            "nvlink_tx_percent": sent_percent,
            # Nothing counted what came over PCIe.
            "pcie_rx_percent": None,
            "pcie_tx_percent": 1,
            "gpc_clock_hz": 1.98e9,
        }


def test_counters_of_the_timeline_have_the_lag_of_their_report(tmp_path):
    builder = rank()
    late = every([0] * 6 + [50] * 2 + [0] * 2, first=1000 - PERIOD)
    builder.counter(NVLINK.format("TX", "Requests"), late)
    rows = load(tmp_path, builder).counter_bars().to_pylist()
    start_ns = min(row["start_ns"] for row in rows)
    sent_from = [row["start_ns"] - start_ns for row in rows if row["nvlink_tx_percent"]]
    assert sent_from == [6 * PERIOD, 7 * PERIOD]


def test_a_saved_run_has_the_counters_of_its_timeline(tmp_path, counted):
    run = load(tmp_path, counted)
    save(run, tmp_path / "runs")
    saved = nsyspipe.load(tmp_path / "runs")
    assert saved.counter_bars().equals(run.counter_bars())
    assert saved.counter_bars(2).num_rows == 0
    assert run.counter_bars(2).num_rows == 10


def test_phases_have_the_samples_of_their_kernels(tmp_path, counted):
    run = load(tmp_path, counted)
    forward, backward = (rows_of(run, phase)[0, 2] for phase in ("forward", "backward"))
    assert (forward["window_ns"], backward["window_ns"]) == (300_000, 300_000)
    assert (forward["tensor_active_percent"], backward["tensor_active_percent"]) == (0, 60)
    assert (forward["sm_active_percent"], backward["sm_active_percent"]) == (80, 80)
    assert backward["nvlink_tx_bytes"] == 0


def test_rows_in_any_order_give_the_same_table(tmp_path, counted):
    expected = load(tmp_path, counted).counters()
    random.Random(3).shuffle(counted.rows["GPU_METRICS"])
    assert load(tmp_path, counted).counters().equals(expected)


def test_counters_of_other_gpus_of_the_host_go_to_their_ranks(tmp_path):
    first, second = rank(0), rank(1)
    first.counter(SM, every([10] * 10)).counter(SM, every([30] * 10), gpu=1)
    rows = rows_of(load(tmp_path, first, second))
    assert rows[0, 1]["sm_active_percent"] == 10
    assert rows[1, 1]["sm_active_percent"] == 30


def test_without_uuids_the_bus_location_of_one_host_identifies_a_gpu(tmp_path):
    first, second = rank(0), rank(1)
    first.counter(SM, every([10] * 10)).counter(SM, every([30] * 10), gpu=1)
    for row in second.rows["TARGET_INFO_GPU"]:
        row["uuid"] = ""
    assert rows_of(load(tmp_path, first, second))[1, 1]["sm_active_percent"] == 30


def test_another_host_with_the_same_bus_locations_has_no_counters(tmp_path):
    first, second = rank(0), rank(1)
    first.counter(SM, every([10] * 10)).counter(SM, every([30] * 10), gpu=1)
    for row in second.rows["TARGET_INFO_GPU"]:
        row["uuid"] = ""
    for row in second.rows["TARGET_INFO_SYSTEM_ENV"]:
        row["value"] = "node1"
    assert {number for number, _ in rows_of(load(tmp_path, first, second))} == {0}


def test_a_lag_is_found_by_communication_and_applied(tmp_path):
    builder = rank()
    late = every([0] * 6 + [50] * 2 + [0] * 2, first=1000 - PERIOD)
    builder.counter(NVLINK.format("TX", "Requests"), late)
    row = rows_of(load(tmp_path, builder))[0, 1]
    assert (row["lag_ns"], row["nvlink_tx_bytes"]) == (PERIOD, 47_812_500)


def test_a_gap_is_unsampled(tmp_path):
    builder = rank()
    samples = every([40] * 10)
    for at in range(1000 + STEP + 5 * PERIOD, 1000 + 2 * STEP, PERIOD):
        del samples[at]
    row = rows_of(load(tmp_path, builder.counter(SM, samples)))[0, 1]
    assert (row["sm_active_percent"], row["sampled_ratio"]) == (40, 0.5)


def test_a_step_without_samples_has_null_and_not_zero(tmp_path):
    builder = rank().counter(SM, every([40] * 10, n_steps=1))
    row = rows_of(load(tmp_path, builder))[0, 3]
    assert (row["sm_active_percent"], row["sampled_ns"]) == (None, 0)


def test_a_full_reading_of_an_idle_link_is_not_used(tmp_path):
    builder = rank().counter(SM, every([40] * 10))
    builder.counter(NVLINK.format("TX", "Requests"), every([100] * 10))
    run = load(tmp_path, builder)
    row = rows_of(run)[0, 1]
    assert (row["nvlink_tx_percent"], row["sm_active_percent"]) == (None, 40)
    assert "idle-link-full" in codes(run)


def test_an_unknown_gpu_has_per_cent_but_no_bytes(tmp_path):
    builder = rank(model="NVIDIA X1").counter(NVLINK.format("TX", "Requests"), sent())
    run = load(tmp_path, builder)
    row = rows_of(run)[0, 1]
    assert (row["nvlink_tx_percent"], row["nvlink_tx_bytes"]) == (10, None)
    assert "link-rate-unknown" in codes(run)


def test_impossible_values_are_clamped_and_said(tmp_path):
    samples = every([40] * 10) | {1000 + STEP: 2**62, 1000 + STEP + PERIOD: -5}
    run = load(tmp_path, rank().counter(SM, samples))
    # 100 + 0 + 8 x 40 in 10 periods.
    assert rows_of(run)[0, 1]["sm_active_percent"] == 42
    assert codes(run).count("counter-values-wrong") == 1


@pytest.mark.parametrize("at", [2**62, -(2**62)])
def test_impossible_times_are_left_out_and_said(tmp_path, at):
    run = load(tmp_path, rank().counter(SM, every([40] * 10) | {at: 7}))
    assert rows_of(run)[0, 1]["sm_active_percent"] == 40
    assert "counter-values-wrong" in codes(run)


def test_a_sample_that_is_wrong_in_two_ways_counts_once(tmp_path):
    # A sum up to the last time could overflow, so all samples are left out. The first one has also
    # more than 100 per cent.
    samples = every([40] * 10) | {1000: 200, 2**60: 40}
    run = load(tmp_path, rank().counter(SM, samples))
    message = problem_of(run, "counter-values-wrong")["message"]
    assert re.findall(r"[0-9]+ samples", message) == ["41 samples"]


def test_values_of_another_type_are_one_problem(tmp_path):
    builder = rank().counter(SM, every([40] * 10))
    builder.rows["GPU_METRICS"][3]["value"] = "<script>"
    run = load(tmp_path, builder)
    assert run.counters().num_rows == 0
    assert codes(run).count("counters-unreadable") == 1


def test_unknown_names_are_one_problem(tmp_path):
    run = load(tmp_path, rank().counter("Fan Speed [Throughput %]", every([40] * 10)))
    assert codes(run).count("counters-without-names") == 1


def test_counters_of_a_gpu_that_no_rank_uses_are_said(tmp_path):
    run = load(tmp_path, rank().counter(SM, every([40] * 10), gpu=1))
    assert "counters-of-unknown-gpu" in codes(run)


def test_a_report_without_counters_has_no_rows_and_no_problem(tmp_path):
    run = load(tmp_path, rank())
    assert run.counters().num_rows == 0
    assert not any("counter" in code for code in codes(run))


def test_a_saved_run_has_the_same_counters(tmp_path, counted):
    run = load(tmp_path, counted)
    save(run, tmp_path / "runs")
    assert nsyspipe.load(tmp_path / "runs").counters().equals(run.counters())


def collective(run, step):
    return next(row for row in run.collectives().to_pylist() if row["step"] == step)


def test_a_collective_with_three_samples_has_a_counted_bandwidth(tmp_path):
    builder = rank()
    for direction in ("RX", "TX"):
        # The all-reduce takes 200 us, here eight samples of 25 us.
        fine = {1000 + 25_000 * at: 50 if at % 40 in range(24, 32) else 0 for at in range(160)}
        builder.counter(NVLINK.format(direction, "Requests"), fine)
    row = collective(load(tmp_path, builder), 1)
    assert (row["counted_bytes_per_s"], row["counted_link"]) == (239_062_500_000, "nvlink")
    # Of one rank nothing is known of the bus.
    assert row["counted_ratio"] is None


def test_a_collective_with_two_samples_has_no_counted_bandwidth(tmp_path, counted):
    row = collective(load(tmp_path, counted), 1)
    assert (row["counted_bytes_per_s"], row["counted_link"]) == (None, None)


def test_without_traffic_on_nvlink_a_collective_is_counted_on_pcie(tmp_path):
    builder = rank()
    fine = {1000 + 25_000 * at: 50 if at % 40 in range(24, 32) else 0 for at in range(160)}
    for direction in ("RX", "TX"):
        builder.counter(NVLINK.format(direction, "Requests"), dict.fromkeys(fine, 0))
        builder.counter(f"PCIe {direction} Throughput [Throughput %]", fine)
    row = collective(load(tmp_path, builder), 1)
    # Half of 16 lanes x 32 GT/s x 128/130.
    assert row["counted_bytes_per_s"] == pytest.approx(31_507_692_307, rel=1e-9)
    assert row["counted_link"] == "pcie"


def two_ranks(*, clocks=(1_980_000_000, 1_980_000_000), per_cent=50):
    """Return two ranks, of which the first counts for both GPUs."""
    builders = [rank(0), rank(1)]
    for gpu, clock in enumerate(clocks):
        builders[0].counter(CLOCK, every([clock] * 10), gpu=gpu)
        for direction in ("RX", "TX"):
            name = NVLINK.format(direction, "Requests")
            builders[0].counter(name, sent(per_cent), gpu=gpu)
    return builders


def test_counted_bus_bandwidth_is_bytes_per_time_of_transfer(tmp_path):
    run = load(tmp_path, *two_ranks())
    bus = counted_bus(run.counters(), run.steps(), run.collectives())
    # 47 812 500 bytes in 200 us. Without payloads the derived one is not known.
    assert (bus.link, bus.bytes_per_step, bus.ratio) == ("nvlink", 47_812_500, None)
    assert bus.bytes_per_s == pytest.approx(47_812_500 / 200e-6)


def test_means_of_steps_count_zeros(tmp_path):
    run = load(tmp_path, *two_ranks())
    counted = counted_means(run.counters(), run.steps())
    # 50 % in 2 of 10 periods.
    assert counted.means["nvlink_tx_percent"] == 10
    assert counted.means["sm_active_percent"] is None


def test_clocks_are_of_each_rank(tmp_path):
    run = load(tmp_path, *two_ranks(clocks=(1_980_000_000, 1_200_000_000)))
    assert clocks_by_rank(run.counters(), run.steps()) == {0: 1_980_000_000, 1: 1_200_000_000}


def test_the_document_has_means_and_the_counted_bandwidth_with_its_ratio(tmp_path):
    found = document(sampled_run(tmp_path / "run", jobs=1))["counters"]
    # 50 % of 478.125 GB/s in 2 of 10 periods, where the message has 38 250 000 bytes, and a ring
    # of two ranks sends as many.
    assert found["counted_bytes_per_step"] == 47_812_500
    assert found["counted_ratio"] == 47_812_500 / 38_250_000
    assert found["counted_bytes_per_s"] == pytest.approx(47_812_500 / 200e-6)
    assert (found["counted_link"], found["sampled_ratio"]) == ("nvlink", 1)
    assert (found["sm_active_percent"], found["nvlink_tx_percent"]) == (52, 10)
    assert (found["tensor_active_percent"], found["pcie_rx_bytes_per_s"]) == (None, None)


def test_the_document_of_a_run_without_counters_says_so(tmp_path):
    assert document(load(tmp_path, rank()))["counters"] is None


def test_the_document_of_a_run_whose_links_carried_nothing_has_no_counted_bandwidth(tmp_path):
    found = document(load(tmp_path, rank().counter(SM, every([40] * 10))))["counters"]
    assert found["sm_active_percent"] == 40
    assert (found["counted_link"], found["counted_bytes_per_s"]) == (None, None)
