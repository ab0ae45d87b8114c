"""What nsys printed before it failed: which of its lines say why, fit to print.

Needs only the standard library: it runs beside training programs too.
"""

from __future__ import annotations

import re

__all__ = ["telling_lines"]

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_TELLING = re.compile(
    r"error|fail|unrecogni[sz]ed|unknown|invalid|cannot|not found|denied|no space|exception"
    r"|end of file|lost",
    re.IGNORECASE,
)
# [1/1] [===== 40%     ] run_0.sqlite
_PROGRESS = re.compile(r"\[[= ]*\d+ ?%|^\[\d+/\d+\]")
_LONGEST_LINE = 200


def telling_lines(said: str, most: int) -> list[str]:
    r"""Return the last lines that say what went wrong, else the last of all: short, each once, without progress bars.

    Parameters
    ----------
    said
        What nsys printed, on a terminal or not.
    most
        How many lines at most.

    Examples
    --------
    >>> telling_lines("Generating\n[1/1] [==  20%]\nError: no space left on device\nbye\n", 1)
    ['Error: no space left on device']
    """
    lines = [_ESCAPES.sub("", line).strip() for line in re.split(r"[\r\n]+", said)]
    lines = ["".join(filter(str.isprintable, line)) for line in lines]
    lines = [line[:_LONGEST_LINE] for line in lines if line and not _PROGRESS.search(line)]
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return list(dict.fromkeys(telling[-most:]))
