"""The answer of a simulation: the best setting first, then every change in three groups."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from msgspec import Struct

from nsyspipe.model.names import few, grouped, listed
from nsyspipe.model.problems import OF_FILES_BESIDE
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.replay.answer import (
    ELSEWHERE,
    FASTER_HOSTS,
    GROUPS,
    HARDWARE,
    HERE,
    LIMIT,
    SETTING,
    UNKNOWN,
    Scenario,
    WhatIf,
)
from nsyspipe.report import blocks, words
from nsyspipe.report.blocks import Field, table_of
from nsyspipe.report.export import formats_of, lazily
from nsyspipe.report.files import Format
from nsyspipe.report.subject import hardware_text, steps_text
from nsyspipe.report.units import ms_text, percent_text, rate_text
from nsyspipe.report.words import Trouble, backward_source, mean_step_ns, same_problems
from nsyspipe.run.run import Run
from nsyspipe.version import __version__

META = "nsyspipe-whatif"
OF_REPLAYED = "Findings of nsyspipe analyze and their estimates"
_FEW_STEPS = "few-steps-to-replay"
GROUP_NAMES = {
    SETTING: "Settings you can change",
    HARDWARE: "Other hardware",
    LIMIT: "Limits (not settings)",
}
_ZERO_COMMUNICATION = "zero communication time"
_AS_CAPTURED = "as captured"
_IF_AVAILABLE = " (if available)"  # of a link that was not recorded
_SAME_NS = 1.0  # a smaller gain is none: nothing changes
_DIGITS = 3  # of an estimate
# changes that a sentence names
_MOST_TIED = 3
_MOST_REFUSED = 3
_BAR_WIDTH = 14  # characters of the longest bar
# narrower terminals get fewer columns rather than broken ones
_NARROW = 60
_WIDE = 74
_WIDER = 100


class MenuRow(Struct, frozen=True):
    """A row of the menu: a change with its estimate, or the name of a group, which has no step time."""

    label: str
    step_time_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    saved_ratio: float | None = None
    throughput_steps_per_s: float | None = None
    is_within_noise: bool = False
    knobs: frozenset[str] = frozenset()  # what is changed, by the names of `whatif`'s arguments


class SortedScenarios(Struct, frozen=True):
    """The scenarios that have an answer, by what their estimates mean."""

    effective: Sequence[Scenario]  # whose range leaves the captured step time out
    within_noise: Sequence[Scenario]
    unchanged: Sequence[Scenario]  # what the run has already


def sort_scenarios(found: WhatIf) -> SortedScenarios:
    """Return the scenarios that have an answer, by what their estimates mean; each part in the order of the answer."""
    answered = [scenario for scenario in found.scenarios if scenario.refused is None]
    unchanged = [scenario for scenario in answered if _is_captured(scenario)]
    changing = [scenario for scenario in answered if not _is_captured(scenario)]
    return SortedScenarios(
        effective=[scenario for scenario in changing if is_clear(found, scenario)],
        within_noise=[scenario for scenario in changing if not is_clear(found, scenario)],
        unchanged=unchanged,
    )


def headline(found: WhatIf) -> str:
    """Return the answer in a few sentences."""
    return " ".join(headline_sentences(found))


def headline_sentences(found: WhatIf) -> list[str]:
    """Return the sentences of the answer, the most important first."""
    answered = [scenario for scenario in found.scenarios if scenario.refused is None]
    if not answered:
        return _no_answer(found)
    if answered[0].id == "custom":
        return [_custom_answer(found, answered[0])]
    settings, others = _gaining(found)
    sentences = ["No setting has an estimated saving that is larger than its uncertainty."]
    least_pct = 0.0
    if settings:
        best, *next_best = settings
        least_pct = best.gain_pct or 0.0
        what = "Best setting" if len(answered) > 1 else "The only change with an estimate"
        sentences = [f"{what}: {best.label}, {_change(found, best)}."]
        tied = [scenario.label for scenario in next_best if _is_tied(best, scenario)]
        if tied:
            sentences.append(
                f"Predicted equally fast, within the ranges: {listed(tied, _MOST_TIED)}."
            )
    return sentences + [
        _condition(found, scenario) for scenario in others if (scenario.gain_pct or 0.0) > least_pct
    ]


def _gaining(found: WhatIf) -> tuple[list[Scenario], list[Scenario]]:
    """Return the settings that save time, the best first, and the best hardware of each place that may not be there."""
    gaining = [
        scenario for scenario in sort_scenarios(found).effective if (scenario.gain_pct or 0.0) > 0
    ]
    settings = [scenario for scenario in gaining if scenario.group == SETTING]
    if not settings:  # a rank that is late is not a setting, but may be all that has an estimate
        settings = [scenario for scenario in gaining if scenario.id == "no-wait"]
    best_of_place: dict[str, Scenario] = {}
    for scenario in gaining:
        if scenario.group == HARDWARE and scenario.link_place is not None:
            best_of_place.setdefault(scenario.link_place, scenario)
    return settings, list(best_of_place.values())


def best_setting(found: WhatIf) -> Scenario | None:
    """Return the change that the headline names first: the one that was asked for, else the setting that saves most."""
    first = found.scenarios[0]
    if first.id == "custom":
        return None if first.refused is not None or _is_captured(first) else first
    settings, _ = _gaining(found)
    return settings[0] if settings else None


def _no_answer(found: WhatIf) -> list[str]:
    (why, n_changes), *more_reasons = _most_usual_refusals(found)
    n_more = sum(n for _, n in more_reasons)
    subject = f"No estimate for {n_changes} changes" if n_more else "No estimate"
    sentences = [f"{subject}: {why}."]
    if n_more:
        others = "1 more change has" if n_more == 1 else f"{n_more} more changes have"
        sentences.append(f"{others} no estimate for other reasons, see below.")
    if found.limit_step_time_ns is not None and found.step_time_ns:
        gain = max(found.step_time_ns - found.limit_step_time_ns, 0.0)
        share = percent_text(gain / found.step_time_ns)
        sentences.append(
            f"A step with {_ZERO_COMMUNICATION} would save {ms_text(gain, _DIGITS)} ({share}). "
            "No other interconnect, "
            "bucket size or datatype can save more."
        )
    return sentences


def _custom_answer(found: WhatIf, scenario: Scenario) -> str:
    if _is_captured(scenario):
        return f"{scenario.label}: unchanged. The run is as fast already."
    answer = f"{scenario.label}{_note(scenario)}: {_change(found, scenario)}."
    return f"{answer} {_unrecorded_text(scenario)}" if scenario.link_place == UNKNOWN else answer


def _condition(found: WhatIf, scenario: Scenario) -> str:
    """Return what a link saves that these GPUs may not have, and on which condition."""
    saved = _saved(found, scenario)
    link = str(scenario.knobs["link"])
    if scenario.link_place == ELSEWHERE:
        return f"Other hardware: {link} would save {saved}."
    return f"{link}{_IF_AVAILABLE} would save {saved}. {_unrecorded_text(scenario)}"


def _unrecorded_text(scenario: Scenario) -> str:
    """Return that the reports do not show whether the machine has the link of a scenario."""
    link = str(scenario.knobs["link"])
    kind = "NVLink" if link.startswith("nvlink") else link
    return f"The reports do not show whether {kind} connects all of the GPUs."


def _is_tied(scenario: Scenario, other: Scenario) -> bool:
    """Tell whether each of two estimates is in the range of the other."""
    pairs = ((scenario, other), (other, scenario))
    return all(not words.is_clear(a.step_time_ns, b.low_ns, b.high_ns) for a, b in pairs)


def is_clear(found: WhatIf, scenario: Scenario) -> bool:
    """Tell whether the range of an estimate leaves the captured step time out."""
    return words.is_clear(found.step_time_ns, scenario.low_ns, scenario.high_ns)


def gain_text(found: WhatIf, scenario: Scenario) -> str:
    """Return the saving as a share of the step time, and whether it is within noise."""
    if scenario.gain_pct is None:
        return ""
    return f"{scenario.gain_pct:.1f}%{'' if is_clear(found, scenario) else ' (within noise)'}"


def _change(found: WhatIf, scenario: Scenario) -> str:
    """Return the predicted step time with its range, and by how much it differs from the captured one."""
    if scenario.gain_pct is None or not found.step_time_ns:
        return ""
    times = (
        f"{ms_text(found.step_time_ns, _DIGITS).removesuffix(' ms')} -> "
        f"{ms_text(scenario.step_time_ns, _DIGITS)}"
    )
    estimated = f"{times} per step (estimated {_range_text(scenario.low_ns, scenario.high_ns)} ms)"
    if not is_clear(found, scenario):
        return f"{estimated}, which is within noise"
    return (
        f"{estimated}, {abs(scenario.gain_pct):.1f}% {'less' if scenario.gain_pct > 0 else 'more'}"
    )


def _saved(found: WhatIf, scenario: Scenario) -> str:
    gain = scenario.gain_pct or 0.0
    return f"{ms_text(gain / 100 * (found.step_time_ns or 0.0), _DIGITS)} ({gain:.1f}%)"


def _number_text(ns: float | None) -> str:
    return ms_text(ns, _DIGITS).removesuffix(" ms")


def _range_text(low_ns: float | None, high_ns: float | None) -> str:
    return (
        ""
        if low_ns is None or high_ns is None
        else f"{_number_text(low_ns)} to {_number_text(high_ns)}"
    )


def whatif_blocks(
    found: WhatIf, run: Run, *, is_verbose: bool = True, has_bars: bool = False
) -> Iterator[blocks.Block]:
    """Yield the answer: the best setting, every change in its group, and what has no estimate.

    Verbose, also what findings promise, what each estimate assumes, changes within noise, and every
    problem.
    """
    yield from (blocks.Sentence(text, "bold") for text in headline_sentences(found))
    yield from few_steps_blocks(found)
    answered = [scenario for scenario in found.scenarios if scenario.refused is None]
    has_menu = len(menu_rows(found, answered, is_verbose=is_verbose)) > 1
    yield blocks.Facts(subject(found, run), "Run")
    yield blocks.Facts(
        _basis(found, run, has_step_time=is_verbose or not has_menu, is_verbose=is_verbose), "Steps"
    )
    if has_menu:
        yield menu(found, answered, is_verbose=is_verbose, has_bars=has_bars)
    if answered:
        yield from without_effect(found, is_verbose=is_verbose)
    if is_verbose:
        yield from finding_blocks(found, run)
    yield from assumption_blocks(answered, is_verbose=is_verbose)
    reasons = refusals(found, None if is_verbose else _MOST_REFUSED)
    if reasons:
        yield from (blocks.Heading("No estimate", "dim"), blocks.Items(reasons))
    yield from note_blocks(found)
    troubles = trouble_rows(found, is_verbose=is_verbose)
    if answered and troubles:
        yield blocks.Troubles(troubles)


def subject(found: WhatIf, run: Run) -> list[str]:
    """Return what the run is called, and what it ran on."""
    return [found.label, hardware_text(run)]


def few_steps_blocks(found: WhatIf) -> Iterator[blocks.Sentence]:
    """Yield the warning that the estimates use few steps, if they do."""
    for row in found.problem_rows:
        if row["code"] == _FEW_STEPS:
            yield blocks.Sentence(f"Warning: {row['message']}. Fix: {row['fix']}.", "bold")


def note_blocks(found: WhatIf) -> Iterator[blocks.Notes]:
    """Yield how to get an estimate that a late rank prevents, if there is such a way."""
    if found.is_answered_without_late_ranks:
        example = "for example --no-wait --bucket-mb 25"
        yield blocks.Notes(
            [f"To predict a change as if no rank were late, combine it with --no-wait, {example}."]
        )


def trouble_rows(found: WhatIf, *, is_verbose: bool) -> list[Trouble]:
    """Return the problems of the run, each once, without the one that is shown above everything."""
    rows = [
        row
        for row in found.problem_rows
        if row["code"] != _FEW_STEPS and _is_shown(row, is_verbose=is_verbose)
    ]
    return same_problems(rows, lambda _: "")


def _is_shown(row: dict[str, Any] | Any, *, is_verbose: bool) -> bool:  # noqa: ANN401 - a row of problems
    return row["severity"] != "info" or (is_verbose and row["code"] in OF_FILES_BESIDE)


def _basis(found: WhatIf, run: Run, *, has_step_time: bool, is_verbose: bool) -> list[str]:
    """Return what the estimates are based on."""
    parts = [steps_text(run), *backward_source(run)]
    if found.step_time_ns is not None and has_step_time:
        parts.append(f"step time {ms_text(found.step_time_ns)}")
    if found.identity_error_pct is not None and is_verbose:
        parts.append(f"simulation error {percent_text(found.identity_error_pct / 100, 2)}")
    return parts


def without_effect(found: WhatIf, *, is_verbose: bool) -> Iterator[blocks.Block]:
    """Yield which changes change nothing, in a line; a menu that has them as rows needs none."""
    if is_verbose or found.scenarios[0].id == "custom":
        return
    parts = sort_scenarios(found)
    sentences = []
    if parts.within_noise:
        sentences.append(
            f"Within noise: {', '.join(scenario.label for scenario in parts.within_noise)}."
        )
    if parts.unchanged:
        sentences.append(
            f"No change in step time: {', '.join(scenario.label for scenario in parts.unchanged)}."
        )
    if sentences:
        yield blocks.Notes([" ".join(sentences)])


def assumption_blocks(answered: Sequence[Scenario], *, is_verbose: bool) -> Iterator[blocks.Block]:
    """Yield what estimates assume: of a single one all, of several only what you have to check."""
    if len(answered) == 1:
        yield from (
            blocks.Heading("This estimate assumes", "dim"),
            blocks.Items(answered[0].assumptions),
        )
    elif is_verbose and answered:
        by_text = grouped(
            (text, scenario.label) for scenario in answered for text in scenario.assumptions
        )
        items = [
            f"{text} ({_labels_text(labels, len(answered))})" for text, labels in by_text.items()
        ]
        yield from (blocks.Heading("Estimates assume", "dim"), blocks.Items(items))
    else:
        assuming = [
            one.label for one in answered if any(FASTER_HOSTS in text for text in one.assumptions)
        ]
        if assuming:
            yield blocks.Notes(
                [
                    (
                        "Assumes that the CPU can launch kernels early enough: "
                        f"{_labels_text(assuming, len(answered))}."
                    )
                ]
            )


def _labels_text(labels: Sequence[str], n_all: int) -> str:
    return "all estimates" if len(labels) == n_all else ", ".join(labels)


def refusals(found: WhatIf, n_shown: int | None = None) -> list[str]:
    """Return which changes have no estimate and why, at most so many by name; what the headline has is not repeated."""
    refused = ((scenario.refused_in_options, scenario.label) for scenario in found.scenarios)
    labels_by_reason = grouped((why, label) for why, label in refused if why is not None)
    is_answered = any(scenario.refused is None for scenario in found.scenarios)
    in_headline = None if is_answered else _most_usual_refusals(found)[0][0]

    def named(labels: Sequence[str]) -> str:
        return few(labels, len(labels) if n_shown is None else n_shown)

    others = [
        f"{named(labels)}: {why}" for why, labels in labels_by_reason.items() if why != in_headline
    ]
    if in_headline is None or not others:
        return others
    return [f"{named(labels_by_reason[in_headline])}: for the reason above", *others]


def _most_usual_refusals(found: WhatIf) -> list[tuple[str | None, int]]:
    """Return why changes have no estimate and how many, the most usual reason first."""
    return Counter(scenario.refused_in_options for scenario in found.scenarios).most_common()


def menu_rows(found: WhatIf, scenarios: Sequence[Scenario], *, is_verbose: bool) -> list[MenuRow]:
    """Return the rows of the menu: the captured run, then each group by its name, the largest saving first."""
    rows = [MenuRow(_AS_CAPTURED, found.step_time_ns)]
    is_custom = len(scenarios) == 1
    effective = set(map(id, sort_scenarios(found).effective))
    shown = [
        scenario for scenario in scenarios if is_verbose or is_custom or id(scenario) in effective
    ]
    for group in GROUPS:
        of_group = [_row(found, scenario) for scenario in shown if scenario.group == group]
        if (
            group == LIMIT
            and not is_custom
            and found.limit_step_time_ns is not None
            and found.step_time_ns
        ):
            saved = 1 - found.limit_step_time_ns / found.step_time_ns
            of_group.append(
                MenuRow(_ZERO_COMMUNICATION, found.limit_step_time_ns, saved_ratio=saved)
            )
        if of_group:
            rows += [] if is_custom else [MenuRow(GROUP_NAMES[group])]
            rows += of_group
    return rows


def _row(found: WhatIf, scenario: Scenario) -> MenuRow:
    label = str(scenario.knobs["link"]) if [*scenario.knobs] == ["link"] else scenario.label
    return MenuRow(
        label=label + _note(scenario),
        step_time_ns=scenario.step_time_ns,
        low_ns=scenario.low_ns,
        high_ns=scenario.high_ns,
        saved_ratio=None if scenario.gain_pct is None else scenario.gain_pct / 100,
        throughput_steps_per_s=scenario.throughput_steps_per_s,
        is_within_noise=not is_clear(found, scenario),
        knobs=frozenset(scenario.knobs),
    )


def menu_cells(row: MenuRow) -> list[str]:
    """Return what stands behind the bar of a change: step time, range and saving."""
    return [_number_text(row.step_time_ns), _range_text(row.low_ns, row.high_ns), _saved_cell(row)]


def menu(
    found: WhatIf, scenarios: Sequence[Scenario], *, is_verbose: bool = True, has_bars: bool = False
) -> blocks.Table:
    """Return what each change that has an estimate would bring, by group, the settings first."""
    rows = menu_rows(found, scenarios, is_verbose=is_verbose)
    longest_ns = max((row.step_time_ns or 0.0 for row in rows), default=0.0)
    has_groups = any(row.step_time_ns is None for row in rows)

    def label(row: MenuRow) -> str:
        is_indented = has_groups and row.step_time_ns is not None and row.label != _AS_CAPTURED
        return f"  {row.label}" if is_indented else row.label

    def bar(row: MenuRow) -> str:
        if row.step_time_ns is None or not longest_ns:
            return ""
        return "#" * max(round(_BAR_WIDTH * row.step_time_ns / longest_ns), 1)

    fields = [
        Field("change", label, "text"),
        Field(
            "ms per step",
            lambda row: "" if row.step_time_ns is None else _number_text(row.step_time_ns),
        ),
        Field("range", lambda row: _range_text(row.low_ns, row.high_ns), from_width=_NARROW),
        Field("saved", _saved_cell),
    ]
    if has_bars:
        fields.append(Field("", bar, "word", from_width=_WIDE))
    if is_verbose:
        rate = Field("steps/s", _rate_cell, from_width=_WIDER)
        fields.append(rate)
    return table_of("What each change would save", rows, fields)


def _saved_cell(row: MenuRow) -> str:
    if row.saved_ratio is None:
        return ""
    text = f"{100 * row.saved_ratio:.1f}"
    return f"{text if float(text) else '0.0'}%{' (noise)' if row.is_within_noise else ''}"


def _rate_cell(row: MenuRow) -> str:
    return (
        rate_text(row.throughput_steps_per_s).removesuffix(" steps/s")
        if row.throughput_steps_per_s
        else ""
    )


def _note(scenario: Scenario) -> str:
    """Return what has to be known of a row of the menu."""
    if _is_captured(scenario):
        return " (as now)"
    if scenario.link_place == HERE and scenario.group == SETTING:
        return " (is there, not used)"
    if scenario.link_place != UNKNOWN:
        return ""
    is_link_alone = [*scenario.knobs] == ["link"]
    return _IF_AVAILABLE if is_link_alone else f" (if {scenario.knobs['link']} is available)"


def _is_captured(scenario: Scenario) -> bool:
    is_same = scenario.mean_gain_ns is not None and abs(scenario.mean_gain_ns) < _SAME_NS
    return is_same and not {"link", "bucket_mb", "bandwidth_factor"}.isdisjoint(scenario.knobs)


def finding_blocks(found: WhatIf, run: Run) -> Iterator[blocks.Block]:
    """Yield the upper bound of each finding, and the estimate for the change that the finding advises."""
    bounds = _bounds(found, mean_step_ns(run.summary().to_pylist()[0]))
    if bounds:
        yield blocks.Heading(OF_REPLAYED, "dim")
        yield blocks.Sentence(
            "Shares of the mean step time, as in analyze. The table above uses the median.", "dim"
        )
        yield blocks.Items(bounds)


def _bounds(found: WhatIf, mean_ns: float | None) -> list[str]:
    """Return for each finding the upper bound of its saving, and the estimate for the change that the finding advises."""
    if not mean_ns:  # savings are of the mean step: as shares of it none exceeds 100%
        return []
    chosen: dict[str, Scenario] = {}
    for scenario in sorted(
        found.scenarios, key=lambda one: (not one.is_advised, -(one.gain_pct or 0.0))
    ):
        is_answered = scenario.mean_gain_ns is not None
        is_gain = (
            scenario.is_advised or (scenario.mean_gain_ns or 0.0) > 0
        )  # otherwise it is the opposite change
        if (
            is_answered
            and is_gain
            and scenario.finding is not None
            and scenario.finding_saving_ns is not None
        ):
            chosen.setdefault(scenario.finding, scenario)

    def saving(ns: float | None) -> str:
        return f"{ms_text(ns, _DIGITS)} ({percent_text((ns or 0.0) / mean_ns)})"

    def sentence(rule: str, scenario: Scenario) -> str:
        noise = "" if is_clear(found, scenario) else ", which is within noise"
        estimate = f"{scenario.label} saves an estimated {saving(scenario.mean_gain_ns)}{noise}"
        return f"{rule}: at most {saving(scenario.finding_saving_ns)}. {estimate}"

    by_bound = sorted(chosen.items(), key=lambda pair: -(pair[1].finding_saving_ns or 0.0))
    return [sentence(rule, scenario) for rule, scenario in by_bound]


def whatif_document(found: WhatIf) -> dict[str, Any]:
    """Return the document in a fixed order; ``knobs`` are arguments of `whatif`, a bandwidth always as bytes per s."""
    fields = (
        asdict(scenario) | {"knobs": {**scenario.knobs}, "assumptions": [*scenario.assumptions]}
        for scenario in found.scenarios
    )
    scenarios = [
        field | {"refused": field.pop("refused_in_options")} for field in fields
    ]  # as the command's options say it
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "run": {"run_id": found.run_id, "label": found.label, "n_summary_steps": found.n_steps},
        "is_answered": any(scenario.refused is None for scenario in found.scenarios),
        "verdict": headline(found),
        "step_time_ns": found.step_time_ns,
        "limit_step_time_ns": found.limit_step_time_ns,
        "limit_gain_ns": found.limit_gain_ns,
        "identity_error_pct": found.identity_error_pct,
        "scenarios": scenarios,
        "problems": [dict(problem_row) for problem_row in found.problem_rows],
    }


def whatif_formats(found: WhatIf, run: Run) -> dict[str, Format]:
    """Return how the answer is written in each format, and how a file of it says which run it is for."""
    return formats_of(
        "whatif",
        found.run_id,
        document=partial(whatif_document, found),
        # A document of `analyze` has no scenarios.
        identity_in=lambda one: (
            str(one["run"]["run_id"]) if isinstance(one["scenarios"], list) else None
        ),
        blocks=partial(whatif_blocks, found, run),
        usage="nsyspipe whatif RUN",
        page=partial(lazily("html.whatif_page", "whatif_page"), found, run),
        meta=META,
        key="run_id",
    )
