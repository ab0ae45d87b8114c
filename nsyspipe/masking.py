"""What of a command line and of an environment may be written down: secrets masked, variables by allow-list.

A capture's sidecar holds both, and whoever reads one masks again: it may have been written by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nsyspipe.nccl_variables import NCCL_VARIABLES
from nsyspipe.secret_words import (
    ASSIGNED,
    FLAG,
    GLUED,
    HEADER,
    IS_COUNT,
    IS_LIST,
    IS_NUMBER,
    IS_SECRET,
    IS_SECRET_OPTION,
    IS_USER,
    IS_USER_OPTION,
    KNOWN_TOKEN,
    LIST_OPTION,
    OPTION,
    QUOTED_HEADER,
    SCHEME,
    USER,
    USER_IN_URL,
)
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["MASK", "allowed_environment", "masked_command"]

MASK = "***"

_OPTION_WORD = re.compile(r"--|-[a-zA-Z]\Z")
_NO_NAME = re.compile(r"[\s\"']|://")
_WORD = re.compile(r"\S++")
_OPENED = re.compile(r"\\*[\"']")

_MOST_WORDS, _LONGEST_WORD = 1000, 1000
_MOST_VARIABLES, _LONGEST_VALUE = 200, 200

_ALLOWED = (
    *NCCL_VARIABLES,
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "OMP_NUM_THREADS",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_CPUS_PER_TASK",
)


def masked_command(words: Iterable[str]) -> list[str]:
    """Return a command's words without what looks secret.

    The value of an option or assignment whose name looks like a secret's (``key``, ``token``, ``secret``, ``passw``,
    ``pwd``, ``auth``, ``cookie``, ...) becomes ``***``, in shell scripts, headers and JSON too; so do tokens of
    well-known services. URLs lose user and password. Long words and commands are cut. What is no secret may be
    masked as well.

    Examples
    --------
    >>> masked_command(["train.py", "--api-key", "abc", "--lr=0.1", "WANDB_TOKEN=abc"])
    ['train.py', '--api-key', '***', '--lr=0.1', 'WANDB_TOKEN=***']
    """
    found: list[str] = []
    owner = _NOBODY
    for count, word in enumerate(words):
        if count == _MOST_WORDS:
            found.append("\N{HORIZONTAL ELLIPSIS}")
            break
        masked, owner = _next(_cut(word, 4 * _LONGEST_WORD), owner)
        found.append(masked)
    return [_cut(printable(word), _LONGEST_WORD) for word in found]


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say how communication and memory were set up, sorted by name.

    Only names of a fixed list, none that looks like a secret's; of a path only its last part.

    Examples
    --------
    >>> allowed_environment({"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG_FILE": "/home/me/x.log", "HF_TOKEN": "abc"})
    {'NCCL_DEBUG_FILE': 'x.log', 'NCCL_P2P_DISABLE': '1'}
    """
    names = sorted(
        name
        for name in environment
        if name in _ALLOWED
        and len(name) <= _LONGEST_VALUE
        and name.isidentifier()
        and not IS_SECRET.search(name)
    )
    return {
        name: _cut(
            printable(_masked(_cut(environment[name].rpartition("/")[2], 4 * _LONGEST_WORD))),
            _LONGEST_VALUE,
        )
        for name in names[:_MOST_VARIABLES]
    }


@dataclass(frozen=True)
class _Owner:
    """The option or header that the next word may be a value of."""

    name: str = ""
    has_value: bool = False


_NOBODY = _Owner()


def _next(word: str, owner: _Owner) -> tuple[str, _Owner]:
    """Mask a word that stands behind an option, and say whose value the next one may be."""
    if owner.name and _is_value(word, owner):
        goes_on = IS_LIST.match(owner.name) or SCHEME.match(word)
        return MASK, replace(owner, has_value=True) if goes_on else _NOBODY
    if HEADER.match(word):
        return HEADER.sub(rf"\1{MASK}", word), _NOBODY
    name, equals, value = word.partition("=")
    is_name = bool(IS_SECRET.search(name)) and not _NO_NAME.search(name)
    if is_name and equals:
        is_kept = IS_COUNT.match(name) and IS_NUMBER.match(value)
        return word if is_kept else f"{name}={MASK}", _NOBODY
    is_owner = is_name and (word.startswith("-") or word.endswith(":"))
    return _masked(word), _Owner(word) if is_owner or IS_USER_OPTION.match(word) else _NOBODY


def _is_value(word: str, owner: _Owner) -> bool:
    if IS_USER_OPTION.match(owner.name):
        return bool(IS_USER.match(word))
    if IS_COUNT.match(owner.name) and IS_NUMBER.match(word):
        return False
    if FLAG.match(owner.name) or owner.has_value:
        return not _OPTION_WORD.match(word)
    # Nothing is gained by an option of a secret's name, and its own value would be lost sight of.
    return not IS_SECRET_OPTION.match(word)


def _masked(text: str) -> str:
    """Mask what is secret inside a text."""
    text = _WORD.sub(_without_user, text)
    text = QUOTED_HEADER.sub(rf"\1{MASK}", text)
    for pattern in (ASSIGNED, LIST_OPTION, OPTION, USER, GLUED):
        text = pattern.sub(_hidden, text)
    return KNOWN_TOKEN.sub(MASK, text)


def _without_user(word: re.Match[str]) -> str:
    """Take user and password out of a URL; a word without @ is not searched, or many begins made it slow."""
    before, at, after = word[0].rpartition("@")
    return USER_IN_URL.sub(r"\1", before + at) + after


def _hidden(found: re.Match[str]) -> str:
    """Replace a value, not the quotes around it."""
    name, value = found.groups()
    opened = _OPENED.match(value)
    if opened is None:
        return f"{name}{MASK}"
    is_closed = opened[0][-1] in value[len(opened[0]) :]
    return f"{name}{opened[0]}{MASK}{opened[0] if is_closed else ''}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
