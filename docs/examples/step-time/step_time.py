#!/usr/bin/env python3
"""Did a change of the code change the time of a step? What the action of GitHub and the template of GitLab run.

::

    step_time.py capture    runs the command of STEP_TIME_CAPTURE for each capture
    step_time.py judge      compares the captures of a change with the baseline, or saves those of the main branch
    step_time.py comment    writes the answer under the change, in place of the last one

It needs Python and nsyspipe, and takes all settings from the environment. No text from the change becomes part of
a command. Exit codes are those of ``nsyspipe diff``. A comment that cannot be written is a warning.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER = Path("step-time")
JUDGED = "judged"  # the file in which judge says for which pipeline the answer is
TOKEN = "STEP_TIME_TOKEN"  # noqa: S105 - the name of the variable
UNUSABLE = 2
HIGHEST_CODE = 125  # a shell uses those above for itself
UNDECIDED = 4
ENDING_OF_FORMAT = {"markdown": "md", "html": "html", "json": "json"}
COMMENTS_PER_PAGE = 100
LAST_PAGE = 50
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PRINTABLE_TOKEN = re.compile(r"[!-~]+")
# What a forge, or somebody between, can make of an answer.
NO_COMMENT = (
    *(OSError, http.client.HTTPException, ValueError, RecursionError),
    *(AttributeError, KeyError, TypeError, OverflowError),
)


class UnusableError(Exception):
    """A setting or a file cannot be used."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Sends the token to the address of the forge, and to no other."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing, so that a redirection is an error."""


class Thread(NamedTuple):
    """The comments under a change."""

    list_address: str
    edit_address: str
    edit_method: str
    token_header: dict[str, str]
    own_author: str


def setting(name: str, default: str = "") -> str:
    """Return a setting, or its default if the forge left it empty."""
    return os.environ.get(f"STEP_TIME_{name}", "").strip() or default


def plain_setting(name: str, default: str) -> str:
    """Return a setting that becomes part of the name of a run or of a comment."""
    value = setting(name, default)
    if not PLAIN_NAME.fullmatch(value):
        raise UnusableError(f"STEP_TIME_{name}: only letters, digits, dots, - and _ are allowed")
    return value


def number_of_change() -> str:
    """Return the number of the pull or merge request, or nothing outside one."""
    number = setting("CHANGE") or os.environ.get("CI_MERGE_REQUEST_IID", "")
    return number if number.isascii() and number.isdigit() else ""


def notice(text: str) -> None:
    """Print a sentence that the forge shows beside the job."""
    prefix = "::notice::" if os.environ.get("GITHUB_ACTIONS") else ""
    print(f"{prefix}{text}", flush=True)


def warning(text: str) -> None:
    """Print a warning that fails no job."""
    prefix = "::warning::" if os.environ.get("GITHUB_ACTIONS") else "warning: "
    print(f"{prefix}{text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def without_log_commands() -> Iterator[None]:
    """Let GitHub obey no line of the output, which has names that the change chose."""
    if not os.environ.get("GITHUB_ACTIONS"):
        yield
        return
    end = secrets.token_hex(16)
    print(f"::stop-commands::{end}", flush=True)
    try:
        yield
    finally:
        print(f"::{end}::", flush=True)


def remove_answer() -> None:
    """Remove what lies in the place of the answer: the change can have brought it, also as a link."""
    if ANSWER.is_symlink() or ANSWER.is_file():
        ANSWER.unlink()
    elif ANSWER.exists():
        shutil.rmtree(ANSWER)


def this_pipeline() -> str:
    """Return the number of the workflow's run or of the pipeline, which no commit can know."""
    names = ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "CI_PIPELINE_ID")
    return " ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))


def read_answer(name: str) -> str:
    """Return the text of a file of the answer. A link is an error, so that no other file is read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    directory = os.open(ANSWER, flags | os.O_DIRECTORY)
    try:
        number = os.open(name, flags, dir_fd=directory)
    finally:
        os.close(directory)
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(name, "is no file")
        return file.read().decode()


def capture() -> int:
    """Run the capture command, once for each directory of reports."""
    remove_answer()
    try:
        return capture_each()
    finally:
        remove_answer()  # the captured program can have written one


def capture_each() -> int:
    """Run the capture command for each directory."""
    command = setting("CAPTURE")
    if not command:
        notice("No capture command: the reports of an earlier job are used.")
        return 0
    environment = without_token()
    for number in range(1, number_of_captures() + 1):
        directory = Path(setting("REPORTS", "reports"), str(number))
        if directory.exists():
            raise UnusableError(f"{directory}: is there already, from another job. Remove it.")
        directory.mkdir(parents=True)
        environment["OUTPUT"] = str(directory / "run")
        ended = subprocess.run(["/bin/sh", "-c", command], env=environment, check=False)  # noqa: S603 - the author's own
        if ended.returncode:  # of any program: no verdict
            raise UnusableError(f"The capture command failed with exit code {ended.returncode}.")
    return 0


def without_token() -> dict[str, str]:
    """Return the environment for programs of the change, which get no token that comments."""
    return {name: text for name, text in os.environ.items() if name != TOKEN}


def number_of_captures() -> int:
    """Return how often to capture."""
    number = setting("CAPTURES", "3")
    if not (number.isascii() and number.isdigit() and int(number)):
        raise UnusableError(f"STEP_TIME_CAPTURES: {number!a} is not a number of captures")
    return int(number)


def captures() -> list[Path]:
    """Return the directories of the captures, in the order of their names."""
    reports = Path(setting("REPORTS", "reports"))
    found = sorted(path for path in reports.glob("*") if path.is_dir() and any(path.iterdir()))
    if not found:
        raise UnusableError(
            f"{reports}: has no directory with reports. Give a capture command, or put each "
            f"capture into a directory of its own, such as {reports}/1."
        )
    return found


def nsyspipe(*words: str | Path) -> int:
    """Run nsyspipe, and return its exit code."""
    environment = without_token()
    with without_log_commands():
        ended = subprocess.run(["nsyspipe", *words], env=environment, check=False)  # noqa: S603, S607 - no shell
    return ended.returncode if 0 <= ended.returncode <= HIGHEST_CODE else UNUSABLE


def judge() -> int:
    """Save the captures of the main branch, or compare those of a change with them."""
    remove_answer()
    ANSWER.mkdir()
    (ANSWER / JUDGED).write_text(this_pipeline(), encoding="utf-8")
    store = Path(setting("STORE"))
    if not setting("STORE"):
        raise UnusableError("STEP_TIME_STORE: names the directory of saved runs.")
    baseline = plain_setting("BASELINE", "main")
    return compare(store, baseline) if number_of_change() else save(store, baseline)


def save(store: Path, baseline: str) -> int:
    """Save the captures under names that the next push uses again."""
    found = captures()
    for number, directory in enumerate(found, start=1):
        words = ["--label", baseline, "--run-id", f"{baseline}-{number}", "--quiet"]
        exit_code = nsyspipe("analyze", directory, "--out", store, *words)
        if exit_code:
            return exit_code
    remove_surplus(store, baseline, len(found))
    return 0


def remove_surplus(store: Path, baseline: str, kept: int) -> None:
    """Remove the runs of an earlier, larger baseline, which the next comparison would count."""
    for listed in [*(store / "runs").glob(f"run_id={baseline}-*")]:
        number = listed.name.removeprefix(f"run_id={baseline}-")
        if re.fullmatch(r"[1-9][0-9]{0,5}", number) and int(number) > kept:
            # As how-to/dashboards.md removes a run. Without its row in "runs", it is not listed.
            switch = store / ".nsyspipe/switch" / f"{baseline}-{number}"
            for path in (switch, listed, *store.glob(f"*/{listed.name}")):
                if path.exists():
                    shutil.rmtree(path)


def compare(store: Path, baseline: str) -> int:
    """Compare with the baseline, and put the answer into files and the summary of the job."""
    change = captures()
    if not (store / "runs" / f"run_id={baseline}-1").exists():
        notice("No baseline yet: the next push to the main branch saves it.")
        return 0
    metrics = ["--metric", setting("METRIC")] if setting("METRIC") else []
    files = [f"--{kind}={ANSWER / f'diff.{ending}'}" for kind, ending in ENDING_OF_FORMAT.items()]
    exit_code = nsyspipe(
        *("diff", "--against", baseline, store),
        *(f"change={directory}" for directory in change),
        *("--fail-on", "regression", *metrics, *files),
    )
    add_to_summary()
    return 0 if exit_code == UNDECIDED and setting("UNDECIDED") == "pass" else exit_code


def add_to_summary() -> None:
    """Add the answer to the summary of the job, on GitHub."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and (ANSWER / "diff.md").exists():
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(read_answer("diff.md"))


def comment() -> int:
    """Write the answer under the change, or replace the last answer there."""
    if not os.path.lexists(ANSWER / "diff.md") or not number_of_change():
        notice("Nothing to write under a change.")
        return 0
    if not PRINTABLE_TOKEN.fullmatch(setting("TOKEN")):
        notice("No token, so no comment: the answer is in the summary and the files of the job.")
        return 0
    marker = f"<!-- nsyspipe:{plain_setting('NAME', 'step-time')} -->\n"
    try:
        if not this_pipeline() or read_answer(JUDGED) != this_pipeline():
            warning("No comment: the answer is not from this pipeline.")
            return 0
        text = marker + read_answer("diff.md")
        if setting("TOKEN") in text:
            warning("No comment: the answer contains the token.")
            return 0
        write_comment(marker, text)
    except NO_COMMENT as error:
        reason = getattr(error, "code", type(error).__name__)  # its text may be the forge's
        warning(f"No comment ({reason}): the answer is in the files.")
    return 0


def write_comment(marker: str, text: str) -> None:
    """Replace our own comment with this marker, or add one."""
    thread = github_thread() if os.environ.get("GITHUB_ACTIONS") else gitlab_thread()
    number = own_comment(thread, marker)
    if number is None:
        ask(thread.list_address, thread.token_header, "POST", {"body": text})
    else:
        edited = f"{thread.edit_address}/{number}"
        ask(edited, thread.token_header, thread.edit_method, {"body": text})


def github_thread() -> Thread:
    """Return the comments of a pull request."""
    issues = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    return Thread(
        list_address=f"{issues}/{number_of_change()}/comments",
        edit_address=f"{issues}/comments",
        edit_method="PATCH",
        token_header={"Authorization": f"Bearer {setting('TOKEN')}"},
        own_author=setting("LOGIN", "github-actions[bot]"),
    )


def gitlab_thread() -> Thread:
    """Return the comments of a merge request, and whose the token is."""
    api, header = os.environ["CI_API_V4_URL"], {"PRIVATE-TOKEN": setting("TOKEN")}
    project = quote(os.environ["CI_PROJECT_ID"], safe="")
    notes = f"{api}/projects/{project}/merge_requests/{number_of_change()}/notes"
    author = ask(f"{api}/user", header)["username"]
    if not isinstance(author, str):
        raise TypeError("username")
    return Thread(notes, notes, "PUT", header, author)


def own_comment(thread: Thread, marker: str) -> int | None:
    """Return the number of our comment with this marker. A comment of somebody else does not count."""
    for page in range(1, LAST_PAGE + 1):
        address = f"{thread.list_address}?per_page={COMMENTS_PER_PAGE}&page={page}"
        comments = ask(address, thread.token_header)
        if not isinstance(comments, list):
            raise TypeError("comments")
        for entry in comments:
            author = entry.get("user") or entry.get("author") or {}
            is_own = thread.own_author in {author.get("login"), author.get("username")}
            if is_own and (entry.get("body") or "").replace("\r\n", "\n").startswith(marker):
                return int(entry["id"])
        if len(comments) < COMMENTS_PER_PAGE:
            return None
    return None


def ask(address: str, header: dict[str, str], method: str = "GET", content: Any = None) -> Any:  # noqa: ANN401 - JSON
    """Send a request to the forge, and return the JSON of its answer."""
    body = None if content is None else json.dumps(content).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "nsyspipe", **header}
    request = urllib.request.Request(address, body, headers, method=method)  # noqa: S310 - the forge's own address
    opener = urllib.request.build_opener(NoRedirect)
    with opener.open(request, timeout=30) as answer:
        return json.load(answer)


COMMANDS = {"capture": capture, "judge": judge, "comment": comment}


def main(words: list[str]) -> int:
    """Run one command."""
    if len(words) != 1 or words[0] not in COMMANDS:
        print(f"usage: step_time.py {'|'.join(COMMANDS)}", file=sys.stderr)
        return UNUSABLE
    try:
        return COMMANDS[words[0]]()
    except (UnusableError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE


if __name__ == "__main__":
    if TOKEN in os.environ and sys.argv[1:] != ["comment"]:
        # Begin again without it: /proc shows the environment that a process began with.
        os.execve(sys.executable, sys.orig_argv, without_token())  # noqa: S606 - ourselves
    sys.exit(main(sys.argv[1:]))
