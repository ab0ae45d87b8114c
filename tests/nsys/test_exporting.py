"""Exports by a fake nsys: what is made, what is kept, and how each failure is told."""

import os
import re
import time
from pathlib import Path

import pytest

from nsyspipe.errors import (
    InputError,
    NsysFailedError,
    NsysNotFoundError,
    NsyspipeError,
    OptionError,
    OutputError,
)
from nsyspipe.nsys import files, programs as nsys
from nsyspipe.nsys.export import EXPORTED, UP_TO_DATE, all_exported, attempt_exports, target_of
from nsyspipe.nsys.files import claim, claimed_at, is_claimed, remove_abandoned, scratch_directory
from tests.build.fake_nsys import (
    COPY,
    NEW_OPTIONS,
    NEWER,
    calls,
    fake_nsys,
    fake_report,
    take_nsys_away,
)
from tests.build.programs import have_ended
from tests.build.tools import file_names
from tests.build.trace import steady_rank


@pytest.fixture
def report(tmp_path):
    return fake_report(tmp_path / "reports" / "run_0.nsys-rep")


@pytest.fixture
def tool(tmp_path):
    return lambda *arguments, **options: nsys.find(
        str(fake_nsys(tmp_path / "tool", *arguments, **options))
    )


def statuses(outcomes):
    return [one if isinstance(one, NsyspipeError) else one.status for one in outcomes]


def failure(report, tool, **options):
    """Return the error of one report; nothing may be left of its export."""
    before = file_names(report.parent)
    with pytest.raises(NsyspipeError) as caught:
        export_reports([report], nsys=tool, **options)
    assert file_names(report.parent) == before
    assert all(line.isprintable() for line in caught.value.lines())
    return caught.value


def export_reports(reports, **options):
    return all_exported(attempt_exports(reports, **options))


def test_the_export_lies_beside_its_report_or_in_a_directory_that_is_made(report, tool, tmp_path):
    for folder in (tmp_path / "a" / "b", None):
        (made,) = export_reports([report], nsys=tool(), directory=folder)
        assert (made.path, made.source, made.status) == (
            (folder or report.parent) / "run_0.sqlite",
            report,
            EXPORTED,
        ), folder
        assert made.path.read_bytes() == report.read_bytes(), folder
        assert file_names(report.parent) == [
            "run_0.nsys-rep",
            *([] if folder else ["run_0.sqlite"]),
        ], folder


def test_the_stem_stays_and_any_name_will_do(tmp_path, tool, monkeypatch):
    exports = [target_of(Path(name)).name for name in ("r.1.nsys-rep", "r.qdrep", "r_1.2")]
    assert exports == ["r.1.sqlite", "r.sqlite", "r_1.2.sqlite"]
    monkeypatch.chdir(tmp_path)
    stems = ("-x_0", "a b'\"$(x)", "ä\N{SNOWMAN}", "new\nline", os.fsdecode(b"\xff"))
    made = export_reports([fake_report(Path(f"{stem}.nsys-rep")) for stem in stems], nsys=tool())
    assert [one.path for one in made] == [Path(f"{stem}.sqlite") for stem in stems]
    assert all(one.path.read_bytes() == one.source.read_bytes() for one in made)


def test_only_options_that_this_nsys_knows_are_given(report, tool):
    known = ["--type=sqlite", "--lazy=true", "--force-overwrite=true", "--quiet=true"]
    for options, more in (({}, []), ({"options": NEW_OPTIONS}, ["--include-blobs=true"])):
        nsys = tool(**options)
        export_reports([report], nsys=nsys, force=True)
        words = [
            word
            for word in calls(nsys.path)[-1].split()
            if word.startswith("--") and "output" not in word
        ]
        assert sorted(words) == sorted([*known, *more]), options


def test_several_are_exported_at_once_and_answered_in_order(tmp_path, tool):
    # Each waits for the other's start: one after the other would never end.
    both = (
        f'touch "{tmp_path}/$$.here"; while [ $(ls "{tmp_path}" | grep -c here) -lt 2 ]; do sleep '
        f"0.01; done; {COPY}"
    )
    reports = [fake_report(tmp_path / f"run_{rank}.nsys-rep", rank) for rank in (1, 0)]
    seen = []
    made = export_reports(
        reports, nsys=tool(both), jobs=2, timeout_s=20, on_progress=lambda *at: seen.append(at)
    )
    assert ([one.source for one in made], seen[0]) == (reports, (0, 2))
    assert seen[-1] == (2, 2)


def test_a_link_in_the_targets_place_is_written_through(report, tool, tmp_path):
    real = tmp_path / "real.sqlite"
    real.touch()
    report.with_suffix(".sqlite").symlink_to(real)
    export_reports([report], nsys=tool())
    assert report.with_suffix(".sqlite").is_symlink()
    assert real.read_bytes() == report.read_bytes()


def test_a_current_export_needs_no_nsys(report, tool, monkeypatch, worded):
    old = tool()
    assert statuses(attempt_exports([report], nsys=old)) == [EXPORTED]
    assert statuses(attempt_exports([report], nsys=old, force=True)) == [EXPORTED]
    assert len(calls(old.path)) == 2
    os.utime(report, (time.time() + 10,) * 2)
    # Its time is ahead of the clock, which must not make it outdated for ever.
    assert statuses(attempt_exports([report], nsys=old)) == [EXPORTED]
    take_nsys_away(monkeypatch)
    assert statuses(attempt_exports([report])) == [UP_TO_DATE]
    with pytest.raises(NsysNotFoundError) as caught:
        attempt_exports([report], force=True)
    worded(caught.value.fix)


@pytest.mark.parametrize("left", [b"", b"\0" * 4096, b"SQLite format 3\0" + b"\1" * 200, None])
def test_what_a_killed_export_left_or_that_has_a_journal_is_replaced(report, tool, left):
    target = report.with_suffix(".sqlite")
    target.write_bytes(report.read_bytes() if left is None else left)
    report.with_name("run_0.sqlite-journal").write_bytes(b"x" if left is None else b"")
    assert statuses(attempt_exports([report], nsys=tool())) == [EXPORTED]
    assert target.read_bytes() == report.read_bytes()
    # SQLite would roll a journal back into the new file.
    assert file_names(report.parent) == ["run_0.nsys-rep", "run_0.sqlite"]


@pytest.mark.parametrize("part", [None, "TABLES", "TIMES"])
@pytest.mark.parametrize(
    "name", ["run_0.nsys-rep", "sub/run_0.nsys-rep", "C:\\x\\run_0.nsys-rep", ""]
)
def test_a_whole_export_of_a_report_with_that_name_is_kept(report, tool, name, part):
    facts = {f"EXPORT_PARAM_{part}_TO_EXPORT": "x"} if part else {}
    steady_rank(0).meta(EXPORT_PARAM_INPUT_FILE=name, **facts).write(report.with_suffix(".sqlite"))
    assert statuses(attempt_exports([report], nsys=tool())) == [EXPORTED if part else UP_TO_DATE]


@pytest.mark.parametrize("what", ["another capture", "something else", "a directory"])
def test_an_existing_file_is_not_replaced_without_force(report, tool, what, worded):
    target = report.with_suffix(".sqlite")
    if what == "a directory":
        target.mkdir()
        worded(failure(report, tool(), force=True).problem)
        return
    steady_rank(0).meta(EXPORT_PARAM_INPUT_FILE="other_0.nsys-rep").write(target)
    if what == "something else":
        target.write_text("my notes")
    before = target.read_bytes()
    error = failure(report, tool())
    assert isinstance(error, OutputError)
    worded(error.problem)
    assert target.read_bytes() == before
    if what == "another capture":  # it may be all that there is of it
        assert failure(report, tool(), force=True).problem == error.problem
        assert ("--force" in error.fix, target.read_bytes()) == (False, before)
        return
    assert "--force" in error.fix
    assert statuses(attempt_exports([report], nsys=tool(), force=True)) == [EXPORTED]


def test_two_reports_for_one_file_are_refused_before_any_work(tmp_path, tool, worded):
    one, other = (fake_report(tmp_path / name / "run_0.nsys-rep") for name in ("a", "b"))
    old = tool()
    with pytest.raises(OptionError, match=r"run_0\.sqlite"):
        attempt_exports([one, other], directory=tmp_path / "out", nsys=old)
    assert calls(old.path) == []
    assert not (tmp_path / "out").exists()
    with pytest.raises(OutputError) as caught:
        attempt_exports([one], directory=one / "x", nsys=old)
    worded(caught.value.lines())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_takes_no_files_is_told(report, tool):
    report.parent.chmod(0o500)
    error = failure(report, tool())
    report.parent.chmod(0o700)
    assert "Permission denied" in error.problem
    assert "-o DIR" in error.fix


FAILURES = {
    "a report of a newer nsys": f"cat >&2 <<'END'\n{NEWER}END\nexit 1",
    "which nsys does not say": "echo 'Exportation error: who knows' >&2; exit 1",
    "of an unknown version": "echo 'Report is newer than your version'; exit 1",
    "what drives a terminal": (
        r"printf '[1/1] [0%%      ] x\r[1/1] [==50%%  ] x\n\033[31mExportation error: "
        r"\007bad\033[0m thing\nTry --help\n' >&2"
        "; exit 7"
    ),
    "a flood": "yes 'error: flood' | head -c 3000000; exit 1",
    "half and dead": 'head -c 5000 "$report" > "$out"; touch "$out-journal"; kill -9 $$',
    "well without a file": "true",
    "well and cut short": 'head -c 5000 "$report" > "$out"',
    "well and something else": 'echo hi > "$out"',
    "a report that changes": f'{COPY}; touch -d 2001-01-01 "$report"',
    "a report of an older nsys": "exit 1",
    "a report of 0 bytes": "exit 9",  # nobody starts it
}
REPORTS = {
    "which nsys does not say": b"NVIDIA Tegra Profiler Report 2025@6@1@90-256134905000v0.\nxyz",
    "a report of an older nsys": b"NVIDIA Tegra Profiler Report 2024@1@3@90-256134905000v0.\nxyz",
    "a report of 0 bytes": b"",
}


@pytest.mark.slow
def test_failures_are_told_by_what_nsys_says_and_leaves(tmp_path, tool, pinned):
    told = ""
    for name, script in FAILURES.items():
        report = fake_report(tmp_path / "it's here" / "run_0.nsys-rep")
        report.write_bytes(REPORTS.get(name, report.read_bytes()))
        said = "\n".join(failure(report, tool(script)).lines())
        told += f"== {name}\n{said}\n".replace(str(tmp_path), "")
    told = re.sub(r"at least \d+", "at least N", told)  # as large as this SQLite makes it
    pinned("launchers/export_failures.txt", told)


@pytest.mark.slow
def test_a_hanging_nsys_is_ended_with_its_children(report, tool, tmp_path, worded):
    error = failure(
        report,
        tool(f'sleep 60 & echo $! > "{tmp_path}/child"; printf x > "$out"; wait'),
        timeout_s=1,
    )
    worded(error.problem)
    assert "--timeout 60" in error.fix
    assert have_ended((tmp_path / "child").read_text())


def test_one_failure_keeps_no_other_from_its_export_and_all_are_counted(tmp_path, tool, worded):
    reports = [fake_report(tmp_path / f"run_{rank}.nsys-rep", rank) for rank in range(3)]
    picky = tool(f'case "$report" in *run_1*) exit 1;; esac; {COPY}')
    first, second, third = statuses(attempt_exports(reports, nsys=picky))
    assert (first, third) == (EXPORTED, EXPORTED)
    assert isinstance(second, NsysFailedError)
    assert [path.name for path in sorted(tmp_path.glob("*.sqlite"))] == [
        "run_0.sqlite",
        "run_2.sqlite",
    ]
    with pytest.raises(NsysFailedError) as caught:
        export_reports(reports, nsys=tool("exit 1"), force=True)
    # The one that is told, 2 more, of 3.
    worded(caught.value.problem)
    for name in ("gone.nsys-rep", "."):  # what is no file
        with pytest.raises(InputError):
            export_reports([tmp_path / name], nsys=picky)


def test_a_file_gets_the_mode_of_any_new_file_and_the_mask_stays(tmp_path):
    path = tmp_path / "a"
    path.touch(mode=0o600)
    before = os.umask(0o027)
    try:
        files.make_readable(path)
    finally:
        assert os.umask(before) == 0o027
    assert path.stat().st_mode & 0o777 == 0o640


def test_only_the_logs_of_the_database_itself_go(tmp_path):
    for name in [
        "a.sqlite",
        "a.sqlite-wal",
        "a.sqlite-shm",
        "a.sqlite-journal",
        "b.sqlite-wal",
        "a-wal",
    ]:
        (tmp_path / name).touch()
    (tmp_path / "c.sqlite-wal").symlink_to("gone")
    assert [one.name for one in files.side_files(tmp_path / "c.sqlite")] == ["c.sqlite-wal"]
    files.remove_side_files(tmp_path / "a.sqlite")
    files.remove_side_files(tmp_path / "c.sqlite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-wal", "a.sqlite", "b.sqlite-wal"]


def test_a_claim_holds_until_it_is_closed_and_renews_the_time(tmp_path):
    # A directory that nobody ever claimed counts as used.
    assert (is_claimed(tmp_path), claimed_at(tmp_path), claim(tmp_path / "gone")) == (True, 0, None)
    first, second = claim(tmp_path), claim(tmp_path)
    os.close(first)
    assert is_claimed(tmp_path)
    os.close(second)
    assert not is_claimed(tmp_path)
    os.utime(tmp_path / "lock", (1, 1))
    assert claimed_at(tmp_path) == 1
    os.close(claim(tmp_path))
    assert claimed_at(tmp_path) > 1


def test_a_scratch_directory_is_private_and_removed_when_old(
    tmp_path,
):
    left = tmp_path / ".nsyspipe-12345678.unfinished"
    left.mkdir(mode=0o700)
    os.close(claim(left))
    with scratch_directory(tmp_path) as used:
        assert used.stat().st_mode & 0o777 == 0o700
        os.utime(used, (time.time() - 3600,) * 2)
        remove_abandoned(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted(
            [left, used]
        )  # the owner of the young one may be about to lock it
        (used / "half").write_text("x")
    os.utime(left, (time.time() - 3600,) * 2)
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []
