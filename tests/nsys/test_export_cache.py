"""Reports that are read as they are: exported into the cache, named as theirs, found there again."""

import functools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.errors import (
    NotAReportError,
    NsysFailedError,
    OptionError,
    OutputError,
    ReportNotFoundError,
)
from nsyspipe.nsys import find_reports as export_cache
from nsyspipe.nsys.files import claim
from nsyspipe.nsys.find_reports import (
    cache_directory,
    display_names,
)
from tests.build.fake_nsys import COPY, NEW_OPTIONS, calls, fake_nsys, fake_report, take_nsys_away
from tests.build.programs import put


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("NSYSPIPE_CACHE_DIR", str(folder))
    monkeypatch.setattr("nsyspipe.nsys.find_reports._CLAIMS", {})
    return folder


@pytest.fixture
def tool(tmp_path, monkeypatch):
    folder = tmp_path / "tool"
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    fake_nsys(folder)
    return functools.partial(fake_nsys, folder)


def exported_reports(arguments):
    return [report.path for report in export_cache.exported_reports(arguments)]


@pytest.fixture
def reports(tmp_path):
    folder = tmp_path / "reports"
    for rank in range(2):
        fake_report(folder / f"run_{rank}.nsys-rep", rank)
    return folder


def exports(cache):
    return sorted(cache.glob("exports/*/*.sqlite"))


def let_go():
    for lock in export_cache._CLAIMS.values():
        os.close(lock)
    export_cache._CLAIMS.clear()


def test_a_run_of_raw_reports_is_that_of_their_exports(reports, tool, tmp_path):
    beside = tmp_path / "beside"
    beside.mkdir()
    for path in reports.iterdir():
        shutil.copy(path, beside / f"{path.stem}.sqlite")
    before = {path: path.stat().st_mtime_ns for path in reports.iterdir()}
    raw, exported = nsyspipe.load(reports), nsyspipe.load(beside)
    assert raw.ranks.to_pylist() == exported.ranks.to_pylist()
    assert raw.summary().to_pylist() == exported.summary().to_pylist()
    assert raw.header.reports == ["run_0.sqlite", "run_1.sqlite"]
    assert raw.header.run_id == exported.header.run_id
    # Nothing is written beside the reports, and the second time the exports are there already.
    assert exported_reports([reports]) == exported_reports([reports])
    assert {path: path.stat().st_mtime_ns for path in reports.iterdir()} == before
    assert len(calls(Path(shutil.which("nsys")))) == 2


def test_sources_are_as_the_user_wrote_them(reports, tool, tmp_path, monkeypatch):
    monkeypatch.chdir(reports)
    names = ["run_1.nsys-rep", "run_0.nsys-rep"]
    found = export_cache.exported_reports(names)
    assert [report.path.name for report in found] == ["run_1.sqlite", "run_0.sqlite"]
    assert [report.source for report in found] == [reports / name for name in names]
    assert [*map(str, found)] == names
    link = reports / "other_7.nsys-rep"
    link.symlink_to(reports / "run_0.nsys-rep")
    assert [path.name for path in exported_reports([link])] == ["other_7.sqlite"]
    paths = [fake_report(tmp_path / name / "run.nsys-rep") for name in ("a", "b")]
    assert display_names(export_cache.exported_reports(paths)) == ["a/run.sqlite", "b/run.sqlite"]
    link.unlink()
    # Exports and raw reports may be mixed, and one named twice stays twice.
    shutil.copy(reports / "run_1.nsys-rep", reports / "run_1.sqlite")
    named = [reports, reports / "run_0.nsys-rep"]
    first, second, third = export_cache.exported_reports(named)
    assert (first, first.path.name) == (third, "run_0.sqlite")
    assert first.source == reports / "run_0.nsys-rep"
    assert second.path == reports / "run_1.sqlite"


def test_changed_reports_and_damaged_exports_are_exported_again(reports, tool, cache):
    path = reports / "run_0.nsys-rep"
    (first,) = exported_reports([path])
    fake_report(path, rank=1)
    os.utime(path, (1e9, 1e9))  # older than its export
    (second,) = exported_reports([path])
    tool(options=NEW_OPTIONS)
    (third,) = exported_reports([path])
    assert exports(cache) == sorted([first, second, third])
    third.write_bytes(third.read_bytes()[:5000])
    assert exported_reports([path]) == [third]
    assert second.read_bytes() == third.read_bytes() == path.read_bytes()


def test_only_its_user_can_read_or_write_the_cache(reports, tool, cache, worded):
    folder = cache / "exports"
    for mode in (0o700, 0o755):
        exported_reports([reports])
        assert [one.stat().st_mode & 0o777 for one in (cache, folder)] == [mode] * 2, mode
        assert all(one.stat().st_mode & 0o777 == 0o700 for one in folder.iterdir()), mode
        let_go()
        shutil.rmtree(cache)
        for one in (cache, folder):  # the user's own stays as it is
            one.mkdir(mode=0o755)
    folder.chmod(0o775)
    with pytest.raises(OutputError) as caught:
        exported_reports([reports])
    assert f"chmod go-w {folder}" in caught.value.fix
    worded(caught.value.lines())
    assert list(folder.iterdir()) == []


def test_links_in_the_cache_are_not_followed(reports, tool, cache, tmp_path, worded):
    (export, *_) = exported_reports([reports])
    lock, outside = export.parent / "lock", tmp_path / "outside"
    lock.unlink()
    lock.symlink_to(outside)
    exported_reports([reports])
    assert not outside.exists()
    export.parent.rename(outside)
    export.parent.symlink_to(outside)
    with pytest.raises(OutputError) as caught:
        exported_reports([reports])
    worded(caught.value.problem)


def test_where_the_cache_is(monkeypatch):
    places = {"NSYSPIPE_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/home/me"}
    for name, text in places.items():
        monkeypatch.setenv(name, text)
    for name, place in zip(places, ("/c", "/x/nsyspipe", "/home/me/.cache/nsyspipe"), strict=True):
        assert cache_directory() == Path(place), name
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "value", "error", "fix"),
    [
        ("DIR", "/dev/null/x", OutputError, "NSYSPIPE_CACHE_DIR=DIR"),
        *(
            ("BYTES", given, OptionError, "NSYSPIPE_CACHE_BYTES=20")
            for given in ("20GB", "-1", "1e9")
        ),
    ],
)
def test_a_cache_that_cannot_be_used_is_told(
    reports, tool, monkeypatch, name, value, error, fix, worded
):
    monkeypatch.setenv(f"NSYSPIPE_CACHE_{name}", value)
    with pytest.raises(error) as caught:
        exported_reports([reports])
    assert fix in caught.value.fix
    worded(caught.value.lines())


def test_what_was_used_longest_ago_makes_room(reports, tool, cache, monkeypatch, tmp_path):
    old = exported_reports([reports / "run_0.nsys-rep"])[0]
    older = exported_reports([reports / "run_1.nsys-rep"])[0]
    let_go()
    for export, when in ((old, 2e9), (older, 1e9)):
        os.utime(export.with_name("lock"), (when, when))
    monkeypatch.setenv("NSYSPIPE_CACHE_BYTES", str(2 * old.stat().st_size + 100))
    new = exported_reports([fake_report(tmp_path / "more" / "run_2.nsys-rep", 2)])[0]
    assert exports(cache) == sorted([old, new])


@pytest.mark.slow
def test_what_is_read_now_never_makes_room(reports, tool, cache, monkeypatch):
    monkeypatch.setenv("NSYSPIPE_CACHE_BYTES", "0")
    found = exported_reports([reports])
    assert all(path.exists() for path in found)
    # Nor does what another process reads.
    script = (
        "import sys; from nsyspipe.nsys.find_reports import exported_reports\n"
        "exported_reports(sys.argv[1:]); print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(reports / "run_0.nsys-rep")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"ready\n"
        let_go()
        exported_reports([reports / "run_1.nsys-rep"])
        assert exports(cache) == sorted(found)
        other.communicate()
    exported_reports([reports / "run_1.nsys-rep"])
    assert exports(cache) == [found[1]]


@pytest.mark.parametrize(
    "name", ["my-thesis/run.sqlite", f"{'0' * 32}-2025.5.1-01234567/chapter1.tex"]
)
def test_a_user_s_directories_make_no_room(reports, tool, cache, monkeypatch, name):
    mine = cache / "exports" / name
    put(mine.parent, mine.name, "")
    mine.parent.chmod(0o700)
    mine.with_name("lock").touch()
    monkeypatch.setenv("NSYSPIPE_CACHE_BYTES", "0")
    exported_reports([reports])
    assert mine.exists()


@pytest.mark.slow
def test_two_at_once_both_get_whole_exports(reports, tool):
    tool(f"sleep 0.3; {COPY}")
    script = (
        "import sys, nsyspipe as n; run = n.load(sys.argv[1]); print(run.steps().num_rows, "
        "run.problems.num_rows)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", script, str(reports)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [one.communicate(timeout=60)[0] for one in both]
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"8 ")  # two ranks with four steps


def test_a_failure_leaves_nothing_in_the_cache(reports, tool, cache, worded):
    tool('echo half > "$out"; exit 1')
    with pytest.raises(NsysFailedError) as caught:
        exported_reports([reports])
    # The one that is told, 1 more, of 2.
    worded(caught.value.problem)
    assert [*exports(cache), *cache.glob("exports/*/.nsyspipe-*")] == []


def test_without_nsys_the_cache_is_used_or_the_message_has_the_command(
    reports, tool, monkeypatch, worded
):
    (export,) = exported_reports([reports / "run_1.nsys-rep"])
    take_nsys_away(monkeypatch)
    assert exported_reports([reports / "run_1.nsys-rep"]) == [export]
    with pytest.raises(NotAReportError) as caught:
        exported_reports([reports])
    worded(caught.value.problem)
    assert f"nsyspipe convert {reports}/run_0.nsys-rep" in caught.value.fix


@pytest.mark.parametrize(
    ("ranks", "named"),
    [((0,), "run_0.sqlite"), ((0, 1), "'run_*.sqlite'"), ((10, 11), "'run_*.sqlite'")],
)
def test_without_nsys_exports_beside_the_reports_are_pointed_out(
    tmp_path, monkeypatch, ranks, named, worded
):
    take_nsys_away(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for rank in ranks:
        fake_report(tmp_path / f"run_{rank}.nsys-rep")
        fake_report(tmp_path / f"run_{rank}.sqlite")
    with pytest.raises(NotAReportError) as caught:
        exported_reports([f"run_{rank}.nsys-rep" for rank in ranks])
    assert caught.value.fix == f"nsyspipe analyze {named}"
    worded(caught.value.lines())
    assert f"run_{ranks[0]}.sqlite" in caught.value.found


def test_existing_exports_touch_no_cache(steady, cache, tool):
    assert exported_reports([steady]) == [steady / "steady_0.sqlite", steady / "steady_1.sqlite"]
    assert not cache.exists()
    with pytest.raises(ReportNotFoundError):
        exported_reports([steady / "gone_0.nsys-rep"])


def test_what_a_killed_export_left_is_removed_the_next_time(reports, tool, cache):
    (export,) = exported_reports([reports / "run_0.nsys-rep"])
    elsewhere = reports.parent / ".nsyspipe-elsewher.unfinished"
    long_ago = time.time() - 3600
    names = ("0left000", "0held000", "followed")
    left, held, followed = (export.parent / f".nsyspipe-{name}.unfinished" for name in names)
    for folder in (left, elsewhere, held):
        folder.mkdir(mode=0o700)
        (folder / "half.sqlite").touch()
        lock = claim(folder)
        if folder != held:
            os.close(lock)
        os.utime(folder, (long_ago, long_ago))
    followed.symlink_to(elsewhere)
    (export.parent.parent / "link").symlink_to(elsewhere.parent)
    exported_reports([reports / "run_1.nsys-rep"])
    os.close(lock)
    # Though it was left with another report.
    assert [(one / "half.sqlite").exists() for one in (left, held, elsewhere)] == [
        False,
        True,
        True,
    ]
