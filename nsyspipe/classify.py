"""What a kernel's name says: which collective it is, on which data, by which algorithm, and its short label."""

from __future__ import annotations

import re

__all__ = [
    "COLLECTIVES",
    "OTHER",
    "algorithm_of",
    "collective_of",
    "datatype_of",
    "is_optimizer",
    "kernel_label",
]

# NCCL's name of the collective -> ours; longest first, since Reduce is part of others.
_BY_NAME = {
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

_COLLECTIVE = re.compile("|".join(_BY_NAME), re.IGNORECASE)
_LOWER = {name.lower(): own for name, own in _BY_NAME.items()}

# NCCL's spellings, old and new, as PyTorch says them.
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
    **{
        name: name for name in ("f16", "f32", "f64", "bf16", "i8", "u8", "i32", "u32", "i64", "u64")
    },
}
_DATATYPE = re.compile(rf"_({'|'.join(sorted(_DATATYPES, key=len, reverse=True))})(?=_|\(|<|$)")
_ALGORITHM = re.compile(
    r"_((?:RING|TREE|NVLS_TREE|NVLS|COLLNET_CHAIN|COLLNET_DIRECT|PAT)_(?:LL128|LL|SIMPLE))(?=_|\(|<|$)"
)

# Words of kernels that update weights. Clipping and unscaling run as multi_tensor_apply too, so that says nothing.
_OPTIMIZERS = {
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "lamb", "lars", "lion", "muon", "nadam",
    "novograd", "optimizer", "radam", "rmsprop", "rprop", "sgd", "shampoo", "sophia",
}  # fmt: skip
# A word of a name that joins them by capitals or by anything that is no letter: FusedAdamMathFunctor has three.
_CAPITALISED = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LETTERS = re.compile(r"[A-Za-z]+")

# The part of a template's arguments that tells what an elementwise kernel computes.
_FUNCTOR = re.compile(r"\b(\w*(?:[Ff]unctor|Op|Ops|KernelImpl|_kernel_cuda)(?:_\w+)?)\b")
_GENERIC = ("func_wrapper", "ReduceOp", "OpMathType")
# Names that say little without the first template argument that does (CUTLASS, cuDNN, lambdas).
_FACELESS = re.compile(r"(?:^|::)(?:\w*_)?[Kk]ernel2?$")
_WORD = re.compile(r"(?:\b[A-Za-z_]\w*::)*\b([A-Za-z_]\w+)")  # without its namespaces
_SAYS_NOTHING = re.compile(
    r"void|const|bool|char|short|int|long|(?:un)?signed|float|double|[Aa]rray|lambda|instance|operator|"
    r"gpu_kernel_impl(?:_nocast)?|T\d+"
)


def collective_of(name: str) -> str:
    """Return the collective that a communication kernel's name says, or ``other``.

    Examples
    --------
    >>> collective_of("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL")
    'reduce_scatter'
    """
    found = _COLLECTIVE.search(name)
    return _LOWER[found[0].lower()] if found else OTHER


def datatype_of(name: str) -> str | None:
    """Return the element type in a communication kernel's name, ``f32``; None when it says none."""
    found = _DATATYPE.search(name)
    return _DATATYPES[found[1]] if found else None


def algorithm_of(name: str) -> str | None:
    """Return algorithm and protocol in a communication kernel's name, ``RING_LL``; None when it says none."""
    found = _ALGORITHM.search(name)
    return found[1] if found else None


def is_optimizer(name: str) -> bool:
    """Tell whether a kernel updates weights, by the functor or the function that its name says.

    Examples
    --------
    >>> is_optimizer("multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>")
    True
    >>> is_optimizer("multi_tensor_apply_kernel<at::native::BinaryOpScalarFunctor<float>>")
    False
    """
    words = {one.lower() for one in _LETTERS.findall(name)}
    words |= {one.lower() for one in _CAPITALISED.findall(name)}
    return not _OPTIMIZERS.isdisjoint(words) or "rmsprop" in name.lower()


def kernel_label(name: str) -> str:
    """Return a kernel's name without parameters and template arguments, with the functor that tells it apart.

    Examples
    --------
    >>> kernel_label("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, T2)")
    'vectorized_elementwise_kernel [FillFunctor]'
    """
    bare, arguments = _without_brackets(name)
    bare = bare.strip().split(" ")[-1].removeprefix("at::native::").removeprefix("::").strip(":")
    functors = [one for one in _FUNCTOR.findall(arguments) if not one.startswith(_GENERIC)]
    if not functors and _FACELESS.search(bare):
        functors = [one for one in _WORD.findall(arguments) if not _SAYS_NOTHING.fullmatch(one)]
    return f"{bare} [{functors[0]}]" if functors and bare else bare or name


def _without_brackets(name: str) -> tuple[str, str]:
    """Split a name into what stands outside of all brackets, and its last word's template arguments."""
    name = name.replace("(anonymous namespace)", "").replace("<unnamed>", "").replace("::::", "::")
    outside: list[str] = []
    inside: list[str] = []
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
