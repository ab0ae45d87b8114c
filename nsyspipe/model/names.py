"""What names say: of a kernel which collective it is and its short label, of an NVTX range which phase or step."""

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

REDACTED_HOST = "host-{}"  # what redacted copies call hosts, numbered as they appear
_REDACTED_HOST = re.compile(r"host-\d{1,9}", re.ASCII)
_BY_NAME = {  # NCCL's name of the collective -> ours; longest first, since Reduce is part of others
    "ReduceScatter": "reduce_scatter",
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "Broadcast": "broadcast",
    "AllToAll": "all_to_all",
    "SendRecv": "send_recv",
    "Reduce": "reduce",
}
OTHER = "other"
COLLECTIVES = (*_BY_NAME.values(), OTHER)


def is_nccl_communicator(name: str) -> bool:
    """Tell whether a communicator has NCCL's own id, as ``0x58a8`` or, split off another, ``0x58a8/2.0``.

    Others are named by a collective and their order of first use, as ``all_reduce/0``.
    """
    return name.startswith("0x")


# Also as other libraries spell it: all_reduce, alltoall.
_COLLECTIVE = re.compile(
    "All_?Reduce|All_?Gather|Reduce_?Scatter|Broadcast|All_?To_?All|Send_?Recv|Reduce",
    re.IGNORECASE,
)
_LOWER = {name.lower(): own for name, own in _BY_NAME.items()}

_DATATYPES = {  # NCCL's spellings, old and new, as PyTorch says them
    "half": "f16",
    "float": "f32",
    "double": "f64",
    "__nv_bfloat16": "bf16",
    "int8_t": "i8",
    "uint8_t": "u8",
    "int32_t": "i32",
    "uint32_t": "u32",
    "int64_t": "i64",
    "uint64_t": "u64",
    "f8e4m3": "f8e4m3",
    "f8e5m2": "f8e5m2",
    **{
        name: name for name in ("f16", "f32", "f64", "bf16", "i8", "u8", "i32", "u32", "i64", "u64")
    },
}
_DATATYPE = re.compile(rf"_({'|'.join(sorted(_DATATYPES, key=len, reverse=True))})(?=_|\(|<|$)")
_ALGORITHMS = "RING|TREE|NVLS_TREE|NVLS|COLLNET_CHAIN|COLLNET_DIRECT|PAT"
_ALGORITHM = re.compile(rf"_((?:{_ALGORITHMS})_(?:LL128|LL|SIMPLE))(?=_|\(|<|$)")

# Words of kernels that update weights. Clipping and unscaling run as multi_tensor_apply too, so
# that says nothing.
_OPTIMIZERS = {
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "lamb",
    "lars",
    "lion",
    "muon",
    "nadam",
    "novograd",
    "optimizer",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
    "shampoo",
    "sophia",
}
# Words of a name that joins them by capitals or by anything that is no letter: FusedAdamMathFunctor
# has three.
_CAPITALISED = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LETTERS = re.compile(r"[A-Za-z]+")

# The part of a template's arguments that tells what an elementwise kernel computes.
_FUNCTOR = re.compile(r"\b(\w*(?:[Ff]unctor|Op|Ops|KernelImpl|_kernel_cuda)(?:_\w+)?)\b")
_GENERIC = ("func_wrapper", "ReduceOp", "OpMathType")
# Names that say little without the first template argument that does (CUTLASS, cuDNN, lambdas).
_FACELESS = re.compile(r"(?:^|::)(?:\w*_)?[Kk]ernel2?$")
_WORD = re.compile(r"(?:\b[A-Za-z_]\w*::)*\b([A-Za-z_]\w+)")  # without its namespaces
_IS_LABEL = re.compile(r"\w+ \[\w+\]")  # as this program names what has no name of its own
_SAYS_NOTHING = re.compile(
    r"void|const|bool|char|short|int|long|(?:un)?signed|float|double|[Aa]rray|lambda|instance|operator|"
    r"gpu_kernel_impl(?:_nocast)?|T\d+"
)
LONGEST_CALL = 35  # of a call's name, as the report has it; all of CUDA's are shorter
_MOST_NAMES = 4096  # so many kernels' are kept: the ranks of a job run the same
_MATRIX_PRODUCT = re.compile(
    r"(?i)gemm|gemv|matmul|cutlass|xmma|wgmma|nvjet|conv|winograd|attention|fmha|flash"
)
PHASE_PATTERNS: dict[
    str, str
] = {  # in order of precedence: a text that matches several is the first
    "backward": r"(?i)(?<![a-z])(backward|bwd)(?![a-z])",
    "forward": r"(?i)(?<![a-z])(forward|fwd)(?![a-z])",
    "optimizer": r"(?i)\boptim|^DeepSpeedEngine\.step$",
    "data": r"(?i)\b(get|fetch|load|next)?[ _-]*(batch|data|input)|data[ _-]*loader",
}
PHASES = tuple(PHASE_PATTERNS)

# torch.autograd.profiler.emit_nvtx appends these to every text. Both patterns mean the same to RE2
# (Arrow) and to Python.
SUFFIX_PATTERN = r", (?:seq|op_id) = [0-9]+"
DIGITS_PATTERN = r"[0-9]+"

# Domains that libraries open for ranges of their own, by how their names begin; any other named
# domain is the user's.
_LIBRARY_DOMAINS = (
    "NCCL",
    "MPI",
    "DALI",
    "CCCL",
    "UCX",
    "cuBLAS",
    "cuDNN",
    "cuFFT",
    "cuSPARSE",
    "cuSOLVER",
    "cuRAND",
    "cuTENSOR",
    "cuFile",
    "cuDF",
    "libcudf",
    "libcu++",
    "libcudacxx",
    "TensorRT",
    "NVSHMEM",
    "nvJPEG",
    "nvImageCodec",
    "librmm",
    "libkvikio",
)
_ANY_CASE = (
    re.escape(one) if one.isupper() else f"(?i:{re.escape(one)})" for one in _LIBRARY_DOMAINS
)
_LIBRARY_DOMAIN = re.compile("|".join(_ANY_CASE))  # abbreviations as they are written
# What torch.autograd.profiler.emit_nvtx and pyprof write: one range per operator, or a dictionary
# of its arguments.
_OPERATOR = re.compile(
    r"(?:aten|autograd|c(?:10|#)d?|_c(?:10|#)d_functional|prim|quantized|torch|torchaudio|torchvision)::"
    r"|\{\s*['\"]\w+['\"]\s*:"
)
_ONE_STEP = re.compile(r"(?i)(?<![a-z])(step|iter|iteration|batch)(?![a-z])")
_PART_OF_STEP = re.compile(
    "|".join(PHASE_PATTERNS[phase].replace("(?i)", "") for phase in PHASES[:3]), re.IGNORECASE
)
_HOLDS_STEPS = re.compile(r"(?i)epoch|warm[-_ ]?up")
_LARGEST_STEP = 2**63 - 1
RUN_DIRECTORY = (
    "run_id="  # in each table of a store the directory of a run begins so; the run's id follows
)


def collective_of(name: str) -> str:
    """Return the collective that a communication kernel's name says, or ``other``.

    >>> collective_of("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL")
    'reduce_scatter'
    """
    found = _COLLECTIVE.search(name)
    return OTHER if found is None else _LOWER[found[0].lower().replace("_", "")]


def datatype_of(name: str) -> str | None:
    """Return the element type in a communication kernel's name, ``f32``; None when it says none."""
    return _DATATYPES[found[1]] if (found := _DATATYPE.search(name)) else None


def algorithm_of(name: str) -> str | None:
    """Return algorithm and protocol in a communication kernel's name, ``RING_LL``; None when it says none."""
    return found[1] if (found := _ALGORITHM.search(name)) else None


def is_matrix_product(name: str) -> bool:
    """Tell whether a kernel multiplies matrices, convolves or attends: what layers do, and neither optimizers nor losses.

    >>> is_matrix_product("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"), is_matrix_product("vectorized_elementwise_kernel")
    (True, False)
    """
    return _MATRIX_PRODUCT.search(name) is not None


@lru_cache(_MOST_NAMES)
def is_optimizer(name: str) -> bool:
    """Tell whether a kernel updates weights, by the functor or the function that its name says.

    >>> is_optimizer("multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>")
    True
    >>> is_optimizer("multi_tensor_apply_kernel<at::native::BinaryOpScalarFunctor<float>>")
    False
    """
    words = {one.lower() for pattern in (_LETTERS, _CAPITALISED) for one in pattern.findall(name)}
    return not _OPTIMIZERS.isdisjoint(words) or "rmsprop" in name.lower()


@lru_cache(_MOST_NAMES)
def kernel_label(name: str) -> str:
    """Return a kernel's name without parameters and template arguments, with the functor that tells it apart.

    >>> kernel_label("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, T2)")
    'vectorized_elementwise_kernel [FillFunctor]'
    """
    if _IS_LABEL.fullmatch(name):
        return name
    bare, arguments = _without_brackets(name)
    bare = bare.strip().split(" ")[-1].removeprefix("at::native::").removeprefix("::").strip(":")
    functors = [one for one in _FUNCTOR.findall(arguments) if not one.startswith(_GENERIC)]
    if not functors and _FACELESS.search(bare):
        functors = [one for one in _WORD.findall(arguments) if not _SAYS_NOTHING.fullmatch(one)]
    return f"{bare} [{functors[0]}]" if functors and bare else bare or name


def _without_brackets(name: str) -> tuple[str, str]:
    """Split a name into what stands outside of all brackets, and its last word's template arguments."""
    name = name.replace("(anonymous namespace)", "").replace("<unnamed>", "").replace("::::", "::")
    outside = list[str]()
    inside = list[str]()
    depth = 0
    for at, char in enumerate(name):
        if char == "(" and depth == 0:
            break  # the parameters
        if char == " " and depth == 0:
            inside.clear()  # the result's
        if char == "<":
            depth += 1
        elif char == ">" and name[at - 1] != "-":
            depth = max(depth - 1, 0)
        else:
            (inside if depth else outside).append(char)
            continue
        inside.append(" ")
    return "".join(outside), "".join(inside)


def step_number(text: str) -> int | None:
    """Return the one integer in the text, suffixes dropped; None when there is not exactly one."""
    found = re.findall(DIGITS_PATTERN, re.sub(SUFFIX_PATTERN, "", text))
    digits = found[0].lstrip("0").zfill(1) if len(found) == 1 else ""
    is_number = (
        0 < len(digits) <= len(str(_LARGEST_STEP)) and int(digits) <= _LARGEST_STEP
    )  # Python refuses thousands
    return int(digits) if is_number else None


def holds_steps(family: str) -> bool:
    """Tell whether a family is named like an epoch or a warm-up, which hold many steps."""
    return _HOLDS_STEPS.search(family) is not None


def is_step_name(family: str) -> bool:
    """Tell whether a family is named like one step."""
    return _ONE_STEP.search(family) is not None


def is_part_of_step(family: str) -> bool:
    """Tell whether a family is named like what each step has one or several of: a backward pass, not a step."""
    return _PART_OF_STEP.search(family) is not None and not is_step_name(family)


def is_library_domain(name: str) -> bool:
    """Tell whether an NVTX domain is a library's own: cuBLAS, cuBLASLt, DALI, NCCL, and so on."""
    return _LIBRARY_DOMAIN.match(name) is not None


def is_operator(family: str) -> bool:
    """Tell whether a text, normalised or not, is an operator's: ``aten::mm``, ``{'mod': 'torch', ...}``."""
    return _OPERATOR.match(family) is not None


def phase_of(family: str, patterns: Mapping[str, re.Pattern[str]]) -> str | None:
    """Return the first phase whose pattern matches a normalised text, or None."""
    return next((phase for phase in PHASES if patterns[phase].search(family)), None)


def printable(text: str) -> str:
    """Replace control characters, so that a name can neither drive a terminal nor break a line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def bare_name(name: str) -> str:
    """Return a name without case, spacing and punctuation: ``messagesizebytes`` for ``Message size [bytes]``."""
    return "".join(filter(str.isalnum, name)).lower()


def decoded(name: str) -> str:
    """Return a file name as text: bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def table_of_store(path: Path) -> tuple[str, str] | None:
    """Return what a table's directory of a store is, where something else was meant, and its store; None for any other path.

    The store is a path from here, or absolute as that is. OSError if the directory cannot be looked
    into.
    """
    if any(one.name.startswith(RUN_DIRECTORY) for one in path.iterdir()):
        return "a directory inside a store of saved runs", place_as_given(
            Path(os.path.realpath(path)).parent, path
        )
    return None


def place_as_given(place: Path, given: Path) -> str:
    """Return a place as a path that was given names places: absolute, or from here."""
    return str(place) if given.is_absolute() else os.path.relpath(place)


def listed(names: Iterable[object], most: int | None = None, joint: str = "and") -> str:
    """Return names as ``a, b and c``, with another joint ``a, b or c``; of more than `most` the first, and how many more there are."""
    *some, last = words = [str(name) for name in names]
    if most is not None and len(words) > most:
        some = words[:most]
        last = f"{len(words) - most} more"
    return f"{', '.join(some)} {joint} {last}" if some else last


def is_redacted_host(host: str) -> bool:
    """Tell whether a host's name is one that redacted copies have in place of its own."""
    return _REDACTED_HOST.fullmatch(host) is not None


def few(names: Iterable[object], most: int, joint: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    words = [str(name) for name in names]
    return joint.join(words[:most]) + (
        f" and {len(words) - most} more" if len(words) > most else ""
    )


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return what goes by each name, or other key, in the order given: ``{"a": [1, 3], "b": [2]}``."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def ranges(numbers: Iterable[int]) -> list[str]:
    """Return numbers in ascending order, those that follow each other as one: ``0-3``, ``7``."""
    runs = itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = ([number for _, number in pairs] for _, pairs in runs)
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends]
