"""Put the facts of NCCL logs together: which process is which rank of which communicator, and what connects them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from nsyspipe.fabric import CommMember, Communicator, Edge
from nsyspipe.read.nccl_groups import Group, Membership, group
from nsyspipe.read.nccl_lines import Connected, Counts, Fact, Gone, Init, Nvls, Ring

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["communicators"]
