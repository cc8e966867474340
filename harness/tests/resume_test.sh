#!/usr/bin/env bash
# usage: resume_test.sh SCAPE_PROGRAM
# What is there already when a run or a sweep starts: complete runs of these or other options, run files without their checkpoints and the
# other way round, files in use. Nothing that was computed is lost or passed off as something else.
set -euo pipefail
scape=$1
work=$(mktemp -d)
trap 'status=$?; ((status == 0)) || tail -n 5 "$work"/log; rm -rf "$work"; exit $status' EXIT
cd "$work"

fail() {
  echo "resume_test: $*"
  exit 1
}
expect() { # STATUS TEXT COMMAND…
  local status=0
  "${@:3}" >log 2>&1 || status=$?
  ((status == $1)) || fail "status $status, not $1: ${*:3}"
  grep -qF -- "$2" log || fail "does not say '$2': ${*:3}"
}
train() { # NAME [OPTION…]
  "$scape" train --set data=tokens.bin model=gpt-nano layers=1 width=12 sequence_length=8 global_batch=2 validation_batches=1 "${@:2}" --out "$1.h5"
}
steps() { # FILE: the steps in it
  /usr/bin/python3 -c 'import h5py, sys; print(*(s for s in h5py.File(sys.argv[1])["steps/step"][:] if s >= 0))' "$1"
}

"$scape" data prepare --synthetic --out tokens.bin >/dev/null
"$scape" data prepare --synthetic --seed 5 --out other.bin >/dev/null

# Without checkpoints: a complete run is kept, and never passed off as one of other options.
expect 0 'complete: 4 of 4' train bare steps=4 checkpoint_last=false
[[ ! -e bare.ckpt ]] || fail "an empty folder for checkpoints stays"
expect 0 'nothing to resume' train bare steps=4 checkpoint_keep=5 --resume
expect 2 'bare.h5: is complete, with other options: validate_every=50 there, 2 here' train bare steps=4 validate_every=2 --resume
expect 2 'other options: data_checksum=' train bare steps=4 data=other.bin --resume
expect 2 'bare.h5: is complete, with other options: steps=4 there, 6 here' train bare steps=6 --resume --allow-changes
[[ $(steps bare.h5) == "1 2 3 4" ]] || fail "a refused run changed its file"
expect 0 'complete: 2 of 2' train bare steps=2 --resume --overwrite

cp tokens.bin kept.bin
expect 2 'tokens.bin: is no run file, so it is not replaced' "$scape" train --set data=tokens.bin model=gpt-nano steps=1 --out tokens.bin --overwrite
cmp tokens.bin kept.bin

# With checkpoints: more steps on demand.
expect 0 'complete: 4 of 4' train run steps=4 checkpoint_every=2
expect 2 'written with other options: steps=4 there, 6 here' train run steps=6 checkpoint_every=2 --resume
expect 0 'complete: 6 of 6' train run steps=6 checkpoint_every=2 --resume --allow-changes
[[ $(steps run.h5) == "1 2 3 4 5 6" ]] || fail "a prolonged run has other steps"

sed -i 's/"step": 6/"step": 5/' run.ckpt/step-00000006/manifest.json
expect 3 'step-00000006: its manifest says step 5, its state is after step 6' train run steps=8 checkpoint_every=2 --resume --allow-changes
sed -i 's/"step": 5/"step": 6/' run.ckpt/step-00000006/manifest.json

# A damaged checkpoint is named, and how to go on without it.
last=run.ckpt/step-00000006/rank-0000.safetensors
cp $last kept
printf '\377' | dd of=$last bs=1 seek=3000 conv=notrunc status=none
expect 3 'run.ckpt/step-00000006 the run goes on from step 4' train run steps=8 checkpoint_every=2 --resume --allow-changes
rm $last
expect 3 'missing from the checkpoint: No such file or directory; without run.ckpt/step-00000006 the run goes on' train run steps=8 checkpoint_every=2 --resume --allow-changes
mv kept $last

# A run file that does not reach its checkpoint: refused, or begun anew from step 1.
for damage in 'rm run.h5' 'truncate -s 1000 run.h5' 'rm -r run.h5; mkdir run.h5'; do
  cp run.h5 kept.h5
  eval "$damage"
  expect 2 'run.ckpt/step-00000006: is of step 6, but run.h5' train run steps=8 checkpoint_every=2 --resume --allow-changes
  [[ -d run.ckpt/step-00000006 ]] || fail "a refused run lost its checkpoint"
  [[ ! -d run.h5 ]] || rmdir run.h5
  mv kept.h5 run.h5
done
rm run.h5
expect 0 'complete: 6 of 6' train run steps=6 checkpoint_every=2 --resume --overwrite
[[ $(steps run.h5) == "1 2 3 4 5 6" ]] || fail "a run begun anew has other steps"

# Two runs into one file: the second is refused, and the first keeps its checkpoints.
/usr/bin/python3 -c 'import h5py, time; file = h5py.File("run.h5", "a"); open("open", "w"); time.sleep(60)' &
while [[ ! -e open ]]; do sleep 0.1; done
expect 3 'run.h5: another process has it open' train run steps=6 checkpoint_every=2 --overwrite
kill $!
[[ -d run.ckpt/step-00000006 ]] || fail "the checkpoints of a run that is going on were removed"

# Whatever HDF5 is told about locks, one run writes a file; and one that is not continued says what becomes of its steps.
"$scape" train --set data=tokens.bin model=gpt-nano layers=1 width=12 steps=1000000 validate_every=1000000 --out one.h5 >one.log 2>&1 &
until grep -q 'step 2' one.log; do sleep 0.1; done
HDF5_USE_FILE_LOCKING=FALSE expect 3 'another process has it open' train one steps=6 --overwrite
HDF5_USE_FILE_LOCKING=FALSE expect 3 'another process has it open' train one steps=6 --resume
kill -9 $!
wait $! 2>/dev/null || true
rows=$(steps one.h5 | wc -w)
((rows > 0)) || fail "a killed run has no rows"
rmdir one.ckpt
touch one.ckpt
expect 3 'one.ckpt: cannot make this folder for checkpoints' train one steps=6 --resume
(($(steps one.h5 | wc -w) == rows)) || fail "a run that could not start dropped the rows of the last one"
rm one.ckpt
expect 0 "one.h5: begun anew, its $rows steps have no checkpoint" train one steps=6 --resume

# Two runs into one folder of checkpoints; runs whose names differ behind a dot.
mkdir shared
exec 9<shared
flock 9
expect 3 'shared: another process has it open' train alone steps=2 --checkpoints shared
[[ ! -e alone.h5 ]] || fail "a run that could not start left a file"
exec 9<&-
expect 0 'complete: 2 of 2' train alone steps=2 --checkpoints shared
[[ -d shared/step-00000002 && ! -e alone.ckpt ]] || fail "--checkpoints is not where the checkpoints are"
for density in 0.1 0.01; do expect 0 "d$density: 1 rank" train d$density steps=1 density=$density; done
[[ -d d0.1.ckpt && -d d0.01.ckpt ]] || fail "two runs share their checkpoints"

# What would record nothing, or something else than was meant.
expect 0 'no --out: nothing is recorded, and no checkpoint is written' "$scape" train --set data=tokens.bin layers=1 width=12 steps=1 global_batch=2
expect 2 '--out: is empty' train bare steps=1 --out ""
expect 2 '--checkpoints: is empty' train bare steps=1 --checkpoints ""
expect 3 'runs.toml: is not a file' train none steps=1 --config "$(mkdir runs.toml && echo runs.toml)"
[[ ! -e none.h5 ]] || fail "a run of no options was done"

# No room for checkpoints: no run file is left either.
touch blocked.ckpt
expect 3 'blocked.ckpt: cannot make this folder for checkpoints' train blocked steps=2
[[ ! -e blocked.h5 ]] || fail "a run that could not start left a file"

# A sweep does not count runs of other options or ranks as its own, nor replace them.
cat >sweep.toml <<'T'
data = "tokens.bin"
model = "gpt-nano"
layers = 1
width = 12
sequence_length = 8
global_batch = 2
validation_batches = 1
steps = 3
[[run]]
name = "a"
T
sweep() { "$scape" sweep sweep.toml --launcher "${launcher:-env}" "$@"; }
expect 0 '1 of 1 runs complete' sweep --out runs --ranks 1
expect 0 'a: complete, kept' sweep --out runs --ranks 1
expect 2 'runs/a.h5: is complete, with other options: steps=3 there, 5 here' sweep --out runs --ranks 1 --set steps=5
expect 2 'ranks=1 there, 2 here' sweep --out runs --ranks 2
expect 2 'data_checksum=' sweep --out runs --ranks 1 --set data=other.bin
expect 3 'nowhere: cannot be opened' sweep --out runs --ranks 1 --set data=nowhere
truncate -s 1000 runs/a.h5
expect 0 '1 of 1 runs complete' sweep --out runs --ranks 1
launcher=nosuch expect 3 'cannot start nosuch' sweep --out launcher
expect 4 '[1/1] a: stopped with status 4' sweep --out clock --ranks 1 --set steps=100000 max_minutes=0.0001
expect 2 'clock/a.h5: is begun, with other options: steps=100000 there, 3 here; give another --out, or --overwrite' sweep --out clock --ranks 1
expect 0 ' 3 steps' sweep --out clock --ranks 1 --overwrite

# A signal to the sweep alone stops its run with a checkpoint, then the sweep; the run goes on where it was.
"$scape" sweep sweep.toml --launcher env --ranks 1 --out signal --set steps=20000 checkpoint_every=1 >log 2>&1 &
for _ in {1..300}; do
  compgen -G 'signal/a.ckpt/step-*' >/dev/null && break
  sleep 0.1
done
kill -TERM $!
status=0
wait $! || status=$?
((status == 4)) || fail "a signal ended the sweep with status $status"
grep -q 'stopped by a signal after step' log || fail "the run of a stopped sweep was not stopped"
expect 4 'goes on from' sweep --out signal --ranks 1 --set steps=20000 checkpoint_every=1 max_minutes=0.0001
