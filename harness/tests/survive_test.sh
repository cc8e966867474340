#!/usr/bin/env bash
# usage: survive_test.sh SCAPE_PROGRAM
# Runs of the program on 3 ranks that are killed, stopped, suspended and continued: the run file must end up as that of a run that nobody
# disturbed, and the job must end with a reason.
set -euo pipefail
scape=$1
work=$(mktemp -d)
trap 'status=$?; ((status == 0)) || tail -n 5 "$work"/*.log; pkill -KILL -f "$work" || true; rm -rf "$work"; exit $status' EXIT
cd "$work"

fail() {
  echo "survive_test: $*"
  exit 1
}

"$scape" data prepare --synthetic --out tokens.bin >/dev/null
options=(steps=40 "data=$work/tokens.bin" model=gpt-nano layers=1 width=24 global_batch=6 micro_batch=1 validation_batches=1 validate_every=1000
  optimizer=scape density=0.1 mask_delay=2)
train() { # NAME [OPTION…]: on 3 ranks
  local settings=() option
  for option in "${options[@]}" "${@:2}"; do [[ $option == --* || $option == /* ]] && settings+=("$option") || settings+=(--set "$option"); done
  mpirun --quiet -n 3 "$scape" train --out "$work/$1.h5" "${settings[@]}" >>"$1.log" 2>&1
}
started() { # NAME: waits until the run has made a checkpoint
  for _ in {1..300}; do
    compgen -G "$work/$1.ckpt/step-*" >/dev/null && return
    sleep 0.1
  done
  fail "$1 made no checkpoint"
}
processes() { pgrep -f "^$scape train --out $work/$1.h5"; } # of the ranks, without their launcher
expect() { # STATUS NAME [OPTION…]
  local status=0
  train "${@:2}" || status=$?
  ((status == $1)) || fail "$2 ended with status $status, not $1"
}
says() { grep -qE "$2" "$1.log" || fail "$1 does not say: $2"; }

expect 0 whole

# kill -9 of everything, at any moment; then on from the last checkpoint.
train killed steps=1000000 checkpoint_every=5 &
started killed
pkill -KILL -f "$work/killed.h5"
wait $! || true
expect 2 killed checkpoint_every=5
says killed 'killed.ckpt: holds checkpoints of a run; give --resume'
expect 2 killed learning_rate=0.5 --resume
says killed 'was written with other options: learning_rate=0.001 there, 0.5 here, steps=1000000 there, 40 here'

# The same with the right number of steps: slow enough to be caught in the middle.
train caught checkpoint_every=3 &
started caught
pkill -KILL -f "$work/caught.h5" || true
wait $! || true
expect 0 caught checkpoint_every=3 --resume

# A signal to one rank stops all of them with a checkpoint; the run goes on in its file.
train stopped steps=40 checkpoint_every=10 &
started stopped
kill -TERM "$(processes stopped | head -n 1)" || true
status=0
wait $! || status=$?
((status == 4 || status == 0)) || fail "a signal ended the run with status $status"
expect 0 stopped checkpoint_every=10 --resume

# Another run may begin with the parameters of this one, if its model is the same.
expect 0 child steps=1 learning_rate=0 weight_decay=0 --init "$work/stopped.ckpt"
expect 2 odd width=48 --init "$work/stopped.ckpt"
says odd 'stopped.ckpt/step-00000040: its model has width=24, this run 48'

# The clock stops a run, too.
expect 4 late steps=1000000 --max-minutes=0.02
says late 'stopped at max_minutes after step'

/usr/bin/python3 - <<'P'
import h5py
def rows(name, column):
    with h5py.File(name + ".h5") as run:
        assert run.attrs["complete"], name
        step = run["steps/step"][:]
        return list(run["steps"][column][step >= 0])
with h5py.File("child.h5") as child, h5py.File("whole.h5") as whole:
    assert child["validation/loss"][0] == whole["validation/loss"][1]
for name in ("caught", "stopped"):
    assert rows(name, "step") == list(range(1, 41)), rows(name, "step")  # case 13
    for column in ("loss", "data_hash", "residual_norm"):
        assert rows(name, column) == rows("whole", column), (name, column)
    attempts = rows(name, "attempt")
    assert attempts == sorted(attempts) and attempts[-1] <= 2, attempts
P

# One rank dies: the job ends at once and the reason names it.
train dies steps=1000000 checkpoint_every=5 &
started dies
kill -KILL "$(processes dies | tail -n 1)"
! wait $! || fail "a job that lost a rank ended with status 0"
says dies 'rank [012] on .* has died; ending the job'

# One rank is suspended: it is given up after silence_seconds.
train silent steps=1000000 checkpoint_every=5 silence_seconds=3 &
started silent
kill -STOP "$(processes silent | tail -n 1)"
status=0
wait $! || status=$?
((status == 5)) || fail "a job with a silent rank ended with status $status, not 5"
says silent 'rank [012] on .* has given no sign of life for [34] s; ending the job'
! grep -q 'has died' silent.log || fail "a rank that was given up accuses another"
