#!/usr/bin/env bash
# Wrong use of the shell scripts: one line on standard error, the documented status, and nothing done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/file"
mkdir "$work/results"

# refused STATUS TEXT COMMAND…
refused() {
  local status=0 message
  message=$("${@:3}" 2>&1 >/dev/null </dev/null) || status=$?
  if [[ $status != "$1" || $message != *"$2"* || $message == *$'\n'* ]]; then
    printf '%s: status %d, said: %s\n' "${*:3}" "$status" "$message"
    exit 1
  fi
}

unset CI # where it is set, questions are answered with yes
refused 2 "unknown option --rank," ./quickstart --rank 3
refused 2 "--ranks needs a value" ./quickstart --ranks
refused 2 "not '0'" ./quickstart --ranks=0
refused 2 "is a file" ./quickstart --out "$work/file"
refused 2 "exists" ./quickstart --out "$work/results"
refused 3 "$work/none" ./quickstart --text "$work/none"
refused 2 "cannot write" ./quickstart --build "$work/file/build"
refused 2 "unknown option --nonsense" ./test --nonsense
refused 2 "--build needs" ./test --build
refused 2 "usage" slurm/local_slurm.sh
refused 2 "usage" slurm/local_slurm.sh restart "$work"
refused 2 "submit me" bash slurm/train.sbatch
SLURM_JOB_ID=1 refused 2 "say what to train" bash slurm/train.sbatch
SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=$PWD SCAPE_ENV=venus refused 2 "vista.sh" bash slurm/train.sbatch run.toml
SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=$PWD SCAPE_BUILD=$work refused 2 "build it first" bash slurm/train.sbatch run.toml
[[ ! $(ls -A "$work/results") && $(./quickstart --help) == usage:* && $(./test --help) == usage:* ]]
