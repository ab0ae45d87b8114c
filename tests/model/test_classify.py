"""What kernel names of old and new NCCL, PyTorch, CUTLASS and cuBLAS say."""

from __future__ import annotations

from nsyspipe.model.names import COLLECTIVES, algorithm_of, collective_of, datatype_of, kernel_label
from tests.conftest import FROZEN


def test_what_a_kernels_name_says_and_the_label_that_tells_it_apart(pinned):
    lines = (FROZEN / "names/kernels.txt").read_text(encoding="utf-8").splitlines()
    found = []
    for name in (line for line in lines if not line.startswith("  ")):
        found.append(name)
        if name and not name.startswith("#"):
            says = collective_of(name), datatype_of(name), algorithm_of(name)
            found.append(f"  {', '.join(map(str, says))}; {kernel_label(name)}")
    pinned("names/kernels.txt", "\n".join([*found, ""]))
    assert (collective_of(""), kernel_label("")) == ("other", "")


def test_a_collective_is_found_in_any_case_the_longest_name_wins_and_a_datatype_is_a_whole_word():
    found = map(collective_of, ("NCCLKERNEL_REDUCESCATTER_RING", "mscclAllReduceKernel"))
    assert list(found) == ["reduce_scatter", "all_reduce"]
    assert {*map(datatype_of, ("ncclDevKernel_AllReduce_Sum_f32x4", "ncclDevKernel_AllReducef32"))} == {None}
    assert len(set(COLLECTIVES)) == len(COLLECTIVES) == 8
