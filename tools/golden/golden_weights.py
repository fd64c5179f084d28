# SPDX-License-Identifier: Apache-2.0
"""Random weights for golden.py, and the recipes with which they are computed again."""

import math
import sys

import numpy as np
import torch


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


class Recipe:
    """Weights drawn from a seed, and the recipe lines with which they are computed again."""

    def __init__(self, seed, quantization=None):
        """quantization: that of config.json, or None."""
        quantization = quantization or {}
        method, form = quantization.get("quant_method"), quantization.get("format")
        self.packs = {"awq": self.awq, "gptq": self.gptq}.get(method, self.packed if form == "pack-quantized" else None)
        self.is_mxfp4 = method == "mxfp4"
        self.is_fp8 = method is not None and not self.packs and not self.is_mxfp4
        self.is_rows = self.is_fp8 and "config_groups" in quantization
        self.group = quantization.get("group_size", 128)
        self.seed, self.lines, self.weights = seed, [f"seed {seed}"], {}

    def bits(self, name, count, keep=7):
        h, mask = 0xcbf29ce484222325, (1 << 64) - 1
        for byte in f"{self.seed}/{name}".encode():
            h = ((h ^ byte) * 0x100000001b3) & mask
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15) + np.uint64(h)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(64 - keep)).astype(np.uint32 if keep > 24 else np.float32)

    def score(self, name, rows, gain):
        shift = round(math.log2(74 / gain))
        v = (2 * self.bits(name, rows) - 127) * np.float32(2.0**-shift)
        self.weights[name] = torch.from_numpy(v)
        self.lines.append(f"score {name} {rows} 0 {shift}")

    def codes(self, name, rows, cols, gain):
        """The root mean square of random codes is 107, and that of factors before the shift 11.7."""
        shift = round(math.log2(107 * 11.7 * math.sqrt(cols) / gain))
        high, wide = (1, cols) if self.is_rows else (128, 128)      # elements that share a factor
        across, down = -(-cols // wide), -(-rows // high)
        suffix = "_scale" if self.is_rows else "_scale_inv"
        code = self.bits(name, rows * cols, 8).astype(np.uint8)
        code[code & 127 == 127] -= 1
        v = torch.from_numpy(code).view(torch.float8_e4m3fn).float().reshape(rows, cols)
        factor = (8 + self.bits(name + suffix, down * across, 3)) * np.float32(2.0**-shift)
        factor = torch.from_numpy(factor.reshape(down, across))
        v *= factor.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:rows, :cols]
        self.weights[name] = v.bfloat16()
        if not torch.equal(self.weights[name].float(), v):
            sys.exit(f"golden: {name}: bf16 does not represent the products")
        self.lines.append(f"{'rows' if self.is_rows else 'codes'} {name} {rows} {cols} {shift}")

    def words(self, name, down, across):
        """Words of eight codes, [down, across, 8], the lowest bits first."""
        word = self.bits(name, down * across, 32).reshape(down, across, 1)
        return (word >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.int32)

    def factors(self, name, down, across, shift):
        return ((8 + self.bits(name, down * across, 3)) * np.float32(2.0**-shift)).reshape(down, across)

    def awq(self, at, rows, cols, shift):
        """As AutoAWQ unpacks: column j of eight is number (0, 4, 1, 5, 2, 6, 3, 7)[j] of the word."""
        order, groups = [0, 4, 1, 5, 2, 6, 3, 7], cols // self.group
        code = self.words(at + "qweight", cols, rows // 8)[:, :, order].reshape(cols, rows)
        zero = self.words(at + "qzeros", groups, rows // 8)[:, :, order].reshape(groups, rows)
        factor = self.factors(at + "scales", groups, rows, shift)
        return ((code - zero.repeat(self.group, 0)) * factor.repeat(self.group, 0)).T

    def gptq(self, at, rows, cols, shift):
        groups = cols // self.group
        code = self.words(at + "qweight", cols // 8, rows).transpose(0, 2, 1).reshape(cols, rows)
        zero = self.words(at + "qzeros", groups, rows // 8).reshape(groups, rows) + 1
        factor = self.factors(at + "scales", groups, rows, shift)
        return ((code - zero.repeat(self.group, 0)) * factor.repeat(self.group, 0)).T

    def packed(self, at, rows, cols, shift):
        code = self.words(at + "weight_packed", rows, cols // 8).reshape(rows, cols)
        return (code - 8) * self.factors(at + "weight_scale", rows, cols // self.group, shift).repeat(self.group, 1)

    def codes4(self, name, rows, cols, gain):
        """The deviation of codes is 4.6, with random zero points 6.5; that of factors before the shift is 11.7."""
        kind = {self.awq: "awq", self.gptq: "gptq", self.packed: "pack"}[self.packs]
        shift = round(math.log2((4.6 if kind == "pack" else 6.5) * 11.7 * math.sqrt(cols) / gain))
        v = self.packs(name.removesuffix("weight"), rows, cols, shift)
        self.weights[name] = torch.from_numpy(np.ascontiguousarray(v, dtype=np.float32))
        self.lines.append(f"{kind}{self.group} {name} {rows} {cols} {shift}")

    def draw(self, name, rows, cols, gain):
        """Deviation gain / sqrt(cols), rounded to the next power of two; cols 0: a vector with that gain."""
        if self.packs and "_proj.weight" in name:
            self.codes4(name, rows, cols, gain)
            return
        if self.is_fp8 and "_proj" in name:
            self.codes(name, rows, cols, gain)
            return
        shift = round(math.log2(74 * math.sqrt(max(cols, 1)) / gain))
        v = (2 * self.bits(name, rows * max(cols, 1)) - 127) * np.float32(2.0**-shift)
        v = torch.from_numpy(v.reshape((rows, cols) if cols else (rows,)))
        self.weights[name] = v.bfloat16()
        self.lines.append(f"draw {name} {rows} {cols} {shift}")

    def stack(self, name, num, rows, cols, gain):
        """The matrices of all experts, as gpt-oss has them: transposed, or as MXFP4 not transposed."""
        if self.is_mxfp4:
            self.four(name, num, rows, cols, gain)
            return
        shift = round(math.log2(74 * math.sqrt(cols) / gain))
        v = (2 * self.bits(name, num * rows * cols) - 127) * np.float32(2.0**-shift)
        self.weights[name] = torch.from_numpy(v.reshape(num, cols, rows)).bfloat16()
        self.lines.append(f"many {name} {num} {cols} {rows} {shift}")

    def four(self, name, num, rows, cols, gain):
        """The root mean square of random codes is 2.93, and that of scales before the shift 4.6."""
        shift = round(math.log2(2.93 * 4.6 * math.sqrt(cols) / gain))
        codes = self.bits(name + "_blocks", num * rows * cols // 2, 8).astype(np.uint8)
        scales = 127 - shift + self.bits(name + "_scales", num * rows * cols // 32, 2)
        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
        codes = np.stack((codes & 15, codes >> 4), -1).reshape(-1, 32)
        v = values[codes & 7] * np.where(codes & 8, -1, 1) * 2.0 ** (scales[:, None] - 127)
        v = torch.from_numpy(v.astype(np.float32).reshape(num, rows, cols))
        self.weights[name] = v.bfloat16().transpose(1, 2).contiguous()
        if not torch.equal(self.weights[name].transpose(1, 2).float(), v):
            sys.exit(f"golden: {name}: bf16 does not represent MXFP4")
        self.lines.append(f"four {name} {num} {rows} {cols} {shift}")

    def norm(self, name, rows):
        v = 0.5 + self.bits(name, rows) / np.float32(128)
        self.weights[name] = torch.from_numpy(v).bfloat16()
        self.lines.append(f"norm {name} {rows}")

    def offset_norm(self, name, rows, gain=0.29):
        """Values around 0, for a norm that adds 1 to its weights."""
        self.draw(name, rows, 0, gain)

    def mlp(self, at, hidden, inner, names=("gate_proj", "up_proj", "down_proj")):
        self.draw(f"{at}{names[0]}.weight", inner, hidden, 2.0)
        self.draw(f"{at}{names[1]}.weight", inner, hidden, 1.5)
        self.draw(f"{at}{names[2]}.weight", hidden, inner, 1.5)

    def attention(self, at, c):
        hidden, hd = c["hidden_size"], head_dim(c)
        for part, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]),
                            ("v", c["num_key_value_heads"])):
            self.draw(f"{at}{part}_proj.weight", heads * hd, hidden, 1.25)
            if c["model_type"] in ("qwen2", "gpt_oss"):
                self.draw(f"{at}{part}_proj.bias", heads * hd, 0, 0.5)
        self.draw(at + "o_proj.weight", hidden, c["num_attention_heads"] * hd, 1.5)
        if c["model_type"] == "gpt_oss":
            self.draw(at + "o_proj.bias", hidden, 0, 0.5)
            self.draw(at + "sinks", c["num_attention_heads"], 0, 2.0)
        if c["model_type"] in ("qwen3", "qwen3_moe"):
            self.norm(at + "q_norm.weight", hd)
            self.norm(at + "k_norm.weight", hd)

    def latent_attention(self, at, c):
        hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
        nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        if c["q_lora_rank"] is None:
            self.draw(at + "q_proj.weight", heads * (nope + rope), hidden, 1.25)
        else:
            self.draw(at + "q_a_proj.weight", c["q_lora_rank"], hidden, 1.5)
            self.norm(at + "q_a_layernorm.weight", c["q_lora_rank"])
            self.draw(at + "q_b_proj.weight", heads * (nope + rope), c["q_lora_rank"], 1.25)
        self.draw(at + "kv_a_proj_with_mqa.weight", rank + rope, hidden, 1.5)
        self.norm(at + "kv_a_layernorm.weight", rank)
        self.draw(at + "kv_b_proj.weight", heads * (nope + v), rank, 1.5)
        self.draw(at + "o_proj.weight", hidden, heads * v, 1.5)

    def experts(self, at, c):
        hidden, inner = c["hidden_size"], c["moe_intermediate_size"]
        self.draw(at + "gate.weight", c["n_routed_experts"], hidden, 1.5)
        if c["model_type"] == "deepseek_v3":
            self.score(at + "gate.e_score_correction_bias", c["n_routed_experts"], 0.25)
        for e in range(c["n_routed_experts"]):
            self.mlp(f"{at}experts.{e}.", hidden, inner)
        self.mlp(at + "shared_experts.", hidden, inner * c["n_shared_experts"])

    def qwen3_moe(self, at, c):
        self.draw(at + "gate.weight", c["num_experts"], c["hidden_size"], 1.5)
        for e in range(c["num_experts"]):
            self.mlp(f"{at}experts.{e}.", c["hidden_size"], c["moe_intermediate_size"])

    def gpt_oss(self, at, c):
        num, hidden, inner = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
        self.draw(at + "router.weight", num, hidden, 1.5)
        self.draw(at + "router.bias", num, 0, 0.5)
        self.stack(at + "experts.gate_up_proj", num, 2 * inner, hidden, 2.0)
        self.draw(at + "experts.gate_up_proj_bias", num, 2 * inner, 0.5 * math.sqrt(2 * inner))
        self.stack(at + "experts.down_proj", num, hidden, inner, 1.5)
        self.draw(at + "experts.down_proj_bias", num, hidden, 0.5 * math.sqrt(hidden))

    def mixtral(self, at, c):
        self.draw(at + "gate.weight", c["num_local_experts"], c["hidden_size"], 1.5)
        for e in range(c["num_local_experts"]):
            self.mlp(f"{at}experts.{e}.", c["hidden_size"], c["intermediate_size"], ("w1", "w3", "w2"))

    def layer(self, i, c, norm):
        at, hidden, gemma = f"model.layers.{i}.", c["hidden_size"], c["model_type"] == "gemma2"
        norm(at + "input_layernorm.weight", hidden)
        (self.latent_attention if "kv_lora_rank" in c else self.attention)(at + "self_attn.", c)
        if gemma:
            self.offset_norm(at + "post_attention_layernorm.weight", hidden, 2.3)
            norm(at + "pre_feedforward_layernorm.weight", hidden)
            self.offset_norm(at + "post_feedforward_layernorm.weight", hidden, 2.3)
        else:
            norm(at + "post_attention_layernorm.weight", hidden)
        if c["model_type"] == "gpt_oss":
            self.gpt_oss(at + "mlp.", c)
        elif "num_local_experts" in c:
            self.mixtral(at + "block_sparse_moe.", c)
        elif "num_experts" in c and i not in c["mlp_only_layers"]:
            self.qwen3_moe(at + "mlp.", c)
        elif i >= c.get("first_k_dense_replace", i + 1):
            self.experts(at + "mlp.", c)
        else:
            self.mlp(at + "mlp.", hidden, c["intermediate_size"])

    def model(self, c):
        hidden, tied = c["hidden_size"], c["tie_word_embeddings"]
        gemma = c["model_type"] == "gemma2"
        norm = self.offset_norm if gemma else self.norm
        # Gemma multiplies its embedding by sqrt(hidden), so it is even smaller; the norms of its blocks are larger.
        self.draw("model.embed_tokens.weight", c["vocab_size"], hidden,
                  0.9 if gemma else 3.0 if tied else math.sqrt(hidden))
        for i in range(c["num_hidden_layers"]):
            self.layer(i, c, norm)
        for i in range(c["num_hidden_layers"], c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0)):
            at = f"model.layers.{i}."
            self.draw(at + "eh_proj.weight", hidden, 2 * hidden, 1.0)
            self.norm(at + "enorm.weight", hidden)
            self.norm(at + "hnorm.weight", hidden)
            self.draw(at + "embed_tokens.weight", c["vocab_size"], hidden, math.sqrt(hidden))
            self.layer(i, c, norm)
            self.norm(at + "shared_head.norm.weight", hidden)
            self.draw(at + "shared_head.head.weight", c["vocab_size"], hidden, 3.0)
        norm("model.norm.weight", hidden, *([2.3] if gemma else []))
        if not tied:
            self.draw("lm_head.weight", c["vocab_size"], hidden, 3.0)


def make_weights(config, gen):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    hd = head_dim(config)
    q_dim, kv_dim = config["num_attention_heads"] * hd, config["num_key_value_heads"] * hd
    out = {}

    def draw(name, rows, cols, gain):
        w = torch.randn(rows, cols, generator=gen, dtype=torch.float64) * gain / math.sqrt(cols)
        out[name] = w.to(torch.bfloat16)

    def norm(name):
        w = 0.5 + torch.rand(hidden, generator=gen, dtype=torch.float64)
        out[name] = w.to(torch.bfloat16)

    # If tied, the embedding is also the output matrix. It must be small, or each token would predict itself.
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


def draw_weights(config, seed, gen):
    """(weights, lines of a recipe); no recipe for Llama, whose weights are kept."""
    if config["model_type"] == "llama":
        return make_weights(config, gen), None
    recipe = Recipe(seed, config.get("quantization_config"))
    recipe.model(config)
    return recipe.weights, recipe.lines
