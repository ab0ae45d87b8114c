#!/usr/bin/env bash
# Capture one node of a job on several nodes; run it on each of them.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
# shellcheck source=capture.bash
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/capture.bash"

usage() {
  cat <<'EOF'
Capture one node of a distributed job. Run the same line on every node, with its own --node-rank.

  launchers/node.sh --nnodes 2 --node-rank 0 -n 8 --rdzv-endpoint node0:29500 -o /shared/run
  launchers/node.sh --nnodes 128 --node-rank 0 -n 8 --rdzv-endpoint node0:29500 -o /shared/run --ranks 0,7,1023
  nsyspipe analyze "/shared/run_*.sqlite"

  -n, --nproc N          ranks on this node, one per GPU [1, as torchrun]
  --nnodes M             nodes of the job
  --node-rank K          this node, from 0
  --rdzv-endpoint H:P    host and port of node 0, to which the other nodes connect
  --rdzv-backend NAME    torchrun's rendezvous: static gives rank K * N + local rank [static]
  --rdzv-id ID           name of the job, if the backend needs one
  --node-wide            one nsys around torchrun, and one report per node (processes differ by pid)

EOF
  common_options
}

nnodes='' node_rank='' endpoint='' backend=static rdzv_id='' node_wide=''

own_option() {
  case $1 in
    -n | --nproc | --nproc_per_node | --nproc-per-node) nproc=$2 counted=yes ;;
    --nnodes) nnodes=$2 ;;
    --node-rank | --node_rank) node_rank=$2 ;;
    --rdzv-endpoint | --rdzv_endpoint) endpoint=$2 ;;
    --rdzv-backend | --rdzv_backend) backend=$2 ;;
    --rdzv-id | --rdzv_id) rdzv_id=$2 ;;
    --node-wide) node_wide=yes taken=1 ;;
    *) taken=0 ;;
  esac
}

parse_options "$@"
missing=''
[ -n "$nnodes" ] || missing+=' --nnodes'
[ -n "$node_rank" ] || missing+=' --node-rank'
[ -n "$endpoint" ] || missing+=' --rdzv-endpoint'
example='--nnodes 2 --node-rank 0 --rdzv-endpoint node0:29500'
fix="$(beside node.sh) $example -n 8"
[ $# = 0 ] || fix="add$missing, as in $example"
[ -z "$missing" ] || die "node.sh: needs$missing" "$fix"
[[ $nnodes =~ ^[1-9][0-9]*$ ]] || die "--nnodes '$nnodes': not a number of nodes" "--nnodes 2"
[[ $node_rank =~ ^(0|[1-9][0-9]*)$ && $node_rank -lt $nnodes ]] ||
  die "--node-rank '$node_rank': not a number below --nnodes" "--node-rank 0 on the first node"
[[ $endpoint == *?:* ]] || die "--rdzv-endpoint '$endpoint': not HOST:PORT of node 0" "--rdzv-endpoint node0:29500"
[[ $nproc =~ ^[1-9][0-9]*$ ]] || die "-n $nproc: not a number of ranks" "-n 8"
[ -z "$node_wide" ] || [ -z "$ranks" ] || die "--node-wide --ranks: one report contains all ranks of its node" "leave one out"
: "${name:=ddp-$((nnodes * nproc))gpu}"
n_nodes=$nnodes
check_options
find_torchrun

run_ranks=("${torchrun[@]}" --nnodes="$nnodes" --nproc_per_node="$nproc" --node_rank="$node_rank")
if [ "$backend" = static ]; then
  run_ranks+=(--master_addr="${endpoint%:*}" --master_port="${endpoint##*:}")
else
  run_ranks+=(--rdzv_backend="$backend" --rdzv_endpoint="$endpoint" --rdzv_id="${rdzv_id:-${name##*/}}")
fi
job=(--nodes="$nnodes" --node-rank="$node_rank" --rendezvous="$backend")

if [ -n "$node_wide" ]; then
  nsys_command "${name}_node$node_rank"
  around=("${nsys_words[@]:0:2}" ${counting:+"$counting"} "${nsys_words[@]:2}")
  rank_command
  run_job "${job[@]}" --node-wide -- "${around[@]}" "${run_ranks[@]}" --no-python "${rank_words[@]}"
else
  nsys_command "${name}_%q{RANK}"
  rank_command "${nsys_words[@]}"
  run_job "${job[@]}" -- "${run_ranks[@]}" --no-python "${rank_words[@]}"
fi
