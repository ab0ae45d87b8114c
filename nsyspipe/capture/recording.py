"""What nsys records beside its traces: samples of Python, and hardware counters of GPUs."""

import re
from typing import NamedTuple

from nsyspipe.errors import CaptureError, OptionError
from nsyspipe.nsys.programs import Nsys, ask, telling_lines

# How often the stacks of Python threads are sampled. About half a kilobyte is written each time.
PYTHON_SAMPLING_HZ = 1000
_PYTHON_SAMPLING = "--python-sampling"
# An export without this option leaves out what the samples consist of.
_BLOBS = "--include-blobs"
# The option of newer versions of nsys comes first.
_COUNTING_OPTIONS = ("--gpu-metrics-devices", "--gpu-metrics-device")
_ANSWER_S = 30.0
# How `nsys profile --gpu-metrics-devices=help` lists a GPU that it can count on.
_GPU_LINE = re.compile(r"^\s*\d+:", re.MULTILINE)
_NOT_ALLOWED = re.compile(r"(?i)ERR_NVGPUCTRPERM|privilege|permission")
_NO_OPTION = "leave --gpu-metrics out, or name an nsys that counts: --nsys PROGRAM"
_ALLOW = (
    "run as root, or let all users count: load the module nvidia with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)


class PythonSampling(NamedTuple):
    """How nsys samples Python."""

    # Of `nsys profile`. Empty if this nsys does not sample.
    options: tuple[str, ...]
    # Why it does not.
    note: str | None


def python_sampling(tool: Nsys) -> PythonSampling:
    """Return how an nsys samples Python, or a note if it cannot sample or export samples."""
    why_not = None
    if not tool.has("profile", _PYTHON_SAMPLING):
        why_not = "cannot sample Python"
    elif not tool.has("export", _BLOBS):
        why_not = "cannot export samples of Python"
    if why_not is not None:
        note = (
            f"note: nsys {tool.version_text} {why_not} (2025.3 can), so the report has no lines of "
            "Python"
        )
        return PythonSampling((), note)
    frequency = f"{_PYTHON_SAMPLING}-frequency={PYTHON_SAMPLING_HZ}"
    return PythonSampling((f"{_PYTHON_SAMPLING}=true", frequency), None)


def counting_option(tool: Nsys) -> str:
    """Return the option by which an nsys reads the hardware counters of all GPUs of the host.

    Raises
    ------
    OptionError
        If this version of nsys has no such option.
    CaptureError
        If nsys says that it is not allowed to read them, or that no GPU here has counters for it.
    """
    option = next((name for name in _COUNTING_OPTIONS if tool.has("profile", name)), None)
    if option is None:
        problem = f"nsys {tool.version_text} cannot count"
        raise OptionError("--gpu-metrics", problem, fix=_NO_OPTION)
    answer = ask([str(tool.path), "profile", f"{option}=help"], _ANSWER_S)
    text = answer.text if answer is not None else ""
    has_answered = bool(text.strip())
    # If nsys does not answer, it may be able to count nevertheless. So only an answer without any
    # GPU is an error.
    if not has_answered or _GPU_LINE.search(text):
        return f"{option}=all"
    message = next(iter(telling_lines(text, 1)), None)
    if _NOT_ALLOWED.search(text):
        problem = "nsys may not count on the GPUs of this machine"
        fix = _ALLOW
    else:
        problem = "nsys cannot count on the GPUs of this machine"
        fix = "leave --gpu-metrics out"
    raise CaptureError("--gpu-metrics", problem, found=message, fix=fix)


def default_counting_option() -> str:
    """Return the option that counts on all GPUs in newer versions of nsys."""
    return f"{_COUNTING_OPTIONS[0]}=all"
