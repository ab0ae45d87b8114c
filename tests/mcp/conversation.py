"""A real client of the official SDK, which starts the server and talks to it over stdio."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tests.cli.tools import environment
from tests.late_module import LateModule

anyio: Any = LateModule("anyio")
mcp: Any = LateModule("mcp")
stdio: Any = LateModule("mcp.client.stdio")


class Answer(NamedTuple):
    """The text that a tool answered, and whether it is an error."""

    text: str
    is_error: bool


class Conversation(NamedTuple):
    """What a server said: of itself, of its tools, and to each call."""

    name: str
    instructions: str
    # By name, as the client gets them.
    tools: dict[str, Any]
    answers: list[Answer]


def converse(roots, calls, *, errors=None, **variables):
    """Start a server of some roots, make the calls, and return the whole conversation.

    A call is the name of a tool and its arguments.
    """

    async def talk():
        words = [word for root in roots for word in ("--root", os.fspath(root))]
        parameters = stdio.StdioServerParameters(
            command=sys.executable,
            args=["-m", "nsyspipe", "mcp", *words],
            env=environment(**variables),
            cwd="/",
        )
        answers = []
        async with mcp.Client(stdio.stdio_client(parameters, errors or sys.stderr)) as client:
            listed = await client.list_tools()
            tools = {tool.name: tool for tool in listed.tools}
            for tool, arguments in calls:
                answer = await client.call_tool(tool, arguments)
                (content,) = answer.content
                answers.append(Answer(content.text, answer.is_error))
            name = client.server_info.name
            return Conversation(name, client.instructions, tools, answers)

    return run_in_thread(talk)


def run_in_thread(function, *arguments):
    """Run an async function in a thread of its own. A browser of other tests has the loop of this thread."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(anyio.run, function, *arguments).result()
