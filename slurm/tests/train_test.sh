#!/usr/bin/env bash
# usage: train_test.sh BUILD_FOLDER
# Starts a Slurm on this machine, trains on 2 ranks through slurm/train.sbatch, reads the run file with h5py, checks that a
# broken configuration fails with the program's status, and takes everything down again. Status 77: skipped, with the reason.
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

submit() { timeout 120 sbatch --parsable --wait -n 2 -t 5 -o "$work/%x-%j.log" -J "$1" slurm/train.sbatch "${@:2}"; }

job=$(submit test harness/configs/gpt-nano.toml optimizer=scape density=0.1 steps=6 "data=$work/tokens.bin")
grep -qx "run file: $work/runs/test-$job.h5" "$work/test-$job.log"
/usr/bin/python3 - "$work/runs/test-$job.h5" <<'E'
import sys
import h5py
import numpy
with h5py.File(sys.argv[1]) as run:
    assert run.attrs["status"] in (b"complete", "complete") and bool(run.attrs["complete"]), dict(run.attrs)
    assert run.attrs["ranks"] == 2, run.attrs["ranks"]
    assert list(run["steps/step"]) == [1, 2, 3, 4, 5, 6], list(run["steps/step"])
    assert numpy.isfinite(run["steps/loss"]).all()
E

status=0
submit typo harness/configs/gpt-nano.toml stepz=6 >/dev/null || status=$?
((status == 2)) || { echo "a mistyped option ended the job with status $status, not 2"; exit 1; }
grep -q steps "$work"/typo-*.log
