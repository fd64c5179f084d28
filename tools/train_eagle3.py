#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train an EAGLE-3 head for the embedded model: a small drafter in the format of vLLM and SGLang.

Makes    serving/golden/eagle3_embedded/{config.json, model.safetensors, golden.safetensors}: about 0.13 M
         parameters in bf16, and the head's results for a text, for serving/engine/spec/eagle_test.c.
Command  python3 tools/train_eagle3.py --seconds 300 --out serving/golden/eagle3_embedded    (CPU only)
Needs    Python 3.11, JAX 0.4.38, numpy, safetensors, tokenizers.

At position i the head takes the embedding of token i + 1 and the target's feature at position i: three of the
target's hidden states, mixed by one matrix. It predicts token i + 2. For the tokens after that, the target has
no features yet, so the head takes its own output at the previous position instead. It is trained for both
(training-time test): every step runs the head over the texts three times, first with the target's features,
then twice with its own output of the run before, shifted by one position.

The loss is the cross entropy against the target's distribution over the draft vocabulary, which has the tokens
that the target predicts most often in answers. Only positions whose next token belongs to an answer count.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import jax
import jax.numpy as jnp
from safetensors import safe_open
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parent))
from train_embedded import BOS, EOS, fill_rows  # noqa: E402

LAYERS = [1, 3, 4]		# hidden states that enter these layers
HIDDEN, HEAD_DIM, INTER, DRAFT_VOCAB = 64, 64, 96, 192
WIDTHS = {48: 48, 128: 8}
DEPTHS = 3			# times that a step computes the head

# ---- the target ------------------------------------------------------------------------------


def load(path):
    out = {}
    with safe_open(str(path), framework="flax") as f:
        for name in f.keys():
            out[name] = f.get_tensor(name).astype(jnp.float32)
    return out


def norm(x, w, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * w


def rope(x, positions, theta):
    half = x.shape[-1] // 2
    angle = positions[:, None] * theta ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, theta):
    """q [batch, rows, heads, dim]; causal."""
    rows, heads = q.shape[1], q.shape[2]
    at = jnp.arange(rows)
    q, k = jax.vmap(lambda x: rope(x, at, theta))(q), jax.vmap(lambda x: rope(x, at, theta))(k)
    k, v = (jnp.repeat(x, heads // x.shape[2], 2) for x in (k, v))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    p = jax.nn.softmax(jnp.where(at[None, :] <= at[:, None], s, -jnp.inf), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(*q.shape[:2], -1)


def layer(w, prefix, x, inputs, c):
    """x: the residual stream; inputs: what q, k and v are made of."""
    def heads(name):
        y = inputs @ w[f"{prefix}.self_attn.{name}_proj.weight"].T
        return y.reshape(*y.shape[:2], -1, c["head_dim"])

    y = attend(heads("q"), heads("k"), heads("v"), c["rope_theta"])
    x = x + y @ w[f"{prefix}.self_attn.o_proj.weight"].T
    y = norm(x, w[f"{prefix}.post_attention_layernorm.weight"], c["rms_norm_eps"])
    y = jax.nn.silu(y @ w[f"{prefix}.mlp.gate_proj.weight"].T) * (y @ w[f"{prefix}.mlp.up_proj.weight"].T)
    return x + y @ w[f"{prefix}.mlp.down_proj.weight"].T


def target(w, c, tokens):
    """Returns the features, [batch, rows, 3 * hidden], and the logits."""
    x, taps = w["model.embed_tokens.weight"][tokens], []
    for l in range(c["num_hidden_layers"]):
        if l in LAYERS:
            taps.append(x)
        y = norm(x, w[f"model.layers.{l}.input_layernorm.weight"], c["rms_norm_eps"])
        x = layer(w, f"model.layers.{l}", x, y, c)
    x = norm(x, w["model.norm.weight"], c["rms_norm_eps"])
    return jnp.concatenate(taps, -1), x @ w["model.embed_tokens.weight"].T


# ---- the head --------------------------------------------------------------------------------


def head_config(c):
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "target_hidden_size": c["hidden_size"], "intermediate_size": INTER,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD_DIM, "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": c["max_position_embeddings"],
        "vocab_size": c["vocab_size"], "draft_vocab_size": DRAFT_VOCAB, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "eagle_aux_hidden_state_layer_ids": LAYERS,
    }


def shapes(h):
    q = h["num_attention_heads"] * h["head_dim"]
    kv = h["num_key_value_heads"] * h["head_dim"]
    d, inter = h["hidden_size"], h["intermediate_size"]
    return {
        "embed_tokens.weight": (h["vocab_size"], d), "fc.weight": (d, 3 * h["target_hidden_size"]),
        "midlayer.hidden_norm.weight": (d,), "midlayer.input_layernorm.weight": (d,),
        "midlayer.self_attn.q_proj.weight": (q, 2 * d), "midlayer.self_attn.k_proj.weight": (kv, 2 * d),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * d), "midlayer.self_attn.o_proj.weight": (d, q),
        "midlayer.post_attention_layernorm.weight": (d,), "midlayer.mlp.gate_proj.weight": (inter, d),
        "midlayer.mlp.up_proj.weight": (inter, d), "midlayer.mlp.down_proj.weight": (d, inter),
        "norm.weight": (d,), "lm_head.weight": (h["draft_vocab_size"], d),
    }


def head(w, h, tokens, features):
    """tokens: those after the features. Returns the next features and the logits."""
    eps = h["rms_norm_eps"]
    embed = norm(w["embed_tokens.weight"][tokens], w["midlayer.input_layernorm.weight"], eps)
    inputs = jnp.concatenate([embed, norm(features, w["midlayer.hidden_norm.weight"], eps)], -1)
    x = layer(w, "midlayer", features, inputs, h)
    return x, norm(x, w["norm.weight"], eps) @ w["lm_head.weight"].T


def loss(w, h, tokens, features, want, counts):
    """tokens, [batch, rows], follow the features; want: the target's distribution of the token after each."""
    x, total = features @ w["fc.weight"].T, 0.0
    for depth in range(DEPTHS):
        x, logits = head(w, h, tokens, x)
        bad = -jnp.sum(want * jax.nn.log_softmax(logits), -1)
        total += 0.8 ** depth * jnp.sum(bad * counts) / jnp.sum(counts)
        x = jnp.concatenate([x[:, :1], x[:, :-1]], 1)
    return total


# ---- training --------------------------------------------------------------------------------


def batches(tok, seed):
    rng = random.Random(f"eagle {seed}")
    while True:
        for width, rows in WIDTHS.items():
            yield fill_rows(tok, rng, width, rows)


def answers(tok, w, c, step):
    """Endless (tokens, features, logits, counts): the texts, and the target's results for them."""
    run = jax.jit(lambda tokens: target(w, c, tokens))
    for tokens, labels in batches(tok, step):
        tokens = jnp.asarray(tokens.astype(np.int32))
        features, logits = run(tokens)
        yield tokens, features, logits, jnp.asarray(labels >= 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="serving/embedded")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--steps", type=int, default=1 << 30)
    args = parser.parse_args()
    from tokenizers import Tokenizer

    out = Path(args.out)
    c = json.loads((Path(args.target) / "config.json").read_text())
    w = load(Path(args.target) / "model.safetensors")
    tok = Tokenizer.from_file(str(Path(args.target) / "tokenizer.json"))
    h = head_config(c)
    data = answers(tok, w, c, 0)

    # the draft vocabulary: what the answers of some texts are made of
    counts = np.zeros(c["vocab_size"])
    for _ in range(40):
        tokens, _, logits, is_answer = next(data)
        np.add.at(counts, np.asarray(jnp.argmax(logits, -1))[np.asarray(is_answer)], 1)
    counts[tok.token_to_id(BOS)] = -1
    ids = np.sort(np.argsort(-counts, kind="stable")[:DRAFT_VOCAB])
    print(f"draft vocabulary: {100 * counts[ids].sum() / counts[counts > 0].sum():.2f}% of the answers")

    rng = np.random.default_rng(0)
    params = {n: jnp.ones(s) if len(s) == 1 else jnp.asarray(rng.normal(0, s[-1] ** -0.5, s), jnp.float32)
              for n, s in shapes(h).items()}
    moments = [{n: jnp.zeros_like(p) for n, p in params.items()} for _ in range(2)]

    @jax.jit
    def train(params, m, v, t, lr, tokens, features, logits, is_answer):
        want = jax.nn.softmax(logits[:, 1:][..., ids])		# of the token after tokens[:, 1:]
        value, grad = jax.value_and_grad(loss)(params, h, tokens[:, 1:], features[:, :-1], want,
                                               is_answer[:, 1:].astype(jnp.float32))
        new = {}
        for n in params:
            m[n] = 0.9 * m[n] + 0.1 * grad[n]
            v[n] = 0.99 * v[n] + 0.01 * grad[n] ** 2
            new[n] = params[n] - lr * (m[n] / (1 - 0.9 ** t)) / (jnp.sqrt(v[n] / (1 - 0.99 ** t)) + 1e-8)
        return value, new, m, v

    begin, step, shown = time.monotonic(), 0, 0.0
    while step < args.steps and time.monotonic() - begin < args.seconds:
        step += 1
        part = min(1, max((time.monotonic() - begin) / args.seconds, step / args.steps))
        lr = 3e-3 * min(1, step / 50) * (1 - 0.95 * part)
        value, params, *moments = train(params, *moments, step, lr, *next(data))
        shown = float(value) if step == 1 else 0.98 * shown + 0.02 * float(value)
        if step % 100 == 0:
            print(f"step {step}: loss {shown:.4f}", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(h, indent=2) + "\n")
    tensors = {n: p.astype(jnp.bfloat16) for n, p in params.items()}
    present = np.zeros(c["vocab_size"], bool)
    present[ids] = True
    import ml_dtypes
    files = {n: np.asarray(p).astype(ml_dtypes.bfloat16) for n, p in tensors.items()}
    files["d2t"] = (ids - np.arange(DRAFT_VOCAB)).astype(np.int64)
    files["t2d"] = present
    save_file(files, str(out / "model.safetensors"))

    # golden results, in f32 with the weights that are stored
    params = {n: p.astype(jnp.float32) for n, p in tensors.items()}
    tokens, features, logits, _ = next(data)
    tokens, features = tokens[:1, :40], features[:1, :40]
    x, first = head(params, h, tokens[:, 1:], features[:, :-1] @ params["fc.weight"].T)
    save_file({"tokens": np.asarray(tokens[0], np.int32), "logits": np.asarray(first[0], np.float32),
               "hidden": np.asarray(x[0], np.float32)}, str(out / "golden.safetensors"))


if __name__ == "__main__":
    main()
