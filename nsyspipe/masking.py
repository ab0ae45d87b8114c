"""What of a command line and of an environment may be written down: secrets masked, variables by allow-list.

A capture's sidecar holds both, and whoever reads one masks again: it may have been written by hand.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["MASK", "allowed_environment", "masked_command"]

MASK = "***"

_NAMED_SO = r"(?:key|token|secret|password|passwd|credential|auth)"
_IS_SECRET = re.compile(_NAMED_SO, re.IGNORECASE)
# A whole name, looked at once, so that no text makes the search slow.
_NAME = rf"(?=[\w.\-]*?{_NAMED_SO})[\w.\-]++"
_VALUE = r"(?:(?:Bearer|Basic)\s+)?[^\s,;&\"']+"
# Inside a word, as in a shell's script or in JSON: KEY=VALUE, "key": "value", Header: value; not host:29500.
_ASSIGNED = re.compile(
    rf"(?<![\w.\-])({_NAME}(?:=[\"']?|[\"']?\s{{0,9}}:(?!\d+\b|//)\s{{0,9}}[\"']?)){_VALUE}",
    re.IGNORECASE,
)
_OPTION = re.compile(rf"((?<!\S)--?{_NAME}\s{{1,9}})(?!--?[a-zA-Z]){_VALUE}", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.\-]{0,30}://)[^/\s]*@", re.IGNORECASE)
# Tokens of well-known services, wherever they stand.
_KNOWN_TOKEN = re.compile(
    r"\b(?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza|eyJ)[\w.\-]{16,}"
)
_SHORT_OPTION = re.compile(r"--|-[a-zA-Z]$")

_MOST_WORDS, _LONGEST_WORD = 1000, 1000
_MOST_VARIABLES, _LONGEST_VALUE = 200, 200

_ALLOWED = (
    "NCCL_*",
    "TORCH_NCCL_*",
    "TORCH_DISTRIBUTED_*",
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

    The value of an option or assignment whose name holds ``key``, ``token``, ``secret``, ``password``,
    ``passwd``, ``credential`` or ``auth`` becomes ``***``, in shell scripts and JSON too; so do tokens of
    well-known services. URLs lose user and password. Long words and commands are cut.

    Examples
    --------
    >>> masked_command(["train.py", "--api-key", "abc", "--lr=0.1", "WANDB_TOKEN=abc"])
    ['train.py', '--api-key', '***', '--lr=0.1', 'WANDB_TOKEN=***']
    """
    found: list[str] = []
    is_value_secret = False
    for count, word in enumerate(words):
        if count == _MOST_WORDS:
            found.append("\N{HORIZONTAL ELLIPSIS}")
            break
        if is_value_secret and not _SHORT_OPTION.match(word):
            found.append(MASK)
            is_value_secret = False
            continue
        name, equals, _ = word.partition("=")
        is_name = bool(_IS_SECRET.search(name)) and not re.search(r"[\s\"']|://", name)
        is_value_secret = is_name and not equals and word.startswith("-")
        found.append(f"{name}={MASK}" if is_name and equals else _masked(word))
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
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _ALLOWED)
        and len(name) <= _LONGEST_VALUE
        and name.isidentifier()
        and not _IS_SECRET.search(name)
    )
    return {
        name: _cut(printable(_masked(environment[name].rpartition("/")[2])), _LONGEST_VALUE)
        for name in names[:_MOST_VARIABLES]
    }


def _masked(text: str) -> str:
    """Mask what is secret inside a text; of a very long one only the begin is looked at, and kept."""
    text = _cut(text, 4 * _LONGEST_WORD)
    text = _USER_IN_URL.sub(r"\1", text)
    text = _ASSIGNED.sub(rf"\1{MASK}", text)
    text = _OPTION.sub(rf"\1{MASK}", text)
    return _KNOWN_TOKEN.sub(MASK, text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
