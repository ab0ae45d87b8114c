"""Constructors of columns, one for each unit: ``ns("wall_ns", "Length of the window", source="derived")``.

A unit implies an Arrow type. A column of another type, for example a mean of nanoseconds, names it.
"""

import pyarrow as pa
from msgspec import Struct

from nsyspipe.model.table import FLAG, FLOAT, INT, TEXT, Column


class Unit(Struct, frozen=True):
    """A unit that is called to declare a column, and the Arrow type that its columns usually have."""

    symbol: str
    arrow_type: pa.DataType

    def __call__(
        self,
        name: str,
        meaning: str,
        *,
        source: str = "",
        nullable: bool = False,
        arrow_type: pa.DataType | None = None,
    ) -> Column:
        """Declare a column: what it means, which part of a report it comes from, and whether it may be null."""
        return Column(
            name=name,
            type=arrow_type or self.arrow_type,
            unit=self.symbol,
            doc=meaning,
            source=source,
            nullable=nullable,
        )


ns = Unit("ns", INT)
identifier = Unit("id", INT)
count = Unit("count", INT)
n_bytes = Unit("bytes", INT)
enum_number = Unit("enum", INT)
ratio = Unit("ratio", FLOAT)
percent = Unit("%", FLOAT)
bytes_per_s = Unit("bytes/s", FLOAT)
per_s = Unit("1/s", FLOAT)
text = Unit("text", TEXT)
json_text = Unit("json", TEXT)
flag = Unit("flag", FLAG)
utc_time = Unit("time", pa.timestamp("us", tz="UTC"))
