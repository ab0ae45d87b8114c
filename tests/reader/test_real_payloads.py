"""NCCL's payloads in real reports: sizes that the programs imply, whatever the domain's id."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pyarrow.compute as pc
import pytest

import nsyspipe

# Parameters of the GPT, f32; its all-gathers move bf16.
GPT = 166_307_840
MIB = 2**20
# By capture: bytes of a step's messages.
BYTES_PER_STEP = {
    "2gpu-gpt-b25": 4 * GPT,
    "2gpu-gpt-b25-shm": 4 * GPT,
    "2gpu-gpt-b25-shm-bf16hook": 2 * GPT,
    "2gpu-gpt-one-shm": 4 * GPT,
    "2gpu-gpt-accum": 4 * GPT,
    "2gpu-gpt-accum-shm": 4 * GPT,
    "2gpu-tp": 32 * 16 * MIB,
    "2gpu-pp": 8 * 4 * MIB,
    # Of its blocks all-gathers in forward and in backward, of the rest once; reduce-scatters once.
    "2gpu-fsdp2": 2 * (2 * 8 * 12_596_224 + 65_538_048) + 4 * GPT,
    # Each rank sends 8 MiB to each; the rest is all-reduced.
    "2gpu-moe": 32 * 2 * 8 * MIB + 131_072_000 + 131_080_192 + 4 * 33_619_968,
}


@pytest.mark.parametrize(("name", "n_bytes"), BYTES_PER_STEP.items())
def test_message_bytes_are_what_the_program_sends(runs, name, n_bytes):
    run = runs(name)
    assert run.summary()["message_bytes_per_step"][0].as_py() == n_bytes
    assert run.summary()["busbw_bytes_per_s"][0].as_py() > 0
    codes = run.problems["code"].to_pylist()
    assert not {
        "no-message-size",
        "few-message-sizes",
        "undecoded-payload",
        "ended-before-last-arrived",
    } & set(codes)


def test_bandwidth_is_that_of_the_payload(runs):
    run = runs("2gpu-gpt-b25-shm")
    assert round(run.summary()["busbw_bytes_per_s"][0].as_py() / 1e9, 2) == 25.49


def test_an_all_to_all_that_ran_as_sends_and_receives_is_one(runs):
    rows = runs("2gpu-moe").collectives()
    rows = rows.filter(pc.equal(rows["collective"], "all_to_all"))
    assert rows.num_rows == 2 * 8 * 32
    assert set(rows["message_bytes"].to_pylist()) == {16 * MIB}
    assert pc.all(rows["is_matched"]).as_py()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shift"), [("2gpu-gpt-b25-shm", 1), ("2gpu-moe", 6), ("2gpu-fsdp2", 2**31)]
)
def test_the_number_of_the_domain_changes_no_figure(runs, real, tmp_path, name, shift):
    for rank in range(2):
        path = shutil.copyfile(real / f"{name}_{rank}.sqlite", tmp_path / f"{name}_{rank}.sqlite")
        with closing(sqlite3.connect(path)) as report:
            tables = (
                "NVTX_EVENTS",
                *(f"NVTX_PAYLOAD_{one}" for one in ("SCHEMAS", "SCHEMA_ENTRIES", "ENUMS")),
            )
            for table in tables:
                report.execute(
                    f"UPDATE {table} SET domainId = domainId + ? WHERE domainId > 0", (shift,)
                )
            report.commit()
    before, after = runs(name), nsyspipe.load(str(tmp_path / f"{name}_*.sqlite"))
    assert after.summary().equals(before.summary())
    assert after.collectives().equals(before.collectives())
    assert after.problems["code"].to_pylist() == before.problems["code"].to_pylist()
