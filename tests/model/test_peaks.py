"""The peaks of GPUs against what their units do: multiprocessors, boost clock and FLOPs per clock."""

import pytest

from nsyspipe.model.peaks import peak_flops_per_s, peaks_of

# Name, multiprocessors, boost clock in MHz while the tensor cores work, and dense FLOPs of one
# multiprocessor per clock for 16-bit operands with sums in single precision.
UNITS = [
    ("Tesla V100-SXM2-16GB", 80, 1530, 1024),
    ("Tesla V100-PCIE-32GB", 80, 1370, 1024),
    ("Tesla T4", 40, 1590, 1024),
    ("NVIDIA A100-SXM4-80GB", 108, 1410, 2048),
    ("NVIDIA A100 80GB PCIe", 108, 1410, 2048),
    ("NVIDIA A30", 56, 1440, 2048),
    ("NVIDIA A10", 72, 1695, 1024),
    ("NVIDIA A40", 84, 1740, 1024),
    ("NVIDIA GeForce RTX 3090", 82, 1695, 512),
    ("NVIDIA GeForce RTX 4090", 128, 2520, 512),
    ("NVIDIA H100 80GB HBM3", 132, 1830, 4096),
    ("NVIDIA H100 PCIe", 114, 1620, 4096),
    ("NVIDIA H200", 132, 1830, 4096),
    ("NVIDIA B200", 148, 1860, 8192),
]
# What data sheets print with sparsity, in TFLOP/s, for TF32, 16 bits and FP8.
WITH_SPARSITY = [
    ("NVIDIA H100 NVL", 835, 1671, 3341),
    ("NVIDIA H200 NVL", 835, 1671, 3341),
    ("NVIDIA H100 PCIe", 756, 1513, 3026),
    ("NVIDIA H100 80GB HBM3", 989.4, 1978.9, 3957.8),
    ("NVIDIA B200", 2250, 4500, 9000),
]


@pytest.mark.parametrize(("name", "n_units", "clock_mhz", "flops_per_clock"), UNITS)
def test_the_peak_of_16_bits_is_what_the_units_can_do(name, n_units, clock_mhz, flops_per_clock):
    flops_per_s = n_units * clock_mhz * 10**6 * flops_per_clock
    assert peak_flops_per_s(name, "fp16") == pytest.approx(flops_per_s, rel=0.01)


@pytest.mark.parametrize(("name", "tf32", "sixteen_bits", "fp8"), WITH_SPARSITY)
def test_dense_peaks_are_half_of_those_with_sparsity(name, tf32, sixteen_bits, fp8):
    peaks = [peak_flops_per_s(name, datatype) for datatype in ("tf32", "bf16", "fp16", "fp8")]
    halves = [tera * 10**12 / 2 for tera in (tf32, sixteen_bits, sixteen_bits, fp8)]
    assert peaks == pytest.approx(halves, rel=0.001)


@pytest.mark.parametrize("name", ["NVIDIA RTX 6000 Ada Generation", "NVIDIA H200 MIG 1g.18gb", ""])
def test_gpus_without_a_known_source_and_parts_of_gpus_have_no_peaks(name):
    assert peaks_of(name) is None


@pytest.mark.parametrize("text", ["name", "source", "fp64", ""])
def test_a_text_of_a_saved_run_that_is_no_datatype_has_no_peak(text):
    assert peak_flops_per_s("NVIDIA H200", text) is None
