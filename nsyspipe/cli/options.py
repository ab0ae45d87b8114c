"""The options that several commands share: how reports are read, and what is printed."""

import contextlib
import functools
import inspect
import os
import re
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from nsyspipe.errors import InputError, OptionError
from nsyspipe.model.names import PHASE_PATTERNS
from nsyspipe.model.options import AUTO, DEFAULT_FINDINGS, logs_refused
from nsyspipe.model.user_paths import ReportFile

# The sections of a command's help, in the order of work.
_SECTION_NAMES = ("Input", "Steps and phases", "Changes", "Thresholds", "Output", "Running")
INPUT, STEPS, CHANGES, JUDGING, OUTPUT, RUNNING = _SECTION_NAMES
# The section of the options of a parameter, by its name.
_SECTION_OF_PARAMETER = {
    "reading": STEPS,
    "changes": CHANGES,
    "rule": JUDGING,
    "running": RUNNING,
}
# The section of options that do not stand with the others of their parameter.
_SECTION_OF_OPTION = {
    "rank_map": INPUT,
    "ranks": INPUT,
    "label": INPUT,
    "run_id": INPUT,
    "nccl_log": INPUT,
    "topology": INPUT,
    "no_logs": INPUT,
    "no_lines": OUTPUT,
    "findings": OUTPUT,
    "top": OUTPUT,
    "verbose": OUTPUT,
    "nsys": RUNNING,
    "timeout": RUNNING,
}
# The options about the work of a step, by the names that `nsyspipe.load` has for them.
WORK_OPTIONS = ("tokens_per_step", "samples_per_step", "flops_per_step", "peak")
_TOKENS = (
    "Number of tokens that the whole job trains on in one step (all ranks and micro-batches "
    "together). It adds tokens/s."
)
_SAMPLES = (
    "Number of samples that the whole job trains on in one step (all ranks and micro-batches "
    "together). It adds samples/s."
)
_FLOPS = (
    "Number of floating-point operations that one rank (not the whole job) does in one step, for "
    "example 9.483e12. It adds TFLOP/s and MFU."
)
_PEAK = (
    "Datatype of most matrix multiplications. MFU is a share of the peak rate of the GPU for this "
    "datatype, without sparsity. By default, nsyspipe takes the datatype from the names of the "
    "kernels."
)
_NO_EFFECT = "Has no effect here."
_FROM_SIDECAR = "[default: from NAME.capture.json, which the launchers of nsyspipe write]"
_DATATYPES = "fp32|tf32|bf16|fp16|fp8"
_OF_WHICH_RUNS = (
    "The value holds for all runs, or for the run with that label. Repeat the option for other "
    "labels."
)
# Letters of the label or the ID of a run.
MAX_LETTERS_OF_NAME = 100
# In the units of ulimit.
_BYTES_PER_KB = 1024
_BYTES_PER_MB = 1024 * 1024
# With less, native code may abort where it should say that no memory is left.
MIN_ADDRESS_SPACE_BYTES = 512 * _BYTES_PER_MB
# An environment variable in place of --scheduler, which no file of settings has.
SCHEDULER = "NSYSPIPE_SCHEDULER"
EXIT_CODES = (
    "Exit codes: 0 success, 2 unusable input or option, 130 interrupted, 1 a bug in nsyspipe."
)
Command = TypeVar("Command", bound="Callable[..., None]")


class _Declaration(NamedTuple):
    """What a field of a dataclass says of its option."""

    # The option with one letter.
    short: str | None
    # Arguments of `typer.Option`.
    settings: dict[str, Any]
    # The lowest number that the option takes.
    least: int | None


def check_address_space() -> None:
    """Raise an InputError if the memory limit is too low to work in.

    Otherwise libraries would end the process before it can print an error.
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_limited = limit_bytes != resource.RLIM_INFINITY
    if is_limited and limit_bytes < MIN_ADDRESS_SPACE_BYTES:
        needed_mb = MIN_ADDRESS_SPACE_BYTES // _BYTES_PER_MB
        limit_mb = limit_bytes // _BYTES_PER_MB
        problem = f"allows {limit_mb} MB, but nsyspipe needs at least {needed_mb} MB"
        needed_kb = MIN_ADDRESS_SPACE_BYTES // _BYTES_PER_KB
        fix = f"ulimit -v {needed_kb}, or more"
        raise InputError("the memory limit (ulimit -v)", problem, fix=fix)


class Sectioned(TyperCommand):
    """A command whose help has its options in sections."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - of Typer
        """Return what follows the name of the command."""
        pieces = []
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                metavar = f"{parameter.metavar}"
                pieces.append(metavar if parameter.required else f"[{metavar}]")
        return [*pieces, "[OPTIONS]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - of Typer
        """Parse the arguments. Raise an OptionError if an option for one value has several."""
        parameters: list[Any]
        parser = self.make_parser(ctx)
        # The parameter of each argument, in their order, so that one may be there several times.
        _, _, parameters = parser.parse_args(args=[*args])
        one_value_parameters = [each for each in parameters if _takes_one_value(each)]
        for parameter in one_value_parameters:
            if one_value_parameters.count(parameter) > 1:
                name = max(parameter.opts, key=len)  # the long one of --jobs and -j
                problem = "takes one value, but got several"
                raise OptionError(name, problem, fix="pass the option once")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - of Typer or Click
        """Run the command. Raise an InputError if the working directory or memory is not usable.

        In a directory that was removed, no path can be resolved.
        """
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
        names = ("Arguments", *_SECTION_NAMES)
        sections: dict[str, list[Any]] = {name: [] for name in names}
        parameters: list[Any] = self.get_params(ctx)
        for parameter in parameters:
            # A record is what stands in the left and in the right column.
            if parameter.param_type_name == "argument":
                record = (parameter.metavar, parameter.help)
                sections["Arguments"].append(record)
                continue
            record = parameter.get_help_record(ctx)
            is_hidden = record is None
            if not is_hidden:
                # Typer's own options, such as --help, have no section.
                section = getattr(parameter, "rich_help_panel", None) or RUNNING
                sections[section].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def _takes_one_value(parameter: Any) -> bool:  # noqa: ANN401 - of Typer or Click
    """Tell whether a parameter is an option with exactly one value."""
    # Arguments are not flags, but have no `is_flag`. They are left out here too.
    is_flag = getattr(parameter, "is_flag", True)
    return not (is_flag or parameter.multiple)


def option(
    text: str,
    metavar: str | None = None,
    short: str | None = None,
    *,
    default: object = None,
    least: int | None = None,
    is_hidden: bool = False,
) -> Any:  # noqa: ANN401 - a field
    """Declare a field of a dataclass as an option with the same name.

    `text` is its help, and `metavar` stands for its value there. A hidden option is accepted, but
    the help does not show it.
    """
    settings = {"help": text, "metavar": metavar, "hidden": is_hidden}
    declaration = _Declaration(short, settings, least)
    return field(default=default, metadata={"option": declaration})


def flag(text: str, short: str | None = None) -> Any:  # noqa: ANN401 - a field
    """Declare a field as an option without a value."""
    return option(text, short=short, default=False)


def _number(
    kind: type[int | float], least: int | None, option: str, metavar: str
) -> Callable[[object], float]:
    """Return a function that converts the value of an option to a number.

    The function raises an OptionError if the value is no number of the kind, or below `least`.
    """
    noun = "an integer" if kind is int else "a number"
    bound = "" if least is None else f" of at least {least}"

    def number(text: object) -> float:
        # Both a text that is no number, and a number that is too low, go on to the error.
        with contextlib.suppress(ValueError):
            value = kind(str(text))
            if least is None or value >= least:
                return value
        number_with_unit = re.fullmatch(r"[\d.]+ ?[A-Za-z/]+", str(text))
        hint = ", without a unit" if number_with_unit else ""
        fix = f"{option} {metavar}{hint}"
        problem = f"is not {noun}{bound}"
        raise OptionError(f"{option} {text}", problem, fix=fix)

    return number


def with_options(command: Command) -> Command:
    """Return a function for Typer that has a parameter for each option of a command.

    Some parameters of the command are dataclasses, whose fields are options. In the signature of
    the result, the options stand in place of such a parameter. When the result is called, it makes
    the dataclasses from the values of their options, and calls the command with them.
    """
    signature = inspect.signature(command, eval_str=True).parameters
    annotations = {name: parameter.annotation for name, parameter in signature.items()}
    # By the name of the parameter of the command.
    dataclass_of: dict[str, Any] = {
        name: annotation for name, annotation in annotations.items() if is_dataclass(annotation)
    }
    options_of = {name: declared_options(dataclass_of[name]) for name in dataclass_of}
    parameters = []
    for name, parameter in signature.items():
        if name in dataclass_of:
            section = _SECTION_OF_PARAMETER.get(name, OUTPUT)
            types = get_type_hints(dataclass_of[name])
            parameters += [
                _parameter(declared, types[declared.name], section) for declared in options_of[name]
            ]
        else:
            keyword_only = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters.append(keyword_only)

    @functools.wraps(command)
    def command_of_options(**values: Any) -> None:  # noqa: ANN401 - of any type
        for name, options in options_of.items():
            option_values = {}
            for declared in options:
                option_values[declared.name] = values.pop(declared.name)
            values[name] = dataclass_of[name](**option_values)
        command(**values)

    # Typer reads the parameters from these two.
    command_of_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command_of_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return command_of_options  # type: ignore[return-value]


def declared_options(group: Any) -> list[Field[Any]]:  # noqa: ANN401 - a dataclass
    """Return the fields of a dataclass that are options."""
    return [declared for declared in fields(group) if "option" in declared.metadata]


# A kind is any type.
def _parameter(declared: Field[Any], kind: Any, section: str) -> inspect.Parameter:  # noqa: ANN401
    """Return the parameter that Typer reads for an option with values of a type.

    The help has the option in `section`, unless `_SECTION_OF_OPTION` says otherwise.
    """
    declaration: _Declaration = declared.metadata["option"]
    long_name = f"--{declared.name.replace('_', '-')}"
    settings = dict(declaration.settings)
    settings["rich_help_panel"] = _SECTION_OF_OPTION.get(declared.name, section)
    # The members of a union with None, or the type itself.
    kinds = get_args(kind) or [kind]
    for number_kind in (int, float):
        if number_kind in kinds:
            metavar = settings["metavar"]
            settings["parser"] = _number(number_kind, declaration.least, long_name, metavar)
    names = [long_name]
    if declaration.short is not None:
        names.append(declaration.short)
    # The types are known at run time only.
    annotated: Any = Annotated
    annotation = annotated[kind, typer.Option(*names, **settings)]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        declared.name, keyword_only, default=declared.default, annotation=annotation
    )


def _phase(name: str) -> Any:  # noqa: ANN401 - a field
    pattern = PHASE_PATTERNS[name]
    return option(f"NVTX ranges of the {name} phase. [default: {pattern}]", "REGEX")


@dataclass(frozen=True)
class ReadingOptions:
    """How reports are read, by the names that `nsyspipe.load` has for them."""

    step: str | None = option(
        "NVTX ranges that mark the steps. The word 'repetition' finds steps by a periodic pattern "
        "of kernel launches. The word 'none' treats the capture as a whole. [default: repeated "
        "ranges that contain at least half of the launches, else repetition, else none]",
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
        "Number of complete steps to skip as warm-up. 'auto' skips the first, if another step "
        "remains.",
        "N|auto",
        default=AUTO,
    )
    rank_map: str | None = option(
        "Pairs REPORT=RANK, or a file with such pairs. A pattern takes a range of ranks, in order: "
        "node1_[0-7].sqlite=8-15.",
        'FILE|"a.sqlite=0,..."',
    )
    ranks: str | None = option(
        "Read only the reports of these ranks. The other ranks count as missing.", "0-7,63"
    )
    no_lines: bool = flag("Leave lines of Python out of every output.")
    no_logs: bool = flag("Ignore NCCL logs and topology files in the directory of the reports.")

    def chosen(self, *more: str) -> dict[str, Any]:
        """Return arguments of `nsyspipe.load`: the options of `ReadingOptions`, and `more` ones.

        `more` are names of options that a derived class has.
        """
        names = [declared.name for declared in fields(ReadingOptions)]
        # `load` has the opposite of these: `logs` and `lines`.
        names.remove("no_logs")
        names.remove("no_lines")
        values = {name: getattr(self, name) for name in [*names, *more]}
        return values | {"logs": not self.no_logs, "lines": not self.no_lines}

    def check_logs(self) -> None:
        """Raise an OptionError if --no-logs is combined with an NCCL log or a topology."""
        if not self.no_logs:
            return
        for name in ("nccl_log", "topology"):
            if getattr(self, name, None):
                raise logs_refused(f"--{name.replace('_', '-')}")

    def refuse_given(self, why: str, fix: str) -> None:
        """Raise an OptionError if the user passed options about reports, and no report is read.

        `why` says why no report is read. Options with their default count as not passed.
        """
        passed = []
        for declared in fields(self):
            # An empty list counts as the default None.
            value = getattr(self, declared.name) or declared.default
            if value != declared.default:
                name = declared.name.replace("_", "-")
                passed.append(f"--{name}")
        if passed:
            options = ", ".join(passed)
            problem = f"changes how reports are read, but {why}"
            raise OptionError(options, problem, fix=f"leave out this option, or {fix}")


@dataclass(frozen=True)
class OneRunOptions(ReadingOptions):
    """How the reports of one run are read."""

    label: str | None = None
    run_id: str | None = None
    tokens_per_step: str | None = option(f"{_TOKENS} {_FROM_SIDECAR}", "N")
    samples_per_step: str | None = option(f"{_SAMPLES} {_FROM_SIDECAR}", "N")
    flops_per_step: str | None = option(f"{_FLOPS} {_FROM_SIDECAR}", "N")
    peak: str | None = option(_PEAK, _DATATYPES)
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
    """Raise an OptionError if a label or run ID is empty, too long, or not printable.

    `option` is what stands before the name in the error. None, which is no name, is fine.
    """
    if name is None:
        return
    has_valid_length = 0 < len(name) <= MAX_LETTERS_OF_NAME
    if not has_valid_length or not name.isprintable():
        problem = f"is empty, longer than {MAX_LETTERS_OF_NAME} characters, or not printable"
        start = name[:MAX_LETTERS_OF_NAME]
        raise OptionError(f"{option}{start!r}", problem, fix=fix)


def _without_effect(metavar: str) -> Any:  # noqa: ANN401 - a field
    """Declare a field as an option that is accepted, but has no effect."""
    return option(_NO_EFFECT, metavar, is_hidden=True)


@dataclass(frozen=True)
class RunWithoutWorkOptions(OneRunOptions):
    """How the reports of one run are read, if the work of a step has no effect on the answer."""

    tokens_per_step: str | None = _without_effect("N")
    samples_per_step: str | None = _without_effect("N")
    flops_per_step: str | None = _without_effect("N")
    peak: str | None = _without_effect(_DATATYPES)


@dataclass(frozen=True)
class NamedRunOptions(OneRunOptions):
    """How the reports of a run with a name are read, and how much of the run is shown."""

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
        "Print the N most expensive kernels, collectives and communicators, and the N lines of "
        "Python with most samples in idle time. The Markdown has these tables too.",
        "N",
        least=1,
    )

    def __post_init__(self) -> None:
        check_name("--label ", self.label, "--label NAME")
        check_name("--run-id ", self.run_id, "--run-id NAME")


@dataclass(frozen=True)
class ExaminingOptions(NamedRunOptions):
    """How reports are read that are examined only.

    The options about the answers of an analysis have no effect.
    """

    findings: str = option(_NO_EFFECT, "N|all", default=str(DEFAULT_FINDINGS), is_hidden=True)
    top: int | None = option(_NO_EFFECT, "N", least=1, is_hidden=True)
    tokens_per_step: str | None = _without_effect("N")
    samples_per_step: str | None = _without_effect("N")
    flops_per_step: str | None = _without_effect("N")
    peak: str | None = _without_effect(_DATATYPES)
    verbose: bool = flag("Print all report names, run names and columns.", "-v")


@dataclass(frozen=True)
class SeveralRunsOptions(ReadingOptions):
    """How the reports of several runs are read."""

    tokens_per_step: list[str] | None = option(
        f"{_TOKENS} {_OF_WHICH_RUNS} {_FROM_SIDECAR}", "[LABEL=]N"
    )
    samples_per_step: list[str] | None = option(
        f"{_SAMPLES} {_OF_WHICH_RUNS} {_FROM_SIDECAR}", "[LABEL=]N"
    )
    flops_per_step: list[str] | None = option(
        f"{_FLOPS} {_OF_WHICH_RUNS} {_FROM_SIDECAR}", "[LABEL=]N"
    )
    peak: list[str] | None = option(f"{_PEAK} {_OF_WHICH_RUNS}", f"[LABEL=]{_DATATYPES}")
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
    """What is printed meanwhile. A command has the options that are declared as such."""

    jobs: int | None = None
    quiet: bool = flag("Print no summary and no progress, only errors and requested outputs.", "-q")
    no_progress: bool = flag("Print no progress bar.")

    @property
    def is_shown(self) -> bool:
        """Whether progress is shown."""
        return not (self.quiet or self.no_progress)


@dataclass(frozen=True)
class RunningOptions(QuietOptions):
    """Which processes do the work, and what is printed meanwhile."""

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
        """The Dask scheduler whose workers do the work; None if this machine does it.

        Without --scheduler and -j, the environment may name one. Contradicting options are an
        OptionError.
        """
        if self.scheduler is not None and self.jobs is not None:
            problem = "counts processes of this machine, but a cluster has its own processes"
            options = f"-j {self.jobs} with --scheduler"
            raise OptionError(options, problem, fix="leave out one of them")
        if self.scheduler is not None and not self.scheduler.strip():
            problem = "is empty (perhaps a variable that is not set)"
            fix = "--scheduler ADDRESS, or leave out --scheduler"
            raise OptionError(f"--scheduler {self.scheduler!r}", problem, fix=fix)
        if self.scheduler is None and self.jobs is None:
            return os.environ.get(SCHEDULER) or None
        return self.scheduler

    def executor(self, reports: Sequence[ReportFile]) -> AbstractContextManager[Executor]:
        """Return a context with the executor that reads some reports.

        The processes of the executor end with the context.
        """
        from nsyspipe.run.workers import executor_for

        return executor_for(reports, self.jobs, scheduler=self.cluster)
