"""The action for GitHub and the template for GitLab: their steps run here, and a server of the test's stands for the forge."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.build.plain_steps import steps, write_run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/step-time"
FORGES = ("github", "gitlab")
TOKEN = "secret-token-1"
MARKER = "<!-- nsyspipe:step-time -->\n"
OURS = {"github": "github-actions[bot]", "gitlab": "project_1_bot"}
# Says what it was asked for, writes an answer, and ends as the gate of a test does.
NSYSPIPE = """#!/bin/bash
printf '%s\\n' "${*@Q}" >> asked
for word; do case $word in --markdown=*) echo '<!-- nsyspipe:diff -->' > "${word#*=}"; esac; done
[ "$1" != diff ] || exit "$GATE"
"""
# Saves all that it can see of the environment of the script, also that which the script began with.
CAPTURE = """#!/bin/bash
echo "$4" >> captured
process=$$
for _ in own shell script; do
    cat "/proc/$process/environ" >> "$4_0.sqlite"
    process=$(awk '$1 == "PPid:" { print $2 }' "/proc/$process/status")
done
"""


def example(name):
    return yaml.safe_load((EXAMPLE / name).read_text())


def script():
    """Return the script of both forges as a module."""
    spec = importlib.util.spec_from_file_location("step_time", EXAMPLE / "step_time.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def capture_command(forge):
    if forge == "github":
        (job,) = example("github-workflow.yml")["jobs"].values()
        return job["steps"][-1]["with"]["capture"]
    job = example("gitlab-ci.yml")["step time"]
    return job["variables"]["STEP_TIME_CAPTURE"]["value"]


def steps_of(forge, values):
    """Return the steps of a job: the script of each, its own variables, and if it runs after a failure."""
    if forge == "gitlab":
        capturing, commenting = example("gitlab-ci.yml").values()
        before = [(line, {}, False) for line in capturing["script"]]
        return [*before, *((line, {}, True) for line in commenting["script"])]
    action = example("action.yml")
    defaults = {
        f"inputs.{name}": entry.get("default", "") for name, entry in action["inputs"].items()
    }
    values = defaults | values

    def filled(text):
        return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: values[found[1]], text)

    ran = [step for step in action["runs"]["steps"] if "run" in step]
    return [
        (
            step["run"],
            {name: filled(filled(text)) for name, text in step["env"].items()},
            step.get("if") == "always()",
        )
        for step in ran
    ]


@pytest.fixture
def forge_server():
    """Return a forge of this test: the comments it has, and what it was asked."""
    state = SimpleNamespace(comments=[], asked=[], refuses=None, moved_to=None, says=None)

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN")
            state.asked.append((self.command, self.path, token, json.loads(text or "null")))
            path, _, query = self.path.partition("?")
            page = int((re.search(r"&page=(\d+)", query) or [0, 1])[1])
            found = state.comments[100 * (page - 1) : 100 * page] if query else {}
            status = state.refuses if state.refuses and self.command != "GET" else 200
            self.send_response(302 if state.moved_to else status)
            if state.moved_to:
                self.send_header("Location", state.moved_to)
            if state.says is not None:
                self.send_header("Content-Length", str(len(state.says) + state.short))
            self.end_headers()
            self.wfile.write(
                state.says
                if state.says is not None
                else json.dumps({"username": OURS["gitlab"]} if path == "/user" else found).encode()
            )

        do_GET = do_POST = do_PUT = do_PATCH = answer  # noqa: N815 - names of the library

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def variables_of(forge, address):
    if forge == "gitlab":
        return {
            "GITLAB_CI": "true",
            "CI_API_V4_URL": address,
            "CI_PROJECT_ID": "1",
            "CI_MERGE_REQUEST_IID": "7",
            "CI_PIPELINE_ID": "11",
        }
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_API_URL": address,
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_RUN_ID": "11",
    }


@pytest.fixture(params=FORGES)
def change(request, monkeypatch, tmp_path, forge_server):
    """Return a change whose answer lies there, to be commented on."""
    monkeypatch.chdir(tmp_path)
    for name in [*os.environ]:
        if name.startswith(("STEP_TIME_", "CI_", "GITHUB_", "GITLAB_")):
            monkeypatch.delenv(name)
    variables = variables_of(request.param, forge_server.address)
    for name, text in (variables | {"STEP_TIME_CHANGE": "7", "STEP_TIME_TOKEN": TOKEN}).items():
        monkeypatch.setenv(name, text)
    Path("step-time").mkdir()
    Path("step-time/diff.md").write_text("the answer\n")
    Path("step-time/judged").write_text(script().this_pipeline())
    forge_server.forge = request.param
    return forge_server


def comment_of(forge, author, number=41, body=MARKER + "an earlier answer"):
    who = {"user": {"login": author}} if forge == "github" else {"author": {"username": author}}
    return {"id": number, "body": body, **who}


def written(state):
    return [(method, path, content) for method, path, _, content in state.asked if method != "GET"]


LISTS = {"github": "/repos/o/r/issues/7/comments", "gitlab": "/projects/1/merge_requests/7/notes"}
EDITS = {
    "github": ("PATCH", "/repos/o/r/issues/comments/41"),
    "gitlab": ("PUT", "/projects/1/merge_requests/7/notes/41"),
}
ANSWER = {"body": MARKER + "the answer\n"}


def test_the_first_answer_is_a_new_comment(change, capsys):
    change.comments = [comment_of(change.forge, OURS[change.forge], body="of another job")]
    assert script().main(["comment"]) == 0
    assert written(change) == [("POST", LISTS[change.forge], ANSWER)]
    sent = {"github": f"Bearer {TOKEN}", "gitlab": TOKEN}[change.forge]
    assert {token for _, _, token, _ in change.asked} == {sent}
    assert TOKEN not in "".join(capsys.readouterr())


def test_a_later_answer_replaces_the_comment_also_on_a_later_page(change):
    others = [comment_of(change.forge, "someone", number, "text") for number in range(100, 220)]
    change.comments = [*others, comment_of(change.forge, OURS[change.forge])]
    assert script().main(["comment"]) == 0
    assert written(change) == [(*EDITS[change.forge], ANSWER)]


def test_a_comment_of_somebody_else_with_our_marker_stays(change):
    change.comments = [comment_of(change.forge, "someone")]
    assert script().main(["comment"]) == 0
    assert written(change) == [("POST", LISTS[change.forge], ANSWER)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TOKEN", ""),
        ("TOKEN", "two\nlines"),
        ("CHANGE", ""),
        ("CHANGE", "7/../../8"),
    ],
)
def test_without_token_or_number_nothing_is_asked(change, monkeypatch, name, text):
    monkeypatch.setenv(f"STEP_TIME_{name}", text)
    monkeypatch.delenv("CI_MERGE_REQUEST_IID", raising=False)
    assert script().main(["comment"]) == 0
    assert change.asked == []


def test_without_an_answer_nothing_is_asked(change):
    Path("step-time/diff.md").unlink()
    assert script().main(["comment"]) == 0
    assert change.asked == []


def test_a_refused_comment_fails_no_job_and_shows_no_token(change, capsys):
    change.refuses = 403
    assert script().main(["comment"]) == 0
    said = capsys.readouterr()
    assert "403" in said.err
    assert TOKEN not in said.out + said.err


def test_the_token_follows_no_redirection(change, capsys):
    change.moved_to = f"{change.address}/elsewhere"
    assert script().main(["comment"]) == 0
    assert not any("elsewhere" in path for _, path, _, _ in change.asked)
    assert "302" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("says", "short"),
    [
        (b"<html>", 0),
        (b"\xff", 0),
        (b"", 0),
        (b"[]", 5),
        (b"7", 0),
        (b"[7]", 0),
        (b'{"username": null}', 0),
        (b"[" * 10**5, 0),
    ],
)
def test_a_malformed_answer_of_the_forge_is_a_warning(change, capsys, says, short):
    change.says, change.short = says, short
    assert script().main(["comment"]) == 0
    assert written(change) == []
    assert "No comment (" in capsys.readouterr().err


def test_an_answer_that_is_no_text_is_a_warning(change, capsys):
    Path("step-time/diff.md").write_bytes(b"\xff")
    assert script().main(["comment"]) == 0
    assert change.asked == []
    assert "UnicodeDecodeError" in capsys.readouterr().err


def link_of_answer():
    Path("step-time/diff.md").unlink()
    Path("step-time/diff.md").symlink_to("/proc/self/environ")


def link_of_directory():
    Path("step-time").rename("elsewhere")
    Path("step-time").symlink_to("elsewhere")


def pipe():
    Path("step-time/diff.md").unlink()
    os.mkfifo("step-time/diff.md")


def of_another_job():
    Path("step-time/judged").write_text("CI_PIPELINE_ID=10")


@pytest.mark.parametrize(
    "prepare",
    [
        link_of_answer,
        link_of_directory,
        pipe,
        of_another_job,
        lambda: Path("step-time/judged").unlink(),
        lambda: Path("step-time/diff.md").write_text(f"x{TOKEN}x"),
    ],
)
def test_an_answer_that_judge_did_not_write_is_not_posted(change, capsys, prepare):
    prepare()
    assert script().main(["comment"]) == 0
    assert change.asked == []
    said = capsys.readouterr()
    assert "No comment" in said.err
    assert TOKEN not in said.out + said.err


@pytest.mark.parametrize("command", ["capture", "judge"])
@pytest.mark.parametrize("is_link", [False, True])
def test_capture_and_judge_remove_what_the_change_committed(change, monkeypatch, command, is_link):
    if is_link:
        link_of_directory()
    # The captured program can write an answer too.
    monkeypatch.setenv("STEP_TIME_CAPTURE", "mkdir step-time && touch step-time/diff.md && exit 3")
    assert script().main([command]) == 2
    assert not Path("step-time").is_symlink()
    assert not Path("step-time/diff.md").exists()
    assert Path("elsewhere/diff.md").exists() is is_link


@pytest.mark.parametrize("code", [1, 3, 4, 130])
def test_a_capture_that_fails_is_no_verdict(change, monkeypatch, code):
    monkeypatch.setenv("STEP_TIME_CAPTURE", f"exit {code}")
    assert script().main(["capture"]) == 2


def test_github_obeys_no_line_of_nsyspipe(change, monkeypatch, capfd):
    Path("bin").mkdir()
    Path("bin/nsyspipe").write_text("#!/bin/sh\necho ::error::x\nenv\nexit 3\n")
    Path("bin/nsyspipe").chmod(0o755)
    monkeypatch.setenv("PATH", f"bin:{os.environ['PATH']}")
    assert script().nsyspipe("diff") == 3
    first, *lines, last = capfd.readouterr().out.splitlines()
    assert f"STEP_TIME_TOKEN={TOKEN}" not in lines
    if change.forge == "github":
        assert last == f"::{first.removeprefix('::stop-commands::')}::"
        assert len(last) > 30
    else:
        assert first == "::error::x"


def test_a_name_that_could_end_the_marker_is_refused(change, monkeypatch, capsys):
    monkeypatch.setenv("STEP_TIME_NAME", "x --> <script>")
    assert script().main(["comment"]) == 2
    assert change.asked == []


@pytest.mark.parametrize("name", ["action.yml", "github-workflow.yml", "gitlab-ci.yml"])
def test_no_script_contains_text_of_the_forge(name):
    text = (EXAMPLE / name).read_text()
    assert all(
        "${{" not in line for line in re.findall(r"run: .*|^ +- python3 .*", text, re.MULTILINE)
    )
    used = re.findall(r"uses: (\S+)", text)
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}|\./.*", action) for action in used)


def test_the_action_uses_each_input_that_it_has():
    action = example("action.yml")
    used = set(re.findall(r"inputs\.(\w+)", yaml.safe_dump(action["runs"])))
    assert used == set(action["inputs"])
    given = example("github-workflow.yml")["jobs"]["step-time"]["steps"][-1]["with"]
    assert set(given) <= used


def test_the_job_for_gitlab_that_captures_is_outside_of_the_environment_of_the_token():
    capturing, commenting = example("gitlab-ci.yml").values()
    assert "environment" not in capturing
    assert commenting["environment"]["name"] == "step-time"
    assert commenting["needs"] == ["step time"]
    assert [line.split()[-1] for line in commenting["script"]] == ["comment"]


def test_the_workflow_may_read_the_code_and_comment_and_nothing_else():
    workflow = example("github-workflow.yml")
    assert workflow["permissions"] == {}
    assert workflow["jobs"]["step-time"]["permissions"] == {
        "contents": "read",
        "pull-requests": "write",
    }


class Job:
    """A job that runs the steps of an example in a directory, with a program of the test's as nsyspipe."""

    def __init__(self, forge, place, server):
        self.forge, self.place, self.server = forge, place, server
        for name, text in {
            "bin/nsyspipe": NSYSPIPE,
            "nsyspipe/launchers/ddp.sh": CAPTURE,
        }.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
            (place / name).chmod(0o755)
        (place / "nsyspipe/docs").mkdir()
        (place / "nsyspipe/docs/examples").symlink_to(ROOT / "docs/examples")

    def run(self, *, change="", gate=0, **inputs):
        """Run a job, and return its exit code: that of the first step that failed."""
        values = {f"inputs.{name}": text for name, text in inputs.items()}
        common = {
            "github.event.pull_request.number": change,
            "github.token": TOKEN,
            "inputs.store": "store",
        }
        environment = {
            "HOME": str(self.place),
            "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}",
            "GATE": str(gate),
            "GITHUB_ACTION_PATH": str(EXAMPLE),
            **variables_of(self.forge, self.server.address),
        }
        if self.forge == "github":
            environment["GITHUB_STEP_SUMMARY"] = str(self.place / "summary")
        else:
            environment |= {"CI_MERGE_REQUEST_IID": change, "STEP_TIME_TOKEN": TOKEN}
            environment |= {"STEP_TIME_STORE": "store"}
            environment |= {f"STEP_TIME_{name.upper()}": text for name, text in inputs.items()}
        status = 0
        for text, own, is_always in steps_of(self.forge, common | values):
            if status and not is_always:
                continue
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", text],
                env=environment | own,
                cwd=self.place,
                check=False,
                capture_output=True,
                text=True,
            )
            assert TOKEN not in done.stdout + done.stderr
            status = status or done.returncode
        return status

    def asked(self):
        """Return what nsyspipe was asked for since the last time."""
        said = self.place / "asked"
        lines = said.read_text().splitlines() if said.exists() else []
        said.unlink(missing_ok=True)
        return [shlex.split(line) for line in lines]


@pytest.fixture(params=FORGES)
def job(request, tmp_path, forge_server):
    return Job(request.param, tmp_path, forge_server)


FILES = [
    f"--{kind}=step-time/diff.{end}"
    for kind, end in (("markdown", "md"), ("html", "html"), ("json", "json"))
]


@pytest.mark.slow
def test_the_main_branch_saves_its_captures_as_the_baseline(job):
    assert job.run(capture=capture_command(job.forge)) == 0
    assert (job.place / "captured").read_text().split() == [f"reports/{n}/run" for n in (1, 2, 3)]
    assert job.asked() == [
        f"analyze reports/{n} --out store --label main --run-id main-{n} --quiet".split()
        for n in (1, 2, 3)
    ]
    assert job.server.asked == []
    assert TOKEN not in (job.place / "reports/1/run_0.sqlite").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("gate", [0, 3, 4, 2])
def test_the_job_of_a_change_ends_as_the_gate_and_comments(job, gate):
    (job.place / "store/runs/run_id=main-1").mkdir(parents=True)
    for name in ("1", "$(touch hacked); `touch hacked`"):  # of an artifact
        (job.place / "reports" / name).mkdir(parents=True)
        (job.place / "reports" / name / "run_0.sqlite").touch()
    assert job.run(change="7", gate=gate) == gate
    hostile = "change=reports/$(touch hacked); `touch hacked`"
    compared = ["diff", "--against", "main", "store", hostile, "change=reports/1"]
    assert job.asked() == [[*compared, "--fail-on", "regression", *FILES]]
    assert not (job.place / "hacked").exists()
    answer = {"body": MARKER + "<!-- nsyspipe:diff -->\n"}
    assert written(job.server) == [("POST", LISTS[job.forge], answer)]
    if job.forge == "github":
        assert (job.place / "summary").read_text() == "<!-- nsyspipe:diff -->\n"


@pytest.mark.slow
def test_an_undecided_gate_passes_on_request(job):
    (job.place / "store/runs/run_id=main-1").mkdir(parents=True)
    asked_for = {"capture": capture_command(job.forge), "undecided": "pass", "captures": "1"}
    assert job.run(change="7", gate=4, metric="step_time,exposed_comm", **asked_for) == 0
    (words,) = job.asked()
    assert words[words.index("--metric") + 1] == "step_time,exposed_comm"


@pytest.mark.slow
def test_nothing_is_compared_before_there_is_a_baseline(job):
    assert job.run(change="7", capture=capture_command(job.forge), captures="1") == 0
    assert (job.asked(), job.server.asked) == ([], [])


@pytest.mark.slow
def test_a_missing_artifact_fails_the_job(job):
    assert job.run(change="7") == 2
    assert (job.asked(), job.server.asked) == ([], [])


@pytest.mark.slow
def test_reports_of_another_job_are_not_captures_of_this_one(job):
    (job.place / "reports/1").mkdir(parents=True)
    assert job.run(change="7", capture=capture_command(job.forge)) == 2
    assert (job.asked(), job.server.asked) == ([], [])


@pytest.mark.slow
def test_the_gate_refuses_a_slower_change_and_passes_an_equal_one(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place, (name, compute) in enumerate({"main": 100, "slower": 120, "same": 100}.items()):
        for n in (1, 2, 3):  # captures differ a little
            rows = [[(part[0] + n * 10**5, *part[1:]) for part in steps(compute)]] * 2
            start = 10**18 + (4 * place + n) * 10**12
            write_run(tmp_path / name / str(n), rows, start=start)
    module = script()
    monkeypatch.setattr(module, "nsyspipe", lambda *words: call(*words).exit_code)
    monkeypatch.setenv("STEP_TIME_STORE", "store")

    def judged(name, change=""):
        monkeypatch.setenv("STEP_TIME_REPORTS", name)
        monkeypatch.setenv("STEP_TIME_CHANGE", change)
        return module.main(["judge"])

    assert judged("main") == 0
    for path in [*(tmp_path / "store").glob("*/run_id=main-1")]:  # of a push with more captures
        shutil.copytree(path, path.with_name("run_id=main-4"))
        shutil.copytree(path, path.with_name("run_id=main-x"))
    assert judged("main") == 0  # a second push takes the place of the first
    assert not [*(tmp_path / "store").glob("*/run_id=main-4")]
    for path in [*(tmp_path / "store").glob("*/run_id=main-x")]:
        shutil.rmtree(path)
    assert len([*(tmp_path / "store/runs").iterdir()]) == 3
    assert [judged(name, "7") for name in ("same", "slower")] == [0, 3]
    assert {path.name for path in Path("step-time").iterdir()} == {
        "judged",
        *(f"diff.{kind}" for kind in ("md", "html", "json")),
    }
