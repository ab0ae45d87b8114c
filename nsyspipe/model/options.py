"""How reports are to be read: the options that change numbers, checked once, picklable."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field

from nsyspipe.errors import OptionError
from nsyspipe.model.names import PHASE_PATTERNS, PHASES

# --skip-first auto: drop the first complete step when another one remains.
AUTO = "auto"
# --step none: the capture as a whole. A range that is really called so: ^none$.
NO_STEPS = "none"
# --findings: a screen has more to show.
DEFAULT_FINDINGS = 5
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Reading:
    """Patterns that decide what an event is."""

    # texts that are steps; None lets the step family be detected
    step: re.Pattern[str] | None = None
    # whether no range is to be a step: the figures are of the capture as a whole
    is_capture: bool = False
    comm_kernel: re.Pattern[str] | None = None  # kernel names that are communication besides NCCL's
    # pattern by phase, every phase of `names.PHASES`
    phases: dict[str, re.Pattern[str]] = field(
        default_factory=lambda: {phase: re.compile(text) for phase, text in PHASE_PATTERNS.items()}
    )

    @classmethod
    def from_text(cls, *, step: str | None = None, comm_kernel: str | None = None, **phases: str | None) -> Reading:
        """Compile regular expressions given as text; None keeps the default, the step ``none`` is no step at all.

        Raises
        ------
        OptionError
            If one is no regular expression.
        """
        compiled = {
            phase: compile_pattern(f"--{phase}", phases.get(phase) or PHASE_PATTERNS[phase]) for phase in PHASES
        }
        is_capture = step == NO_STEPS
        return cls(
            step=None if step is None or is_capture else compile_pattern("--step", step),
            is_capture=is_capture,
            comm_kernel=None if comm_kernel is None else compile_pattern("--comm-kernel", comm_kernel),
            phases=compiled,
        )


def compile_pattern(option: str, text: str) -> re.Pattern[str]:
    """Compile a user's regular expression.

    Raises
    ------
    OptionError
        If it is none; the message says where it breaks.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # [[ may mean a set some day
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        position = getattr(error, "pos", None)
        where = "" if position is None else f" at position {position}"
        raise OptionError(
            f"{option} {text!r}",
            f"not a regular expression: {getattr(error, 'msg', error)}{where}",
            fix="Python syntax; escape ( ) [ ] . with a backslash to match them as they are",
        ) from error


def parse_findings(value: str) -> int | None:
    """Return how many findings to show; None is all of them.

    Raises
    ------
    OptionError
        If it is neither ``all`` nor a number from 0.
    """
    text = value.strip().lower()
    if text == "all":
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise OptionError(f"--findings {value}", "neither a number from 0 nor 'all'", fix="--findings all")
    return int(text)


def parse_skip_first(value: str | int) -> int | None:
    """Return how many complete steps to skip at the start; None is automatic.

    Raises
    ------
    OptionError
        If it is neither ``auto`` nor a number from 0.
    """
    text = str(value).strip().lower()
    if text == AUTO:
        return None
    if not re.fullmatch(r"[0-9]+", text):
        raise OptionError(f"--skip-first {value}", "neither a number from 0 nor 'auto'", fix="--skip-first auto")
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS
