"""`nsyspipe doctor` takes the reading options of `analyze`, and uses those that say something about reports."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from nsyspipe.cli.app import app
from tests.cli.sick_run import LINK, LOG, write_sick
from tests.cli.tools import assert_refused, nsyspipe_here

SHM = "SHM through host memory, although the GPUs are connected by NV18"


@pytest.fixture
def sick(tmp_path):
    return write_sick(tmp_path)


def capabilities(*arguments):
    """Return status and text by name, from the document."""
    done = CliRunner().invoke(app, ["doctor", *map(str, arguments), "--json", "-"], catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, ""), done.stderr
    return {one["name"]: (one["status"], one["found"]) for one in json.loads(done.stdout)["capabilities"]}


# --- what is taken --------------------------------------------------------------------------------


def every_option(folder):
    names = ",".join(f"sick_{rank}.sqlite={rank}" for rank in range(2))
    return [
        "--step", "^step", "--backward", "^back", "--forward", "x", "--optimizer", "x", "--data", "x",
        "--comm-kernel", "^my", "--skip-first", "1", "--rank-map", names, "--label", "a", "--run-id", "b",
        *LINK, "--findings", "all", "-j", "1",
    ]  # fmt: skip


def test_one_set_of_options_works_with_both_commands(sick):
    options = every_option(sick)
    assert nsyspipe_here("analyze", sick, *options).returncode == 0
    found = capabilities(sick, *options)
    assert found["steps"] == ("yes", "8 match --step '^step'")
    assert found["phases"] == ("yes", "8 backward")
    assert found["compute_and_comm"] == ("yes", "16 kernels, 8 of them communication")
    assert found["ranks"] == ("yes", "0-1 from --rank-map")
    assert found["link"] == ("yes", SHM)


def test_without_reports_they_are_ignored(sick, tmp_path):
    plain = json.loads(nsyspipe_here("doctor", "--json", "-").stdout)
    options = [*every_option(sick), "--step", "(", "--topology", tmp_path / "none", "--findings", "x"]
    done = nsyspipe_here("doctor", *options, LOG, "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [one["name"] for one in found["checks"]] == [one["name"] for one in plain["checks"]]


# --- what is said ---------------------------------------------------------------------------------


def test_a_step_pattern_without_a_match_is_told_with_what_there_is(sick):
    done = nsyspipe_here("doctor", sick, "--step", "^Iter", COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "no steps 0 match --step '^Iter', 8 step #," in text
    assert "leave --step out, or let it match one of the ranges that there are" in text


@pytest.mark.slow
def test_processes_change_nothing(real):
    reports = real / "ddp-4gpu-shm_*.sqlite"
    plain, two = (nsyspipe_here("doctor", reports, "-j", n, "--json", "-") for n in (1, 2))
    assert (two.returncode, two.stderr) == (0, "")
    assert two.stdout == plain.stdout


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("--rank-map", "sick_0.sqlite=0"),
        ("--rank-map", "sick_0.sqlite=0,sick_1.sqlite=0"),
        ("--rank-map", "no such file"),
        ("--skip-first", "x"),
        ("--findings", "x"),
        ("--nccl-log", "{}/none_*.log"),
        ("--nccl-log", "{}/plain.txt"),
        ("--nccl-log", LOG, "{}/plain.txt"),
        ("--topology", "{}/none.txt"),
        ("--topology", LOG),
        ("--topology", ""),
    ],
)
def test_options_that_do_not_fit_are_refused(sick, options):
    (sick / "plain.txt").write_text("GPU0 is fine\n")
    assert_refused(nsyspipe_here("doctor", sick, *(str(one).format(sick) for one in options)))


def test_a_log_is_never_written_over(sick, tmp_path):
    log = tmp_path / "nccl.log"
    log.write_bytes(LOG.read_bytes())
    done = nsyspipe_here("doctor", sick, "--nccl-log", log, "--json", log, "--force")
    assert_refused(done)
    assert log.read_bytes() == LOG.read_bytes()
