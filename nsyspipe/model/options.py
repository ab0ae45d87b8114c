"""How reports are to be read: the options that change numbers, checked once, picklable."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field

from nsyspipe.errors import OptionError
from nsyspipe.model.names import PHASE_PATTERNS

AUTO = "auto"  # --skip-first auto: drop the first complete step when another one remains
NO_STEPS = "none"  # --step none: the capture as a whole. A range that is really called so: ^none$.
REPETITION = "repetition"  # --step repetition: steps by what launches repeat, whatever ranges there are
DEFAULT_FINDINGS = 5  # --findings: a screen has more to show
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Reading:
    """Patterns that decide what an event is."""

    step: re.Pattern[str] | None = None  # texts that are steps; None lets the step family be detected
    is_capture: bool = False  # whether no range is to be a step: the figures are of the capture as a whole
    is_repetition: bool = False  # whether steps are found by repetition, whatever ranges there are
    n_steps: int | None = None  # how many whole ones, about
    comm_kernel: re.Pattern[str] | None = None  # kernel names that are communication besides NCCL's
    # pattern by phase, every phase of `names.PHASES`
    phases: dict[str, re.Pattern[str]] = field(
        default_factory=lambda: {phase: re.compile(text) for phase, text in PHASE_PATTERNS.items()}
    )

    @classmethod
    def from_text(
        cls,
        *,
        step: str | None = None,
        n_steps: int | None = None,
        comm_kernel: str | None = None,
        **phases: str | None,
    ) -> Reading:
        """Compile regular expressions given as text; None keeps the default, the step ``none`` is no step at all."""
        texts = {phase: phases.get(phase) or text for phase, text in PHASE_PATTERNS.items()}
        return cls(
            None if step in {None, NO_STEPS, REPETITION} else compile_pattern("--step", step or ""),
            step == NO_STEPS,
            step == REPETITION or n_steps is not None,
            n_steps,
            None if comm_kernel is None else compile_pattern("--comm-kernel", comm_kernel),
            {phase: compile_pattern(f"--{phase}", text) for phase, text in texts.items()},
        )


def compile_pattern(option: str, text: str) -> re.Pattern[str]:
    """Compile a user's regular expression; an `OptionError` says where it breaks."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # [[ may mean a set some day
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        position = getattr(error, "pos", None)
        why = f"{getattr(error, 'msg', error)}{'' if position is None else f' at position {position}'}"
        fix = "Python syntax; escape ( ) [ ] . with a backslash to match them as they are"
        raise OptionError(f"{option} {text!r}", f"not a regular expression: {why}", fix=fix) from error


def parse_findings(value: str) -> int | None:
    """Return how many findings to show; None is all of them."""
    return _number(value, "--findings", "all")


def parse_skip_first(value: str | int) -> int | None:
    """Return how many complete steps to skip at the start; None is automatic."""
    return _number(value, "--skip-first", AUTO)


def _number(value: str | int, option: str, word: str) -> int | None:
    """Return the number that was asked for, 10**18 for any that is larger; None for the option's word."""
    text = str(value).strip().lower()
    if text == word:
        return None
    if not re.fullmatch(r"[0-9]+", text):
        raise OptionError(f"{option} {value}", f"neither a number from 0 nor '{word}'", fix=f"{option} {word}")
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS
