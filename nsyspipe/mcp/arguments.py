"""The arguments of each tool. Their types are also the JSON schemas that a client gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from nsyspipe.errors import OptionError, shortened

MAX_ROWS = 1000
_DEFAULT_ROWS = 100
_MAX_NAMES = 1000
_MAX_FILTERS = 20
_MAX_LABEL_CHARACTERS = 100
_MAX_STEP_CHARACTERS = 200
# Of a name in an error that a client made up.
MAX_NAME_CHARACTERS = 200

_AtLeastOne = Annotated[int, Meta(ge=1)]
_AtLeastZero = Annotated[int, Meta(ge=0)]
_Columns = Annotated[list[str], Meta(min_length=1, max_length=_MAX_NAMES)]
Reports = Annotated[
    list[str],
    Meta(
        min_length=1,
        max_length=_MAX_NAMES,
        description=(
            "One run: its nsys reports (.sqlite), a directory, or a glob. Or one saved run: STORE, "
            "STORE:ID or STORE:LABEL. Several paths together are one run."
        ),
    ),
]
Captures = Annotated[
    list[str],
    Meta(
        min_length=1,
        max_length=_MAX_NAMES,
        description=(
            "The captures of one side, mostly one. Each is a directory, a glob, a report, or a "
            "saved run (STORE:ID, or STORE:LABEL)."
        ),
    ),
]
_Name = Annotated[str, Meta(min_length=1, max_length=_MAX_LABEL_CHARACTERS)]
_Step = Annotated[str, Meta(max_length=_MAX_STEP_CHARACTERS)]
Label = Annotated[_Name | None, Meta(description="Label of the run or the side in the answer.")]
Keys = Annotated[
    list[str] | None,
    Meta(
        description=(
            "Top-level keys of the JSON document to return, such as summary, findings and "
            "problems. Without keys, the answer is the whole document."
        )
    ),
]


class Reading(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """How reports are read. A saved run is analyzed already, so it takes none of these."""

    step: Annotated[
        _Step | None,
        Meta(description="Regular expression of NVTX ranges that mark steps, or repetition, none."),
    ] = None
    steps: Annotated[
        _AtLeastOne | None,
        Meta(description="Approximate number of captured steps, for repetition."),
    ] = None
    skip_first: Annotated[
        _AtLeastZero | None,
        Meta(description="Complete steps to skip as warm-up. Without it: auto."),
    ] = None
    ranks: Annotated[
        str | None, Meta(description="Read only these ranks, such as 0-7,63. Others are missing.")
    ] = None
    keys: Keys = None

    def options(self) -> dict[str, Any]:
        """Return the arguments of `nsyspipe.load` that a client has given."""
        names = ("step", "steps", "skip_first", "ranks")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class AnalyzeArguments(Reading, frozen=True):
    """The arguments of ``analyze``."""

    reports: Reports
    label: Label = None


class DiffArguments(Reading, frozen=True):
    """The arguments of ``diff``."""

    baseline: Captures
    candidate: Captures
    baseline_label: Label = None
    candidate_label: Label = None
    metrics: Annotated[
        list[str] | None, Meta(description="Metrics that the verdict uses. Default: step_time.")
    ] = None
    min_effect: Annotated[
        str | None, Meta(description="Smallest change that matters, such as 2%. Default: 2%.")
    ] = None
    confidence: Annotated[
        float | None, Meta(description="Confidence of intervals, from 0.5 to 1. Default: 0.95.")
    ] = None


class WhatifArguments(Reading, frozen=True):
    """The arguments of ``whatif``."""

    run: Reports
    label: Label = None
    bandwidth: Annotated[
        str | None, Meta(description="Bus bandwidth: 300GB/s, 2x, or of one kind: tensor=2x.")
    ] = None
    link: Annotated[str | None, Meta(description="Another interconnect, such as nvlink4.")] = None
    gradient_dtype: Annotated[str | None, Meta(description="Gradients as bf16 or fp16.")] = None
    bucket_mb: Annotated[float | None, Meta(description="bucket_cap_mb of DDP, in MiB.")] = None
    no_wait: Annotated[bool, Meta(description="As if no rank were late.")] = False
    no_grad_copy: Annotated[bool, Meta(description="gradient_as_bucket_view=True.")] = False
    no_sync: Annotated[bool, Meta(description="Gradients only in the last micro-batch.")] = False
    prefetch: Annotated[bool, Meta(description="FSDP: parameters one layer earlier.")] = False
    perfect_overlap: Annotated[bool, Meta(description="All communication overlaps.")] = False
    gradient_bytes: Annotated[
        float | None, Meta(description="Size of the gradients of a step, if it is not recorded.")
    ] = None

    def changes(self) -> dict[str, Any]:
        """Return what is to be changed, by the names that `nsyspipe.whatif` has for it."""
        no_changes = {*Reading.__struct_fields__, "run", "label"}
        names = [name for name in self.__struct_fields__ if name not in no_changes]
        return {name: getattr(self, name) for name in names}


class Condition(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A condition on one column. A null fulfils only ``is null``."""

    column: str
    operator: Literal["==", "!=", "<", "<=", ">", ">=", "is null", "is not null"]
    value: Annotated[
        bool | int | float | str | None,
        Meta(description="The type is that of the column. is null and is not null take no value."),
    ] = None


class QueryArguments(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The arguments of ``query``."""

    run: Annotated[
        str, Meta(description="One saved run: STORE if it has one run, STORE:ID or STORE:LABEL.")
    ]
    table: Annotated[str, Meta(description="Name of a table, such as steps.")]
    columns: Annotated[_Columns | None, Meta(description="Names of columns. Default: all.")] = None
    where: Annotated[
        list[Condition],
        Meta(max_length=_MAX_FILTERS, description="Conditions that a row must all fulfil."),
    ] = msgspec.field(default_factory=list)
    sort_by: Annotated[str | None, Meta(description="A column to sort by, nulls last.")] = None
    descending: Annotated[bool, Meta(description="Sort from the largest value down.")] = False
    limit: Annotated[
        int, Meta(ge=1, le=MAX_ROWS, description="Largest number of rows to return.")
    ] = _DEFAULT_ROWS
    offset: Annotated[int, Meta(ge=0, description="Number of rows to leave out first.")] = 0


Arguments = TypeVar("Arguments", bound=Struct)


def parse(tool: str, kind: type[Arguments], arguments: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a tool as an object of `kind`.

    Raise an OptionError if they do not have the declared types.
    """
    try:
        return msgspec.convert(dict(arguments), kind)
    except msgspec.ValidationError as error:
        fix = "see the input schema of the tool"
        # It may have the name of an unknown argument.
        problem = shortened(_in_lower_case(str(error)), MAX_NAME_CHARACTERS)
        raise OptionError(f"tool {tool}", problem, fix=fix) from error


def _in_lower_case(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def input_schema(kind: type[Struct]) -> dict[str, Any]:
    """Return the JSON schema of the arguments of a tool, as one object.

    The schemas of nested classes are in its ``$defs``.
    """
    (reference,), schemas_by_class = msgspec.json.schema_components([kind])
    # The reference is such as "#/$defs/QueryArguments".
    _, _, class_name = reference["$ref"].rpartition("/")
    schema = dict(schemas_by_class.pop(class_name))
    # The title is the name of the class, and the description its docstring. Both tell a client
    # nothing.
    for key in ("title", "description"):
        schema.pop(key, None)
    if schemas_by_class:
        schema["$defs"] = schemas_by_class
    return schema
