"""Calls of tools, which are made in a process of their own.

A regular expression of a client can take forever. While it works, nothing else in its process runs,
so only the end of that process ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from msgspec import Struct

from nsyspipe.errors import InputError, NsyspipeError, shortage
from nsyspipe.mcp.arguments import parse
from nsyspipe.mcp.tools import Tools
from nsyspipe.model.names import printable
from nsyspipe.run.workers import Workers

# A call that takes longer is ended.
MAX_CALL_S = 600.0


class Call(NamedTuple):
    """A call of a tool: what the client sent, and what answers it."""

    tool: str
    arguments: Mapping[str, Any]
    # The type of the arguments, if they are valid.
    kind: type[Struct]
    # A method of `Tools`.
    method: Callable[[Tools, Any], str]


class Answer(NamedTuple):
    """The text that a tool answers, and whether it is an error."""

    text: str
    is_error: bool


class CallProcess:
    """The process that makes the calls. The first call starts it, and so does one after its end."""

    def __init__(self) -> None:
        self._workers: Workers | None = None

    def start_call(self, tools: Tools, call: Call) -> Future[Answer]:
        """Have a call made, and return its future answer; an InputError without a process."""
        if self._workers is None:
            self._workers = Workers(1)
        return self._workers.submit(answer_call, tools, call)

    def end(self) -> None:
        """End the process at once, with the call that it makes."""
        workers = self._workers
        self._workers = None
        if workers is not None:
            workers.kill()
            workers.shutdown(cancel_futures=True)


def answer_call(tools: Tools, call: Call) -> Answer:
    """Return the answer of a tool, or the error that the command line would print.

    A bug of nsyspipe is raised.
    """
    try:
        arguments = parse(call.tool, call.kind, call.arguments)
        return Answer(call.method(tools, arguments), is_error=False)
    except NsyspipeError as error:
        return error_answer(error)
    except Exception as error:
        shortage_error = shortage(error)
        if shortage_error is None:
            # A bug.
            raise
        return error_answer(shortage_error)


def late_answer(call: Call, max_s: float) -> Answer:
    """Return the answer to a call that was ended, because it took longer than `max_s`."""
    problem = f"took longer than {max_s:.0f} s, and was ended"
    fix = "name fewer reports, or a simpler regular expression for step"
    return error_answer(InputError(f"tool {call.tool}", problem, fix=fix))


def error_answer(error: NsyspipeError) -> Answer:
    """Return an error as the command line prints it."""
    first_line, *lines = map(printable, error.lines())
    return Answer("\n".join([f"error: {first_line}", *lines]), is_error=True)
