"""What a user states about the work of a step: tokens, samples, FLOPs, and their datatype."""

import re
from collections.abc import Mapping
from decimal import Decimal

from msgspec import Struct

from nsyspipe.errors import OptionError, short_repr
from nsyspipe.model.captured import MAX_COUNT
from nsyspipe.model.peaks import check_datatype

# An integer, or a number like 9.483e12. A longer text or exponent is no count of a step.
_COUNT = re.compile(r"[0-9]{1,24}(?:\.[0-9]{1,24})?(?:[eE]\+?[0-9]{1,2})?")
_EXAMPLES = {
    "tokens_per_step": "8192",
    "samples_per_step": "256",
    "flops_per_step": "9.483e12",
}


class AskedWork(Struct, frozen=True):
    """What the user says of the work of a step. None means that a sidecar may say it."""

    # Of the whole job.
    tokens: int | None = None
    samples: int | None = None
    # Of one rank.
    flops: int | None = None
    # One of `peaks.DATATYPES`.
    datatype: str | None = None

    @classmethod
    def of_options(cls, options: Mapping[str, object]) -> "AskedWork":
        """Return the values of options by name; an `OptionError` if one is no count."""
        return cls(
            tokens=_count("tokens_per_step", options),
            samples=_count("samples_per_step", options),
            flops=_count("flops_per_step", options),
            datatype=check_datatype(options.get("peak")),
        )


# The user says nothing.
NOTHING_ASKED = AskedWork()


def _count(name: str, options: Mapping[str, object]) -> int | None:
    """Return the value of an option as a positive integer; None if the option is not given.

    A text or a float may also state a whole number. Raises `OptionError` for another value.
    """
    value = options.get(name)
    if value is None:
        return None
    text = str(value)
    has_form_of_number = not isinstance(value, bool) and _COUNT.fullmatch(text) is not None
    # A decimal number is exact, unlike a float. 0 stands in for a text of another form, because it
    # is refused too.
    number = Decimal(text) if has_form_of_number else Decimal(0)
    is_whole = number == number.to_integral_value()
    is_in_range = 0 < number <= MAX_COUNT
    if not is_whole or not is_in_range:
        option = f"--{name.replace('_', '-')}"
        problem = f"is not an integer from 1 to 1e{len(str(MAX_COUNT)) - 1}"
        fix = f"{option} {_EXAMPLES[name]}"
        raise OptionError(f"{option} {short_repr(value)}", problem, fix=fix)
    return int(number)
