#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the exported program in serving/golden/pt2: python3 tools/export_pt2.py DIR [--transformers]

NAME.pt2 is a tiny model with random weights, and NAME.json has token ids and the logits that PyTorch computes for them in
float32, for several lengths. With --transformers, models of that package are written as well. They are not kept here, because
they are large: `cairn convert-slices --pt2 NAME.pt2 --expect NAME.json` compares a program, whole and in slices, with its logits.
Needs PyTorch (made with 2.15.0). Traces of the Python source are left out, so that the files are small.
"""

import json
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 32
LENGTHS = [2, 6, 11]


class Sequential(nn.Module):
    """A layer whose query, key and value come from one product, with RMSNorm and a gated MLP."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.gate_up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, dim))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Parallel(nn.Module):
    """A layer whose MLP does not wait for attention, with rotary positions, a mask, and one head of keys and values."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head = heads, dim // heads
        self.norm = nn.LayerNorm(dim)
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * self.head), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.register_buffer("freq", 10.0 ** -torch.arange(self.head // 2), persistent=False)

    def rotate(self, x):
        angle = torch.arange(x.shape[2])[:, None] * self.freq[None]
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        half = self.head // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, x):
        batch, length, dim = x.shape
        normed = self.norm(x)
        q = self.rotate(self.q(normed).view(batch, length, self.heads, self.head).transpose(1, 2))
        k, v = self.kv(normed).view(batch, length, 1, 2 * self.head).transpose(1, 2).split(self.head, -1)
        k = self.rotate(k).expand(-1, self.heads, -1, -1)
        at = torch.arange(length)
        mask = (at[None, :] <= at[:, None]) & (at[None, :] > at[:, None] - 4)
        attended = F.scaled_dot_product_attention(q, k, v.expand(-1, self.heads, -1, -1), attn_mask=mask)
        mlp = self.down(F.gelu(self.up(normed), approximate="tanh"))
        return x + mlp + self.out(attended.transpose(1, 2).reshape(batch, length, dim))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 8)
        self.layers = nn.ModuleList([Sequential(8, 2), Parallel(8, 2)])
        self.norm, self.head = nn.RMSNorm(8, eps=1e-5), nn.Linear(8, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Logits(nn.Module):
    """A model of transformers without its cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


def transformers_models():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM
    from transformers import PhiConfig, PhiForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
             "num_attention_heads": 4, "max_position_embeddings": 64, "attn_implementation": "sdpa"}
    yield "llama", Logits(LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **sizes)))
    yield "qwen3", Logits(Qwen3ForCausalLM(Qwen3Config(num_key_value_heads=2, head_dim=8, **sizes)))
    yield "neox", Logits(GPTNeoXForCausalLM(GPTNeoXConfig(**sizes)))
    yield "phi", Logits(PhiForCausalLM(PhiConfig(**sizes)))


def export(model, path):
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(model, (torch.arange(6)[None],), dynamic_shapes=({1: length},), strict=False)
    for module in program.graph_module.modules():
        for node in module.graph.nodes:
            for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node"):
                node.meta.pop(key, None)
    program._example_inputs = None
    program._module_call_graph = program.module_call_graph[:1]
    torch.export.save(program, path)


def main():
    torch.manual_seed(1)
    folder, *names = sys.argv[1:]
    for name, model in [("mixed", Mixed()), *(transformers_models() if "--transformers" in names else [])]:
        model = model.eval()
        # larger than PyTorch's initial weights, so that attention is not uniform
        with torch.no_grad():
            for key, p in model.named_parameters():
                if p.dim() > 1:
                    p.copy_(torch.randn_like(p) * (0.5 if "embed" in key else 0.3))
        export(model, os.path.join(folder, name + ".pt2"))
        rows = []
        with torch.no_grad():
            for length in LENGTHS:
                ids = torch.arange(length)[None] * 7 % VOCAB
                rows.append({"ids": ids[0].tolist(), "logits": model(ids)[0].flatten().tolist()})
        with open(os.path.join(folder, name + ".json"), "w", encoding="ascii") as f:
            json.dump(rows, f)


if __name__ == "__main__":
    main()
