"""The program: its commands, and what becomes of an error."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from nsyspipe.cli.analyze import analyze
from nsyspipe.cli.annotate import annotate
from nsyspipe.cli.comparison import compare, diff
from nsyspipe.cli.copies import convert, redact
from nsyspipe.cli.dashboard import dashboard
from nsyspipe.cli.doctor import doctor
from nsyspipe.cli.explain import explain
from nsyspipe.cli.mcp import mcp
from nsyspipe.cli.options import EXIT_CODES, Sectioned
from nsyspipe.cli.outputs import lenient_encoding, print_error
from nsyspipe.cli.schema import schema
from nsyspipe.cli.skill import skill
from nsyspipe.cli.whatif import whatif
from nsyspipe.errors import NsyspipeError, OptionError, OutputError, nearest_name, shortage
from nsyspipe.run.workers import without_other_frames
from nsyspipe.version import __version__

_PROGRAM = "nsyspipe"
# Exit codes: 128 and the number of SIGPIPE, and of SIGINT.
_BROKEN_PIPE = 141
_INTERRUPTED = 130
# With this code Typer exits if the reader of the output has left.
_TYPER_BROKEN_PIPE = 1
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_VERSION = "Print the version."

app = typer.Typer(
    # tracebacks are for our own bugs; with locals they could print what a report holds
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of work.
_COMMANDS: dict[Callable[..., None], str] = {
    doctor: "Check what this machine or some reports can answer.",
    convert: "Export .nsys-rep reports to SQLite, several at once.",
    analyze: "Show where the time of each step goes, and what to change first.",
    diff: "Compare two runs: did a change help, or is it noise? Has a CI gate.",
    compare: "Compare several runs: which run is fastest?",
    whatif: "Predict the step time after a change of the communication.",
    dashboard: "Write a dashboard of all saved runs.",
    annotate: "Copy reports, and add ranges with what was found, for Nsight Systems.",
    redact: "Copy reports without host names, user names and paths.",
    schema: "Explain every table and column.",
    explain: "Explain a finding, a note, a metric or a term.",
    mcp: "Serve analyze, diff, whatif and query to agents (MCP).",
    skill: "Print or install a skill for coding agents.",
}
# What some commands end with besides the exit codes of all.
_MORE_EXIT_CODES: dict[Callable[..., None], str] = {
    diff: " 3 the gate failed, 4 the gate is undecided.",
    whatif: " 4 no change has an estimate.",
}
for command, in_a_line in _COMMANDS.items():
    exit_codes = EXIT_CODES + _MORE_EXIT_CODES.get(command, "")
    app.command(cls=Sectioned, short_help=in_a_line, epilog=exit_codes)(command)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"nsyspipe {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help=_VERSION)
    ] = False,
) -> None:
    """Find out why a multi-GPU PyTorch training run is slow, and what to change first.

    \b
    Examples:
      nsyspipe doctor reports/                    check what the reports contain
      nsyspipe analyze ddp-8gpu_*.sqlite          where the time goes
      nsyspipe analyze reports/ --html run.html   the same as an HTML report
      nsyspipe diff before/ after/                did a change help?
      nsyspipe compare ddp/ bucket25/ fsdp/       which run is fastest?
      nsyspipe whatif reports/                    predict changes
      nsyspipe dashboard runs/ -o runs.html       all saved runs over time
      nsyspipe redact reports/ redacted/          copies that you can share
      nsyspipe schema steps                       what every column means
      nsyspipe explain single-bucket              what a finding means, and its fix
      nsyspipe mcp --root reports/                the same answers for agents
      nsyspipe skill                              what a coding agent needs to know
      nsyspipe --install-completion               complete commands with Tab

    Name a run by its reports, a directory or a quoted glob. Name a saved run (analyze --out STORE)
    as STORE, STORE:ID or STORE:LABEL. convert and redact accept only reports. doctor accepts
    reports or a STORE. dashboard needs a STORE.
    """


def run() -> None:
    """Run the command of `sys.argv` and exit with its code: 0 answered, 2 unusable input or option.

    After Ctrl-C, raise a KeyboardInterrupt, which the caller handles.
    """
    without_other_frames()
    lenient_encoding()
    try:
        code = _run_command()
    except BrokenPipeError:
        _exit(_BROKEN_PIPE)
    except Exception as error:
        user_error = _user_error(error)
        if user_error is None:
            raise
        print_error(user_error)
        _exit(user_error.exit_code)
    if code == _INTERRUPTED:  # Typer caught Ctrl-C and returned this code instead.
        raise KeyboardInterrupt
    sys.exit(code)


def _run_command() -> int | None:
    """Run the command of `sys.argv` and return its exit code; None means 0.

    Raise a BrokenPipeError if the reader of the output (head, less) has left.
    """
    arguments = sys.argv[1:]
    if not arguments:
        arguments = ["--help"]
    exit_code: int | None
    try:
        exit_code = app(arguments, prog_name=_PROGRAM, standalone_mode=False)
    except SystemExit as end:
        # A command never gets here with code 1: it ends with `typer.Exit`, whose code Typer
        # returns. A signal gets here with 128 or more.
        if end.code == _TYPER_BROKEN_PIPE:
            raise BrokenPipeError from end
        raise
    return exit_code


def _user_error(error: Exception) -> NsyspipeError | None:
    """Return the error to print for an exception; None if the exception is a bug of nsyspipe."""
    usage_error: Any = typer.BadParameter.__base__  # Click's, or Typer's copy of it
    if isinstance(error, usage_error):
        has_option = bool(getattr(error, "option_name", None))
        return _option_error(error) if has_option else _usage_error(error)
    if isinstance(error, NsyspipeError):
        return error
    return shortage(error) or _unwritten(error)


def _option_error(error: Any) -> OptionError:  # noqa: ANN401 - of Typer or Click
    """Return the error for an option that its command does not have, or that lacks a value."""
    name = error.option_name
    # One for each command that has the option, by the name of the command.
    parameters = _parameters_named(name)
    # Typer's error for an unknown option has suggestions, and the one for a missing value has none.
    is_value_missing = not hasattr(error, "possibilities")
    if is_value_missing:
        # The word that stands for the value in the help, such as FILE.
        metavars = [parameter.metavar for parameter in parameters.values()]
        metavar = next(filter(None, metavars), "")
        message = error.format_message().rstrip(".?")
        problem, *_ = message.split(" Did you mean ")
        problem = problem.removeprefix(f"Option {name!r} ")
        fix = f"{name} {metavar}".rstrip()
        return OptionError(name, problem, fix=fix)
    program = error.ctx.command_path
    if parameters:
        fix = f"it is an option of {' and '.join(parameters)}"
    else:
        known_parameters = error.ctx.command.params
        known = [option for parameter in known_parameters for option in parameter.opts]
        fix = nearest_name(name, known, cutoff=0.75) or f"{program} --help"
    return OptionError(name, f"{program} has no such option", fix=fix)


def _parameters_named(option_name: str) -> dict[str, Any]:
    """Return the parameter of each command that has an option, by the name of the command."""
    group = typer.main.get_command(app)
    commands: dict[str, Any] = vars(group)["commands"]
    parameters = {}
    for command_name, command in commands.items():
        for parameter in command.params:
            if option_name in parameter.opts:
                parameters[command_name] = parameter
    return parameters


def _usage_error(error: Any) -> OptionError:  # noqa: ANN401 - of Typer or Click
    """Return the error for a misspelt command, or for too many or missing arguments of a command.

    The fix is the command that was probably meant, or else how the command is used.
    """
    message = error.format_message().rstrip(".?")
    # The message may end in these words and a suggested command in quotes.
    problem, *suggestions = message.split(" Did you mean ")
    if suggestions:
        command_name = suggestions[-1].replace("'", "")
        fix = f"nsyspipe {command_name}"
    elif isinstance(error.ctx.command, Sectioned):
        _, _, usage = error.ctx.get_usage().partition(" ")  # without the word "Usage:"
        fix = usage
    else:
        fix = "nsyspipe analyze REPORTS, or see nsyspipe --help"
    first_letter = problem[:1].lower()
    rest = problem[1:].rstrip(".?")
    return OptionError(error.ctx.command_path, f"{first_letter}{rest}", fix=fix)


def _unwritten(error: Exception) -> OutputError | None:
    """Return the error for a full device to which Typer printed; None for any other error."""
    # An error with a file name comes from an output file, not from stdout.
    if not isinstance(error, OSError) or error.filename is not None:
        return None
    if error.errno not in _NO_ROOM:
        return None
    return OutputError.not_writable("output", error, fix="free some space, or print elsewhere")


def _exit(code: int) -> NoReturn:
    """Exit, and drop what stdout still buffers: Python would print it now, and might fail."""
    if sys.stdout is not None:
        no_file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(no_file, sys.stdout.fileno())

    sys.exit(code)
