"""The answers of `whatif`, and the savings that findings can expect from their advice."""

import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.links import nominal_speed
from nsyspipe.analysis.steps import FEW_STEPS
from nsyspipe.errors import NsyspipeError, in_python, rows_in_python
from nsyspipe.findings.gradients import BUCKET_MB, LARGE_BUCKET_MB
from nsyspipe.findings.judge import (
    EXPOSURE,
    in_order,
    is_conditional,
    is_nvlink_assumed,
    severity_of,
)
from nsyspipe.findings.slow_link import nvlink_promise
from nsyspipe.model import schema
from nsyspipe.model.columns import flag, ns, per_s, percent, text
from nsyspipe.model.options import plain_number
from nsyspipe.model.problems import problem
from nsyspipe.model.table import FLOAT, TableSchema
from nsyspipe.model.typed_tables import (
    FindingsTable,
)
from nsyspipe.replay.assumptions import assumptions
from nsyspipe.replay.knobs import LINKS, Knobs, knobs_of
from nsyspipe.replay.opening import opened_replay
from nsyspipe.replay.scenarios import Replay, why_refused
from nsyspipe.report_run import ReportRun
from nsyspipe.run.run import NamedTables, Run

_MENU = {
    f"bucket-{BUCKET_MB:g}": Knobs(bucket_mb=float(BUCKET_MB)),
    f"bucket-{LARGE_BUCKET_MB:g}": Knobs(bucket_mb=float(LARGE_BUCKET_MB)),
    "no-grad-copy": Knobs(no_grad_copy=True),
    "gradient-bf16": Knobs(gradient_dtype="bf16"),
    "no-wait": Knobs(no_wait=True),
    "perfect-overlap": Knobs(perfect_overlap=True),
}
_NVLINKS = ("nvlink5", "nvlink4")
_LINKS_BESIDES_NVLINK = ("pcie5x16", "pcie4x16", "shm")
# Most runs have no use for these changes. The menu has them if they have an estimate.
_SELDOM_USEFUL = {
    "no-sync": Knobs(no_sync=True),
    "prefetch": Knobs(prefetch=True),
}
FASTER_HOSTS = "the CPU can launch kernels early enough"
# Reading the operations of a larger run again takes seconds, which only `whatif` does.
_MAX_KERNELS = 500_000
# By rule: the change that it advises. That of comm-bound is a limit. The rule slow-link is not
# here, because the GPUs of the run decide which link it means.
ADVICE = {
    EXPOSURE: Knobs(perfect_overlap=True),
    "single-bucket": Knobs(bucket_mb=BUCKET_MB),
    "too-many-buckets": Knobs(bucket_mb=LARGE_BUCKET_MB),
    "grad-copy": Knobs(no_grad_copy=True),
    "compress-gradients": Knobs(gradient_dtype="bf16"),
    "straggler": Knobs(no_wait=True),
    "no-sync": Knobs(no_sync=True),
    "shard-prefetch": Knobs(prefetch=True),
}
# These rules bound the saving by transfer times and by the slowdown by communication. So it is at
# most what zero communication time saves.
_TRANSFER_RULES = {
    "comm-bound",
    "comm-slows-compute",
    "single-bucket",
    "too-many-buckets",
    "compress-gradients",
    "slow-link",
    "tensor-comm",
    "expert-comm",
    "flat-all-reduce",
}
_PARTS = "saving_ns_per_step_by_part"
# Where a link is: `Scenario.link_place`.
HERE = "here"
UNKNOWN = "unknown"
ELSEWHERE = "elsewhere"
# The groups of changes: `Scenario.group`.
SETTING = "setting"
HARDWARE = "hardware"
LIMIT = "limit"
GROUPS = (SETTING, HARDWARE, LIMIT)
# No option of any program sets these.
_LIMITS = frozenset({"perfect_overlap", "no_wait"})
_BANDWIDTHS = frozenset({"bandwidth_bytes_per_s", "bandwidth_factor"})
_SLOW_LINK = "slow-link"
_LINK_CHANGES = {"bandwidth_bytes_per_s", "bandwidth_factor", "link"}


SCENARIOS = TableSchema(
    name="scenarios",
    doc=(
        "One row per combination of changes that `whatif` answers or refuses, in the order of the "
        "answer."
    ),
    key=("id",),
    columns=(
        text(
            "id",
            "stable, for example bucket-25 or link-nvlink4. custom is a combination that you "
            "asked for",
        ),
        text("label", "the change in words"),
        ns(
            "step_time_ns",
            "predicted step time, null if there is no estimate",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "low_ns",
            "lower end of the range, null if there is no estimate",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "high_ns",
            "upper end of the range, null if there is no estimate",
            arrow_type=FLOAT,
            nullable=True,
        ),
        per_s("throughput_steps_per_s", "1e9 / step_time_ns", nullable=True),
        percent(
            "gain_pct",
            "100 x (captured - predicted) / captured step time, both medians over steps. Positive "
            "is faster",
            nullable=True,
        ),
        ns(
            "mean_gain_ns",
            "mean over steps of captured minus predicted step time, as the expected_ns_per_step "
            "of a finding that advises the same change",
            arrow_type=FLOAT,
            nullable=True,
        ),
        text("assumptions", "assumptions of the estimate"),
        text("refused", "why there is no estimate, null if there is one", nullable=True),
        text(
            "finding",
            "ID of the finding of the run that advises such a change, null if there is none or "
            "for several changes",
            nullable=True,
        ),
        ns(
            "finding_saving_ns",
            "upper bound of the saving of that finding, per step, null if the finding has none",
            arrow_type=FLOAT,
            nullable=True,
        ),
        flag(
            "is_advised",
            "whether the finding shows the estimate of this change. False for conditional "
            "findings and limits",
        ),
        text(
            "link_place",
            "of a link: here where the run or its machine is known to have it, unknown where only "
            "its GPUs could, else elsewhere, in another machine. Null for all other changes",
            nullable=True,
        ),
    ),
)


@dataclass(frozen=True)
class Scenario:
    """The estimate of one combination of changes: a row of `SCENARIOS`, and two more fields.

    The changes are in `knobs`, by the names of the arguments of `whatif`. A bandwidth is
    ``bandwidth_bytes_per_s`` or ``bandwidth_factor``, always a number, and ``role`` is its kind of
    parallelism. `refused_in_options` is `refused` in the words of the command's options.
    """

    id: str
    label: str
    knobs: Mapping[str, float | str | bool]
    step_time_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    throughput_steps_per_s: float | None = None
    gain_pct: float | None = None
    mean_gain_ns: float | None = None
    assumptions: tuple[str, ...] = ()
    refused: str | None = None
    refused_in_options: str | None = None
    finding: str | None = None
    finding_saving_ns: float | None = None
    is_advised: bool = False
    link_place: str | None = None

    @property
    def group(self) -> str:
        """The kind of change, one of `GROUPS`.

        A setting is an option of the program or of its environment that you can change on this
        machine. A link is a setting only if the machine has the link and does not use it, so that a
        step gets shorter. A limit is no setting of any program. Everything else needs other
        hardware.
        """
        names = self.knobs.keys()
        if not _LIMITS.isdisjoint(names):
            return LIMIT
        if not _BANDWIDTHS.isdisjoint(names):
            return HARDWARE
        is_link_to_switch_on = self.link_place == HERE and (self.gain_pct or 0.0) > 0
        if self.link_place is not None and not is_link_to_switch_on:
            return HARDWARE
        return SETTING


@dataclass(frozen=True, repr=False)
class WhatIf(NamedTables):
    """The answer to `whatif`.

    Attributes
    ----------
    run_id, label
        Those of the run.
    n_steps
        The number of steps used.
    step_time_ns
        The captured step time: the largest window over ranks of each step used, then the median.
        None without any step.
    limit_step_time_ns
        The step time with zero communication time, and with the largest possible slowdown by
        communication in the capture. Ranks wait for late ranks as before. No other link, bucket or
        datatype can be faster. ``no_wait`` and ``no_grad_copy`` change the work itself, so they
        can. A median as `step_time_ns`. None if nothing can be simulated, and with FSDP, because
        its slowdown by communication is not known.
    limit_gain_ns
        What a step saves then, at least 0. It is a mean over steps, as in findings, and not the
        difference of the two medians. None as for `limit_step_time_ns`.
    identity_error_pct
        The largest difference of any step between capture and simulation if nothing changes, in
        percent. None if nothing can be simulated.
    scenarios
        One per question. A menu has the largest gain first, and changes without an estimate last.
    problem_rows
        The rows of `problems`, in the words of the commands.
    run
        The run of the question.
    is_answered_without_late_ranks
        Whether a change that has no estimate would have one together with ``no_wait=True``.
    """

    _TABLES = ("table",)

    run_id: str
    label: str
    n_steps: int
    step_time_ns: float | None
    limit_step_time_ns: float | None
    limit_gain_ns: float | None
    identity_error_pct: float | None
    scenarios: tuple[Scenario, ...]
    problem_rows: tuple[Mapping[str, Any], ...]
    run: Run | None = field(default=None, compare=False)
    is_answered_without_late_ranks: bool = field(default=False, compare=False)

    @property
    def problems(self) -> tuple[Mapping[str, Any], ...]:
        """Rows of `schema.PROBLEMS`, and problems of the simulation."""
        return tuple(rows_in_python(self.problem_rows))

    def __repr__(self) -> str:
        return f"<WhatIf of {self.label!r}>"

    def table(self) -> pa.Table:
        """`SCENARIOS`: one row per scenario, in their order; assumptions as one text."""
        rows = [_scenario_row(scenario) for scenario in self.scenarios]
        return SCENARIOS.from_rows(rows)


def _scenario_row(scenario: Scenario) -> dict[str, Any]:
    return vars(scenario) | {"assumptions": "; ".join(scenario.assumptions)}


class _Advice(NamedTuple):
    """The findings of a run, and the changes that they advise."""

    # By rule: the upper bound of its saving.
    bounds: Mapping[str, float | None]
    # Rules whose finding depends on a condition.
    conditional: Container[str]
    # Whether a finding shows, without a condition, that the machine has a faster link.
    is_slow_link_sure: bool
    # By rule: the change that it advises.
    changes: Mapping[str, Knobs]
    # The NVLink bandwidth by the data sheets of the GPUs.
    nvlink_bytes_per_s: float | None


class _Basis(NamedTuple):
    """The steps that an answer is based on."""

    n_steps: int
    step_time_ns: float | None
    problem_rows: tuple[Mapping[str, Any], ...]
    limit_step_time_ns: float | None = None
    limit_gain_ns: float | None = None
    identity_error_pct: float | None = None


def whatif(
    run: Run,
    *,
    gradient_bytes: float | None = None,
    **changes: Any,  # noqa: ANN401 - arguments of `knobs_of`
) -> WhatIf:
    """Answer `api.whatif` for an opened run."""
    gradient_bytes = plain_number(gradient_bytes)
    numbers = {name: plain_number(changes.get(name)) for name in ("bandwidth", "bucket_mb")}
    plain_changes = changes | numbers
    requested = knobs_of(gradient_bytes=gradient_bytes, **plain_changes)
    opened = opened_replay(run, gradient_bytes)
    replay = None if isinstance(opened, str) else opened
    advice = _read_advice(run, opened)
    questions = {"custom": requested} if requested else _menu(run, replay, advice)
    scenarios = []
    for key, knobs in questions.items():
        scenarios.append(_answer_question(key, knobs, run, opened, advice))
    if not requested:
        scenarios.sort(key=_menu_order)
    basis = _basis_of(run, replay)
    is_answered = _is_answered_without_late_ranks(opened, [*questions.values()])
    header = run.header
    return WhatIf(
        run_id=header.run_id,
        label=header.label,
        scenarios=tuple(scenarios),
        run=run,
        is_answered_without_late_ranks=is_answered,
        **basis._asdict(),
    )


def _menu_order(scenario: Scenario) -> tuple[bool, float]:
    """Return the key that sorts the largest gain first, and scenarios without an estimate last."""
    return scenario.gain_pct is None, -(scenario.gain_pct or 0.0)


def _read_advice(run: Run, opened: Replay | str) -> _Advice:
    """Return the findings of a run. `opened` is its replay, or the reason why there is none."""
    judged: list[dict[str, Any]] = [{**row} for row in run.judged_findings().to_pylist()]
    findings = _limit_bounds(run, judged, opened)
    bounds = {row["id"]: row["saving_ns_per_step"] for row in findings}
    conditional = {row["id"] for row in findings if is_conditional(row)}
    slow_links = [row for row in findings if row["id"] == _SLOW_LINK]
    # A finding with a condition, or one that only assumes NVLink, does not show a faster link.
    is_unconditional = bool(slow_links) and _SLOW_LINK not in conditional
    is_nvlink_only_assumed = any(map(is_nvlink_assumed, slow_links))
    is_slow_link_sure = is_unconditional and not is_nvlink_only_assumed
    nvlink_bytes_per_s = nvlink_promise(run.header.gpu_names)
    changes = {}
    for rule in bounds:
        change = advised_change(rule, nvlink_bytes_per_s)
        if change:
            changes[rule] = change
    return _Advice(bounds, conditional, is_slow_link_sure, changes, nvlink_bytes_per_s)


def _menu(run: Run, replay: Replay | None, advice: _Advice) -> dict[str, Knobs]:
    """Return the changes that `whatif` answers if none is requested, by `Scenario.id`."""
    menu = _MENU | menu_of_links(run.header.gpu_names)
    for key, knobs in _SELDOM_USEFUL.items():
        if replay and not why_refused(replay, knobs):
            menu[key] = knobs
    # The links that findings advise.
    for change in advice.changes.values():
        if change.link:
            menu[f"link-{change.link}"] = change
    return menu


def _answer_question(
    key: str, knobs: Knobs, run: Run, opened: Replay | str, advice: _Advice
) -> Scenario:
    """Return the answer about one combination of changes. `key` is its ID."""
    rule = finding_of(knobs, advice.bounds, advice.nvlink_bytes_per_s)
    bound_ns = None if rule is None else advice.bounds.get(rule)
    link_place = None
    if knobs.link is not None:
        link_place = _link_place(knobs.link, run, opened, is_sure=advice.is_slow_link_sure)
    estimate = _estimate(opened, knobs)
    return Scenario(
        id=key,
        label=knobs.label,
        knobs=knobs.given,
        finding=rule,
        finding_saving_ns=bound_ns,
        is_advised=_is_advised(knobs, rule, advice),
        link_place=link_place,
        **estimate,
    )


def _is_advised(knobs: Knobs, rule: str | None, advice: _Advice) -> bool:
    """Tell whether a finding of the run shows the estimate of exactly this change.

    `rule` is the ID of the finding that advises such a change, if there is one. A conditional
    finding shows no estimate. Neither does `EXPOSURE`, because the change that it advises is a
    limit.
    """
    if rule is None or rule == EXPOSURE or rule in advice.conditional:
        return False
    return advice.changes.get(rule) == knobs


def _basis_of(run: Run, replay: Replay | None) -> _Basis:
    """Return the steps that answers are based on, with the problems of the run and the replay.

    Without a replay these are the steps used of the run. If a run has several captures, only the
    steps of the simulated one count.
    """
    (summary,) = run.summary().to_pylist()
    problems = [*run.problem_rows]
    n_steps = summary["n_summary_steps"]
    step_time_ns = summary["step_time_ns"]
    if replay is None:
        return _Basis(n_steps, step_time_ns, tuple(problems))
    if replay.n_steps < n_steps:
        only_one_capture = problem("one-capture-replayed", n=replay.n_steps, total=n_steps)
        problems.append(only_one_capture.row)
        n_steps = replay.n_steps
        step_time_ns = replay.step_time_ns
    if n_steps < FEW_STEPS:
        few_steps = problem("few-steps-to-replay", n=n_steps)
        problems.append(few_steps.row)
    identity_error_pct = 100 * replay.identity_error
    return _Basis(
        n_steps=n_steps,
        step_time_ns=step_time_ns,
        problem_rows=tuple(problems),
        limit_step_time_ns=replay.limit_ns,
        limit_gain_ns=replay.limit_gain_ns,
        identity_error_pct=identity_error_pct,
    )


def _is_answered_without_late_ranks(opened: Replay | str, changes: Sequence[Knobs]) -> bool:
    """Tell whether any of the changes has no estimate only because a rank is late.

    Such a change would have an estimate together with ``no_wait``.
    """
    if isinstance(opened, str):
        return False
    changes_without_no_wait = [knobs for knobs in changes if not knobs.no_wait]
    for knobs in changes_without_no_wait:
        is_refused = why_refused(opened, knobs) is not None
        if is_refused and opened.why_refused_balanced(knobs) is None:
            return True
    return False


def _link_place(name: str, run: Run, opened: Replay | str, *, is_sure: bool) -> str:
    """Return `Scenario.link_place` of a link.

    `is_sure` tells whether a finding shows, without a condition, that NVLink is there and not used.
    """
    link = LINKS[name]
    gpu_names = run.header.gpu_names
    # The name ends with the generation and the width. For example, the kind of pcie5x16 is pcie.
    kind = name.rstrip("0123456789x")
    peaks = _peaks_of_gpus(gpu_names)
    is_beyond_gpus = (link.nominal_bytes_per_s or 0.0) > peaks.get(kind, 0.0)
    if len(run.header.hosts) > 1 or is_beyond_gpus:
        return ELSEWHERE
    reached_bytes_per_s = _fastest_captured(opened)
    # Every machine has shared memory. It has any other link if its ranks reach the bandwidth of the
    # link already.
    if kind == "shm" or link.bus_bytes_per_s <= reached_bytes_per_s:
        return HERE
    # Only NVLink is faster than PCIe. So a bandwidth above that of PCIe shows that there is NVLink.
    is_faster_than_pcie = reached_bytes_per_s > peaks["pcie"] > 0
    has_nvlink = is_sure or is_faster_than_pcie or _are_all_links_nvlink(run)
    return HERE if kind == "nvlink" and has_nvlink else UNKNOWN


def _peaks_of_gpus(gpu_names: Sequence[str]) -> dict[str, float]:
    """Return the bandwidth that GPUs can reach by each kind of link, bytes per s; 0 if unknown.

    The GPUs do not limit the bandwidth through memory of the host (``shm``).
    """
    nvlink_bytes_per_s = nvlink_promise(gpu_names)
    pcie = nominal_speed(gpu_names, path="PCIe")
    return {
        "nvlink": nvlink_bytes_per_s or 0.0,
        "pcie": pcie.bytes_per_s if pcie else 0.0,
        "shm": math.inf,
    }


def _fastest_captured(opened: Replay | str) -> float:
    """Return the largest captured bus bandwidth, 0 if none is known."""
    if isinstance(opened, str):
        return 0.0
    return max(opened.bus_bandwidth_of(role) or 0.0 for role in opened.roles)


def _are_all_links_nvlink(run: Run) -> bool:
    """Tell whether all recorded links are NVLink. False if none were recorded."""
    links = run.links().to_pylist()
    return bool(links) and all(map(_is_nvlink, links))


def _is_nvlink(row: Mapping[str, Any]) -> bool:
    path = row["path"] or ""
    return row["kind"] == "nvlink" or path.startswith("NV")


def _estimate(opened: Replay | str, knobs: Knobs) -> dict[str, Any]:
    """Return the fields of a `Scenario` about its estimate, or about the reason why it has none."""
    if isinstance(opened, str):
        return _refusal_fields(opened)
    reason = why_refused(opened, knobs)
    if reason is not None:
        return _refusal_fields(reason)
    predicted = opened.predict(knobs)
    gain_ns = opened.step_time_ns - predicted.step_time_ns
    sentences = [*assumptions(opened, knobs)]
    # If steps get shorter by more than CPUs are ahead of their GPUs, CPUs have to launch faster.
    if gain_ns > opened.lead_ns:
        sentences.append(f"{FASTER_HOSTS}, which the capture does not show")
    throughput_steps_per_s = 1e9 / predicted.step_time_ns
    gain_pct = 100 * gain_ns / opened.step_time_ns
    return {
        **predicted._asdict(),
        "throughput_steps_per_s": throughput_steps_per_s,
        "gain_pct": gain_pct,
        "assumptions": tuple(sentences),
    }


def _refusal_fields(reason: str) -> dict[str, str]:
    """Return the fields of a `Scenario` about the reason why it has no estimate."""
    return {"refused": in_python(reason), "refused_in_options": reason}


def menu_of_links(gpu_names: Sequence[str]) -> dict[str, Knobs]:
    """Return the changes of the link in a menu, by `Scenario.id`.

    Of NVLink the menu has the fastest generation that the GPUs have. If the model of the GPUs is
    not known, the menu has several generations. If the model has no NVLink, the menu has none.
    """
    promised = nvlink_promise(gpu_names)
    # Every known model has PCIe.
    is_model_known = nominal_speed(gpu_names, path="PCIe") is not None
    nvlinks: tuple[str, ...] = ()
    if promised is not None:
        fastest = _fastest_link(promised, "nvlink")
        nvlinks = () if fastest is None else (fastest,)
    elif not is_model_known:
        nvlinks = _NVLINKS
    names = (*nvlinks, *_LINKS_BESIDES_NVLINK)
    return {f"link-{name}": Knobs(link=name) for name in names}


def _fastest_link(promised: float | None, *kinds: str) -> str | None:
    """Return the fastest link of some kinds that is no faster than data sheets promise.

    `promised` is the bandwidth that they promise, bytes per s. Return None if there is no such
    link.
    """
    links = [link for link in LINKS.values() if link.name.startswith(kinds)]
    max_bytes_per_s = promised or 0.0
    possible = [link for link in links if link.bus_bytes_per_s <= max_bytes_per_s]
    fastest = max(possible, key=lambda link: link.bus_bytes_per_s, default=None)
    return None if fastest is None else fastest.name


def advised_change(rule: str, promised: float | None) -> Knobs | None:
    """Return the change that a finding advises. Return None if it cannot be simulated.

    For the rule slow-link, it is the fastest link that data sheets promise. `promised` is the
    bandwidth of NVLink that they promise.
    """
    if rule != _SLOW_LINK:
        return ADVICE.get(rule)
    fastest = _fastest_link(promised, "nvlink", "pcie")
    return None if fastest is None else Knobs(link=fastest)


def finding_of(
    knobs: Knobs, fired: Container[str], promised_bytes_per_s: float | None
) -> str | None:
    """Return the ID of the finding that advises such a change, with any value.

    For example, the bucket size does not matter. `fired` are the rules that have a finding in the
    run. Return None if there are several changes, or if no finding advises such a change. A link or
    a bandwidth above `promised_bytes_per_s`, which data sheets promise, is not advised either.
    """
    names = knobs.given.keys()
    if len(names) != 1:
        return None
    if names & _LINK_CHANGES:
        target_bytes_per_s = knobs.target_bytes_per_s or 0.0
        is_promised = promised_bytes_per_s is None or target_bytes_per_s <= promised_bytes_per_s
        return _SLOW_LINK if _SLOW_LINK in fired and is_promised else None
    for rule, change in ADVICE.items():
        if names == change.given.keys() and rule in fired:
            return rule
    return None


def _limit_bounds(
    run: Run, rows: Sequence[dict[str, Any]], opened: Replay | str
) -> list[dict[str, Any]]:
    """Return findings, with bounds that are at most what zero communication time saves.

    Only bounds that rest on transfer times are limited. A finding whose bound becomes 0 is left
    out, because there is nothing to change. All bounds stay if it is not known what zero
    communication time saves, or if that is known of only one of several captures.
    """
    if isinstance(opened, str) or opened.limit_gain_ns is None:
        return [*rows]
    (summary,) = run.summary().to_pylist()
    is_of_one_capture = opened.n_steps < summary["n_summary_steps"]
    if is_of_one_capture:
        return [*rows]
    limited = []
    for row in rows:
        if row["id"] in _TRANSFER_RULES:
            limited_row = _limit_bound(row, opened.limit_gain_ns, summary["throughput_steps_per_s"])
            if limited_row["saving_ns_per_step"] != 0:
                limited.append(limited_row)
        else:
            limited.append(row)
    return limited


def _limit_bound(
    row: dict[str, Any], limit_ns: float, throughput_steps_per_s: float
) -> dict[str, Any]:
    """Return a finding with a bound of at most a limit, and with a new severity.

    The evidence has parts that sum to the bound. What the limit takes from the bound is one more
    part, which is negative.
    """
    saving_ns = row["saving_ns_per_step"] or 0.0
    if limit_ns >= saving_ns:
        return row
    evidence = json.loads(row["evidence"])
    # Without parts, the whole bound comes from the breakdown.
    parts = evidence.get(_PARTS, {"by_breakdown": saving_ns})
    # The bound of a saved run may have been limited before. Then both differences add up.
    part_before_ns = parts.get("left_by_replay", 0.0)
    parts["left_by_replay"] = part_before_ns + limit_ns - saving_ns
    evidence[_PARTS] = parts
    saved_share = limit_ns * throughput_steps_per_s / 1e9
    limited = {
        "saving_ns_per_step": limit_ns,
        "evidence": json.dumps(evidence, allow_nan=False),
        "severity": severity_of(saved_share),
    }
    return row | limited


@dataclass(frozen=True, repr=False, eq=False)
class AnsweredRun(ReportRun):
    """A run whose findings have the expected savings of their advice."""

    def _make(self, name: str) -> pa.Table:
        """Return a table by its name. Findings have the expected savings of their advice."""
        if name != "findings":
            return super()._make(name)
        findings = with_expected_savings(self, self.judged_findings())
        if self._stale():
            # Reports have changed, maybe since `problems` was made. Then it is made again, with the
            # problem that they have changed.
            self._made.pop("problems", None)
        return findings


def with_expected_savings(run: Run, findings: FindingsTable) -> pa.Table:
    """Return findings with the simulated saving of the change that each finding advises.

    The expected saving is the captured minus the predicted step time. Like the bound, it is a mean
    over steps, but the bound does not limit it. Bounds on transfer times are limited to what zero
    communication time saves. Findings are sorted anew, by `findings.judge.in_order`.

    Evidence has the change as ``replay_change``. It also has the median step time as
    ``replay_step_time_ns`` with its range, or the reason against an estimate as ``replay_refused``.

    ``comm-bound`` has no expected saving, because perfect overlap is no setting. Its simulated
    saving is ``replay_limit_ns_per_step`` in the evidence. A conditional finding has no expected
    saving either. Its simulated saving is ``replay_conditional_ns_per_step``.
    """
    promised = nvlink_promise(run.header.gpu_names)
    rows: list[dict[str, Any]] = [{**row} for row in findings.to_pylist()]
    changes = {row["id"]: advised_change(row["id"], promised) for row in rows}
    are_changes_advised = any(changes.values())
    has_bounds_to_limit = not _TRANSFER_RULES.isdisjoint(changes)
    if not are_changes_advised and not has_bounds_to_limit:
        # A replay would change nothing.
        return findings
    opened = _open_if_quick(run)
    expected_rows = []
    for row in _limit_bounds(run, rows, opened):
        change = changes[row["id"]]
        expected = {} if change is None else _expect(row, change, opened)
        expected_rows.append(row | expected)
    return schema.FINDINGS.from_rows(in_order(expected_rows))


def _open_if_quick(run: Run) -> Replay | str:
    """Return a run ready to simulate changes, or the reason why it cannot be simulated.

    A run with very many kernels is not opened here, because reading them again takes long.
    """
    n_kernels_of_ranks = run.ranks["n_kernels"]
    n_kernels = pc.sum(n_kernels_of_ranks).as_py() or 0
    if n_kernels > _MAX_KERNELS:
        return f"not simulated here, because {n_kernels:,} kernels take long (run nsyspipe whatif)"
    try:
        return opened_replay(run)
    except NsyspipeError as error:
        # Findings without expected savings are better than none.
        return (
            f"{error.lines()[0]}, and a replay reads the reports again: analyze them while "
            "they are there"
        )


def _expect(row: Mapping[str, Any], change: Knobs, opened: Replay | str) -> dict[str, Any]:
    """Return the columns of a finding about the simulation of the change that it advises.

    The simulated saving is the expected saving, with two exceptions: for a limit (`EXPOSURE`) and
    for a conditional finding it is only in the evidence.
    """
    evidence = json.loads(row["evidence"]) | {"replay_change": change.label}
    expected_ns = None
    reason = why_refused(opened, change)
    if isinstance(opened, str) or reason is not None:
        evidence["replay_refused"] = reason
    else:
        predicted = opened.predict(change)
        if row["id"] == EXPOSURE:
            evidence["replay_limit_ns_per_step"] = predicted.mean_gain_ns
        elif is_conditional(row):
            evidence["replay_conditional_ns_per_step"] = predicted.mean_gain_ns
        else:
            expected_ns = predicted.mean_gain_ns
        evidence["replay_step_time_ns"] = predicted.step_time_ns
        evidence["replay_step_time_low_ns"] = predicted.low_ns
        evidence["replay_step_time_high_ns"] = predicted.high_ns
        if opened.step_time_ns - predicted.step_time_ns > opened.lead_ns:
            evidence["replay_assumes"] = FASTER_HOSTS
    return {
        "expected_ns_per_step": expected_ns,
        "evidence": json.dumps(evidence, allow_nan=False),
    }
