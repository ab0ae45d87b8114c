"""What kernel names of old and new NCCL, PyTorch, CUTLASS and cuBLAS say."""

from __future__ import annotations

import pytest

from nsyspipe.model.names import COLLECTIVES, algorithm_of, collective_of, datatype_of, kernel_label

# Name -> (collective, datatype, algorithm).
COMM = {
    # 2.19 and later
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": ("all_reduce", "f32", "RING_LL"),
    "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgs4K)": ("all_reduce", "bf16", "TREE_LL"),
    "ncclDevKernel_ReduceScatter_Sum_f16_RING_LL": ("reduce_scatter", "f16", "RING_LL"),
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": ("all_gather", None, "RING_LL"),
    "ncclDevKernel_Broadcast_RING_LL": ("broadcast", None, "RING_LL"),
    "ncclDevKernel_Reduce_Sum_u8_RING_LL": ("reduce", "u8", "RING_LL"),
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": ("send_recv", None, None),
    "ncclDevKernel_AllReduce_SumPostDiv_i64_COLLNET_DIRECT_SIMPLE": ("all_reduce", "i64", "COLLNET_DIRECT_SIMPLE"),
    "ncclDevKernel_AllReduce_Sum_f64_NVLS_TREE_SIMPLE": ("all_reduce", "f64", "NVLS_TREE_SIMPLE"),
    "ncclDevKernel_AllGather_NVLS_LL128": ("all_gather", None, "NVLS_LL128"),
    "ncclDevKernel_ReduceScatter_MinMax_u64_PAT_SIMPLE": ("reduce_scatter", "u64", "PAT_SIMPLE"),
    "ncclDevKernel_AllReduce_Sum_f8e4m3_RING_LL": ("all_reduce", "f8e4m3", "RING_LL"),
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": ("other", None, None),
    # symmetric memory
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)": ("all_reduce", "bf16", None),
    "ncclSymkDevKernel_ReduceScatter_LL_sum_f8e5m2": ("reduce_scatter", "f8e5m2", None),
    # 2.10 to 2.18
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm *, unsigned long, ncclWork *)": ("all_reduce", "f32", "RING_LL"),
    "ncclKernel_AllReduce_TREE_LL128_Sum___nv_bfloat16(ncclDevComm*)": ("all_reduce", "bf16", "TREE_LL128"),
    "ncclKernel_ReduceScatter_RING_SIMPLE_Max_half": ("reduce_scatter", "f16", "RING_SIMPLE"),
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm *)": ("send_recv", "i8", "RING_SIMPLE"),
    "ncclKernel_Broadcast_RING_LL_Sum_uint8_t": ("broadcast", "u8", "RING_LL"),
    "ncclKernel_AllReduce_COLLNET_CHAIN_SIMPLE_Prod_double": ("all_reduce", "f64", "COLLNET_CHAIN_SIMPLE"),
    "ncclKernel_Reduce_RING_LL_Sum_uint64_t": ("reduce", "u64", "RING_LL"),
    # before
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": ("all_reduce", "f32", None),
    "ncclAllGatherRingKernel_copy_i8": ("all_gather", "i8", None),
    # others' libraries
    "deepep_alltoall_dispatch": ("all_to_all", None, None),
    "": ("other", None, None),
}  # fmt: skip

LABELS = {
    # CUTLASS and cuDNN: the template argument is the name.
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(T1::Params)": "cutlass::Kernel2 [cutlass_80_simt_sgemm_128x256_8x4_nt_align1]",
    "void cutlass::Kernel<cutlass_75_wmma_tensorop_s161616gemm>(cutlass_75_wmma::Params)": "cutlass::Kernel [cutlass_75_wmma_tensorop_s161616gemm]",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>>>(T1::Params)": "cutlass::device_kernel [GemmUniversal]",
    # cuBLAS: names that need nothing, and a kernel that is only called so.
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_execute_kernel__5x_cublas": "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_execute_kernel__5x_cublas",
    "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, float, (bool)0, (int)6, cublasGemvParamsEx<int>>(T13)": "internal::gemvx::kernel [cublasGemvParamsEx]",
    "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, (bool)0>(cublasLt::cublasSplitKParams<T6>, const T4 *)": "cublasLt::splitKreduce_kernel",
    # at::native: functors, wherever they stand.
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, std::array<char *, (unsigned long)3>>(int, T2, T3)": "vectorized_elementwise_kernel [CUDAFunctor_add]",
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)": "elementwise_kernel [direct_copy_kernel_cuda]",
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator ()(at::TensorIterator &)::[lambda(float, float) (instance 1)]>, unsigned int>>(T3)": "reduce_kernel [sum_functor]",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float>)": "reduce_kernel [MeanOps]",
    # at::native: a lambda, told apart by the function that holds it.
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::launch_clamp_scalar(at::TensorIteratorBase &, c10::Scalar)::[lambda() (instance 1)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)": "vectorized_elementwise_kernel [launch_clamp_scalar]",
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::where_kernel_impl(at::TensorIterator&)::{lambda()#1}::operator()() const::{lambda(bool, float)#2}, at::detail::Array<char*, 3> >(int, at::detail::Array<char*, 3>)": "vectorized_elementwise_kernel [where_kernel_impl]",
    "void at::native::unrolled_elementwise_kernel<[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T1)": "unrolled_elementwise_kernel",
    # Anonymous namespaces, as nvcc and as nsys write them.
    "void (anonymous namespace)::softmax_warp_forward<float, float, 10, true>(float*, float const*)": "softmax_warp_forward",
    "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)4>, unsigned int>(T1 *)": "CatArrayBatchedCopy",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>>(T1)": "multi_tensor_apply_kernel [FusedAdamMathFunctor]",
    # Names that are no C++.
    "triton_poi_fused_add_relu_0": "triton_poi_fused_add_relu_0",
    "_ZN7cutlass6KernelI4gemmEEvT_": "_ZN7cutlass6KernelI4gemmEEvT_",
    "gemm(float *)": "gemm",
    "flash::kernel_traits<(a -> b)>": "flash::kernel_traits",
    "<<<": "<<<",
    "(x)": "(x)",
    "": "",
}  # fmt: skip


@pytest.mark.parametrize("name", COMM)
def test_what_the_name_of_a_communication_kernel_says(name):
    assert (collective_of(name), datatype_of(name), algorithm_of(name)) == COMM[name]
    assert COMM[name][0] in COLLECTIVES


@pytest.mark.parametrize("name", LABELS)
def test_the_label_of_a_kernel_is_its_name_and_what_tells_it_apart(name):
    assert kernel_label(name) == LABELS[name]


def test_a_collective_is_found_in_any_case_and_the_longest_name_wins():
    assert collective_of("NCCLKERNEL_REDUCESCATTER_RING") == "reduce_scatter"
    assert collective_of("mscclAllReduceKernel") == "all_reduce"


def test_a_datatype_that_is_part_of_a_word_is_none():
    assert datatype_of("ncclDevKernel_AllReduce_Sum_f32x4") is None
    assert datatype_of("ncclDevKernel_AllReducef32") is None


def test_every_collective_has_one_name():
    assert len(set(COLLECTIVES)) == len(COLLECTIVES) == 8
