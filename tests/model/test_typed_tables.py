"""The types of tables list the columns that are declared, and are tables of Arrow at run time."""

import pyarrow as pa
import pytest

from nsyspipe.model import typed_tables
from tests.write_table_types import PATH, declared_tables, written


def test_the_types_are_those_of_the_declared_tables():
    fix = "python -m tests.write_table_types"
    assert PATH.read_text(encoding="utf-8") == written(), fix


@pytest.mark.parametrize("name", declared_tables())
def test_a_typed_table_is_an_arrow_table(name):
    assert getattr(typed_tables, f"{name}Table") is pa.Table
