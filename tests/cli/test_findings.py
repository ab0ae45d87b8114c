"""What to change first, and the link: on the terminal, in the document, and the options that they take."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest

from tests.build.trace import TraceBuilder
from tests.cli.sick_run import LINK, LOG, PIDS, write_sick
from tests.cli.tools import assert_refused, nsyspipe_here, nsyspipe_run

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x08"
# By their bounds, as nothing is expected of a launch-bound run; comm-bound after its causes.
ALL = ["launch-bound", "compress-gradients", "single-bucket", "slow-link", "comm-bound", "input-bound", "grad-copy"]
SCHEMA_KEYS = "schema_version tool_version run summary ranks steps stragglers findings problems"


@pytest.fixture
def sick(tmp_path):
    return write_sick(tmp_path)


@pytest.fixture
def section(invoke, monkeypatch):
    """Return a function that runs the program and returns the lines of the section about findings."""

    def run(*arguments, columns=100):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = invoke(*arguments)
        assert (done.exit_code, done.stderr) == (0, ""), done
        assert max(map(len, done.stdout.splitlines())) <= columns
        _, found, tail = done.stdout.partition("What to change first")
        return (found + tail).partition("\n\n")[0].splitlines()

    return run


def ids(lines):
    return [name for line in lines for word in line.split() if (name := word.rstrip(":")) in ALL]


# --- how many -------------------------------------------------------------------------------------


def test_five_findings_are_shown_a_line_each(sick, section):
    title, *lines = section(sick, *LINK)
    assert title == "What to change first (most it gives back per step; 2 more, and why: --findings all)"
    assert ids(lines) == ALL[:5]
    assert len(lines) == 5
    assert lines[0].split()[:5] == ["<=", "<0.001", "ms", "38.5", "%"]
    assert [re.findall(r"[\d.]+ %", line) for line in lines] == [
        [f"{share} %"] for share in (38.5, 30.0, 30.0, 29.8, 30.0)
    ]


@pytest.mark.parametrize(("n", "shown"), [("2", 2), ("99", 7), (" 3 ", 3)])
def test_as_many_are_shown_as_asked_for(sick, section, n, shown):
    title, *lines = section(sick, *LINK, "--findings", n)
    assert ids(lines) == ALL[:shown]
    assert len(lines) == shown
    assert (f"{7 - shown} more" in title) == (shown < 7)
    assert "--findings all" in title


def test_all_are_shown_with_the_whole_advice(sick, section):
    lines = section(sick, *LINK, "--findings", "ALL")
    assert lines[0] == "What to change first (most it gives back per step)"
    assert ids(lines) == ALL
    text = " ".join(line.strip() for line in lines)
    assert "The gradients go in one all-reduce after the backward pass" in text
    assert "Lower DistributedDataParallel(bucket_cap_mb=...), 25 is the default" in text


def test_none_are_shown_but_all_are_in_the_document(sick, section, invoke):
    assert section(sick, *LINK, "--findings", "0") == []
    found = json.loads(invoke(sick, *LINK, "--findings", "0", "--json", "-").stdout)
    assert [row["id"] for row in found["findings"]] == ALL


def test_a_run_without_findings_has_no_such_section(tmp_path, section):
    builder = TraceBuilder()
    for at in range(0, 4000, 1000):
        builder.range(at, at + 900, f"step {at}").kernel(at + 100, at + 1100, launch=at + 80)
    assert section(builder.write(tmp_path / "a.sqlite")) == []


@pytest.mark.parametrize("value", ["-1", "", "all of them", "1" * 19, "\u0663"])
def test_what_is_no_number_is_refused_before_anything_is_read(tmp_path, value):
    done = nsyspipe_here("analyze", tmp_path / "no.sqlite", f"--findings={value}")
    assert_refused(done)
    assert done.stderr.startswith("error: --findings")


# --- how wide -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "n"), [(80, "5"), (79, "all"), (40, "all")])
def test_no_word_of_it_is_lost_on_any_terminal(sick, section, columns, n):
    wide = section(sick, *LINK, "--findings", n, columns=200)
    lines = section(sick, *LINK, "--findings", n, columns=columns)
    assert max(map(len, lines)) <= min(columns, 100)
    assert sorted("".join(lines).replace(" ", "")) == sorted("".join(wide).replace(" ", ""))
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)


@pytest.mark.slow
def test_several_processes_replay_as_one_does(real):
    done = nsyspipe_run("analyze", real / "ddp-4gpu-shm_*.sqlite", "-j", 2, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"<= 34\.7 %  ~ 30\.6 %  single-bucket", done.stdout)


# --- the document ---------------------------------------------------------------------------------


def test_the_document_has_every_key_of_the_contract(sick, invoke):
    found = json.loads(invoke(sick, *LINK, "--json", "-").stdout)
    assert set(found) >= set(SCHEMA_KEYS.split())
    for table, names in KEYS.items():
        (row, *_) = found[table] if isinstance(found[table], list) else [found[table]]
        assert set(row) >= set(names.split()), table
    assert found["summary"]["by_rank"]["wait_share"] == {"lowest": [0, 0], "highest": [0, 0]}
    assert found["summary"]["message_bytes_per_step"] is None
    assert [row["rank"] for row in found["stragglers"]] == [0, 1]


KEYS = {
    "run": "run_id label n_ranks world_size gpu_names hosts nsys_versions export_schema_versions captured_at_utc reports",
    "summary": "n_steps n_summary_steps skipped_steps step_time_ns throughput_steps_per_s comm_share exposed_comm_share "
    "overlap_ratio backward_overlap_ratio idle_share compute_share exposed_memory_share dtod_ns_per_step "
    "dtod_bytes_per_step collectives_per_step wait_share message_bytes_per_step algbw_bytes_per_s busbw_bytes_per_s "
    "by_rank",
    "ranks": "rank local_rank report pid device_id gpu_name host rank_source n_kernels n_comm n_dtod clock_offset_ns "
    "clock_error_ns",
    "steps": "start_ns end_ns wait_ns is_complete in_summary wall_ns compute_ns comm_ns exposed_comm_ns exposed_memory_ns "
    "idle_ns dtod_ns dtod_bytes n_dtod exposed_dtod_ns overlap_compute_ns overlap_backward_ns n_collectives",
    "stragglers": "rank n_arrived_last wait_caused_ns lateness_ns wait_ns",
    "findings": "id severity title advice saving_ns_per_step evidence",
    "problems": "code severity report rank message fix",
}  # fmt: skip


def test_evidence_is_an_object_and_savings_are_numbers(sick, invoke):
    rows = json.loads(invoke(sick, *LINK, "--json", "-").stdout)["findings"]
    assert [(row["id"], row["severity"], row["saving_ns_per_step"]) for row in rows] == [
        ("launch-bound", "high", 385),
        ("compress-gradients", "high", 300),
        ("single-bucket", "high", 300),
        ("slow-link", "high", pytest.approx(300 - 800 / 450)),
        ("comm-bound", "high", 300),
        ("input-bound", "high", 100),
        ("grad-copy", "low", 15),
    ]
    assert all(type(row["evidence"]) is dict for row in rows)
    assert rows[3]["evidence"]["link_kind"] == "shm"


# --- names from traces ----------------------------------------------------------------------------


@pytest.mark.slow
def test_control_characters_of_calls_and_transports_never_reach_the_terminal(tmp_path):
    builder = TraceBuilder(pid=PIDS[0]).env(RANK=0, WORLD_SIZE=1).session(10**18).gpu()
    for at in range(0, 4000, 1000):
        builder.range(at, at + 900, f"step {at}").kernel(at + 100, at + 300, launch=at + 80)
        builder.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=at + 290, end=at + 1070, correlationId=builder.launch(None),
            globalTid=builder.global_tid(), nameId=builder.string(f"cudaMalloc{EVIL}"),
        )  # fmt: skip
    builder.write(tmp_path / "a.sqlite")
    log = tmp_path / "nccl.log"
    log.write_text(LOG.read_text().replace("via SHM/direct/direct", f"via NEW{EVIL}/thing"))
    for findings in ("5", "all"):
        done = nsyspipe_here("analyze", tmp_path, "--findings", findings, "--nccl-log", log)
        assert "sync-bound" in done.stdout
        assert "link: NEW" in done.stdout
        shown = {char for char in done.stdout + done.stderr if char != "\n"}
        assert not [char for char in shown if unicodedata.category(char) in ("Cc", "Cf")]


def test_phases_are_shown_with_all_findings_only(sick, invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert "phase  " not in invoke(sick).stdout
    rows = invoke(sick, "--findings", "all").stdout.partition("phase  ")[2].splitlines()[1:]
    assert [row.split()[0] for row in rows[: rows.index("")]] == ["backward"]
