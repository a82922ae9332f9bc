#!/usr/bin/env bash
# Checks and times SPIN's operators on a machine with a GPU, torch and Triton, in one call of under
# eight minutes: values against torch, CUDA-graph replay, the indexer step at 96 x 507K tokens with
# all of V4-Flash's indexer layers, memory accesses (where compute-sanitizer is there), other sizes.
# The last two take what time is left. Results are files; a failed check makes the exit status 1.
set -u -o pipefail
FOUND_ERRORS=9 # exit status of compute-sanitizer when it has found some

usage() {
  cat <<'TEXT'
usage: benchmarks/gpu_check.sh [--out DIR] [--python PATH] [--limit SECONDS] [--dry-run]
  --out      folder for results (default: $OUT, else benchmarks/results/gpu/<time>)
  --python   the Python that has torch and Triton (default: python3)
  --limit    seconds for everything (default 470)
  --dry-run  print what would run, and end
TEXT
}

fail() {
  echo "gpu_check.sh: $1 (--help lists the options)" >&2
  exit 2
}

out=${OUT:-}
python=python3
limit=470
dry_run=
while [ $# -gt 0 ]; do
  case $1 in
    --out | --python | --limit)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case $1 in
        --out) out=$2 ;;
        --python) python=$2 ;;
        --limit) limit=$2 ;;
      esac
      shift
      ;;
    --dry-run) dry_run=1 ;;
    --help | -h) usage && exit 0 ;;
    *) fail "unknown option $1" ;;
  esac
  shift
done
case $limit in
  *[!0-9]* | '') fail "--limit $limit: not a number of seconds" ;;
esac

command -v "$python" >/dev/null || fail "--python $python: not found"
root=$(cd "$(dirname "$0")/.." && pwd) || exit 2
out=${out:-$root/benchmarks/results/gpu/$(date -u +%Y%m%dT%H%M%SZ)}
# both may be relative, and modules are found from the root
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
case $out in /*) ;; *) out=$PWD/$out ;; esac
cd "$root" || exit 2
start=$SECONDS
failed=0

note() {
  echo "$*"
  [ -n "$dry_run" ] || echo "$*" >>"$out/summary.txt"
}

# check NAME SECONDS LOG COMMAND...: at most SECONDS, less where less is left
check() {
  local name=$1 seconds=$2 log=$3 left status began
  shift 3
  left=$((limit - (SECONDS - start)))
  [ "$seconds" -le "$left" ] || seconds=$left
  if [ -n "$dry_run" ]; then
    echo "$name, at most $seconds s: $*"
    return
  fi
  if [ "$seconds" -lt 10 ]; then
    note "$name: not run, no time left"
    return
  fi
  began=$SECONDS
  timeout --kill-after=5 "$seconds" "$@" >>"$out/$log" 2>&1
  status=$?
  case $status in
    0) note "$name: passed in $((SECONDS - began)) s" ;;
    124 | 137)
      note "$name: cut off after $seconds s, see $log"
      [ "$name" = grid ] || failed=1 # it keeps the sizes it has finished
      ;;
    *)
      if [ "$name" = sanitizer ] && [ "$status" -ne "$FOUND_ERRORS" ]; then
        note "sanitizer: could not run here (status $status), see $log"
      else
        note "$name: FAILED with status $status, see $log"
        failed=1
      fi
      ;;
  esac
}

if [ -z "$dry_run" ]; then
  mkdir -p "$out" || fail "--out $out: cannot be made"
  "$python" - 2>/dev/null <<'PY' || fail "--python $python: needs torch with a GPU, and Triton"
import torch
import triton

assert torch.cuda.is_available()
print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
PY
fi

step=("$python" -m benchmarks.indexer_step --device cuda)
sparsities=0,0.05,0.2,0.4,0.5
check values 150 values.log "$python" -m benchmarks.gpu_check_values
check "graph replay" 60 replay.log "$python" -m benchmarks.gpu_check_replay
check step 120 step.log "${step[@]}" --quick --sparsities $sparsities --json "$out/step.json"
check "step, fused maxima" 90 step.log "${step[@]}" --quick --scorers triton --observe fused \
  --sparsities $sparsities --json "$out/fused.json"
if command -v compute-sanitizer >/dev/null; then
  # torch's allocator would hide an access past a tensor that stays within its own block
  check sanitizer 90 sanitizer.log env PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
    compute-sanitizer --tool memcheck --error-exitcode $FOUND_ERRORS \
    "$python" -m benchmarks.gpu_check_values --tiny
else
  note "sanitizer: not run, compute-sanitizer is not installed"
fi
check grid "$limit" step.log "${step[@]}" --repeats 10 --json "$out/grid.json"
[ -z "$dry_run" ] || exit 0
grep '^target' "$out/step.log" | tee -a "$out/summary.txt"
note "took $((SECONDS - start)) s; results are in $out"
exit $failed
