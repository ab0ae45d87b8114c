"""Reports that are cut off or corrupt: an answer or one line that names the report, never a traceback."""

from __future__ import annotations

import os
import random
import shutil

import pytest

import nsyspipe
from nsyspipe.errors import DamagedReportError, NsyspipeError
from nsyspipe.report.export import document, dumps
from tests.build.tools import edit, refuse
from tests.build.trace import KERNEL, steady_rank
from tests.cli.tools import assert_refused, nsyspipe_run


@pytest.fixture
def report(tmp_path):
    return steady_rank(0).write(tmp_path / "a_0.sqlite")


def is_answered(path):
    """Analyse a report that may be damaged: True for an answer, False for an error that names it."""
    said = None
    try:
        dumps(document(nsyspipe.load(path)))
    except NsyspipeError as error:
        said = str(error)
    assert said is None or str(path) in said
    return said is None


# --- cut off ------------------------------------------------------------------------------------


def positions(size):
    """Return where to cut: in the header, right behind it, at page borders, everywhere, near the end."""
    pages = (4096, 4097, 8192, size // 2 // 4096 * 4096, size - 4096)
    return sorted({*range(101), *pages, *range(size // 30, size, size // 30), *(size - left for left in (512, 2, 1))})


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


# --- corrupt ------------------------------------------------------------------------------------


def flipped(content, first, last, n_bits, rnd):
    """Return a report with so many bits flipped, anywhere between two places."""
    damaged = bytearray(content)
    for _ in range(n_bits):
        damaged[rnd.randrange(first, last)] ^= 1 << rnd.randrange(8)
    return damaged


@pytest.mark.slow
def test_flipped_bits_in_any_page_give_an_answer_or_an_error(report):
    content, rnd = report.read_bytes(), random.Random(1)
    outcomes = set()
    for n_bits in [1, 5, 40] * 10:
        report.write_bytes(flipped(content, 4096, len(content), n_bits, rnd))
        outcomes.add(is_answered(report))
    assert outcomes == {True, False}


def test_flipped_bits_in_the_page_that_names_the_tables_give_an_answer_or_an_error(report):
    """Where the page says what is in it, and where the names and first pages of tables are: it is full of them."""
    content, rnd = report.read_bytes(), random.Random(2)
    for n_bits in [1] * 12 + [5] * 4 + [40] * 2:
        report.write_bytes(flipped(content, 100, 4096, n_bits, rnd))
        is_answered(report)
    for _ in range(4):
        report.write_bytes(flipped(content, 100, 160, 1, rnd))
        is_answered(report)


@pytest.mark.parametrize("name", [b"TARGET_INFO_GPU", b"utcEpochNs", b"StringIds", b"NVTX_EVENTS"])
def test_a_name_of_a_table_or_column_that_is_no_text_gives_an_answer_or_an_error(report, name):
    content = report.read_bytes()
    assert name in content
    report.write_bytes(content.replace(name, name[:-2] + b"\xff\xfe"))
    is_answered(report)


def test_a_page_of_garbage_in_the_middle_of_a_real_report_gives_an_answer_or_an_error(real, tmp_path):
    path, rnd = tmp_path / "a.sqlite", random.Random(1)
    content = (real / "ddp-2gpu_0.sqlite").read_bytes()
    for _ in range(8):
        page = rnd.randrange(1, len(content) // 4096) * 4096
        path.write_bytes(content[:page] + rnd.randbytes(4096) + content[page + 4096 :])
        is_answered(path)


@pytest.mark.slow
def test_the_program_gives_no_traceback_on_a_corrupt_report(report):
    content = bytearray(report.read_bytes())
    content[4096:] = random.Random(0).randbytes(len(content) - 4096)
    report.write_bytes(content)
    assert_refused(nsyspipe_run("analyze", report))


@pytest.mark.parametrize("value", ["'text'", "x'00ff'", "9e99"])
@pytest.mark.parametrize("column", ["start", "globalPid", "shortName"])
def test_a_value_of_another_type_in_a_column_gives_an_answer_or_an_error(report, column, value):
    edit(report, f'UPDATE {KERNEL} SET "{column}" = {value} WHERE rowid = 5')
    is_answered(report)
