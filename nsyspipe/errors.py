"""Every error a user can cause: exit code 2 without a traceback. Anything else that escapes is a bug and ends with 1."""

import builtins
import errno
import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

# Options that the Python API has as parameters: with a value, where a text may have it after the
# option, and alone.
_VALUED = (
    "against",
    "backward",
    "bandwidth",
    "bucket-mb",
    "comm-kernel",
    "confidence",
    "data",
    "fail-on",
    "forward",
    "gradient-bytes",
    "gradient-dtype",
    "label",
    "link",
    "metric",
    "min-effect",
    "nccl-log",
    "optimizer",
    "pages",
    "perfetto-ranks",
    "perfetto-steps",
    "rank-map",
    "ranks",
    "run-id",
    "skip-first",
    "sort",
    "step",
    "steps",
    "top",
    "topology",
)
_FLAGS = (
    "events",
    "force",
    "no-logs",
    "no-grad-copy",
    "no-sync",
    "no-wait",
    "perfect-overlap",
    "prefetch",
)
_FLAG_CALLS = {"no-logs": "logs=False"}  # where the parameter says it the other way round
_RENAMED = {
    "metric": "metrics",
    "min-effect": "min_effect_pct",
    "perfetto-ranks": "ranks",
    "perfetto-steps": "steps",
}
# A command of a shell stays one, to its end. After an option stands what looks like a value, or a
# word of the sentence.
_OPTION = re.compile(
    r"(?P<command>\b(?:nsyspipe|nsys) [a-z].*?(?=; |, or |\)|\n|$))|(?P<store>--out\b(?: "
    r"[A-Z]+| [\w.-]*/\S*)?(?P<events> --events)?)|-j (?P<jobs>\d+)"
    rf"|--(?:(?P<flag>{'|'.join(_FLAGS)})|(?P<name>{'|'.join(sorted(_VALUED, key=len, reverse=True))}))(?![\w-])"
    r"(?: "
    r"(?P<value>'[^']*'|\"[^\"]*\"|[A-Z][A-Z_]*\b|\d[\w.,:%/-]*(?<![.,:-])|[\w/-]*[./=][\w./=,-]*\w|none|repetition|auto|regression|any-change|(?:(?<=metric "
    r")|(?<=sort )|(?<=dtype ))[a-z]\w*(?:,\w+)*|(?:(?<=run-id )|(?<=skip-first )|(?<=against "
    r")|(?<=label ))(?!(?:with|out)\b)[\w.+-]+))?"
)


# Commands that texts name: most are calls in Python too, the others are typed in a shell.
_WORD = r"(?:'[^']*'|[^\s'-]\S*?)"
_COMMAND = re.compile(
    rf"\bnsyspipe (?:doctor (?P<listed>\S+)(?=, which lists)"
    rf"|(?:analyze (?P<reports>{_WORD}) --out (?P<out>{_WORD})(?: --label "
    rf"(?P<label>{_WORD}))?|analyze (?P<one>{_WORD})"
    rf"|diff (?:--against (?P<against>{_WORD}) )?(?P<baseline>{_WORD}) "
    rf"(?P<candidate>{_WORD}))(?=,? (?:for|or)\b|\n|$)"
    r"|whatif(?P<changes>(?: --[a-z-]+(?: [A-Z\d]\w*)?)*)(?! "
    r"[A-Z])|(?P<bare>diff|compare)(?=[,.;:)]|$)|(?P<costs>analyze --top "
    r"\d+)|(?P<verdict>analyze(?= says what))"
    r"|(?P<shell>(?:convert|doctor|redact|schema)\b))"
)
_GIVEN = re.compile(r"--[a-z-]+ ((?!and --).+)", re.DOTALL)  # an option with its value
_LITERAL = re.compile(
    r"None|nan|-?inf|True|False|-?\d+(\.\d+)?|[\[({<].*|.*\.\.\.", re.DOTALL
)  # as Python writes it
_LONGEST_VALUE = 60
_LONGEST_SUBJECT = 500
# As the system, its loader, SQLite and (last, of a module) Python say it; not every library has an
# error for it.
_NO_MEMORY = (
    "Cannot allocate memory",
    "failed to map segment",
    "out of memory",
    "error return without exception set",
    "Failed to launch worker thread",
)
_GIVEN_AS: dict[str, str] = {}  # whole paths -> as they were given


def whole_path(given: str | os.PathLike[str]) -> Path:
    """Return a path that names its file wherever this process goes; errors go on naming it as it was given."""
    whole = os.path.abspath(given)  # noqa: PTH100 - by the links that were given
    _GIVEN_AS[whole] = os.fspath(given)
    return Path(whole)


def as_given(text: str) -> str:
    """Return a text in which paths of `whole_path` stand as they were given."""
    for whole in [whole for whole, given in _GIVEN_AS.items() if whole != given and whole in text]:
        text = re.sub(
            rf"(?<![\w./-]){re.escape(whole)}(?![\w.-])", lambda found: _GIVEN_AS[found[0]], text
        )
    return text


def _as_call(command: re.Match[str]) -> str:
    def value(name: str, before: str = "") -> str:
        given = command[name]
        is_placeholder = given is not None and given.isupper() and given.isalpha()
        return (
            "" if given is None else before + (given if is_placeholder else repr(given.strip("'")))
        )

    if command["shell"]:
        return f"(in a shell) {command[0]}"
    if command["bare"] or command["costs"] or command["verdict"]:
        of_run = "run.costs()" if command["costs"] else "run.verdict"
        return f"nsyspipe.{command['bare']}" if command["bare"] else of_run
    if command["changes"] is not None:
        changes = ", ".join(
            in_python(f"--{change}") for change in command["changes"].split(" --")[1:]
        )
        return f"nsyspipe.whatif(run, {changes})" if changes else "nsyspipe.whatif"
    if command["listed"] or command["one"]:
        listed = command["listed"] and repr(f"{command['listed'].strip(chr(39))}/runs")
        return f"pandas.read_parquet({listed})" if listed else f"nsyspipe.load({value('one')})"
    if command["out"]:
        loaded = f"nsyspipe.load({value('reports')}{value('label', ', label=')})"
        return f"nsyspipe.export.parquet({loaded}, {value('out')})"
    return (
        f"nsyspipe.diff({value('baseline')}, {value('candidate')}{value('against', ', against=')})"
    )


def in_python(text: str) -> str:
    """Return a text of an error with the options of commands as parameters of the API: ``--rank-map`` is ``rank_map=``."""

    def parameter(option: re.Match[str]) -> str:
        if option["command"]:
            return option["command"]
        if option["store"]:
            return (
                f"nsyspipe.export.parquet(run, STORE{', events=True' if option['events'] else ''})"
            )
        if option["jobs"] or option["flag"]:
            flag = f"{option['flag']}=True".replace("-", "_")
            return (
                f"jobs={option['jobs']}"
                if option["jobs"]
                else _FLAG_CALLS.get(option["flag"], flag)
            )
        name = _RENAMED.get(option["name"], option["name"].replace("-", "_"))
        value = option["value"]
        if value is None:
            return name if text[option.end() :].startswith(":") else f"{name}="
        if name == "steps" and (first_last := re.fullmatch(r"(\d+):(\d+)", value)):
            return f"{name}=({first_last[1]}, {first_last[2]})"
        number = r"\d+" if name == "ranks" else r"\d{1,3}(,\d{3})+|\d*\.?\d+"
        is_plain = value[0] in "'\"" or value.isupper() or re.fullmatch(number, value)
        return f"{name}={value.replace(',', '_') if value[0].isdigit() and is_plain else value if is_plain else repr(value)}"

    text = _COMMAND.sub(_as_call, text)
    return _OPTION.sub(parameter, text)


def _given_in_python(subject: str) -> str:
    told = in_python(f"{subject}:")[:-1]
    given = _GIVEN.fullmatch(subject)
    name, is_told, value = told.partition("= ")
    if given is None or not is_told or value != given[1]:
        return told
    return f"{name}={value if _LITERAL.fullmatch(value) else repr(value)}"


def rows_in_python(rows: Iterable[Mapping[str, Any]], *texts: str) -> list[dict[str, Any]]:
    """Return rows whose texts, of problems messages and fixes, name parameters of the API."""
    names = texts or ("message", "fix")
    return [{**row, **{name: row[name] and in_python(row[name]) for name in names}} for row in rows]


class NsyspipeError(Exception):
    """Base class of all errors that nsyspipe raises on purpose. Its text uses the words of the Python API.

    Parameters
    ----------
    subject
        The input that caused the error: a path, or an option with its value.
    problem
        Description of the error.
    found
        What nsyspipe found instead, for example the existing names that are most similar, in one
        line. None if there is nothing.
    fix
        Command or option that fixes the error. None if there is none.
    """

    exit_code = 2

    def __init__(
        self, subject: str, problem: str, *, found: str | None = None, fix: str | None = None
    ) -> None:
        subject = as_given(subject)
        problem = as_given(problem)
        fix = fix and as_given(fix)
        super().__init__(f"{_given_in_python(subject)}: {in_python(problem)}")
        self.subject = subject
        self.problem = problem
        self.found = found
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders: rebuild them with their facts."""
        return functools.partial(type(self), found=self.found, fix=self.fix), (
            self.subject,
            self.problem,
        )

    def lines(self) -> list[str]:
        """Return the message as the terminal shows it, in the words of the command line, without the word ``error``."""
        extra = [
            f"  {label}: {text}"
            for label, text in (("found", self.found), ("fix", self.fix))
            if text
        ]
        return [f"{shortened(self.subject, _LONGEST_SUBJECT)}: {self.problem}", *extra]

    def __str__(self) -> str:
        given = shortened(_given_in_python(self.subject), _LONGEST_SUBJECT)
        return "\n".join([f"{given}: {in_python(self.problem)}", *map(in_python, self.lines()[1:])])


class InputError(NsyspipeError):
    """A report, or a set of reports, cannot be used."""


class ReportNotFoundError(InputError):
    """A path does not exist, or a glob or directory holds no report."""


class NotAReportError(InputError):
    """A file that is no SQLite database, or one that Nsight Systems did not write."""


class DamagedReportError(InputError):
    """A report that is truncated, corrupt, locked, still being written, or not readable."""


class MissingColumnError(InputError):
    """An export lacks a column without which no answer is possible."""


class RankConflictError(InputError):
    """Two reports that cannot belong to one run, or that claim the same rank."""


class DatasetError(InputError):
    """A saved run is damaged, lacks what is asked for, or comes from a later version."""


class CaptureError(NsyspipeError):
    """Something needs nsys, and nsys cannot do it."""


class NsysNotFoundError(CaptureError):
    """No nsys is on this machine, neither on PATH nor in the usual places."""


class NsysFailedError(CaptureError):
    """Nsys was run and failed, did not end in time, or is older than the report."""


class OptionError(NsyspipeError):
    """The value of an option cannot be used."""

    @classmethod
    def no_such_name(cls, given: str, problem: str, name: str, known: Iterable[str]) -> Self:
        """Return the error for a name that is none of those there are; `given` is the option, or command, with its value."""
        names, (start, was_whole, more) = list(known), given.partition(repr(name))
        fix = nearest_name(str(name).strip().lower().replace("-", "_"), names, cutoff=0.8)
        is_pasted = fix and was_whole and not more and start.startswith(("--", "nsyspipe "))
        return cls(
            given,
            problem,
            found=", ".join(names),
            fix=f"{start}{fix}" if is_pasted else fix or "use one of these",
        )

    @classmethod
    def of_kind(cls, name: str, given: object, needed: str, fix: str) -> Self:
        """Return the error for a parameter of Python that got another kind of value."""
        noun = type(given).__name__
        if (
            hasattr(builtins, noun) and type(given).__module__ != "builtins"
        ):  # numpy has a bool of its own
            noun = f"{type(given).__module__}.{noun}"
        kind = (
            "a run"
            if noun.endswith("Run")
            else f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
        )
        return cls(
            f"{name}={short_repr(given)}", f"is {kind}, but nsyspipe needs {needed}", fix=fix
        )


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the name that is most alike; None where none is so much alike (1: the same)."""
    import difflib  # noqa: PLC0415 - only where something is wrong

    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), None)


def require(is_so: object, problem: str) -> None:
    """Raise a ValueError unless something is so: for what others wrote, whose reader says where it stands."""
    if not is_so:
        raise ValueError(problem)


def short_repr(given: object) -> str:
    """Return how Python writes a value, in a line of some 60 characters: a table would fill the screen."""
    try:
        return shortened(" ".join(repr(given).split()), _LONGEST_VALUE)
    except ValueError:  # of thousands of digits
        return "a number too large to be shown"


def shortened(text: str, longest: int) -> str:
    """Return a text of at most so many characters: what is cut off stands as three dots."""
    return text if len(text) <= longest else f"{text[: longest - 3].rstrip()}..."


class OutputError(NsyspipeError):
    """A result cannot be written where it was asked for."""


def shortage(error: BaseException) -> InputError | None:
    """Return the error for what a machine, or a limit, had too little of; None for any other error."""
    if isinstance(error, NsyspipeError):  # its words are our own, even if they are about memory
        return None
    number = error.errno if isinstance(error, OSError) else None
    is_memory = isinstance(error, MemoryError) or number == errno.ENOMEM
    if is_memory or any(words in str(error) for words in _NO_MEMORY):
        fix = "use fewer processes (-j 1), or more memory"
        return InputError("analysis", "ran out of memory, or reached a limit (ulimit -v)", fix=fix)
    if number in {errno.EMFILE, errno.ENFILE}:
        fix = "ulimit -n 1024, or use fewer processes: -j 1"
        return InputError(
            "analysis", f"cannot open more files at once ({os.strerror(errno.EMFILE)})", fix=fix
        )
    return None
