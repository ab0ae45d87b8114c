"""The peak rates of GPUs by datatype, dense, with the data sheet that each is from.

A peak belongs to a GPU, a datatype, and dense matrices. NVIDIA prints most peaks of newer GPUs with
sparsity, which is twice the dense peak. Sums are in single precision, as in PyTorch: GeForce GPUs
have higher peaks with sums in half precision.
"""

import re

from msgspec import Struct

from nsyspipe.errors import OptionError, short_repr

# Datatypes of --peak. fp32 is that of CUDA cores, the others are those of tensor cores.
DATATYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
_FLOPS_PER_GFLOP = 10**9


class GpuPeaks(Struct, frozen=True, kw_only=True):
    """The dense peaks of one GPU model, in GFLOP/s. None if the GPU lacks the datatype."""

    # The whole name of the GPU as nsys records it. A part of a GPU (MIG) has another name.
    name: re.Pattern[str]
    fp32: int | None = None
    tf32: int | None = None
    bf16: int | None = None
    fp16: int | None = None
    fp8: int | None = None
    source: str


def _named(pattern: str) -> re.Pattern[str]:
    """Return the pattern of a name, with or without the maker."""
    return re.compile(rf"(?:NVIDIA )?{pattern}")


_AMPERE_SOURCE = "NVIDIA A100 Tensor Core GPU datasheet"
_GA102_SOURCE = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
_ADA_SOURCE = "NVIDIA Ada GPU Architecture whitepaper"
_HOPPER_SOURCE = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_VOLTA_SOURCE = "NVIDIA V100 Tensor Core GPU datasheet"
_GPUS = (
    GpuPeaks(
        name=_named(r"(?:Tesla )?V100-SXM[23]-\d+GB"),
        fp32=15_700,
        fp16=125_000,
        source=_VOLTA_SOURCE,
    ),
    GpuPeaks(
        name=_named(r"(?:Tesla )?V100-PCIE-\d+GB"), fp32=14_000, fp16=112_000, source=_VOLTA_SOURCE
    ),
    GpuPeaks(name=_named(r"(?:Tesla )?T4"), fp32=8_100, fp16=65_000, source="NVIDIA T4 datasheet"),
    GpuPeaks(
        name=_named(r"A100(?:-SXM4-\d+GB|-PCIE-\d+GB| 80GB PCIe)"),
        fp32=19_500,
        tf32=156_000,
        bf16=312_000,
        fp16=312_000,
        source=_AMPERE_SOURCE,
    ),
    GpuPeaks(
        name=_named("A30"),
        fp32=10_300,
        tf32=82_000,
        bf16=165_000,
        fp16=165_000,
        source="NVIDIA A30 Tensor Core GPU datasheet (the peaks without sparsity)",
    ),
    GpuPeaks(
        name=_named("A10"),
        fp32=31_200,
        tf32=62_500,
        bf16=125_000,
        fp16=125_000,
        source="NVIDIA A10 Tensor Core GPU datasheet (the peaks without sparsity)",
    ),
    GpuPeaks(
        name=_named("A40"),
        fp32=37_400,
        tf32=74_800,
        bf16=149_700,
        fp16=149_700,
        source="NVIDIA A40 datasheet",
    ),
    GpuPeaks(
        name=_named("(?:GeForce )?RTX 3090"),
        fp32=35_600,
        tf32=35_600,
        bf16=71_000,
        fp16=71_000,
        source=f"{_GA102_SOURCE} (with FP32 accumulation)",
    ),
    GpuPeaks(
        name=_named("(?:GeForce )?RTX 4090"),
        fp32=82_600,
        tf32=82_600,
        bf16=165_200,
        fp16=165_200,
        fp8=330_300,
        source=f"{_ADA_SOURCE} (with FP32 accumulation)",
    ),
    GpuPeaks(
        name=_named("L40S"),
        fp32=91_600,
        tf32=183_000,
        bf16=362_050,
        fp16=362_050,
        fp8=733_000,
        source="NVIDIA L40S datasheet",
    ),
    GpuPeaks(
        name=_named("L40"),
        fp32=90_500,
        tf32=90_500,
        bf16=181_050,
        fp16=181_050,
        fp8=362_000,
        source="NVIDIA L40 datasheet",
    ),
    GpuPeaks(
        name=_named("L4"),
        fp32=30_300,
        tf32=60_000,
        bf16=121_000,
        fp16=121_000,
        fp8=242_500,
        source="NVIDIA L4 datasheet (half of the peaks with sparsity)",
    ),
    GpuPeaks(
        name=_named(r"H100(?: SXM5?)?(?: 80GB HBM3)?"),
        fp32=66_900,
        tf32=494_700,
        bf16=989_400,
        fp16=989_400,
        fp8=1_978_900,
        source=_HOPPER_SOURCE,
    ),
    GpuPeaks(
        name=_named(r"H100 PCIe"),
        fp32=51_200,
        tf32=378_000,
        bf16=756_000,
        fp16=756_000,
        fp8=1_513_000,
        source=_HOPPER_SOURCE,
    ),
    GpuPeaks(
        name=_named(r"H(?:100|200) NVL"),
        fp32=60_000,
        tf32=417_500,
        bf16=835_500,
        fp16=835_500,
        fp8=1_670_500,
        source="NVIDIA H100 and H200 datasheets (half of the peaks with sparsity)",
    ),
    GpuPeaks(
        name=_named(r"H200(?: 141GB HBM3e)?"),
        fp32=66_900,
        tf32=494_700,
        bf16=989_400,
        fp16=989_400,
        fp8=1_978_900,
        source=f"{_HOPPER_SOURCE}. The NVIDIA H200 datasheet has the same peaks, rounded",
    ),
    GpuPeaks(
        name=_named(r"B200"),
        fp32=75_000,
        tf32=1_125_000,
        bf16=2_250_000,
        fp16=2_250_000,
        fp8=4_500_000,
        source=(
            "NVIDIA HGX B200 datasheet (an eighth of the board, half of the peaks with sparsity)"
        ),
    ),
)


def peaks_of(gpu_name: str | None) -> GpuPeaks | None:
    """Return the peaks of a GPU by the name that nsys records; None if it is not in the table."""
    if gpu_name is None:
        return None
    return next((gpu for gpu in _GPUS if gpu.name.fullmatch(gpu_name)), None)


def peak_flops_per_s(gpu_name: str | None, datatype: str) -> int | None:
    """Return the dense peak of a GPU for one of `DATATYPES`; None if it is not known."""
    if datatype not in DATATYPES:
        # A saved run may have any text in the column of the datatype.
        return None
    gpu = peaks_of(gpu_name)
    gflops: int | None = getattr(gpu, datatype, None)
    return None if gflops is None else gflops * _FLOPS_PER_GFLOP


def check_datatype(value: object) -> str | None:
    """Return the datatype of --peak in small letters, or None; an OptionError for others."""
    if value is None:
        return None
    datatype = str(value).lower()
    if datatype not in DATATYPES:
        problem = "is no datatype with a known peak"
        raise OptionError(f"--peak {short_repr(value)}", problem, fix=f"--peak {DATATYPES[2]}")
    return datatype
