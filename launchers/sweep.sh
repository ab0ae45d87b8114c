#!/usr/bin/env bash
# Run the study of optimizations: one GPU, DDP on more of them, each option of DDP; capture, analyze, compare.
set -euo pipefail
# shellcheck source=capture.bash
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/capture.bash"

usage() {
  cat <<'EOF'
Run the study of optimizations on this machine, and say what each of them brings: a baseline on one GPU, DDP on
1, 2, 4, 8 GPUs (as many as there are), bucket sizes, gradient_as_bucket_view, static_graph, compression hooks, NVLink
off, FSDP; then analyze each run and print one table. A run that is done is not run again: start it anew to go on.

  launchers/sweep.sh -o study
  launchers/sweep.sh -o study --only 'shm|bf16' -- --batch-size 64
  launchers/sweep.sh -o study --analyze-only

  -o, --output DIR       where all of it goes [study]
  -n, --nproc N          GPUs to use at most [all]
  --only REGEX           only the runs whose name matches
  --list                 print the runs, and run nothing
  --analyze-only         analyze and compare what is there
  --repeat N             each run N times, to see how much two equal runs differ [1]

What every run takes besides: --nsys, --trace, --timeout, --exit-timeout, --linger, --cpu, --dry-run, -h, --help; what
follows -- goes to the training program of all runs. PYTHON names the Python to use.
EOF
}

most='' only=. list='' analyze_only='' repeat=1

own_option() {
  case $1 in
    -n | --nproc) most=$2 ;;
    --only) only=$2 ;;
    --repeat) repeat=$2 ;;
    --list) list=yes taken=1 ;;
    --analyze-only) analyze_only=yes taken=1 ;;
    *) taken=0 ;;
  esac
}

# The runs: a name, then the launcher's words, then -- and the training program's. NAME=value in front goes to the
# environment. Of DDP's options each is changed alone, on the most GPUs.
study() {
  local n=1 most=$1
  echo "baseline baseline.sh --"
  echo "baseline-unprofiled baseline.sh --no-profile --"
  while [ "$n" -le "$most" ]; do
    echo "ddp-${n}gpu ddp.sh -n $n --"
    n=$((n * 2))
  done
  n=$((n / 2))
  [ "$n" -gt 1 ] || return 0
  echo "ddp-${n}gpu-unprofiled ddp.sh -n $n --no-profile --"
  echo "ddp-${n}gpu-onebucket ddp.sh -n $n -- --bucket-cap-mb 2000"
  echo "ddp-${n}gpu-bucket5 ddp.sh -n $n -- --bucket-cap-mb 5"
  echo "ddp-${n}gpu-bucket100 ddp.sh -n $n -- --bucket-cap-mb 100"
  echo "ddp-${n}gpu-view ddp.sh -n $n -- --gradient-as-bucket-view"
  echo "ddp-${n}gpu-static ddp.sh -n $n -- --static-graph"
  # Gloo has no bf16.
  [ -z "$cpu" ] || { echo "ddp-${n}gpu-fp16 ddp.sh -n $n -- --hook fp16"; return 0; }
  echo "ddp-${n}gpu-bf16 ddp.sh -n $n -- --hook bf16"
  echo "ddp-${n}gpu-powersgd ddp.sh -n $n -- --hook powersgd"
  echo "ddp-${n}gpu-accumulate4 ddp.sh -n $n -- --accumulate 4"
  echo "fsdp-${n}gpu ddp.sh -n $n -- --fsdp"
  echo "ddp-${n}gpu-shm NCCL_P2P_DISABLE=1 ddp.sh -n $n --"
  echo "ddp-${n}gpu-shm-onebucket NCCL_P2P_DISABLE=1 ddp.sh -n $n -- --bucket-cap-mb 2000"
  echo "ddp-${n}gpu-shm-bf16 NCCL_P2P_DISABLE=1 ddp.sh -n $n -- --hook bf16"
}

# run_one NAME WORDS...: capture one run, unless it is done.
run_one() {
  local run=$1 variables=() words=() status=0 made
  shift
  printf -v made '%q ' "$@" "${train_args[@]}"
  if [ -e "$name/$run.done" ]; then
    [ "$(<"$name/$run.done")" = "$made" ] || die "$name/$run: was done with other options" "-o ANOTHER_DIRECTORY"
    echo "== $run: done before" >&2
    return
  fi
  while [[ $1 == *=* ]]; do variables+=("$1"); shift; done
  words=("$launchers/$1" -o "$name/$run" --force "${shared[@]}")
  shift
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  words+=(-- "$@" --json "$name/$run.train.json" "${train_args[@]}")
  echo "== $run" >&2
  env "${variables[@]}" "${words[@]}" >&2 </dev/null || status=$?
  if [ "$status" = 0 ]; then
    [ -n "$dry_run" ] || printf '%s\n' "$made" >"$name/$run.done"
  elif [ "$status" = 130 ]; then
    exit 130
  else
    echo "== $run: failed with status $status; the sweep goes on" >&2
    failed+=("$run")
  fi
}

# The GPUs that the runs of an earlier sweep used at most, perhaps on another machine.
most_there() {
  local found n most=1
  for found in "$name"/ddp-*gpu*; do
    n=${found##*/ddp-} n=${n%%gpu*}
    [[ ! $n =~ ^[1-9][0-9]*$ || $n -le $most ]] || most=$n
  done
  echo "$most"
}

analyze_one() {
  local run=$1 reports=()
  local found
  for found in "$name/$run"_*.sqlite; do [ ! -e "$found" ] || reports+=("$found"); done
  [ "${#reports[@]}" != 0 ] || return 0
  [ ! "$name/$run.analysis.json" -nt "${reports[0]}" ] || return 0
  "$python" -m nsyspipe analyze "${reports[@]}" -q --label "$run" --run-id "run-$run" --out "$name/runs" \
    --json "$name/$run.analysis.json" --html "$name/$run.html" --force || failed+=("$run (analysis)")
}

parse_options "$@"
if [ -n "$ranks$range$force$no_export$no_profile${nsys_args[*]}" ] || [ "$program" != "$launchers/train_vit.py" ]; then
  die "sweep.sh: an option that its runs do not take" "see --help; start baseline.sh or ddp.sh with it"
fi
check_python
: "${name:=study}"
case $name in -*) name=./$name ;; esac
[[ $repeat =~ ^[1-9][0-9]*$ ]] || die "--repeat $repeat: not a number of times" "--repeat 2"
if [ -z "$most" ]; then
  if [ -n "$analyze_only" ]; then most=$(most_there); elif [ -n "$cpu" ]; then most=2; else most=$("$python" -c 'from nsyspipe.capture.ready import n_gpus; print(n_gpus() or 1)'); fi
fi
[[ $most =~ ^[1-9][0-9]*$ ]] || die "-n $most: not a number of GPUs" "-n 4"
mapfile -t runs < <(study "$most" | only=$only awk '$1 ~ ENVIRON["only"]')
[ "${#runs[@]}" != 0 ] || die "--only $only: matches no run" "--list prints their names"
if [ -n "$list" ]; then
  printf '%s\n' "${runs[@]}"
  exit
fi

failed=()
shared=(--timeout="$timeout" --exit-timeout="$exit_timeout" --linger="$linger")
shared+=(${nsys:+--nsys="$nsys"} ${trace:+--trace="$trace"} ${cpu:+--cpu} ${dry_run:+--dry-run})
[ -n "$dry_run" ] || mkdir -p "$name"
names=()
for run in "${runs[@]}"; do
  read -ra words <<<"$run"
  for ((time = 1; time <= repeat; time++)); do
    label=${words[0]}
    [ "$time" = 1 ] || label+="-again$time"
    names+=("$label")
    [ -n "$analyze_only" ] || run_one "$label" "${words[@]:1}"
  done
done
[ -z "$dry_run" ] || exit 0

if "$python" -c 'import adbc_driver_sqlite, pyarrow, sqlalchemy' 2>/dev/null; then
  echo "== analyzing" >&2
  for label in "${names[@]}"; do analyze_one "$label"; done
  if [ "${#names[@]}" -gt 1 ] && "$python" -m nsyspipe compare --help >/dev/null 2>&1; then
    compared=()
    for label in "${names[@]}"; do [ ! -e "$name/$label.analysis.json" ] || compared+=("$label=$name/runs/runs/run_id=run-$label"); done
    "$python" -m nsyspipe compare "${compared[@]}" >"$name/compare.txt" || failed+=(compare)
  fi
else
  echo "note: $python lacks what the analysis needs (pip install nsyspipe); copy $name and go on with --analyze-only" >&2
fi
"$python" "$launchers/sweep_table.py" "$name" "${names[@]}"
if [ "${#failed[@]}" != 0 ]; then
  echo "error: ${#failed[@]} of ${#names[@]} runs failed: ${failed[*]}" >&2
  echo "  fix: mend what their messages say, then start the same sweep again: it goes on with them" >&2
  exit 1
fi
