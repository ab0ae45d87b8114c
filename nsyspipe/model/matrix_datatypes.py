"""The datatype that kernels multiply matrices in, by their names.

NVIDIA documents the names of CUTLASS. Those of cuBLAS and cuDNN are as they were seen in captures
of programs with a known datatype. A name that does not match a form here has no known datatype.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from nsyspipe.model.names import is_matrix_product, kernel_label

# The ranks of a job run the same kernels, so their names are looked up again and again.
_MAX_CACHED_NAMES = 4096
# At least this share of the time of matrix kernels has one datatype. Otherwise the step mixes
# datatypes, or the names do not show them. The peaks of a datatype and of the next faster or slower
# one differ by a factor of about 2. So kernels of another datatype, or of an unknown one, change
# ideal compute by less than about their own time: MFU is wrong by at most 5 points.
MIN_SHARE_OF_DATATYPE = 0.95
# Names of cuDNN that show 16 bits, but not which of the two datatypes has them.
_SIXTEEN_BITS = "16 bits"
_SIXTEEN_BIT_DATATYPES = ("bf16", "fp16")
_DATATYPES_BY_WORD = {
    "bf16": "bf16",
    "bfloat16_t": "bf16",
    "f16": "fp16",
    "fp16": "fp16",
    "half_t": "fp16",
    "tf32": "tf32",
    "f32": "fp32",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "float_e4m3_t": "fp8",
    "float_e5m2_t": "fp8",
}
# Of the first operand in a name of nvjet. Single precision has the word tf32 if it is TF32.
_DATATYPES_BY_LETTER = {"t": "bf16", "h": "fp16", "q": "fp8"}
_OPERATION = r"(?:gemm|fprop|dgrad|wgrad)"
# Forms with the word of the datatype in them, from the most certain on.
_FORMS = (
    # nvjet_sss_tf32_128x256_...
    re.compile(r"^nvjet_(?:sm[0-9]+[a-z]?_)?[a-z]+_(?P<word>tf32)_"),
    # sm90_xmma_gemm_f32f32_tf32f32_f32_nt_...: outputs, operands and accumulator, the result
    re.compile(
        r"xmma_[a-z0-9_]*?(?:gemm|fprop|dgrad|wgrad)[a-z0-9_]*?_(?:[a-z]+[0-9]+){2,3}_"
        r"(?P<word>bf16|f16|tf32|f32|e4m3|e5m2)(?:bf16|f16|tf32|f32)_"
    ),
    # cutlass_80_tensorop_bf16_s16816gemm_bf16_..., ampere_fp16_s16816gemm_fp16_...
    re.compile(
        rf"s[0-9]+(?:x[0-9]+)*{_OPERATION}(?:_[a-z]+)*_(?P<word>bf16|f16|fp16|tf32|e4m3|e5m2)_"
    ),
    # cutlass_80_tensorop_s1688tf32gemm_...
    re.compile(rf"tensorop_s[0-9]+(?P<word>tf32){_OPERATION}"),
    # flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, cutlass::bfloat16_t, ...
    re.compile(r"flash.*?cutlass::(?P<word>bfloat16_t|half_t|float_e4m3_t|float_e5m2_t)"),
)
# Forms that have one datatype.
_FORMS_OF_DATATYPE = (
    ("fp32", re.compile(r"simt_s(?:gemm|fprop|dgrad|wgrad)")),
    ("fp32", re.compile(r"^(?:maxwell|pascal|volta|turing|ampere)_sgemm_")),
    # Operands of half precision, which are also summed up in half precision.
    ("fp16", re.compile(rf"(?:^|_)h[0-9]{{3,6}}(?:x[0-9]+)*{_OPERATION}_")),
    # From Ampere on, m16n8k8 with operands of single precision is TF32.
    ("tf32", re.compile(r"cutlass_[89][0-9]_tensorop_s1688gemm_[0-9]")),
    (_SIXTEEN_BITS, re.compile(r"^cudnn_generated.*sdpa.*_f16_")),
)
_NVJET = re.compile(r"^nvjet_(?:sm[0-9]+[a-z]?_)?(?P<operand>[a-z])[a-z]{2,4}_")


@lru_cache(_MAX_CACHED_NAMES)
def _datatype_in(name: str) -> str | None:
    """Return the datatype that the whole name of a kernel shows; None if it shows none.

    `_SIXTEEN_BITS` stands for bf16 or fp16, if the name does not tell them apart.
    """
    for form in _FORMS:
        match = form.search(name)
        if match is not None:
            return _DATATYPES_BY_WORD[match["word"]]
    for datatype, form in _FORMS_OF_DATATYPE:
        if form.search(name):
            return datatype
    # A name of nvjet has a letter for each operand.
    nvjet = _NVJET.match(name)
    return None if nvjet is None else _DATATYPES_BY_LETTER.get(nvjet["operand"])


def matrix_datatype(name: str) -> str | None:
    """Return the datatype in the whole name of a kernel that multiplies matrices.

    It is one of `peaks.DATATYPES`, or None if the name does not show one.

    >>> matrix_datatype("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x256x32")
    'tf32'
    >>> matrix_datatype("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT")
    'bf16'
    """
    datatype = _datatype_in(name)
    return None if datatype == _SIXTEEN_BITS else datatype


def is_matrix_kernel(name: str) -> bool:
    """Tell whether a kernel multiplies matrices, by its whole name. Conversions do not."""
    label = kernel_label(name)
    return is_matrix_product(label) and "convert" not in label


class MatrixTimes(Struct, frozen=True):
    """The time of the kernels that multiply matrices, in ns."""

    # The time of each datatype.
    of_datatypes: dict[str, int] = {}
    # Of kernels whose names show that the datatype is bf16 or fp16, but not which of the two.
    of_sixteen_bits: int = 0
    # Of kernels whose names do not show a datatype.
    unknown: int = 0

    @classmethod
    def of_kernels(cls, time_of_name: Mapping[str, int]) -> "MatrixTimes":
        """Return the times of the matrix kernels among all kernels.

        `time_of_name` has the time of the kernels with each name, in ns. The names are whole, with
        template arguments and parameters.
        """
        # None is the datatype of names that do not show one.
        time_of_datatype: dict[str | None, int] = {}
        for name, time_ns in time_of_name.items():
            if is_matrix_kernel(name):
                datatype = _datatype_in(name)
                time_of_datatype[datatype] = time_of_datatype.get(datatype, 0) + time_ns
        unknown = time_of_datatype.pop(None, 0)
        of_sixteen_bits = time_of_datatype.pop(_SIXTEEN_BITS, 0)
        of_datatypes = {str(datatype): time_ns for datatype, time_ns in time_of_datatype.items()}
        return cls(of_datatypes, of_sixteen_bits, unknown)

    @classmethod
    def total(cls, parts: Iterable["MatrixTimes"]) -> "MatrixTimes":
        """Return the sum of several times."""
        of_datatypes: dict[str, int] = {}
        of_sixteen_bits = 0
        unknown = 0
        for part in parts:
            of_sixteen_bits += part.of_sixteen_bits
            unknown += part.unknown
            for datatype, time_ns in part.of_datatypes.items():
                of_datatypes[datatype] = of_datatypes.get(datatype, 0) + time_ns
        return cls(of_datatypes, of_sixteen_bits, unknown)

    def shares(self) -> "DatatypeShares":
        """Return the share of each datatype in the whole time; no shares without any time.

        Datatypes with the same share are in order of name.
        """
        time_of_datatype = dict(self.of_datatypes)
        unknown_ns = self.unknown
        if self.of_sixteen_bits:
            # Most programs use only one of bf16 and fp16. If the names of other kernels show one of
            # the two, the time counts for it. If they show both or none, the datatype is unknown.
            shown = [name for name in _SIXTEEN_BIT_DATATYPES if name in time_of_datatype]
            if len(shown) == 1:
                time_of_datatype[shown[0]] += self.of_sixteen_bits
            else:
                unknown_ns += self.of_sixteen_bits
        total_ns = sum(time_of_datatype.values()) + unknown_ns
        if not total_ns:
            return DatatypeShares({}, 0.0)
        by_name = sorted(time_of_datatype.items())
        # The sort keeps the order of equal times.
        largest_first = sorted(by_name, key=lambda item: item[1], reverse=True)
        shares = {datatype: time_ns / total_ns for datatype, time_ns in largest_first}
        return DatatypeShares(shares, unknown_ns / total_ns)


class DatatypeShares(NamedTuple):
    """The shares of datatypes in the time of matrix kernels, the largest first."""

    of_datatypes: dict[str, float]
    unknown: float

    @property
    def datatype(self) -> str | None:
        """The datatype that almost all of the time has, None if there is none."""
        if not self.of_datatypes:
            return None
        # The first share is the largest.
        datatype, share = next(iter(self.of_datatypes.items()))
        return datatype if share >= MIN_SHARE_OF_DATATYPE else None
