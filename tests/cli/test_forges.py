"""The examples for forges: what they run is run here, but for the capture and the forge, which programs of that name stand for."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from nsyspipe.cli.app import app
from tests.build.plain_steps import steps, write_run

ROOT = Path(__file__).parents[2]
FORGES = ("github", "gitlab")


def scripts(forge):
    """Return what a job runs on the main branch, what for a proposal, and how it comments on that; as bash runs it there."""
    if forge == "github":
        (job,) = yaml.safe_load((ROOT / "docs/examples/github-actions.yml").read_text())["jobs"].values()
        capture, save, compare, comment = (step for step in job["steps"] if "run" in step)
        assert "push" in save["if"]
        assert all("pull_request" in step["if"] for step in (compare, comment))
        assert "${{" not in "".join(step.get("run", "") for step in job["steps"])  # no text of a stranger in a script
        return capture["run"] + save["run"], capture["run"] + compare["run"], comment["run"]
    (job,) = yaml.safe_load((ROOT / "docs/examples/gitlab-ci.yml").read_text()).values()
    both = "\n".join(job["script"])
    return both, f"CI_PIPELINE_SOURCE=merge_request_event\n{both}", "\n".join(job["after_script"])


@pytest.mark.parametrize("forge", FORGES)
def test_every_option_of_an_example_exists(forge):
    lines = "\n".join(scripts(forge)).replace("\\\n", " ").splitlines()
    commands = get_command(app).commands
    asked = [shlex.split(line) for line in lines if line.strip().startswith("nsyspipe ")]
    assert {words[1] for words in asked} == {"analyze", "diff"}
    for words in asked:
        known = {name for one in commands[words[1]].params for name in one.opts}
        assert {word for word in words if word.startswith("-")} <= known
    launcher = (ROOT / "launchers/capture.bash").read_text() + (ROOT / "launchers/ddp.sh").read_text()
    (capture,) = {line.strip() for line in lines if "ddp.sh" in line}
    options = [word for word in capture.split() if word[0] == "-"]
    assert all(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", launcher) for word in options)


@pytest.mark.slow
@pytest.mark.parametrize("forge", FORGES)
def test_a_proposal_that_is_slower_is_told_and_refused_and_one_that_is_not_passes(forge, call, tmp_path, monkeypatch):
    programs, asked = tmp_path / "bin", tmp_path / "asked"
    (tmp_path / "nsyspipe/launchers").mkdir(parents=True)
    programs.mkdir()
    for place, (name, compute) in enumerate({"main": 100, "slower": 120, "same": 100}.items()):
        for n in (1, 2, 3):  # captures differ a little
            rows = [[(part[0] + n * 10**5, *part[1:]) for part in steps(compute)]] * 2
            write_run(tmp_path / name / "reports" / str(n), rows, start=10**18 + (4 * place + n) * 10**12)
    # They say what they were asked for; nsyspipe then answers in this process.
    for program in (*(programs / name for name in ("nsyspipe", "gh", "curl")), tmp_path / "nsyspipe/launchers/ddp.sh"):
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$(basename "$0") $*" >> {asked}\n')
        program.chmod(0o755)
    variables = {
        "HOME": str(tmp_path), "STORE": str(tmp_path / "runs"), "PATH": f"{programs}:{os.environ['PATH']}",
        "NUMBER": "7", "CI_API_V4_URL": "api", "CI_PROJECT_ID": "1", "CI_MERGE_REQUEST_IID": "7", "STEP_TIME_TOKEN": "x",
    }  # fmt: skip

    def ran(script, folder):
        """Return what a script asks of the launcher and the forge, and how the commands of ours end."""
        monkeypatch.chdir(tmp_path / folder)
        subprocess.run(["bash", "-eo", "pipefail", "-c", script], env=os.environ | variables, check=True)
        lines = [shlex.split(line) for line in asked.read_text().splitlines()]
        asked.unlink()
        ours = [call(*words[1:]) for words in lines if words[0] == "nsyspipe"]
        return [words for words in lines if words[0] != "nsyspipe"], [done.exit_code for done in ours]

    on_main, proposed, comment = scripts(forge)
    captured = [["ddp.sh", "-n", "4", "-o", f"reports/{n}", "--program", "train.py"] for n in (1, 2, 3)]
    assert ran(on_main, "main") == (captured, [0, 0, 0])
    assert ran(on_main, "same") == (captured, [0, 0, 0])  # a second push takes the place of the first
    assert len([*(tmp_path / "runs/runs").iterdir()]) == 3
    assert ran(proposed, "main") == (captured, [0])
    assert ran(proposed, "slower") == (captured, [3])
    text = Path("diff.md").read_text()
    assert "Regression: median step time" in text
    assert text.count("the first of 3 captures") == 2
    ((_, *words),) = ran(comment, "slower")[0]
    posted = "body@diff.md" in words and words[-1].endswith("merge_requests/7/notes")
    assert posted or ("diff.md" in words and "7" in words)
