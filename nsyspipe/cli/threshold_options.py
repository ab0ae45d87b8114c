"""What counts as a difference, for diff and compare alike: from options, else from the nearest file of settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nsyspipe.difference.thresholds import DEFAULT_CONFIDENCE, DEFAULT_MIN_EFFECT
from nsyspipe.gate_settings import parse_confidence, parse_min_effect, read_settings

__all__ = ["Confidence", "MinEffect", "Thresholds", "thresholds"]

MinEffect = Annotated[
    str | None,
    typer.Option(
        "--min-effect",
        metavar="PCT",
        help="Less change than this is none, in per cent: 2% and 2 are the same. [default: 2%]",
    ),
]
Confidence = Annotated[
    str | None,
    typer.Option(
        "--confidence",
        metavar="P",
        help="Of the intervals, above 0.5 and below 1. [default: 0.95]",
    ),
]


@dataclass(frozen=True)
class Thresholds:
    """What counts.

    Attributes
    ----------
    min_effect, confidence
        As ratios.
    settings_file
        The file that one of them comes from, as seen from here; None if none does.
    """

    min_effect: float
    confidence: float
    settings_file: str | None


def thresholds(min_effect: str | None, confidence: str | None) -> Thresholds:
    """Return what two options say, where they are silent what the nearest file says.

    Raises
    ------
    OptionError
        If one of them, or the file, cannot be used.
    """
    effect = None if min_effect is None else parse_min_effect(min_effect)
    sure = None if confidence is None else parse_confidence(confidence)
    file = read_settings(Path.cwd())
    is_of_file = (effect is None and file.min_effect is not None) or (
        sure is None and file.confidence is not None
    )
    known = [one for one in (effect, file.min_effect) if one is not None]
    return Thresholds(
        min_effect=[*known, DEFAULT_MIN_EFFECT][0],
        confidence=sure or file.confidence or DEFAULT_CONFIDENCE,
        settings_file=os.path.relpath(file.path) if is_of_file and file.path else None,
    )
