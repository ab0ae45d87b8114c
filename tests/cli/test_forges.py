"""The examples for forges: what they run is run here, but for the capture and the forge, which programs of that name stand for."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.build.plain_steps import steps, write_run

ROOT = Path(__file__).parents[2]
FORGES = ("github", "gitlab")
LAUNCHED = (
    'n=${4%/*} n=${n##*/}; mkdir -p "${4%/*}"; for one in made/"$n"/*; do cp "$one" '
    '"$4_${one##*_}"; done'
)


def scripts(forge):
    """Return what a job runs on the main branch, what for a proposal, and how it comments on that; as bash runs it there."""
    if forge == "github":
        (job,) = yaml.safe_load((ROOT / "docs/examples/github-actions.yml").read_text())[
            "jobs"
        ].values()
        capture, save, compare, comment = (step for step in job["steps"] if "run" in step)
        assert "push" in save["if"]
        assert all("pull_request" in step["if"] for step in (compare, comment))
        assert "${{" not in "".join(
            step.get("run", "") for step in job["steps"]
        )  # no text of a stranger in a script
        return capture["run"] + save["run"], capture["run"] + compare["run"], comment["run"]
    (job,) = yaml.safe_load((ROOT / "docs/examples/gitlab-ci.yml").read_text()).values()
    both = "\n".join(job["script"])
    return both, f"CI_PIPELINE_SOURCE=merge_request_event\n{both}", "\n".join(job["after_script"])


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("jq"), reason="finds comments")
@pytest.mark.parametrize("forge", FORGES)
def test_the_gate_refuses_a_slower_proposal_and_passes_an_equal_one(
    forge, call, tmp_path, monkeypatch
):
    programs, asked, comments = tmp_path / "bin", tmp_path / "asked", tmp_path / "comments"
    for place, (name, compute) in enumerate({"main": 100, "slower": 120, "same": 100}.items()):
        for n in (1, 2, 3):  # captures differ a little
            rows = [[(part[0] + n * 10**5, *part[1:]) for part in steps(compute)]] * 2
            write_run(
                tmp_path / name / "made" / str(n), rows, start=10**18 + (4 * place + n) * 10**12
            )
    # They say what they were asked for; the launcher names reports as it does (tests/launchers),
    # nsyspipe answers in this process.
    said = f'#!/bin/bash\nprintf "%s\\n" "$(basename "$0") ${{*@Q}}" >> {asked}\n'
    of_forge = (
        f'for word; do case $word in .*|*per_page*) jq -r "${{word#*per_page=100}}" {comments};; '
        "esac; done"
    )
    answers = {
        "bin/nsyspipe": "",
        "bin/gh": of_forge,
        "bin/curl": of_forge,
        "nsyspipe/launchers/ddp.sh": LAUNCHED,
    }
    for place, answer in answers.items():
        program = tmp_path / place
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(said + answer)
        program.chmod(0o755)
    variables = {
        "HOME": str(tmp_path),
        "STORE": str(tmp_path / "runs"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NUMBER": "7",
        "CI_API_V4_URL": "api",
        "CI_PROJECT_ID": "1",
        "CI_MERGE_REQUEST_IID": "7",
        "STEP_TIME_TOKEN": "x",
        "GITHUB_REPOSITORY": "o/r",
    }

    def ran(script, folder):
        monkeypatch.chdir(tmp_path / folder)
        subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script], env=os.environ | variables, check=True
        )
        lines = [shlex.split(line) for line in asked.read_text().splitlines()]
        asked.unlink()
        ours = [call(*words[1:]) for words in lines if words[0] == "nsyspipe"]
        return [words for words in lines if words[0] != "nsyspipe"], [
            done.exit_code for done in ours
        ]

    on_main, proposed, comment = scripts(forge)
    captured = [
        ["ddp.sh", "-n", "4", "-o", f"reports/{n}/run", "--program", "train.py"] for n in (1, 2, 3)
    ]
    assert ran(proposed, "same") == (captured, [])  # before main has a baseline
    assert ran(on_main, "main") == (captured, [0, 0, 0])
    assert ran(on_main, "same") == (
        captured,
        [0, 0, 0],
    )  # a second push takes the place of the first
    assert len([*(tmp_path / "runs/runs").iterdir()]) == 3
    assert ran(proposed, "main") == (captured, [0])
    assert ran(proposed, "slower") == (captured, [3])
    text = Path("diff.md").read_text()
    assert text.startswith("<!-- nsyspipe:diff -->")
    others = [(40, "someone", "mine"), (42, "github-actions[bot]", "of another job")]
    for own, place in (([], "7"), ([(41, "github-actions[bot]", text)], "/41")):
        rows = [
            {"id": number, "user": {"login": login}, "body": body}
            for number, login, body in [*others, *own]
        ]
        comments.write_text(json.dumps(rows))
        words = ran(comment, "slower")[0][-1]
        assert {"diff.md", "body@diff.md", "body=@diff.md"}.intersection(words), own
        assert any(
            word.endswith(place) or (word.endswith("/notes") and not own) for word in words
        ), own
        assert bool({"PATCH", "PUT"}.intersection(words)) == bool(own), own
