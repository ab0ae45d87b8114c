"""`nsyspipe dashboard`: one page over a store, written whole, and never over what is not its own."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

import nsyspipe
from nsyspipe.cli.app import app
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html.dashboard_page import DASHBOARD, STORE
from nsyspipe.report.html.page import run_id_of_page
from nsyspipe.store.write import save
from tests.cli.tools import assert_refused, nsyspipe_here, terminal_run
from tests.dashboard_store import add_run, file_of


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "nightly runs"
    for run_id in ("a", "b"):
        add_run(path, run_id)
    return path


def dashboard(*arguments):
    return CliRunner().invoke(app, ["dashboard", *map(str, arguments)])


def is_dashboard(path):
    return identity_of_page(path, STORE) == DASHBOARD


def test_a_page_is_written_and_what_was_is_said_unless_quiet(store, tmp_path):
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"2 runs written to {tmp_path}/page.html\n"
    quiet = dashboard(store, "-o", tmp_path / "page.html", "-q")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert is_dashboard(tmp_path / "page.html")
    assert "<title>nightly runs: nsyspipe dashboard</title>" in (tmp_path / "page.html").read_text()


def test_a_page_can_be_printed(store, tmp_path):
    dashboard(store, "-o", tmp_path / "page.html")
    done = nsyspipe_here("dashboard", store, "-o", "-", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (tmp_path / "page.html").read_text(encoding="utf-8")


def test_without_a_file_it_says_how_to_name_one(store):
    done = nsyspipe_here("dashboard", store)
    assert_refused(done)
    assert "fix: -o 'nightly runs.html'" in done.stderr


def test_a_dashboard_replaces_the_one_before_whatever_its_runs(store, tmp_path):
    path = tmp_path / "page.html"
    dashboard(store, "-o", path)
    before = path.read_text(encoding="utf-8")
    add_run(store, "c")
    assert dashboard(store, "-o", path).exit_code == 0
    assert path.read_text(encoding="utf-8") != before


@pytest.mark.parametrize("content", ["", "notes", '<meta name="nsyspipe-store" content="dashboard">'])
def test_another_file_is_replaced_by_force_only(store, tmp_path, content):
    path = tmp_path / "page.html"
    path.write_text(content)
    done = dashboard(store, "-o", path)
    assert isinstance(done.exception, nsyspipe.NsyspipeError)
    assert "--force" in done.exception.fix
    assert path.read_text() == content
    assert dashboard(store, "-o", path, "--force").exit_code == 0
    assert is_dashboard(path)


@pytest.mark.parametrize("name", ["no/such/folder/page.html", ".", "x" * 300])
def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path, name):
    # The store is not there either: what is wrong with the file is said first.
    done = dashboard(tmp_path / "store", "-o", tmp_path / name, "--force")
    assert isinstance(done.exception, nsyspipe.NsyspipeError)
    assert name[-9:] in done.exception.subject or name == "."


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_no_store_is_refused_with_the_command_that_makes_one(tmp_path, kind):
    store = tmp_path / "store"
    if kind == "empty":
        store.mkdir()
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "page.html")
    assert_refused(done)
    assert f"--out {store}" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_damaged_run_is_a_warning_and_the_page_is_there(store, tmp_path):
    file_of(store, "runs", "b").write_bytes(b"")
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(r"warning: b: runs cannot be read .*\n1 run written to .*\n", done.stderr)
    assert is_dashboard(tmp_path / "page.html")


def test_names_cannot_drive_the_terminal(store, tmp_path):
    add_run(store, "c\x1b[31m")
    file_of(store, "runs", "c\x1b[31m").write_bytes(b"")
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "page.html")
    assert "\x1b" not in done.stderr
    assert done.returncode == 0


@pytest.fixture
def saved(steady, tmp_path):
    store = tmp_path / "saved"
    for run_id in ("first", "second"):
        save(nsyspipe.load(steady, run_id=run_id), store)
    return store


def links(path):
    return re.findall(r'<a href="(\./[^"]*)"', path.read_text(encoding="utf-8"))


def test_pages_of_runs_are_written_and_linked(saved, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    assert dashboard(saved, "-o", site / "index.html", "--pages", tmp_path / "run pages").exit_code == 0
    assert links(site / "index.html") == ["./../run%20pages/second.html", "./../run%20pages/first.html"]
    for run_id in ("first", "second"):
        assert run_id_of_page(tmp_path / "run pages" / f"{run_id}.html") == run_id


def test_pages_that_are_there_are_linked_without_being_asked_for(saved, tmp_path):
    dashboard(saved, "-o", tmp_path / "index.html", "--pages", tmp_path / "pages")
    (tmp_path / "pages" / "first.html").unlink()
    dashboard(saved, "-o", tmp_path / "index.html")
    assert links(tmp_path / "index.html") == ["./pages/second.html"]


@pytest.mark.slow
def test_a_run_whose_page_cannot_be_made_is_a_warning(saved, tmp_path):
    file_of(saved, "steps", "second").resolve().write_bytes(b"")
    done = nsyspipe_here("dashboard", saved, "-o", tmp_path / "index.html", "--pages", tmp_path / "pages")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: second: page ")
    assert links(tmp_path / "index.html") == ["./pages/first.html"]


@pytest.mark.slow
def test_progress_is_for_terminals(store, tmp_path):
    code, shown = terminal_run("dashboard", store, "-o", tmp_path / "page.html")
    assert code == 0
    assert "reading runs" in shown
    code, shown = terminal_run("dashboard", store, "-o", tmp_path / "page.html", "--no-progress")
    assert code == 0
    assert shown.startswith("2 runs written to ")
