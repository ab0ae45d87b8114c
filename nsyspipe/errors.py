"""All errors that a user can cause. They end a command with exit code 2, without a traceback.

Any other exception is a bug, and ends a command with exit code 1.
"""

import builtins
import errno
import functools
import os
import re
from collections.abc import Iterable, Mapping
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
    "flops-per-step",
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
    "peak",
    "perfetto-ranks",
    "perfetto-steps",
    "rank-map",
    "ranks",
    "run-id",
    "samples-per-step",
    "skip-first",
    "sort",
    "step",
    "steps",
    "tokens-per-step",
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
# Flags whose parameter has the opposite meaning.
_FLAG_CALLS = {"no-logs": "logs=False"}
_RENAMED = {
    "metric": "metrics",
    "min-effect": "min_effect_pct",
    "perfetto-ranks": "ranks",
    "perfetto-steps": "steps",
}
_FLAG_NAMES = "|".join(_FLAGS)
_VALUED_NAMES = "|".join(sorted(_VALUED, key=len, reverse=True))
# A command of a shell stays a command, to its end. After an option comes what looks like a value,
# or a word of the sentence.
_OPTION = re.compile(
    r"(?P<command>\b(?:nsyspipe|nsys) [a-z].*?(?=; |, or |\)|\n|$))"
    r"|(?P<store>--out\b(?: [A-Z]+| [\w.-]*/\S*)?(?P<events> --events)?)"
    r"|-j (?P<jobs>\d+)"
    rf"|--(?:(?P<flag>{_FLAG_NAMES})|(?P<name>{_VALUED_NAMES}))(?![\w-])"
    r"(?: (?P<value>'[^']*'|\"[^\"]*\""
    r"|[A-Z][A-Z_]*\b"
    r"|\d[\w.,:%/-]*(?<![.,:-])"
    r"|[\w/-]*[./=][\w./=,-]*\w"
    r"|none|repetition|auto|regression|any-change|(?:fp|bf|tf)\d+"
    r"|(?:(?<=metric )|(?<=sort )|(?<=dtype ))[a-z]\w*(?:,\w+)*"
    r"|(?:(?<=run-id )|(?<=skip-first )|(?<=against )|(?<=label ))(?!(?:with|out)\b)[\w.+-]+))?"
)


# Commands that texts name. Most are also calls in Python, and the others are typed in a shell.
_WORD = r"(?:'[^']*'|[^\s'-]\S*?)"
_COMMAND = re.compile(
    rf"\bnsyspipe (?:doctor (?P<listed_store>\S+)(?=, which lists)"
    rf"|(?:analyze (?P<reports>{_WORD}) --out (?P<out>{_WORD})(?: --label "
    rf"(?P<label>{_WORD}))?|analyze (?P<only_reports>{_WORD})"
    rf"|diff (?:--against (?P<against>{_WORD}) )?(?P<baseline>{_WORD}) "
    rf"(?P<candidate>{_WORD}))(?=,? (?:for|or)\b|\n|$)"
    r"|whatif(?P<changes>(?: --[a-z-]+(?: [A-Z\d]\w*)?)*)(?! "
    r"[A-Z])|(?P<bare>diff|compare)(?=[,.;:)]|$)|(?P<costs>analyze --top "
    r"\d+)|(?P<verdict>analyze(?= says what))"
    r"|(?P<shell>(?:convert|doctor|redact|schema)\b))"
)
_OPTION_WITH_VALUE = re.compile(r"--[a-z-]+ ((?!and --).+)", re.DOTALL)
# A value as Python writes it.
_LITERAL = re.compile(r"None|nan|-?inf|True|False|-?\d+(\.\d+)?|[\[({<].*|.*\.\.\.", re.DOTALL)
_MAX_VALUE_CHARACTERS = 60
_MAX_SUBJECT_CHARACTERS = 500
# Messages about too little memory: of the system, its loader, SQLite and Python (of a module). Not
# every library has an exception of its own for it.
_NO_MEMORY = (
    "Cannot allocate memory",
    "failed to map segment",
    "out of memory",
    "error return without exception set",
    "Failed to launch worker thread",
)


def _as_call(command: re.Match[str]) -> str:
    """Return the call of the API for a command in a text, a match of `_COMMAND`.

    The first group that matched tells which kind of command it is. A command without a call stays,
    with the words "in a shell".
    """
    if command["shell"]:
        return f"(in a shell) {command[0]}"
    if command["bare"]:
        return f"nsyspipe.{command['bare']}"
    if command["costs"]:
        return "run.costs()"
    if command["verdict"]:
        return "run.verdict"
    # An empty group is ``whatif`` without options.
    if command["changes"] is not None:
        return _whatif_call(command["changes"])
    return _call_with_runs(command)


def _whatif_call(options: str) -> str:
    """Return the call of `nsyspipe.whatif` for options in a text, such as " --link NAME"."""
    _, *options_without_dashes = options.split(" --")
    arguments = [in_python(f"--{option}") for option in options_without_dashes]
    changes = ", ".join(arguments)
    return f"nsyspipe.whatif(run, {changes})" if changes else "nsyspipe.whatif"


def _call_with_runs(command: re.Match[str]) -> str:
    """Return the call of the API for a command that names runs: doctor, analyze or diff.

    The groups of `_COMMAND` tell the cases apart: doctor that lists a store, analyze of reports
    alone, analyze with --out, and otherwise diff.
    """
    if command["listed_store"]:
        store = command["listed_store"].strip("'")
        table = f"{store}/runs"
        return f"pandas.read_parquet({table!r})"
    if command["only_reports"]:
        return f"nsyspipe.load({_argument(command['only_reports'])})"
    if command["out"]:
        label = _keyword_argument("label", command["label"])
        loaded = f"nsyspipe.load({_argument(command['reports'])}{label})"
        return f"nsyspipe.export.parquet({loaded}, {_argument(command['out'])})"
    sides = f"{_argument(command['baseline'])}, {_argument(command['candidate'])}"
    return f"nsyspipe.diff({sides}{_keyword_argument('against', command['against'])})"


def _argument(word: str) -> str:
    """Return a word of a command as Python writes it. A placeholder, such as REPORTS, stays."""
    is_placeholder = word.isupper() and word.isalpha()
    return word if is_placeholder else repr(word.strip("'"))


def _keyword_argument(name: str, word: str | None) -> str:
    """Return a further argument of a call, with the comma before it; ``""`` without a word."""
    return "" if word is None else f", {name}={_argument(word)}"


def in_python(text: str) -> str:
    """Return a text of an error in the words of the Python API: ``--rank-map`` is ``rank_map=``."""
    text = _COMMAND.sub(_as_call, text)
    return _OPTION.sub(_as_parameter, text)


def _as_parameter(option: re.Match[str]) -> str:
    """Return the parameter of the API for an option in a text, a match of `_OPTION`.

    The first group that matched tells which kind of option it is. A command of a shell stays as it
    is, with its options.
    """
    if option["command"]:
        return option["command"]
    if option["store"]:
        events = ", events=True" if option["events"] else ""
        return f"nsyspipe.export.parquet(run, STORE{events})"
    if option["jobs"]:
        return f"jobs={option['jobs']}"
    if option["flag"]:
        parameter = option["flag"].replace("-", "_")
        return _FLAG_CALLS.get(option["flag"], f"{parameter}=True")
    name = _RENAMED.get(option["name"], option["name"].replace("-", "_"))
    value = option["value"]
    if value is None:
        # An option before a colon is the subject of a message. It is only named, without "=".
        is_subject = option.string[option.end() :].startswith(":")
        return name if is_subject else f"{name}="
    return f"{name}={_parameter_value(name, value)}"


def _parameter_value(name: str, value: str) -> str:
    """Return the value of parameter `name` as Python writes it.

    A range of steps (3:5) becomes a pair. Numbers, quoted texts and placeholders such as FILE stay.
    Any other value becomes a text.
    """
    step_range = re.fullmatch(r"(\d+):(\d+)", value)
    if name == "steps" and step_range is not None:
        return f"({step_range[1]}, {step_range[2]})"
    # In ranks, a comma separates numbers, so a list of ranks is no number. Elsewhere it separates
    # thousands.
    whole_or_decimal = r"\d*\.?\d+"
    with_thousands = r"\d{1,3}(,\d{3})+"
    number = r"\d+" if name == "ranks" else f"{with_thousands}|{whole_or_decimal}"
    is_number = re.fullmatch(number, value) is not None
    is_quoted = value[0] in "'\""
    is_placeholder = value.isupper()
    if not (is_number or is_quoted or is_placeholder):
        return repr(value)
    # Python separates thousands by underscores.
    return value.replace(",", "_") if value[0].isdigit() else value


def _subject_in_python(subject: str) -> str:
    """Return the subject of an error in the words of the Python API.

    The subject is often an option with its value. `in_python` recognizes most values. Of
    "--rank-map text", it makes "rank_map= text", and the value is quoted here.
    """
    # `in_python` takes a text before a colon for a subject.
    text = in_python(f"{subject}:").removesuffix(":")
    option = _OPTION_WITH_VALUE.fullmatch(subject)
    if option is None:
        return text
    given_value = option[1]
    parameter, blank_after_equals, value = text.partition("= ")
    is_value_left_over = bool(blank_after_equals) and value == given_value
    if not is_value_left_over:
        return text
    python_value = value if _LITERAL.fullmatch(value) else repr(value)
    return f"{parameter}={python_value}"


def rows_in_python(rows: Iterable[Mapping[str, Any]], *texts: str) -> list[dict[str, Any]]:
    """Return rows with some of their texts in the words of the Python API.

    `texts` are the keys of these texts. By default, they are the message and the fix of a problem.
    A text may be None, and stays None.
    """
    keys = texts or ("message", "fix")
    converted_rows = []
    for row in rows:
        converted_row = dict(row)
        for key in keys:
            text = row[key]
            converted_row[key] = in_python(text) if text else text
        converted_rows.append(converted_row)
    return converted_rows


class NsyspipeError(Exception):
    """Base class of all errors that nsyspipe raises on purpose.

    Its text uses the words of the Python API.

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
        # `args` has the words of the Python API. The parts keep those of the command line.
        super().__init__(f"{_subject_in_python(subject)}: {in_python(problem)}")
        self.subject = subject
        self.problem = problem
        self.found = found
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild an error in another process, with all its parts."""
        rebuild = functools.partial(type(self), found=self.found, fix=self.fix)
        return rebuild, (self.subject, self.problem)

    def lines(self) -> list[str]:
        """Return the message in the words of the command line, without the word ``error``."""
        lines = [f"{shortened(self.subject, _MAX_SUBJECT_CHARACTERS)}: {self.problem}"]
        if self.found:
            lines.append(f"  found: {self.found}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return lines

    def __str__(self) -> str:
        subject = shortened(_subject_in_python(self.subject), _MAX_SUBJECT_CHARACTERS)
        lines = [f"{subject}: {in_python(self.problem)}"]
        lines += [in_python(line) for line in self.lines()[1:]]
        return "\n".join(lines)


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
        """Return the error for a name that is not one of the known names.

        `given` is the option or the command with its value. If it ends with the name in quotes, the
        fix is the same option or command with the most similar known name. Otherwise the fix is
        that name alone.
        """
        names = list(known)
        plain_name = str(name).strip().lower()
        similar_name = nearest_name(plain_name.replace("-", "_"), names, cutoff=0.8)
        # `partition` finds no quotes if `given` does not have the name in quotes.
        start, quoted_name, rest = given.partition(repr(name))
        ends_with_name = bool(quoted_name) and not rest
        is_option_or_command = start.startswith(("--", "nsyspipe "))
        if similar_name is None:
            fix = "use one of these"
        elif ends_with_name and is_option_or_command:
            fix = f"{start}{similar_name}"
        else:
            fix = similar_name
        return cls(given, problem, found=", ".join(names), fix=fix)

    @classmethod
    def of_kind(cls, name: str, given: object, needed: str, fix: str) -> Self:
        """Return the error for a parameter of the API with a value of another kind.

        `needed` is the kind that the parameter needs, in words.
        """
        noun = type(given).__name__
        module = type(given).__module__
        # For example, numpy has a bool of its own. "is a bool, but needs a bool" would be no help.
        if hasattr(builtins, noun) and module != "builtins":
            noun = f"{module}.{noun}"
        article = "an" if noun[0].lower() in "aeiou" else "a"
        kind = "a run" if noun.endswith("Run") else f"{article} {noun}"
        problem = f"is {kind}, but nsyspipe needs {needed}"
        return cls(f"{name}={short_repr(given)}", problem, fix=fix)


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the most similar known name; None if no similarity is above `cutoff` (1: the same)."""
    import difflib  # noqa: PLC0415 - only where something is wrong

    matches = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def require(condition: object, problem: str) -> None:
    """Raise a ValueError with a problem unless a condition holds.

    For contents of files. The caller knows the file, and names it in an error of its own.
    """
    if not condition:
        raise ValueError(problem)


def short_repr(value: object) -> str:
    """Return a value as Python writes it, in a short line. A table would fill the screen."""
    try:
        return shortened(" ".join(repr(value).split()), _MAX_VALUE_CHARACTERS)
    except ValueError:
        # Python refuses to write integers of thousands of digits.
        return "a number too large to be shown"


def shortened(text: str, max_characters: int) -> str:
    """Return a text of limited length. Three dots stand for what is cut off."""
    if len(text) <= max_characters:
        return text
    return f"{text[: max_characters - 3].rstrip()}..."


class OutputError(NsyspipeError):
    """A result cannot be written where it was asked for."""

    @classmethod
    def not_writable(cls, place: str, error: OSError, *, fix: str) -> Self:
        """Return the error for a place at which the file system lets nothing be written."""
        return cls(place, f"cannot be written ({error.strerror})", fix=fix)


def shortage(error: BaseException) -> InputError | None:
    """Return the error for too little memory or too few open files; None for any other error."""
    if isinstance(error, NsyspipeError):
        # The words are our own, even if they are about memory.
        return None
    error_number = error.errno if isinstance(error, OSError) else None
    is_out_of_memory = isinstance(error, MemoryError) or error_number == errno.ENOMEM
    if is_out_of_memory or any(words in str(error) for words in _NO_MEMORY):
        fix = "use fewer processes (-j 1), or more memory"
        return InputError("analysis", "ran out of memory, or reached a limit (ulimit -v)", fix=fix)
    if error_number in {errno.EMFILE, errno.ENFILE}:
        fix = "ulimit -n 1024, or use fewer processes: -j 1"
        problem = f"cannot open more files at once ({os.strerror(errno.EMFILE)})"
        return InputError("analysis", problem, fix=fix)
    return None
