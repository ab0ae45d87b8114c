"""What can be changed: the knobs, the links that there is a bandwidth for, and the finding that each change answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from nsyspipe.analysis.link_speeds import NAMED_LINKS, named_link
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.run.run import Run


# No link between GPUs is slower.
_LEAST_BYTES_PER_S = 1e6
_GB = 1e9
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([kKmMgGtT]?)"
_FORM = re.compile(_NUMBER + r"B/?[sS]\s*")
# Networks are told in bits: 200Gb/s, 200Gbit/s, 200Gbps.
_BITS = re.compile(_NUMBER + r"(?:b/?[sS]|bps|[bB]its?/[sS])\s*")


LINKS = {link.name: link for link in NAMED_LINKS}
# Those of one machine that a menu shows.
ADVISED_LINKS = tuple(name for name in LINKS if name.startswith(("nvlink", "pcie")))
MENU_LINKS = ("nvlink5", "nvlink4", "pcie5x16", "pcie4x16", "shm")
DTYPES = ("bf16", "fp16")


@dataclass(frozen=True)
class Knobs:
    """A combination of changes; what is None or false stays as it is.

    Attributes
    ----------
    bandwidth_bytes_per_s
        Bus bandwidth that collectives reach (busbw of nccl-tests).
    link
        One of `LINKS`, instead of a bandwidth.
    gradient_dtype
        ``bf16`` or ``fp16``: what gradients are sent as.
    bucket_mb
        DDP's ``bucket_cap_mb``, MiB.
    no_wait
        No rank arrives later than the others.
    no_grad_copy
        ``gradient_as_bucket_view=True``: no copies from the buckets to the gradients.
    perfect_overlap
        All communication beside compute.
    """

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
        _check_word("--gradient-dtype", self.gradient_dtype, DTYPES)
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
        if self.link is not None:
            return LINKS[self.link].bus_bytes_per_s
        return self.bandwidth_bytes_per_s

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


def _check_word(option: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise OptionError(f"{option} {value!r}", "is not known", found=", ".join(known))


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


def _bandwidth(given: float | str | None) -> float | None:
    """Return bytes per second; a number so small was meant in another unit."""
    if given is None:
        return None
    if isinstance(given, str):
        return parse_bandwidth(given)
    if 0 < given < _LEAST_BYTES_PER_S:
        raise OptionError(
            f"bandwidth={given:g}", "is in bytes per second", fix=f'bandwidth="{given:g}GB/s"'
        )
    return given


def knobs_of(
    *,
    bandwidth: float | str | None = None,
    gradient_bytes: float | None = None,
    link: str | None = None,
    gradient_dtype: str | None = None,
    bucket_mb: float | None = None,
    no_wait: bool = False,
    no_grad_copy: bool = False,
    perfect_overlap: bool = False,
) -> Knobs:
    """Return the changes that `answer.whatif` was asked for.

    Raises
    ------
    OptionError
        If a value cannot be used, or values contradict each other.
    """
    _check_positive("--gradient-bytes", gradient_bytes)
    named = None if link is None else named_link(link)
    return Knobs(
        bandwidth_bytes_per_s=_bandwidth(bandwidth),
        link=link if named is None else named.name,
        gradient_dtype=gradient_dtype,
        bucket_mb=bucket_mb,
        no_wait=no_wait,
        no_grad_copy=no_grad_copy,
        perfect_overlap=perfect_overlap,
    )


# Which finding of ``analyze`` a change answers, and what that finding said it could bring at most.


# By rule: the change that it advises. Which link slow-link means, its evidence says.
ADVICE = {
    "comm-bound": Knobs(perfect_overlap=True),
    "single-bucket": Knobs(bucket_mb=25),
    "too-many-buckets": Knobs(bucket_mb=100),
    "grad-copy": Knobs(no_grad_copy=True),
    "compress-gradients": Knobs(gradient_dtype="bf16"),
    "straggler": Knobs(no_wait=True),
}
_OF_LINKS = ("bandwidth_bytes_per_s", "link")


@dataclass(frozen=True)
class Bound:
    """What a finding says could be gained.

    Attributes
    ----------
    saving_ns
        At most, per step; None where it has no bound.
    link_bytes_per_s
        The fastest link that it speaks of; None where it speaks of none.
    """

    saving_ns: float | None
    link_bytes_per_s: float | None = None


def bounds_of(run: Run) -> dict[str, Bound]:
    """Return the bound of each finding of a run by its id; source: `schema.FINDINGS`."""
    table = run.judged_findings()
    columns = (table[name].to_pylist() for name in ("id", "saving_ns_per_step", "evidence"))
    return {
        name: Bound(saving, json.loads(evidence).get("nvlink_nominal_bytes_per_s"))
        for name, saving, evidence in zip(*columns, strict=True)
    }


def finding_of(knobs: Knobs, bounds: Mapping[str, Bound]) -> str | None:
    """Return the id of the finding that advises a change; None for several changes, or where no such rule fired.

    A link that is faster than those the finding speaks of is none of its.

    Parameters
    ----------
    bounds
        Those of `bounds_of`.
    """
    given = list(knobs.given)
    if len(given) != 1:
        return None
    found = next((one for one in _advising(given[0]) if one in bounds), None)
    target = knobs.target_bytes_per_s
    fastest = None if found is None else bounds[found].link_bytes_per_s
    is_beyond = target is not None and fastest is not None and target > fastest
    return None if is_beyond else found


def _advising(knob: str) -> list[str]:
    """Return the rules that advise to change a knob."""
    if knob in _OF_LINKS:
        return ["slow-link"]
    return [rule for rule, change in ADVICE.items() if knob in change.given]
