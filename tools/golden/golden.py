#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tiny random checkpoints, with the logits that Hugging Face transformers computes for them.

Makes    serving/golden/{llama2_tiny,llama3_tiny}/{config.json, model.safetensors,
         logits.safetensors}
         serving/golden/{qwen2_tiny,deepseek_tiny,deepseek_q_tiny,mistral_tiny,qwen3_tiny,
         gemma2_tiny,mixtral_tiny,qwen3_moe_tiny,longrope_tiny,deepseek_v2_group_tiny,
         deepseek_v3_tiny,deepseek_v3_fp8_tiny,qwen3_fp8_rows_tiny,qwen3_awq_tiny,qwen2_gptq_tiny,
         mistral_w4a16_tiny,gpt_oss_tiny,gpt_oss_mxfp4_tiny}/{config.json, recipe.txt, logits.safetensors}
Files    golden_models.py has their configurations, golden_weights.py draws their weights, golden_double.py
         computes in double
Command  python3 tools/golden/golden.py --out serving/golden [NAME...]    (a minute, CPU only)
Needs    Python 3.11, PyTorch 2.5, transformers 4.56, safetensors; the models with a recipe.txt
         Python 3.12, PyTorch 2.11, transformers 5.17 (mistral_tiny to mixtral_tiny: 3.11, 2.15, 5.23;
         longrope_tiny to qwen3_fp8_rows_tiny: 3.11, 2.11; qwen3_fp8_rows_tiny 5.17, the others 5.23;
         the last five: 3.11, 2.15, 5.23).

llama2_tiny has the shape of Llama 2: as many key heads as query heads, an untied output matrix, a config
without head_dim and rope_theta (both have to be derived).  llama3_tiny has the shape of Llama 3.2: grouped
heads, a tied output matrix, frequency scaling `llama3` whose three ranges all occur within the prompt, a
head_dim different from hidden_size / num_attention_heads, a list of end tokens.
qwen2_tiny has the shape of Qwen2: biases on q, k and v, seven query heads per key head, tied output, and
YaRN as in Qwen2.5's long contexts.  The first two deepseek models have the shapes of DeepSeek-V2 (q compressed)
and V2-Lite (q not compressed): latent attention with the published head sizes, dense layers before those
with experts, YaRN.

mistral_tiny has a window shorter than the prompt in all layers; qwen3_tiny has one in the last of three
layers, and normalised heads of a size other than hidden_size / num_attention_heads; gemma2_tiny has all
features of Gemma 2, with caps low enough to matter, a window in every other layer and a softmax scalar
different from its head_dim; mixtral_tiny chooses two of eight experts.  qwen3_moe_tiny has normalised heads,
three of eight experts in all layers but the first, and `dynamic` scaling, which does not begin below
max_position_embeddings.  longrope_tiny has a prompt longer than the trained length of its `longrope`, so that
transformers takes the long list for all of it.

deepseek_v2_group_tiny chooses among two of four groups of experts by their largest score.  deepseek_v3_tiny has
sigmoid scores with a bias that changes the choice, groups by the sum of their two best, weights that are
normalised and scaled, and a multi-token prediction layer (tools/golden/golden_mtp.py).  deepseek_v3_fp8_tiny
has no groups, and its matrices are stored as e4m3 with factors of 128 x 128 blocks; transformers gets the
products, which bf16 represents exactly.  qwen3_fp8_rows_tiny has factors of
rows instead, as compressed-tensors stores them.  gpt_oss_tiny has attention sinks, a window in every other
layer, biases everywhere, experts with a limit that is often reached, and YaRN whose ramp ends within elements;
gpt_oss_mxfp4_tiny is smaller, and its experts are stored as MXFP4, of which transformers gets the values.

The other three are stored in 4 bits: as AutoAWQ does it in groups of 64, as GPTQ does it in groups of 32 with
biases of q, k and v, and as compressed-tensors does it in the format pack-quantized, without zero points, in
groups of 128. transformers gets the products in float32, which represents them exactly.

Latent attention with the published sizes makes checkpoints of 8 MB.  Their weights are therefore not kept
but computed: recipe.txt says "seed N", and for each tensor "draw NAME ROWS COLS SHIFT" (COLS 0: a vector)
or "norm NAME ROWS", "score NAME ROWS 0 SHIFT" (f32), "codes NAME ROWS COLS SHIFT" (e4m3, and NAME_scale_inv
with the factors), "rows NAME ROWS COLS SHIFT" (e4m3, and NAME_scale with a factor for each row),
"many NAME NUM ROWS COLS SHIFT" (draw, of three dimensions), "four NAME NUM ROWS COLS SHIFT" (MXFP4: NAME_blocks
and NAME_scales), "awq64 NAME ROWS COLS SHIFT", "gptq32 ...", "pack128 ..." (words of eight codes, factors of
groups of so many columns, words of zero points; their names are those that the writers of such checkpoints
use).  Element i, in row-major order, is computed from

    h = FNV-1a of "N/NAME", 64 bit;  z = splitmix64's output function of h + (i + 1) * golden ratio
    draw, score, many: (2 (z >> 57) - 127) / 2^SHIFT,  norm: 0.5 + (z >> 57) / 128
    four: the byte z >> 56 of NAME_blocks, two elements;  the byte 127 - SHIFT + (z >> 62) of NAME_scales
    codes: the byte z >> 56, with NaN's lowest bit cleared;  factors: (8 + (z >> 61)) / 2^SHIFT
    words: z >> 32

which bf16 represents exactly.  recipe_weights() of serving/model/recipe_test.h does the same.

logits.safetensors holds
    tokens      I32 [prompt_len]           the prompt
    positions   I32 [num]                  positions of the logits: next to page borders, and the ends
    logits      F32 [num, vocab_size]      computed in double throughout, rounded once
    logits_hf   F32 [num, vocab_size]      unmodified transformers, in float32
    greedy      I32 [16 or 8]              continuation by argmax, computed in double
and as metadata (one entry, `about`: several would be written in random order, and the file would not be
reproducible) max_abs_diff between the two logits, logit_std, and min_margin: the smallest lead of a
greedy token over the runner-up, which shows which arithmetic must reproduce it.

In float64, transformers still computes its norms, its rotary angles and (eager) its softmax in float32,
and so the router and the rotation of DeepSeek-V2.  For `logits` these are replaced here by the same
formulas in double; everything else is transformers' own code.  The weights are drawn in bf16, so the
checkpoint is exact.
Random weights of the usual size give flat attention and logits near zero, with which any kernel passes;
here they are scaled until attention concentrates on few keys and the logits spread as in a real model.
A seed is accepted only if the greedy continuation is clear and not a repetition.  For models with a router,
prompt and continuation are chosen such that its choice is never close: the last expert chosen leads the
first one rejected by at least ROUTER_GAP of the deviation of the router's logits.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from golden_double import load, load_double, logits_of, router_gap, run_double
from golden_models import DISTINCT, MARGIN, MODELS, NUM_GREEDY, ROUTER_GAP
from golden_weights import draw_weights
from safetensors.torch import save_file


def take_weights(model, weights, check=False):
    """Copies the weights into the model, or checks that the model has read them from its files."""
    biases = [(key, p) for key, p in model.named_buffers() if key in weights]
    for key, p in [*model.named_parameters(), *biases]:
        mixtral = any("block_sparse_moe" in k for k in weights)
        if mixtral:
            key = key.replace(".mlp.", ".block_sparse_moe.")
        if key in weights:
            w = weights[key]
        else:       # transformers stores the experts of a layer in one tensor
            at, part = key.rsplit(".", 1)
            names = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
            if mixtral:
                names = ("w1", "w3") if part == "gate_up_proj" else ("w2",)
            w = torch.stack([torch.cat([weights[f"{at}.{e}.{n}.weight"] for n in names])
                             for e in range(p.shape[0])])
        if check and not torch.equal(w.to(p.dtype), p):
            sys.exit(f"golden: transformers has read different weights for {key}")
        p.copy_(w)


def clear_prompt(model, tokens, config, gen):
    """The prompt, with those tokens redrawn whose router choice is close; None if there are too many."""
    if not any(key in config for key in ("n_routed_experts", "num_local_experts", "num_experts")):
        return tokens
    for _ in range(len(tokens)):
        run_double(model, tokens)
        gaps = torch.stack([m.gap for m in model.modules() if hasattr(m, "gap")]).min(0).values
        doubt = (gaps < ROUTER_GAP).nonzero()
        if not len(doubt):
            return tokens
        if doubt[0] == 0:
            return None
        tokens[doubt[0]] = int(torch.randint(4, config["vocab_size"], (1,), generator=gen))
    return None


def continue_greedily(model, tokens, count, wanted=MARGIN):
    """(new tokens, smallest lead over the runner-up); stops when the lead falls below `wanted`"""
    margin, start = math.inf, len(tokens)
    for _ in range(count):
        top = run_double(model, tokens)[-1].topk(2)
        margin = min(margin, float(top.values[0] - top.values[1]))
        if router_gap(model) < ROUTER_GAP:
            margin = 0
        tokens = torch.cat((tokens, top.indices[:1].int()))
        if margin < wanted:
            break
    return tokens[start:], margin


def effective_keys(path, tokens):
    """exp(entropy) of the attention rows, relative to the number of keys they can see."""
    model = load(path, torch.float32, "eager")
    with torch.no_grad():
        layers = model(input_ids=tokens[None].long(), output_attentions=True).attentions
    p = torch.cat([a[0] for a in layers])[:, 16:].double()
    entropy = -(p * p.clamp_min(1e-300).log()).sum(-1)
    return float((entropy.exp() / torch.arange(17, p.shape[-1] + 1)).mean())


def make(name, out):
    spec, path = MODELS[name], out / name
    config = spec["config"]
    path.mkdir(parents=True, exist_ok=True)
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    (path / "config.json").write_text(json.dumps(plain, indent=2) + "\n")
    ends = config["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    model = None
    for seed in range(10000):
        gen = torch.Generator().manual_seed(seed)
        weights, recipe = draw_weights(config, seed, gen)
        if model is None:
            save_file(weights, str(path / "model.safetensors"), metadata={"format": "pt"})
            model = load_double(path, config)
        with torch.no_grad():
            take_weights(model, weights)
        tokens = torch.randint(4, config["vocab_size"], (spec["prompt_len"],), generator=gen,
                               dtype=torch.int32)
        tokens[0] = config["bos_token_id"]
        tokens = clear_prompt(model, tokens, config, gen)
        if tokens is None:
            continue
        greedy, margin = continue_greedily(model, tokens, spec.get("num_greedy", NUM_GREEDY),
                                           spec.get("margin", MARGIN))
        if margin >= spec.get("margin", MARGIN) and len(set(greedy.tolist())) >= spec.get("distinct", DISTINCT) and \
                not set(greedy.tolist()) & set(ends):
            break
    else:
        sys.exit(f"golden: {name}: no seed gives a clear continuation")
    save_file(weights, str(path / "model.safetensors"), metadata={"format": "pt"})
    with torch.no_grad():
        take_weights(load(path, torch.float32), weights, check=True)

    positions = torch.tensor(spec["positions"], dtype=torch.int32)
    double = run_double(model, tokens)[positions.long()]
    single = logits_of(load(path, torch.float32), tokens)[positions.long()]
    bf16 = logits_of(load(path, torch.bfloat16), tokens)[positions.long()]
    diff = float((double - single).abs().max())
    # A large difference would mean that one of the two is not the model in the files just written.
    if not (diff < 1e-3):
        sys.exit(f"golden: {name}: float32 and double differ by {diff}")
    save_file({"tokens": tokens, "positions": positions, "logits": double.float(),
               "logits_hf": single, "greedy": greedy.contiguous()},
              str(path / "logits.safetensors"),
              metadata={"about": f"seed {seed}, logit_std {float(double.std()):.3f}, "
                                 f"max_abs_diff {diff:.3e}, min_margin {margin:.3f}"})
    keys = effective_keys(path, tokens)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if recipe:
        (path / "recipe.txt").write_text("\n".join(recipe) + "\n")
        (path / "model.safetensors").unlink()
    for f in path.iterdir():
        f.chmod(0o644)
    print(f"{name}: seed {seed}, {sum(f.stat().st_size for f in path.iterdir())} bytes, "
          f"logit std {float(double.std()):.2f}, float32 off by {diff:.1e}, bf16 by "
          f"{float((double - bf16).abs().max()):.2f}, greedy {greedy.tolist()} "
          f"(margin {margin:.2f}), attention on {100 * keys:.0f}% of keys")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", type=Path, default=Path("serving/golden"))
    ap.add_argument("names", nargs="*", metavar="NAME", help="of " + ", ".join(MODELS))
    args = ap.parse_args()
    torch.set_num_threads(1)
    for name in args.names or MODELS:
        make(name, args.out)


if __name__ == "__main__":
    main()
