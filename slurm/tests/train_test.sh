#!/usr/bin/env bash
# usage: train_test.sh BUILD_FOLDER
# Starts a Slurm on this machine, trains on 2 ranks through slurm/train.sbatch, reads the run file with h5py, stops a second run by a
# signal and goes on with it, does a sweep as a job array, and takes everything down again. Status 77: skipped, with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$1

((EUID == 0)) || { echo "skipped: starting Slurm needs root"; exit 77; }
PATH=$PATH:/usr/sbin
for tool in munged slurmctld slurmd sbatch; do
  command -v "$tool" >/dev/null || { echo "skipped: no $tool (packages slurm-wlm and munge)"; exit 77; }
done

work=$(mktemp -d)
finish() {
  local status=$?
  ((status == 0)) || tail -n 20 "$work"/*.log "$work"/slurm/*.log || true
  slurm/local_slurm.sh stop "$work/slurm"
  rm -rf "$work"
}
trap finish EXIT

slurm/local_slurm.sh start "$work/slurm"
slurm/local_slurm.sh start "$work/slurm" >/dev/null # the second time there is nothing to do
export SLURM_CONF=$work/slurm/slurm.conf SCAPE_ENV=local SCAPE_BUILD=$build SCAPE_RUNS=$work/runs

mkdir "$work/text"
for i in {1..400}; do printf 'Document %d says: the quick brown fox jumps over %d lazy dogs.\n\n' "$i" $((i * i)); done >"$work/text/fox.txt"
"$build/harness/app/scape" data prepare "$work/text" --out "$work/tokens.bin"

cat >"$work/run.toml" <<E
model = "gpt-nano"
optimizer = "scape"
steps = 6
global_batch = 4
validation_batches = 2
E

# submit OPTION… SCRIPT ARGUMENT…: prints the job's number and waits for its end, oftener than sbatch --wait does. Its exit status.
submit() {
  local id end=$((SECONDS + 120))
  id=$(sbatch --parsable -n 2 -t 5 "$@")
  echo "$id"
  while [[ $(squeue --noheader --jobs "$id" 2>/dev/null) ]]; do
    ((SECONDS < end)) || return 124
    sleep 0.3
  done
  return "$(scontrol show job "$id" --oneliner | sed -nE 's/.* ExitCode=([0-9]+):.*/\1/p' | sort -n | tail -n 1)"
}
# train NAME ARGUMENT…
train() { submit -o "$work/%x-%j.log" -J "$1" slurm/train.sbatch "${@:2}"; }

job=$(train test "$work/run.toml" density=0.1 "data=$work/tokens.bin")
grep -qx "run file: $work/runs/test-$job.h5" "$work/test-$job.log"
/usr/bin/python3 - "$work/runs/test-$job.h5" <<'E'
import sys
import h5py
import numpy
with h5py.File(sys.argv[1]) as run:
    assert run.attrs["status"] in (b"complete", "complete") and bool(run.attrs["complete"]), dict(run.attrs)
    assert run.attrs["ranks"] == 2 and run.attrs["density"] == 0.1, dict(run.attrs)
    assert list(run["steps/step"]) == [1, 2, 3, 4, 5, 6], list(run["steps/step"])
    assert numpy.isfinite(run["steps/loss"]).all()
E

# A signal to the batch shell ends a run cleanly: whole record, checkpoint, status 4. Another job of the same name goes on.
stopped=(model=gpt-nano optimizer=scape global_batch=4 validation_batches=2 steps=1000000 "data=$work/tokens.bin")
SCAPE_RUN=stopped train stop "${stopped[@]}" >/dev/null &
for _ in {1..300}; do
  grep -qs '^step ' "$work"/stop-*.log && break
  sleep 0.2
done
scancel --batch --signal=USR1 --name=stop
status=0
wait $! || status=$?
((status == 4)) || { echo "a signal ended the job with status $status, not 4"; exit 1; }
status=0
SCAPE_RUN=stopped train again "${stopped[@]}" max_minutes=0.02 >/dev/null || status=$?
((status == 4)) || { echo "the time limit ended the job with status $status, not 4"; exit 1; }
grep -q "^goes on from $work/runs/stopped.ckpt/step-" "$work"/again-*.log
/usr/bin/python3 - "$work/runs/stopped.h5" <<'E'
import sys
import h5py
with h5py.File(sys.argv[1]) as run:
    steps, attempts = list(run["steps/step"]), list(run["steps/attempt"])
    assert run.attrs["status"] in (b"stopped", "stopped"), dict(run.attrs)
    assert steps and steps == list(range(1, len(steps) + 1)), steps
    assert attempts == sorted(attempts) and set(attempts) == {1, 2}, attempts
E

# A rank that is killed ends the job with status 5 and a line that says so.
SCAPE_RUN=killed train killed "${stopped[@]}" >/dev/null &
for _ in {1..300}; do
  grep -qs '^step ' "$work"/killed-*.log && break
  sleep 0.2
done
for pid in $(pgrep -x scape); do
  if grep -qzx "SCAPE_RUNS=$work/runs" "/proc/$pid/environ"; then kill -KILL "$pid" && break; fi
done
status=0
wait $! || status=$?
((status == 5)) || { echo "a killed rank ended the job with status $status, not 5"; exit 1; }
grep -qE "killed by signal KILL|rank [01]" "$work"/killed-*.log

# A sweep as a job array: each task does its share.
cat >"$work/sweep.toml" <<E
model = "gpt-nano"
steps = 3
global_batch = 4
validation_batches = 2
[[run]]
name = "one"
optimizer = "scape"
[[run]]
name = "two"
optimizer = "adamw"
[[run]]
name = "three"
optimizer = "zero1"
E
submit --array=1-2 -o "$work/sweep-%a.log" slurm/sweep.sbatch "$work/sweep.toml" "data=$work/tokens.bin"
grep -q '2 of 2 runs complete' "$work/sweep-1.log"
grep -q '1 of 1 runs complete' "$work/sweep-2.log"
[[ -s $work/runs/sweep/one.h5 && -s $work/runs/sweep/two.h5 && -s $work/runs/sweep/three.h5 ]]
