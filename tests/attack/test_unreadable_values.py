"""Values that no reader takes from a store are not saved: the store is as it was."""

import pyarrow as pa
import pytest

from nsyspipe.errors import OutputError
from nsyspipe.store.read import LARGEST
from nsyspipe.store.write import save
from tests.store.store_tools import contents, old_run


@pytest.mark.slow
@pytest.mark.parametrize(("value", "is_saved"), [(LARGEST, True), (LARGEST + 1, False)])
def test_a_value_that_the_reader_refuses_is_not_saved(tmp_path, value, is_saved):
    run = old_run(tmp_path)
    table = run.table("stragglers")
    at = table.column_names.index("wait_ns")
    changed = table.set_column(at, "wait_ns", pa.array([value] * table.num_rows))
    run._made["stragglers"] = changed
    store = tmp_path / "store"
    if is_saved:
        save(run, store)
    else:
        with pytest.raises(OutputError, match="stragglers: wait_ns"):
            save(run, store)
        assert contents(store) == {}
