#!/usr/bin/env bash
# Capture a job on the GPUs of one machine, a report per rank.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
# shellcheck source=capture.bash
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/capture.bash"

usage() {
  cat <<'EOF'
Capture a distributed job on this machine: a report per rank, exported to SQLite.

  launchers/ddp.sh -n 2
  launchers/ddp.sh -n 8 -o captures/before --program train.py -- --lr 1e-4
  nsyspipe analyze "captures/before_*.sqlite"

  -n, --nproc N          ranks, one per GPU, or any number with --cpu [1, as torchrun]

EOF
  common_options
}

own_option() {
  case $1 in
    -n | --nproc | --nproc_per_node | --nproc-per-node) nproc=$2 counted=yes ;;
    *) taken=0 ;;
  esac
}

parse_options "$@"
: "${name:=ddp-${nproc}gpu}"
check_options
find_torchrun
nsys_command "${name}_%q{RANK}"
rank_command "${nsys_words[@]}"
run_job -- "${torchrun[@]}" --standalone --nproc_per_node="$nproc" --no-python "${rank_words[@]}"
