"""Which facts a report holds, or would hold if there had been anything to record."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOT_RECORDED", "Recorded"]


@dataclass(frozen=True)
class Recorded:
    """False means that there was something, and the report lacks it.

    Attributes
    ----------
    kernels, memcpy, memset
        The operations themselves.
    names
        What kernels are called, without which communication cannot be told from compute.
    kinds, sizes
        The kind of every copy, and the bytes of every device-to-device copy.
    """

    kernels: bool = True
    names: bool = True
    memcpy: bool = True
    memset: bool = True
    kinds: bool = True
    sizes: bool = True


# The problem that each lacking fact is.
NOT_RECORDED = {
    "kernels": "no-kernels",
    "names": "no-kernel-names",
    "memcpy": "no-memcpy",
    "memset": "no-memset",
    "kinds": "no-copy-kind",
    "sizes": "no-copy-bytes",
}
