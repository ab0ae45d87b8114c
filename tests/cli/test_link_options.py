"""`--nccl-log` and `--topology`: as a user types them, and the line about the link."""

from __future__ import annotations

import pytest

from tests.cli.sick_run import LINK, LOG, TOPOLOGY, write_sick
from tests.cli.tools import assert_refused, nsyspipe_run

SHM = "link: SHM through host memory"
UNSAID = "link: no NCCL log says what NCCL uses"
# 8 copies of 100 bytes per 300 ns, and with two ranks busbw is algbw.
REACHED = "bus bandwidth about 2.667 GB/s"


@pytest.fixture
def sick(tmp_path):
    return write_sick(tmp_path)


@pytest.fixture
def logs(tmp_path):
    """Write the log as NCCL_DEBUG_FILE does, one file per process; return the folder."""
    folder = tmp_path / "logs"
    folder.mkdir()
    by_process = {}
    for line in LOG.read_text().splitlines(keepends=True):
        if line.startswith("node0:"):
            by_process.setdefault(line.split(":")[1], []).append(line)
    assert len(by_process) == 4
    for process, lines in by_process.items():
        (folder / f"nccl_{process}.log").write_text("".join(lines))
    return folder


def link_line(done):
    """Return what is said of the link, in one line; None if nothing is."""
    assert (done.exit_code, done.stderr) == (0, ""), done
    head = done.stdout.partition("\n\n")[0]
    _, found, said = head.partition("\nlink: ")
    return found.strip() + " " + " ".join(said.split()) if found else None


# --- what is said ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], None),
        (LINK[:2], f"{SHM}; {REACHED} of 63.02 GB/s nominal"),
        (
            LINK[2:],
            f"{UNSAID}; the GPUs are connected by NV18; {REACHED} of 450.0 GB/s nominal",
        ),
        (
            LINK,
            f"{SHM}, although the GPUs are connected by NV18; {REACHED} of 63.02 GB/s nominal",
        ),
    ],
    ids=["neither", "log", "topology", "both"],
)
def test_the_link_is_said_as_far_as_it_is_known(sick, invoke, options, said):
    assert link_line(invoke(sick, *options)) == said


def test_the_link_of_a_real_run_is_said_with_the_bandwidth_it_reached(real, invoke):
    line = link_line(invoke(real / "ddp-4gpu-shm_*.sqlite", *LINK))
    assert line.endswith("; bus bandwidth about 25.41 GB/s of 63.02 GB/s nominal")


def test_without_a_figure_of_the_run_only_the_promise_is_said(real, invoke):
    line = link_line(invoke(real / "ddp-4gpu-shm-bucket100_*.sqlite", *LINK))
    assert line == f"{SHM}, although the GPUs are connected by NV18; nominal 63.02 GB/s"


# --- how it may be typed --------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["repeated", "quoted glob", "shell's words", "before", "between"])
def test_logs_may_be_repeated_or_a_quoted_glob_or_words_of_the_shell(sick, invoke, logs, way):
    files, exports = sorted(logs.iterdir()), sorted(sick.glob("*.sqlite"))
    arguments = {
        "repeated": [sick, *(word for file in files for word in ("--nccl-log", file))],
        "quoted glob": [sick, "--nccl-log", logs / "*.log"],
        "shell's words": [*exports, "--nccl-log", *files],
        "before": ["--nccl-log", *files, sick],
        "between": [exports[0], "--nccl-log", *files, exports[1]],
    }[way]
    found = link_line(invoke(*arguments, "--topology", TOPOLOGY))
    assert found == link_line(invoke(sick, *LINK))


def test_a_log_given_twice_counts_once(sick, invoke):
    assert link_line(invoke(sick, *LINK, "--nccl-log", LOG)) == link_line(invoke(sick, *LINK))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("--nccl-log", "{}/none.log"),
        ("--nccl-log", "{}/none_*.log"),
        ("--nccl-log", ""),
        ("--nccl-log", "{}"),
        ("--nccl-log", "{}/plain.txt"),
        ("--nccl-log", "{}/sick_0.sqlite"),
        ("--nccl-log", LOG, "{}/plain.txt"),
        ("--nccl-log", LOG, "--topology", LOG),
        ("--topology", "{}/none.txt"),
        ("--topology", "{}"),
        ("--topology", "{}/plain.txt"),
    ],
    ids=[
        "no file", "no match", "nothing", "a folder", "not NCCL's", "a report", "the second is not NCCL's",
        "not a matrix", "no topology", "a folder as topology", "a text as topology",
    ],
)  # fmt: skip
def test_files_that_are_none_are_refused(sick, options):
    (sick / "plain.txt").write_text("GPU0 is fine\n")
    assert_refused(nsyspipe_run("analyze", sick, *(str(one).format(sick) for one in options)))


def test_a_wrong_log_is_told_before_the_reports_are_read(tmp_path):
    for rank in range(2):
        (tmp_path / f"a_{rank}.sqlite").write_text("no database\n")
    done = nsyspipe_run("analyze", tmp_path, "--nccl-log", __file__)
    assert_refused(done)
    assert __file__ in done.stderr


def test_a_text_among_the_reports_is_no_log_unless_one_was_asked_for(sick):
    assert_refused(nsyspipe_run("analyze", sick, LOG))
