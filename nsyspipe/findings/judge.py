"""Ask every rule, and sort the findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from nsyspipe import findings
from nsyspipe.findings.host_lines import line_figures
from nsyspipe.findings.model import (
    IS_LAUNCH_BOUND,
    WAITING_UNKNOWN,
    Answer,
    Condition,
    Evidence,
    Finding,
    NotJudged,
    Rules,
)
from nsyspipe.model import schema
from nsyspipe.model.problems import Problem, SkippedCheck, problem


def _list_rules() -> Rules:
    """Return the rules that the other files of this room list as `RULES`, sorted by name."""
    rules: Rules = {}
    names = {module.name for module in iter_modules(findings.__path__)}
    for name in sorted(names - {"judge"}):
        module = import_module(f"{findings.__name__}.{name}")
        rules |= vars(module).get("RULES", {})
    by_name = sorted(rules, key=lambda rule: rule.__name__)
    return {rule: rules[rule] for rule in by_name}


RULES = _list_rules()
# What a column of the steps is called in the reason of a rule that is not judged.
_WORDS = {
    "comm_ns": "communication",
    "compute_ns": "compute",
    "grad_copy_ns": "copies",
    "n_allocs": "allocations of GPU memory",
    "idle_ns": "idle time",
    "overhead_ns": "the profiler's own work",
    "exposed_blocking_copy_ns": "blocking copies from the host",
}

# Shares of step time from which on a finding is of high and of medium severity.
_MIN_SHARE_OF_HIGH_SEVERITY = 0.1
_MIN_SHARE_OF_MEDIUM_SEVERITY = 0.03
_SEE_STEPS = "see the notes about steps"
# What findings are about. The bounds of one cause overlap, and one change often helps with several
# findings.
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
    "idle GPUs": (
        "input-bound",
        "launch-bound",
        "sync-bound",
        "alloc-in-step",
        "blocking-launches",
    ),
    "copies": ("grad-copy", "ddp-single-gpu", "pageable-copy"),
    "the capture itself": ("profiler-overhead",),
}
EXPOSURE = "comm-bound"
STRAGGLER = "straggler"
BUBBLE = "pipeline-bubble"
OF_HOSTS = {*CAUSES["idle GPUs"]}
_COMM_FINDINGS = {*CAUSES["communication and late ranks"]}
LESSEN_EXPOSURE = _COMM_FINDINGS - {EXPOSURE}
# The bounds of these findings contain waiting by intention.
_WAITING_FINDINGS = {"straggler", "pipeline-bubble", "no-sync"}


def rule_name(rule: Callable[..., object]) -> str:
    """Return the ID of the findings of a rule: its name with hyphens."""
    return rule.__name__.replace("_", "-")


def rule_names() -> tuple[str, ...]:
    """Return the IDs of the findings of all rules, in their order."""
    return tuple(map(rule_name, RULES))


# Ask


def judge(evidence: Evidence) -> tuple[pa.Table, list[Problem]]:
    """Return `schema.FINDINGS` of a run, and a problem for each reason why rules are not judged.

    The findings are in the order of `in_order`, and the problems in that of the rules.
    """
    if evidence.is_capture or not evidence.steps.num_rows:
        return schema.FINDINGS.empty(), _skip_all_rules(evidence)
    rows: list[dict[str, Any]] = []
    # Each reason has all rules that are not judged for it.
    skipped: dict[NotJudged, list[str]] = {}
    for rule, columns in RULES.items():
        name = rule_name(rule)
        answer = _checked_answer(evidence, name, rule(evidence), columns)
        if isinstance(answer, NotJudged):
            skipped.setdefault(answer, []).append(name)
        elif answer is not None:
            rows.append(_make_row(evidence, name, answer))
    problems = []
    for why, names in skipped.items():
        check = SkippedCheck(tuple(names), why.reason, why.fix)
        problems.append(_note_skipped(check, ", ".join(names)))
    return schema.FINDINGS.from_rows(in_order(rows)), problems


def _checked_answer(
    evidence: Evidence, name: str, answer: Answer, columns: Iterable[str]
) -> Answer:
    """Return the answer of a rule as far as the data supports the answer.

    `name` is the ID of the rule, and `columns` are the columns of the steps that the rule needs.
    """
    if answer is None:
        return _why_unknown(evidence, columns)
    if isinstance(answer, NotJudged):
        return answer
    finding = _with_line(evidence, name, answer)
    return _check_finding(evidence, name, finding)


def _with_line(evidence: Evidence, name: str, finding: Finding) -> Finding:
    """Return a finding with the line of Python that explains it, if samples show one."""
    figures = line_figures(evidence, name, finding)
    if not figures:
        return finding
    return replace(finding, evidence={**finding.evidence, **figures})


def _skip_all_rules(evidence: Evidence) -> list[Problem]:
    """Return the note that no rule is judged, because there are no steps; none without ranks."""
    if not evidence.n_ranks:
        return []
    reason = "no step has metrics"
    if evidence.is_capture:
        reason = "a saving is a part of a step, and the capture has no steps"
    check = SkippedCheck(rule_names(), reason, _SEE_STEPS)
    return [_note_skipped(check, "all rules")]


def _note_skipped(check: SkippedCheck, rules: str) -> Problem:
    """Return the note about a skipped check. `rules` names its rules in words."""
    note = problem("not-judged", rules=rules, reason=check.reason, how=check.fix)
    return replace(note, fix=check.fix, skipped_check=check)


def _why_unknown(evidence: Evidence, columns: Iterable[str]) -> NotJudged | None:
    """Return which columns of the steps are not known on every rank; None if all are known.

    Without them, a rule that needs them finds nothing, which does not mean that nothing is there.
    """
    unknown = [column for column in columns if evidence.steps.column(column).null_count]
    if not unknown:
        return None
    words = [_WORDS.get(column, column) for column in unknown]
    return NotJudged(f"{' and '.join(words)} not known on every rank", None)


def _check_finding(evidence: Evidence, name: str, finding: Finding) -> Answer:
    """Return what is left of a finding if not all communication or not all waiting is known.

    Findings that do not depend on either stay as they are.
    """
    # Of communication outside the steps, the calls per step are null.
    has_comm_outside_steps = bool(evidence.traffic["calls_per_step"].null_count)
    if name in LESSEN_EXPOSURE and has_comm_outside_steps:
        # The bound would miss what this communication costs.
        return NotJudged("some of the communication is outside the steps", _SEE_STEPS)
    if name in _COMM_FINDINGS and not evidence.are_groups_known:
        return _without_waiting(name, finding)
    return finding


def _without_waiting(name: str, finding: Finding) -> Answer:
    """Return what is left of a finding about communication if waiting may look like transfer.

    ``slow-link`` stays without a saving, because NCCL's log or the topology shows a slow link. All
    other such findings rest on exposed transfer, so they are not judged.
    """
    if name != "slow-link":
        return WAITING_UNKNOWN
    figures_of_rule = finding.evidence.items()
    figures = {key: figure for key, figure in figures_of_rule if not key.startswith("saving_")}
    return replace(finding, saving_ns_per_step=None, evidence=figures)


def _make_row(evidence: Evidence, name: str, finding: Finding) -> dict[str, Any]:
    """Return a finding as a row of `schema.FINDINGS`.

    The saving may contain waiting that the advice does not change. Then the figures say so.
    """
    saving_ns = finding.saving_ns_per_step
    figures = finding.evidence
    # Such a saving is meant to be of transfer alone.
    is_of_transfer = name in _COMM_FINDINGS and name not in _WAITING_FINDINGS
    if is_of_transfer and saving_ns and not evidence.is_wait_known:
        condition = Condition(is_wait_included=True)
        figures = {**figures, **condition.figures}
    saving_share = evidence.share_of_step(saving_ns or 0)
    return {
        "id": name,
        "severity": severity_of(saving_share),
        "title": finding.title,
        "action": finding.action,
        "advice": finding.advice,
        "saving_ns_per_step": saving_ns,
        "evidence": json.dumps(figures, allow_nan=False),
    }


def severity_of(share: float) -> str:
    """Return the severity of a finding by its bound, as a share of the mean step."""
    if share >= _MIN_SHARE_OF_HIGH_SEVERITY:
        return "high"
    return "medium" if share >= _MIN_SHARE_OF_MEDIUM_SEVERITY else "low"


# Read the evidence of a finding


def _read_evidence(finding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence of a row of `schema.FINDINGS`."""
    figures: dict[str, Any] = json.loads(finding["evidence"])
    return figures


def condition_of(finding: Mapping[str, Any]) -> Condition:
    """Return what the bound of a finding depends on, or contains."""
    return Condition.from_figures(_read_evidence(finding))


def is_conditional(finding: Mapping[str, Any]) -> bool:
    """Tell whether the bound of a finding depends on something that was not recorded."""
    return condition_of(finding).is_conditional


def is_nvlink_assumed(finding: Mapping[str, Any]) -> bool:
    """Tell whether a finding promises NVLink that neither a topology nor NCCL's log shows."""
    return condition_of(finding).is_nvlink_assumed


def is_wait_included(finding: Mapping[str, Any]) -> bool:
    """Tell whether the bound of a finding may contain waiting, which its advice does not change."""
    return condition_of(finding).is_wait_included


def is_by_host(finding: Mapping[str, Any]) -> bool:
    """Tell whether ranks or stages are late because their hosts launch late.

    Either of two figures shows this: launching decides how long steps take, or ranks are launched
    late. The second figure does not count if a replay has estimated what balanced ranks gain.
    """
    figures = _read_evidence(finding)
    if figures.get(IS_LAUNCH_BOUND):
        return True
    is_replayed = finding.get("expected_ns_per_step") is not None
    return "launched_late_ns_per_step" in figures and not is_replayed


# Sort


class _SortKey(NamedTuple):
    """What findings are sorted by. Lower values come first, and False comes before True."""

    has_no_worth: bool
    is_conditional: bool
    # Whether its worth is a bound that may contain waiting.
    is_wait_included: bool
    negative_worth_ns: float
    id: str


def _sort_key(row: Mapping[str, Any]) -> _SortKey:
    """Return the key of a finding. Its worth is the expected saving, or else the bound."""
    expected_ns = row.get("expected_ns_per_step")
    worth_ns = row["saving_ns_per_step"] if expected_ns is None else expected_ns
    condition = condition_of(row)
    may_contain_waiting = expected_ns is None and condition.is_wait_included
    return _SortKey(
        has_no_worth=worth_ns is None,
        is_conditional=condition.is_conditional,
        is_wait_included=may_contain_waiting,
        negative_worth_ns=-(worth_ns or 0.0),
        id=row["id"],
    )


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort findings by their worth, the largest first, then by ID.

    The worth is the expected saving, or else the bound. Bounds that may contain waiting follow all
    others. Conditional findings follow both, and findings without a worth come last.

    Then symptoms move behind their causes. `comm-bound` moves behind what lessens exposed
    communication. A straggler and a bubble move behind why hosts launch late, see `is_by_host`.
    """
    ordered = sorted(rows, key=_sort_key)
    _move_behind_causes(ordered, STRAGGLER, OF_HOSTS)
    _move_behind_causes(ordered, BUBBLE, OF_HOSTS)
    _move_behind_causes(ordered, EXPOSURE, LESSEN_EXPOSURE)
    return ordered


def _move_behind_causes(
    rows: list[Mapping[str, Any]], symptom: str, causes: Collection[str]
) -> None:
    """Move a symptom behind the last of its causes that is not conditional, in place.

    Symptoms other than `EXPOSURE` only move if hosts cause them, see `is_by_host`.
    """
    ids = [row["id"] for row in rows]
    if symptom not in ids:
        return
    symptom_place = ids.index(symptom)
    cause_places = []
    for place, row in enumerate(rows):
        if row["id"] in causes and not is_conditional(row):
            cause_places.append(place)
    if not cause_places or symptom_place > max(cause_places):
        return
    if symptom == EXPOSURE or is_by_host(rows[symptom_place]):
        row_of_symptom = rows.pop(symptom_place)
        # Without the symptom, the last cause moves up, so its old place is the one behind it.
        rows.insert(max(cause_places), row_of_symptom)
