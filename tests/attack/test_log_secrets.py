"""Secrets in NCCL's logs, and in versions and names of a forged sidecar: none reaches an output or a saved run."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.nsys.command_words import (
    CAPTURE_NAME,
    GPU_NAME,
    HOST_NAME,
    VERSION,
    Mask,
    recorded_settings,
)
from nsyspipe.reader.fabric import read_nccl_logs
from nsyspipe.reader.sidecar import parse_sidecar
from tests.build.trace import steady_rank
from tests.cli.conftest import call  # noqa: F401 - a fixture

SECRET = "Zx81-plant3d"
SETTINGS = {
    "NCCL_DEBUG_FILE": f"/home/{SECRET}/nccl.log",
    "NCCL_COMM_ID": f"{SECRET}:1234",
    "NCCL_TOPO_FILE": f"/scratch/{SECRET}",
    "NCCL_IB_HCA": SECRET,
    "NCCL_NET": SECRET,
    "NCCL_P2P_LEVEL": SECRET,
    f"NCCL_{'X' * 20}": SECRET,
    "NCCL_P2P_DISABLE": "1",
    "NCCL_ALGO": "Ring",
}
WRITTEN = {
    "NCCL_ALGO": "Ring",
    "NCCL_IB_HCA": "***",
    "NCCL_NET": "***",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_P2P_LEVEL": "***",
}


def write_log(folder):
    lines = [
        f"node0:1000:1000 [0] NCCL INFO {name} set by environment to {value}."
        for name, value in SETTINGS.items()
    ]
    path = folder / "run.nccl.log"
    path.write_text(
        "\n".join(["node0:1000:1000 [0] NCCL INFO NCCL version 2.27.3+cuda12.9", *lines, ""])
    )
    return path


def test_a_log_has_of_settings_what_a_sidecar_may_have(tmp_path):
    log = read_nccl_logs([write_log(tmp_path)])
    assert (log.version, log.settings) == ("2.27.3+cuda12.9", WRITTEN)


def test_values_of_several_processes_are_masked_each_for_itself():
    given = {"NCCL_IB_HCA": ["mlx5_0", SECRET, "mlx5_1"], "NCCL_OTHER": ["1"]}
    assert recorded_settings(given, Mask()) == {"NCCL_IB_HCA": "*** | mlx5_0 | mlx5_1"}


@pytest.mark.slow
def test_no_output_and_no_saved_run_has_a_secret_of_a_log(tmp_path, call):  # noqa: F811
    reports = tmp_path / "reports"
    reports.mkdir()
    for rank in (0, 1):
        steady_rank(rank).write(reports / f"ddp_{rank}.sqlite")
    log = write_log(tmp_path)
    written = tmp_path / "written"
    written.mkdir()
    outputs = [
        "--json",
        written / "a.json",
        "--html",
        written / "a.html",
        "--markdown",
        written / "a.md",
        "--out",
        written / "runs",
    ]
    done = call("analyze", reports, "--nccl-log", log, *outputs)
    assert done.exit_code == 0, done.stderr
    texts = [done.stdout, done.stderr]
    for path in written.rglob("*"):
        if path.suffix == ".parquet":
            texts.append(str(pq.read_table(path, partitioning=None).to_pylist()))
        elif path.is_file():
            texts.append(path.read_bytes().decode("utf-8", "replace"))
    assert len(texts) > 10
    assert not [text for text in texts if SECRET in text]
    assert json.loads((written / "a.json").read_text())["nccl"]["settings"] == WRITTEN


def test_settings_of_an_older_saved_run_are_masked_when_it_is_opened(tmp_path):
    steady_rank(0).write(tmp_path / "ddp_0.sqlite")
    run = nsyspipe.load(
        tmp_path / "ddp_0.sqlite", nccl_log=write_log(tmp_path), run_id="old", jobs=1
    )
    nsyspipe.export.parquet(run, tmp_path / "store")
    path = tmp_path / "store" / "runs" / "run_id=old" / "part-0.parquet"
    table = pq.read_table(path, partitioning=None)
    details = json.loads(table["details"][0].as_py())
    details["nccl"]["settings"] = {"NCCL_DEBUG_FILE": SECRET, "NCCL_IB_HCA": f"mlx5_0 | {SECRET}"}
    table = table.set_column(
        table.column_names.index("details"), "details", pa.array([json.dumps(details)])
    )
    pq.write_table(table, path)
    assert nsyspipe.load(tmp_path / "store").nccl.settings == {"NCCL_IB_HCA": "*** | mlx5_0"}


SIDECAR = {
    "capture_version": 1,
    "name": "ddp-4gpu",
    "host": "node0.example.org",
    "torch_version": "2.9.0+cu128",
    "nccl_version": "2.27.3",
    "cuda_version": "13.0",
    "driver_version": "580.159.04",
    "python_version": "3.11.9",
    "nsys_version": "2025.1.1.65-251135540420v0",
    "capture_range": "cudaProfilerApi",
    "ranks": [{"rank": 0, "gpu_name": "NVIDIA A100-SXM4-80GB"}],
}
FORGED = {
    **dict.fromkeys(
        (
            "torch_version",
            "nccl_version",
            "cuda_version",
            "driver_version",
            "python_version",
            "nsys_version",
        ),
        (SECRET, "/home/me", "2.9.0 hf_token", "<b>2</b>", "2.9.0\n", "v" * 300, ""),
    ),
    "name": ("../x", "<img src=x>", "a\nb"),
    "host": ("a b", "me@host", "http://x", ""),
    "capture_range": ("a b", SECRET),
}


def parsed(**fields):
    return parse_sidecar(json.dumps(SIDECAR | fields).encode(), None)


@pytest.mark.parametrize("name", FORGED)
def test_a_sidecar_with_a_forged_version_or_name_is_not_used(name):
    assert getattr(parsed().facts, name, None) or parsed().host
    for value in FORGED[name]:
        with pytest.raises(ValueError, match=name):
            parsed(**{name: value})


@pytest.mark.parametrize("gpu_name", ["/home/me/x", "a" * 30, "<b>", "a  b", "me@host"])
def test_a_sidecar_with_a_forged_gpu_model_is_not_used(gpu_name):
    with pytest.raises(ValueError, match="gpu_name"):
        parsed(ranks=[{"rank": 0, "gpu_name": gpu_name}])


def test_words_of_a_forged_trace_are_masked():
    assert parsed(trace=["cuda", "nvtx", f"/home/{SECRET}"]).facts.trace == ["cuda", "nvtx", "***"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (
            VERSION,
            (
                "2.9.0 2.9.0+cu128 2.5.0a0+872d972e41.nv24.08 2.27.3 580.159.04 3.13.0rc1+ "
                "2026.2.3.38-262334140272v0 2.9.0a0+gitUnknown"
            ),
        ),
        (
            VERSION,
            "2.9.0.dev20250801+cu128 2.1.0-rc1 2.1.0+cu121.with.pypi.cudnn 3.12.3+ 13 2026.2",
        ),
        (HOST_NAME, "node0 gpu-17.cluster.example.org DGX_1"),
        (CAPTURE_NAME, "ddp-4gpu größe run.v2+x {a}"),
    ],
)
def test_versions_and_names_as_programs_write_them_are_taken(pattern, words):
    assert all(map(pattern.fullmatch, words.split()))


@pytest.mark.parametrize(
    "model",
    [
        "NVIDIA H200",
        "Tesla V100-SXM2-32GB",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA RTX 6000 Ada Generation",
    ],
)
def test_gpu_models_as_drivers_name_them_are_taken(model):
    assert GPU_NAME.fullmatch(model)
