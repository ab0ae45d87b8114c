#!/usr/bin/env bash
# Capture the same job on one GPU without torchrun: what the others are compared with.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
# shellcheck source=capture.bash
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/capture.bash"

usage() {
  cat <<'EOF'
Capture a job on one GPU, without torchrun and DDP, as a baseline for the other jobs.

  launchers/baseline.sh
  launchers/baseline.sh -o captures/baseline --program train.py -- --batch-size 64
  nsyspipe analyze captures/baseline_0.sqlite

EOF
  common_options
}

own_option() {
  taken=0
  [[ $1 != -n && $1 != --nproc* ]] || die "$1: no such option, because the baseline is one rank" "$(beside ddp.sh) -n ${2:-2}"
}

parse_options "$@"
: "${name:=baseline}"
counted=yes
check_options
# Left over from a job around this one, they would make a rank of it.
for one in RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE; do
  [ -z "${!one+x}" ] || changed+=("$one")
  unset "$one"
done
nsys_command "${name}_0"
rank_command "${nsys_words[@]}"
run_job -- "${rank_words[@]}"
