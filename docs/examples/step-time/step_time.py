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

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

ANSWER = Path("step-time")
UNUSABLE = 2
UNDECIDED = 4
ENDING_OF_FORMAT = {"markdown": "md", "html": "html", "json": "json"}
COMMENTS_PER_PAGE = 100
LAST_PAGE = 50
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PRINTABLE_TOKEN = re.compile(r"[!-~]+")


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


def capture() -> int:
    """Run the capture command, once for each directory of reports."""
    command = setting("CAPTURE")
    if not command:
        notice("No capture command: the reports of an earlier job are used.")
        return 0
    # The captured program is the change's own, so it does not get the token that comments.
    environment = {name: text for name, text in os.environ.items() if name != "STEP_TIME_TOKEN"}
    for number in range(1, number_of_captures() + 1):
        directory = Path(setting("REPORTS", "reports"), str(number))
        if directory.exists():
            raise UnusableError(f"{directory}: is there already, from another job. Remove it.")
        directory.mkdir(parents=True)
        environment["OUTPUT"] = str(directory / "run")
        ended = subprocess.run(["/bin/sh", "-c", command], env=environment, check=False)  # noqa: S603 - the author's own
        if ended.returncode:
            return ended.returncode
    return 0


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
    return subprocess.run(["nsyspipe", *words], check=False).returncode  # noqa: S603, S607 - no shell


def judge() -> int:
    """Save the captures of the main branch, or compare those of a change with them."""
    shutil.rmtree(ANSWER, ignore_errors=True)
    ANSWER.mkdir()
    store = Path(setting("STORE"))
    if not setting("STORE"):
        raise UnusableError("STEP_TIME_STORE: names the directory of saved runs.")
    baseline = plain_setting("BASELINE", "main")
    return compare(store, baseline) if number_of_change() else save(store, baseline)


def save(store: Path, baseline: str) -> int:
    """Save the captures under names that the next push uses again."""
    for number, directory in enumerate(captures(), start=1):
        words = ["--label", baseline, "--run-id", f"{baseline}-{number}", "--quiet"]
        exit_code = nsyspipe("analyze", directory, "--out", store, *words)
        if exit_code:
            return exit_code
    return 0


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
    answer, summary = ANSWER / "diff.md", os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and answer.exists():
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(answer.read_text(encoding="utf-8"))


def comment() -> int:
    """Write the answer under the change, or replace the last answer there."""
    answer = ANSWER / "diff.md"
    if not answer.exists() or not number_of_change():
        notice("Nothing to write under a change.")
        return 0
    if not PRINTABLE_TOKEN.fullmatch(setting("TOKEN")):
        notice("No token, so no comment: the answer is in the summary and the files of the job.")
        return 0
    marker = f"<!-- nsyspipe:{plain_setting('NAME', 'step-time')} -->\n"
    try:
        write_comment(marker, marker + answer.read_text(encoding="utf-8"))
    except (urllib.error.URLError, TimeoutError) as error:
        notice(f"No comment ({getattr(error, 'code', 'no answer')}): the answer is in the files.")
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
    return Thread(notes, notes, "PUT", header, author)


def own_comment(thread: Thread, marker: str) -> int | None:
    """Return the number of our comment with this marker. A comment of somebody else does not count."""
    for page in range(1, LAST_PAGE + 1):
        address = f"{thread.list_address}?per_page={COMMENTS_PER_PAGE}&page={page}"
        comments = ask(address, thread.token_header)
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
    except UnusableError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
