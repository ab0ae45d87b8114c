"""The answer of a replay: the largest single change first, then the menu."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict
from functools import partial
from typing import Any

from nsyspipe.model.names import few, grouped
from nsyspipe.model.problems import OF_FILES_BESIDE
from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.replay.answer import ELSEWHERE, UNKNOWN, Scenario, WhatIf
from nsyspipe.report import blocks, words
from nsyspipe.report.blocks import Field, table_of
from nsyspipe.report.export import formats_of
from nsyspipe.report.files import Format
from nsyspipe.report.html.page import blocks_page
from nsyspipe.report.units import in_one_unit, ms_text, percent_text, rate_text
from nsyspipe.report.words import mean_step_ns, same_problems
from nsyspipe.run.run import Run
from nsyspipe.version import __version__

_META = "nsyspipe-whatif"
OF_REPLAYED = "Findings that were replayed: what each promises at most, what the replay gives"
_LIMIT, _FEW_STEPS = "perfect-overlap", "few-steps-to-replay"
_ANOTHER, _SAME, _AS_FAST = "Another machine", " (no change)", " (as fast as captured)"
_RECORDED_AS = {"nvlink": "nvlink", "pcie": "p2p_pcie", "shm": "shm"}  # kinds of links, by what their names begin with
_WITH_NVLINK, _WITH_OTHER = "If NVLink connects all of the GPUs", "If the GPUs have such a link"
_NO_SETTING = {_LIMIT: " (no setting)", _ANOTHER: " (another machine)"}
_NO_SETTING |= dict.fromkeys((_WITH_NVLINK, _WITH_OTHER), " (if it is there)")
_SAME_NS = 1.0  # a gain that is less is none: nothing changes
_NARROW, _WIDE = 79, 92  # narrower terminals get fewer columns rather than broken ones


def headline(found: WhatIf) -> str:
    """Return the answer in one sentence."""
    answered = [one for one in found.scenarios if one.refused is None]
    if not answered:
        (why, n), *more_reasons = _most_usual_refusals(found)
        n_more = sum(n for _, n in more_reasons)
        rest = f" {n_more} more are not answered for other reasons, see below." if n_more else ""
        return f"No answer{f' to {n} changes' if n_more else ''}: {why}.{rest}{_at_most(found)}"
    if (asked := answered[0]).id == "custom":
        change = "as captured: nothing changes" if _is_captured(asked) else _change(found, asked)
        return f"With {asked.label}: {ms_text(asked.step_time_ns)}, {change}."
    # A limit is nothing that can be switched on.
    gaining = [one for one in answered if is_clear(found, one) and (one.gain_pct or 0.0) > 0 and one.id != _LIMIT]
    if not gaining:
        return "No single change has a clear gain: every range includes the captured step time, or a loss."
    # A setting comes before a link of which it was not recorded whether it is there, and before another machine.
    faster = {whose: one for one in reversed(gaining) if (whose := _whose_link(one))}
    text, least = "No setting has a clear gain", 0.0
    if settings := [one for one in gaining if not _whose_link(one)]:
        best, *others = settings
        name = "Largest single change" if len(answered) > 1 else "The only change that could be answered"
        text, least = f"{name}: {best.label}, {_change(found, best)}", best.gain_pct or 0.0
        if level := [one.label for one in others if _is_level(best, one)]:
            text += f"; level with it (each in the other's range): {few(level, 3)}"
    more = [one for one in faster.items() if (one[1].gain_pct or 0.0) > least]
    return " ".join([f"{text}.", *(f"{whose} ({one.label}): {_less_or_more(found, one)}." for whose, one in more)])


def _at_most(found: WhatIf) -> str:
    """Return what no change of the communication can exceed where none could be answered; nothing where that is not known."""
    if found.limit_step_time_ns is None or not found.step_time_ns:
        return ""
    gain = max(found.step_time_ns - found.limit_step_time_ns, 0.0)
    most = f"If transfers took no time, a step would gain at most {ms_text(gain)} ({percent_text(gain / found.step_time_ns)})"
    return f" {most}: no other link, bucket or datatype gains more. nsyspipe analyze says what to change first."


def _whose_link(one: Scenario) -> str:
    """Return where a link is that these GPUs may not have; nothing of other changes, and of a link that they have."""
    if one.link_place == UNKNOWN and not str(one.knobs["link"]).startswith("nvlink"):
        return _WITH_OTHER
    return {UNKNOWN: _WITH_NVLINK, ELSEWHERE: _ANOTHER}.get(one.link_place or "", "")


def _is_level(one: Scenario, other: Scenario) -> bool:
    return all(not words.is_clear(a.step_time_ns, b.low_ns, b.high_ns) for a, b in ((one, other), (other, one)))


def is_clear(found: WhatIf, one: Scenario) -> bool:
    """Tell whether the range of an answer leaves the captured step time out."""
    return words.is_clear(found.step_time_ns, one.low_ns, one.high_ns)


def gain_text(found: WhatIf, one: Scenario) -> str:
    """Return the gain in per cent, and that it is not clear where it is not."""
    if one.gain_pct is None:
        return ""
    text = f"{one.gain_pct:+.1f}"
    return f"{text if float(text) else '0.0'} %{'' if is_clear(found, one) else f', {words.NOT_CLEAR}'}"


def _change(found: WhatIf, one: Scenario) -> str:
    if one.gain_pct is None or not found.step_time_ns:
        return ""
    low, high = sorted(abs(found.step_time_ns - ns) for ns in (one.low_ns or 0.0, one.high_ns or 0.0))
    if not is_clear(found, one):
        return f"no clear {'gain' if one.gain_pct > 0 else 'change'}: {_less_or_more(found, one)} step time, but the range includes 0"
    bounds = " to ".join(percent_text(ns / found.step_time_ns).removesuffix(" %") for ns in (low, high))
    return f"{_less_or_more(found, one)} step time ({bounds} %)"


def _less_or_more(found: WhatIf, one: Scenario) -> str:
    """Return by how much the step time changes, without a sign: that of a gain is another one."""
    gain = one.gain_pct or 0.0
    time = ms_text(abs(gain) / 100 * (found.step_time_ns or 0.0))
    return f"{time} ({abs(gain):.1f} %) {'more' if gain < 0 else 'less'}"


def whatif_blocks(found: WhatIf, run: Run) -> Iterator[blocks.Block]:
    """Yield the answer: the sentence, the menu, what findings promise, what it rests on, and what is not answered."""
    yield from (blocks.Sentence(text, "bold") for text in re.split(r"(?<=\.) (?=[A-Z])", headline(found)))
    few = (f"{row['message'].capitalize()}; {row['fix']}." for row in found.problem_rows if row["code"] == _FEW_STEPS)
    yield from (blocks.Sentence(text, "bold") for text in few)
    (summary,) = run.summary().to_pylist()
    yield blocks.Facts(words.subject_parts(run, summary), "Run")
    times = {"step time": found.step_time_ns, "if transfers took no time,": found.limit_step_time_ns}
    figures = [f"{name} {ms_text(ns)}" for name, ns in times.items() if ns is not None]
    if found.identity_error_pct is not None:
        figures.append(f"replay of itself off by {percent_text(found.identity_error_pct / 100, 2)}")
    if figures:
        yield blocks.Facts(figures, "Figures")
    if answered := [one for one in found.scenarios if one.refused is None]:
        yield menu(found, answered)
    if bounds := _bounds(found, run, mean_step_ns(summary)):
        yield blocks.Heading(OF_REPLAYED, "dim")
        yield blocks.Sentence("Of the mean step time, as analyze has them; gains above are of the median.", "dim")
        yield blocks.Items(bounds)
    if len(answered) == 1:
        yield from (blocks.Heading("This rests on", "dim"), blocks.Items(answered[0].assumptions))
    if reasons := refusals(found):
        yield from (blocks.Heading("Not answered", "dim"), blocks.Items(reasons))
    if len(answered) > 1:
        yield blocks.Sentence("What each answer rests on: see --json -", "dim", is_close=bool(bounds))
    # Few steps stand in front.
    told = [row for row in found.problem_rows if row["severity"] != "info" or row["code"] in OF_FILES_BESIDE]
    grave = [row for row in told if row["code"] != _FEW_STEPS]
    if answered and grave:
        yield blocks.Troubles(same_problems(grave, lambda _: ""))


def refusals(found: WhatIf) -> list[str]:
    """Return what is not answered and why: that which the headline says comes first and is not said again."""
    refused = ((one.refused_in_options, one.label) for one in found.scenarios)
    whose = grouped((why, label) for why, label in refused if why is not None)
    is_answered = any(one.refused is None for one in found.scenarios)
    said = None if is_answered else _most_usual_refusals(found)[0][0]
    others = [f"{', '.join(labels)}: {why}" for why, labels in whose.items() if why != said]
    if said is None or not others:
        return others
    return [f"{', '.join(whose[said])}: for the reason above", *others]


def _most_usual_refusals(found: WhatIf) -> list[tuple[str | None, int]]:
    """Return why changes are refused and how many, the most usual reason first."""
    return Counter(one.refused_in_options for one in found.scenarios).most_common()


def menu(found: WhatIf, rows: Sequence[Scenario]) -> blocks.Table:
    """Return what each change that was answered would bring."""
    link_kinds = set() if found.run is None else set(found.run.links()["kind"].to_pylist())
    ends = in_one_unit([ms_text(ns) for one in rows for ns in (one.low_ns, one.high_ns)])
    pairs = zip(rows, ends[::2], ends[1::2], strict=True)
    spans = {one.id: f"{low.rpartition(' ')[0]} to {high}" for one, low, high in pairs}
    notes = {one.id: _note(one, link_kinds) for one in rows}
    fields = [
        Field("change", lambda one: one.label + notes[one.id], "text"),
        Field("gain", partial(gain_text, found)),
        Field("step time", lambda one: ms_text(one.step_time_ns)),
        Field("range", lambda one: spans[one.id], from_width=_NARROW),
        Field("throughput", lambda one: rate_text(one.throughput_steps_per_s), from_width=_WIDE),
    ]
    return table_of("What each change would bring", rows, fields)


def _page(found: WhatIf, run: Run) -> str:
    step = found.step_time_ns
    rows = [one for one in found.scenarios if one.refused is None]
    # how much less, at most, by the estimate, at least
    gains = [[step and ns and step - ns for ns in (one.low_ns, one.step_time_ns, one.high_ns)] for one in rows]
    largest = max((gain[0] or 0 for gain in gains), default=0) or 1.0
    tracks = [blocks.Track(*(ns and ns / largest for ns in (at, low, high))) for high, at, low in gains]
    drawn = partial(blocks.with_column, at=2, column=Field("loss or gain", kind="track"), cells=tracks)
    parts = (drawn(block) if isinstance(block, blocks.Table) else block for block in whatif_blocks(found, run))
    return blocks_page(parts, f"{found.label}: nsyspipe whatif", (_META, found.run_id))


def _note(one: Scenario, link_kinds: Set[str]) -> str:
    if not _is_captured(one):
        return _NO_SETTING.get(_whose_link(one) or one.id, "")
    link = one.knobs.get("link")
    # Several links may be as fast as the captured one.
    is_recorded = link is None or link_kinds == {_RECORDED_AS.get(str(link).rstrip("0123456789x"))}
    return _SAME if is_recorded else _AS_FAST


def _is_captured(one: Scenario) -> bool:
    is_same = one.mean_gain_ns is not None and abs(one.mean_gain_ns) < _SAME_NS
    return is_same and not {"link", "bucket_mb", "bandwidth_factor"}.isdisjoint(one.knobs)


def _bounds(found: WhatIf, run: Run, mean_ns: float | None) -> list[str]:
    """Set what each finding says could be gained at most beside the replay of what it advises, else the best of its kind."""
    if not mean_ns:  # savings are of the mean step: as shares of it none exceeds 100 %
        return []
    chosen: dict[str, Scenario] = {}
    for one in sorted(found.scenarios, key=lambda one: (not one.is_advised, -(one.gain_pct or 0.0))):
        is_tried = one.mean_gain_ns is not None and (one.is_advised or one.mean_gain_ns > 0)  # else it is the opposite
        if is_tried and one.finding is not None and one.finding_saving_ns is not None:
            chosen.setdefault(one.finding, one)
    evidence = dict(zip(*(run.judged_findings()[name].to_pylist() for name in ("id", "evidence")), strict=True))

    def worth(ns: float | None) -> str:
        return f"{percent_text((ns or 0.0) / mean_ns)}, {ms_text(ns)}"

    return [
        f"{rule}: up to {worth(one.finding_saving_ns)}{words.assumed_text(json.loads(evidence[rule]))}; replay of {one.label}: "
        f"{worth(one.mean_gain_ns)}{'' if is_clear(found, one) else f', {words.NOT_CLEAR}'}"
        for rule, one in sorted(chosen.items(), key=lambda pair: -(pair[1].finding_saving_ns or 0.0))
    ]


def whatif_document(found: WhatIf) -> dict[str, Any]:
    """Return the document in a fixed order; ``knobs`` are arguments of `whatif`, a bandwidth always as bytes per s."""
    fields = (asdict(one) | {"knobs": {**one.knobs}, "assumptions": [*one.assumptions]} for one in found.scenarios)
    scenarios = [own | {"refused": own.pop("refused_in_options")} for own in fields]  # as the command's options say it
    return {
        "schema_version": SCHEMA_VERSION, "tool_version": __version__,
        "run": {"run_id": found.run_id, "label": found.label, "n_summary_steps": found.n_steps},
        "is_answered": any(one.refused is None for one in found.scenarios), "verdict": headline(found),
        "step_time_ns": found.step_time_ns, "limit_step_time_ns": found.limit_step_time_ns,
        "limit_gain_ns": found.limit_gain_ns,
        "identity_error_pct": found.identity_error_pct,
        "scenarios": scenarios, "problems": [dict(one) for one in found.problem_rows],
    }  # fmt: skip


def whatif_formats(found: WhatIf, run: Run) -> dict[str, Format]:
    """Return how the answer is written in each format, and how a file of it says which run it is for."""
    return formats_of(
        "whatif", found.run_id, document=partial(whatif_document, found),
        # A document of `analyze` has no scenarios.
        identity_in=lambda one: str(one["run"]["run_id"]) if isinstance(one["scenarios"], list) else None,
        blocks=partial(whatif_blocks, found, run), usage="nsyspipe whatif RUN", page=partial(_page, found, run),
        meta=_META, key="run_id",
    )  # fmt: skip
