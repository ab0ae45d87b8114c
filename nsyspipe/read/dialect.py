"""SQLAlchemy over ADBC: statements are built and reports reflected as usual, results come as Arrow."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal

import adbc_driver_sqlite.dbapi
import pyarrow as pa
import sqlalchemy as sa
from adbc_driver_sqlite import StatementOptions
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.pool import NullPool

__all__ = ["AdbcSqliteDialect", "fetch_arrow", "read_only_engine"]

# What a file says of itself is not believed: its schema calls no functions, and pages are looked at before they are used.
_DISTRUST = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON")
_BATCH_ROWS = "65536"
# What SQLAlchemy may assume of the engine; ADBC 1.13 bundles SQLite 3.53.
_ENGINE_VERSION = (3, 40, 0)


class AdbcSqliteDialect(SQLiteDialect):
    """``sqlite+adbc``: SQLite through Arrow Database Connectivity, for reading."""

    driver = "adbc"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """Return the driver's DB-API module, with the version that SQLAlchemy's dialect looks for."""
        module = ModuleType(adbc_driver_sqlite.dbapi.__name__)
        module.__dict__.update(vars(adbc_driver_sqlite.dbapi), sqlite_version_info=_ENGINE_VERSION)
        return module

    @classmethod
    def get_pool_class(cls, url: sa.URL) -> type[sa.Pool]:  # noqa: ARG003 - SQLAlchemy's signature
        """Keep no connection: an open handle would hold the file."""
        return NullPool

    def create_connect_args(self, url: sa.URL) -> tuple[list[str], dict[str, Any]]:
        """Hand the URI over as it is; nothing is written, so nothing is ever to commit."""
        return [url.database or ""], {"autocommit": True}

    def on_connect(self) -> Any:  # noqa: ANN401
        """Return what distrusts the file of a new connection."""

        def distrust(connection: Any) -> None:  # noqa: ANN401
            with connection.cursor() as cursor:
                for pragma in _DISTRUST:
                    cursor.execute(pragma)

        return distrust

    def _get_server_version_info(self, connection: sa.Connection) -> tuple[int, ...]:  # noqa: ARG002
        return _ENGINE_VERSION

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:  # noqa: ANN401, ARG002
        """Execute with batches of rows that are worth a conversion."""
        cursor.adbc_statement.set_options(**{StatementOptions.BATCH_ROWS.value: _BATCH_ROWS})
        cursor.execute(statement, parameters or None)

    def do_rollback(self, dbapi_connection: Any) -> None:  # noqa: ANN401
        """Do nothing: there is no transaction."""

    def do_commit(self, dbapi_connection: Any) -> None:  # noqa: ANN401
        """Do nothing: there is no transaction."""

    def get_isolation_level(self, dbapi_connection: Any) -> Literal["SERIALIZABLE"]:  # noqa: ANN401, ARG002
        """SQLite's only level that matters to a reader."""
        return "SERIALIZABLE"


def read_only_engine(uri: str) -> sa.Engine:
    """Return an engine for an SQLite URI; nothing is opened yet."""
    registry.register("sqlite.adbc", __name__, AdbcSqliteDialect.__name__)
    return sa.create_engine(sa.URL.create("sqlite+adbc", database=uri))


def fetch_arrow(connection: sa.Connection, statement: sa.Select[Any]) -> pa.Table:
    """Execute a statement and return its result as an Arrow table, without making a Python row.

    Ctrl-C ends it between two batches: the driver cannot be told to stop.
    """
    result = connection.execute(statement)
    cursor: Any = result.cursor
    try:
        with cursor.fetch_record_batch() as reader:
            return pa.Table.from_batches(list(reader), reader.schema)
    finally:
        result.close()
