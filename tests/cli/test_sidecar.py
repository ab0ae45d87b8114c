"""A capture's sidecar as a user meets it: nothing to type, one line in the summary, its problems among the others."""

import json
import re

import pytest

from nsyspipe.capture.sidecar import (
    TOPOLOGY_SUFFIX,
    Place,
    Surroundings,
    sidecar_document,
    write_sidecar,
)
from nsyspipe.model.captured import CapturedRank
from nsyspipe.nsys.command_words import HASHED
from tests.build.programs import TOPOLOGY
from tests.build.trace import steady_rank
from tests.cli.conftest import refused

SECRET = "Zx81-plant3d"
VERSIONS = ("2.9.0", "2.27.3", "580.159.04", "0123456789")  # torch, NCCL, driver, commit
HOST = Surroundings(
    host="node0",
    gpus=(),
    driver_version="580.159.04",
    topology=TOPOLOGY,
    torch_version="2.9.0",
    cuda_version="13.0",
    nccl_version="2.27.3",
    python_version="3.11.9",
    git_commit="0123456789abcdef0123456789abcdef01234567",
    git_is_dirty=True,
)


def capture(folder, **more):
    for rank in (0, 1):
        steady_rank(rank).write(folder / f"ddp_{rank}.sqlite")
    place = Place(str(folder / "ddp"))
    write_sidecar(place.file(TOPOLOGY_SUFFIX), TOPOLOGY)
    document = sidecar_document(
        place,
        command=["torchrun", "train.py", "--api-key", SECRET],
        ranks=[CapturedRank(at, pid=1000 + at, report=f"ddp_{at}", status=0) for at in (0, 1)],
        environment={"NCCL_DEBUG": "INFO", "WANDB_API_KEY": SECRET},
        surroundings=HOST,
        world_size=2,
    )
    # The session of `steady_rank` began then.
    write_sidecar(place.file(), document | {"captured_at_utc": "2001-09-09T01:46:40Z"} | more)
    return folder


@pytest.mark.slow
def test_the_summary_says_what_the_run_was_captured_with(tmp_path, invoke, worded):
    captured = capture(tmp_path)
    done = invoke(captured, "-v")
    assert (done.exit_code, done.stderr) == (0, "")
    (paragraph,) = [part for part in done.stdout.split("\n\n") if VERSIONS[0] in part]
    assert all(version in paragraph for version in VERSIONS)
    worded(paragraph)
    assert max(map(len, done.stdout.splitlines())) <= 100
    sidecar = captured / "ddp.capture.json"
    refused(invoke(captured, "--json", sidecar, "--force"))
    sidecar.unlink()
    assert VERSIONS[0] not in invoke(captured, "-v").stdout


@pytest.mark.slow
def test_every_output_also_of_a_saved_run_says_it_and_none_has_a_secret(tmp_path, invoke):
    captured = capture(tmp_path)
    page = captured.parent / f"{captured.name}.html"
    done = invoke(captured, "--json", "-", "--html", page)
    document = json.loads(done.stdout)
    *command, value = document["run"]["capture"]["command"]
    assert command == ["torchrun", "train.py", "--api-key"]
    assert HASHED.fullmatch(value)
    assert document["run"]["capture"]["environment"] == {"NCCL_DEBUG": "INFO"}
    assert {row["path"] for row in document["links"]} == {"NV18"}
    markdown = invoke(captured, "--markdown", "-").stdout
    assert all(version in markdown for version in VERSIONS)
    store = tmp_path / "store"
    assert json.loads(invoke(captured, "--json", "-", "--out", store).stdout) == document
    assert json.loads(invoke(store, "--json", "-").stdout) == document
    shown = invoke(store, "-v").stdout
    assert all(version in shown for version in VERSIONS)
    html = page.read_text()
    text = re.sub("<[^>]+>", "", html)
    assert all(part in text for part in ("torchrun train.py --api-key", *VERSIONS))
    assert SECRET not in done.stdout + markdown + html + shown + invoke(captured, "-v").stdout


@pytest.mark.slow
def test_hostile_texts_drive_no_terminal_and_break_no_page(tmp_path, invoke):
    capture(tmp_path, torch_version="\x1b[2J<script>alert(1)</script>|`", git_commit=None)
    assert "\x1b" not in invoke(tmp_path, "--html", tmp_path / "page.html").stdout
    assert "<script>" not in invoke(tmp_path, "--markdown", "-").stdout
    assert "<script>alert" not in (tmp_path / "page.html").read_text()


def test_a_failed_rank_is_a_warning_that_strict_refuses(tmp_path, invoke, worded):
    capture(tmp_path, ranks=[{"rank": 1, "report": "ddp_1", "pid": 1001, "status": 1}])
    done = invoke(tmp_path, "--json", "-")
    assert done.exit_code == 0
    problems = json.loads(done.stdout)["problems"]
    (failed,) = [row for row in problems if row["severity"] == "warning"]
    assert failed["code"] == "capture-failed"
    worded(failed["message"])
    assert invoke(tmp_path, "--strict").exit_code == 2


@pytest.mark.slow
def test_the_doctor_knows_what_the_sidecar_says(tmp_path, call, worded):
    for rank in (0, 1):
        builder = steady_rank(rank)
        builder.rows.pop("META_DATA_CAPTURE")
        builder.write(tmp_path / f"ddp_{rank}.sqlite")

    def told(case, *options):
        document = json.loads(call("doctor", tmp_path, *options, "--json", "-").stdout)
        rows = {row["name"]: f"{row['status']}, {row['found']}" for row in document["capabilities"]}
        worded([f"{name}: {rows[name]}" for name in ("ranks", "world_size", "link")], case)
        return [row["code"] for row in document["problems"]]

    assert told("no sidecar") == []
    (tmp_path / "t.txt").write_text(TOPOLOGY)
    ranks = [{"rank": at + 4, "report": f"ddp_{at}", "pid": 1000 + at} for at in (0, 1)]
    content = {"ranks": ranks, "world_size": 8, "topology_file": "t.txt"}
    (tmp_path / "ddp.capture.json").write_text(json.dumps(content))
    assert told("a sidecar") == ["files-beside-used"]
    codes = told("ranks by hand", "--rank-map", "ddp_0=0,ddp_1=1")
    assert codes == ["rank-map-differs", "files-beside-used"]
    (tmp_path / "ddp.capture.json").write_text("{")
    assert told("a damaged sidecar") == ["unusable-sidecar"]
