"""Raw rates of the links of GPUs, to which per cent of counters refer.

The advertised rate of NVLink is lower than its raw rate: 450 GB/s for an H200, while 18 links of
26.5625 GB/s carry 478.125 GB/s. Counted bytes would be 5.5 % too low with it.
"""

from __future__ import annotations

import re

from msgspec import Struct


class LinkRates(Struct, frozen=True):
    """The raw rates of the links of one GPU, in one direction."""

    # None if the GPU can have different numbers of links.
    nvlink_bytes_per_s: int | None
    # Of 16 lanes, with the headers of packets.
    pcie_bytes_per_s: int | None

    def of_counter(self, name: str) -> int | None:
        """Return the rate of a counter, such as ``nvlink_rx`` or ``pcie_tx``."""
        if name.startswith("nvlink"):
            return self.nvlink_bytes_per_s
        return self.pcie_bytes_per_s


# 16 lanes of 8, 16 or 32 GT/s, of which 128 of 130 bits are data (PCI Express specification).
_PCIE_3 = 16 * 8_000_000_000 // 8 * 128 // 130
_PCIE_4 = 16 * 16_000_000_000 // 8 * 128 // 130
_PCIE_5 = 16 * 32_000_000_000 // 8 * 128 // 130
# Links x rate of a link, as `nvidia-smi nvlink --status` prints it: 25.781 GB/s on a V100, 25 GB/s
# on an A100, and 26.562 GB/s on an H100 or H200. The numbers of links are those of NVIDIA's data
# sheets of the SXM modules. Cards with bridges can have fewer links, so they are not here.
_NVLINK_2 = 6 * 25_781_250_000
_NVLINK_3 = 12 * 25_000_000_000
_NVLINK_4 = 18 * 26_562_500_000
_UNKNOWN = LinkRates(None, None)
_RATES_BY_MODEL = {
    r"(?:NVIDIA |Tesla )?V100-SXM[23]\b.*": LinkRates(_NVLINK_2, _PCIE_3),
    r"(?:NVIDIA )?A100-SXM4\b.*": LinkRates(_NVLINK_3, _PCIE_4),
    r"(?:NVIDIA )?A100(?:-PCIE|-PCI| 80GB PCIe)\b.*": LinkRates(None, _PCIE_4),
    r"(?:NVIDIA )?H100 80GB HBM3": LinkRates(_NVLINK_4, _PCIE_5),
    r"(?:NVIDIA )?H100 (?:PCIe|NVL)": LinkRates(None, _PCIE_5),
    r"(?:NVIDIA )?H200": LinkRates(_NVLINK_4, _PCIE_5),
    r"(?:NVIDIA )?H200 NVL": LinkRates(None, _PCIE_5),
}


def link_rates(model: str | None) -> LinkRates:
    """Return the rates of a GPU by its model. They are None if they are not known."""
    for pattern, rates in _RATES_BY_MODEL.items():
        if model and re.fullmatch(pattern, model):
            return rates
    return _UNKNOWN
