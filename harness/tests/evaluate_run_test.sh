#!/usr/bin/env bash
# usage: evaluate_run_test.sh SCAPE_PROGRAM
# A model as a user has it: trained on 3 ranks, evaluated on 1 and 3 (the same as the run's own last validation), sampled, exported, imported
# and exported again bit for bit; and what each of these commands refuses, with its exit status.
set -euo pipefail
scape=$1
work=$(mktemp -d)
trap 'status=$?; ((status == 0)) || tail -n 5 "$work"/*.log; rm -rf "$work"; exit $status' EXIT
cd "$work"

fail() {
  echo "evaluate_run_test: $*"
  exit 1
}

"$scape" data prepare --synthetic --out tokens.bin >/dev/null
mpirun --quiet -n 3 "$scape" train --out run.h5 --set data=tokens.bin --set model=gpt-nano --set layers=1 --set width=24 --set context=32 \
  --set steps=30 --set learning_rate=0.01 --set global_batch=6 --set micro_batch=1 --set validation_batches=3 --set validate_every=30 \
  --set optimizer=scape --set density=0.1 >train.log 2>&1

cat >choices.jsonl <<'Q'
{"context": "one two", "choices": ["three", "3", "four"], "label": 0}
{"context": "a text that is much longer than the 32 tokens which this model sees", "choices": ["yes", "no"], "label": 1}
{"context": "x", "choices": ["aaaa", "bb"], "label": 1}
{"context": "x", "choices": ["a choice that is longer than what the model sees", "bb"], "label": 1}
Q
printf '{"text": "the first and the last"}\n{"text": "one two three"}\n' >lambada.jsonl
evaluate=("$scape" evaluate run.ckpt --choices choices.jsonl --lambada lambada.jsonl --batches 3)
"${evaluate[@]}" --json one.json >one.log
mpirun --quiet -n 3 "${evaluate[@]}" --json three.json >three.log
"$scape" evaluate run.ckpt --json whole.json >whole.log
/usr/bin/python3 - <<'P'
import h5py, json, math
one, three, whole = ({(r["task"], r["metric"]): r for r in json.load(open(f"{n}.json"))["results"]} for n in ("one", "three", "whole"))
assert list(one) == list(three) and len(one) == 6, (one, three)
for key, result in one.items():
    assert math.isclose(result["value"], three[key]["value"], rel_tol=1e-12), (key, result, three[key])
    assert result["items"] == three[key]["items"], key
with h5py.File("run.h5") as run:
    loss = run["validation/loss"][-1]
found = one["validation", "loss"]
assert math.isclose(found["value"], loss, rel_tol=1e-5) and found["items"] == 3 * 6 * 32, (found, loss)
assert math.isclose(one["validation", "perplexity"]["value"], math.exp(loss), rel_tol=1e-5)
assert whole["validation", "loss"]["items"] > 100 * found["items"]
assert one["choices", "acc"]["items"] == 3 and all(r["skipped"] == 1 for k, r in one.items() if k[0] == "choices")
assert one["lambada", "acc"]["items"] == 2
P

"$scape" generate run.ckpt --prompt 'one ' --tokens 40 --seed 3 >first.txt
"$scape" generate run.ckpt --prompt 'one ' --tokens 40 --seed 3 >second.txt
cmp first.txt second.txt
[[ $(wc -c <first.txt) == 45 && $(head -c 4 first.txt) == 'one ' ]] || fail "the sample is not the prompt and 40 bytes"

"$scape" export run.ckpt --out hf >export.log
"$scape" import hf --out imported >import.log
"$scape" export imported --tokenizer bytes --out again >>export.log
cmp hf/model.safetensors again/model.safetensors
cmp hf/config.json again/config.json
"$scape" evaluate imported --data tokens.bin --json imported.json >imported.log
"$scape" generate imported --tokenizer bytes --prompt 'one ' --tokens 40 --seed 3 | cmp - first.txt

refuses() { # STATUS TEXT ARGUMENT…: one line that says so
  local status=0
  "$scape" "${@:3}" >refused.log 2>&1 || status=$?
  ((status == $1)) || fail "'${*:3}' ended with status $status, not $1"
  grep -qF -- "$2" refused.log || fail "'${*:3}' does not say: $2"
}
for command in 'data inspect tokens.bin' 'generate run.ckpt --prompt x' 'evaluate run.ckpt --batches 1' 'train --list'; do
  status=0
  # shellcheck disable=SC2086 # words of a command
  "$scape" $command 2>refused.log >/dev/full || status=$?
  [[ $status == 3 && $(<refused.log) == *'standard output cannot be written' ]] || fail "'$command' to a full disk: status $status"
done
refuses 3 'nothing: no such folder' evaluate nothing
refuses 3 'holds no checkpoint' generate hf --prompt x
refuses 2 'nothing to evaluate: give --data, --choices or --lambada' evaluate imported
refuses 2 'nothing to evaluate' evaluate run.ckpt --batches 0
refuses 2 "--batches: '-1' must be a whole number of at least 0" evaluate run.ckpt --batches -1
refuses 2 "--ranks: '0' must be a whole number of at least 1" sweep x.toml --out x --ranks 0
refuses 2 "--seed: '99999999999999999999999' is no whole number" generate run.ckpt --prompt x --seed 99999999999999999999999
refuses 2 "--seed: '-1' is no whole number" data prepare --synthetic --out x.bin --seed -1
refuses 2 '--out: is empty' export run.ckpt --out ""
refuses 2 '--json: is empty' evaluate run.ckpt --json ""
refuses 2 'names no tokens' evaluate imported --choices choices.jsonl
refuses 3 'out/of/reach.json: cannot be written' evaluate run.ckpt --batches 1 --json out/of/reach.json
cp run.h5 kept.h5
refuses 2 'run.h5: exists and is not a file of earlier results' evaluate run.ckpt --batches 1 --json run.h5
cmp run.h5 kept.h5
"$scape" evaluate run.ckpt --batches 1 --json one.json >again.log
refuses 3 'not a SentencePiece model' generate run.ckpt --tokenizer choices.jsonl --prompt x
refuses 2 'give a --prompt' generate run.ckpt
refuses 2 'temperature' generate run.ckpt --prompt x --temperature -1
refuses 2 'hf: exists and is no empty folder' export run.ckpt --out hf
refuses 2 'format' export run.ckpt --format onnx --out onnx
refuses 2 'imported: holds checkpoints' import hf --out imported
refuses 3 'config.json: cannot be read' import run.ckpt --out other
echo '{"context": "x", "choices": ["a", "b"], "label": 2}' >>choices.jsonl
refuses 3 'choices.jsonl: line 5: label 2 is none of the 2 choices' evaluate run.ckpt --choices choices.jsonl
status=0
mpirun --quiet -n 3 "${evaluate[@]}" >ranks.log 2>&1 || status=$?
[[ $status == 3 && $(grep -c 'line 5: label 2' ranks.log) == 1 ]] || fail "ranks do not end together, status $status"
mv tokens.bin moved.bin
refuses 3 "tokens.bin: cannot be opened: No such file or directory (--data names the tokens instead of the run's options)" evaluate run.ckpt
refuses 2 'choices.jsonl: exists and is not a token file' data prepare --synthetic --out choices.jsonl --overwrite
"$scape" data prepare --synthetic --seed 2 --out tokens.bin >/dev/null
refuses 3 'tokens.bin: holds other tokens than the run trained on (--data' evaluate run.ckpt
rm tokens.bin
"$scape" export run.ckpt --out without >export.log 2>&1
grep -q 'no tokenizer is written' export.log || fail "export does not say that it knows no tokenizer"
[[ ! -e other && ! -e onnx ]] || fail "something is left of what was refused"
printf '\377' | dd of=run.ckpt/step-00000030/rank-0001.safetensors bs=1 seek=2000 conv=notrunc status=none
refuses 3 'rank-0001.safetensors: is damaged: its CRC-32' evaluate run.ckpt --data moved.bin
