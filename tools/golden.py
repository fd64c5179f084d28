#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tiny random Llama checkpoints together with the logits Hugging Face transformers gives.

Makes    serving/golden/{llama2_tiny,llama3_tiny}/{config.json, model.safetensors,
         logits.safetensors}
Command  python3 tools/golden.py --out serving/golden    (seconds, CPU only)
Needs    Python 3.11, PyTorch 2.5, transformers 4.56, safetensors.

llama2_tiny is shaped as Llama 2 is: as many key as query heads, untied output matrix, a config
without head_dim and rope_theta (both have to be derived).  llama3_tiny is shaped as Llama 3.2:
grouped heads, tied output matrix, frequency scaling `llama3` whose three ranges all occur within
the prompt, head_dim that is not hidden_size / num_attention_heads, a list of end tokens.

logits.safetensors holds
    tokens      I32 [prompt_len]           the prompt
    positions   I32 [num]                  where the logits were taken: next to page borders, ends
    logits      F32 [num, vocab_size]      computed in double throughout, rounded once
    logits_hf   F32 [num, vocab_size]      transformers as it is, in float32
    greedy      I32 [16]                   continuation by argmax, computed in double
and as metadata (one entry, `about`: several would come in random order and the file would not be
reproducible) max_abs_diff between the two logits, logit_std, and min_margin: the least lead of a
greedy token over the runner-up, so that one can tell which arithmetic must reproduce it.

transformers in float64 still does its norms, its rotary angles and (eager) its softmax in
float32.  For `logits` those three are replaced here by the same formulas in double; everything
else is transformers' own code.  The weights are drawn in bf16, so the checkpoint is exact.
Random weights of the usual size give flat attention and logits near zero, and then any kernel
passes; here they are scaled until attention picks few keys and the logits spread as a real
model's do.  A seed is taken only if the greedy continuation is clear and not a repetition.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

NUM_GREEDY, MARGIN, DISTINCT = 16, 0.5, 10
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "mlp_bias": False,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 192,
}
MODELS = {
    "llama2_tiny": {
        "prompt_len": 80,
        "positions": (0, 1, 7, 15, 16, 17, 31, 32, 47, 63, 64, 78, 79),
        "config": {
            **COMMON,
            "eos_token_id": 2,
            "hidden_size": 128,
            "intermediate_size": 64,
            "max_position_embeddings": 4096,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rope_scaling": None,
            "tie_word_embeddings": False,
        },
    },
    "llama3_tiny": {
        "prompt_len": 96,
        "positions": (0, 1, 7, 15, 16, 17, 31, 32, 47, 63, 64, 65, 79, 80, 94, 95),
        "config": {
            **COMMON,
            "eos_token_id": [2, 3],
            "head_dim": 64,
            "hidden_size": 64,
            "intermediate_size": 128,
            "max_position_embeddings": 512,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rope_scaling": {
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
    },
}


def make_weights(config, gen):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    hd = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_dim, kv_dim = config["num_attention_heads"] * hd, config["num_key_value_heads"] * hd
    out = {}

    def draw(name, rows, cols, gain):
        w = torch.randn(rows, cols, generator=gen, dtype=torch.float64) * gain / math.sqrt(cols)
        out[name] = w.to(torch.bfloat16)

    def norm(name):
        w = 0.5 + torch.rand(hidden, generator=gen, dtype=torch.float64)
        out[name] = w.to(torch.bfloat16)

    # Tied, the embedding is also the output matrix: small, or each token would predict itself.
    draw("model.embed_tokens.weight", config["vocab_size"], hidden,
         3.0 if config["tie_word_embeddings"] else math.sqrt(hidden))
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        norm(at + "input_layernorm.weight")
        draw(at + "self_attn.q_proj.weight", q_dim, hidden, 1.5)
        draw(at + "self_attn.k_proj.weight", kv_dim, hidden, 1.5)
        draw(at + "self_attn.v_proj.weight", kv_dim, hidden, 1.5)
        draw(at + "self_attn.o_proj.weight", hidden, q_dim, 1.5)
        norm(at + "post_attention_layernorm.weight")
        draw(at + "mlp.gate_proj.weight", inner, hidden, 2.0)
        draw(at + "mlp.up_proj.weight", inner, hidden, 1.5)
        draw(at + "mlp.down_proj.weight", hidden, inner, 1.5)
    norm("model.norm.weight")
    if not config["tie_word_embeddings"]:
        draw("lm_head.weight", config["vocab_size"], hidden, 3.0)
    return out


def inv_freq(config):
    """Rotary frequencies in double, `llama3` scaling included."""
    hd = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta", 10000.0)
    freq = theta ** (-torch.arange(0, hd, 2, dtype=torch.float64) / hd)
    s = config["rope_scaling"]
    if s is None:
        return freq
    turns = s["original_max_position_embeddings"] * freq / (2 * math.pi)
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    if not (keep == 0).any() or not (keep == 1).any() or not ((keep > 0) & (keep < 1)).any():
        sys.exit("golden: rope_scaling: the three ranges do not all occur")
    return freq * (keep + (1 - keep) / s["factor"])


def norm_double(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def load(path, dtype, attention="sdpa"):
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype,
                                                attn_implementation=attention).eval()


def load_double(path, config):
    model = load(path, torch.float64)
    freq = inv_freq(config)
    theirs = model.model.rotary_emb.inv_freq.double()
    if not ((theirs / freq - 1).abs().max() < 1e-6):
        sys.exit("golden: rotary frequencies differ from those of transformers")

    def rotary_double(self, x, position_ids):
        angle = position_ids[..., None].double() * freq
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()

    bind = modeling_llama.LlamaRotaryEmbedding
    model.model.rotary_emb.forward = rotary_double.__get__(model.model.rotary_emb, bind)
    for m in model.modules():
        if isinstance(m, modeling_llama.LlamaRMSNorm):
            m.forward = norm_double.__get__(m, modeling_llama.LlamaRMSNorm)
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[None].long(), use_cache=False).logits[0]


def continue_greedily(model, tokens):
    """(new tokens, least lead over the runner-up); gives up below MARGIN"""
    margin, start = math.inf, len(tokens)
    for _ in range(NUM_GREEDY):
        top = logits_of(model, tokens)[-1].topk(2)
        margin = min(margin, float(top.values[0] - top.values[1]))
        tokens = torch.cat((tokens, top.indices[:1].int()))
        if margin < MARGIN:
            break
    return tokens[start:], margin


def effective_keys(path, tokens):
    """exp(entropy) of the attention rows, as a share of the keys they see."""
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
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    ends = config["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    model = None
    for seed in range(10000):
        gen = torch.Generator().manual_seed(seed)
        weights = make_weights(config, gen)
        if model is None:
            save_file(weights, str(path / "model.safetensors"), metadata={"format": "pt"})
            model = load_double(path, config)
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.copy_(weights[key])
        tokens = torch.randint(4, config["vocab_size"], (spec["prompt_len"],), generator=gen,
                               dtype=torch.int32)
        tokens[0] = config["bos_token_id"]
        greedy, margin = continue_greedily(model, tokens)
        if margin >= MARGIN and len(set(greedy.tolist())) >= DISTINCT and \
                not set(greedy.tolist()) & set(ends):
            break
    else:
        sys.exit(f"golden: {name}: no seed gives a clear continuation")
    save_file(weights, str(path / "model.safetensors"), metadata={"format": "pt"})

    positions = torch.tensor(spec["positions"], dtype=torch.int32)
    double = logits_of(model, tokens)[positions.long()]
    single = logits_of(load(path, torch.float32), tokens)[positions.long()]
    bf16 = logits_of(load(path, torch.bfloat16), tokens)[positions.long()]
    diff = float((double - single).abs().max())
    # Were this large, one of the two would not be the model that the files just written hold.
    if not (diff < 1e-3):
        sys.exit(f"golden: {name}: float32 and double differ by {diff}")
    save_file({"tokens": tokens, "positions": positions, "logits": double.float(),
               "logits_hf": single, "greedy": greedy.contiguous()},
              str(path / "logits.safetensors"),
              metadata={"about": f"seed {seed}, logit_std {float(double.std()):.3f}, "
                                 f"max_abs_diff {diff:.3e}, min_margin {margin:.3f}"})
    for f in path.iterdir():
        f.chmod(0o644)
    print(f"{name}: seed {seed}, {sum(f.stat().st_size for f in path.iterdir())} bytes, "
          f"logit std {float(double.std()):.2f}, float32 off by {diff:.1e}, bf16 by "
          f"{float((double - bf16).abs().max()):.2f}, greedy {greedy.tolist()} "
          f"(margin {margin:.2f}), attention on {100 * effective_keys(path, tokens):.0f}% of keys")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", type=Path, default=Path("serving/golden"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    for name in MODELS:
        make(name, args.out)


if __name__ == "__main__":
    main()
