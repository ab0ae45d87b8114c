"""Ask what a change of the communication would bring, and what the findings' advice would."""

import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from nsyspipe.model.options import plain_number
from nsyspipe.model.problems import problem
from nsyspipe.model.table import table
from nsyspipe.replay.assumptions import assumptions
from nsyspipe.replay.knobs import LINKS, Knobs, knobs_of
from nsyspipe.replay.opening import opened_replay
from nsyspipe.replay.scenarios import Replay, why_refused
from nsyspipe.run.reports import ReportRun
from nsyspipe.run.run import Run, ShownInNotebooks

_MENU = {
    **{f"bucket-{size:g}": Knobs(bucket_mb=float(size)) for size in (BUCKET_MB, LARGE_BUCKET_MB)},
    "no-grad-copy": Knobs(no_grad_copy=True),
    "gradient-bf16": Knobs(gradient_dtype="bf16"),
    "no-wait": Knobs(no_wait=True),
    "perfect-overlap": Knobs(perfect_overlap=True),
}
_NVLINKS = ("nvlink5", "nvlink4")
_LINKS_BESIDES_NVLINK = ("pcie5x16", "pcie4x16", "shm")
_WHERE_IT_FITS = {
    "no-sync": Knobs(no_sync=True),
    "prefetch": Knobs(prefetch=True),
}  # most runs have neither
FASTER_HOSTS = "the CPU can launch kernels early enough"
_MOST_OPERATIONS = (
    500_000  # more than this and reading them again takes seconds: `whatif` does it for who asks
)
# By rule: the change that it advises, of comm-bound the limit of it. Which link slow-link means,
# the run's GPUs say.
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
# What they say could be gained is the transfer of communication, and what that slows: no more than
# if it took no time.
_OF_TRANSFER = {
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
HERE = "here"
UNKNOWN = "unknown"
ELSEWHERE = "elsewhere"
# What kind of change a scenario is: `Scenario.group`.
SETTING = "setting"
HARDWARE = "hardware"
LIMIT = "limit"
GROUPS = (SETTING, HARDWARE, LIMIT)
_LIMITS = frozenset({"perfect_overlap", "no_wait"})  # states that no option of the program sets
_BANDWIDTHS = frozenset({"bandwidth_bytes_per_s", "bandwidth_factor"})
_SLOW_LINK = "slow-link"
_OF_LINKS = {"bandwidth_bytes_per_s", "bandwidth_factor", "link"}


SCENARIOS = table("""
    scenarios by id: One row per combination of changes that `whatif` answers or refuses, in the order of the answer.

    id                        text           stable, for example bucket-25 or link-nvlink4. custom is a combination that you asked for
    label                     text           the change in words
    step_time_ns              float:ns?      predicted step time, null if there is no estimate
    low_ns                    float:ns?      lower end of the range, null if there is no estimate
    high_ns                   float:ns?      upper end of the range, null if there is no estimate
    throughput_steps_per_s    1/s?           1e9 / step_time_ns
    gain_pct                  float:%?        100 x (captured - predicted) / captured step time, both medians over steps. Positive is faster
    mean_gain_ns              float:ns?      mean over steps of captured minus predicted step time, as the expected_ns_per_step of a finding that advises the same change
    assumptions               text           assumptions of the estimate
    refused                   text?          why there is no estimate, null if there is one
    finding                   text?          ID of the finding of the run that advises such a change, null if there is none or for several changes
    finding_saving_ns         float:ns?      upper bound of the saving of that finding, per step, null if the finding has none
    is_advised                flag           whether the finding shows the estimate of this change. False for conditional findings and limits
    link_place                text?          of a link: here where the run or its machine is known to have it, unknown where only its GPUs could, else elsewhere, in
        another machine; null of all other changes
""")


@dataclass(frozen=True)
class Scenario:
    """What one combination of changes would bring: a row of `SCENARIOS`.

    Besides `knobs` is what is changed, by the names of `whatif`'s arguments; a bandwidth is
    ``bandwidth_bytes_per_s`` or ``bandwidth_factor``, a number however it was given, and ``role``
    whose it is. `refused_in_options` is `refused` in the words of the command's options.
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
        """What kind of change it is, one of `GROUPS`.

        A setting is an option of the program or of its environment that you can change on this
        machine. A link is a setting only if the machine has the link and does not use it, so that a
        step gets shorter. A limit is no setting of any program. Everything else needs other
        hardware.
        """
        names = self.knobs.keys()
        if not _LIMITS.isdisjoint(names):
            return LIMIT
        is_link_to_switch_on = self.link_place == HERE and (self.gain_pct or 0.0) > 0
        is_hardware = not _BANDWIDTHS.isdisjoint(names) or (
            self.link_place is not None and not is_link_to_switch_on
        )
        return HARDWARE if is_hardware else SETTING


@dataclass(frozen=True, repr=False)
class WhatIf(ShownInNotebooks):
    """The answer to `whatif`.

    Attributes
    ----------
    run_id, label
        Of the run.
    n_steps
        Steps that the answer rests on.
    step_time_ns
        Captured step time: of each summary step the largest window over ranks, then the median;
        None without any.
    limit_step_time_ns
        The same replayed with transfers that take no time and slow nothing, late ranks waited for
        as before, and with the most that they may slow in the capture: what no other link, bucket
        or datatype can beat. ``no_wait`` and ``no_grad_copy`` change the work itself, so they can.
        A median as `step_time_ns`. None where nothing can be replayed, and where sharded (FSDP):
        how much of that work communication slows is not known.
    limit_gain_ns
        What a step gains then, at least 0: a mean over steps, as of findings, and no difference of
        the two medians; None likewise.
    identity_error_pct
        Largest difference of any step between capture and replay with nothing changed, in per cent;
        None likewise.
    scenarios
        One per question; a menu has the largest gain first, refused ones last.
    problem_rows
        What `problems` has, in the words of the commands.
    run
        The run that was asked.
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
    run: Run | None = field(default=None, compare=False)  # what was asked, which its files say too
    is_answered_without_late_ranks: bool = field(default=False, compare=False)

    @property
    def problems(self) -> tuple[Mapping[str, Any], ...]:
        """Rows of `schema.PROBLEMS`, and what the replay adds."""
        return tuple(rows_in_python(self.problem_rows))

    def __repr__(self) -> str:
        return f"<WhatIf of {self.label!r}: {self.verdict}>"

    def table(self) -> pa.Table:
        """`SCENARIOS`: one row per scenario, in their order; assumptions as one text."""
        return SCENARIOS.from_rows(
            [
                vars(scenario) | {"assumptions": "; ".join(scenario.assumptions)}
                for scenario in self.scenarios
            ]
        )


def whatif(run: Run, *, gradient_bytes: float | None = None, **changes: Any) -> WhatIf:  # noqa: ANN401 - of `knobs_of`
    """Answer what `api.whatif` is asked, of an opened run."""
    gradient_bytes = plain_number(gradient_bytes)
    numbers = {name: plain_number(changes.get(name)) for name in ("bandwidth", "bucket_mb")}
    asked = knobs_of(gradient_bytes=gradient_bytes, **changes | numbers)
    opened = opened_replay(run, gradient_bytes)
    replay = None if isinstance(opened, str) else opened
    fitting = {
        key: one for key, one in _WHERE_IT_FITS.items() if replay and not why_refused(replay, one)
    }
    findings = run.judged_findings().to_pylist()
    _limit_bounds(run, findings, opened)
    bounds = {row["id"]: row["saving_ns_per_step"] for row in findings}
    conditional = {row["id"] for row in findings if is_conditional(row)}
    unsure = conditional | {row["id"] for row in findings if is_nvlink_assumed(row)}
    promised = nvlink_promise(run.header.gpu_names)
    advised = {rule: change for rule in bounds if (change := advised_change(rule, promised))}
    links = {f"link-{change.link}": change for change in advised.values() if change.link}
    menu = _MENU | menu_of_links(run.header.gpu_names) | fitting | links
    questions = {"custom": asked} if asked else menu
    scenarios = []
    for key, knobs in questions.items():
        finding = finding_of(knobs, bounds, promised)
        is_advised = finding not in {EXPOSURE, *conditional} and advised.get(finding) == knobs
        told: dict[str, Any] = {
            "finding": finding,
            "finding_saving_ns": bounds.get(finding),
            "is_advised": is_advised,
        }
        told["link_place"] = knobs.link and _link_place(
            knobs.link, run, opened, is_sure=_SLOW_LINK in bounds.keys() - unsure
        )
        scenarios.append(Scenario(key, knobs.label, knobs.given, **told, **_answer(opened, knobs)))
    if not asked:
        scenarios.sort(key=lambda one: (one.gain_pct is None, -(one.gain_pct or 0.0)))
    summary = run.summary().to_pylist()[0]
    problems = run.problem_rows
    n_steps = summary["n_summary_steps"]
    step_time_ns = summary["step_time_ns"]
    if replay is not None and replay.n_steps < n_steps:
        problems.append(problem("one-capture-replayed", n=replay.n_steps, total=n_steps).row)
        n_steps = replay.n_steps
        step_time_ns = replay.step_time_ns
    if replay is not None and n_steps < FEW_STEPS:
        problems.append(problem("few-steps-to-replay", n=n_steps).row)
    limit_ns = None
    limit_gain_ns = None
    error_pct = None
    if replay is not None:
        limit_ns = replay.limit_ns
        limit_gain_ns = replay.limit_gain_ns
        error_pct = 100 * replay.identity_error
    return WhatIf(
        run.header.run_id,
        run.header.label,
        n_steps,
        step_time_ns,
        limit_ns,
        limit_gain_ns,
        error_pct,
        tuple(scenarios),
        tuple(problems),
        run,
        _is_answered_without_late_ranks(opened, [*questions.values()]),
    )


def _is_answered_without_late_ranks(opened: Replay | str, changes: Sequence[Knobs]) -> bool:
    """Tell whether one of the changes has no estimate because a rank is late, and would have one if no rank were."""
    if isinstance(opened, str):
        return False
    refused = (
        knobs for knobs in changes if not knobs.no_wait and why_refused(opened, knobs) is not None
    )
    return any(opened.why_refused_balanced(knobs) is None for knobs in refused)


def _link_place(name: str, run: Run, opened: Replay | str, *, is_sure: bool) -> str:
    """Return `Scenario.link_place` of a link; `is_sure` if a finding says, on no condition, that NVLink is there and not used."""
    link = LINKS[name]
    names = run.header.gpu_names
    kind = name.rstrip("0123456789x")
    pcie = nominal_speed(names, "PCIe")
    own = {
        "nvlink": nvlink_promise(names) or 0.0,
        "pcie": pcie.bytes_per_s if pcie else 0.0,
        "shm": math.inf,
    }
    if len(run.header.hosts) > 1 or (link.nominal_bytes_per_s or 0.0) > own.get(kind, 0.0):
        return ELSEWHERE
    reached = (
        0.0
        if isinstance(opened, str)
        else max(opened.bus_bandwidth_of(role) or 0.0 for role in opened.roles)
    )
    seen = [
        row["kind"] == "nvlink" or (row["path"] or "").startswith("NV")
        for row in run.links().to_pylist()
    ]
    has_nvlink = is_sure or reached > own["pcie"] > 0 or (seen and all(seen))
    return (
        HERE
        if kind == "shm" or link.bus_bytes_per_s <= reached or (kind == "nvlink" and has_nvlink)
        else UNKNOWN
    )


def _answer(opened: Replay | str, knobs: Knobs) -> dict[str, Any]:
    refused = why_refused(opened, knobs)
    if isinstance(opened, str) or refused is not None:
        return {"refused": refused and in_python(refused), "refused_in_options": refused}
    predicted = opened.predict(knobs)
    gain = opened.step_time_ns - predicted.step_time_ns
    said = [*assumptions(opened, knobs)]
    if gain > opened.lead_ns:
        said.append(f"{FASTER_HOSTS}, which the capture does not show")
    rates = {
        "throughput_steps_per_s": 1e9 / predicted.step_time_ns,
        "gain_pct": 100 * gain / opened.step_time_ns,
    }
    return {**predicted._asdict(), **rates, "assumptions": tuple(said)}


def menu_of_links(gpu_names: Sequence[str]) -> dict[str, Knobs]:
    """Return the links that a menu asks about: of NVLink the generation of the GPUs, or several if the model is not known."""
    nvlinks: tuple[str, ...] = _NVLINKS
    promised = nvlink_promise(gpu_names)
    if promised is not None:
        fastest = _fastest_link(promised, "nvlink")
        nvlinks = () if fastest is None else (fastest,)
    elif nominal_speed(gpu_names, "PCIe") is not None:  # models without NVLink
        nvlinks = ()
    return {f"link-{name}": Knobs(link=name) for name in (*nvlinks, *_LINKS_BESIDES_NVLINK)}


def _fastest_link(promised: float | None, *kinds: str) -> str | None:
    """Return the fastest link of some kinds that is not beyond what data sheets promise of the GPUs."""
    of_kinds = [link for link in LINKS.values() if link.name.startswith(kinds)]
    within = [link for link in of_kinds if link.bus_bytes_per_s <= (promised or 0.0)]
    best = max(within, key=lambda link: link.bus_bytes_per_s, default=None)
    return None if best is None else best.name


def advised_change(rule: str, promised: float | None) -> Knobs | None:
    """Return the change that a finding advises, None where the replay knows none; of links the fastest not beyond a promise."""
    if rule != _SLOW_LINK:
        return ADVICE.get(rule)
    best = _fastest_link(promised, "nvlink", "pcie")
    return None if best is None else Knobs(link=best)


def finding_of(knobs: Knobs, fired: Container[str], promised: float | None) -> str | None:
    """Return the id of the finding that advises a change; None for several, without such a rule, for links beyond its own."""
    names = knobs.given.keys()
    if len(names) != 1:
        return None
    if not names & _OF_LINKS:
        return next(
            (rule for rule, one in ADVICE.items() if names == one.given.keys() and rule in fired),
            None,
        )
    is_beyond = promised is not None and (knobs.target_bytes_per_s or 0.0) > promised
    return None if is_beyond or _SLOW_LINK not in fired else _SLOW_LINK


def _limit_bounds(run: Run, rows: list[dict[str, Any]], opened: Replay | str) -> None:
    """Let no bound on what transfers cost be above what a replay gains if they took no time; what it leaves is a part then.

    Where that is nothing there is nothing to change. A replay of one of several captures bounds
    nothing.
    """
    if isinstance(opened, str) or opened.limit_gain_ns is None:
        return
    if opened.n_steps < run.summary()["n_summary_steps"][0].as_py():
        return
    limit = opened.limit_gain_ns
    for row in rows:
        if row["id"] in _OF_TRANSFER and limit < (saving := row["saving_ns_per_step"] or 0.0):
            evidence = json.loads(row["evidence"])
            parts = evidence.get(_PARTS, {"by_breakdown": saving})
            parts["left_by_replay"] = (
                parts.get("left_by_replay", 0.0) + limit - saving
            )  # a saved run has it
            row |= {
                "saving_ns_per_step": limit,
                "evidence": json.dumps(evidence | {_PARTS: parts}, allow_nan=False),
            }
            row["severity"] = severity_of(
                limit * run.summary()["throughput_steps_per_s"][0].as_py() / 1e9
            )
    rows[:] = [
        row for row in rows if row["id"] not in _OF_TRANSFER or row["saving_ns_per_step"] != 0
    ]


@dataclass(frozen=True, repr=False, eq=False)
class AnsweredRun(ReportRun):
    """A run whose findings come with what a replay of their advice brings."""

    def _make(self, name: str) -> pa.Table:
        if name != "findings":
            return super()._make(name)
        made = with_expected_savings(self, self.judged_findings())
        if (
            self._stale()
        ):  # it may lack what is likely: problems that were told before are told anew
            self._made.pop("problems", None)
        return made


def with_expected_savings(run: Run, findings: pa.Table) -> pa.Table:
    """Return findings with what a replay of each one's advice brings, as `whatif` answers it, by `findings.judge.in_order`.

    Bounds on what transfers cost are no more than what the replay gains if these took no time.
    ``expected_ns_per_step`` = captured - predicted step time, the mean over steps as of the bound,
    whatever that says. Evidence: ``replay_change``; the medians ``replay_step_time_ns``, ``_low_``,
    ``_high_``; or ``replay_refused``, why not. Nothing is expected of ``comm-bound``, as perfect
    overlap is no setting, nor of what is conditional: what they gain is
    ``replay_limit_ns_per_step`` and ``replay_conditional_ns_per_step``.
    """
    promised = nvlink_promise(run.header.gpu_names)
    rows = findings.to_pylist()
    changes = {row["id"]: advised_change(row["id"], promised) for row in rows}
    if not any(changes.values()) and _OF_TRANSFER.isdisjoint(row["id"] for row in rows):
        return findings
    n_operations = pc.sum(run.ranks["n_kernels"]).as_py() or 0
    opened: Replay | str = (
        f"not simulated here, because {n_operations:,} kernels take long (run nsyspipe whatif)"
    )
    if n_operations <= _MOST_OPERATIONS:
        try:
            opened = opened_replay(run)
        except NsyspipeError as error:  # an answer without it is better than none
            opened = (
                f"{error.lines()[0]}, and a replay reads the reports again: analyze them while "
                "they are there"
            )
    _limit_bounds(run, rows, opened)
    for row, change in (
        (row, change) for row in rows if (change := changes[row["id"]]) is not None
    ):
        evidence = json.loads(row["evidence"]) | {"replay_change": change.label}
        refused = why_refused(opened, change)
        row["expected_ns_per_step"] = None
        if isinstance(opened, str) or refused is not None:
            evidence["replay_refused"] = refused
        else:
            *times, gain = opened.predict(change)
            if row["id"] == EXPOSURE or is_conditional(row):
                evidence[
                    f"replay_{'limit' if row['id'] == EXPOSURE else 'conditional'}_ns_per_step"
                ] = gain
            else:
                row["expected_ns_per_step"] = gain
            evidence |= zip(
                (f"replay_step_time_{name}ns" for name in ("", "low_", "high_")), times, strict=True
            )
            evidence |= (
                {"replay_assumes": FASTER_HOSTS}
                if opened.step_time_ns - times[0] > opened.lead_ns
                else {}
            )
        row["evidence"] = json.dumps(evidence, allow_nan=False)
    return schema.FINDINGS.from_rows(in_order(rows))
