"""Which kernels communicate by their names, whatever library they are of, and which calls do."""

import pyarrow as pa
import pytest

from nsyspipe.model.comm_kernels import (
    LIBRARIES,
    are_communication,
    collective_of_kernel,
    comm_call_of,
    is_communication,
    library_of,
    looks_like_communication,
)
from nsyspipe.model.names import COLLECTIVES, kernel_label

OF_LIBRARIES = {
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "all_to_all",
    "void deep_ep::internode::combine<__nv_bfloat16, 8>(int4*)": "all_to_all",
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)": "all_to_all",
    "void deep_ep::intranode::notify_dispatch<8>(int const*)": "all_to_all",
    "void deep_ep::intranode::cached_notify_combine<8>(void**)": "all_to_all",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)": "reduce_scatter",
    "void userbuffers_fp16_sum_inplace_gpu_mc_ag<8>(int)": "all_gather",
    "void userbuffers_fp16_sum_inplace_gpu_rw<8>(int)": "all_reduce",
    "kuserbuffers_pushrecv(int, int, int*)": "send_recv",
    "kuserbuffers_alltoall(int)": "all_to_all",
    "void alltoall_on_stream_kernel<float>(int, float*)": "all_to_all",
    "void fcollect_on_stream_kernel<float>(int, float*)": "all_gather",
    "void rdxn_on_stream_kernel<float, (rdxn_ops)0>(int)": "all_reduce",
    "barrier_on_stream_kernel_threadgroup(int)": "other",
    "void c10d::nvshmem_extension::allToAllV_2d<true>(void*)": "all_to_all",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<__nv_bfloat16, 16, 8>(int)": "all_reduce",
    "void two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)": "all_reduce",
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)": "all_gather",
    "void multimem_one_shot_all_reduce_kernel<float, 16>(float*)": "all_reduce",
    "void multimem_one_shot_reduce_kernel<float, 16>(float*)": "reduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(int)": "all_reduce",
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<1>(int)": "all_reduce",
    "void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*)": "all_reduce",
    "void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*)": "all_reduce",
}
COMPUTE = [
    "void cutlass::device_kernel<flash::FlashAttnFwd>(int)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
    "void deep_ep::layout::get_dispatch_layout<256>(long const*)",
    "triton_poi_fused_add_all_reduce_wait_tensor_3",
    "void softmax_warp_all_reduce<float>(float*)",
    "void moe::dispatch<float>(float*)",
    "void combine(float*)",
    "void gemm_with_epilogue<AllReduceOp<float>>(float*)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
    "void splitKreduce_kernel<32, 16, int>(int)",
]


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_kernels_of_other_libraries_communicate(name):
    assert library_of(kernel_label(name)) is not None
    assert collective_of_kernel(name) == OF_LIBRARIES[name]


@pytest.mark.parametrize("name", COMPUTE)
def test_compute_kernels_do_not_communicate(name):
    label = kernel_label(name)
    assert not is_communication(label)
    assert not looks_like_communication(label)


def test_what_is_in_the_table_looks_like_communication_or_has_its_library():
    assert {one.collective for one in LIBRARIES} <= {*COLLECTIVES, None}
    assert all(one.source for one in LIBRARIES)


def test_kernels_that_only_look_like_it_are_told_apart():
    label = kernel_label("void mine::fast_all_reduce<float>(float*)")
    assert looks_like_communication(label)
    assert not is_communication(label)


def test_labels_of_many_rows_are_told_at_once():
    labels = pa.chunked_array(
        [["gemm", "ncclAllGather [copies]", "low_contention_all_gather [copies]", None]]
    )
    assert are_communication(labels).to_pylist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("text", "name", "collective"),
    [
        ("ncclAllGather", "ncclAllGather", "all_gather"),
        ("ncclAlltoAll", "ncclAllToAll", "all_to_all"),
        ("ncclSend", "ncclSendRecv", "send_recv"),
        ("ncclBcast", "ncclBroadcast", "broadcast"),
        ("ncclGather", "ncclGather", "other"),
        ("symm_mem::fused_all_gather_matmul, op_id = 12", "fused_all_gather_matmul", "all_gather"),
        ("_low_contention_reduce_scatter", "low_contention_reduce_scatter", "reduce_scatter"),
    ],
)
def test_a_call_is_told_by_the_text_of_its_range(text, name, collective):
    call = comm_call_of(text)
    assert (call.name, call.collective) == (name, collective)


@pytest.mark.parametrize(
    "text",
    ["ncclCommInitRank", "nccl:all_reduce", "ncclAllReduce of layer 3", "step 3", "all_gather", ""],
)
def test_other_ranges_are_no_calls(text):
    assert comm_call_of(text) is None


def test_a_label_is_its_own_label():
    assert (
        kernel_label("ncclDevKernel_Generic_4 [reduce_scatter]")
        == "ncclDevKernel_Generic_4 [reduce_scatter]"
    )
