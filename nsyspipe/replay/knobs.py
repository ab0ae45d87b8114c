"""What can be changed: the knobs, and the links that there is a bandwidth for."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from nsyspipe.analysis.links import NAMED_LINKS, named_link
from nsyspipe.errors import OptionError

# No link between GPUs is slower.
_LEAST_BYTES_PER_S = 1e6
_GB = 1e9
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([kKmMgGtT]?)"
_FORM = re.compile(_NUMBER + r"B/?[sS]\s*")
# Networks are told in bits: 200Gb/s, 200Gbit/s, 200Gbps.
_BITS = re.compile(_NUMBER + r"(?:b/?[sS]|bps|[bB]its?/[sS])\s*")

LINKS = {link.name: link for link in NAMED_LINKS}
DTYPES = ("bf16", "fp16")


@dataclass(frozen=True)
class Knobs:
    """A combination of changes, as `answer.whatif` describes them; what is None or false stays as it is."""

    bandwidth_bytes_per_s: float | None = None
    link: str | None = None
    gradient_dtype: str | None = None
    bucket_mb: float | None = None
    no_wait: bool = False
    no_grad_copy: bool = False
    perfect_overlap: bool = False

    def __post_init__(self) -> None:
        if self.link is not None and self.bandwidth_bytes_per_s is not None:
            raise OptionError("--link and --bandwidth", "say the same thing twice", fix="give one")
        if self.link is not None and self.link not in LINKS:
            # None of them is offered: a link of nearly the same name is another link.
            raise OptionError(
                f"--link {self.link!r}",
                "is not known",
                found=", ".join("/".join((one.name, *one.gpus)) for one in LINKS.values()),
                fix="give the bus bandwidth that collectives reach over it: --bandwidth 300GB/s",
            )
        dtype = self.gradient_dtype
        if dtype is not None and dtype not in DTYPES:
            what = f"--gradient-dtype {dtype!r}"
            raise OptionError(what, "is not known", found=", ".join(DTYPES))
        _check_positive("--bandwidth", self.bandwidth_bytes_per_s)
        _check_positive("--bucket-mb", self.bucket_mb)

    def __bool__(self) -> bool:
        return bool(self.given)

    @property
    def given(self) -> dict[str, float | str | bool]:
        """What is changed, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, False)}

    @property
    def target_bytes_per_s(self) -> float | None:
        """The bandwidth asked for; None keeps the captured one."""
        return self.bandwidth_bytes_per_s if self.link is None else LINKS[self.link].bus_bytes_per_s

    @property
    def label(self) -> str:
        """The changes in the words of the options that make them."""
        words = {
            "bandwidth_bytes_per_s": f"bandwidth {(self.bandwidth_bytes_per_s or 0) / _GB:g} GB/s",
            "link": f"link {self.link}",
            "gradient_dtype": f"gradients as {self.gradient_dtype}",
            "bucket_mb": f"bucket_cap_mb={self.bucket_mb or 0:g}",
            "no_wait": "no waiting for late ranks",
            "no_grad_copy": "gradient_as_bucket_view=True",
            "perfect_overlap": "perfect overlap",
        }
        return ", ".join(words[name] for name in self.given)


def _check_positive(option: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise OptionError(f"{option} {value:g}", "is not a positive number")


def parse_bandwidth(text: str) -> float:
    """Return bytes per second of ``300GB/s``: k, M, G, T are powers of 1000, B is bytes.

    Raises
    ------
    OptionError
        If it is anything else, bits (b) too, or zero.
    """
    if bits := _BITS.fullmatch(text):
        value, unit = float(bits[1]), bits[2].upper().replace("K", "k")
        raise OptionError(
            f"--bandwidth {text!r}",
            "bits? it is asked for in bytes",
            fix=f"--bandwidth {value / 8:g}{unit}B/s, or {value:g}{unit}B/s if it was bytes",
        )
    found = _FORM.fullmatch(text)
    value = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if not 0 < value < float("inf"):
        raise OptionError(f"--bandwidth {text!r}", "is no bandwidth", fix="--bandwidth 300GB/s")
    return value


def knobs_of(
    *,
    bandwidth: float | str | None = None,
    link: str | None = None,
    gradient_bytes: float | None = None,
    **others: Any,  # noqa: ANN401 - other fields of Knobs
) -> Knobs:
    """Return the changes that `answer.whatif` was asked for.

    Raises
    ------
    OptionError
        If a value cannot be used, or values contradict each other.
    """
    _check_positive("--gradient-bytes", gradient_bytes)
    if isinstance(bandwidth, str):
        bandwidth = parse_bandwidth(bandwidth)
    elif bandwidth is not None and 0 < bandwidth < _LEAST_BYTES_PER_S:  # meant in another unit
        what, fix = f"bandwidth={bandwidth:g}", f'bandwidth="{bandwidth:g}GB/s"'
        raise OptionError(what, "is in bytes per second", fix=fix)
    named = None if link is None else named_link(link)
    return Knobs(bandwidth, link if named is None else named.name, **others)
