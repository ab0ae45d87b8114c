"""The committed outputs of the sample runs are what the program prints today."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from nsyspipe import api
from tests.conftest import SAMPLES
from tests.read_once import load_once

RUNS = ("ddp-4gpu-before", "ddp-4gpu-after")


def with_all(run):
    log, topology = f"sample_reports/{run}.nccl.log", "sample_reports/topo-4gpu.txt"
    return ["--nccl-log", log, "--topology", topology, "--run-id", run]


@pytest.fixture(scope="module")
def load():
    """Return `load`, by which each sample is read once for each set of options."""
    return load_once()


@pytest.fixture
def analyze(printed, load, monkeypatch):
    monkeypatch.setattr(api, "load", load)
    return lambda run, *options: printed(
        "analyze", f"sample_reports/{run}_*.sqlite", "-j", "1", *options
    )


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_sample_outputs_are_made_again_as_they_were(run, analyze, pinned, tmp_path):
    document, page = tmp_path / "run.json", tmp_path / "page.html"
    made = {"txt": analyze(run, "--json", document), "json": document.read_text(encoding="utf-8")}
    made["md"] = analyze(run, *with_all(run), "--markdown", "-", "--html", page)
    made["html"] = page.read_text(encoding="utf-8")
    for suffix, output in made.items():
        pinned(SAMPLES / f"{run}.{suffix}", output)


@pytest.mark.slow
def test_the_sample_dataset_is_made_again_as_it_was(request, analyze, tmp_path):
    store, committed = tmp_path / "store", SAMPLES / "dataset"
    for run in RUNS:
        analyze(run, *with_all(run), "--out", store, "-q")
    if request.config.getoption("--update-golden"):
        shutil.rmtree(committed, ignore_errors=True)
        for table in sorted(store.glob("[a-z]*")):  # the tables, without links
            if any(table.iterdir()):
                shutil.copytree(table, committed / table.name)
    files = sorted(path.relative_to(store) for path in store.glob("[a-z]*/*/*.parquet"))
    assert files == sorted(path.relative_to(committed) for path in committed.rglob("*.parquet"))
    for file in files:  # their bytes depend on the version of pyarrow
        made, kept = (pq.ParquetFile(root / file).read() for root in (store, committed))
        assert made.equals(kept, check_metadata=True), file


@pytest.mark.parametrize("run", RUNS)
def test_sample_figures_follow_from_its_rows(run):
    found = json.loads((SAMPLES / f"{run}.json").read_text(encoding="utf-8"))
    rows = [row for row in found["steps"] if row["in_summary"]]
    wall = sum(row["wall_ns"] for row in rows)
    assert len(rows) == 4 * found["summary"]["n_summary_steps"]
    assert found["summary"]["comm_share"] == sum(row["comm_ns"] for row in rows) / wall
    assert (
        found["summary"]["exposed_comm_share"] == sum(row["exposed_comm_ns"] for row in rows) / wall
    )
    slowest = {}
    for row in rows:
        slowest[row["step"]] = max(slowest.get(row["step"], 0), row["wall_ns"])
    assert found["summary"]["throughput_steps_per_s"] == 1e9 * len(slowest) / sum(slowest.values())


def test_samples_stay_small():
    sizes = {path: path.stat().st_size for path in SAMPLES.rglob("*")}
    assert sum(size for path, size in sizes.items() if path.suffix == ".sqlite") <= 30e6
    assert sum(size for path, size in sizes.items() if path.suffix != ".sqlite") <= 5e6
