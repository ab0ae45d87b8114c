"""The answer of a simulation: the best setting first, then every change in three groups."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from nsyspipe.model.names import counted, few, grouped, listed
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
from nsyspipe.report.formats import Format, formats_of, lazily
from nsyspipe.report.subject import hardware_text, steps_text
from nsyspipe.report.units import ms_text, percent_text, rate_text
from nsyspipe.report.words import (
    Trouble,
    backward_source,
    is_problem_shown,
    mean_step_ns,
    same_problems,
)
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
# Follows a link that was not recorded.
_IF_AVAILABLE = " (if available)"
# A smaller gain is none: the run has this setting already.
_MIN_GAIN_NS = 1.0
_KNOBS_OF_SETTINGS = {"link", "bucket_mb", "bandwidth_factor"}
_ESTIMATE_DIGITS = 3
# A sentence names at most so many changes.
_MAX_TIED_NAMED = 3
_MAX_REFUSED_NAMED = 3
_MAX_BAR_CHARS = 14
# Terminal widths from which on columns are shown.
_MIN_WIDTH_FOR_RANGE = 60
_MIN_WIDTH_FOR_BAR = 74
_MIN_WIDTH_FOR_RATE = 100


class MenuRow(Struct, frozen=True):
    """A row of the menu: a change with its estimate, or the name of a group without one."""

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


def sort_scenarios(answer: WhatIf) -> SortedScenarios:
    """Return the scenarios that have an estimate, by what the estimate means.

    Each group is in the order of `WhatIf.scenarios`.
    """
    unchanged: list[Scenario] = []
    effective: list[Scenario] = []
    within_noise: list[Scenario] = []
    for scenario in _estimated(answer):
        if _is_as_captured(scenario):
            unchanged.append(scenario)
        elif is_clear(answer, scenario):
            effective.append(scenario)
        else:
            within_noise.append(scenario)
    return SortedScenarios(effective, within_noise, unchanged)


def _estimated(answer: WhatIf) -> list[Scenario]:
    """Return the scenarios that have an estimate."""
    return [scenario for scenario in answer.scenarios if scenario.refused is None]


def headline(answer: WhatIf) -> str:
    """Return the answer in a few sentences."""
    return " ".join(headline_sentences(answer))


def headline_sentences(answer: WhatIf) -> list[str]:
    """Return the sentences of the answer, the most important first.

    If the user asked for a change, they are about that change. Otherwise, they name the best
    setting, and links that would save more than this setting.
    """
    estimated = _estimated(answer)
    if not estimated:
        return _no_answer(answer)
    first = estimated[0]
    if first.id == "custom":
        return [_custom_answer(answer, first)]
    settings = _gaining_settings(answer)
    gain_of_best_setting_pct = _gain_pct(settings[0]) if settings else 0.0
    is_only_change = len(estimated) == 1
    sentences = [*_setting_sentences(answer, settings, is_only_change=is_only_change)]
    links = _gaining_links(answer)
    better_links = [link for link in links if _gain_pct(link) > gain_of_best_setting_pct]
    return sentences + [_link_sentence(answer, link) for link in better_links]


def _gain_pct(scenario: Scenario) -> float:
    """Return the saving of a scenario in percent of the step time; 0 if it is not known."""
    return scenario.gain_pct or 0.0


def _setting_sentences(
    answer: WhatIf, settings: Sequence[Scenario], *, is_only_change: bool
) -> Iterator[str]:
    """Yield the best setting, and which others are predicted to be as fast.

    `settings` are those of `_gaining_settings`, the best first.
    """
    if not settings:
        yield "No setting has an estimated saving that is larger than its uncertainty."
        return
    best, *other_settings = settings
    what = "The only change with an estimate" if is_only_change else "Best setting"
    change = _change(answer, best)
    yield f"{what}: {best.label}, {change}."
    tied_labels = [setting.label for setting in other_settings if _is_tied(best, setting)]
    if tied_labels:
        names = listed(tied_labels, _MAX_TIED_NAMED)
        yield f"Predicted equally fast, within the ranges: {names}."


def _gaining(answer: WhatIf) -> list[Scenario]:
    """Return the scenarios that save more time than their uncertainty, the best first."""
    effective = sort_scenarios(answer).effective
    return [scenario for scenario in effective if _gain_pct(scenario) > 0]


def _gaining_settings(answer: WhatIf) -> list[Scenario]:
    """Return the settings that save more time than their uncertainty, the best first.

    If no setting does, return the scenario without late ranks, if that saves time.
    """
    gaining = _gaining(answer)
    settings = [scenario for scenario in gaining if scenario.group == SETTING]
    late_ranks = [scenario for scenario in gaining if scenario.id == "no-wait"]
    return settings or late_ranks


def _gaining_links(answer: WhatIf) -> list[Scenario]:
    """Return the best link that saves time in each place.

    The place of a link is in the machine, perhaps in the machine, or elsewhere.
    """
    best_by_place: dict[str, Scenario] = {}
    for scenario in _gaining(answer):
        place = scenario.link_place
        if scenario.group == HARDWARE and place is not None:
            # The best scenario comes first, and stays.
            best_by_place.setdefault(place, scenario)
    return list(best_by_place.values())


def change_named_first(answer: WhatIf) -> Scenario | None:
    """Return the change that the headline names first.

    If the user asked for a change, return that change, or None if it has no estimate or no effect.
    Otherwise, return the setting that saves most, or None if no setting saves time.
    """
    first = answer.scenarios[0]
    # The change that the user asked for is the only scenario.
    if first.id == "custom":
        has_effect = first.refused is None and not _is_as_captured(first)
        return first if has_effect else None
    settings = _gaining_settings(answer)
    return settings[0] if settings else None


def _no_answer(answer: WhatIf) -> list[str]:
    """Return why no change has an estimate, and what no communication at all would save.

    If there are several reasons, the sentences name the most usual one.
    """
    most_usual, *rarer_refusals = _refusals_most_usual_first(answer)
    n_rarer = sum(refusal.n_changes for refusal in rarer_refusals)
    if not n_rarer:
        sentences = [f"No estimate: {most_usual.reason}."]
    else:
        n_more = "1 more change has" if n_rarer == 1 else f"{n_rarer} more changes have"
        changes = counted(most_usual.n_changes, "change")
        head = f"No estimate for {changes}: {most_usual.reason}."
        sentences = [head, f"{n_more} no estimate for other reasons, see below."]
    if answer.limit_step_time_ns is not None and answer.step_time_ns:
        # Both are medians over steps, so their difference may be below 0.
        gain_ns = max(answer.step_time_ns - answer.limit_step_time_ns, 0.0)
        saving = ms_text(gain_ns, _ESTIMATE_DIGITS)
        share = percent_text(gain_ns / answer.step_time_ns)
        limit = f"A step with {_ZERO_COMMUNICATION} would save {saving} ({share})."
        consequence = "No other interconnect, bucket size or datatype can save more."
        sentences.append(f"{limit} {consequence}")
    return sentences


def _custom_answer(answer: WhatIf, scenario: Scenario) -> str:
    """Return what the change saves that the user asked for."""
    if _is_as_captured(scenario):
        return f"{scenario.label}: unchanged. The run is as fast already."
    change = _change(answer, scenario)
    sentence = f"{scenario.label}{_note(scenario)}: {change}."
    is_link_unrecorded = scenario.link_place == UNKNOWN
    if is_link_unrecorded:
        return f"{sentence} {_unrecorded_text(scenario)}"
    return sentence


def _link_sentence(answer: WhatIf, scenario: Scenario) -> str:
    """Return what a link would save that the machine may not have.

    If the machine cannot have the link, it is other hardware. Otherwise, the reports do not show
    whether the machine has the link.
    """
    saved = _saved(answer, scenario)
    link = str(scenario.knobs["link"])
    is_in_other_machines = scenario.link_place == ELSEWHERE
    if is_in_other_machines:
        return f"Other hardware: {link} would save {saved}."
    condition = f"{link}{_IF_AVAILABLE}"
    return f"{condition} would save {saved}. {_unrecorded_text(scenario)}"


def _unrecorded_text(scenario: Scenario) -> str:
    """Return that the reports do not show whether the machine has the link of a scenario."""
    link = str(scenario.knobs["link"])
    kind = "NVLink" if link.startswith("nvlink") else link
    return f"The reports do not show whether {kind} connects all of the GPUs."


def _is_tied(best: Scenario, rival: Scenario) -> bool:
    """Tell whether each of two estimates is in the range of the other."""
    is_best_outside = words.is_clear(best.step_time_ns, rival.low_ns, rival.high_ns)
    is_rival_outside = words.is_clear(rival.step_time_ns, best.low_ns, best.high_ns)
    return not is_best_outside and not is_rival_outside


def is_clear(answer: WhatIf, scenario: Scenario) -> bool:
    """Tell whether the range of an estimate leaves the captured step time out."""
    return words.is_clear(answer.step_time_ns, scenario.low_ns, scenario.high_ns)


def _change(answer: WhatIf, scenario: Scenario) -> str:
    """Return the captured and the predicted step time, its range, and the difference in percent.

    Empty if the saving or the captured step time is not known.
    """
    if scenario.gain_pct is None or not answer.step_time_ns:
        return ""
    now = _number_text(answer.step_time_ns)
    then = ms_text(scenario.step_time_ns, _ESTIMATE_DIGITS)
    step_range = _range_text(scenario.low_ns, scenario.high_ns)
    estimate = f"{now} -> {then} per step (estimated {step_range} ms)"
    if not is_clear(answer, scenario):
        return f"{estimate}, which is within noise"
    direction = "less" if scenario.gain_pct > 0 else "more"
    change_pct = abs(scenario.gain_pct)
    return f"{estimate}, {change_pct:.1f}% {direction}"


def _saved(answer: WhatIf, scenario: Scenario) -> str:
    """Return what a change saves, ``71.4 ms (11.1%)``."""
    gain_pct = _gain_pct(scenario)
    step_time_ns = answer.step_time_ns or 0.0
    gain = ms_text(gain_pct / 100 * step_time_ns, _ESTIMATE_DIGITS)
    return f"{gain} ({gain_pct:.1f}%)"


def _number_text(ns: float | None) -> str:
    return ms_text(ns, _ESTIMATE_DIGITS).removesuffix(" ms")


def _range_text(low_ns: float | None, high_ns: float | None) -> str:
    if low_ns is None or high_ns is None:
        return ""
    return f"{_number_text(low_ns)} to {_number_text(high_ns)}"


def whatif_blocks(
    answer: WhatIf, run: Run, *, is_verbose: bool = True, has_bars: bool = False
) -> Iterator[blocks.Block]:
    """Yield the answer: the best setting, every change in its group, and what has no estimate.

    A verbose answer also has the bounds of findings, what each estimate assumes, changes within
    noise, and all problems.
    """
    for text in headline_sentences(answer):
        yield blocks.Sentence(text, "bold")
    yield from few_steps_blocks(answer)
    estimated = _estimated(answer)
    n_rows = len(menu_rows(answer, estimated, is_verbose=is_verbose))
    # The first row is the captured run, which is no change.
    has_menu = n_rows > 1
    yield blocks.Facts(subject(answer, run), "Run")
    # The captured step time is in the first row of the menu, and need not be said twice.
    has_step_time = is_verbose or not has_menu
    basis = _basis(answer, run, has_step_time=has_step_time, is_verbose=is_verbose)
    yield blocks.Facts(basis, "Steps")
    if has_menu:
        yield menu(answer, estimated, is_verbose=is_verbose, has_bars=has_bars)
    if estimated:
        yield from without_effect(answer, is_verbose=is_verbose)
    if is_verbose:
        yield from finding_blocks(answer, run)
    yield from assumption_blocks(estimated, is_verbose=is_verbose)
    max_named = None if is_verbose else _MAX_REFUSED_NAMED
    reasons = refusals(answer, max_named)
    if reasons:
        yield blocks.Heading("No estimate", "dim")
        yield blocks.Items(reasons)
    yield from note_blocks(answer)
    troubles = trouble_rows(answer, is_verbose=is_verbose)
    if estimated and troubles:
        yield blocks.Troubles(troubles)


def subject(answer: WhatIf, run: Run) -> list[str]:
    """Return what the run is called, and what it ran on."""
    return [answer.label, hardware_text(run)]


def few_steps_blocks(answer: WhatIf) -> Iterator[blocks.Sentence]:
    """Yield the warning that the estimates use few steps, if they do."""
    for row in answer.problem_rows:
        if row["code"] == _FEW_STEPS:
            warning = f"Warning: {row['message']}. Fix: {row['fix']}."
            yield blocks.Sentence(warning, "bold")


def note_blocks(answer: WhatIf) -> Iterator[blocks.Notes]:
    """Yield how to get an estimate that a late rank prevents. Nothing if it prevents none."""
    if answer.is_answered_without_late_ranks:
        example = "for example --no-wait --bucket-mb 25"
        note = f"To predict a change as if no rank were late, combine it with --no-wait, {example}."
        yield blocks.Notes([note])


def trouble_rows(answer: WhatIf, *, is_verbose: bool) -> list[Trouble]:
    """Return the problems of the run, each once, without the warning about few steps."""
    rows = [row for row in answer.problem_rows if row["code"] != _FEW_STEPS]
    shown_rows = [row for row in rows if is_problem_shown(row, is_verbose=is_verbose)]
    return same_problems(shown_rows, lambda _: "")


def _basis(answer: WhatIf, run: Run, *, has_step_time: bool, is_verbose: bool) -> list[str]:
    """Return what the estimates are based on."""
    parts = [steps_text(run), *backward_source(run)]
    if answer.step_time_ns is not None and has_step_time:
        parts.append(f"step time {ms_text(answer.step_time_ns)}")
    if answer.identity_error_pct is not None and is_verbose:
        error = percent_text(answer.identity_error_pct / 100, n_decimals=2)
        parts.append(f"simulation error {error}")
    return parts


def without_effect(answer: WhatIf, *, is_verbose: bool) -> Iterator[blocks.Block]:
    """Yield one line that names the changes of a menu that save nothing.

    Nothing is yielded for a verbose answer, because its menu has rows for these changes. Nothing is
    yielded if the user asked for a single change, because then there is no menu.
    """
    is_single_change = answer.scenarios[0].id == "custom"
    if is_verbose or is_single_change:
        return
    scenarios = sort_scenarios(answer)
    sentences = []
    if scenarios.within_noise:
        labels = _labels(scenarios.within_noise)
        sentences.append(f"Within noise: {labels}.")
    if scenarios.unchanged:
        labels = _labels(scenarios.unchanged)
        sentences.append(f"No change in step time: {labels}.")
    if sentences:
        yield blocks.Notes([" ".join(sentences)])


def _labels(scenarios: Sequence[Scenario]) -> str:
    return ", ".join(scenario.label for scenario in scenarios)


def assumption_blocks(estimated: Sequence[Scenario], *, is_verbose: bool) -> Iterator[blocks.Block]:
    """Yield what estimates assume.

    A single estimate has all of its assumptions, and so have all estimates of a verbose output.
    Otherwise, yield only the assumption that the user has to check: that the CPU is fast enough.
    """
    if len(estimated) == 1:
        yield blocks.Heading("This estimate assumes", "dim")
        yield blocks.Items(estimated[0].assumptions)
    elif is_verbose and estimated:
        yield blocks.Heading("Estimates assume", "dim")
        yield blocks.Items(_assumptions(estimated))
    else:
        labels_with_assumption = [
            scenario.label for scenario in estimated if _needs_faster_hosts(scenario)
        ]
        if labels_with_assumption:
            labels = _labels_text(labels_with_assumption, len(estimated))
            note = f"Assumes that the CPU can launch kernels early enough: {labels}."
            yield blocks.Notes([note])


def _assumptions(estimated: Sequence[Scenario]) -> list[str]:
    """Return each assumption once, with the estimates that make it."""
    assumptions_and_labels = [
        (assumption, scenario.label)
        for scenario in estimated
        for assumption in scenario.assumptions
    ]
    texts = []
    for assumption, labels in grouped(assumptions_and_labels).items():
        estimates = _labels_text(labels, len(estimated))
        texts.append(f"{assumption} ({estimates})")
    return texts


def _needs_faster_hosts(scenario: Scenario) -> bool:
    return any(FASTER_HOSTS in text for text in scenario.assumptions)


def _labels_text(labels: Sequence[str], n_all: int) -> str:
    is_of_all = len(labels) == n_all
    return "all estimates" if is_of_all else ", ".join(labels)


def refusals(answer: WhatIf, n_shown: int | None = None) -> list[str]:
    """Return a text for each reason why changes have no estimate, with the changes.

    At most `n_shown` changes of a reason are named. None names all.

    If no change has an estimate, the headline has the most usual reason. This reason comes first
    and is not repeated: "for the reason above". If it is the only reason, return nothing.
    """
    names_by_reason = _refused_names_by_reason(answer, n_shown)
    if _estimated(answer):
        return [f"{names}: {reason}" for reason, names in names_by_reason.items()]
    most_usual = _refusals_most_usual_first(answer)[0]
    names_in_headline = names_by_reason.pop(most_usual.reason)
    other_texts = [f"{names}: {reason}" for reason, names in names_by_reason.items()]
    if not other_texts:
        return []
    return [f"{names_in_headline}: for the reason above", *other_texts]


def _refused_names_by_reason(answer: WhatIf, n_shown: int | None) -> dict[str, str]:
    """Return the names of the changes without an estimate in one text, by the reason.

    A text names at most `n_shown` changes, or all if that is None.
    """
    # The reason names options of the command. It is None for a change with an estimate.
    labels_by_reason = grouped(
        (scenario.refused_in_options, scenario.label) for scenario in answer.scenarios
    )
    names_by_reason = {}
    for reason, labels in labels_by_reason.items():
        if reason is not None:
            max_named = len(labels) if n_shown is None else n_shown
            names_by_reason[reason] = few(labels, max_named)
    return names_by_reason


class Refusal(NamedTuple):
    """A reason why changes have no estimate."""

    reason: str
    n_changes: int


def _refusals_most_usual_first(answer: WhatIf) -> list[Refusal]:
    """Return each reason why changes have no estimate, with the number of these changes."""
    n_changes_of_reason = Counter(
        scenario.refused_in_options
        for scenario in answer.scenarios
        if scenario.refused_in_options is not None
    )
    most_usual_first = n_changes_of_reason.most_common()
    return [Refusal(reason, n_changes) for reason, n_changes in most_usual_first]


def menu_rows(answer: WhatIf, scenarios: Sequence[Scenario], *, is_verbose: bool) -> list[MenuRow]:
    """Return the rows of the menu: the captured run, then each group below its name.

    Unless verbose, changes within noise and without effect are left out. The group of limits also
    has the run without any communication. A single scenario has no group.
    """
    captured = MenuRow(_AS_CAPTURED, answer.step_time_ns)
    if len(scenarios) == 1:
        return [captured, _row(answer, scenarios[0])]
    shown = scenarios if is_verbose else _effective_among(answer, scenarios)
    rows = [captured]
    for group in GROUPS:
        group_rows = [_row(answer, scenario) for scenario in shown if scenario.group == group]
        if group == LIMIT:
            group_rows += _zero_communication_rows(answer)
        if group_rows:
            rows.append(MenuRow(GROUP_NAMES[group]))
            rows += group_rows
    return rows


def _effective_among(answer: WhatIf, scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Return the scenarios whose range leaves the captured step time out."""
    # A scenario has no hash, so it is looked up by its identity.
    identities = set(map(id, sort_scenarios(answer).effective))
    return [scenario for scenario in scenarios if id(scenario) in identities]


def _zero_communication_rows(answer: WhatIf) -> list[MenuRow]:
    """Return the row of a step without communication time; no row if that is not known."""
    limit_ns = answer.limit_step_time_ns
    if limit_ns is None or not answer.step_time_ns:
        return []
    saved_ratio = 1 - limit_ns / answer.step_time_ns
    return [MenuRow(_ZERO_COMMUNICATION, limit_ns, saved_ratio=saved_ratio)]


def _row(answer: WhatIf, scenario: Scenario) -> MenuRow:
    """Return the row of a scenario. If only the link changes, its label is the name of the link."""
    is_link_alone = _is_link_alone(scenario)
    label = str(scenario.knobs["link"]) if is_link_alone else scenario.label
    gain_pct = scenario.gain_pct
    saved_ratio = None if gain_pct is None else gain_pct / 100
    is_within_noise = not is_clear(answer, scenario)
    return MenuRow(
        label=f"{label}{_note(scenario)}",
        step_time_ns=scenario.step_time_ns,
        low_ns=scenario.low_ns,
        high_ns=scenario.high_ns,
        saved_ratio=saved_ratio,
        throughput_steps_per_s=scenario.throughput_steps_per_s,
        is_within_noise=is_within_noise,
        knobs=frozenset(scenario.knobs),
    )


def _is_link_alone(scenario: Scenario) -> bool:
    """Tell whether the link is all that a scenario changes."""
    return scenario.knobs.keys() == {"link"}


def menu_cells(row: MenuRow) -> list[str]:
    """Return what stands behind the bar of a change: step time, range and saving."""
    step_time = _number_text(row.step_time_ns)
    return [step_time, _range_cell(row), _saved_cell(row)]


def _range_cell(row: MenuRow) -> str:
    return _range_text(row.low_ns, row.high_ns)


def menu(
    answer: WhatIf,
    scenarios: Sequence[Scenario],
    *,
    is_verbose: bool = True,
    has_bars: bool = False,
) -> blocks.Table:
    """Return what each change that has an estimate would save, by group, the settings first."""
    rows = menu_rows(answer, scenarios, is_verbose=is_verbose)
    # The name of a group is a row without a step time.
    has_groups = any(row.step_time_ns is None for row in rows)
    label_cell = partial(_label_cell, has_groups=has_groups)
    fields = [
        Field("change", label_cell, kind="text"),
        Field("ms per step", _step_time_cell),
        Field("range", _range_cell, from_width=_MIN_WIDTH_FOR_RANGE),
        Field("saved", _saved_cell),
    ]
    if has_bars:
        step_times_ns = [row.step_time_ns or 0.0 for row in rows]
        longest_ns = max(step_times_ns, default=0.0)
        bar = partial(_bar_cell, longest_ns=longest_ns)
        bar_field = Field("", bar, kind="word", from_width=_MIN_WIDTH_FOR_BAR)
        fields.append(bar_field)
    if is_verbose:
        fields.append(Field("steps/s", _rate_cell, from_width=_MIN_WIDTH_FOR_RATE))
    return table_of("What each change would save", rows, fields)


def _label_cell(row: MenuRow, *, has_groups: bool) -> str:
    is_of_group = row.step_time_ns is not None and row.label != _AS_CAPTURED
    indent = "  " if has_groups and is_of_group else ""
    return f"{indent}{row.label}"


def _step_time_cell(row: MenuRow) -> str:
    if row.step_time_ns is None:
        return ""
    return _number_text(row.step_time_ns)


def _bar_cell(row: MenuRow, *, longest_ns: float) -> str:
    """Return a bar of letters. `longest_ns` is the step time of the longest bar."""
    if row.step_time_ns is None or not longest_ns:
        return ""
    length = round(_MAX_BAR_CHARS * row.step_time_ns / longest_ns)
    return "#" * max(length, 1)


def _saved_cell(row: MenuRow) -> str:
    """Return what a change saves in percent of the step. Empty for a row that is no change."""
    if row.saved_ratio is None:
        return ""
    number = f"{100 * row.saved_ratio:.1f}"
    # A small negative saving is "-0.0", which has no sign here.
    percent = number if float(number) else "0.0"
    noise = " (noise)" if row.is_within_noise else ""
    return f"{percent}%{noise}"


def _rate_cell(row: MenuRow) -> str:
    if not row.throughput_steps_per_s:
        return ""
    return rate_text(row.throughput_steps_per_s).removesuffix(" steps/s")


def _note(scenario: Scenario) -> str:
    """Return whether the run has a change already, or whether its link is there, in brackets.

    Empty if nothing needs to be said.
    """
    if _is_as_captured(scenario):
        return " (as now)"
    is_setting = scenario.group == SETTING
    is_link_here = scenario.link_place == HERE
    if is_setting and is_link_here:
        return " (is there, not used)"
    is_link_unrecorded = scenario.link_place == UNKNOWN
    if not is_link_unrecorded:
        return ""
    if _is_link_alone(scenario):
        # The name of the link is in front of the note.
        return _IF_AVAILABLE
    return f" (if {scenario.knobs['link']} is available)"


def _is_as_captured(scenario: Scenario) -> bool:
    """Tell whether the captured run has the setting of a scenario already."""
    gain_ns = scenario.mean_gain_ns
    has_no_effect = gain_ns is not None and abs(gain_ns) < _MIN_GAIN_NS
    changes_setting = any(knob in _KNOBS_OF_SETTINGS for knob in scenario.knobs)
    return has_no_effect and changes_setting


def finding_blocks(answer: WhatIf, run: Run) -> Iterator[blocks.Block]:
    """Yield the upper bound of each finding, and the estimate for the change that it advises."""
    (summary,) = run.summary().to_pylist()
    bounds = _bounds(answer, mean_step_ns(summary))
    if bounds:
        yield blocks.Heading(OF_REPLAYED, "dim")
        yield blocks.Sentence(
            "Shares of the mean step time, as in analyze. The table above uses the median.", "dim"
        )
        yield blocks.Items(bounds)


def _bounds(answer: WhatIf, mean_ns: float | None) -> list[str]:
    """Return the upper bound of each finding, and the estimate for the change that it advises.

    The largest bound comes first. Savings are of the mean step, so that no share exceeds 100%.
    """
    if not mean_ns:
        return []
    scenario_of_finding = _scenario_of_each_finding(answer)
    largest_first = sorted(scenario_of_finding.items(), key=_bound_of_finding, reverse=True)
    return [_bound_text(answer, finding, scenario, mean_ns) for finding, scenario in largest_first]


def _bound_of_finding(finding_and_scenario: tuple[str, Scenario]) -> float:
    _finding, scenario = finding_and_scenario
    return scenario.finding_saving_ns or 0.0


def _scenario_of_each_finding(answer: WhatIf) -> dict[str, Scenario]:
    """Return one scenario by finding: the change that the finding advises, else the best change."""
    scenario_of_finding: dict[str, Scenario] = {}
    for scenario in sorted(answer.scenarios, key=_preference, reverse=True):
        if scenario.finding is not None and _answers_finding(scenario):
            # The preferred scenario comes first, and stays.
            scenario_of_finding.setdefault(scenario.finding, scenario)
    return scenario_of_finding


def _preference(scenario: Scenario) -> tuple[bool, float]:
    """Return a sort key: advised changes are larger than others, and then larger gains."""
    return scenario.is_advised, _gain_pct(scenario)


def _answers_finding(scenario: Scenario) -> bool:
    """Tell whether a scenario has an estimate for its finding, and does not do the opposite."""
    if scenario.mean_gain_ns is None or scenario.finding_saving_ns is None:
        return False
    return scenario.is_advised or scenario.mean_gain_ns > 0


def _bound_text(answer: WhatIf, finding: str, scenario: Scenario, mean_ns: float) -> str:
    """Return a finding with its bound, and what a scenario is estimated to save.

    `mean_ns` is the mean step time, of which savings are shares.
    """
    bound = _saving_text(scenario.finding_saving_ns, mean_ns)
    estimate = _saving_text(scenario.mean_gain_ns, mean_ns)
    noise = "" if is_clear(answer, scenario) else ", which is within noise"
    saving = f"{scenario.label} saves an estimated {estimate}"
    return f"{finding}: at most {bound}. {saving}{noise}"


def _saving_text(saving_ns: float | None, mean_ns: float) -> str:
    share = percent_text((saving_ns or 0.0) / mean_ns)
    return f"{ms_text(saving_ns, _ESTIMATE_DIGITS)} ({share})"


def whatif_document(answer: WhatIf) -> dict[str, Any]:
    """Return the document in a fixed order.

    ``knobs`` are arguments of `whatif`, with bandwidths in bytes per s.
    """
    run = {"run_id": answer.run_id, "label": answer.label, "n_summary_steps": answer.n_steps}
    is_answered = bool(_estimated(answer))
    head = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "run": run,
        "is_answered": is_answered,
        "verdict": headline(answer),
    }
    scenarios = [*map(_scenario_document, answer.scenarios)]
    problems = [*map(dict, answer.problem_rows)]
    return head | {
        "step_time_ns": answer.step_time_ns,
        "limit_step_time_ns": answer.limit_step_time_ns,
        "limit_gain_ns": answer.limit_gain_ns,
        "identity_error_pct": answer.identity_error_pct,
        "scenarios": scenarios,
        "problems": problems,
    }


def _scenario_document(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as plain Python values."""
    document = asdict(scenario)
    document["knobs"] = {**scenario.knobs}
    document["assumptions"] = [*scenario.assumptions]
    # Documents name the options of the command, not the arguments of Python.
    document["refused"] = document.pop("refused_in_options")
    return document


def _identity_in(document: dict[str, Any]) -> str | None:
    """Return the run of a document of `whatif`.

    Raises a `KeyError` for a document of `analyze`, which has no scenarios.
    """
    if not isinstance(document["scenarios"], list):
        return None
    return str(document["run"]["run_id"])


def whatif_formats(answer: WhatIf, run: Run) -> dict[str, Format]:
    """Return how the answer is written in each format, and how to identify its run in a file."""
    page = partial(lazily("html.whatif_page", "whatif_page"), answer, run)
    return formats_of(
        "whatif",
        answer.run_id,
        document=partial(whatif_document, answer),
        identity_in=_identity_in,
        blocks=partial(whatif_blocks, answer, run),
        usage="nsyspipe whatif RUN",
        page=page,
        meta=META,
        key="run_id",
    )
