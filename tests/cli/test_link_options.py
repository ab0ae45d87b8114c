"""`--nccl-log` and `--topology`: as a user types them, and the line about the link."""

from __future__ import annotations

import json

import pytest

from tests.cli.sick_run import LINK, LOG, TOPOLOGY, write_sick
from tests.cli.tools import assert_refused, nsyspipe_here
from tests.conftest import REAL

LOGS = REAL / "logs"
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
        (LINK[:2], f"{SHM}; all 4 edges; {REACHED} of 63.02 GB/s nominal"),
        (LINK[2:], f"{UNSAID}; the GPUs are connected by NV18; rank 0 to 1; {REACHED} of 450.0 GB/s nominal"),
        (LINK, f"{SHM}, although the GPUs are connected by NV18; all 4 edges; {REACHED} of 63.02 GB/s nominal"),
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
    although = f"{SHM}, although the GPUs are connected by NV18"
    assert line == f"{although}; all 4 edges; nominal 63.02 GB/s"


@pytest.mark.parametrize(("n_gpus", "edges", "reached"), [(2, "both", "333.8")])
def test_what_nvlink_reached_is_said_although_no_finding_needs_it(real, invoke, n_gpus, edges, reached):
    files = ("--nccl-log", LOGS / f"ddp-{n_gpus}gpu.nccl.log", "--topology", LOGS / f"topo-{n_gpus}gpu.txt")
    line = link_line(invoke(real / f"ddp-{n_gpus}gpu_*.sqlite", *files))
    assert line == (
        f"link: NVLink (P2P/CUMEM over NV18); {edges} edges; bus bandwidth about {reached} GB/s of 450.0 GB/s nominal"
    )


def ring_log(n_ranks, transports):
    """Return a log of one communicator whose ring has these transports, in turn."""
    said = []
    for rank in range(n_ranks):
        place = f"ncclCommInitRank comm 0x1 rank {rank} nranks {n_ranks} cudaDev {rank} nvmlDev {rank} busId {rank}0 commId 0x7"
        after, transport = (rank + 1) % n_ranks, transports[rank % len(transports)]
        said += [
            f"host:{3000 + rank}:{3000 + rank} [{rank}] NCCL INFO {text}"
            for text in (
                f"{place} - Init START",
                f"Channel 00/0 : {rank}[{rank}] -> {after}[{after}] [send] via {transport}",
                f"{place} - Init COMPLETE",
            )
        ]
    return "\n".join(said) + "\n"


@pytest.mark.parametrize("transport", ["NET/AWS Libfabric/15/GDRDMA", "NEW/" + 300 * "x"])
def test_the_line_takes_two_lines_of_a_terminal(tmp_path, transport):
    folder = write_sick(tmp_path)
    log = folder / "nccl.log"
    log.write_text(ring_log(16, [transport, "SHM", "SHM", "SHM"]).replace(":3000:3000", ":3175:3175"))
    done = nsyspipe_here("analyze", folder, "--nccl-log", log, "--topology", TOPOLOGY, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    head = done.stdout.partition("\n\n")[0].partition("\nlink: ")[2].splitlines()
    assert len(head) <= 2
    assert max(map(len, head)) <= 100
    assert " of 16 edges, rank " in " ".join(head)


# --- files of another run -------------------------------------------------------------------------


def problems(done):
    return {row["code"]: row for row in json.loads(done.stdout)["problems"]}


@pytest.mark.slow
def test_a_log_of_another_run_is_told_and_not_used(real, invoke):
    reports, log = real / "ddp-4gpu-shm_*.sqlite", LOGS / "ddp-2gpu.nccl.log"
    done = invoke(reports, "--nccl-log", log, "--json", "-")
    found = problems(done)["log-of-another-run"]
    assert (found["severity"], "its size (4)" in found["message"]) == ("warning", True)
    assert "NCCL_DEBUG=INFO" in found["fix"]
    assert json.loads(done.stdout)["nccl"] is None
    assert json.loads(done.stdout)["links"] == []
    assert "\nlink:" not in invoke(reports, "--nccl-log", log).stdout


def test_a_log_of_another_run_does_not_make_the_world_larger(real, invoke):
    done = invoke(real / "baseline.sqlite", "--nccl-log", LOGS / "ddp-4gpu.nccl.log", "--json", "-")
    found = json.loads(done.stdout)
    assert found["run"]["world_size"] is None
    assert "log-of-another-run" in problems(done)
    assert "ranks-missing" not in problems(done)


def test_a_log_that_names_no_communicator_is_said_to_say_nothing_of_links(real, invoke, tmp_path):
    log = tmp_path / "old.log"
    log.write_text("host:3175:3175 [0] {0} INFO {0} version 2.10.3+cuda11.3\n".format("NCCL"))  # this file is no log
    done = invoke(real / "ddp-4gpu-shm_*.sqlite", "--nccl-log", log, "--json", "-")
    assert json.loads(done.stdout)["nccl"]["version"] == "2.10.3+cuda11.3"
    assert "INFO" in problems(done)["log-without-communicators"]["fix"]
    assert "log-of-another-run" not in problems(done)


def test_a_topology_of_another_machine_is_told(real, invoke):
    options = (*LINK[:2], "--topology", LOGS / "topo-2gpu.txt")
    done = invoke(real / "ddp-4gpu-shm_*.sqlite", *options, "--json", "-")
    found = problems(done)["topology-of-another-machine"]
    assert (found["severity"], "no GPU 2, 3" in found["message"]) == ("warning", True)
    paths = {(row["from_rank"], row["to_rank"]): row["path"] for row in json.loads(done.stdout)["links"]}
    # The ring is 0 -> 1 -> 2 -> 3 -> 0; GPU 2 and 3 have no row.
    assert paths == {(0, 1): "NV18", (1, 2): None, (2, 3): None, (3, 0): None}


@pytest.mark.parametrize("options", [LINK, ()])
def test_files_of_this_run_are_not_accused(real, invoke, options):
    found = problems(invoke(real / "ddp-4gpu-shm_*.sqlite", *options, "--json", "-"))
    assert not {"log-of-another-run", "log-without-communicators", "topology-of-another-machine"} & set(found)


# --- what the log says besides --------------------------------------------------------------------


def test_version_and_settings_are_in_the_document(real, invoke):
    done = invoke(real / "ddp-4gpu-shm_*.sqlite", *LINK, "--json", "-")
    found = json.loads(done.stdout)
    assert found["nccl"] == {
        "version": "2.28.9+cuda13.0",
        "settings": {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"},
        "nvls": False,
    }
    (slow,) = [row for row in found["findings"] if row["id"] == "slow-link"]
    assert slow["action"] == "unset NCCL_P2P_DISABLE: data goes over host memory"
    assert slow["evidence"]["nccl_settings"] == {"NCCL_P2P_DISABLE": "1"}


def test_without_a_log_there_is_nothing_of_nccl(sick, invoke):
    assert json.loads(invoke(sick, *LINK[2:], "--json", "-").stdout)["nccl"] is None


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
    assert_refused(nsyspipe_here("analyze", sick, *(str(one).format(sick) for one in options)))


def test_a_wrong_log_is_told_before_the_reports_are_read(tmp_path):
    for rank in range(2):
        (tmp_path / f"a_{rank}.sqlite").write_text("no database\n")
    done = nsyspipe_here("analyze", tmp_path, "--nccl-log", __file__)
    assert_refused(done)
    assert __file__ in done.stderr


def test_a_text_among_the_reports_is_no_log_unless_one_was_asked_for(sick):
    assert_refused(nsyspipe_here("analyze", sick, LOG))
