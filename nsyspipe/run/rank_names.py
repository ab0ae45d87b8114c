"""What a rank is called where one process has several: by its process and its GPU."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from msgspec import Struct, field

# A rank by number in a sentence; not in a name that a user gave, which stands in quotes, nor one
# that has its name already.
_RANK: Final = re.compile(r"(?<!['\"\w])rank (\d+)\b(?! \(process)")


class RankNames(Struct, frozen=True):
    """The names of a run's ranks, as they stand behind the word "rank": ``1``, or ``1 (process 0, GPU 1)``."""

    names: Mapping[int, str] = field(
        default_factory=dict
    )  # of those that are not called by their number alone

    @classmethod
    def of(cls, ranks: pa.Table) -> "RankNames":
        """Return the names of the ranks of `schema.RANKS`: a number alone where it is the process's, which has one rank."""
        rows = ranks.select(["rank", "process_rank", "device_id"]).to_pylist()
        n_ranks = Counter(row["process_rank"] for row in rows)
        names = {}
        for row in rows:
            rank = row["rank"]
            process = row["process_rank"]
            if process is not None and (n_ranks[process] > 1 or process != rank):
                names[rank] = f"{rank} (process {process}, GPU {row['device_id']})"
        return cls(names)

    def name(self, rank: int | None) -> str:
        """Return the name of one rank."""
        return self.names.get(rank, str(rank)) if rank is not None else str(rank)

    def in_text(self, text: str) -> str:
        """Return a sentence with the names of the ranks that it speaks of by number."""
        if not self.names:
            return text
        return _RANK.sub(lambda found: f"rank {self.name(int(found[1]))}", text)
