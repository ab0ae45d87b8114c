"""What saving a run costs beside its analysis, and saving into a store of many runs.

    pytest -m bench -n 0 -s tests/bench/test_store_speed.py [--kernels 1000000] [--ranks 8]

Asked for: at most 20 % of the analysis, and about a second beside 1000 runs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

import nsyspipe
from nsyspipe.store.write import save
from tests.bench.test_analyze_speed import _child
from tests.build.synthetic import generate
from tests.store.store_tools import old_run, stored

pytestmark = pytest.mark.bench
N_RUNS = 1000


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    n_kernels, n_ranks = request.config.getoption("--kernels"), request.config.getoption("--ranks")
    folder = tmp_path_factory.mktemp("bench")
    n_steps = max(n_kernels // 1000, 4)
    return [
        str(generate(folder / f"bench_{rank}.sqlite", n_kernels, n_steps, rank, n_ranks)) for rank in range(n_ranks)
    ]


def test_saving_costs_little_beside_the_analysis(reports, tmp_path, capsys):
    command = [sys.executable, "-m", "nsyspipe", "analyze", *reports, "--no-progress"]
    ways = {
        "analyze": [],
        "analyze --out": ["--out", str(tmp_path / "tables")],
        "analyze --out --events": ["--out", str(tmp_path / "all"), "--events"],
    }
    # Taken in turns, so that what else the machine does falls on all of them.
    found = {name: [] for name in ways}
    for _ in range(3):
        for name, options in ways.items():
            found[name].append(_child([*command, *options]))
    best = {name: min(some, key=lambda one: one["seconds"]) for name, some in found.items()}
    alone = best["analyze"]["seconds"]
    with capsys.disabled():
        print()
        for name, one in best.items():
            more = one["seconds"] / alone - 1
            print(f"{name}: {one['seconds']:.2f} s ({more:+.0%}), peak {one['peak_mib']:.0f} MiB")
        for store in ("tables", "all"):
            files = [path.stat().st_size for path in (tmp_path / store).glob("[!.]*/**/*.parquet")]
            print(f"{store}: {len(files)} files, {sum(files) / 1e6:.1f} MB")


def test_saving_beside_a_thousand_runs_takes_as_long_as_alone(tmp_path, capsys):
    saved = nsyspipe.load(stored(tmp_path / "alone", old_run(tmp_path)))
    seconds = []
    for number in range(N_RUNS):
        start = time.perf_counter()
        save(replace(saved, run_id=f"run{number}"), tmp_path / "store")
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    n_read = nsyspipe.load(tmp_path / "store", run_id="run7").steps().num_rows
    read = time.perf_counter() - start
    with capsys.disabled():
        first, last = (sorted(some)[25] for some in (seconds[:50], seconds[-50:]))
        print(f"\nmedian of the first 50: {first:.3f} s, of the last 50 of {N_RUNS}: {last:.3f} s")
        print(f"opening one of them: {read:.3f} s, {n_read} rows")
    assert len(list((tmp_path / "store" / "steps").iterdir())) == N_RUNS
