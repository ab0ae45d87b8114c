"""What to change first: each finding with its advice, its bound, and the figures behind it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.report.run_words import expected_text, mean_step_ns, saving_texts
from nsyspipe.units import absent, bandwidth_text, bytes_text, count_text, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsyspipe.run import Run

__all__ = ["Finding", "evidence_rows", "findings_list"]

# A word that is typed as it is keeps its first letter.
_CODE_WORD = re.compile(r"^\S*[_=()]")
# Suffix of a figure's name, and what writes it. The first that fits counts.
_UNITS = (
    ("_bytes_per_s", bandwidth_text),
    ("_ns", ms_text),
    ("_bytes", bytes_text),
    ("_share", percent_text),
    ("_ratio", percent_text),
)
_PER_STEP = "_per_step"


@dataclass(frozen=True)
class Finding:
    """One finding as words.

    Attributes
    ----------
    share
        Of the step time, 0 to 1: length of the bar; 0 without a bound.
    expected
        What a replay expects; None where there was none.
    evidence
        Pairs of name and value.
    """

    id: str
    severity: str
    action: str
    title: str
    advice: str
    saving: str
    share: float
    share_text: str
    expected: str | None
    evidence: list[tuple[str, str]]


def findings_list(run: Run) -> list[Finding]:
    """Return the findings as `run.findings` ranks them."""
    step_time = mean_step_ns(run.summary().to_pylist()[0])
    return [_finding(row, step_time) for row in run.findings().to_pylist()]


def _finding(row: Mapping[str, Any], step_time_ns: float | None) -> Finding:
    saving = row["saving_ns_per_step"]
    text, share_text = saving_texts(saving, step_time_ns)
    expected = expected_text(row["expected_ns_per_step"], step_time_ns)
    return Finding(
        id=row["id"],
        severity=row["severity"],
        action=_sentence(row["action"]),
        title=_sentence(row["title"]),
        advice=_sentence(row["advice"]),
        saving=text,
        share=min(saving / step_time_ns, 1.0) if saving and step_time_ns else 0.0,
        share_text=share_text,
        expected=None if expected == absent else expected,
        evidence=list(evidence_rows(json.loads(row["evidence"]))),
    )


def _sentence(text: str) -> str:
    return text if _CODE_WORD.match(text) else f"{text[:1].upper()}{text[1:]}"


def evidence_rows(evidence: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Return name and value of each figure of a finding's evidence, in words; what is null is left out."""
    for key, value in evidence.items():
        if isinstance(value, dict):
            yield from evidence_rows({f"{before}{key}: {name}": one for name, one in value.items()})
        elif value is not None:
            yield _words(key, value)


def _words(key: str, value: object) -> tuple[str, str]:
    head, colon, name = key.partition(": ")
    stem = head.replace("_by_phase", "").replace("_by_kernel", "")
    is_per_step = stem.endswith(_PER_STEP)
    stem = stem.removesuffix(_PER_STEP)
    suffix, write = next(
        ((suffix, write) for suffix, write in _UNITS if stem.endswith(suffix)), ("", count_text)
    )
    label = stem.removesuffix(suffix).removeprefix("n_").replace("_", " ")
    label += " per step" if is_per_step else ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = write(value) if is_number else _plain(value)  # type: ignore[arg-type]  # a number
    return f"{label}{f', {name}' if colon else ''}", text


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or absent
    return str(value)
