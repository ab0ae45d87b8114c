"""The bandwidth that hardware counters saw, wherever the bus bandwidth that is derived from sizes stands."""

import pytest

from nsyspipe.analysis.links import LinkVerdict, SlowestLink
from nsyspipe.model import schema
from nsyspipe.report import words
from nsyspipe.report.html.run_charts import collective_charts, collective_facts, collective_medians
from nsyspipe.report.run import key_figures
from tests.build.make_perfetto import collective
from tests.build.sampled import sampled_run

COUNTED = {"counted_bytes_per_s": 3e9, "counted_ratio": 1.5}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sampled_run(tmp_path_factory.mktemp("sampled") / "run", jobs=1)


def test_the_counted_bandwidth_stands_in_the_tile_of_the_bus_bandwidth(run, worded):
    (tile,) = key_figures(run, ["busbw_bytes_per_s"])
    assert words.counted_text(run) in tile.meaning
    worded(tile.meaning)


def rows(**more):
    sized = {"transfer_ns": 9, "wait_ns": 0} | more
    return schema.COLLECTIVES.from_rows(
        [
            collective(0, 9, seq, 4, message_bytes=size, busbw_bytes_per_s=2e9, **sized)
            for seq, size in enumerate((64, 128, 256))
        ]
    )


def test_a_collective_that_was_counted_has_its_bandwidth_and_ratio():
    assert collective_facts(rows(**COUNTED), 4)["0"] == [64, 2e9, None, 3e9, 1.5]
    assert collective_facts(rows(), 4)["0"] == [64, 2e9, None]


def charts(**more):
    return {chart.name: chart for chart in collective_charts(collective_medians(rows(**more)))}


def test_the_chart_and_the_table_of_collectives_have_the_counted_bandwidth():
    found = charts(**COUNTED)
    assert found["sizes"].data["counted"] == [3e9] * 3
    assert found["sizes"].data["counted_ratio"] == [1.5] * 3
    table = found["collectives"].table
    (place,) = [at for at, one in enumerate(table.columns) if one.heading == "counted"]
    assert [row[place] for row in table.rows] == ["3.000 GB/s (1.50x)"] * 3


def test_without_counters_neither_has_it():
    found = charts()
    assert "counted" not in found["sizes"].data
    assert "counted" not in [one.heading for one in found["collectives"].table.columns]


def test_the_text_about_the_interconnect_has_the_counted_bandwidth(run, worded):
    edge = SlowestLink("nvlink", 0, 1, 450e9, "NVLink P2P", 2, 0, 2, is_of_ring=True)
    verdict = LinkVerdict(
        is_slow=False,
        is_seen=True,
        is_near=False,
        text=edge.text,
        lacking=(),
        evidence={},
        slowest=edge,
        busbw_bytes_per_s=191.25e9,
        busbw_source="payload",
    )
    text = words.link_text(_WithLink(run, verdict))
    assert words.counted_text(run) in text
    worded(text)


class _WithLink:
    """A run whose interconnect is known."""

    def __init__(self, run, link):
        self._run = run
        self.link = link

    def __getattr__(self, name):
        return getattr(self._run, name)
