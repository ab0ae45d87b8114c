"""The list of tables, and the forms that a text must have to be copied."""

from __future__ import annotations

import pytest

from nsyspipe.reader import report as versions
from nsyspipe.redact import copy as tables, values as facts
from nsyspipe.redact.copy import Amount, Removed
from tests.build.trace import schemas


@pytest.mark.parametrize("version", sorted(schemas()))
def test_every_table_and_column_of_every_version_is_settled(version):
    for table, columns in schemas()[version].items():
        assert tables.is_known(table), table
        if tables.class_of(table) is None:
            assert tables.known_columns(table) >= set(columns), table


def test_no_table_both_stays_and_is_dropped():
    kept = {*tables.NUMBERS, *tables.CHECKED}
    assert [table for table in kept if tables.class_of(table)] == []


@pytest.mark.parametrize(
    ("table", "base"),
    [
        (versions.KERNEL, versions.KERNEL),
        (f"{versions.KERNEL}_V3", versions.KERNEL),
        ("PROCESSES_V12", "PROCESSES"),
        (f"{versions.KERNEL}_V3; secret", f"{versions.KERNEL}_V3; secret"),
        (f"{versions.KERNEL}_Vx", f"{versions.KERNEL}_Vx"),
    ],
)
def test_only_a_version_may_be_appended_to_a_name(table, base):
    assert tables.base_name(table) == base


def test_names_are_compared_exactly():
    assert not tables.is_known("stringids")
    assert not tables.is_known("NEW_EVENTS")
    assert tables.is_known("ENUM_OF_A_LATER_RELEASE")


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB",
        "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA B200", "NVIDIA L40S", "NVIDIA L4", "NVIDIA A10G", "Tesla T4",
        "Tesla V100-SXM2-16GB", "Tesla P100-PCIE-16GB", "A100-SXM4-40GB", "Quadro RTX 6000", "TITAN V", "TITAN RTX",
        "GeForce GTX 1080 Ti", "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4070 Laptop GPU", "NVIDIA RTX A6000",
        "NVIDIA RTX 6000 Ada Generation", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 2080 SUPER",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GB200", "NVIDIA A800-SXM4-80GB", "NVIDIA H20",
    ],
)  # fmt: skip
def test_models_of_gpus_keep_their_names(name):
    assert facts._MODEL.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    [
        "hunter2",
        "NVIDIA hunter2",
        "NVIDIA H200 of ada",
        "NVIDIA",
        "sk-live-4711",
        "H200\nsecret",
        "NVIDIA H200 sk-4711",
    ],
)
def test_other_words_are_no_model(name):
    assert not facts._MODEL.fullmatch(name)


@pytest.mark.parametrize("text", ["2024.2.3.38", "3.11.1", "2025.3.1.90-253135822126v0", "2026.2"])
def test_versions_are_kept(text):
    assert facts._VERSION.fullmatch(text)


@pytest.mark.parametrize("text", ["", "mfu", "2024.2 secret", "2024.2-hunter2", "3.11.1\n"])
def test_other_texts_are_no_version(text):
    assert not facts._VERSION.fullmatch(text)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("secret", "-"),
        ("NVTX_EVENTS,secret", "NVTX_EVENTS"),
        # In the order of our list; one name inside another's is there too.
        ("NVTX_EVENTS;CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL,NVTX_EVENTS"),
    ],
)
def test_a_list_of_tables_keeps_the_names_that_are_known(given, kept):
    assert facts._table_list(given) == kept


def test_amounts_add_up_by_class_and_place():
    one, other = Removed(), Removed()
    one.add("b", "T", 2)
    one.add("b", "T", 0, "values")
    other.add("b", "T", 3)
    other.add("a", "T.c", 1, "values")
    one.update(other)
    assert one.amounts() == [Amount("a", "T.c", 1, "values"), Amount("b", "T", 5, "rows")]
