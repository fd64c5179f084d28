#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes serving/golden/scripted: a checkpoint that says fixed texts, for tests of tool calls and reasoning.

    scripted_model.py DIR

The model is a Llama of one layer whose attention and MLP are zero, so the token after a token depends on that token alone.
Each script is cut into pieces, every one of which is a token that occurs nowhere else: the row of a piece in lm_head is the
embedding of the piece before it. A prompt that ends with a script's name is answered by its text. Texts may contain special
tokens, which are pieces of their own.
"""

import json
import os
import random
import struct
import sys

HIDDEN = 64
MARGIN = 16  # of logits: at temperature 1 another token is drawn less than once in 10000 times
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s", "days": 3}}\n</tool_call>'
SCRIPTS = {
    "ask:plain": "Hello there.",
    "ask:weather": "Let me see.\n" + CALL % "Paris",
    "ask:two": CALL % "Zurich" + "\n" + CALL % "Rome",
    "ask:think": "<think>\nTwo and two.\n</think>\n\nFour.",
    "ask:both": "<think>\nI have to look.\n</think>\n\n" + CALL % "Bern",
    "ask:bad": "<tool_call>\nnot a call at all\n</tool_call>",
    "ask:mistral": 'Wait.<|unused|>[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]',
    "result:22": "It is 22 degrees.",
}
SPECIAL = ["<s>", "</s>", "[TOOL_CALLS]", "<|unused|>"]


def byte_characters():
    """The characters that stand for bytes in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def try_to_cut(text, used, rng):
    """Cuts a text at random. Returns None if a piece occurs twice or is in used."""
    pieces, at = [], 0
    while at < len(text):
        special = next((s for s in SPECIAL if text.startswith(s, at)), None)
        n = len(special) if special else rng.randint(2, 6)
        end = min([at + n, len(text)] + [text.index(s, at) for s in SPECIAL if not special and s in text[at:]])
        if text[at:end] in used or text[at:end] in pieces or end - at < 2:
            return None
        pieces.append(text[at:end])
        at = end
    return pieces


def cut(text, used, rng):
    """Cuts a text into pieces that are not in used, which it extends."""
    for _ in range(20000):
        pieces = try_to_cut(text, used, rng)
        if pieces:
            used.update(pieces)
            return pieces
    raise ValueError("this text cannot be cut into new pieces: " + text)


def lead(hidden, head, token):
    """By how much the logit of a token exceeds all others."""
    logits = [sum(x * y for x, y in zip(hidden, row)) for row in head]
    return logits.pop(token) - max(logits)


def main(directory):
    rng = random.Random(1)
    vocab = {c: i for i, c in enumerate(byte_characters().values())}
    added = [*SPECIAL, *SCRIPTS]
    used = set(SCRIPTS)
    chains = []
    for name, text in SCRIPTS.items():
        pieces = cut(text, used, rng)
        chains.append([name, *pieces, "</s>"])
        added += [p for p in pieces if p not in SPECIAL]
    ids = {text: len(vocab) + i for i, text in enumerate(added)}
    size = len(vocab) + len(added)
    links = [(ids[a], ids[b]) for chain in chains for a, b in zip(chain, chain[1:])]
    margin = 0
    while margin < MARGIN:
        embed = [[rng.choice((-1, 1)) for _ in range(HIDDEN)] for _ in range(size)]
        head = [[0] * HIDDEN for _ in range(size)]
        for a, b in links:
            head[b] = [x + y for x, y in zip(head[b], embed[a])]
        margin = min(lead(embed[a], head, b) for a, b in links)
    zero = [[0] * HIDDEN for _ in range(HIDDEN)]
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": [[1] * HIDDEN], "lm_head.weight": head}
    for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"):
        tensors[f"model.layers.0.{name}_proj.weight"] = zero
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = [[1] * HIDDEN]
    os.makedirs(directory, exist_ok=True)
    write_tensors(os.path.join(directory, "model.safetensors"), tensors)
    write_json(directory, "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": ids["<s>"],
        "eos_token_id": ids["</s>"], "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": HIDDEN,
        "head_dim": HIDDEN, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "vocab_size": size,
    })
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write_json(directory, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "added_tokens": [{"id": ids[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": t in SPECIAL} for t in added],
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
    })


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)
        f.write("\n")


def write_tensors(path, tensors):
    header, data = {}, b""
    for name, rows in tensors.items():
        # small integers are exact in bfloat16: the upper half of a float
        packed = b"".join(struct.pack("<f", x)[2:] for row in rows for x in row)
        shape = [len(rows), HIDDEN] if len(rows) > 1 else [HIDDEN]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
