"""What nvidia-smi topo -m prints, as files hold it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nsyspipe.errors import InputError, NsyspipeError
from nsyspipe.model.side_files import Topology
from nsyspipe.reader.fabric import read_topology
from tests.conftest import examples

REAL = Path(__file__).parent.parent / "real" / "logs"

# Two GPUs and two NICs; nvidia-smi underlines its header.
WITH_NICS = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tPXB\tSYS\t0-63,128-191\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tPIX\t64-127,192-255\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n"
)
PATHS = {
    ("GPU0", "GPU1"): "NV12", ("GPU0", "NIC0"): "PXB", ("GPU1", "NIC1"): "PIX",
    ("GPU0", "NIC1"): "SYS", ("GPU1", "NIC0"): "SYS", ("NIC0", "NIC1"): "SYS",
}  # fmt: skip
TWO_NICS = Topology(gpus=(0, 1), paths=PATHS | {(other, one): path for (one, other), path in PATHS.items()})


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        path = tmp_path / "topo.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_topology(path)

    return write_and_read


def test_gpus_and_nics_between_affinities_and_legends_under_an_underlined_header(read):
    assert read(WITH_NICS) == TWO_NICS
    assert (TWO_NICS.link(0, 1), TWO_NICS.link(1, 0)) == ("NV12", "NV12")
    assert (TWO_NICS.link(0, 0), TWO_NICS.link(0, 5)) == (None, None)


def test_line_ends_of_windows_spaces_and_other_output_around_do_not_matter(read):
    text = "Fri Nov 20\n| GPU  Name |\n\n" + WITH_NICS + "\ndone GPU0 GPU1\n"
    assert read(text.replace("\n", "\r\n")) == TWO_NICS == read(WITH_NICS.expandtabs(9))


def test_older_drivers_name_nics_themselves_and_sys_soc(read):
    header = "        GPU0    GPU1    mlx5_0  CPU Affinity\n"
    found = read(f"{header}GPU0     X  SOC  PHB  0-7\nGPU1    SOC  X  NODE  8-15\nmlx5_0  PHB  NODE  X \n")
    assert (found.link(0, 1), found.paths["GPU0", "mlx5_0"], found.paths["mlx5_0", "GPU1"]) == ("SYS", "PHB", "NODE")


def test_indices_need_not_be_dense_and_one_gpu_is_a_topology_without_paths(read):
    found = read("\tGPU2\tGPU5\tCPU Affinity\nGPU2\t X \tNV4\t0-7\nGPU5\tNV4\t X \t0-7\n")
    assert (found.gpus, found.link(2, 5)) == ((2, 5), "NV4")
    found = read("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-31\t0\t\tN/A\n")
    assert found == Topology((0,), {})


def test_a_cut_matrix_keeps_what_a_remaining_row_says(read):
    # Cut inside the row of GPU1: the row of GPU0 says both directions.
    found = read(WITH_NICS[: WITH_NICS.index("GPU1\tNV12") + 7])
    assert (found.link(1, 0), found.paths["GPU0", "NIC1"]) == ("NV12", "SYS")
    assert ("GPU1", "NIC1") not in found.paths


def test_unknown_words_are_not_paths(read):
    found = read("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tN/A\nGPU1\tPIX\t X \tERR\nGPU2\tN/A\tPHB\t X \n")
    assert (found.link(0, 1), found.link(0, 2), found.link(2, 1)) == ("PIX", None, "PHB")
    # The row of GPU1 ends at what is no cell, so that of GPU2 tells.
    assert found.link(1, 2) == "PHB"


OTHERS = (
    "", "GPU0\n", "hello\n\x00\xff", "\tGPU0\tGPU1\tCPU Affinity\n", "GPU 0: NVIDIA H200 (UUID: GPU-0)\n",
    "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n",  # topo -p2p r: another matrix
)  # fmt: skip


def test_other_files_and_what_is_no_file_are_refused_with_a_way_out(read, tmp_path):
    for text in OTHERS:
        with pytest.raises(InputError, match=r"topo\.txt: .*matrix") as refused:
            read(text)
        assert "nvidia-smi topo -m" in refused.value.fix
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NsyspipeError):
            read_topology(path)


@examples(100)
@given(st.data())
def test_any_change_of_the_text_is_read_or_refused(tmp_path_factory, data):
    raw = WITH_NICS.encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    path = tmp_path_factory.mktemp("topo") / "topo.txt"
    path.write_bytes(raw[:start] + data.draw(st.binary(max_size=30)) + raw[end:])
    try:
        paths = set(read_topology(path).paths.values())
    except InputError:
        paths = set()
    assert all(path in {"PIX", "PXB", "PHB", "NODE", "SYS"} or path[:2] == "NV" for path in paths)


@pytest.mark.parametrize("n_gpus", [2, 4])
def test_real_matrices(n_gpus):
    found = read_topology(REAL / f"topo-{n_gpus}gpu.txt")
    assert found.gpus == tuple(range(n_gpus))
    pairs = [(a, b) for a in range(n_gpus) for b in range(n_gpus) if a != b]
    assert {found.link(*pair) for pair in pairs} == {"NV18"}
    assert len(found.paths) == len(pairs)
