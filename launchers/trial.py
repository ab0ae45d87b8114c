"""Capture a job with and without a change, in turn, and compare the saving with the prediction.

This is the work of ``try.sh``.
"""

from __future__ import annotations

import argparse
import functools
import glob
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAUNCHERS = Path(__file__).resolve().parent
_USAGE = """\
Try a recommendation of analyze that a launcher can make: capture a job as it is and with the change, in turn and
several times each. Then compare the captures with nsyspipe diff, and the predicted saving with the measured one.

  launchers/try.sh -n 2 -- --bucket-cap-mb 2000
  launchers/try.sh -n 2 --program train.py --takes 'single-bucket=--bucket-mb 25' -- --lr 1e-4
  launchers/try.sh -n 2 --set NCCL_MAX_CTAS=8
  launchers/try.sh -n 2 --with '--hook bf16'

  -o, --output DIR       directory for all files [trial]
  --captures N           captures of each side. Two do not show how much captures differ [3]
  --finding ID           try the recommendation of this finding [the one with the largest saving]
  --takes ID=WORDS       arguments of the training program for a finding. Repeat the option for several.
                         launchers/train_vit.py has them built in
  --set NAME=VALUE       try this environment variable instead. NAME= removes it. Repeat the option for several
  --with WORDS           try these arguments instead, after those of the training program

All other options are those of launchers/ddp.sh, which makes the captures. Arguments after -- go to the training
program. The exit status is 0 if the change was tried, whatever its effect, and 2 if there is nothing to try or
something is missing. Otherwise it is the exit status of the launcher.
"""
# Finding -> the arguments of train_vit.py that follow its advice.
_VIT_TAKES = {
    "single-bucket": "--bucket-cap-mb 25",
    "too-many-buckets": "--bucket-cap-mb 100",
    "grad-copy": "--gradient-as-bucket-view",
    "compress-gradients": "--hook bf16",
}
# Findings whose advice a launcher can follow for every program.
_ANY_TAKES = ("slow-link", "comm-slows-compute", "profiler-overhead")
# Settings of NCCL that may keep it from a faster link, if its log does not name them.
_LINK_SETTINGS = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
)
_NS_PER_MS = 1e6
# A shell adds the number of the signal.
_ENDED_BY_SIGNAL = 128
# Begins the command that runs one of our modules.
_RUN_MODULE = (sys.executable, "-P", str(LAUNCHERS / "run_module.py"))


@dataclass(frozen=True)
class Change:
    """What the captures after a change have, and those before it have not. It may be empty."""

    # Environment variables. None removes a variable.
    variables: Mapping[str, str | None] = field(default_factory=dict)
    # An option of the launcher with its value.
    options: Sequence[str] = ()
    # Arguments of the training program.
    words: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.variables or self.options or self.words)

    def __str__(self) -> str:
        """Return the change with hashes in place of what may be secret, as in a sidecar."""
        removed = [f"unset {name}" for name, value in self.variables.items() if value is None]
        assigned = [f"{key}={value}" for key, value in self.variables.items() if value is not None]
        parts = removed
        words = [*assigned, *self.options, *self.words]
        if words:
            recorded = subprocess.run(  # noqa: S603
                [*_RUN_MODULE, "nsyspipe.nsys.secrets", *words],
                capture_output=True,
                text=True,
                check=True,
            )
            parts.append(recorded.stdout.strip())
        return ", ".join(parts)


class TrialError(Exception):
    """Keeps a trial from going on. Without a text, the command that failed has said why.

    It has a fix, the exit status, and a note about the captures that are left.
    """

    note_of_captures = ""

    def __init__(self, problem: str, fix: str = "", status: int = 2) -> None:
        super().__init__(problem)
        self.fix = fix
        self.status = status


def main() -> int:
    """Try a change, and return the exit status."""
    try:
        request = _parse(sys.argv[1:])
        return _try(request)
    except TrialError as error:
        if str(error):
            print(f"error: {error}", file=sys.stderr)
            if error.fix:
                print(f"  fix: {error.fix}", file=sys.stderr)
        if error.note_of_captures:
            print(error.note_of_captures, file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        # Ctrl-C between two commands. While a command runs, `_run` passes it on.
        return _ENDED_BY_SIGNAL + signal.SIGINT


class _Request(NamedTuple):
    """What the user asks for."""

    options: argparse.Namespace
    # The words for the launcher, and the arguments of the training program.
    launcher: list[str]
    program: list[str]


def _parse(words: list[str]) -> _Request:
    """Return what the words of the command line ask for."""
    cut = words.index("--") if "--" in words else len(words)
    parser = _Parser(prog="try.sh", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=Path("trial"), action=_Once)
    parser.add_argument("--captures", type=_number_of_captures, default=3, action=_Once)
    parser.add_argument("--finding", action=_Once)
    parser.add_argument("--program", action=_Once)
    parser.add_argument("--takes", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--with", dest="words", default="", action=_Once)
    options, launcher = parser.parse_known_args(_joined(words[:cut]))
    if options.help:
        print(_USAGE, end="")
        raise SystemExit
    _check(options, launcher)
    if options.program:
        # It is an option of the launcher too.
        launcher += ["--program", options.program]
    return _Request(options, launcher, words[cut + 1 :])


class _Parser(argparse.ArgumentParser):
    """A parser whose errors look like those of all commands."""

    def error(self, message: str) -> NoReturn:
        """Raise a TrialError. argparse writes "argument" before the name of an option."""
        raise TrialError(message.removeprefix("argument "), "launchers/try.sh --help")


def _number_of_captures(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        problem = f"--captures {shlex.quote(text)}: not a number of captures"
        raise TrialError(problem, "--captures 3")
    return int(text)


class _Once(argparse.Action):
    """An option that takes one value. A second value is a TrialError."""

    def __call__(
        self, _parser: object, options: argparse.Namespace, value: object, _option: object = None
    ) -> None:
        names_with_value = vars(options).setdefault("names_with_value", set[str]())
        if self.dest in names_with_value:
            problem = f"{self.option_strings[-1]}: takes one value, but got several"
            raise TrialError(problem, "pass the option once")
        names_with_value.add(self.dest)
        setattr(options, self.dest, value)


def _findings() -> set[str]:
    """Return the names of all findings: each has a page that explains it."""
    pages = LAUNCHERS.parent / "nsyspipe" / "report" / "explanations" / "findings"
    return {page.stem for page in pages.glob("*.md")}


def _check(options: argparse.Namespace, launcher: Sequence[str]) -> None:
    """Raise a TrialError for options that cannot be followed, before anything is captured."""
    has_own_change = bool(options.set or options.words)
    for text in (*options.takes, *options.set):
        name, equals_sign, _ = text.partition("=")
        if not name or not equals_sign:
            fix = "--set NCCL_MAX_CTAS=8, --takes 'single-bucket=--bucket-mb 25'"
            raise TrialError(f"{text!r}: no NAME=VALUE", fix)
    words_of_takes = [text.partition("=")[2] for text in options.takes]
    for words in (options.words, *words_of_takes):
        # Raises for quotes that are not closed.
        _split(words)
    if options.finding and has_own_change:
        raise TrialError("--finding, and --set or --with", "pass only one of them")
    _check_findings(options, _takes(options, launcher))
    if "--cpu" in launcher and not has_own_change:
        fix = "pass --set NAME=VALUE, or --with WORDS"
        raise TrialError("--cpu: analyze has no recommendations without a GPU", fix)


def _check_findings(options: argparse.Namespace, takes: Mapping[str, str]) -> None:
    """Raise a TrialError for a finding that does not exist, or that no launcher can try."""
    findings = _findings()
    options_of_findings = [("--takes", finding) for finding in takes]
    if options.finding:
        options_of_findings.insert(0, ("--finding", options.finding))
    for option, finding in options_of_findings:
        if finding not in findings:
            fix = f"one of {', '.join(sorted(findings))}"
            raise TrialError(f"{option} {finding}: no finding of analyze", fix)
    possible = [*takes, *_ANY_TAKES]
    if options.finding and options.finding not in possible:
        start = f"--finding {options.finding}: launchers can change only the recommendations of"
        fix = (
            f"pass --takes '{options.finding}=WORDS of the training program', --set NAME=VALUE, or "
            "--with WORDS"
        )
        raise TrialError(f"{start} {', '.join(possible)}", fix)


def _takes(options: argparse.Namespace, launcher: Sequence[str]) -> dict[str, str]:
    """Return the arguments of the training program for a finding's advice, by finding."""
    vit = LAUNCHERS / "train_vit.py"
    is_module = not {"-m", "--module"}.isdisjoint(launcher)
    is_vit = Path(options.program or vit).resolve() == vit and not is_module
    takes = dict(_VIT_TAKES) if is_vit else {}
    for text in options.takes:
        finding, words = text.split("=", 1)
        takes[finding] = words
    return takes


def _split(words: str) -> list[str]:
    """Split words as a shell does."""
    try:
        return shlex.split(words)
    except ValueError as error:
        raise TrialError(f"{words!r}: {error}", "close the quotes") from error


def _joined(words: Sequence[str]) -> list[str]:
    """Return the words with ``--with`` and its value as one word, ``--with=VALUE``.

    Otherwise argparse would take a value that begins with a dash for an option.
    """
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "--with":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _try(request: _Request) -> int:
    """Make the captures of a trial, compare them, and return the exit status.

    If the trial fails, its error names the captures that were made.
    """
    options = request.options
    folder: Path = options.output
    variables = {}
    for text in options.set:
        name, _, value = text.partition("=")
        # An empty value removes the variable.
        variables[name] = value or None
    asked = Change(variables, words=_split(options.words))
    captures = _Captures(folder, request.launcher, request.program, n_all=2 * options.captures)
    try:
        if "--dry-run" in request.launcher:
            _show(captures, options.captures, asked)
            return 0
        return _capture_and_compare(request, captures, asked)
    except TrialError as error:
        if captures.names_taken:
            names = ", ".join(captures.names_taken)
            note = f"note: {folder} has the captures so far ({names}) for nsyspipe analyze"
            error.note_of_captures = f"{note}. To try again, pass --force or -o ANOTHER_DIRECTORY"
        raise


def _show(captures: _Captures, n_per_side: int, asked: Change) -> None:
    """Show the first capture of each side in a dry run, as far as it is known.

    If no change was asked for, the change is not known before a real capture.
    """
    captures.take("before-1", Change())
    shown = "this is the first"
    change_text = "the recommendation of analyze after the first capture"
    if asked:
        captures.take("after-1", asked)
        shown = "these are the first two"
        change_text = str(asked)
    rest = f"The others have other names, and {n_per_side} of all have the change: {change_text}"
    print(f"note: {shown} of {captures.n_all} captures. {rest}", file=sys.stderr)


def _capture_and_compare(request: _Request, captures: _Captures, asked: Change) -> int:
    """Try the change that was asked for, or the one that analyze advises after a first capture."""
    folder: Path = request.options.output
    n_per_side: int = request.options.captures
    captures.take("before-1", Change())
    findings = _analysis(folder, "before-1")["findings"]
    trial = _Trial(None, asked) if asked else _advised(findings, request)
    finding_text = f" ({trial.finding['id']})" if trial.finding else ""
    print(f"== to be tried{finding_text}: {trial.change}", file=sys.stderr)
    for number in range(1, n_per_side + 1):
        # Each side comes first in every other round, so a machine that drifts slows both alike.
        is_before_first = number % 2 == 1
        sides = ("before", "after") if is_before_first else ("after", "before")
        for side in sides:
            name = f"{side}-{number}"
            if name in captures.names_taken:
                continue
            captures.take(name, Change() if side == "before" else trial.change)
    return _compare(folder, n_per_side, trial)


class _Captures:
    """The captures of a trial, one after the other."""

    def __init__(
        self, folder: Path, launcher: Sequence[str], program: Sequence[str], n_all: int
    ) -> None:
        self.folder = folder
        self.launcher = launcher
        self.program = program
        self.n_all = n_all
        self.names_taken: list[str] = []

    def take(self, name: str, change: Change) -> None:
        """Make a capture of this name with a change; a TrialError if it fails."""
        print(f"== {name} ({len(self.names_taken) + 1} of {self.n_all})", file=sys.stderr)
        variables = dict(os.environ)
        for variable, value in change.variables.items():
            if value is None:
                variables.pop(variable, None)
            else:
                variables[variable] = value
        if "--dry-run" in self.launcher:
            # The dry run prints these variables too.
            variables["NSYSPIPE_CHANGED"] = " ".join(change.variables)
        launcher = self.launcher
        if change.options:
            launcher = _without(launcher, change.options[0])
        command = [str(LAUNCHERS / "ddp.sh"), *launcher, *change.options]
        command += ["-o", str(self.folder / name), "--", *self.program, *change.words]
        status = _run(command, variables)
        if status != 0:
            raise TrialError(f"{name}: the capture ended with status {status}", "see above", status)
        self.names_taken.append(name)


def _without(words: Sequence[str], option: str) -> list[str]:
    """Return a launcher's words without an option and its value, because a change brings another.

    The value is the next word, or follows after ``=`` in the same word.
    """
    remaining = []
    is_value_of_option = False
    for word in words:
        is_option = word == option
        if not (is_option or is_value_of_option or word.startswith(f"{option}=")):
            remaining.append(word)
        is_value_of_option = is_option
    return remaining


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    """Run a command to its end, and return its exit status.

    Signals that ask us to end are passed on to the command. After its end, they are a TrialError.
    """
    # In its own group, Ctrl-C in a terminal does not reach the command. So it gets the signal only
    # once, from us.
    process = subprocess.Popen(  # noqa: S603
        command, env=variables, stdin=subprocess.DEVNULL, process_group=0
    )
    signals_passed_on: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        signals_passed_on.append(number)
        process.send_signal(number)

    earlier_handlers = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        status = process.wait()
    finally:
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)
    if signals_passed_on:
        raise TrialError("", status=_ENDED_BY_SIGNAL + signals_passed_on[0])
    return status


def _nsyspipe(*words: str) -> None:
    """Run a command of nsyspipe. If it fails, it has said why, so the TrialError has no text."""
    status = _run([*_RUN_MODULE, "nsyspipe", *words])
    if status != 0:
        raise TrialError("", status=status)


@functools.cache
def _analysis(folder: Path, name: str) -> dict[str, Any]:
    """Analyze a capture, once, and return the document of analyze."""
    file = folder / f"{name}.analysis.json"
    _nsyspipe("analyze", *_reports(folder, name), "-q", "--force", "--json", str(file))
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def _reports(folder: Path, name: str) -> list[str]:
    """Return the sorted paths of the exported reports of a capture; a TrialError without any."""
    reports = sorted(str(path) for path in folder.glob(f"{name}_*.sqlite"))
    if not reports:
        fix = "leave --no-export and --no-profile out"
        raise TrialError(f"{folder / name}: has left no report", fix)
    return reports


class _Trial(NamedTuple):
    """The change to try, and the finding that advises it."""

    # None if the user asked for the change.
    finding: Mapping[str, Any] | None
    change: Change


def _advised(findings: Sequence[dict[str, Any]], request: _Request) -> _Trial:
    """Return the first finding whose advice a launcher can follow, and the change.

    With --finding, only this finding counts. A TrialError is raised if there is none.
    """
    options = request.options
    takes = _takes(options, request.launcher)
    possible_ids = []
    for finding in findings:
        change = _change(finding, takes)
        if not change:
            continue
        if options.finding in (None, finding["id"]):
            return _Trial(finding, change)
        possible_ids.append(finding["id"])
    wanted = f"--finding {options.finding}" if options.finding else "nothing to try"
    reported = ", ".join(finding["id"] for finding in findings) or "nothing"
    possible = ", ".join(possible_ids) or "none of these"
    problem = f"{wanted}: analyze reports {reported}, and a launcher can change {possible}"
    fix = "pass --takes 'ID=WORDS of the training program', --set NAME=VALUE, or --with WORDS"
    raise TrialError(problem, fix)


def _change(finding: Mapping[str, Any], takes: Mapping[str, str]) -> Change | None:
    """Return the change by which a launcher follows a finding's advice; None if it cannot."""
    finding_id = finding["id"]
    if finding_id in takes:
        return Change(words=_split(takes[finding_id]))
    if finding_id == "slow-link":
        settings_in_log = finding["evidence"].get("nccl_settings")
        # If the log names no setting, each setting of links may be the cause. Only settings of this
        # environment can be removed, because a program may set others itself.
        names = [name for name in (settings_in_log or _LINK_SETTINGS) if name in os.environ]
        return Change(dict.fromkeys(names)) if names else None
    if finding_id == "comm-slows-compute":
        return Change({"NCCL_MAX_CTAS": "8"})
    if finding_id == "profiler-overhead":
        return Change(options=("--trace", "cuda,nvtx"))
    return None


def _compare(folder: Path, n_per_side: int, trial: _Trial) -> int:
    """Compare the captures, print and write what was predicted and measured, and return 0."""
    sides = [
        f"{side}={glob.escape(str(folder))}/{side}-{number}_*.sqlite"
        for side in ("before", "after")
        for number in range(1, n_per_side + 1)
    ]
    file = folder / "diff.json"
    page = folder / "diff.html"
    _nsyspipe("diff", *sides, "--force", "--json", str(file), "--html", str(page))
    metrics = json.loads(file.read_text(encoding="utf-8"))["metrics"]
    step_time = next(row for row in metrics if row["metric"] == "step_time")
    if step_time["delta"] is None:
        medians_before_ns = _host_medians_ns(folder, "before", n_per_side)
        medians_after_ns = _host_medians_ns(folder, "after", n_per_side)
        lines = [_tried_text(trial), f"steps  {_host_text(medians_before_ns, medians_after_ns)}"]
    else:
        lines = [_tried_text(trial), *_measured_lines(trial.finding, step_time)]
    print("\n" + "\n".join(lines) + f"\npage: {page}")
    keys = ("baseline", "candidate", "delta", "ci_low", "ci_high", "confidence", "verdict")
    document = {
        "change": str(trial.change),
        "finding": trial.finding,
        "measured": {key: step_time[key] for key in keys},
        "text": lines,
    }
    (folder / "trial.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _host_medians_ns(folder: Path, side: str, n_per_side: int) -> list[float]:
    """Return the median step time of each capture of a side, by ranges of the host.

    It stands in for the step time of GPUs. The time of a step is that of its slowest process. A
    capture without complete steps has no median.
    """
    medians_ns = []
    for number in range(1, n_per_side + 1):
        longest_ns_by_step: dict[int, int] = {}
        for row in _analysis(folder, f"{side}-{number}")["host_steps"]:
            if row["is_complete"]:
                longest_so_far_ns = longest_ns_by_step.get(row["step"], 0)
                longest_ns_by_step[row["step"]] = max(longest_so_far_ns, row["host_ns"])
        if longest_ns_by_step:
            medians_ns.append(statistics.median(longest_ns_by_step.values()))
    return medians_ns


def _tried_text(trial: _Trial) -> str:
    """Return the first line of the answer: the change, and the finding that advises it."""
    line = f"tried  {trial.change}"
    if trial.finding:
        line += f" ({trial.finding['id']}: {trial.finding['title']})"
    return line


def _measured_lines(finding: Mapping[str, Any] | None, step_time: Mapping[str, Any]) -> list[str]:
    """Return the lines of the step times, and of the prediction and what was measured.

    `step_time` is the row of diff. Its times and differences are in ns.
    """
    before_text = _ms_text(step_time["baseline"])
    after_text = _ms_text(step_time["candidate"])
    # A negative difference is a saving.
    saved_text = _saved_text(-step_time["delta"])
    if step_time["ci_low"] is None:
        measured = f"measured {saved_text} (without a confidence interval)"
    else:
        saved = _Interval(-step_time["ci_high"], -step_time["ci_low"])
        interval_text = f"{100 * step_time['confidence']:g}%: {_interval_text(saved)}"
        measured = f"measured {saved_text} ({interval_text})"
        if finding:
            measured += f": {_verdict(_predict(finding), saved)}"
    prediction = _prediction_text(finding)
    return [f"steps  {before_text} before, {after_text} after", f"so     {prediction}, {measured}"]


class _Interval(NamedTuple):
    """An interval of the time that a change saves in each step. Negative if steps get longer."""

    low_ns: float
    high_ns: float


class _Prediction(NamedTuple):
    """What a finding predicts that a change saves in each step."""

    # By the replay. None without an estimate.
    interval: _Interval | None
    # The largest saving that agrees with the prediction. None if no amount is predicted.
    at_most_ns: float | None


def _predict(finding: Mapping[str, Any]) -> _Prediction:
    """Return the saving that a finding predicts: an interval by the replay, or only its bound."""
    expected_ns = finding["expected_ns_per_step"]
    evidence = finding["evidence"]
    if expected_ns is None or evidence.get("replay_step_time_ns") is None:
        return _Prediction(None, finding["saving_ns_per_step"])
    # The expected saving is the step time without the change, minus that of the replay.
    without_change_ns = expected_ns + evidence["replay_step_time_ns"]
    # The longest replayed step saves the least.
    low_ns = without_change_ns - evidence["replay_step_time_high_ns"]
    high_ns = without_change_ns - evidence["replay_step_time_low_ns"]
    return _Prediction(_Interval(low_ns, high_ns), high_ns)


def _prediction_text(finding: Mapping[str, Any] | None) -> str:
    """Return what a finding predicts, and why there is no estimate if only a bound is known."""
    if finding is None:
        return "nothing was predicted"
    prediction = _predict(finding)
    if prediction.at_most_ns is None:
        return "no amount was predicted"
    if prediction.interval is None:
        text = f"predicted at most {_saved_text(prediction.at_most_ns)}"
        reason = finding["evidence"].get("replay_refused")
        return f"{text} (no estimate: {reason})" if reason else text
    expected_text = _saved_text(finding["expected_ns_per_step"])
    return f"predicted {expected_text} ({_interval_text(prediction.interval)})"


def _verdict(prediction: _Prediction, measured: _Interval) -> str:
    """Say whether the interval of the measured saving agrees with the prediction."""
    may_have_saved = measured.high_ns > 0
    no_saving = "" if may_have_saved else ", it saved nothing"
    if prediction.at_most_ns is None:
        return f"that cannot be compared{no_saving}"
    if measured.low_ns > prediction.at_most_ns:
        return "more than predicted"
    if prediction.interval is None:
        return f"within the prediction{no_saving}"
    if measured.high_ns < prediction.interval.low_ns:
        return f"less than predicted{no_saving}"
    return f"as predicted{no_saving}"


def _host_text(medians_before_ns: Sequence[float], medians_after_ns: Sequence[float]) -> str:
    """Return the step times of both sides by ranges of the host."""
    if not medians_before_ns or not medians_after_ns:
        return "none, on a side at least"
    before = _median_and_each(medians_before_ns)
    after = _median_and_each(medians_after_ns)
    return (
        f"without a GPU, by the host's ranges, the median of the captures and each: {before} "
        f"before, {after} after"
    )


def _median_and_each(times_ns: Sequence[float]) -> str:
    """Return the median of times, and all of them from the shortest to the longest."""
    each = ", ".join(map(_ms_text, sorted(times_ns)))
    return f"{_ms_text(statistics.median(times_ns))} ({each})"


def _saved_text(saved_ns: float) -> str:
    comparative = "less" if saved_ns >= 0 else "more"
    return f"{_ms_text(abs(saved_ns))} {comparative} a step"


def _interval_text(saving: _Interval) -> str:
    """Return an interval of savings, or of losses if all of it is negative."""
    is_longer_for_sure = saving.high_ns < 0
    if is_longer_for_sure:
        return f"{_ms_text(-saving.high_ns)} to {_ms_text(-saving.low_ns)}"
    return f"{_ms_text(saving.low_ns)} to {_ms_text(saving.high_ns)}"


def _ms_text(time_ns: float) -> str:
    return f"{time_ns / _NS_PER_MS:,.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
