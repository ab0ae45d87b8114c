#!/usr/bin/env bash
# Run the study of optimizations: one GPU, DDP on more of them, each option of DDP; capture, analyze, compare.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
# shellcheck source=capture.bash
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/capture.bash"

usage() {
  cat <<'EOF'
Run a study of optimizations on this machine, analyze each run, and print one table with the effect of each change.
The runs are a baseline on one GPU, DDP on 1, 2, 4 and 8 GPUs (as many as there are), bucket sizes,
gradient_as_bucket_view, static_graph, compression hooks, NVLink off, and FSDP. A finished run does not run again: if
the sweep stops, the same command continues it.

  launchers/sweep.sh -o study
  launchers/sweep.sh -o study --only 'shm|bf16' -- --batch-size 64
  launchers/sweep.sh -o study --analyze-only

  -o, --output DIR       directory for all files [study]
  -n, --nproc N          largest number of GPUs to use [all]
  --only REGEX           only runs with a matching name
  --list                 print the runs, and run nothing
  --analyze-only         analyze and compare existing runs
  --repeat N             run each run N times, to see how much equal runs differ [1]

Other options of every run: --nsys, --trace, --no-python, --gpu-metrics, --cuda-graph-trace, --timeout, --exit-timeout,
--linger, --cpu, --dry-run, -h, --help. Arguments after -- go to the training program of all runs. PYTHON names the
Python to use.
EOF
}

# Without the training program's arguments: they may hold secrets, and this is printed.
started=$(printf '%q ' "$0"; for word in "$@"; do [ "$word" != -- ] || { printf '%s' '-- ...'; break; }; printf '%q ' "$word"; done)
most='' only=. list='''' analyze_only='' repeat=1

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

# recorded [--environment] WORDS...: words as they may be written down, as in a sidecar: what may be secret is hashed.
recorded() { "${run_module[@]}" nsyspipe.nsys.secrets "$@"; }

# What a figure depends on besides a run's own words.
surroundings() {
  recorded --environment "${train_args[@]}" ${cpu:+--cpu} ${trace:+--trace="$trace"} ${graphs:+--cuda-graph-trace="$graphs"} ${no_python:+--no-python} ${gpu_metrics:+--gpu-metrics} ${nsys:+--nsys="$nsys"}
  [ -n "$cpu" ] || nvidia-smi -L 2>/dev/null | sed -nE 's/^GPU [0-9]+: (.*) \(UUID.*/\1/p' | sort -u | tr '\n' ' ' || true
}

# A signal for the sweep is passed on to what it runs; the sweep ends when that has.
job='' asked=''
pass_on() {
  asked=$1
  [ -z "$job" ] || kill -s "$asked" -- "-$job" 2>/dev/null || true
}
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM
trap 'pass_on HUP' HUP

# run COMMAND...: its exit status is $status afterwards.
run() {
  status=0
  [ -z "$asked" ] || stop_here
  # A group of its own: a terminal's Ctrl-C reaches the sweep alone, so that the command is asked to end only once.
  set -m
  "$@" </dev/null &
  job=$!
  set +m
  [ -z "$asked" ] || pass_on "$asked"
  wait "$job" || status=$?
  # A signal ends the wait, not the command.
  while kill -0 "$job" 2>/dev/null; do
    status=0
    wait "$job" || status=$?
  done
  job=''
  [ "$status" != 130 ] || asked=${asked:-INT}
  [ -z "$asked" ] || stop_here
}

stop_here() {
  local label n=0
  for label in "${labels[@]}"; do [ ! -e "$name/$label.done" ] || n=$((n + 1)); done
  printf 'sweep ended by SIG%s: %s of %s runs in %s are done\n  fix: to continue, start it again: %s\n' \
    "$asked" "$n" "${#labels[@]}" "$name" "$started" >&2
  case $asked in HUP) exit 129 ;; INT) exit 130 ;; *) exit 143 ;; esac
}

# Whether files of a run are there that the sweep has not made.
has_others() {
  local found
  [ ! -e "$name/$1.begun" ] || return 1
  for found in "$name/$1"[._]*; do [ ! -e "$found" ] || return 0; done
  return 1
}

# run_one NAME WORDS...: capture one run, unless it is done.
run_one() {
  local label=$1 variables=() words=() made
  shift
  made=$(recorded "$@")$around
  if [ -e "$name/$label.done" ]; then
    [ "$(<"$name/$label.done")" = "$made" ] ||
      die "$name/$label: was run with other options or GPUs ($(<"$name/$label.done"))" "-o ANOTHER_DIRECTORY"
    echo "== $label: done before" >&2
    return
  fi
  if has_others "$label"; then
    printf 'error: %s: has files that are not of this sweep and would be replaced\n  fix: -o ANOTHER_DIRECTORY\n' "$name/$label" >&2
    failed+=("$label")
    return
  fi
  while [[ $1 == *=* ]]; do variables+=("$1"); shift; done
  words=("$launchers/$1" -o "$name/$label" "${shared[@]}")
  [ ! -e "$name/$label.begun" ] || words+=(--force)
  shift
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  words+=(-- "$@" --json "$name/$label.train.json" "${train_args[@]}")
  echo "== $label" >&2
  [ -n "$dry_run" ] || : >"$name/$label.begun"
  # What programs print goes to stderr, the commands of a dry run to stdout, as the table.
  if [ -n "$dry_run" ]; then run env "${variables[@]}" NSYSPIPE_CHANGED="${variables[*]%%=*}" "${words[@]}"; else run env "${variables[@]}" "${words[@]}" >&2; fi
  if [ "$status" = 0 ]; then
    [ -n "$dry_run" ] || printf '%s\n' "$made" >"$name/$label.done"
  else
    echo "== $label: failed with status $status; the sweep goes on" >&2
    failed+=("$label")
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
  local label=$1 reports=()
  local found
  for found in "$name/$label"_*.sqlite; do [ ! -e "$found" ] || reports+=("$found"); done
  [ "${#reports[@]}" != 0 ] || return 0
  [ ! "$name/$label.analysis.json" -nt "${reports[0]}" ] || return 0
  run "${run_module[@]}" nsyspipe analyze "${reports[@]}" -q --label "$label" --run-id "run-$label" --out "$name/runs" \
    --json "$name/$label.analysis.json" --html "$name/$label.html" --force
  [ "$status" = 0 ] || failed+=("$label (analysis)")
}

# What the runs differ by; the runs of a --repeat are captures of one, so that their spread is in the intervals.
compare_all() {
  local label compared=()
  for label in "${labels[@]}"; do
    [ ! -e "$name/$label.analysis.json" ] || compared+=("${label%-again*}=$name/runs/runs/run_id=run-$label")
  done
  [ "${#compared[@]}" -gt 1 ] || return 0
  run env COLUMNS=100 "${run_module[@]}" nsyspipe compare "${compared[@]}" --html "$name/compare.html" --csv "$name/compare.csv" \
    --force --no-progress >"$name/compare.txt"
  [ "$status" = 0 ] || failed+=(compare)
  [ ! -s "$name/compare.txt" ] || { cat "$name/compare.txt"; echo; }
}

parse_options "$@"
not_taken=${module:+--module}${attach_steps:+ --attach-steps}${no_phases:+ --no-phases}${count_flops:+ --count-flops}${ranks:+ --ranks}${range:+ --capture-range}${force:+ --force}
not_taken+=${no_export:+ --no-export}${no_profile:+ --no-profile}${nsys_args[*]:+ --nsys-arg}
[ "$program" = "$launchers/train_vit.py" ] || not_taken+=" --program"
if [ -n "$not_taken" ]; then
  die "sweep.sh: its runs do not take ${not_taken# }" "see --help, or pass it to $(beside baseline.sh) or $(beside ddp.sh)"
fi
check_python
: "${name:=study}"
case $name in -*) name=./$name ;; esac
[ -z "$analyze_only" ] || [ -d "$name" ] || die "-o $name: no such directory" "-o DIR of an earlier sweep"
[[ $repeat =~ ^[1-9][0-9]{0,4}$ ]] || die "--repeat $repeat: not a number of times" "--repeat 2"
if [ -z "$most" ]; then
  if [ -n "$analyze_only" ]; then most=$(most_there); elif [ -n "$cpu" ]; then most=2; else
    most=$("${run_module[@]}" nsyspipe.capture.plan --program="$program" --count-gpus)
    [ "$most" != 1 ] || echo "note: this machine has fewer than 2 GPUs, so only runs with one GPU are possible. --list or --dry-run with -n 8 shows the runs with 8" >&2
  fi
fi
[[ $most =~ ^[1-9][0-9]{0,4}$ ]] || die "-n $most: not a number of GPUs" "-n 4"
mapfile -t runs < <(study "$most" | only=$only awk '$1 ~ ENVIRON["only"]')
[ "${#runs[@]}" != 0 ] || die "--only $only: matches no run" "--list prints their names"
if [ -n "$list" ]; then
  printf '%s\n' "${runs[@]}"
  exit
fi

failed=() labels=()
shared=(--timeout="$timeout" --exit-timeout="$exit_timeout" ${linger:+--linger="$linger"} ${graphs:+--cuda-graph-trace="$graphs"})
shared+=(${nsys:+--nsys="$nsys"} ${trace:+--trace="$trace"} ${cpu:+--cpu} ${dry_run:+--dry-run} ${no_python:+--no-python} ${gpu_metrics:+--gpu-metrics})
around=$(surroundings)
[ -n "$dry_run" ] || mkdir -p "$name"
again() { [ "$1" = 1 ] || printf -- '-again%s' "$1"; }
for line in "${runs[@]}"; do
  for ((time = 1; time <= repeat; time++)); do labels+=("${line%% *}$(again "$time")"); done
done
[ -n "$dry_run$analyze_only" ] || echo "${#labels[@]} runs into $name; if the sweep is ended, the same command goes on" >&2
at=0
for line in "${runs[@]}"; do
  read -ra words <<<"$line"
  for ((time = 1; time <= repeat; time++)); do
    [ -n "$analyze_only" ] || run_one "${labels[at]}" "${words[@]:1}"
    at=$((at + 1))
  done
done
[ -z "$dry_run" ] || exit 0

if "${ours[@]}" -c 'import adbc_driver_sqlite, pyarrow, sqlalchemy' 2>/dev/null; then
  echo "== analyzing" >&2
  for label in "${labels[@]}"; do analyze_one "$label"; done
  compare_all
else
  echo "note: $python lacks packages for the analysis (pip install ${launchers%/*}). Install them, or copy $name and continue with --analyze-only" >&2
fi
run "${ours[@]}" "$launchers/sweep_table.py" "$name" "${labels[@]}"
[ "$status" = 0 ] || failed+=(table)
if [ "${#failed[@]}" != 0 ]; then
  echo "error: ${#failed[@]} of ${#labels[@]} runs failed: ${failed[*]}" >&2
  echo "  fix: fix the errors in their messages, then start the same sweep again, which continues with these runs" >&2
  exit 1
fi
