"""What data sheets promise of NVLink and PCIe, by GPU model; bytes per second and direction.

Data sheets count both directions together and call the sum bidirectional or total: half of it here. A
transfer reaches less, since packets have headers; the figure is an upper bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_GB = 1e9
# GT/s x 16 lanes x 128/130 (line code; 6.0: 242 of the 256 bytes of a flit) / 8 bits. PCI Express Base Specification
# 3.0 to 6.0.
_PCIE_X16 = {
    3: 8e9 * 16 * 128 / 130 / 8,
    4: 16e9 * 16 * 128 / 130 / 8,
    5: 32e9 * 16 * 128 / 130 / 8,
    6: 64e9 * 16 * 242 / 256 / 8,
}


@dataclass(frozen=True)
class Speed:
    """A nominal bandwidth, and in words what it is."""

    bytes_per_s: float
    source: str


@dataclass(frozen=True)
class _Gpu:
    """Links of a model: None where it has none, or where NVIDIA's sources differ."""

    words: str
    nvlink: int | None
    bytes_per_link_s: float
    n_links: int
    pcie: int | None


# NVIDIA's data sheets and architecture white papers of the models, total NVLink bandwidth in brackets. The
# first whose words stand in the name counts. B200 and its kin: PCIe 5 by the HGX, 6 by the Blackwell brief;
# in GH200 the CPU is reached over NVLink-C2C.
_GPUS = (
    _Gpu("P100", 1, 20 * _GB, 4, 3),  # 160 GB/s
    _Gpu("V100S?", 2, 25 * _GB, 6, 3),  # 300 GB/s
    _Gpu("Quadro RTX [68]000", 2, 25 * _GB, 2, 3),  # bridge, 100 GB/s
    _Gpu("A100X?", 3, 25 * _GB, 12, 4),  # 600 GB/s
    _Gpu("A800", 3, 25 * _GB, 8, 4),  # 400 GB/s
    _Gpu("A30", 3, 25 * _GB, 4, 4),  # bridge, 200 GB/s
    # Bridge, 112.5 GB/s: "Ampere GA102 GPU Architecture" has four links of 14.0625 GB/s.
    _Gpu("A40|RTX A(?:6000|5500|5000|4500)|RTX 3090(?: Ti)?", 3, 14.0625 * _GB, 4, 4),
    _Gpu("GH200", 4, 25 * _GB, 18, None),  # 900 GB/s
    _Gpu("H800", 4, 25 * _GB, 8, 5),  # 400 GB/s
    _Gpu("H100|H200|H20", 4, 25 * _GB, 18, 5),  # 900 GB/s; bridged cards have 12 links, 600 GB/s
    _Gpu("GB[23]00|B[123]00", 5, 50 * _GB, 18, None),  # 1.8 TB/s
    _Gpu("T4|Quadro RTX [45]000|TITAN RTX", None, 0.0, 0, 3),
    _Gpu("A10G?|L4|L20|L40S?|RTX 40[0-9]0|RTX 6000 Ada|RTX 5000 Ada", None, 0.0, 0, 4),
    _Gpu("RTX PRO 6000|RTX 50[0-9]0", None, 0.0, 0, 5),
)


@dataclass(frozen=True)
class NamedLink:
    """A link that can be asked about by name."""

    name: str  # for options
    gpus: tuple[str, ...]  # other names: the GPUs that have it
    # bus bandwidth (busbw of nccl-tests) that all-reduces of large messages reach over it
    bus_bytes_per_s: float
    # what its data sheet says, per direction; None for host memory
    nominal_bytes_per_s: float | None
    # whether it was measured; else the same part of the data sheet as of the NVLink that was
    is_measured: bool
    source: str  # where the figure is from

    @property
    def within(self) -> float:
        """What the bandwidth may be off by: what was measured lay within 8 %, a data sheet's part is rounder."""
        return 0.1 if self.is_measured else 0.2


# The part of NVLink 4's 450 GB/s (18 links x 25 GB/s and direction) that was measured, on four H200.
_REACHED = 0.78


def _of_data_sheet(name: str, rate: float, words: str, *gpus: str) -> NamedLink:
    source = f"{words} of the data sheet x {_REACHED:g}"
    return NamedLink(name, gpus, rate * _REACHED, rate, is_measured=False, source=source)


def _network(name: str, gbit: int) -> NamedLink:
    return _of_data_sheet(name, gbit / 8 * _GB, f"{gbit} Gb/s, one port per GPU,")


# NVLink as in `_GPUS`; InfiniBand Trade Association's roadmap, four lanes per port; RoCE by its Ethernet.
NAMED_LINKS = (
    _of_data_sheet("nvlink5", 900 * _GB, "18 x 50 GB/s", "b200"),
    NamedLink(
        "nvlink4",
        ("h100", "h200"),
        350 * _GB,
        450 * _GB,
        is_measured=True,
        source="4 x H200, NCCL ring, 0.6 to 1.2 GB: 347 to 356 GB/s",
    ),
    _of_data_sheet("nvlink3", 300 * _GB, "12 x 25 GB/s", "a100"),
    _of_data_sheet("nvlink2", 150 * _GB, "6 x 25 GB/s", "v100"),
    *(
        _of_data_sheet(f"pcie{generation}x16", rate, f"{rate / _GB:.1f} GB/s")
        for generation, rate in sorted(_PCIE_X16.items(), reverse=True)
    ),
    *(
        _network(f"infiniband-{speed}", gbit)
        for speed, gbit in (("xdr", 800), ("ndr", 400), ("hdr", 200), ("edr", 100))
    ),
    *(_network(f"roce-{gbit}", gbit) for gbit in (400, 200, 100)),
    NamedLink(
        "shm",
        (),
        25 * _GB,
        None,
        is_measured=True,
        source="2 and 4 x H200 through host memory: 24 to 27 GB/s",
    ),
)


def named_link(word: str) -> NamedLink | None:
    """Return the link of that name, or the NVLink of a GPU of that name; None where there is none.

    Examples
    --------
    >>> named_link("A100").name, named_link("roce-100").nominal_bytes_per_s
    ('nvlink3', 12500000000.0)
    """
    lowered = word.lower()
    return next((one for one in NAMED_LINKS if lowered in (one.name, *one.gpus)), None)


def _slower(names: Sequence[str | None], speed_of: Callable[[_Gpu, str], Speed | None]) -> Speed | None:
    """Return the least speed of some models, found by their names; None where one is not known."""
    speeds = []
    for name in names:
        found = ((gpu, re.search(rf"(?<![A-Za-z0-9])(?:{gpu.words})(?![A-Za-z0-9])", name or "")) for gpu in _GPUS)
        known = next(((gpu, match[0]) for gpu, match in found if match), None)
        speed = speed_of(*known) if known else None
        if speed is None:
            return None
        speeds.append(speed)
    return min(speeds, key=lambda speed: (speed.bytes_per_s, speed.source), default=None)


def nvlink_speed(names: Sequence[str | None], n_links: int | None = None) -> Speed | None:
    """Return the bandwidth of bonded NVLinks between two GPUs, by the slower model; None when one is not known or has none.

    Models are named as drivers name them; `n_links` is as ``NV#`` says, None for all of the model, as through a switch.
    """

    def speed(gpu: _Gpu, word: str) -> Speed | None:
        links = gpu.n_links if n_links is None else n_links
        source = f"NVLink {gpu.nvlink}, {links} x {gpu.bytes_per_link_s / _GB:g} GB/s ({word})"
        return Speed(links * gpu.bytes_per_link_s, source) if gpu.nvlink else None

    return _slower(names, speed)


def pcie_speed(names: Sequence[str | None]) -> Speed | None:
    """Return the bandwidth of 16 lanes of PCIe, by the slower model; None when a model is not known.

    A slot with fewer lanes, or an older host, gives less.
    """

    def speed(gpu: _Gpu, word: str) -> Speed | None:
        return Speed(_PCIE_X16[gpu.pcie], f"PCIe {gpu.pcie}.0 x16 ({word})") if gpu.pcie else None

    return _slower(names, speed)
