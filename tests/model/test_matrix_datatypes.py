"""The datatype that kernels multiply matrices in, by their names in captures of known programs."""

import pytest

from nsyspipe.model.matrix_datatypes import (
    MIN_SHARE_OF_DATATYPE,
    MatrixTimes,
    is_matrix_kernel,
    matrix_datatype,
)
from nsyspipe.model.peaks import DATATYPES

FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, {}>>"
NAMES = {
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)": "fp32",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_kernel__5x_cublas": "fp32",
    "ampere_sgemm_128x64_tn": "fp32",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x256x32_warpgroupsize2x1x1_cublas": "tf32",
    "sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_tf32f32_tf32f32_f32_nhwckrsc_nhwc": "tf32",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_nt_align4>(P)": "tf32",
    "void Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x64_16x4_nhwc_align4>(P)": "tf32",
    "cutlass_80_tensorop_s1688tf32gemm_128x128_16x4_nn_align4": "tf32",
    "nvjet_sss_tf32_128x256_64x4_1x2_h_bz_TNT": "tf32",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN": "bf16",
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT": "bf16",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas": "bf16",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn>(P)": "bf16",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn": "bf16",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_tnn": "bf16",
    FLASH.format("cutlass::bfloat16_t"): "bf16",
    FLASH.format("cutlass::half_t"): "fp16",
    "nvjet_hsh_256x128_64x4_2x1_v_bz_TNN": "fp16",
    "nvjet_sm90_hss_320x128_64x3_1x2_h_bz_coopB_NNT": "fp16",
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn": "fp16",
    "ampere_h16816gemm_128x64_ldg8_stages_64x3_nn": "fp16",
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn": "fp16",
    "nvjet_qqtst_128x160_128x6_2x1_v_bz_TNT": "fp8",
    "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64_cublas": "fp8",
}
# Names without a datatype, and those of an integer or of a double.
OTHER_NAMES = (
    "gemm",
    "triton_mm_kernel",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1",
    "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16",
    "nvjet_ddd_128x64_16x4_1x1_v_bz_NNT",
    "nvjet_ootst_128x256_128x6_2x2_2cta_h_bz_TNT",
    "nvjet_sss_128x256_64x4_1x2_h_bz_TNT",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>",
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true>",
)
SIXTEEN_BITS = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64"
TF32 = "nvjet_sss_tf32_128x256_64x4_1x2_h_bz_TNT"
BF16 = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
FP16 = "nvjet_hsh_256x128_64x4_2x1_v_bz_TNN"


@pytest.mark.parametrize(("name", "datatype"), NAMES.items())
def test_a_name_shows_its_datatype(name, datatype):
    assert datatype in DATATYPES
    assert matrix_datatype(name) == datatype


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_show_no_datatype(name):
    assert matrix_datatype(name) is None


def test_a_conversion_is_no_matrix_kernel():
    assert is_matrix_kernel(BF16)
    assert not is_matrix_kernel("void cudnn::fusion::convert_dq_to_16bits<true>(const void *)")
    assert not is_matrix_kernel("void vectorized_elementwise_kernel<4, FillFunctor<float>>(int)")


def datatype_of(**time_of_name):
    return MatrixTimes.of_kernels(time_of_name).shares().datatype


@pytest.mark.parametrize(("n_others", "datatype"), [(50, "bf16"), (51, None)])
@pytest.mark.parametrize("name", [TF32, "gemm"])
def test_almost_all_of_the_time_has_one_datatype(name, n_others, datatype):
    # 950 of 1000 are exactly the limit.
    assert MIN_SHARE_OF_DATATYPE == 0.95
    assert datatype_of(**{BF16: 1000 - n_others, name: n_others}) == datatype


def test_kernels_that_multiply_no_matrices_do_not_count():
    assert datatype_of(**{BF16: 1, "elementwise_kernel": 99}) == "bf16"


@pytest.mark.parametrize(
    ("times", "datatype"),
    [
        ({BF16: 10, SIXTEEN_BITS: 90}, "bf16"),
        ({FP16: 10, SIXTEEN_BITS: 90}, "fp16"),
        ({BF16: 5, FP16: 5, SIXTEEN_BITS: 90}, None),
        ({SIXTEEN_BITS: 90}, None),
        ({TF32: 10, SIXTEEN_BITS: 90}, None),
    ],
)
def test_sixteen_bits_are_those_of_the_other_kernels(times, datatype):
    assert datatype_of(**times) == datatype


def test_times_of_several_captures_add_up():
    parts = [MatrixTimes.of_kernels({BF16: 3, "gemm": 1}), MatrixTimes.of_kernels({BF16: 4})]
    assert MatrixTimes.total(parts) == MatrixTimes({"bf16": 7}, 0, 1)


def test_without_matrix_kernels_there_are_no_shares():
    shares = MatrixTimes.of_kernels({"elementwise_kernel": 5}).shares()
    assert (shares.of_datatypes, shares.unknown, shares.datatype) == ({}, 0.0, None)
