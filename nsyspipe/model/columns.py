"""Constructors of columns, one for each unit.

For example, ``ns("wall_ns", "Length of the window", source="derived")`` is a column in nanoseconds.
A unit implies an Arrow type. A column of another type, for example a mean of nanoseconds, names it.
"""

import pyarrow as pa
from msgspec import Struct

from nsyspipe.model.table import FLAG, FLOAT, INT, TEXT, Column


class Unit(Struct, frozen=True):
    """A unit, which is called to declare a column, and the Arrow type that it implies."""

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
        """Declare a column: its meaning, the part of a report that it comes from, and the rest."""
        column_type = self.arrow_type if arrow_type is None else arrow_type
        return Column(
            name=name,
            type=column_type,
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
flop_count = Unit("FLOP", INT)
flops_per_s = Unit("FLOP/s", FLOAT)
tokens_per_s = Unit("token/s", FLOAT)
samples_per_s = Unit("sample/s", FLOAT)
text = Unit("text", TEXT)
json_text = Unit("json", TEXT)
flag = Unit("flag", FLAG)
utc_time = Unit("time", pa.timestamp("us", tz="UTC"))
