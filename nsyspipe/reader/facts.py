"""Facts about a capture: versions, GPUs, the host, and variables of ranks and jobs.

Reports contain the whole environment of the profiled program, with its secrets. Only the variables
that are named here are read.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.nsys.command_words import (
    PYTHON_IS_NOT_SAMPLED,
    PYTHON_SAMPLING,
    TRACED,
    VARIABLES,
    VERSION,
    Mask,
    joined_environments,
    recorded_environment,
    shown_alone,
    shown_commands,
)
from nsyspipe.reader.report import (
    CAPTURE_META,
    CAPTURE_TIMES,
    CUDA_CALL_CHAINS,
    CUDA_DEVICE,
    EXPORT_META,
    EXPORT_META_OLD,
    GPU,
    SESSION_START,
    SYSTEM_ENV,
    TIME_LIMIT,
    FileState,
    Report,
)
from nsyspipe.reader.trace_method import cuda_traces_of

# The variables of launchers for the rank and the number of ranks, the most reliable launcher first.
# RANK and WORLD_SIZE precede all of them.
LAUNCHER_SIZES = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": "PMIX_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
# Variables whose values all ranks of a job share, and other jobs usually do not. The values are
# compared, and never shown.
JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT")
RANK_VARIABLES = (
    "RANK",
    *LAUNCHER_SIZES,
    *LAUNCHER_SIZES.values(),
    "WORLD_SIZE",
    "LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES",
)
# Name and value of the row in which nsys records that it traced NVTX.
NVTX_TRACED = ("CAPTURE_EVENT_TYPE", "NvtxEvents")
_EVENT_TYPE = NVTX_TRACED[0]
_GRAPH_MODE = "CUDA_GRAPH_TRACE_OPTIONS:MODE"
_PYTHON_SAMPLING_RATE = "PYTHON_BACKTRACE_SAMPLING_OPTIONS:SAMPLING_RATE"
CPU_TRACE = "COLLECT_CPU_TRACE"
# The CUDA version of a driver: 1000 times the major version plus 10 times the minor version.
_CUDA_NUMBER = re.compile(r"[0-9]{4,6}")
_COMMAND_ROW = re.compile(
    r"PROCESS_(?P<process>\d{1,6}):(?:COMMAND|ARGUMENT_(?P<argument>\d{1,6}))", re.ASCII
)
# The position of the first word of a command, before its arguments, which count from 0.
_PROGRAM = -1
_END_OF_VARIABLE_ROW = "ENVIRONMENT_VARIABLE"
_IS_VARIABLE = f"name LIKE '%{_END_OF_VARIABLE_ROW}'"
_NAME_AND_VALUE = {"name": "text", "value": "text"}
# How the name of the row begins in which nsys records that it collected Python backtraces, for
# example PYTHON_BACKTRACE_SAMPLING_OPTIONS:COLLECT_SAMPLES, and its value.
PYTHON_BACKTRACES = ("PYTHON_BACKTRACE", "true")
# The rows with options of a capture, and with the commands that nsys started.
_OPTION_AND_COMMAND_ROWS = (
    f"name IN ('{_EVENT_TYPE}', '{_PYTHON_SAMPLING_RATE}')",
    f"name LIKE '%{_GRAPH_MODE}'",
    f"name LIKE '%{CPU_TRACE}'",
    f"name LIKE '{PYTHON_BACKTRACES[0]}%'",
    "name LIKE 'PROCESS%:COMMAND'",
    "name LIKE 'PROCESS%:ARGUMENT%'",
)
# More bytes than the memory of any GPU. A larger size is damaged.
_MAX_GPU_MEMORY = 2**44
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_QUOTED = re.compile(r'"(?P<content>.*)"', re.DOTALL)
_ASSIGNMENT = re.compile(r'^(?P<name>\w+)="?(?P<value>[^"]*)"?$')
# What may stand between the names of a list of tables. nsys writes spaces.
_BETWEEN_TABLES = re.compile(r"[\s,;]+")


class GpuIdentity(Struct, frozen=True):
    """What identifies a GPU in the reports of one host. A part is empty if it was not recorded."""

    uuid: str = ""
    bus_location: str = ""


class ReportFacts(Struct, frozen=True):
    """Facts about a whole report; None is "not recorded"."""

    nsys_version: str | None = None
    schema_version: str | None = None
    session_start_utc_ns: int | None = None
    # When the nsys that captured was started. It is the same in all captures of one nsys.
    nsys_start_utc_ns: int | None = None
    host: str | None = None
    # The variables of ranks and jobs that have only one value in the report.
    variables: dict[str, str] = field(default_factory=dict)
    # The training variables of the program when it started, as they may be written down. None if
    # the report has no environment, or only the variables of the launcher, as redacted copies do.
    environment: dict[str, str] | None = None
    driver_versions: tuple[str, ...] = ()
    # The versions of CUDA that the driver supports.
    cuda_driver_versions: tuple[str, ...] = ()
    # Kinds of events, as nsys calls them.
    traced_events: tuple[str, ...] = ()
    # Whether nsys recorded that it traced NVTX, even if there was no range.
    traces_nvtx: bool = False
    records_python_backtraces: bool = False
    # The commands of the captured programs, as they may be written down.
    commands: tuple[str, ...] = ()
    # How CUDA graphs were traced: ``graph`` or ``node``.
    cuda_graph_traces: tuple[str, ...] = ()
    # How CUDA was traced: ``hardware`` or ``software``.
    cuda_traces: tuple[str, ...] = ()
    # How many samples of Python nsys took per second, or ``off``. Empty if it was not recorded.
    python_samplings: tuple[str, ...] = ()
    is_cpu_sampled: bool | None = None
    # Whether CUDA API calls were recorded with backtraces.
    has_cuda_backtraces: bool | None = None
    # Models by GPU id.
    gpu_names: dict[int, str] = field(default_factory=dict)
    # Bytes of memory by GPU id.
    gpu_memories: dict[int, int] = field(default_factory=dict)
    # By GPU id.
    gpu_identities: dict[int, GpuIdentity] = field(default_factory=dict)
    # GPU ids by pid and CUDA ordinal.
    gpu_of_ordinal: dict[tuple[int, int], int] = field(default_factory=dict)
    # GPU ids by CUDA ordinal of a process that sees all GPUs.
    gpu_of_device: dict[int, int] = field(default_factory=dict)
    # The tables that ``nsys export --tables`` was limited to; empty if it was not limited.
    exported_tables: str = ""
    # Whether the export left out tables without rows.
    is_lazy: bool = True
    # Whether the report has the settings of its export. Old reports do not.
    tells_export: bool = False
    # State of the file when it was read.
    file_state: FileState | None = None

    def leaves_out_empty(self, table: str) -> bool:
        """Tell whether the export leaves a table out if, and only if, the table has no rows."""
        return self.is_lazy and self.exports(table)

    def exports(self, table: str) -> bool:
        """Tell whether the export surely writes a table that has rows."""
        return not self.exported_tables or names_table(self.exported_tables, table)

    def number(self, variable: str) -> int | None:
        """Return a variable's value as a non-negative integer; None if it is no such number."""
        value = self.variables.get(variable, "")
        digits = re.fullmatch(r"[0-9]{1,18}", value.strip())
        return int(digits.group()) if digits else None

    def gpu_name(self, pid: int, device: int | None) -> str | None:
        """Return the model of a CUDA device of a process; None if it is not known.

        If all GPUs are of one model, the device has it too. Otherwise see `gpu_id`.
        """
        models = set(self.gpu_names.values())
        if len(models) == 1:
            return models.pop()
        gpu = self.gpu_id(pid, device)
        return self.gpu_names.get(gpu) if gpu is not None else None

    def gpu_memory(self, pid: int, device: int | None) -> int | None:
        """Return the bytes of memory of a CUDA device of a process; None if not known.

        If all GPUs have the same memory, the device has it too. Otherwise `gpu_id` tells which GPU
        the device is. The model does not tell, because GPUs of one model can have different memory.
        """
        distinct_sizes = set(self.gpu_memories.values())
        is_known_of_all_gpus = self.gpu_memories.keys() >= self.gpu_names.keys()
        if len(distinct_sizes) == 1 and is_known_of_all_gpus:
            return distinct_sizes.pop()
        gpu = self.gpu_id(pid, device)
        return self.gpu_memories.get(gpu) if gpu is not None else None

    def gpu_id(self, pid: int, device: int | None) -> int | None:
        """Return the GPU id of a CUDA device of a process, None if it is not known.

        CUDA numbers only the devices that the process sees. Reports before schema 3.17.1 have no
        table that maps these numbers to GPUs. There a number identifies a GPU only if
        CUDA_VISIBLE_DEVICES is not set, so that the process sees all GPUs.
        """
        if device is None:
            return None
        gpu = self.gpu_of_ordinal.get((pid, device))
        if gpu is None and "CUDA_VISIBLE_DEVICES" not in self.variables:
            gpu = self.gpu_of_device.get(device)
        return gpu


class CaptureRow(NamedTuple):
    """A row with an option of a capture, a word of a command, or an environment variable."""

    name: str
    value: str


class CaptureRows(Struct, frozen=True):
    """The rows in which nsys recorded how it captured, as far as they may be read."""

    rows: tuple[CaptureRow, ...] = ()
    # Whether there are variables that launchers do not set.
    has_environment: bool = False

    def values(self, name: str) -> list[str]:
        """Return the values of the rows with a name."""
        return [row.value for row in self.rows if row.name == name]

    def values_of_ending(self, ending: str) -> list[str]:
        """Return the values of the rows with names that end like this, in any case."""
        return [row.value for row in self.rows if row.name.upper().endswith(ending)]


def names_table(exported_tables: str, table: str) -> bool:
    """Tell whether a list of exported tables has the whole name of a table, in any case.

    nsys records the patterns of ``--tables``. A pattern stands for a table only if it matches the
    whole name. A pattern that is more than a name counts as no table, because it may match none.
    """
    names = _BETWEEN_TABLES.split(exported_tables.lower())
    return table.lower() in names


def read_facts(report: Report) -> ReportFacts:
    """Read the facts of a report; facts that its version does not have are None or empty."""
    facts = _read_export_facts(report)
    session_start_utc_ns = _session_start_utc_ns(report)
    gpus = _read_gpus(report)
    drivers, cuda_drivers = driver_versions_of(report)
    cuda_traces = cuda_traces_of(report, facts.nsys_version)
    nsys_start_utc_ns = _nsys_start_utc_ns(report, session_start_utc_ns)
    host = host_of(report)
    facts = replace(
        facts,
        session_start_utc_ns=session_start_utc_ns,
        nsys_start_utc_ns=nsys_start_utc_ns,
        gpu_names=gpus.names,
        gpu_memories=gpus.memories,
        gpu_identities=gpus.identities,
        gpu_of_device=gpus.id_of_device,
        driver_versions=drivers,
        cuda_driver_versions=cuda_drivers,
        cuda_traces=cuda_traces,
        host=host,
        gpu_of_ordinal=_gpu_of_ordinal(report),
        has_cuda_backtraces=_has_cuda_backtraces(report, facts),
    )
    return _with_facts_of_capture(read_capture_rows(report), facts)


def _with_facts_of_capture(capture: CaptureRows, facts: ReportFacts) -> ReportFacts:
    """Add the options of a capture, its commands, and the variables of its programs."""
    traced_events, cuda_graph_traces = traced_by(capture)
    python_samplings = python_samplings_of(capture, are_options_recorded=bool(traced_events))
    commands = commands_of(capture)
    return replace(
        facts,
        traced_events=traced_events,
        traces_nvtx=traces_nvtx(capture),
        records_python_backtraces=records_python_backtraces(capture),
        cuda_graph_traces=cuda_graph_traces,
        python_samplings=python_samplings,
        commands=tuple(commands),
        variables=_rank_variables(capture),
        environment=read_environment(capture),
        is_cpu_sampled=samples_cpu(capture),
    )


def read_capture_rows(report: Report) -> CaptureRows:
    """Read all rows about a capture that any fact needs; none if the report does not have them.

    Of the environment, only variables are read that are named here or may be written down.
    """
    table = CAPTURE_META
    if not report.has(table, *_NAME_AND_VALUE):
        return CaptureRows()
    is_variable = _is_variable((*RANK_VARIABLES, *JOB_VARIABLES, *VARIABLES))
    where = " OR ".join((*_OPTION_AND_COMMAND_ROWS, is_variable))
    rows = _capture_rows(report, table, where)
    # nsys captured the whole environment if it has a variable that no launcher sets.
    where_not_of_launchers = f"{_IS_VARIABLE} AND NOT ({_assigns(RANK_VARIABLES)})"
    has_environment = report.count(table, where_not_of_launchers) > 0
    return CaptureRows(rows, has_environment)


def _capture_rows(report: Report, table: str, where: str) -> tuple[CaptureRow, ...]:
    rows = report.few(table, _NAME_AND_VALUE, where)
    return tuple(CaptureRow(row["name"], row["value"]) for row in rows)


def _read_export_facts(report: Report) -> ReportFacts:
    """Return the facts about the export of a report, and the state of its file."""
    settings = _export_settings(report)
    exported_tables = settings.get("EXPORT_PARAM_TABLES_TO_EXPORT") or ""
    # Old reports do not tell how they were exported.
    tells_export = any(name.startswith("EXPORT_PARAM_") for name in settings)
    # By default, an export leaves out tables without rows.
    lazy_setting = settings.get("EXPORT_PARAM_LAZY") or "true"
    nsys_version = settings.get("EXPORT_PRODUCT_VERSION")
    schema_version = settings.get("EXPORT_SCHEMA_VERSION")
    return ReportFacts(
        nsys_version=nsys_version,
        schema_version=schema_version,
        exported_tables=exported_tables.strip(),
        tells_export=tells_export,
        is_lazy=lazy_setting.lower() != "false",
        file_state=report.state,
    )


def _export_settings(report: Report) -> dict[str, str]:
    """Return what nsys recorded about the export, by name."""
    settings: dict[str, str] = {}
    for table in (EXPORT_META_OLD, EXPORT_META):
        for row in report.few(table, _NAME_AND_VALUE):
            settings[row["name"]] = row["value"]
    return settings


class _Gpus(NamedTuple):
    """The GPUs of a report."""

    # Models by GPU id.
    names: dict[int, str]
    # GPU ids by CUDA ordinal.
    id_of_device: dict[int, int]
    # Bytes by GPU id.
    memories: dict[int, int]
    # By GPU id.
    identities: dict[int, GpuIdentity]


def _read_gpus(report: Report) -> _Gpus:
    """Read the GPUs. What is null, empty or impossible is left out."""
    # The columns have other names in other versions.
    id_column = "id" if report.has(GPU, "id") else "deviceId"
    device_column = "cuDevice" if report.has(GPU, "cuDevice") else id_column
    columns = {id_column: "int", device_column: "int", "name": "text"}
    columns |= {name: "text" for name in ("uuid", "busLocation") if report.has(GPU, name)}
    if report.has(GPU, "totalMemory"):
        columns["totalMemory"] = "int"
    names: dict[int, str] = {}
    memories: dict[int, int] = {}
    identities: dict[int, GpuIdentity] = {}
    id_of_device: dict[int, int] = {}
    for row in report.few(GPU, columns):
        gpu_id = row[id_column]
        device = row[device_column]
        if row["name"]:
            names[gpu_id] = row["name"]
        if device is not None:
            id_of_device[device] = gpu_id
        memory = row.get("totalMemory") or 0
        if 0 < memory <= _MAX_GPU_MEMORY:
            memories[gpu_id] = memory
        identities[gpu_id] = GpuIdentity(row.get("uuid", ""), row.get("busLocation", ""))
    return _Gpus(names, id_of_device, memories, identities)


def _gpu_of_ordinal(report: Report) -> dict[tuple[int, int], int]:
    """Return the GPU id of each pid and CUDA ordinal."""
    columns = dict.fromkeys(("pid", "cudaId", "gpuId"), "int")
    gpu_of_ordinal: dict[tuple[int, int], int] = {}
    for row in report.few(CUDA_DEVICE, columns):
        ordinal = (row["pid"], row["cudaId"])
        if row["gpuId"] is not None:
            gpu_of_ordinal[ordinal] = row["gpuId"]
    return gpu_of_ordinal


def _session_start_utc_ns(report: Report) -> int | None:
    """Return the first recorded start of the session; None if no start, or an impossible one."""
    rows = report.few(SESSION_START, {"utcEpochNs": "int"})
    starts_ns: list[int] = [row["utcEpochNs"] for row in rows if row["utcEpochNs"] is not None]
    if not starts_ns:
        return None
    first_ns = starts_ns[0]
    return first_ns if abs(first_ns) < TIME_LIMIT else None


def _rank_variables(capture: CaptureRows) -> dict[str, str]:
    """Return the variables of ranks and jobs that have only one value in the report."""
    values_by_name: dict[str, set[str]] = {}
    for variable in _assigned(capture.rows, (*RANK_VARIABLES, *JOB_VARIABLES)):
        values = values_by_name.setdefault(variable.name, set())
        values.add(variable.value)
    return only_values(values_by_name)


def only_values(values_by_key: Mapping[_Key, Collection[_Value]]) -> dict[_Key, _Value]:
    """Return the value of each key that has exactly one value."""
    only_value: dict[_Key, _Value] = {}
    for key, values in values_by_key.items():
        if len(values) == 1:
            only_value[key] = next(iter(values))
    return only_value


def _nsys_start_utc_ns(report: Report, session_start_utc_ns: int | None) -> int | None:
    """Return when the nsys that captured was started; None if this is not known.

    The report has the time from that start to the start of the session.
    """
    rows = report.few(CAPTURE_TIMES, {"startTime": "int"})
    if not rows or session_start_utc_ns is None:
        return None
    delay_ns: int | None = rows[0]["startTime"]
    if delay_ns is None or abs(delay_ns) >= TIME_LIMIT:
        return None
    return session_start_utc_ns - delay_ns


def host_of(report: Report) -> str | None:
    """Return the name of the host that was captured; None if it was not recorded."""
    rows = report.few(SYSTEM_ENV, _NAME_AND_VALUE, "name = 'Hostname'")
    return next((row["value"] for row in rows), None)


def driver_versions_of(report: Report) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the versions of the driver, and the versions of CUDA that the driver supports.

    Both are distinct and sorted. Values that do not look like versions are left out.
    """
    where = "name IN ('NvDriverVersion', 'CudaDriverVersion')"
    drivers: list[str] = []
    cuda_versions: list[str] = []
    for row in report.few(SYSTEM_ENV, _NAME_AND_VALUE, where):
        value = row["value"]
        if row["name"] == "NvDriverVersion":
            drivers.append(value)
        elif _CUDA_NUMBER.fullmatch(value or ""):
            cuda_versions.append(_cuda_version(int(value)))
    shown_drivers = shown_alone(drivers, VERSION)
    shown_cuda_versions = shown_alone(cuda_versions, VERSION)
    return tuple(shown_drivers), tuple(shown_cuda_versions)


def _cuda_version(number: int) -> str:
    """Return the version of CUDA that a number of a driver stands for: 12.4 for 12040."""
    major, ten_times_minor = divmod(number, 1000)
    minor = ten_times_minor // 10
    return f"{major}.{minor}"


def traced_by(capture: CaptureRows) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of events that nsys traced, and the ways in which it traced CUDA graphs.

    Both are distinct and sorted, and empty if they are not known.
    """
    events = capture.values(_EVENT_TYPE)
    graph_modes = [mode.lower() for mode in capture.values_of_ending(_GRAPH_MODE)]
    _, nvtx_events = NVTX_TRACED
    # Redacted copies have NVTX only, whatever was traced.
    may_be_redacted = set(events) == {nvtx_events}
    shown_events = [] if may_be_redacted else shown_alone(events, TRACED)
    shown_graph_modes = shown_alone(graph_modes, TRACED)
    return tuple(shown_events), tuple(shown_graph_modes)


def python_samplings_of(capture: CaptureRows, *, are_options_recorded: bool) -> tuple[str, ...]:
    """Return the rates of a capture at which nsys sampled Python, in samples per second.

    nsys records a rate only if it samples. If a report has no rate, but other options of the
    capture (`are_options_recorded`), the result is ``off`` alone. If it has neither, the result is
    empty.
    """
    rates = capture.values(_PYTHON_SAMPLING_RATE)
    if rates:
        return tuple(shown_alone(rates, PYTHON_SAMPLING))
    return (PYTHON_IS_NOT_SAMPLED,) if are_options_recorded else ()


def samples_cpu(capture: CaptureRows) -> bool | None:
    """Tell whether nsys took CPU samples of any process; None if it was not recorded."""
    values = {value.lower() for value in capture.values_of_ending(CPU_TRACE)}
    is_recorded = "true" in values or "false" in values
    return "true" in values if is_recorded else None


def _has_cuda_backtraces(report: Report, facts: ReportFacts) -> bool | None:
    """Tell whether CUDA API calls were recorded with backtraces.

    None if the export may have left out the backtraces.
    """
    table = CUDA_CALL_CHAINS
    if report.has_rows(table):
        return True
    # The table has no rows. Either it is there, or the export leaves out tables without rows.
    has_surely_none = report.has(table) or facts.leaves_out_empty(table)
    return False if has_surely_none else None


def commands_of(capture: CaptureRows) -> list[str]:
    """Return the commands of the programs that nsys started, as they may be written down.

    Words that are not known to be harmless are masked, for example secrets and paths. Commands that
    are masked completely are left out.
    """
    # For each process, its words by position.
    command_of_process: dict[str, dict[int, str]] = {}
    for name, value in capture.rows:
        match = _COMMAND_ROW.fullmatch(name)
        if match is None:
            continue
        argument = match["argument"]
        position = _PROGRAM if argument is None else int(argument)
        word_at_position = command_of_process.setdefault(match["process"], {})
        word_at_position[position] = value
    # A command without its program cannot be understood.
    commands = [command for command in command_of_process.values() if command.get(_PROGRAM)]
    return shown_commands(map(_in_order, commands))


def _in_order(word_at_position: Mapping[int, str]) -> list[str]:
    """Return words in the order of their positions."""
    return [word for _, word in sorted(word_at_position.items())]


def traces_nvtx(capture: CaptureRows) -> bool:
    """Tell whether nsys recorded that it traced NVTX, even if there was no range."""
    return NVTX_TRACED in capture.rows


def records_python_backtraces(capture: CaptureRows) -> bool:
    """Tell whether nsys recorded backtraces of Python."""
    prefix, enabled = PYTHON_BACKTRACES
    values = [value for name, value in capture.rows if name.upper().startswith(prefix)]
    return any(value.lower() == enabled for value in values)


class CapturedVariable(NamedTuple):
    """An environment variable that a report captured."""

    # The name of the row that has the variable.
    row: str
    name: str
    value: str


def variables_of(
    report: Report, names: Collection[str], table: str = CAPTURE_META
) -> Iterator[CapturedVariable]:
    """Yield the environment variables with some names that were captured."""
    return _assigned(_capture_rows(report, table, _is_variable(names)), names)


def _assigned(rows: Iterable[CaptureRow], names: Collection[str]) -> Iterator[CapturedVariable]:
    """Yield the environment variables with some names that rows assign."""
    for row in rows:
        match = _ASSIGNMENT.match(row.value) if _is_of_variable(row) else None
        # LIKE takes _ for any letter and ignores case, so the name is compared again.
        if match and match["name"] in names:
            name, value = match.groups()
            yield CapturedVariable(row.name, name, value)


def _is_of_variable(row: CaptureRow) -> bool:
    return row.name.upper().endswith(_END_OF_VARIABLE_ROW)


def _is_variable(names: Iterable[str]) -> str:
    """Return the SQL condition for rows with environment variables of some names."""
    return f"({_IS_VARIABLE} AND ({_assigns(names)}))"


def _assigns(names: Iterable[str]) -> str:
    """Return the SQL condition for rows that assign variables with some names."""
    return " OR ".join(f"value LIKE '{name}=%'" for name in names)


def read_environment(capture: CaptureRows) -> dict[str, str] | None:
    """Return the training variables of a capture, as they may be written down.

    Values of several processes are joined. None if the report has only the variables that launchers
    set, because then nsys did not capture the whole environment.
    """
    if not capture.has_environment:
        return None
    # All rows of a process have the same name, and those of different processes different names.
    environment_of_row_name: dict[str, dict[str, str]] = {}
    for row in filter(_is_of_variable, capture.rows):
        variable, _, value = row.value.partition("=")
        if variable in VARIABLES:
            environment = environment_of_row_name.setdefault(row.name, {})
            environment[variable] = _without_quotes(value)
    environments = environment_of_row_name.values()
    recorded = [recorded_environment(environment, Mask()) for environment in environments]
    # Empty, not None: the environment was captured, and has no training variables.
    return joined_environments(recorded) or {}


def _without_quotes(value: str) -> str:
    match = _QUOTED.fullmatch(value)
    return match["content"] if match else value
