"""Environment variables that explain a step: which values cost time, and what they act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nsyspipe.nsys.command_words import JOINT

# What a setting acts on: whether streams run at the same time, when the CPU launches, and which way
# data takes.
STREAMS = "streams"
HOST = "host"
LINK = "link"


@dataclass(frozen=True)
class Setting:
    """A variable that can cost time."""

    name: str
    # The values that cost time.
    costly_values: frozenset[str]
    # `STREAMS`, `HOST` or `LINK`.
    acts_on: str


_TRUE = frozenset({"1", "true"})
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("CUDA_DEVICE_MAX_CONNECTIONS", frozenset({"1"}), STREAMS),
        Setting("TORCH_NCCL_ENABLE_TIMING", _TRUE, STREAMS),
        Setting("CUDA_LAUNCH_BLOCKING", _TRUE, HOST),
        Setting("TORCH_NCCL_BLOCKING_WAIT", _TRUE, HOST),
        Setting("NCCL_P2P_DISABLE", _TRUE, LINK),
    )
}


LOG_WRITTEN = (
    "NCCL_DEBUG was set, so NCCL wrote a log: to NCCL_DEBUG_FILE if that was set, otherwise into "
    "the output of the program. Pass that file with --nccl-log FILE, or capture again with "
    "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl_%h_%p.log"
)


def writes_log(environment: Mapping[str, str]) -> bool:
    """Tell whether NCCL had to write a log, which has the connections of the ranks."""
    level = environment.get("NCCL_DEBUG", "")
    return level.upper() in {"INFO", "TRACE"}


def is_costly(name: str, value: str | None) -> bool:
    """Tell whether a value of one of `SETTINGS` costs time.

    `value` may have the joined values of several processes, of which one is enough.
    """
    values = (value or "").lower().split(JOINT)
    setting = SETTINGS[name]
    return not setting.costly_values.isdisjoint(values)


def costly_settings(environment: Mapping[str, str] | None, acts_on: str) -> dict[str, str]:
    """Return the variables that cost time and act on something, with their values.

    `acts_on` is `STREAMS`, `HOST` or `LINK`. None is an environment that was not recorded.
    """
    values = environment or {}
    costly = {}
    for name, setting in SETTINGS.items():
        if setting.acts_on == acts_on and is_costly(name, values.get(name)):
            costly[name] = values[name]
    return costly
