"""Ask every rule, and sort what they say."""

import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pyarrow as pa
from msgspec.structs import asdict, replace

from nsyspipe import findings
from nsyspipe.findings.model import (
    IS_LAUNCH_BOUND,
    WAITING_UNKNOWN,
    Evidence,
    Finding,
    NotJudged,
    Rules,
)
from nsyspipe.model import schema
from nsyspipe.model.problems import Problem, SkippedCheck, problem

# What the other files of this package list as their `RULES`, by name.
_NAMES = sorted({one.name for one in iter_modules(findings.__path__)} - {"judge"})
_MODULES = [vars(import_module(f"{findings.__name__}.{name}")) for name in _NAMES]
_FOUND: Rules = {
    rule: needs for module in _MODULES for rule, needs in module.get("RULES", {}).items()
}
RULES: Rules = {rule: _FOUND[rule] for rule in sorted(_FOUND, key=lambda rule: rule.__name__)}
_WORDS = {
    "comm_ns": "communication",
    "compute_ns": "compute",
    "grad_copy_ns": "copies",
    "idle_ns": "idle time",
    "overhead_ns": "the profiler's own work",
    "exposed_blocking_copy_ns": "blocking copies from the host",
}

_HIGH = 0.1
_MEDIUM = 0.03
_SEE_STEPS = "see the notes about steps"
# What findings are about: bounds of those of one cause overlap, and one change often does for
# several.
CAUSES = {
    "communication and late ranks": (
        "comm-bound",
        "straggler",
        "slow-link",
        "single-bucket",
        "too-many-buckets",
        "compress-gradients",
        "flat-all-reduce",
        "tensor-comm",
        "shard-prefetch",
        "shard-regather",
        "small-shards",
        "expert-comm",
        "no-sync",
        "pipeline-bubble",
        "serialized-streams",
    ),
    "communication that slows compute": ("comm-slows-compute",),
    "idle GPUs": ("input-bound", "launch-bound", "sync-bound", "blocking-launches"),
    "copies": ("grad-copy", "ddp-single-gpu", "pageable-copy"),
    "the capture itself": ("profiler-overhead",),
}
EXPOSURE = "comm-bound"
STRAGGLER = "straggler"
BUBBLE = "pipeline-bubble"
OF_HOSTS = {*CAUSES["idle GPUs"]}
_OF_WAITING = {"straggler", "pipeline-bubble", "no-sync"}  # whose bounds are of waiting, too
_WAIT_INCLUDED = "is_wait_included"
_OF_COMM = {*CAUSES["communication and late ranks"]}
LESSEN_EXPOSURE = _OF_COMM - {EXPOSURE}


def rule_name(rule: Callable[..., object]) -> str:
    """Return the ID of the findings of a rule: its own name with hyphens."""
    return rule.__name__.replace("_", "-")


def rule_names() -> tuple[str, ...]:
    """Return the IDs of the findings of all rules, in their order."""
    return tuple(map(rule_name, RULES))


def judge(evidence: Evidence) -> tuple[pa.Table, list[Problem]]:
    """Return `schema.FINDINGS` of a run as `in_order` has them, and a problem for each reason why rules could not be judged."""
    if evidence.is_capture or not evidence.steps.num_rows:
        of_capture = "a saving is a part of a step, and the capture has no steps"
        reason = of_capture if evidence.is_capture else "no step has metrics"
        skipped = _not_judged(SkippedCheck(rule_names(), reason, _SEE_STEPS), "all rules")
        return schema.FINDINGS.empty(), [skipped] if evidence.n_ranks else []
    rows: list[dict[str, Any]] = []
    is_part = bool(evidence.traffic["calls_per_step"].null_count)
    unanswered: dict[
        NotJudged, list[str]
    ] = {}  # each reason once, with all the rules that it keeps from being judged
    for rule, columns in RULES.items():
        name = rule_name(rule)
        answer = rule(evidence)
        unknown = [
            _WORDS.get(column, column) for column in columns if evidence.steps[column].null_count
        ]
        if answer is None and unknown:  # its silence rests on figures that are not known
            reason = f"{' and '.join(unknown)} not known on every rank"
            answer = NotJudged(reason, None)
        if (
            isinstance(answer, Finding) and name in LESSEN_EXPOSURE and is_part
        ):  # its bound would be too low
            answer = NotJudged("some of the communication is outside the steps", _SEE_STEPS)
        if isinstance(answer, Finding) and name in _OF_COMM and not evidence.are_groups_known:
            answer = _without_waiting(name, answer)
        if isinstance(answer, NotJudged):
            unanswered.setdefault(answer, []).append(name)
        elif answer is not None:
            severity = severity_of(evidence.share_of_step(answer.saving_ns_per_step or 0))
            figures = answer.evidence
            is_of_transfer = name in _OF_COMM and name not in _OF_WAITING
            if is_of_transfer and answer.saving_ns_per_step and not evidence.is_wait_known:
                figures = {**figures, _WAIT_INCLUDED: True}
            told = json.dumps(figures, allow_nan=False)
            rows.append({**asdict(answer), "id": name, "severity": severity, "evidence": told})
    skipped_checks = (
        SkippedCheck(tuple(names), why.reason, why.fix) for why, names in unanswered.items()
    )
    problems = [_not_judged(check, ", ".join(check.rules)) for check in skipped_checks]
    return schema.FINDINGS.from_rows(in_order(rows)), problems


def _not_judged(check: SkippedCheck, rules: str) -> Problem:
    """Return the note about a skipped check, which names its rules by a text."""
    note = problem("not-judged", rules=rules, reason=check.reason, how=check.fix)
    return replace(note, fix=check.fix, skipped_check=check)


def _without_waiting(name: str, finding: Finding) -> Finding | NotJudged:
    """Return what is left of a finding about communication if waiting cannot be told from transfer: a setting, no saving.

    Which link is slow is read from NCCL's log or the topology. Every other finding rests on exposed
    transfer.
    """
    if name != "slow-link":
        return WAITING_UNKNOWN
    figures = {
        key: value for key, value in finding.evidence.items() if not key.startswith("saving_")
    }
    return replace(finding, saving_ns_per_step=None, evidence=figures)


def severity_of(share: float) -> str:
    """Return how grave a finding is, by its bound as a share of the mean step."""
    return "high" if share >= _HIGH else "medium" if share >= _MEDIUM else "low"


def is_conditional(finding: Mapping[str, Any]) -> bool:
    """Tell whether the bound of a finding holds only if something is so that was not recorded."""
    return bool(json.loads(finding["evidence"]).get("is_conditional"))


def is_nvlink_assumed(finding: Mapping[str, Any]) -> bool:
    """Tell whether a finding promises an NVLink that neither a topology nor NCCL's log shows."""
    return bool(json.loads(finding["evidence"]).get("is_nvlink_assumed"))


def is_wait_included(finding: Mapping[str, Any]) -> bool:
    """Tell whether the bound of a finding holds waiting for other ranks that is not known, and that its advice leaves."""
    return bool(json.loads(finding["evidence"]).get(_WAIT_INCLUDED))


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort findings by what is expected of them, else by their bound, largest first, then by id.

    What lessens exposed communication stands before `comm-bound`, and why hosts launch late before
    a straggler that is late for it and of which nothing is expected, and before a pipeline's bubble
    where launching decides; behind all that have a bound are those known by a bound that may be
    waiting, then conditional ones.
    """

    def place_of(row: Mapping[str, Any]) -> tuple[bool, bool, bool, float, str]:
        worth = (
            row["saving_ns_per_step"]
            if (expected := row.get("expected_ns_per_step")) is None
            else expected
        )
        may_wait = expected is None and is_wait_included(row)
        return worth is None, is_conditional(row), may_wait, -(worth or 0.0), row["id"]

    found = sorted(rows, key=place_of)
    for symptom, causes in ((STRAGGLER, OF_HOSTS), (BUBBLE, OF_HOSTS), (EXPOSURE, LESSEN_EXPOSURE)):
        places = [
            place
            for place, row in enumerate(found)
            if row["id"] in causes and not is_conditional(row)
        ]
        at = next((place for place, row in enumerate(found) if row["id"] == symptom), len(found))
        if places and at < places[-1] and (symptom == EXPOSURE or is_by_host(found[at])):
            found.insert(places[-1], found.pop(at))
    return found


def is_by_host(finding: Mapping[str, Any]) -> bool:
    """Tell whether ranks or stages come late for hosts that launch late, and no replay says what a balanced run gains.

    Where launching takes even the fastest host longer than devices work, that goes before whatever
    a replay says.
    """
    evidence = json.loads(finding["evidence"])
    is_late = (
        "launched_late_ns_per_step" in evidence and finding.get("expected_ns_per_step") is None
    )
    return is_late or bool(evidence.get(IS_LAUNCH_BOUND))
