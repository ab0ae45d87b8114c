"""The changes that can be simulated: their values, their words, and their errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from nsyspipe.analysis.links import GB, NAMED_LINKS, NamedLink, named_link
from nsyspipe.analysis.traffic import ROLES
from nsyspipe.errors import OptionError
from nsyspipe.model.options import check_flags, check_kind, check_number

# No link between GPUs is slower. A smaller number is in another unit.
_MIN_BYTES_PER_S = 1e6
# 1 TiB.
_MAX_BUCKET_MB = 2**20
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([kKmMgGtT]?)"
_BYTES_PER_S = re.compile(_NUMBER + r"B/?[sS]\s*")
# Networks have bandwidths in bits: 200Gb/s, 200Gbit/s, 200Gbps.
_BITS_PER_S = re.compile(_NUMBER + r"(?:b/?[sS]|bps|[bB]its?/[sS])\s*")
_FACTOR = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*[xX]\s*")
_EXAMPLES = {"bucket_mb": "25", "gradient_bytes": "665_000_000", "bandwidth": "'300GB/s'"}

_EXAMPLE_OF_BANDWIDTH = "--bandwidth 300GB/s"

LINKS = {link.name: link for link in NAMED_LINKS}
DTYPES = ("bf16", "fp16")

# The words of each change, for its value.
_LABELS = {
    "bandwidth_bytes_per_s": "bandwidth {:g} GB/s",
    "bandwidth_factor": "{:g}x bandwidth",
    "role": "only {} communication",
    "link": "interconnect {}",
    "gradient_dtype": "gradients as {}",
    "bucket_mb": "bucket_cap_mb={:g}",
    "no_wait": "no late ranks",
    "no_grad_copy": "gradient_as_bucket_view=True",
    "no_sync": "no_sync() before the last micro-batch",
    "prefetch": "gather parameters a layer earlier",
    "perfect_overlap": "perfect overlap",
}


class Knobs(Struct, frozen=True):
    """A combination of changes, as `answer.whatif` describes them.

    What is None or false does not change.
    """

    bandwidth_bytes_per_s: float | None = None
    bandwidth_factor: float | None = None
    # The kind of parallelism whose bandwidth changes. None: all kinds.
    role: str | None = None
    link: str | None = None
    gradient_dtype: str | None = None
    bucket_mb: float | None = None
    no_wait: bool = False
    no_grad_copy: bool = False
    no_sync: bool = False
    prefetch: bool = False
    perfect_overlap: bool = False

    def __post_init__(self) -> None:
        self._check_link()
        if self.gradient_dtype not in (None, *DTYPES):
            option = f"--gradient-dtype {self.gradient_dtype!r}"
            name = str(self.gradient_dtype)
            raise OptionError.no_such_name(option, "is not supported", name, DTYPES)
        _check_positive("--bandwidth", self.bandwidth_bytes_per_s)
        _check_positive("--bandwidth", self.bandwidth_factor)
        _check_positive("--bucket-mb", self.bucket_mb)
        defaults = zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
        names_of_flags = [name for name, default in defaults if default is False]
        flags = {name: getattr(self, name) for name in names_of_flags}
        check_flags(**flags)
        if self.bucket_mb is not None and self.bucket_mb > _MAX_BUCKET_MB:
            option = f"--bucket-mb {self.bucket_mb:.0f}"
            fix = "give MiB, as for bucket_cap_mb, not bytes: --bucket-mb 25"
            raise OptionError(option, "is larger than the memory of a GPU", fix=fix)

    def _check_link(self) -> None:
        """Raise an `OptionError` if the link is not known, or a bandwidth is given besides it."""
        if self.link is None:
            return
        bandwidths = (self.bandwidth_bytes_per_s, self.bandwidth_factor)
        # 0 is a bandwidth too, although none that can be used.
        if bandwidths != (None, None):
            what = "both set the bandwidth"
            raise OptionError("--link and --bandwidth", what, fix="leave out one of them")
        if self.link not in LINKS:
            raise _no_such_link(self.link)

    def __bool__(self) -> bool:
        return bool(self.given)

    @property
    def given(self) -> dict[str, float | str | bool]:
        """The changes, by name."""
        fields = asdict(self).items()
        return {name: value for name, value in fields if value not in (None, False)}

    @property
    def target_bytes_per_s(self) -> float | None:
        """The requested bandwidth. None keeps the captured one."""
        if self.link is None:
            return self.bandwidth_bytes_per_s
        return LINKS[self.link].bus_bytes_per_s

    @property
    def label(self) -> str:
        """The changes in the words of the options that make them."""
        values = dict(self.given)
        if self.bandwidth_bytes_per_s is not None:
            values["bandwidth_bytes_per_s"] = self.bandwidth_bytes_per_s / GB
        texts = [_LABELS[name].format(value) for name, value in values.items()]
        return ", ".join(texts)


def _no_such_link(name: str) -> OptionError:
    """Return the error for the name of a link that nsyspipe does not know.

    A name such as ``nvlink`` fits several links, so those are offered, each with its GPUs. Any
    other name is not corrected: a link with nearly the same name is another link.
    """
    option = f"--link {name!r}"
    fitting = [link for link in LINKS.values() if link.name.startswith(name.lower())]
    if name and fitting:
        fix = f"did you mean {_list_links(fitting)}?"
        return OptionError(option, "fits several interconnects", fix=fix)
    known = _list_links(LINKS.values())
    what = "is not an interconnect that nsyspipe knows"
    fix = (
        "give the bus bandwidth that collectives reach over your interconnect: --bandwidth 300GB/s"
    )
    return OptionError(option, what, found=known, fix=fix)


def _list_links(links: Iterable[NamedLink]) -> str:
    """Return the names of links, each with the GPUs that have the link."""
    texts = []
    for link in links:
        gpus = ", ".join(link.gpus).upper()
        texts.append(f"{link.name} ({gpus})" if gpus else link.name)
    return ", ".join(texts)


def _check_positive(option: str, value: Any) -> None:  # noqa: ANN401 - any value of a user
    """Raise an `OptionError` unless the value is a positive number or None."""
    name = option[2:].replace("-", "_")
    check_number(name, value, _fix_of_number(name, value))
    if value is not None and not 0 < value < float("inf"):
        what = "is not a positive number"
        raise OptionError(f"{option} {value:g}", what, fix="give a number above 0")


def _fix_of_number(name: str, value: Any) -> str:  # noqa: ANN401 - any value of a user
    """Return how to write a value as a number, such as ``gradient_bytes=665000000``.

    If a text begins with a number, the fix has that number. Otherwise it has an example.
    """
    if isinstance(value, list | tuple):
        return "run one whatif for each number"
    number = re.match(_NUMBER, value) if isinstance(value, str) else None
    if number is None:
        return f"{name}={_EXAMPLES[name]}"
    # Only bytes are written with a prefix, such as 665M.
    prefix = number[2].lower() if name == "gradient_bytes" else ""
    plain = float(number[1]) * _UNITS[prefix]
    return f"{name}={plain:.15g}"


def parse_bandwidth(text: str) -> float:
    """Return the bytes per second of a text such as ``300GB/s``, or raise an `OptionError`.

    The prefixes k, M, G and T are powers of 1000, and B is bytes.
    """
    bits = _BITS_PER_S.fullmatch(text)
    if bits:
        raise _bandwidth_in_bits(text, bits)
    rate = _BYTES_PER_S.fullmatch(text)
    if rate:
        multiplier = _UNITS[rate[2].lower()]
        bytes_per_s = float(rate[1]) * multiplier
        if 0 < bytes_per_s < float("inf"):
            return bytes_per_s
        # The number is 0 or too large, so the fix does not repeat it.
        fix = _EXAMPLE_OF_BANDWIDTH
    else:
        fix = _fix_of_bandwidth(text)
    raise OptionError(f"--bandwidth {text!r}", "is not a bandwidth", fix=fix)


def _fix_of_bandwidth(text: str) -> str:
    """Return how to write a bandwidth without a unit.

    If the text has no number, or 0, the result is an example. A number alone may also be meant as
    a multiple of the captured bandwidth.
    """
    number = re.match(_NUMBER, text)
    if number is None or float(number[1]) == 0:
        return _EXAMPLE_OF_BANDWIDTH
    prefix = number[2] or "G"
    fix = f"--bandwidth {number[1]}{prefix}B/s"
    is_number_alone = number.end() == len(text)
    if not is_number_alone:
        return fix
    return f"{fix}, or {number[1]}x for a multiple of the captured bandwidth"


def _bandwidth_in_bits(text: str, bits: re.Match[str]) -> OptionError:
    """Return the error for a bandwidth in bits, with the same bandwidth in bytes as the fix."""
    number = float(bits[1])
    # Prefixes are capital letters, except the k of kilo.
    prefix = bits[2].upper().replace("K", "k")
    in_bytes = f"--bandwidth {number / 8:g}{prefix}B/s"
    fix = f"{in_bytes}, or --bandwidth {number:g}{prefix}B/s if you meant bytes"
    return OptionError(f"--bandwidth {text!r}", "is in bits, but nsyspipe needs bytes", fix=fix)


def knobs_of(
    *,
    bandwidth: float | str | None = None,
    link: str | None = None,
    gradient_bytes: float | None = None,
    **changes: Any,  # noqa: ANN401 - other fields of Knobs
) -> Knobs:
    """Return the changes that `answer.whatif` was asked for.

    Raise an `OptionError` if a value cannot be used, or if two values contradict each other. The
    size of the gradients is no change, so it is only checked.
    """
    _check_positive("--gradient-bytes", gradient_bytes)
    check_kind("link", link, str, "the name of a link", "link='nvlink4'")
    if isinstance(bandwidth, str):
        changes |= _parse_bandwidth_change(bandwidth)
    elif bandwidth is not None:
        check_number("bandwidth", bandwidth, "bandwidth='300GB/s'")
        if 0 < bandwidth < _MIN_BYTES_PER_S:
            what = "is too small for bytes per second"
            fix = f'bandwidth="{bandwidth:g}GB/s"'
            raise OptionError(f"bandwidth={bandwidth:g}", what, fix=fix)
        changes["bandwidth_bytes_per_s"] = bandwidth
    known_link = None if link is None else named_link(link)
    # A name that is not known stays as it is, and `Knobs` raises the error about it.
    link_name = link if known_link is None else known_link.name
    return Knobs(link=link_name, **changes)


def _parse_bandwidth_change(text: str) -> dict[str, Any]:
    """Return the fields of `Knobs` that a bandwidth sets.

    It is ``[ROLE=]300GB/s``, or ``[ROLE=]2x`` for twice the captured bandwidth.
    """
    changes: dict[str, Any] = {}
    role, has_role, rate = text.rpartition("=")
    if has_role:
        if role not in ROLES:
            option = f"--bandwidth {text!r}"
            what = f"{role!r} is not a kind of parallelism"
            raise OptionError.no_such_name(option, what, role, ROLES)
        changes["role"] = role
    factor = _FACTOR.fullmatch(rate)
    if factor:
        changes["bandwidth_factor"] = float(factor[1])
    else:
        changes["bandwidth_bytes_per_s"] = parse_bandwidth(rate)
    return changes
