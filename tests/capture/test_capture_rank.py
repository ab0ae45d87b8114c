"""One rank, watched: its program's status, its pid, its report, and what it says when there is none."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nsyspipe.capture.rank import NOT_STARTED, counts_for_host, main, with_status
from nsyspipe.capture.status import RankRecord, read_programs, read_records, write_record
from tests.build.programs import program


@pytest.fixture
def status_dir(tmp_path, monkeypatch):
    folder = tmp_path / "status"
    folder.mkdir()
    monkeypatch.setenv("NSYSPIPE_STATUS_DIR", str(folder))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.chdir(tmp_path)
    return folder


def nsys_words(folder, script):  # an nsys of three words
    return [
        str(program(folder, "other-name", f"shift 2; {script}")),
        "profile",
        "--output=run_%q{RANK}",
    ]


def rank(*command, nsys=(), options=()):
    words = ["--exit-timeout=5", f"--nsys-words={len(nsys)}", *options, "--", *nsys, *command]
    started = [sys.executable, "-m", "nsyspipe.capture.rank", *words]
    return subprocess.run(started, capture_output=True, text=True, timeout=20, check=False)


def run(*command, nsys=(), options=()):
    """Run one rank, in this process where no nsys makes it the parent of what is left."""
    words = ["--exit-timeout=5", *options, "--", *command]
    return rank(*command, nsys=nsys, options=options).returncode if nsys else main(words)


def the_record(folder):
    (record,) = read_records(folder)
    return record


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), (None, 127)]
)
def test_the_status_and_the_pid_of_the_program_are_passed_on(status_dir, tmp_path, script, status):
    assert (
        run(*(("sh", "-c", f"echo $$ > pid; {script}") if script else ("/no/such/program",)))
        == status
    )
    record = the_record(status_dir)
    assert (record.rank, record.local_rank, record.status, record.problem) == (3, 1, status, None)
    assert record.ended_at is not None
    assert script is None or record.pid == int((tmp_path / "pid").read_text())


def test_the_status_is_the_programs_and_the_report_has_its_rank(status_dir, tmp_path):
    nsys = nsys_words(tmp_path, 'echo "$TMPDIR" > where; "$@"; touch run_3.nsys-rep; exit 5')
    assert run("sh", "-c", "exit 7", nsys=nsys) == 7
    record = the_record(status_dir)
    assert (record.report, record.nsys_group is None) == ("run_3", False)
    # nsys works in a directory of this rank's own.
    assert Path((tmp_path / "where").read_text().strip()).parent == status_dir


def test_an_old_report_is_not_this_ones(status_dir, tmp_path):
    (tmp_path / "run_3.nsys-rep").touch()
    assert run("true", nsys=nsys_words(tmp_path, '"$@"; exit 5')) == 0
    assert (the_record(status_dir).report, the_record(status_dir).problem) == (
        None,
        "nothing was captured",
    )


def test_what_nsys_says_is_kept_from_the_terminal_and_told_when_it_fails(
    status_dir, tmp_path, worded
):
    done = rank(
        "true", nsys=nsys_words(tmp_path, "printf 'error: bad \\033[1moption\\nusage\\n'; exit 2")
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    problem = the_record(status_dir).problem
    assert problem.startswith(f"{NOT_STARTED}: error: bad ")
    assert "\033" not in problem
    worded(problem)


@pytest.mark.parametrize("has_nsys", [False, True])
def test_the_program_has_our_streams_and_holds_the_jobs_directory(status_dir, tmp_path, has_nsys):
    nsys = nsys_words(tmp_path, 'echo noise; echo noise >&2; exec "$@"') if has_nsys else ()
    done = rank("sh", "-c", "echo err >&2; exec ls -l /proc/self/fd", nsys=nsys)
    assert f"{status_dir}/lock\n" in done.stdout
    assert ("noise" in done.stdout, done.stderr) == (False, "err\n")


@pytest.mark.parametrize("number", [9, 10, 25])
def test_many_open_files_do_not_matter(tmp_path, number):
    words = with_status(["echo", "out"], tmp_path / "ended", stdout=number, stderr=number)
    opening = f'exec {number}>out; exec "$@"'
    subprocess.run(["bash", "-c", opening, "bash", *words], cwd=tmp_path, timeout=10, check=True)
    assert (tmp_path / "out").read_text() == "out\n"


def test_a_rank_that_was_not_chosen_runs_without_nsys(status_dir, tmp_path):
    assert (
        run(
            "sh",
            "-c",
            "exit 4",
            nsys=nsys_words(tmp_path, 'touch started; "$@"'),
            options=["--ranks=0-2,9"],
        )
        == 4
    )
    assert not (tmp_path / "started").exists()
    record = the_record(status_dir)
    assert (record.is_captured, record.report, record.problem, record.nsys_group) == (
        False,
        None,
        None,
        None,
    )


COUNTING = "--gpu-metrics-devices=all"
COUNTING_RANKS = [
    # Two hosts of four ranks.
    (None, {0, 4}),
    (frozenset({1, 3, 4, 6}), {1, 4}),
    (frozenset({7}), {7}),
]


@pytest.mark.parametrize(("captured", "counting"), COUNTING_RANKS)
def test_the_first_captured_rank_of_each_host_counts(captured, counting):
    ranks = range(8) if captured is None else captured
    found = {rank for rank in ranks if counts_for_host(rank, rank % 4, captured)}
    assert found == counting


@pytest.mark.parametrize(("local_rank", "is_counting"), [("0", True), ("1", False)])
def test_the_rank_that_counts_passes_the_option_on_to_nsys(
    status_dir, tmp_path, monkeypatch, local_rank, is_counting
):
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    to_program = 'while case "$1" in */sh|*/env) false;; esac; do shift; done; "$@"'
    script = f'echo "$@" > ../words; touch run_3.nsys-rep; {to_program}'
    folder = tmp_path / "bin"
    nsys = [str(program(folder, "other-name", script)), "profile", "--output=run_%q{RANK}"]
    monkeypatch.chdir(folder)
    options = [f"--counting-option={COUNTING}"]
    assert run("sh", "-c", "exit 7", nsys=nsys, options=options) == 7
    words = (tmp_path / "words").read_text().split()
    expected = ["profile", COUNTING] if is_counting else ["profile", "--output=run_%q{RANK}"]
    assert words[:2] == expected


def test_without_a_launcher_it_works_too_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("NSYSPIPE_STATUS_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run("sh", "-c", "exit 3") == 3
    assert list(tmp_path.iterdir()) == []


def test_words_reach_the_program_unchanged(tmp_path):
    odd = ["a b", "", "it's", "$HOME", "*", "-n", "--"]
    show = [sys.executable, "-S", "-c", "import sys; print(ascii(sys.argv[1:]))", *odd]
    done = subprocess.run(
        with_status(show, tmp_path / "it's $x"), stdout=subprocess.PIPE, timeout=10, check=True
    )
    assert done.stdout.decode() == ascii(odd) + "\n"
    assert (tmp_path / "it's $x").read_text() == "0\n"


def test_records_are_read_in_order_and_only_the_program_ends_its_loop(tmp_path):
    there = [RankRecord(rank=10, local_rank=2), RankRecord(rank=9, local_rank=1, status=0)]
    for record in there:
        write_record(tmp_path, record)
    (tmp_path / "rank_1.4242").write_text("{")  # being written
    assert read_records(tmp_path) == [there[1], there[0]]
    assert not read_programs(tmp_path)
    for text, ended in (
        ('{"loop_ended": true}', True),
        ('{"loop_ended": 1}', False),
        ("[]", False),
        ("{", False),
    ):
        (tmp_path / "ranges_0.json").write_text(text)
        assert [one.loop_ended for one in read_programs(tmp_path).values() if one.loop_ended] == [
            True
        ] * ended, text
