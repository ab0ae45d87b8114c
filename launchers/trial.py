"""Capture a job with and without a change, in turn, and say what it brought beside what was promised: the work of ``try.sh``."""

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
# What train_vit.py takes for what a finding advises.
_VIT_TAKES = {
    "single-bucket": "--bucket-cap-mb 25",
    "too-many-buckets": "--bucket-cap-mb 100",
    "grad-copy": "--gradient-as-bucket-view",
    "compress-gradients": "--hook bf16",
}
# Of these the change is known, whatever the program.
_ANY_TAKES = ("slow-link", "comm-slows-compute", "profiler-overhead")
# Where NCCL's log does not say which settings keep it from a faster link.
_OF_LINKS = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
)
_NS_PER_MS = 1e6
_OURS = (sys.executable, "-P", str(LAUNCHERS / "run_module.py"))


@dataclass(frozen=True)
class Change:
    """What the second of two captures has that the first has not."""

    variables: Mapping[str, str | None] = field(default_factory=dict)  # None: taken away
    options: Sequence[str] = ()  # of the launcher
    words: Sequence[str] = ()  # of the training program

    def __bool__(self) -> bool:
        return bool(self.variables or self.options or self.words)

    def __str__(self) -> str:
        """Say what may be printed and written down: what may be secret is hashed, as in a sidecar."""
        taken = [f"unset {name}" for name, value in self.variables.items() if value is None]
        given = [f"{name}={value}" for name, value in self.variables.items() if value is not None]
        words = [*given, *self.options, *self.words]
        told = subprocess.run(  # noqa: S603
            [*_OURS, "nsyspipe.nsys.secrets", *words], capture_output=True, text=True, check=True
        )
        return ", ".join([*taken, *([told.stdout.strip()] if words else [])])


class TrialError(Exception):
    """What keeps a trial from going on: what is wrong, the fix, the exit status, and what it leaves."""

    left = ""

    def __init__(self, what: str, fix: str = "", status: int = 2) -> None:
        super().__init__(what)
        self.fix, self.status = fix, status


def main() -> int:
    """Try, and answer with the exit status."""
    try:
        return _try(*_options(sys.argv[1:]))
    except TrialError as error:
        if str(error):
            print(
                f"error: {error}" + (f"\n  fix: {error.fix}" if error.fix else ""), file=sys.stderr
            )
        if error.left:
            print(error.left, file=sys.stderr)
        return error.status
    except KeyboardInterrupt:  # between two commands
        return 128 + signal.SIGINT


def _options(words: list[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Return the options, the launcher's words and those of the training program."""
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="try.sh", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=Path("trial"), action=_Once)
    parser.add_argument("--captures", type=int, default=3, action=_Once)
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
    return (
        options,
        [*launcher, *(["--program", options.program] if options.program else [])],
        words[cut + 1 :],
    )


class _Once(argparse.Action):
    """An option that takes one value, and says so if it is given two."""

    def __call__(
        self, _parser: object, into: argparse.Namespace, value: object, _option: object = None
    ) -> None:
        given = into.__dict__.setdefault("given", set[str]())
        if self.dest in given:
            raise TrialError(
                f"{self.option_strings[-1]}: takes one value, but got several",
                "pass the option once",
            )
        given.add(self.dest)
        setattr(into, self.dest, value)


def _findings() -> set[str]:
    """Return the names of all findings: each has a page that explains it."""
    pages = LAUNCHERS.parent / "nsyspipe" / "report" / "explanations" / "findings"
    return {page.stem for page in pages.glob("*.md")}


def _check(options: argparse.Namespace, launcher: Sequence[str]) -> None:
    """Refuse what cannot be followed before anything is captured."""
    if options.captures < 1:
        raise TrialError(f"--captures {options.captures}: not a number of captures", "--captures 3")
    for text in (*options.takes, *options.set):
        if not text.partition("=")[0] or "=" not in text:
            fix = "--set NCCL_MAX_CTAS=8, --takes 'single-bucket=--bucket-mb 25'"
            raise TrialError(f"{text!r}: no NAME=VALUE", fix)
    for text in (options.words, *(one.partition("=")[2] for one in options.takes)):
        _split(text)
    if options.finding and (options.set or options.words):
        raise TrialError("--finding, and --set or --with", "pass only one of them")
    takes, findings = _takes(options, launcher), _findings()
    for subject, kind in [
        ("--finding", options.finding or ""),
        *(("--takes", one) for one in takes),
    ]:
        if kind and kind not in findings:
            raise TrialError(
                f"{subject} {kind}: no finding of analyze", f"one of {', '.join(sorted(findings))}"
            )
    if options.finding and options.finding not in (*takes, *_ANY_TAKES):
        what = f"--finding {options.finding}: launchers can change only the recommendations of"
        fix = (
            f"pass --takes '{options.finding}=WORDS of the training program', --set NAME=VALUE, or "
            "--with WORDS"
        )
        raise TrialError(f"{what} {', '.join((*takes, *_ANY_TAKES))}", fix)
    if "--cpu" in launcher and not (options.set or options.words):
        fix = "pass --set NAME=VALUE, or --with WORDS"
        raise TrialError("--cpu: analyze has no recommendations without a GPU", fix)


def _takes(options: argparse.Namespace, launcher: Sequence[str]) -> dict[str, str]:
    """Return what the training program takes for what findings advise."""
    vit = LAUNCHERS / "train_vit.py"
    is_vit = Path(options.program or vit).resolve() == vit and not {"-m", "--module"} & {*launcher}
    return (_VIT_TAKES if is_vit else {}) | dict(one.split("=", 1) for one in options.takes)


def _split(words: str) -> list[str]:
    """Split words as a shell does."""
    try:
        return shlex.split(words)
    except ValueError as error:
        raise TrialError(f"{words!r}: {error}", "close the quotes") from error


def _joined(words: Sequence[str]) -> list[str]:
    """Join ``--with --view``: argparse takes a value that begins with a dash for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "--with":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _try(options: argparse.Namespace, launcher: list[str], program: list[str]) -> int:
    """Capture, analyze, choose, capture the rest, compare."""
    folder: Path = options.output
    variables = {
        name: value or None for name, _, value in (one.partition("=") for one in options.set)
    }
    asked = Change(variables, words=_split(options.words))
    capture = _Captures(folder, launcher, program, 2 * options.captures)
    try:
        return _tried(options, launcher, capture, asked)
    except TrialError as error:
        if capture.taken:
            kept = (
                f"note: {folder} has the captures so far ({', '.join(capture.taken)}) for nsyspipe "
                "analyze"
            )
            error.left = f"{kept}. To try again, pass --force or -o ANOTHER_DIRECTORY"
        raise


def _tried(
    options: argparse.Namespace, launcher: Sequence[str], capture: _Captures, asked: Change
) -> int:
    folder: Path = options.output
    capture.take("before-1", Change())
    if "--dry-run" in launcher:
        if asked:
            capture.take("after-1", asked)
        shown = "these are the first two" if asked else "this is the first"
        change_text = (
            f"{asked}" if asked else "the recommendation of analyze after the first capture"
        )
        rest = (
            f"The others have other names, and {options.captures} of all have the change: "
            f"{change_text}"
        )
        print(f"note: {shown} of {capture.n_all} captures. {rest}", file=sys.stderr)
        return 0
    findings = _analyzed(folder, "before-1")["findings"]
    finding, change = (None, asked) if asked else _advised(findings, options, launcher)
    print(
        "== to be tried" + (f" ({finding['id']})" if finding else "") + f": {change}",
        file=sys.stderr,
    )
    for number in range(
        1, options.captures + 1
    ):  # in turn, and each side as often first: what drifts is in both
        for side in ("before", "after") if number % 2 else ("after", "before"):
            if (side, number) != ("before", 1):
                capture.take(f"{side}-{number}", Change() if side == "before" else change)
    return _compared(folder, options.captures, finding, change)


class _Captures:
    """The captures of a trial, one after the other."""

    def __init__(
        self, folder: Path, launcher: Sequence[str], program: Sequence[str], n_all: int
    ) -> None:
        self.folder, self.launcher, self.program, self.n_all = folder, launcher, program, n_all
        self.taken: list[str] = []

    def take(self, name: str, change: Change) -> None:
        print(f"== {name} ({len(self.taken) + 1} of {self.n_all})", file=sys.stderr)
        variables = dict(os.environ)
        for key, value in change.variables.items():
            variables.pop(key, None)
            variables |= {} if value is None else {key: value}
        if "--dry-run" in self.launcher:
            variables["NSYSPIPE_CHANGED"] = " ".join(change.variables)
        launcher = _without(self.launcher, change.options[0]) if change.options else self.launcher
        words = [
            *launcher,
            *change.options,
            "-o",
            str(self.folder / name),
            "--",
            *self.program,
            *change.words,
        ]
        if status := _run([str(LAUNCHERS / "ddp.sh"), *words], variables):
            raise TrialError(f"{name}: the capture ended with status {status}", "see above", status)
        self.taken.append(name)


def _without(words: Sequence[str], option: str) -> list[str]:
    """Return a launcher's words without an option and its value, of which a change brings another."""
    pairs = zip(["", *words], words, strict=False)
    return [
        word
        for before, word in pairs
        if option not in (before, word) and not word.startswith(f"{option}=")
    ]


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    """Run a command to its end, and pass on the signals that are for it; its exit status."""
    # A group of its own: a terminal's Ctrl-C reaches us alone, and the command once.
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603
    asked: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        asked.append(number)
        process.send_signal(number)

    kept = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        status = process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    if asked:
        raise TrialError("", status=128 + asked[0])
    return status


def _nsyspipe(*words: str) -> None:
    if status := _run([*_OURS, "nsyspipe", *words]):
        raise TrialError("", status=status)


@functools.cache
def _analyzed(folder: Path, name: str) -> dict[str, Any]:
    """Return what analyze says of a capture."""
    told = folder / f"{name}.analysis.json"
    _nsyspipe("analyze", *_reports(folder, name), "-q", "--force", "--json", str(told))
    document: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return document


def _reports(folder: Path, name: str) -> list[str]:
    if not (reports := sorted(str(path) for path in folder.glob(f"{name}_*.sqlite"))):
        raise TrialError(
            f"{folder / name}: has left no report", "leave --no-export and --no-profile out"
        )
    return reports


def _advised(
    findings: Sequence[dict[str, Any]], options: argparse.Namespace, launcher: Sequence[str]
) -> tuple[dict[str, Any], Change]:
    """Return the finding to try, and the change that it advises."""
    takes = _takes(options, launcher)
    changes = [(finding, change) for finding in findings if (change := _change(finding, takes))]
    if not (chosen := [one for one in changes if options.finding in (None, one[0]["id"])]):
        ids = ", ".join(finding["id"] for finding in findings) or "nothing"
        wanted = f"--finding {options.finding}" if options.finding else "nothing to try"
        raise TrialError(
            (
                f"{wanted}: analyze reports {ids}, and a launcher can change "
                f"{', '.join(one['id'] for one, _ in changes) or 'none of these'}"
            ),
            "pass --takes 'ID=WORDS of the training program', --set NAME=VALUE, or --with WORDS",
        )
    return chosen[0]


def _change(finding: Mapping[str, Any], takes: Mapping[str, str]) -> Change | None:
    """Return what a launcher can change of what a finding advises; None if nothing."""
    kind = finding["id"]
    if kind in takes:
        return Change(words=_split(takes[kind]))
    if kind == "slow-link":
        told = finding["evidence"].get("nccl_settings")
        # What programs started with may be set further on: without a name, every setting of links
        # counts.
        names = [name for name in (told or _OF_LINKS) if name in os.environ]
        return Change(dict.fromkeys(names)) if names else None
    if kind == "comm-slows-compute":
        return Change({"NCCL_MAX_CTAS": "8"})
    return Change(options=("--trace", "cuda,nvtx")) if kind == "profiler-overhead" else None


def _compared(
    folder: Path, n_captures: int, finding: Mapping[str, Any] | None, change: Change
) -> int:
    """Compare the captures, print what was promised and what was measured, and write it."""
    sides = [
        f"{side}={glob.escape(str(folder))}/{side}-{number}_*.sqlite"
        for side in ("before", "after")
        for number in range(1, n_captures + 1)
    ]
    told = folder / "diff.json"
    _nsyspipe("diff", *sides, "--force", "--json", str(told), "--html", str(folder / "diff.html"))
    metrics = json.loads(told.read_text(encoding="utf-8"))["metrics"]
    step = next(row for row in metrics if row["metric"] == "step_time")
    hosts = (
        []
        if step["delta"] is not None
        else [_host_steps(folder, side, n_captures) for side in ("before", "after")]
    )
    lines = list(_lines(change, finding, step, hosts))
    print("\n" + "\n".join(lines) + f"\npage: {folder / 'diff.html'}")
    keys = ("baseline", "candidate", "delta", "ci_low", "ci_high", "confidence", "verdict")
    result = {
        "change": str(change),
        "finding": finding,
        "measured": {key: step[key] for key in keys},
        "text": lines,
    }
    (folder / "trial.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def _host_steps(folder: Path, side: str, n_captures: int) -> list[float]:
    """Return the median step of each capture of a side by the host's ranges, of each step the slowest process: without a GPU."""
    medians = []
    for number in range(1, n_captures + 1):
        longest: dict[int, int] = {}
        for row in _analyzed(folder, f"{side}-{number}")["host_steps"]:
            if row["is_complete"]:
                longest[row["step"]] = max(longest.get(row["step"], 0), row["host_ns"])
        medians += [statistics.median(longest.values())] if longest else []
    return medians


def _lines(
    change: Change,
    finding: Mapping[str, Any] | None,
    step: Mapping[str, Any],
    hosts: Sequence[Sequence[float]],
) -> Iterator[str]:
    """Yield the lines of the answer: what was tried, the steps of both sides, and one sentence."""
    yield f"tried  {change}" + (f" ({finding['id']}: {finding['title']})" if finding else "")
    if step["delta"] is None:
        yield f"steps  {_of_hosts(hosts)}"
        return
    yield f"steps  {_ms(step['baseline'])} before, {_ms(step['candidate'])} after"
    measured, verdict = f"measured {_saved(-step['delta'])}", ""
    if step["ci_low"] is None:
        measured += " (without a confidence interval)"
    else:
        least, most = -step["ci_high"], -step["ci_low"]
        measured += f" ({100 * step['confidence']:g}%: {_between(least, most)})"
        verdict = f": {_verdict(finding, least, most)}" if finding else ""
    yield f"so     {_promise(finding)}, {measured}{verdict}"


def _promised(finding: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the least and the most of a step's time that was promised to be saved, by the replay, else by the bound."""
    expected, evidence = finding["expected_ns_per_step"], finding["evidence"]
    if expected is None or evidence.get("replay_step_time_ns") is None:
        return None, finding["saving_ns_per_step"]
    captured = expected + evidence["replay_step_time_ns"]
    return captured - evidence["replay_step_time_high_ns"], captured - evidence[
        "replay_step_time_low_ns"
    ]


def _promise(finding: Mapping[str, Any] | None) -> str:
    if finding is None:
        return "nothing was predicted"
    least, most = _promised(finding)
    if most is None:
        return "no amount was predicted"
    if least is None:
        reason = finding["evidence"].get("replay_refused")
        return f"predicted at most {_saved(most)}" + (f" (no estimate: {reason})" if reason else "")
    return f"predicted {_saved(finding['expected_ns_per_step'])} ({_between(least, most)})"


def _verdict(finding: Mapping[str, Any], least: float, most: float) -> str:
    """Say whether what was measured, by its interval, agrees with what was promised."""
    low, high = _promised(finding)
    nothing = ", it saved nothing" if most <= 0 else ""
    if high is None:
        return f"that cannot be compared{nothing}"
    if least > high:
        return "more than predicted"
    if low is None:
        return f"within the prediction{nothing}"
    return f"less than predicted{nothing}" if most < low else f"as predicted{nothing}"


def _of_hosts(sides: Sequence[Sequence[float]]) -> str:
    if not all(sides):
        return "none, on a side at least"
    before, after = (
        f"{_ms(statistics.median(one))} ({', '.join(map(_ms, sorted(one)))})" for one in sides
    )
    return (
        f"without a GPU, by the host's ranges, the median of the captures and each: {before} "
        f"before, {after} after"
    )


def _saved(ns: float) -> str:
    return f"{_ms(abs(ns))} {'less' if ns >= 0 else 'more'} a step"


def _between(least: float, most: float) -> str:
    """Return an interval of savings; where all of it is longer steps, of what they are longer."""
    low, high = (least, most) if most >= 0 else (-most, -least)
    return f"{_ms(low)} to {_ms(high)}"


def _ms(ns: float) -> str:
    return f"{ns / _NS_PER_MS:,.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
