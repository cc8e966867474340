#!/usr/bin/env python3
"""exchange_transformers.py FOLDER EXPECTED COPY

Loads the exported model in FOLDER with Hugging Face's transformers, checks its class and compares its logits with EXPECTED, a
safetensors file with "ids" [sequences, length] and "logits" [sequences, length, vocab]; then lets transformers save it as COPY, in
several files. Exit status 77 and a reason when torch or transformers are not installed.
"""
import sys

try:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    import torch
except ImportError as error:
    print(error)
    sys.exit(77)

folder, expected, copy = sys.argv[1:]
model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert type(model).__name__ in ("GPT2LMHeadModel", "LlamaForCausalLM"), type(model)
assert not any(told.values()), told  # no tensor missing, none too many, none of another shape
reference = load_file(expected)
with torch.no_grad():
    logits = model.eval()(reference["ids"].long()).logits
torch.testing.assert_close(logits, reference["logits"], rtol=1e-4, atol=1e-4 * reference["logits"].abs().max().item())
model.save_pretrained(copy, max_shard_size="10KB", safe_serialization=True)
