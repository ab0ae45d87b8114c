"""The names of ranks if a process has several: they have its process and GPU."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from nsyspipe.model.typed_tables import (
    RanksTable,
)

# A rank by its number in a sentence. A name that a user gave is in quotes, and is left alone, as is
# a rank that already has its name.
_RANK: Final = re.compile(r"(?<!['\"\w])rank (\d+)\b(?! \(process)")


class RankNames(Struct, frozen=True):
    """The names of a run's ranks after the word "rank": ``1``, or ``1 (process 0, GPU 1)``."""

    # Names of ranks that are more than a number.
    names: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, ranks: RanksTable) -> "RankNames":
        """Return the names of the ranks of `schema.RANKS`.

        A rank that is alone in its process, and has the number of the process, needs no name. Its
        number is its name.
        """
        rows = ranks.select(["rank", "process_rank", "device_id"]).to_pylist()
        n_ranks_of_process = Counter(row["process_rank"] for row in rows)
        names = {}
        for row in rows:
            rank = row["rank"]
            process = row["process_rank"]
            if process is None:
                continue
            is_alone = n_ranks_of_process[process] == 1
            if not is_alone or process != rank:
                names[rank] = f"{rank} (process {process}, GPU {row['device_id']})"
        return cls(names)

    def name(self, rank: int | None) -> str:
        """Return the name of one rank."""
        number = str(rank)
        return number if rank is None else self.names.get(rank, number)

    def in_text(self, text: str) -> str:
        """Return a sentence with the names of the ranks that it mentions by number."""
        if not self.names:
            return text
        return _RANK.sub(self._named_match, text)

    def _named_match(self, match: re.Match[str]) -> str:
        return f"rank {self.name(int(match[1]))}"
