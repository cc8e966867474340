# shellcheck shell=bash
# What the job scripts share; they source it in the folder that they were submitted from. Sets `scape`, the program, and `launcher`, the
# command that starts it on the job's ranks.
# SCAPE_ENV    system: a file slurm/env/SCAPE_ENV.sh, which loads modules and says how ranks are launched (default: generic)
# SCAPE_BUILD  build folder (default: build)
# SCAPE_RUNS   where run files go (default: runs)

fail() {
  printf '%s: %s\n' "${SLURM_JOB_NAME:-job}" "$2" >&2
  exit "$1"
}

system=slurm/env/${SCAPE_ENV:-generic}.sh
[[ -r $system ]] || fail 2 "no $system here; submit from the repository's top folder with SCAPE_ENV one of: $(cd slurm/env && echo *)"
# shellcheck source=slurm/env/generic.sh
source "$system"
scape=$(realpath "${SCAPE_BUILD:-build}")/harness/app/scape
[[ -x $scape ]] || fail 2 "no program $scape: build it first, see slurm/README.md"
# shellcheck disable=SC2034  # for the job scripts
runs=$(realpath -m "${SCAPE_RUNS:-runs}")

# When the job ends, for the program; older Slurm does not say so itself.
if [[ ! ${SLURM_JOB_END_TIME:-} ]] && times=$(squeue -h -j "$SLURM_JOB_ID" -o '%S %e' 2>/dev/null | head -n 1); then
  read -r begins ends <<<"$times"
  if begins=$(date -d "$begins" +%s 2>/dev/null) && ends=$(date -d "$ends" +%s 2>/dev/null); then
    export SLURM_JOB_START_TIME=$begins SLURM_JOB_END_TIME=$ends
  fi
fi

# ranks: process numbers of this job's programs on this node.
ranks() {
  local pid
  for pid in $(pgrep -x scape); do
    ! grep -qzx "SLURM_JOB_ID=$SLURM_JOB_ID" "/proc/$pid/environ" 2>/dev/null || echo "$pid"
  done
}

# run COMMAND…: runs it and exits with its status. A USR1 or TERM to this shell goes to the ranks, which then write a checkpoint and leave
# with status 4. With SCAPE_REQUEUE=yes such a job puts itself into the queue again, to go on where it stopped. A launcher whose rank was
# killed by a signal that the job did not get ends above 128: that is status 5.
run() {
  local status signal stopping="" signalled=""
  trap 'stopping=yes signalled=yes' USR1 TERM
  export OMPI_MCA_odls_base_sigkill_timeout=10 # when Slurm ends a job, mpirun hears it too and would kill its ranks after 1 s
  "$@" &
  while true; do
    status=0
    wait $! || status=$?
    [[ $stopping ]] || break # the program has ended; otherwise it was the signal that ended wait
    stopping=""
    # To the ranks themselves, whatever the launcher would do with it. One rank is enough: they stop together.
    # shellcheck disable=SC2046
    kill -USR1 $(ranks) 2>/dev/null || true
  done
  while [[ $(ranks) ]]; do sleep 0.2; done # ranks that outlive their launcher are still saving
  if ((status > 128)) && [[ ! $signalled ]] && signal=$(kill -l $((status - 128)) 2>/dev/null); then
    echo "a rank was killed by signal $signal: $launcher ended with status $status"
    status=5
  fi
  echo "status $status"
  if ((status == 4)) && [[ ${SCAPE_REQUEUE:-} == yes ]]; then scontrol requeue "$SLURM_JOB_ID"; fi
  exit "$status"
}
