"""The options that several commands share: how reports are read, and what is said meanwhile."""

import contextlib
import functools
import inspect
import os
import re
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from nsyspipe.errors import InputError, OptionError
from nsyspipe.model.names import PHASE_PATTERNS
from nsyspipe.model.options import AUTO, DEFAULT_FINDINGS, logs_refused

# The sections of a command's help, in the order of work.
_SECTION_NAMES = ("Input", "Steps and phases", "Changes", "Thresholds", "Output", "Running")
INPUT, STEPS, CHANGES, JUDGING, OUTPUT, RUNNING = _SECTION_NAMES
# Of the parameters of commands that are dataclasses of options; and of options that do not stand
# with the others there.
_SECTIONS = {"reading": STEPS, "changes": CHANGES, "rule": JUDGING, "running": RUNNING}
_ELSEWHERE = dict.fromkeys(
    ("rank_map", "ranks", "label", "run_id", "nccl_log", "topology", "no_logs"), INPUT
)
_ELSEWHERE |= {
    "findings": OUTPUT,
    "top": OUTPUT,
    "verbose": OUTPUT,
    "nsys": RUNNING,
    "timeout": RUNNING,
}
_LONGEST_NAME = 100  # of a run
_LEAST_ADDRESS_SPACE = (
    512 << 20
)  # below, native code may abort where it should say that no memory is left
SCHEDULER = "NSYSPIPE_SCHEDULER"  # a variable that stands for --scheduler; no file of settings does
EXIT_CODES = (
    "Exit codes: 0 success, 2 unusable input or option, 130 interrupted, 1 a bug in nsyspipe."
)
Command = TypeVar("Command", bound="Callable[..., None]")


def check_address_space() -> None:
    """Refuse a limit of memory below which libraries end the process before anything can be said."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE:
        problem = (
            f"allows {limit >> 20} MB, but nsyspipe needs at least {_LEAST_ADDRESS_SPACE >> 20} MB"
        )
        raise InputError(
            "the memory limit (ulimit -v)",
            problem,
            fix=f"ulimit -v {_LEAST_ADDRESS_SPACE >> 10}, or more",
        )


class Sectioned(TyperCommand):
    """A command whose help has its options in sections."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - of Typer or Click
        """Return what stands behind the command's name."""
        arguments = (param for param in self.params if param.param_type_name == "argument")
        return [
            *(
                f"{argument.metavar}" if argument.required else f"[{argument.metavar}]"
                for argument in arguments
            ),
            "[OPTIONS]",
        ]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - of Typer or Click
        """Refuse an option that takes one value and is given two."""
        _, _, given = self.make_parser(ctx).parse_args(args=[*args])
        taking_one: list[Any] = [
            one for one in given if not (one.multiple or getattr(one, "is_flag", True))
        ]
        for one in taking_one:
            if taking_one.count(one) > 1:
                raise OptionError(
                    max(one.opts, key=len),
                    "takes one value, but got several",
                    fix="pass the option once",
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - of Typer or Click
        """Refuse to work in a directory that was removed: no path can be told from there."""
        try:
            os.getcwd()  # noqa: PTH109 - Path.cwd would do the same
        except OSError as error:
            problem = f"does not exist, or cannot be read ({error.strerror})"
            raise InputError(
                "the working directory", problem, fix="cd to an existing directory"
            ) from error
        check_address_space()
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - of Typer or Click
        """Write arguments, then the options by section."""
        sections: dict[str, list[Any]] = {name: [] for name in ("Arguments", *_SECTION_NAMES)}
        parameters: list[Any] = self.get_params(ctx)
        for parameter in parameters:
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((parameter.metavar, parameter.help))
            elif record := parameter.get_help_record(ctx):
                sections[getattr(parameter, "rich_help_panel", None) or RUNNING].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def option(
    text: str,
    metavar: str | None = None,
    short: str | None = None,
    *,
    default: object = None,
    least: int | None = None,
    is_hidden: bool = False,
) -> Any:  # noqa: ANN401 - a field
    """Declare a field of a dataclass as an option with the same name: its help, and what stands for its value.

    A hidden option is accepted, but the help does not show it.
    """
    declared = {"help": text, "metavar": metavar, "hidden": is_hidden}
    return field(default=default, metadata={"option": (short, declared, least)})


def flag(text: str, short: str | None = None) -> Any:  # noqa: ANN401 - a field
    """Declare a field as an option without a value."""
    return option(text, short=short, default=False)


def _number(
    kind: type[int | float], least: int | None, option: str, metavar: str
) -> Callable[[object], float]:
    """Return what reads the number that an option has, or says in an `OptionError` which it takes."""

    def number(text: object) -> float:
        with contextlib.suppress(ValueError):
            value = kind(str(text))
            if least is None or value >= least:
                return value
        what = (
            "is not "
            f"{'an integer' if kind is int else 'a number'}{'' if least is None else f' of at least {least}'}"
        )
        has_unit = re.fullmatch(r"[\d.]+ ?[A-Za-z/]+", str(text)) is not None
        raise OptionError(
            f"{option} {text}",
            what,
            fix=f"{option} {metavar}{', without a unit' if has_unit else ''}",
        )

    return number


def with_options(command: Command) -> Command:
    """Let Typer see a parameter for each `option` of the dataclasses that a command takes."""
    signature = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: one.annotation for name, one in signature.items() if is_dataclass(one.annotation)
    }
    members = {
        name: [one for one in fields(group) if "option" in one.metadata]
        for name, group in groups.items()
    }
    annotated: Any = Annotated  # of types that are known at run time
    parameters = []
    for name, plain in signature.items():
        kinds = get_type_hints(groups[name]) if name in groups else {}
        for one in members.get(name, ()):
            (short, declared, least), long = (
                one.metadata["option"],
                f"--{one.name.replace('_', '-')}",
            )
            declared = declared | {
                "rich_help_panel": _ELSEWHERE.get(one.name, _SECTIONS.get(name, OUTPUT))
            }
            for kind in {int, float}.intersection(get_args(kinds[one.name]) or [kinds[one.name]]):
                declared["parser"] = _number(kind, least, long, declared["metavar"])
            shown = annotated[
                kinds[one.name], typer.Option(*filter(None, (long, short)), **declared)
            ]
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(
                inspect.Parameter(one.name, keyword, default=one.default, annotation=shown)
            )
        if name not in groups:
            parameters.append(plain.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def called(**values: Any) -> None:  # noqa: ANN401 - of any type
        for name, group in groups.items():
            values[name] = group(**{one.name: values.pop(one.name) for one in members[name]})
        command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called  # type: ignore[return-value]


def _phase(name: str) -> Any:  # noqa: ANN401 - a field
    return option(f"NVTX ranges of the {name} phase. [default: {PHASE_PATTERNS[name]}]", "REGEX")


@dataclass(frozen=True)
class ReadingOptions:
    """How reports are read, by the names that `nsyspipe.load` has for them."""

    step: str | None = option(
        "NVTX ranges that mark the steps. 'repetition' uses a periodic launch pattern. 'none' "
        "treats the capture as a "
        "whole. [default: ranges that contain most launches, otherwise repetition]",
        "REGEX|repetition|none",
    )
    steps: int | None = option(
        "Approximate number of captured steps, to find them by a periodic launch pattern.",
        "N",
        least=1,
    )
    backward: str | None = _phase("backward")
    forward: str | None = _phase("forward")
    optimizer: str | None = _phase("optimizer")
    data: str | None = _phase("data")
    comm_kernel: str | None = option("Communication kernels in addition to NCCL kernels.", "REGEX")
    skip_first: str = option(
        "Complete warm-up steps to skip. 'auto' skips the first, if another step remains.",
        "N|auto",
        default=AUTO,
    )
    rank_map: str | None = option(
        "Rank of each report. For several reports: node1_[0-7].sqlite=8-15.",
        'FILE|"a.sqlite=0,..."',
    )
    ranks: str | None = option(
        "Read only the reports of these ranks. The other ranks count as missing.", "0-7,63"
    )
    no_logs: bool = flag("Ignore NCCL logs and topology files in the directory of the reports.")

    def chosen(self, *more: str) -> dict[str, Any]:
        """Return those of every command by name, and further ones that this one has."""
        names = [one.name for one in fields(ReadingOptions) if one.name != "no_logs"]
        return {name: getattr(self, name) for name in (*names, *more)} | {"logs": not self.no_logs}

    def check_logs(self) -> None:
        """Refuse logs and topologies that are given where none is to be used."""
        given = (
            f"--{name.replace('_', '-')}"
            for name in ("nccl_log", "topology")
            if getattr(self, name, None)
        )
        if self.no_logs and (first := next(given, None)):
            raise logs_refused(first)

    def refuse_given(self, why: str, fix: str) -> None:
        """Refuse those that are given where nothing is read."""
        given = [
            one.name
            for one in fields(self)
            if (getattr(self, one.name) or one.default) != one.default
        ]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise OptionError(
                names,
                f"changes how reports are read, but {why}",
                fix=f"leave out this option, or {fix}",
            )


@dataclass(frozen=True)
class OneRunOptions(ReadingOptions):
    """How the reports of one run are read."""

    label: str | None = None
    run_id: str | None = None
    nccl_log: list[str] | None = option(
        (
            "NCCL log of the run (NCCL_DEBUG=INFO), which shows the interconnect. Repeat the "
            "option, or use a glob."
        ),
        "FILE",
    )
    topology: str | None = option(
        "Output of nvidia-smi topo -m, which shows whether NVLink or PCIe connects the GPUs.",
        "FILE",
    )


def check_name(option: str, name: str | None, fix: str) -> None:
    """Refuse a label or an identifier of a run that is empty, too long, or has what cannot be printed."""
    if name is not None and not (name.isprintable() and 0 < len(name) <= _LONGEST_NAME):
        problem = f"is empty, longer than {_LONGEST_NAME} characters, or not printable"
        raise OptionError(f"{option}{name[:_LONGEST_NAME]!r}", problem, fix=fix)


@dataclass(frozen=True)
class NamedRunOptions(OneRunOptions):
    """How the reports of a run are read that is named, and how much of it is shown."""

    label: str | None = option("Label of the run. [default: from the file names]", "TEXT")
    run_id: str | None = option("ID of the run. [default: from the capture]", "TEXT")
    findings: str = option(
        "How many recommendations to print. 'all' adds the phases and the details of each finding.",
        "N|all",
        default=str(DEFAULT_FINDINGS),
    )
    verbose: bool = flag(
        "Print everything: all metrics, ranks, findings, checks, warnings and notes.", "-v"
    )
    top: int | None = option(
        "Print the N most expensive kernels, collectives and communicators, also in Markdown.",
        "N",
        least=1,
    )

    def __post_init__(self) -> None:
        check_name("--label ", self.label, "--label NAME")
        check_name("--run-id ", self.run_id, "--run-id NAME")


@dataclass(frozen=True)
class ExaminingOptions(NamedRunOptions):
    """How reports are read whose contents are examined. Options about the answers of an analysis have no effect."""

    findings: str = option(
        "Has no effect here.", "N|all", default=str(DEFAULT_FINDINGS), is_hidden=True
    )
    top: int | None = option("Has no effect here.", "N", least=1, is_hidden=True)
    verbose: bool = flag("Print all report names, run names and columns.", "-v")


@dataclass(frozen=True)
class SeveralRunsOptions(ReadingOptions):
    """How the reports of several runs are read."""

    nccl_log: list[str] | None = option(
        (
            "NCCL log (NCCL_DEBUG=INFO) of all runs, or of the run with that label. Repeat the "
            "option, or use a glob."
        ),
        "[LABEL=]FILE",
    )
    topology: list[str] | None = option(
        "Output of nvidia-smi topo -m, of all runs or of the run with that label.", "[LABEL=]FILE"
    )


@dataclass(frozen=True)
class QuietOptions:
    """What is said meanwhile; a command has those that are declared as options."""

    jobs: int | None = None
    quiet: bool = flag("Print no summary and no progress, only errors and requested outputs.", "-q")
    no_progress: bool = flag("Print no progress bar.")

    @property
    def is_shown(self) -> bool:
        """Whether progress is shown."""
        return not (self.quiet or self.no_progress)


@dataclass(frozen=True)
class RunningOptions(QuietOptions):
    """By how many processes, or whose, and what is said meanwhile."""

    jobs: int | None = option(
        "Number of processes. [default: chosen by cores, memory and report sizes]",
        "N",
        "-j",
        least=1,
    )
    scheduler: str | None = option(
        "Run on a Dask cluster: the address of its scheduler, or its scheduler file. The "
        "workers must see the same files. "
        "[default: $NSYSPIPE_SCHEDULER, unless you pass -j]",
        "ADDRESS|FILE",
    )

    @property
    def cluster(self) -> str | None:
        """The scheduler whose workers do the work; None: it is done here."""
        if self.scheduler is not None and self.jobs is not None:
            problem = "counts processes of this machine, but a cluster has its own processes"
            raise OptionError(
                f"-j {self.jobs} with --scheduler", problem, fix="leave out one of them"
            )
        if self.scheduler is not None and not self.scheduler.strip():
            problem = "is empty (perhaps a variable that is not set)"
            raise OptionError(
                f"--scheduler {self.scheduler!r}",
                problem,
                fix="--scheduler ADDRESS, or leave out --scheduler",
            )
        return self.scheduler or (os.environ.get(SCHEDULER) if self.jobs is None else None) or None

    def executor(self, paths: Sequence[Path]) -> AbstractContextManager[Executor]:
        """Return what runs the work on some reports; its processes end with the context."""
        from nsyspipe.run.workers import executor_for

        return executor_for(paths, self.jobs, scheduler=self.cluster)
