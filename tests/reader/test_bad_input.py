"""Input that cannot be used, is cut off or corrupt: an answer or one clear line that names it, never a traceback."""

import os
import random
import re
import shutil
import subprocess

import pytest

import nsyspipe
from nsyspipe.errors import (
    DamagedReportError,
    InputError,
    NotAReportError,
    OptionError,
    ReportNotFoundError,
)
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from tests.build.fake_nsys import take_nsys_away
from tests.build.tools import STEADY, edit, figures, refuse
from tests.build.trace import steady_rank
from tests.cli.tools import assert_refused, environment, nsyspipe_here


@pytest.fixture
def report(tmp_path):
    return steady_rank(0).write(tmp_path / "a_0.sqlite")


NO_DATABASES = {
    "empty": b"",
    "text": b"rank,step\n0,1\n",
    "half a header": b"SQLite format 3",
    "a header alone": b"SQLite format 3\0",
    "zeros": b"\0" * 4096,
}


@pytest.mark.parametrize("content", NO_DATABASES.values(), ids=NO_DATABASES)
def test_a_file_that_is_no_database_is_refused_by_name(tmp_path, content, worded):
    path = tmp_path / "a_0.sqlite"
    path.write_bytes(content)
    error = refuse((NotAReportError, DamagedReportError), path)
    assert str(path) in error.lines()[0]
    worded(error.lines())


def test_a_missing_report_among_good_ones_is_the_one_that_is_named(report, tmp_path):
    error = refuse(ReportNotFoundError, [report, tmp_path / "no.sqlite"])
    assert str(tmp_path / "no.sqlite") in error.lines()[0]
    assert str(report) not in error.lines()[0]


@pytest.mark.parametrize("rows", [20_000_000_000, 2**62])
def test_a_report_that_needs_too_much_memory_is_refused_before_reading(
    report, monkeypatch, rows, worded
):
    edit(report, f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET rowid = {rows} WHERE rowid = 1")
    # Row numbers may have holes: no row takes less than 16 bytes of the file, and the process takes
    # 100 MiB without any.
    needed = 100 * 2**20 + 70 * (report.stat().st_size // 16)
    monkeypatch.setattr("nsyspipe.reader.metadata.machine_memory", lambda: needed)
    nsyspipe.load(report, jobs=1).steps()
    monkeypatch.setattr("nsyspipe.reader.metadata.machine_memory", lambda: needed - 1)
    monkeypatch.setattr("nsyspipe.reader.metadata.read_facts", None)  # nothing is read
    error = refuse(InputError, report)
    assert error.subject == str(report)
    # 100 MiB and some: so much is needed, and all but a byte is there.
    assert error.problem.count("0.1 GB") == 2
    worded(error.lines())


def test_a_database_that_nsys_did_not_write_is_refused_with_what_it_holds(tmp_path, worded):
    path = edit(tmp_path / "a.sqlite", "CREATE TABLE customers (id)", "CREATE TABLE orders (id)")
    error = refuse(NotAReportError, path)
    worded(error.lines(), "two tables")
    assert "customers, orders" in error.found
    emptied = refuse(NotAReportError, edit(path, "DROP TABLE customers", "DROP TABLE orders"))
    worded(emptied.found, "no table")


@pytest.mark.parametrize("name", ["train.py", "mine.capture.json", "mine.sqlite", "a.nsys-rep"])
def test_a_file_that_is_no_report_is_refused_with_what_to_pass_instead(
    tmp_path, monkeypatch, name, worded
):
    take_nsys_away(monkeypatch)
    (tmp_path / name).write_text("{}")
    error = refuse(NotAReportError, tmp_path / name)
    assert error.subject == str(tmp_path / name)
    worded(error.fix)


def test_a_raw_report_beside_its_export_is_passed_over(report, tmp_path, monkeypatch):
    take_nsys_away(monkeypatch)
    (tmp_path / "a_0.nsys-rep").write_bytes(b"NSYS")
    assert figures(nsyspipe.load(tmp_path)) == STEADY
    (tmp_path / "a_1.nsys-rep").write_bytes(b"NSYS")
    assert "a_1.nsys-rep" in str(refuse(NotAReportError, tmp_path))


def test_a_directory_means_its_reports_and_an_empty_one_is_refused(report, tmp_path):
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "notes.txt").write_text("no report")
    for reports in (folder, [report, folder]):
        assert str(folder) in str(refuse(ReportNotFoundError, reports)), reports
    steady_rank(1).write(folder / "a_1.sqlite")
    assert nsyspipe.load([report, folder]).ranks["rank"].to_pylist() == [0, 1]
    (tmp_path / "x.sqlite").mkdir()
    assert "x.sqlite" in str(refuse(NotAReportError, tmp_path))


def test_a_glob_that_matches_nothing_and_what_can_be_no_file_name_are_refused(report, tmp_path):
    for pattern in ("b_*.sqlite", "[b-z]*", "no/where/*.sqlite", "**/b.sqlite", "a_?"):
        assert pattern in str(refuse(ReportNotFoundError, str(tmp_path / pattern))), pattern
    refuse(nsyspipe.NsyspipeError, tmp_path / ("x" * 300 + ".sqlite"))
    refuse(nsyspipe.NsyspipeError, "a\0b.sqlite")


@pytest.mark.slow
def test_a_pipe_is_refused_and_not_waited_for(forks, tmp_path):
    os.mkfifo(tmp_path / "a.sqlite")
    try:
        done = forks.run("analyze", tmp_path / "a.sqlite", env=environment(), timeout=30)
    except subprocess.TimeoutExpired:
        pytest.fail("the program waits for somebody to write into the pipe")
    assert_refused(done)


@pytest.mark.slow
def test_the_program_says_it_in_one_line_and_exits_with_2(forks, report, tmp_path):
    (tmp_path / "empty.sqlite").touch()
    (tmp_path / "noise.sqlite").write_bytes(
        report.read_bytes()[:4096] + random.Random(0).randbytes(40_000)
    )
    options = ["--step", "nothing"], ["--backward", "("]
    for words in (
        ["no.sqlite"],
        ["empty.sqlite"],
        ["noise.sqlite"],
        *(["a_0.sqlite", *one] for one in options),
    ):
        assert_refused(nsyspipe_here("analyze", *words, cwd=tmp_path))
    os.truncate(steady_rank(1).write(tmp_path / "a_1.sqlite"), 5000)  # in a worker
    assert_refused(forks.run("analyze", "a_*", "-j", 2, cwd=tmp_path, env=environment()))


def test_each_kind_of_bad_pattern_is_refused(report, worded):
    for pattern in ("[a", "*", "a{2,1}", "(?P<x", "\\", "a{99999999999999999999}"):
        with pytest.raises((re.error, OverflowError)) as why:
            re.compile(pattern)
        # Each Python has its own words for why.
        said = "\n".join(refuse(OptionError, report, step=pattern).lines())
        worded(said.replace(str(why.value), "WHY"), pattern)
    # re.compile warns of a nested set; on stderr that would be a line that is not ours.
    assert nsyspipe.load(report, step="^[[s]tep").steps().num_rows == 4


def test_a_step_pattern_that_matches_nothing_lists_the_families(report):
    error = refuse(OptionError, report, step="nothing")
    assert "--step 'nothing'" in error.lines()[0]
    assert "'step #' (4)" in error.found
    assert "'backward' (4)" in error.found


def is_answered(path):
    try:
        dumps(document(nsyspipe.load(path)))
    except nsyspipe.NsyspipeError as error:
        assert str(path) in error.lines()[0]  # noqa: PT017 - or there is an answer
        return False
    return True


def positions(size):
    pages = (4096, 4097, 8192, size // 2 // 4096 * 4096, size - 4096)
    return sorted(
        {
            *range(101),
            *pages,
            *range(size // 30, size, size // 30),
            *(size - left for left in (512, 2, 1)),
        }
    )


def test_a_real_report_that_is_cut_off_anywhere_is_refused(real, tmp_path):
    path = tmp_path / "a.sqlite"
    shutil.copy(real / "ddp-1gpu_0.sqlite", path)
    assert nsyspipe.load(path).steps().num_rows
    for size in reversed(positions(path.stat().st_size)):
        os.truncate(path, size)
        assert not is_answered(path), size


@pytest.mark.parametrize("pages", [1, 2, 5, 11])
def test_a_cut_is_noticed_where_the_header_does_not_say_how_long_the_file_is(report, pages):
    # Before SQLite 3.7 the page count in the header was 0: the size alone is to be believed.
    content = bytearray(report.read_bytes())
    content[28:32] = bytes(4)
    assert len(content) > pages * 4096
    report.write_bytes(content[: pages * 4096])
    refuse(DamagedReportError, report)


def flipped(content, first, last, n_bits, rnd):
    damaged = bytearray(content)
    for _ in range(n_bits):
        damaged[rnd.randrange(first, last)] ^= 1 << rnd.randrange(8)
    return damaged


@pytest.mark.slow
def test_flipped_bits_in_any_page_give_an_answer_or_an_error(report):
    content, rnd = report.read_bytes(), random.Random(1)
    damaged = (flipped(content, 4096, len(content), n_bits, rnd) for n_bits in [1, 5, 40] * 10)
    assert {report.write_bytes(one) and is_answered(report) for one in damaged} == {True, False}


@pytest.mark.slow
def test_flipped_bits_in_the_schema_page_give_an_answer_or_an_error(report):
    """Where the page says what is in it, and where the names and first pages of tables are: it is full of them."""
    content, rnd = report.read_bytes(), random.Random(2)
    for n_bits, last in [(1, 4096)] * 12 + [(5, 4096)] * 4 + [(40, 4096)] * 2 + [(1, 160)] * 4:
        report.write_bytes(flipped(content, 100, last, n_bits, rnd))
        is_answered(report)


@pytest.mark.parametrize("name", [b"TARGET_INFO_GPU", b"utcEpochNs", b"StringIds", b"NVTX_EVENTS"])
def test_a_name_of_a_table_that_is_no_text_gives_an_answer_or_an_error(report, name):
    content = report.read_bytes()
    assert name in content
    report.write_bytes(content.replace(name, name[:-2] + b"\xff\xfe"))
    is_answered(report)


def test_a_page_of_garbage_in_a_real_report_gives_an_answer_or_an_error(real, tmp_path):
    path, rnd = tmp_path / "a.sqlite", random.Random(1)
    content = (real / "ddp-2gpu_0.sqlite").read_bytes()
    for _ in range(8):
        page = rnd.randrange(1, len(content) // 4096) * 4096
        path.write_bytes(content[:page] + rnd.randbytes(4096) + content[page + 4096 :])
        is_answered(path)
