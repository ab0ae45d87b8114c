"""`nsyspipe dashboard`: one page over a store, written whole, and never over what is not its own."""

import re
import shutil

import pytest

import nsyspipe
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html.dashboard_page import DASHBOARD, STORE
from nsyspipe.report.html.page import run_id_of_page
from tests.cli.conftest import refused
from tests.cli.tools import nsyspipe_here
from tests.dashboard_store import add_run, file_of


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "nightly runs"
    for run_id in ("a", "b"):
        add_run(path, run_id)
    return path


@pytest.fixture
def dashboard(call):
    return lambda *arguments: call("dashboard", *arguments)


def is_dashboard(path):
    return identity_of_page(path, STORE) == DASHBOARD


def test_a_page_is_written_and_what_was_is_said_unless_quiet(dashboard, store, tmp_path, worded):
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    worded(done.stderr)
    quiet = dashboard(store, "-o", tmp_path / "page.html", "-q")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert is_dashboard(tmp_path / "page.html")
    assert "<title>nightly runs: " in (tmp_path / "page.html").read_text()
    printed = nsyspipe_here("dashboard", store, "-o", "-", cwd=tmp_path)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout == (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content", ["", "notes", '<meta name="nsyspipe-store" content="dashboard">']
)
def test_another_file_is_replaced_by_force_only(dashboard, store, tmp_path, content):
    path = tmp_path / "page.html"
    path.write_text(content)
    refused(dashboard(store, "-o", path), "--force")
    assert path.read_text() == content
    assert dashboard(store, "-o", path, "--force").exit_code == 0
    before = path.read_text(encoding="utf-8")
    assert is_dashboard(path)
    # A dashboard replaces the one before, whatever its runs.
    add_run(store, "c")
    assert dashboard(store, "-o", path).exit_code == 0
    assert path.read_text(encoding="utf-8") != before


def test_a_damaged_run_is_a_safe_warning_and_the_page_is_written(store, tmp_path, worded):
    add_run(store, "c\x1b[31m")
    for run_id in ("b", "c\x1b[31m"):
        file_of(store, "runs", run_id).write_bytes(b"")
    done = nsyspipe_here("dashboard", store, "-o", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    worded(done.stderr)
    assert "\x1b" not in done.stderr
    assert is_dashboard(tmp_path / "page.html")


@pytest.fixture
def saved(made, tmp_path):
    store = tmp_path / "saved"
    for name in ("slow", "fast"):
        shutil.copytree(made / name, store, dirs_exist_ok=True)
    return store, [nsyspipe.load(made / name).header.run_id for name in ("fast", "slow")]


def links(path):
    return re.findall(r'<a href="(\./[^"]*)"', path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_pages_of_runs_are_written_and_linked_also_without_being_asked_for(
    dashboard, saved, tmp_path
):
    store, (later, earlier) = saved
    site, pages = tmp_path / "site", tmp_path / "run pages"
    site.mkdir()
    assert dashboard(store, "-o", site / "index.html", "--pages", pages).exit_code == 0
    assert links(site / "index.html") == [
        f"./../run%20pages/{run_id}.html" for run_id in (later, earlier)
    ]
    for run_id in (later, earlier):
        assert run_id_of_page(pages / f"{run_id}.html") == run_id, run_id
    (pages / f"{earlier}.html").unlink()
    pages.rename(site / "pages")
    dashboard(store, "-o", site / "index.html")
    assert links(site / "index.html") == [f"./pages/{later}.html"]


@pytest.mark.slow
def test_a_run_whose_page_cannot_be_made_is_a_warning(saved, tmp_path, worded):
    store, (later, earlier) = saved
    file_of(store, "steps", earlier).resolve().write_bytes(b"")
    done = nsyspipe_here(
        "dashboard", store, "-o", tmp_path / "index.html", "--pages", tmp_path / "pages"
    )
    assert done.returncode == 0
    worded(done.stderr.replace(earlier, "EARLIER"))
    assert links(tmp_path / "index.html") == [f"./pages/{later}.html"]
