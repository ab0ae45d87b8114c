"""Analyses that launchers start, run in the process of the tests: to import what they need takes most of their time."""

import contextlib
import json
import socket
import threading

from tests.cli.tools import nsyspipe_here

# Stands before run_module.py, which analyze and diff are started with: sends what they are asked to
# the process of the tests, which has imported all that they need.
ASKING = """
import json, os, socket, sys
if sys.argv[1:3] in (["nsyspipe", "analyze"], ["nsyspipe", "diff"]):
    question = {"words": sys.argv[2:], "folder": os.getcwd(), "variables": dict(os.environ)}
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        connection.sendall(json.dumps(question).encode() + b"\\n")
        answer = json.load(connection.makefile())
    print(answer["stdout"], end="")
    print(answer["stderr"], end="", file=sys.stderr)
    sys.exit(answer["status"])
"""


def answer_questions(server):
    """Run what is asked until the server is closed."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, connection.makefile("rw") as stream:
            question = json.loads(stream.readline())
            variables = {
                name: value
                for name, value in question["variables"].items()
                if name.startswith(("NCCL_", "XDG_"))
            }
            done = nsyspipe_here(*question["words"], cwd=question["folder"], **variables)
            answer = {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
            json.dump(answer, stream)


@contextlib.contextmanager
def answering(launchers):
    """Let these copies of the launchers ask this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_questions, args=(server,), daemon=True).start()
        real = launchers / "run_module.py"
        future = "from __future__ import annotations\n"
        start, rest = real.read_text().split(future)
        port = f"PORT = {server.getsockname()[1]}"
        real.write_text(f"{start}{future}{port}\n{ASKING}{rest}")
        yield
        server.shutdown(socket.SHUT_RDWR)
