"""What can be asked, and in which words."""

from __future__ import annotations

import pytest

from nsyspipe.errors import OptionError
from nsyspipe.replay.knobs import LINKS, knobs_of, parse_bandwidth


def test_a_bandwidth_is_read():
    texts = ("300GB/s", "300 gB/s", "2.5TB/s", "900MBs", "1e9B/s", "12kB/s")
    assert [*map(parse_bandwidth, texts)] == [300e9, 300e9, 2.5e12, 900e6, 1e9, 12e3]


NO_BANDWIDTHS = ["", "fast", "300", "-3GB/s", "0GB/s", "300GBps", "1e999GB/s", "GB/s"]
BITS = ["200Gb/s", "200gb/s", "200Gbit/s", "200Gbits/s", "200Gbps", "200 GBit/s"]


@pytest.mark.parametrize("text", NO_BANDWIDTHS + BITS)
def test_what_is_no_bandwidth_is_refused_with_an_example_and_bits_with_both_readings(text):
    with pytest.raises(OptionError, match="bits" if text in BITS else "is no bandwidth") as raised:
        parse_bandwidth(text)
    both = "--bandwidth 25GB/s, or 200GB/s if it was bytes"
    assert raised.value.fix == (both if text in BITS else "--bandwidth 300GB/s")


@pytest.mark.parametrize("changes", [
    {"gradient_dtype": "f64"}, {"bucket_mb": 0.0}, {"bucket_mb": float("nan")},
    {"bandwidth": -1.0}, {"gradient_bytes": 0.0}, {"gradient_bytes": float("inf")}, {"link": "shm", "bandwidth": 1e9},
])  # fmt: skip
def test_what_cannot_be_used_is_refused(changes):
    with pytest.raises(OptionError):
        knobs_of(**changes)


@pytest.mark.parametrize(("changes", "given", "label"), [
    ({"gradient_bytes": 5}, {}, ""),
    ({"bucket_mb": 25, "no_wait": True}, {"bucket_mb": 25, "no_wait": True},
     "bucket_cap_mb=25, no waiting for late ranks"),
    ({"bandwidth": "2.5GB/s", "gradient_dtype": "bf16", "no_grad_copy": True, "perfect_overlap": True},
     {"bandwidth_bytes_per_s": 2.5e9, "gradient_dtype": "bf16", "no_grad_copy": True, "perfect_overlap": True},
     "bandwidth 2.5 GB/s, gradients as bf16, gradient_as_bucket_view=True, perfect overlap"),
    ({"link": "shm", "bucket_mb": 0.5}, {"link": "shm", "bucket_mb": 0.5}, "link shm, bucket_cap_mb=0.5"),
])  # fmt: skip
def test_given_holds_what_is_changed_only_and_is_said_in_the_words_of_the_options(changes, given, label):
    asked = knobs_of(**changes)
    assert (asked.given, asked.label, bool(asked)) == (given, label, bool(given))


@pytest.mark.parametrize(("word", "link", "rate"), [
    ("V100", "nvlink2", 150), ("a100", "nvlink3", 300), ("H100", "nvlink4", 450), ("h200", "nvlink4", 450),
    ("b200", "nvlink5", 900), ("pcie3x16", "pcie3x16", 15.75), ("pcie6x16", "pcie6x16", 121),
    ("InfiniBand-EDR", "infiniband-edr", 12.5), ("infiniband-xdr", "infiniband-xdr", 100),
    ("roce-100", "roce-100", 12.5), ("roce-400", "roce-400", 50),
])  # fmt: skip
def test_links_are_known_by_their_names_and_those_of_gpus(word, link, rate):
    assert knobs_of(link=word).link == link
    assert LINKS[link].nominal_bytes_per_s == pytest.approx(rate * 1e9, rel=0.001)
    assert LINKS[link].bus_bytes_per_s < LINKS[link].nominal_bytes_per_s


def test_a_link_or_a_unit_that_is_not_known_is_answered_with_the_form_that_takes_any():
    with pytest.raises(OptionError, match="is not known") as raised:
        knobs_of(link="carrier-pigeon")
    assert ("--bandwidth" in raised.value.fix, "nvlink3/a100" in raised.value.found) == (True, True)
    with pytest.raises(OptionError, match="is in bytes per second") as raised:
        knobs_of(bandwidth=300)  # meant in GB/s
    assert raised.value.fix == 'bandwidth="300GB/s"'


def test_every_link_says_where_its_figure_is_from():
    assert all(link.source and link.bus_bytes_per_s > 0 for link in LINKS.values())
    assert {name for name, link in LINKS.items() if link.is_measured} == {"nvlink4", "shm"}
