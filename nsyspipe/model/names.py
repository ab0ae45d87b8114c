"""What names mean: collective and label of a kernel, and phase or step of an NVTX range."""

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

# Names of hosts in redacted copies, numbered in the order in which they appear.
REDACTED_HOST = "host-{}"
_REDACTED_HOST = re.compile(r"host-\d{1,9}", re.ASCII)

OTHER = "other"
# NCCL's name of a collective, in lower case -> ours.
_COLLECTIVE_BY_NCCL_NAME = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}
COLLECTIVES = (*_COLLECTIVE_BY_NCCL_NAME.values(), OTHER)
# Other libraries write all_reduce or alltoall. Reduce is last, since it is a part of other names.
_COLLECTIVE = re.compile(
    "All_?Reduce|All_?Gather|Reduce_?Scatter|Broadcast|All_?To_?All|Send_?Recv|Reduce",
    re.IGNORECASE,
)

# A type of elements as NCCL writes it, in old and new versions -> as PyTorch writes it.
_DATATYPES = {
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
    "f16": "f16",
    "f32": "f32",
    "f64": "f64",
    "bf16": "bf16",
    "i8": "i8",
    "u8": "u8",
    "i32": "i32",
    "u32": "u32",
    "i64": "i64",
    "u64": "u64",
}
_LONGEST_DATATYPE_FIRST = sorted(_DATATYPES, key=len, reverse=True)
_DATATYPE = re.compile(rf"_({'|'.join(_LONGEST_DATATYPE_FIRST)})(?=_|\(|<|$)")
_ALGORITHMS = "RING|TREE|NVLS_TREE|NVLS|COLLNET_CHAIN|COLLNET_DIRECT|PAT"
_ALGORITHM = re.compile(rf"_((?:{_ALGORITHMS})_(?:LL128|LL|SIMPLE))(?=_|\(|<|$)")

# Words in names of kernels that update weights. multi_tensor_apply is none of them, because it also
# clips and unscales gradients.
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
# Two ways to split a name into words: by capitals (FusedAdamMathFunctor has four words), and by
# everything that is not a letter.
_CAPITALIZED_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LETTERS = re.compile(r"[A-Za-z]+")

# The template argument that tells what an elementwise kernel computes.
_FUNCTOR = re.compile(r"\b(\w*(?:[Ff]unctor|Op|Ops|KernelImpl|_kernel_cuda)(?:_\w+)?)\b")
_GENERIC_FUNCTORS = ("func_wrapper", "ReduceOp", "OpMathType")
# Names that tell little without their first meaningful template argument (CUTLASS, cuDNN, lambdas).
_GENERIC_KERNEL = re.compile(r"(?:^|::)(?:\w*_)?[Kk]ernel2?$")
# A word after its namespaces.
_WORD = re.compile(r"(?:\b[A-Za-z_]\w*::)*\b([A-Za-z_]\w+)")
_MEANINGLESS_WORD = re.compile(
    r"void|const|bool|char|short|int|long|(?:un)?signed|float|double|"
    r"[Aa]rray|lambda|instance|operator|gpu_kernel_impl(?:_nocast)?|T\d+"
)
# A label that nsyspipe made for something without a name of its own.
_MADE_LABEL = re.compile(r"\w+ \[\w+\]")
# Letters of the name of an API call that are shown. All names of CUDA are shorter.
LONGEST_CALL = 35
# What shows the datatype of matrix multiplications.
OPTION = "--peak"
KERNEL_NAMES = "kernel names"
# The ranks of a job run the same kernels, so their names are looked up again and again.
_MAX_CACHED_NAMES = 4096
_MATRIX_PRODUCT = re.compile(
    r"(?i)gemm|gemv|matmul|cutlass|xmma|wgmma|nvjet|conv|winograd|attention|fmha|flash"
)

# A text that matches several patterns is the first of these phases.
PHASE_PATTERNS: dict[str, str] = {
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

# How the names of NVTX domains begin that libraries open for ranges of their own. A domain with
# another name is the user's.
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
    # Of nsys itself: samples of Python, and its global lock.
    "Python Backtrace",
    "GIL Trace",
)
# Abbreviations are matched as they are written, other names in any case.
_DOMAIN_PATTERNS = [
    re.escape(name) if name.isupper() else f"(?i:{re.escape(name)})" for name in _LIBRARY_DOMAINS
]
_LIBRARY_DOMAIN = re.compile("|".join(_DOMAIN_PATTERNS))
# Ranges of torch.autograd.profiler.emit_nvtx and pyprof: an operator, or a dictionary of its
# arguments.
_OPERATOR = re.compile(
    r"(?:aten|autograd|c(?:10|#)d?|_c(?:10|#)d_functional|prim|quantized|"
    r"torch|torchaudio|torchvision)::"
    r"|\{\s*['\"]\w+['\"]\s*:"
)
_STEP_NAME = re.compile(r"(?i)(?<![a-z])(step|iter|iteration|batch)(?![a-z])")
_PHASES_OF_STEP_PATTERNS = [
    PHASE_PATTERNS[phase].replace("(?i)", "") for phase in ("backward", "forward", "optimizer")
]
_PART_OF_STEP = re.compile("|".join(_PHASES_OF_STEP_PATTERNS), re.IGNORECASE)
_HOLDS_STEPS = re.compile(r"(?i)epoch|warm[-_ ]?up")
# The largest step number that int64 can hold.
_LARGEST_STEP = 2**63 - 1

# The directory of a run, in each table of a store, is named by this and the ID of the run.
RUN_DIRECTORY = "run_id="
# Verbs after a count, and the same verbs after 1.
SINGULAR_VERBS = {"are": "is", "do": "does", "have": "has", "run": "runs", "were": "was"}


def is_nccl_communicator(name: str) -> bool:
    """Tell whether a communicator has an ID of NCCL, for example ``0x58a8``.

    A communicator that was split off another has an ID such as ``0x58a8/2.0``. Communicators
    without an ID are named by a collective and their order of first use, as ``all_reduce/0``.
    """
    return name.startswith("0x")


def collective_of(name: str) -> str:
    """Return the collective in the name of a communication kernel, or ``other``.

    >>> collective_of("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL")
    'reduce_scatter'
    """
    match = _COLLECTIVE.search(name)
    if match is None:
        return OTHER
    nccl_name = match[0].lower().replace("_", "")
    return _COLLECTIVE_BY_NCCL_NAME[nccl_name]


def datatype_of(name: str) -> str | None:
    """Return the element type in the name of a communication kernel, for example ``f32``."""
    match = _DATATYPE.search(name)
    return None if match is None else _DATATYPES[match[1]]


def algorithm_of(name: str) -> str | None:
    """Return algorithm and protocol in the name of a communication kernel, as in ``RING_LL``."""
    match = _ALGORITHM.search(name)
    return None if match is None else match[1]


def is_matrix_product(name: str) -> bool:
    """Tell whether a kernel multiplies matrices, convolves or computes attention.

    Layers do this, but optimizers and losses do not.

    >>> is_matrix_product("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT")
    True
    >>> is_matrix_product("vectorized_elementwise_kernel")
    False
    """
    return _MATRIX_PRODUCT.search(name) is not None


@lru_cache(_MAX_CACHED_NAMES)
def is_optimizer(name: str) -> bool:
    """Tell whether a kernel updates weights, by the functor or the function in its name.

    >>> is_optimizer("multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>")
    True
    >>> is_optimizer("multi_tensor_apply_kernel<at::native::BinaryOpScalarFunctor<float>>")
    False
    """
    words = {*_LETTERS.findall(name), *_CAPITALIZED_WORD.findall(name)}
    has_word_of_optimizer = any(word.lower() in _OPTIMIZERS for word in words)
    return has_word_of_optimizer or "rmsprop" in name.lower()


@lru_cache(_MAX_CACHED_NAMES)
def kernel_label(name: str) -> str:
    """Return the name of a kernel without parameters and template arguments.

    The template argument that distinguishes the kernel, its functor, is added in brackets.

    >>> kernel_label("void at::native::elementwise_kernel<4, at::native::FillFunctor<float>>(int)")
    'elementwise_kernel [FillFunctor]'
    """
    if _MADE_LABEL.fullmatch(name):
        return name
    outside, template_arguments = _without_brackets(name)
    # The last word is the function. The words before it are the type of its result.
    *_, function = outside.strip().split(" ")
    function = function.removeprefix("at::native::").removeprefix("::").strip(":")
    if not function:
        return name
    functor = _distinguishing_functor(function, template_arguments)
    return function if functor is None else f"{function} [{functor}]"


def _distinguishing_functor(function: str, template_arguments: str) -> str | None:
    """Return the template argument that distinguishes a kernel from others of the same function.

    This is the first functor that says what the kernel computes. For a kernel with a generic name,
    it may be the first meaningful word. None if there is neither.
    """
    functors: list[str] = _FUNCTOR.findall(template_arguments)
    for functor in functors:
        if not functor.startswith(_GENERIC_FUNCTORS):
            return functor
    if not _GENERIC_KERNEL.search(function):
        return None
    words: list[str] = _WORD.findall(template_arguments)
    for word in words:
        if not _MEANINGLESS_WORD.fullmatch(word):
            return word
    return None


def _without_brackets(name: str) -> tuple[str, str]:
    """Return the part of a name outside of angle brackets, and the part inside of them.

    The latter are the template arguments of the last word, which is the function. The parameters of
    the function are in neither part.
    """
    name = name.replace("(anonymous namespace)", "").replace("<unnamed>", "").replace("::::", "::")
    outside: list[str] = []
    inside: list[str] = []
    # In how many brackets the character is.
    depth = 0
    previous = ""
    for char in name:
        if depth == 0 and char == "(":
            # The parameters, and nothing of interest after them.
            break
        if depth == 0 and char == " ":
            # What was in brackets so far belongs to the type of the result.
            inside.clear()
        # In -> this is no bracket.
        closes_bracket = char == ">" and previous != "-"
        if char == "<":
            depth += 1
            inside.append(" ")
        elif closes_bracket:
            # A damaged name may close more brackets than it opens.
            depth = max(depth - 1, 0)
            inside.append(" ")
        elif depth:
            inside.append(char)
        else:
            outside.append(char)
        previous = char
    return "".join(outside), "".join(inside)


def step_number(text: str) -> int | None:
    """Return the only integer in a text, apart from suffixes of PyTorch.

    None if there is not exactly one, or if it is too large for int64.
    """
    without_suffixes = re.sub(SUFFIX_PATTERN, "", text)
    numbers = re.findall(DIGITS_PATTERN, without_suffixes)
    if len(numbers) != 1:
        return None
    digits = numbers[0].lstrip("0") or "0"
    # This is checked first, because Python refuses to convert thousands of digits.
    if len(digits) > len(str(_LARGEST_STEP)):
        return None
    number = int(digits)
    return number if number <= _LARGEST_STEP else None


def holds_steps(family: str) -> bool:
    """Tell whether a family has the name of an epoch or a warm-up, which hold many steps."""
    return _HOLDS_STEPS.search(family) is not None


def is_step_name(family: str) -> bool:
    """Tell whether a family has the name of a step."""
    return _STEP_NAME.search(family) is not None


def is_part_of_step(family: str) -> bool:
    """Tell whether a family has the name of a part of a step, such as a backward pass."""
    is_part = _PART_OF_STEP.search(family) is not None
    return is_part and not is_step_name(family)


def is_library_domain(name: str) -> bool:
    """Tell whether an NVTX domain belongs to a library, such as cuBLAS, DALI or NCCL."""
    return _LIBRARY_DOMAIN.match(name) is not None


def is_operator(family: str) -> bool:
    """Tell whether a text names an operator: ``aten::mm`` or ``{'mod': 'torch', ...}``.

    The text may be normalized or not.
    """
    return _OPERATOR.match(family) is not None


def phase_of(family: str, patterns: Mapping[str, re.Pattern[str]]) -> str | None:
    """Return the first phase whose pattern matches a normalized text, or None."""
    for phase in PHASES:
        if patterns[phase].search(family):
            return phase
    return None


def printable(text: str) -> str:
    """Replace control characters, so that a name can neither drive a terminal nor break a line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def bare_name(name: str) -> str:
    """Return a name without case, spacing and punctuation.

    ``Message size [bytes]`` becomes ``messagesizebytes``.
    """
    return "".join(filter(str.isalnum, name)).lower()


def decoded(name: str) -> str:
    """Return a file name as text, with a replacement for bytes that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def table_of_store(path: Path) -> tuple[str, str] | None:
    """Return what a directory inside a run store is, in words, and the path of the store.

    The store has a directory for each of its tables, which has a directory for each run. A user who
    passes the directory of a table means the store. The path of the store is absolute if `path` is.
    Return None for any other directory. Raise an OSError if the directory cannot be read.
    """
    has_runs = any(entry.name.startswith(RUN_DIRECTORY) for entry in path.iterdir())
    if not has_runs:
        return None
    store = Path(os.path.realpath(path)).parent
    return "a directory inside a store of saved runs", place_as_given(store, path)


def place_as_given(place: Path, example: Path) -> str:
    """Return a path in the form of an example: absolute, or relative to the working directory."""
    if example.is_absolute():
        return str(place)
    return os.path.relpath(place)


def listed(names: Iterable[object], most: int | None = None, joint: str = "and") -> str:
    """Return names as ``a, b and c``, or with another `joint` as ``a, b or c``.

    Of more than `most` names, only the first are listed, as ``a, b and 3 more``. Without names, the
    text is empty, as that of `few`.
    """
    entries = [str(name) for name in names]
    if most is not None and len(entries) > most:
        n_hidden = len(entries) - most
        entries = [*entries[:most], f"{n_hidden} more"]
    if len(entries) <= 1:
        return "".join(entries)
    *first_entries, last_entry = entries
    separated_entries = ", ".join(first_entries)
    return f"{separated_entries} {joint} {last_entry}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, ``1 check`` or ``3 checks``."""
    return f"{count} {noun_for(count, noun)}"


def noun_for(count: float, noun: str) -> str:
    """Return a noun, in the plural unless the count is 1."""
    return noun if count == 1 else f"{noun}s"


def verb_for(count: int, verb: str) -> str:
    """Return a verb of `SINGULAR_VERBS` after a count, ``1 rank is`` or ``3 ranks are``."""
    return SINGULAR_VERBS[verb] if count == 1 else verb


def is_redacted_host(host: str) -> bool:
    """Tell whether a redacted copy gave a host its name."""
    return _REDACTED_HOST.fullmatch(host) is not None


def few(names: Iterable[object], most: int, joint: str = ", ") -> str:
    """Return the first `most` names, and how many more there are: ``a, b and 3 more``."""
    texts = [str(name) for name in names]
    n_hidden = len(texts) - most
    shown = joint.join(texts[:most])
    if n_hidden <= 0:
        return shown
    return f"{shown} and {n_hidden} more"


def few_with_reasons(names_and_reasons: Iterable[tuple[str, str]], most: int) -> str:
    """Return names with their reasons, names of one reason together: ``a, b (empty), c (a link)``.

    Only the first `most` reasons and the first `most` names of each are in the text. The others are
    counted: ``a, b, c and 4 more (empty)``.
    """
    names_by_reason = grouped((reason, name) for name, reason in names_and_reasons)
    groups = [f"{few(names, most)} ({reason})" for reason, names in names_by_reason.items()]
    shown = ", ".join(groups[:most])
    names_without_reason = [*names_by_reason.values()][most:]
    n_hidden = sum(len(names) for names in names_without_reason)
    return f"{shown} and {n_hidden} more" if n_hidden else shown


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in the order of the pairs.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    values_by_key: dict[Key, list[Value]] = {}
    for key, value in pairs:
        values_by_key.setdefault(key, []).append(value)
    return values_by_key


def ranges(numbers: Iterable[int]) -> list[str]:
    """Return numbers in ascending order, with successive numbers as a range: ``0-3``, ``7``."""
    positions_and_numbers = enumerate(sorted(numbers))
    # Among successive numbers, the difference of number and position stays the same.
    runs = itertools.groupby(positions_and_numbers, lambda pair: pair[1] - pair[0])
    texts = []
    for _, pairs in runs:
        successive_numbers = [number for _, number in pairs]
        first = successive_numbers[0]
        last = successive_numbers[-1]
        text = f"{first}" if first == last else f"{first}-{last}"
        texts.append(text)
    return texts
