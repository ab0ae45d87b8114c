# shellcheck shell=bash
# shellcheck disable=SC2034 # what is assigned here is used by the launchers
# What the launchers share: options, checks, the nsys command line. Sourced, not run.

launchers=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
python=${PYTHON:-$(command -v python3 || command -v python || true)}
# A bare name is looked for on PATH, once: a directory of that name here is nothing to us.
case $python in '' | */*) ;; *) python=$(type -P -- "$python" || printf %s "$python") ;; esac

# What our own processes start with: -P, and a PYTHONPATH without the directory around the launchers and entries that mean
# the current directory, as an empty one does: reports lie there, and who knows what else. Modules of ours are found by
# their place. torchrun gets PYTHONPATH as it is; the training program has the directory around the launchers first on it.
users_path=${PYTHONPATH-}
program_path="${launchers%/*}${users_path:+:$users_path}"
own_path=''
IFS=: read -ra entries <<<"$users_path"
for entry in "${entries[@]}"; do
  case $entry in /*) [ "$entry" -ef . ] || [ "$entry" -ef "${launchers%/*}" ] || own_path+=${own_path:+:}$entry ;; esac
done
ours=(env PYTHONPATH="$own_path" "$python" -P)
run_module=("${ours[@]}" "$launchers/run_module.py")

# Filled by what the launchers call below.
# `counted` is empty where nobody has said how many ranks there are.
taken=0 counted='' nsys_words=() rank_words=() torchrun=() nccl_words=()
nproc=1 n_nodes=1 name='' program="$launchers/train_vit.py" module='' attach_steps='' no_phases='' count_flops='' train_args=()
trace='' graphs='' no_python='' python_sampling='' gpu_metrics='' counting='' range='' ranks='' nsys=${NSYS:-} nsys_args=()
timeout=3600 exit_timeout=600
unset linger
cpu='' force='' dry_run='' no_export='' no_profile=''
# Of the environment, the names that whoever starts this launcher has set or taken away for it alone: a dry run shows them.
read -ra changed <<<"${NSYSPIPE_CHANGED:-}"
unset NSYSPIPE_CHANGED

common_options() {
  cat <<'EOF'
What is captured
  -o, --output NAME      beginning of all file names, with directories
  --program FILE         the training program [launchers/train_vit.py]
  -m, --module NAME      a module as the training program, as python3 -m runs it
  --attach-steps A:B     capture steps A to B - 1 of the optimizer of an unchanged program, counted from 0, after A
                         warm-up steps (1 or more). Leave --capture-range as it is. The phases data, forward,
                         backward and optimizer get ranges too
  --no-phases            with --attach-steps: no ranges of phases
  --count-flops          with --attach-steps: count the FLOPs of one warm-up step with torch's counter, which makes
                         that step slow. The sidecar gets the number. A must be 2 or more
  --cpu                  no GPU: only NVTX ranges and OS calls, with gloo
  --trace LIST           what nsys traces [cuda,nvtx,nccl,osrt]. python-gil adds the waits for Python's lock
  --no-python            do not sample the lines that Python executes. Without this option nsys samples them 1000
                         times per second, if it can export the samples (2025.3 can)
  --gpu-metrics          also record hardware counters. On each host, one rank records them for all GPUs. You need root
                         or a driver that lets all users count
  --cuda-graph-trace HOW node: each kernel in a CUDA graph. nsys warns that this can cost much time.
                         graph: each graph as a whole. This costs least, but hides communication in graphs [node]
  --capture-range RANGE  cudaProfilerApi, nvtx (the range nsyspipe.capture), or none
                         [cudaProfilerApi, or nvtx with --cpu]
  --ranks LIST           capture only these ranks: 0,7,63 or 0-3. The other ranks run without nsys
  --nsys PROGRAM         the nsys to use [NSYS, PATH, the usual places]
  --nsys-arg=ARG         one more argument for nsys profile. Repeat the option for several

How it ends
  --timeout S            end the job after S seconds and keep the reports. 0 never ends it [3600]
  --exit-timeout S       end nsys if it runs S seconds longer than the program [600]
  --linger S             end every program S seconds after the reports of all its ranks are complete. 0 never ends it.
                         Without this option a program may continue to train after its capture. The launcher ends it
                         only if it hangs: 120 seconds after captured_steps(..., stop=True) or its main script is over

Other
  --no-export            keep only .nsys-rep files. nsyspipe convert exports them later
  --no-profile           run the same job without nsys, to compare its throughput
  --force                replace an earlier capture of the same name when the new one has started
  --dry-run              print the command and run nothing
  -h, --help             print this text

PYTHON names the Python to use. Arguments after -- go to the training program. NCCL_DEBUG and NCCL_DEBUG_FILE are set
to write NAME.nccl.HOST.PID.log, unless you have set them. The exit status is that of the program. Other values:
2 something is missing here, 3 the program succeeded but reports are missing, 124 ended by a time limit,
130 by Ctrl-C, 143 by SIGTERM.
EOF
}

die() {
  printf 'error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '  fix: %s\n' "$2" >&2
  exit 2
}

# beside LAUNCHER: how to call another launcher, where the user has called this one.
beside() {
  local folder=.
  case $0 in */*) folder=${0%/*} ;; esac
  [ -x "$folder/$1" ] || folder=$launchers
  printf %q "$folder/$1"
}

# nearest_option WORD: of the options that the launcher and this file take the one that is most like it, or nothing.
nearest_option() {
  sed -nE 's/^ +(-[a-z_| -]+)\) .*/\1/p' "$0" "$launchers/capture.bash" | "${ours[@]}" -c 'import difflib, re, sys
print(*difflib.get_close_matches(sys.argv[1], re.findall("--[a-z_-]+", sys.stdin.read()), 1, 0.75))' "$1" 2>/dev/null || true
}

# own_option NAME VALUE handles a launcher's own option: 1 for a flag, 0 words more for none of its own. Overridden.
own_option() { taken=0; }

parse_options() {
  local word value nearest one given=' '
  while [ $# -gt 0 ]; do
    word=$1 value=${2-}
    case $word in --*=*) value=${word#*=} word=${word%%=*}; shift; set -- "$word" "$value" "$@" ;; esac
    taken=2
    case $word in
      -o | --output) name=$value ;;
      --program) program=$value ;;
      -m | --module) module=$value ;;
      --attach-steps) attach_steps=$value ;;
      --no-phases) no_phases=yes taken=1 ;;
      --count-flops) count_flops=yes taken=1 ;;
      --no-python) no_python=yes taken=1 ;;
      --gpu-metrics) gpu_metrics=yes taken=1 ;;
      --trace) trace=$value ;;
      --cuda-graph-trace) graphs=$value ;;
      --capture-range) range=$value ;;
      --ranks) ranks=${value:-none} ;;
      --nsys) nsys=$value ;;
      --nsys-arg) nsys_args+=("$value") ;;
      --timeout) timeout=$value ;;
      --exit-timeout) exit_timeout=$value ;;
      --linger) linger=$value ;;
      --cpu) cpu=yes taken=1 ;;
      --force) force=yes taken=1 ;;
      --dry-run) dry_run=yes taken=1 ;;
      --no-export) no_export=yes taken=1 ;;
      --no-profile) no_profile=yes taken=1 ;;
      -h | --help) usage; exit 0 ;;
      --) shift; train_args=("$@"); return ;;
      *) own_option "$word" "$value" ;;
    esac
    if [ "$taken" = 0 ]; then
      case $word in -*) ;; *.py) die "$word: no such option" "--program $word. Put its arguments after --" ;; esac
      nearest=$(nearest_option "$word")
      die "$word: no such option" "${nearest:+did you mean $nearest? }put arguments of the training program after --, or see --help"
    fi
    [ $# -ge "$taken" ] || die "$word: needs a value" "see --help"
    # An option that takes one value says so if it is given two, by whatever name.
    case $word in -o) one=--output ;; -m) one=--module ;; -n | --nproc?per?node) one=--nproc ;; *) one=${word//_/-} ;; esac
    if [ "$taken" = 2 ] && [ "$one" != --nsys-arg ]; then
      case $given in *" $one "*) die "$one: takes one value, but got several" "pass the option once" ;; esac
      given+="$one "
[[ $given != *' --program '* || $given != *' --module '* ]] || die "--program and -m: each names the training program" "leave one out"
    fi
    shift "$taken"
  done
}

check_python() {
  [ -n "$python" ] || die "no python3 on PATH" "activate the environment that trains, or set PYTHON"
  "${ours[@]}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    die "$python: not a Python 3.11 or newer" "activate the environment that trains, or set PYTHON"
}

check_options() {
  check_python
  [[ $nproc =~ ^[1-9][0-9]{0,4}$ ]] || die "-n $nproc: not a number of ranks" "-n 2"
  local one
  for one in timeout exit_timeout linger; do
    [[ ${!one-0} =~ ^[0-9]+$ ]] || die "--${one/_/-} '${!one}': not a number of seconds" "--${one/_/-} 600"
  done
  # Without time nsys cannot write a report.
  [[ $exit_timeout =~ [1-9] ]] || die "--exit-timeout 0: needs at least a second" "--exit-timeout 600"
  [[ -z $ranks || $ranks =~ ^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$ ]] || die "--ranks $ranks: no list of ranks" "--ranks 0,7,63"
  case ${name##*/} in
    '' | . | ..) die "-o '$name': is a directory, not a name for files" "-o captures/ddp-2gpu" ;;
    *[[:space:]]*) die "-o '$name': file names cannot have a space (directories can)" "-o captures/ddp-2gpu" ;;
  esac
  case $name in *%*) die "-o '$name': has a %, which nsys and NCCL replace" "-o captures/ddp-2gpu" ;; esac
  case $name in -*) name=./$name ;; esac
  case $program in -*) program=./$program ;; esac
  if [ -n "$cpu" ]; then
    : "${trace:=nvtx,osrt}" "${range:=nvtx}"
    export CUDA_VISIBLE_DEVICES=
  fi
  : "${trace:=cuda,nvtx,nccl,osrt}" "${range:=cudaProfilerApi}"
  case $range in cudaProfilerApi | nvtx | none) ;; *) die "--capture-range $range: unknown" "cudaProfilerApi, nvtx or none" ;; esac
  if [ -n "$attach_steps" ]; then
    [[ $attach_steps =~ ^([1-9][0-9]{0,8}):([1-9][0-9]{0,8})$ && ${BASH_REMATCH[1]} -lt ${BASH_REMATCH[2]} ]] ||
      die "--attach-steps $attach_steps: not A:B with 1 <= A < B" "--attach-steps 50:70 captures 20 steps after 50 of warm-up"
    [ "$range" != none ] || die "--attach-steps with --capture-range none: one starts later, the other starts at once" "leave one out"
    [[ -z $count_flops || ${BASH_REMATCH[1]} -gt 1 ]] ||
      die "--count-flops --attach-steps $attach_steps: no whole step comes before the capture" "--attach-steps 2:$((BASH_REMATCH[2] + 1))"
  else
    [ -z "$no_phases" ] || die "--no-phases: without --attach-steps no phases are marked" "leave it out"
    [ -z "$count_flops" ] || die "--count-flops: counts only with --attach-steps" "--attach-steps 50:70 --count-flops"
  fi
  [[ -z $gpu_metrics || -z $cpu ]] || die "--gpu-metrics with --cpu: there is no GPU to count on" "leave one out"
  case ${graphs:=node} in node | graph) ;; *) die "--cuda-graph-trace $graphs: unknown" "node or graph" ;; esac
  # What the user tells nsys directly goes before.
  case " ${nsys_args[*]} " in *' --cuda-graph-trace'*) graphs='' ;; esac
  case " ${nsys_args[*]} " in *' --python-sampling'*) no_python=yes ;; esac
  [ -n "$no_python" ] || python_sampling=yes
  local found
  found=$("${run_module[@]}" nsyspipe.capture.plan --nproc="$nproc" ${counted:+--is-counted} --world-size=$((n_nodes * nproc)) --name="$name" --program="$program" --module="$module" --module-path="$PWD:$program_path" \
    --trace="$trace" --capture-range="$range" ${graphs:+--cuda-graph-trace="$graphs"} ${ranks:+--ranks="$ranks"} ${cpu:+--cpu} ${no_profile:+--no-profile} ${python_sampling:+--python} ${gpu_metrics:+--gpu-metrics} ${dry_run:+--dry-run} ${nsys:+--nsys="$nsys"}) || exit 2
  if [ -z "$no_profile" ]; then
    local usable
    mapfile -t usable <<<"$found"
    nsys=${usable[0]} trace=${usable[1]} graphs=${graphs:+${usable[2]-}} python_sampling=${usable[3]-} counting=${usable[4]-}
  fi
}

# nsys_command OUTPUT: the words of one nsys, in the array nsys_words; none without a profile.
nsys_command() {
  nsys_words=()
  [ -z "$no_profile" ] || return 0
  nsys_words=("$nsys" profile --trace="$trace" --sample=none --cpuctxsw=none --output="$1" --capture-range="$range")
  [ -z "$graphs" ] || nsys_words+=(--cuda-graph-trace="$graphs")
  # Words without spaces.
  # shellcheck disable=SC2206
  [ -z "$python_sampling" ] || nsys_words+=($python_sampling)
  [ "$range" = none ] || nsys_words+=(--capture-range-end=stop)
  [ "$range" != nvtx ] || nsys_words+=(--nvtx-capture=nsyspipe.capture)
  [ -z "$force" ] || nsys_words+=(--force-overwrite=true)
  nsys_words+=("${nsys_args[@]}")
}

# rank_command NSYS_WORDS...: the words that torchrun starts for each rank, in the array rank_words.
rank_command() {
  local start=("${run_module[@]}") inside=(env PYTHONPATH="$program_path") trains=("$program")
  # There sitecustomize.py counts the steps.
  [ -z "$attach_steps" ] || inside=(env PYTHONPATH="$launchers/attach:$program_path" NSYSPIPE_ATTACH_STEPS="$attach_steps" ${no_phases:+NSYSPIPE_NO_PHASES=1} ${count_flops:+NSYSPIPE_COUNT_FLOPS=1})
  # Of the ranks of a host, the first one that is captured counts.
  [ $# != 0 ] || counting=''
  [ -z "$module" ] || trains=(-m "$module")
  [ "$own_path" != "$users_path" ] || start=("$python" -P "$launchers/run_module.py")
  rank_words=("${start[@]}" nsyspipe.capture.rank --exit-timeout="$exit_timeout" ${ranks:+--ranks="$ranks"} ${counting:+--counting-option="$counting"} --nsys-words=$# -- "$@" "${inside[@]}" "$python" "${trains[@]}" "${train_args[@]}")
}

find_torchrun() {
  local beside=${python%/*}/torchrun
  if [ -x "$beside" ]; then torchrun=("$beside"); elif command -v torchrun >/dev/null; then torchrun=(torchrun); else torchrun=("$python" -P -m torch.distributed.run); fi
}

# nccl_variables: what makes NCCL write logs that analyze reads, in the array nccl_words; what the user has set stays.
nccl_variables() {
  nccl_words=()
  [ -z "$cpu$no_profile" ] || return 0
  if [ -n "${NCCL_DEBUG:-}" ]; then
    case ${NCCL_DEBUG^^} in INFO | TRACE) ;; *) echo "note: NCCL_DEBUG=$NCCL_DEBUG is kept: NCCL logs the interconnect only with INFO" >&2 ;; esac
  else
    nccl_words+=(NCCL_DEBUG=INFO)
  fi
  if [ -n "${NCCL_DEBUG_FILE:-}" ]; then
    echo "note: NCCL_DEBUG_FILE=$NCCL_DEBUG_FILE is kept: pass the logs to analyze with --nccl-log" >&2
  else
    nccl_words+=(NCCL_DEBUG_FILE="$(absolute "$name").nccl.%h.%p.log")
  fi
}

# run_job JOB_OPTIONS... -- COMMAND...: print it, or run it and collect what it captured.
run_job() {
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  local command=("$@")
  nccl_variables
  [ -z "$cpu" ] || command=(CUDA_VISIBLE_DEVICES= "${command[@]}")
  # Our range's name is not registered. Not by nsys's --env-var, which it takes only once.
  [ -n "$no_profile" ] || [ "$range" != nvtx ] || command=(NSYS_NVTX_PROFILER_REGISTER_ONLY=0 "${command[@]}")
  [ -n "$cpu$no_profile" ] || command=("${nccl_words[@]}" "${command[@]}")
  if [ -n "$dry_run" ]; then
    local one away=() set=()
    for one in "${changed[@]}"; do
      [[ $one =~ ^[A-Za-z_][A-Za-z_0-9]*$ ]] || continue
      if [ -n "${!one+x}" ]; then set+=("$one=${!one}"); else away+=(-u "$one"); fi
    done
    command=(env "${away[@]}" PYTHONPATH="$users_path" "${set[@]}" "${command[@]}")
    "${ours[@]}" -c 'import shlex, sys; print(shlex.join(sys.argv[1:]))' "${command[@]}"
    local of_job="ends it ${NSYSPIPE_ENDED:-after $timeout s} (--timeout)"
    [ "$timeout" != 0 ] || of_job='sets it no limit (--timeout 0)'
    echo "note: the launcher runs this command, and the launcher itself $of_job" >&2
    return
  fi
  command=(env PYTHONPATH="$users_path" "${command[@]}")
  [ -n "$no_profile" ] || options+=(--nsys="$nsys" --trace="$trace")
  exec "${run_module[@]}" nsyspipe.capture.job --name="$name" --program="${module:-${program##*/}}" --nproc="$nproc" \
    --capture-range="$range" --timeout="$timeout" --exit-timeout="$exit_timeout" ${linger:+--linger="$linger"} \
    ${ranks:+--ranks="$ranks"} ${attach_steps:+--attach-steps="$attach_steps"} ${no_export:+--no-export} ${force:+--force} "${options[@]}" -- "${command[@]}"
}

absolute() { case $1 in /*) printf %s "$1" ;; *) printf %s "$PWD/$1" ;; esac; }
