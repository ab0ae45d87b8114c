"""A fake nsys: a shell script that prints what nsys 2024.2.3 prints, and exports by copying.

A fake report is thus an SQLite file that is called .nsys-rep.
"""

import pytest

from nsyspipe.nsys.programs import find_nsys
from tests.build.programs import HELP, VERSION, program
from tests.build.trace import steady_rank

OLD_OPTIONS = "\t-f, --force-overwrite=\n\n\t-l, --lazy=\n\n\t-q, --quiet=\n\n\t-t, --type=\n"
NEW_OPTIONS = f"\t--include-blobs=\n\n{OLD_OPTIONS}"
COPY = 'cp "$report" "$out"'
# What nsys says of the GPUs on which it can count.
COUNTERS = """\
Possible --gpu-metrics-devices values are:
\t0: NVIDIA H200 PCI[0000:18:00.0]
\t1: NVIDIA H200 PCI[0000:2a:00.0]
\tall: Select all supported GPUs
\tnone: Disable GPU Metrics [Default]
"""
# The same where only root may count.
NOT_ALLOWED = """\
Possible --gpu-metrics-devices values are:
\tnone: Disable GPU Metrics [Default]
Insufficient privilege, see https://developer.nvidia.com/ERR_NVGPUCTRPERM
"""
# As nsys 2024.2.3 says it on a machine without a GPU.
NO_COUNTERS = """\
Possible --gpu-metrics-device values are:
\tNVIDIA GPUs not found, feature is not available
"""
# As nsys 2024.2.3 says it, on stderr, of a report of a later one.
NEWER = """\
Exportation error: Report was created in Nsight Systems version (2026.2.3.38-262334140272v0), newer than your current \
version (2024.2.3.38-242334140272v0).
Please update your Nsight Systems to the latest version to view this report.
"""

_SCRIPT = """\
case "$1" in
--version) cat <<'END'
{version}
END
;;
profile)
  if [ "$2" = --help ] || [ $# = 1 ]; then
    cat <<'END'
{profile}
END
    exit
  fi
  case "$2" in --gpu-metrics-device*=help) cat <<'END'
{counters}
END
    exit;;
  esac
  shift
  while case "$1" in -*) true;; *) false;; esac; do
    case "$1" in --output=*) out=${{1#--output=}};; esac
    shift
  done
  out=$(printf %s "$out" | sed "s/%q{{RANK}}/$RANK/")
  reports={reports}
  {capture}
;;
export)
  if [ "$2" = --help ]; then
    cat <<'END'
{options}
END
    exit 0
  fi
  for one in "$@"; do case "$one" in --output=*) out=${{one#--output=}};; esac; done
  report=$one
  echo "$@" >> "$0.calls"
  {export}
;;
esac"""


def fake_nsys(
    folder,
    export=COPY,
    *,
    options=OLD_OPTIONS,
    profile=HELP,
    name="nsys",
    capture="exit 3",
    reports="",
    counters=COUNTERS,
):
    """Write the program; `export` are shell commands that know ``$report`` and ``$out``.

    `profile` is its help; `capture` are commands that run the program with ``"$@"`` and know
    ``$reports`` and ``$out``.
    """
    texts = {"version": VERSION, "profile": profile, "options": options, "reports": f"'{reports}'"}
    texts["counters"] = counters
    return program(folder, name, _SCRIPT.format(**texts, export=export, capture=capture))


def take_nsys_away(monkeypatch):
    """Leave no nsys; skip where this machine has one in one of the usual places."""
    monkeypatch.setenv("PATH", "/nonexistent")
    if find_nsys() is not None:
        pytest.skip("this machine has nsys in one of the usual places")


def calls(nsys):
    log = nsys.with_name("nsys.calls")
    return log.read_text().splitlines() if log.exists() else []


def fake_report(path, rank=0, world_size=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    return steady_rank(rank, world_size=world_size).write(path)
