#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compute the multi-token prediction layer of a golden DeepSeek-V3 checkpoint the simplest way, in double.

Makes    serving/golden/deepseek_v3_tiny/mtp.safetensors
Command  python3 tools/golden/golden_mtp.py [--dir serving/golden/deepseek_v3_tiny]    (ten seconds, CPU only)
Needs    Python 3.11, NumPy 2.4; config.json, recipe.txt and logits.safetensors, which tools/golden/golden.py makes

transformers leaves the layer out. This program therefore computes the whole model itself, checks its logits against those of
transformers, and then adds the layer, as DeepSeek's report (2412.19437, section 2.2) and vLLM have it: place i takes token i + 1
and the model's state of place i after the last norm,

    x = eh_proj [enorm(embed_tokens(token)), hnorm(state)];  y = layer(x);  logits of token i + 2 = head(norm(y))

and y is the state for place i + 1 when the module is used once more. mtp.safetensors holds

    tokens    I32 [32]                           a prompt in which no choice of experts is close
    logits    F32 [31, vocab_size]               of all its places but the last
    bound     F32 [31, vocab_size]               six standard deviations of the logits over 24 runs in which each value that
                                                 bf16 arithmetic rounds has a random relative error of up to 2^-8; a deviation
                                                 is at least the root mean square of its row
    lengths   I32 [4]                            prefixes of the prompt
    chains    I32 [4, 4]                         drafts after these prefixes, each the argmax of one use of the module
"""

import argparse
import json
import math
from pathlib import Path
import struct
import sys

import numpy as np

RUNS, NOISE, PROMPT, CHAINS, DEPTH = 24, 2.0**-8, 32, 4, 4
ROUTER_GAP = 0.15       # relative to the deviation of the scores


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    types = {"F32": "<f4", "I32": "<i4"}
    out = {}
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            first, end = t["data_offsets"]
            out[name] = np.frombuffer(data[8 + size + first : 8 + size + end], types[t["dtype"]]).reshape(t["shape"])
    return out


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, v in tensors.items():
        kind = "F32" if v.dtype == np.float32 else "I32"
        header[name] = {"dtype": kind, "shape": list(v.shape), "data_offsets": [len(body), len(body) + v.nbytes]}
        body += v.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def bits(seed, name, count):
    """The seven bits of each element, as tools/golden/golden.py draws them."""
    h, mask = 0xCBF29CE484222325, (1 << 64) - 1
    for byte in f"{seed}/{name}".encode():
        h = ((h ^ byte) * 0x100000001B3) & mask
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(h)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(57)).astype(np.float64)


def read_recipe(path):
    lines = path.read_text().split("\n")
    seed, out = int(lines[0].split()[1]), {}
    for line in filter(None, lines[1:]):
        kind, name, rows, *rest = line.split()
        rows, cols, shift = int(rows), *map(int, rest or (0, 0))
        v = bits(seed, name, rows * max(cols, 1))
        v = 0.5 + v / 128 if kind == "norm" else (2 * v - 127) * 2.0**-shift
        out[name] = v.reshape((rows, cols) if cols else (rows,))
    return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    def __init__(self, config, weights, noise=0.0, seed=0):
        self.c, self.w, self.noise, self.rng = config, weights, noise, np.random.default_rng(seed)
        self.gaps = {}              # margins of the last choices of experts, by layer: one for each row
        s, dim, theta = config["rope_scaling"], config["qk_rope_head_dim"], config["rope_theta"]
        freq = theta ** (-np.arange(0, dim, 2) / dim)

        def dim_of(turns):
            length = s["original_max_position_embeddings"]
            return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(dim_of(s["beta_fast"])), 0), min(math.ceil(dim_of(s["beta_slow"])), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
        self.freq = freq * (1 - ramp + ramp / s["factor"])
        mscale = 0.1 * s["mscale_all_dim"] * math.log(s["factor"]) + 1
        self.scale = mscale**2 / math.sqrt(config["qk_nope_head_dim"] + dim)

    def rounded(self, x):
        return x * (1 + self.noise * self.rng.uniform(-1, 1, x.shape)) if self.noise else x

    def norm(self, x, name):
        eps = 1e-6 if "_a_layernorm" in name else self.c["rms_norm_eps"]
        return self.rounded(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.w[name])

    def project(self, x, name):
        return self.rounded(x @ self.w[name + ".weight"].T)

    def rotate(self, x):
        """x: [rows, heads, dim]; pairs are adjacent elements."""
        angle = np.arange(len(x))[:, None, None] * self.freq
        a, b = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = a * np.cos(angle) - b * np.sin(angle)
        out[..., 1::2] = a * np.sin(angle) + b * np.cos(angle)
        return self.rounded(out)

    def attention(self, x, at):
        c, rows = self.c, len(x)
        heads, nope, v_dim = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
        rank = c["kv_lora_rank"]
        q = self.norm(self.project(x, at + "q_a_proj"), at + "q_a_layernorm.weight")
        q = self.project(q, at + "q_b_proj").reshape(rows, heads, -1)
        latent = self.project(x, at + "kv_a_proj_with_mqa")
        kv = self.norm(latent[:, :rank], at + "kv_a_layernorm.weight")
        kv = self.rounded(kv @ self.w[at + "kv_b_proj.weight"].T).reshape(rows, heads, nope + v_dim)
        turned = self.rotate(latent[:, None, rank:])
        k = np.concatenate((kv[..., :nope], np.repeat(turned, heads, 1)), -1)
        q = np.concatenate((q[..., :nope], self.rotate(q[..., nope:])), -1)
        s = np.einsum("ihd,jhd->hij", q, k) * self.scale
        s[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
        out = np.einsum("hij,jhd->ihd", self.rounded(softmax(s)), kv[..., nope:])
        return self.project(self.rounded(out).reshape(rows, -1), at + "o_proj")

    def mlp(self, x, at):
        g, u = x @ self.w[at + "gate_proj.weight"].T, x @ self.w[at + "up_proj.weight"].T
        return self.rounded(g / (1 + np.exp(-g)) * u) @ self.w[at + "down_proj.weight"].T

    def choose(self, scores):
        """(numbers of the chosen experts for the scores of one token, bias included; margin of the choice)"""
        c = self.c
        groups, kept, k = c["n_group"], c["topk_group"], c["num_experts_per_tok"]
        of_group = np.sort(scores.reshape(groups, -1))[:, -2:].sum(-1)
        order = np.argsort(-of_group)
        gap = (of_group[order[kept - 1]] - of_group[order[kept]]) / of_group.std()
        left = np.full_like(scores, -np.inf)
        for g in order[:kept]:
            part = slice(g * len(scores) // groups, (g + 1) * len(scores) // groups)
            left[part] = scores[part]
        order = np.argsort(-left)
        return order[:k], min(gap, (left[order[k - 1]] - left[order[k]]) / scores.std())

    def experts(self, x, at):
        out, gaps = np.zeros_like(x), self.gaps.setdefault(at, [])
        gaps.clear()
        for i, row in enumerate(x):
            p = 1 / (1 + np.exp(-(self.w[at + "gate.weight"] @ row)))
            chosen, gap = self.choose(p + self.w[at + "gate.e_score_correction_bias"])
            gaps.append(gap)
            for e in chosen:
                share = p[e] / (p[chosen].sum() + 1e-20) * self.c["routed_scaling_factor"]
                out[i] += share * self.mlp(row, f"{at}experts.{e}.")
        return out + self.mlp(x, at + "shared_experts.")

    def layer(self, x, i):
        at = f"model.layers.{i}."
        x = self.rounded(x + self.attention(self.norm(x, at + "input_layernorm.weight"), at + "self_attn."))
        normed = self.norm(x, at + "post_attention_layernorm.weight")
        has_experts = i >= self.c["first_k_dense_replace"]
        return self.rounded(x + (self.experts if has_experts else self.mlp)(normed, at + "mlp."))

    def states(self, tokens):
        x = self.w["model.embed_tokens.weight"][tokens]
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(x, i)
        return self.norm(x, "model.norm.weight")

    def module(self, tokens, states):
        """The states after the layer, and the logits, for places 0 .. len(tokens) - 1, which take these tokens."""
        i = self.c["num_hidden_layers"]
        at = f"model.layers.{i}."
        pair = (self.norm(self.w[at + "embed_tokens.weight"][tokens], at + "enorm.weight"), self.norm(states, at + "hnorm.weight"))
        y = self.layer(self.project(np.concatenate(pair, -1), at + "eh_proj"), i)
        return y, self.norm(y, at + "shared_head.norm.weight") @ self.w[at + "shared_head.head.weight"].T


def chain(model, tokens, states):
    """(drafts after the tokens, smallest lead of a draft over the runner-up, smallest margin of their experts)"""
    taken, states = tokens[1:], states[: len(tokens) - 1]
    lead = gap = math.inf
    drafts = []
    for _ in range(DEPTH):
        y, logits = model.module(taken, states)
        order = np.argsort(-logits[-1])
        lead = min(lead, logits[-1][order[0]] - logits[-1][order[1]])
        gap = min(gap, *model.gaps[f"model.layers.{model.c['num_hidden_layers']}.mlp."][len(tokens) - 2 :])
        drafts.append(int(order[0]))
        taken, states = np.append(taken, order[0]), np.concatenate((states, y[-1:]))
    return drafts, lead, gap


def clear_prompt(model, rng):
    """A prompt, of which each token is drawn again while it makes a choice of experts close."""
    tokens = np.array([model.c["bos_token_id"]], np.int32)
    while len(tokens) < PROMPT:
        longer = np.append(tokens, np.int32(rng.integers(4, model.c["vocab_size"])))
        states = model.states(longer)
        model.module(longer[1:], states[:-1])
        if min(gaps[-1] for gaps in model.gaps.values()) >= ROUTER_GAP:
            tokens = longer
    return tokens


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--dir", type=Path, default=Path("serving/golden/deepseek_v3_tiny"))
    path = ap.parse_args().dir
    config, weights = json.loads((path / "config.json").read_text()), read_recipe(path / "recipe.txt")
    golden = read_tensors(path / "logits.safetensors")
    model = Model(config, weights)
    off = np.abs(model.states(golden["tokens"])[golden["positions"]] @ weights["lm_head.weight"].T - golden["logits"]).max()
    if not off < 1e-5:
        sys.exit(f"golden_mtp: the model's logits differ from those of transformers by {off}")
    tokens = clear_prompt(model, np.random.default_rng(0))
    states = model.states(tokens)
    _, logits = model.module(tokens[1:], states[:-1])
    square = np.zeros_like(logits)
    for seed in range(RUNS):
        noisy = Model(config, weights, NOISE, seed)
        square += (noisy.module(tokens[1:], noisy.states(tokens)[:-1])[1] - logits) ** 2 / RUNS
    bound = 6 * np.sqrt(np.maximum(square, square.mean(-1, keepdims=True)))
    found = []
    for n in range(2, len(tokens) + 1):
        drafts, lead, gap = chain(model, tokens[:n], states)
        found.append((min(lead / 2, gap * 10), n, drafts, lead, gap))
    best = sorted(sorted(found, reverse=True)[:CHAINS], key=lambda f: f[1])
    write_tensors(path / "mtp.safetensors", {
        "tokens": tokens, "logits": logits.astype(np.float32), "bound": bound.astype(np.float32),
        "lengths": np.array([f[1] for f in best], np.int32), "chains": np.array([f[2] for f in best], np.int32),
    })
    print(f"logits of the model off by {off:.1e}; of the layer: deviation {logits.std():.2f}, bound {np.median(bound):.2f} "
          f"(median), {bound.max():.2f} (largest)")
    for _, n, drafts, lead, gap in best:
        print(f"after {n} tokens: {drafts}, lead {lead:.2f}, margin of the experts {gap:.3f}")


if __name__ == "__main__":
    main()
