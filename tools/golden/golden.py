#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tiny random checkpoints, with the logits that Hugging Face transformers computes for them.

Makes    serving/golden/{llama2_tiny,llama3_tiny}/{config.json, model.safetensors,
         logits.safetensors}
         serving/golden/{qwen2_tiny,deepseek_tiny,deepseek_q_tiny,mistral_tiny,qwen3_tiny,
         gemma2_tiny,mixtral_tiny,qwen3_moe_tiny,longrope_tiny,deepseek_v2_group_tiny,
         deepseek_v3_tiny,deepseek_v3_fp8_tiny,qwen3_fp8_rows_tiny,qwen3_awq_tiny,qwen2_gptq_tiny,
         mistral_w4a16_tiny,gpt_oss_tiny,gpt_oss_mxfp4_tiny}/{config.json, recipe.txt, logits.safetensors}
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

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama

NUM_GREEDY, MARGIN, DISTINCT, ROUTER_GAP = 16, 0.5, 10, 0.04
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
    "qwen2_tiny": {
        "prompt_len": 56,
        "positions": (0, 1, 7, 15, 16, 17, 31, 32, 47, 48, 54, 55),
        "config": {
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_act": "silu",
            "hidden_size": 448,
            "initializer_range": 0.02,
            "intermediate_size": 128,
            "max_position_embeddings": 256,
            "max_window_layers": 2,
            "model_type": "qwen2",
            "num_attention_heads": 7,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_type": "yarn",
            },
            "rope_theta": 1000000.0,
            "sliding_window": 128,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": 192,
        },
    },
}
TINY = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 192,
}
for name, changes in {
    "mistral_tiny": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 20,
    },
    "qwen3_tiny": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
        "head_dim": 128, "hidden_size": 192, "max_window_layers": 2, "num_hidden_layers": 3,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 24, "tie_word_embeddings": True, "use_sliding_window": True,
    },
    "gemma2_tiny": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attention_bias": False,
        "attn_logit_softcapping": 6.0, "final_logit_softcapping": 6.0, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 144, "num_attention_heads": 2, "num_hidden_layers": 3,
        "num_key_value_heads": 1, "query_pre_attn_scalar": 144, "rms_norm_eps": 1e-06,
        "sliding_window": 17, "tie_word_embeddings": True,
    },
    "mixtral_tiny": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 128,
        "head_dim": 64, "num_experts_per_tok": 2, "num_local_experts": 8,
        "output_router_logits": False, "router_aux_loss_coef": 0.02, "rope_theta": 1000000.0,
        "sliding_window": None,
    },
    "qwen3_moe_tiny": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
        "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 192, "mlp_only_layers": [0],
        "moe_intermediate_size": 64, "norm_topk_prob": True, "num_experts": 8, "num_experts_per_tok": 3,
        "num_hidden_layers": 3, "num_key_value_heads": 1, "output_router_logits": False, "rms_norm_eps": 1e-06,
        "rope_scaling": {"factor": 2.0, "rope_type": "dynamic"}, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "sliding_window": None, "use_sliding_window": False,
    },
    "longrope_tiny": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None,
        "rope_scaling": {
            "long_factor": [round(1 + i * i / 60, 4) for i in range(32)],
            "original_max_position_embeddings": 32,
            "rope_type": "longrope",
            "short_factor": [round(1 + i / 40, 4) for i in range(32)],
        },
    },
}.items():
    MODELS[name] = {"prompt_len": 56, "margin": 0.25 if name == "gemma2_tiny" else MARGIN, "positions": (0, 1, 7, 15, 16, 17, 23, 24, 31, 32, 47, 54, 55),
                    "num_greedy": 12 if name in ("mistral_tiny", "qwen3_tiny") else 8,
                    "distinct": 8 if name in ("mistral_tiny", "qwen3_tiny") else 5, "config": {**TINY, **changes}}
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 192,
    "kv_lora_rank": 512,
    "max_position_embeddings": 2560,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 4,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 192,
}
for name, changes in {
    "deepseek_tiny": {},
    "deepseek_q_tiny": {"first_k_dense_replace": 2, "n_shared_experts": 1, "q_lora_rank": 64,
                        "num_experts_per_tok": 3, "routed_scaling_factor": 2.5},
}.items():
    MODELS[name] = {"prompt_len": 40, "positions": (0, 1, 7, 15, 16, 17, 31, 32, 38, 39),
                    "num_greedy": 8, "distinct": 6, "config": {**DEEPSEEK, **changes}}


DEEPSEEK_V3 = {
    **DEEPSEEK,
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "n_shared_experts": 1,
    "norm_topk_prob": True, "num_experts_per_tok": 4, "num_nextn_predict_layers": 0, "q_lora_rank": 64,
    "rope_scaling": {**DEEPSEEK["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 1.0},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
}
for name, config in {
    "deepseek_v2_group_tiny": {**DEEPSEEK, "n_group": 4, "n_routed_experts": 16, "num_experts_per_tok": 3,
                               "routed_scaling_factor": 4.0, "topk_group": 2,
                               "topk_method": "group_limited_greedy"},
    "deepseek_v3_tiny": {**DEEPSEEK_V3, "n_group": 4, "n_routed_experts": 16, "num_nextn_predict_layers": 1,
                         "topk_group": 2},
    "deepseek_v3_fp8_tiny": {**DEEPSEEK_V3, "num_experts_per_tok": 2, "num_hidden_layers": 2,
                             "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
                                                     "quant_method": "fp8", "weight_block_size": [128, 128]}},
}.items():
    MODELS[name] = {"prompt_len": 40, "positions": (0, 1, 7, 15, 16, 17, 31, 32, 38, 39),
                    "num_greedy": 8, "distinct": 6, "config": config}


MODELS["qwen3_fp8_rows_tiny"] = {
    "prompt_len": 40, "positions": (0, 1, 7, 15, 16, 17, 31, 32, 38, 39), "num_greedy": 8, "distinct": 6,
    "config": {
        **TINY, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
        "head_dim": 64, "hidden_size": 128, "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "sliding_window": None,
        "use_sliding_window": False,
        "quantization_config": {
            "config_groups": {"group_0": {
                "input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True,
                                      "type": "float"},
                "output_activations": None, "targets": ["Linear"],
                "weights": {"dynamic": False, "num_bits": 8, "strategy": "channel", "symmetric": True,
                            "type": "float"}}},
            "format": "float-quantized", "ignore": ["lm_head"], "kv_cache_scheme": None,
            "quant_method": "compressed-tensors", "quantization_status": "compressed"}}}
for name, changes in {
    "qwen3_awq_tiny": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 64,
        "hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "sliding_window": None, "use_sliding_window": False,
        "quantization_config": {"bits": 4, "group_size": 64, "modules_to_not_convert": None,
                                "quant_method": "awq", "version": "gemm", "zero_point": True}},
    "qwen2_gptq_tiny": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 192,
        "intermediate_size": 128, "max_window_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06, "sliding_window": None, "use_sliding_window": False,
        "quantization_config": {"bits": 4, "checkpoint_format": "gptq", "desc_act": False, "group_size": 32,
                                "lm_head": False, "pack_dtype": "int32", "quant_method": "gptq", "sym": False}},
    "mistral_w4a16_tiny": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None,
        "quantization_config": {
            "config_groups": {"group_0": {
                "input_activations": None, "output_activations": None, "targets": ["Linear"],
                "weights": {"actorder": None, "dynamic": False, "group_size": 128, "num_bits": 4,
                            "strategy": "group", "symmetric": True, "type": "int"}}},
            "format": "pack-quantized", "ignore": ["lm_head"], "kv_cache_scheme": None,
            "quant_method": "compressed-tensors", "quantization_status": "compressed"}},
}.items():
    MODELS[name] = {"prompt_len": 40, "positions": (0, 1, 7, 15, 16, 17, 31, 32, 38, 39), "num_greedy": 8,
                    "distinct": 6, "config": {**TINY, **changes}}


GPT_OSS = {
    **TINY, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64,
    "hidden_size": 128, "intermediate_size": 64, "num_experts_per_tok": 4, "num_hidden_layers": 3,
    "num_local_experts": 8, "output_router_logits": False, "router_aux_loss_coef": 0.9, "rope_theta": 150000,
    "rope_scaling": {"beta_fast": 4.0, "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 64,
                     "rope_type": "yarn", "truncate": False},
    "sliding_window": 20, "swiglu_limit": 2.0,
}
MODELS["gpt_oss_tiny"] = {
    "prompt_len": 56, "positions": (0, 1, 7, 15, 16, 17, 19, 20, 21, 31, 32, 47, 54, 55), "num_greedy": 8, "distinct": 5,
    "config": GPT_OSS}
MODELS["gpt_oss_mxfp4_tiny"] = {
    "prompt_len": 40, "positions": (0, 1, 7, 15, 16, 17, 19, 20, 21, 31, 32, 38, 39), "num_greedy": 6, "distinct": 4,
    "margin": 0.25,
    "config": {
        **GPT_OSS, "num_experts_per_tok": 2, "num_hidden_layers": 2,
        "quantization_config": {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                       "lm_head"],
            "quant_method": "mxfp4"}}}


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


def yarn_mscale(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def inv_freq(config):
    """(rotary frequencies in double, factor of cos and sin), including scaling."""
    hd = config.get("qk_rope_head_dim") or head_dim(config)
    theta = config.get("rope_theta", 10000.0)
    freq = theta ** (-torch.arange(0, hd, 2, dtype=torch.float64) / hd)
    s, scale = config.get("rope_scaling"), 1.0
    if s is None:
        return freq, scale
    kind = s.get("rope_type", s.get("type"))
    if kind == "dynamic":       # begins beyond max_position_embeddings
        return freq, scale
    if kind == "longrope":
        factor = config["max_position_embeddings"] / s["original_max_position_embeddings"]
        scale = math.sqrt(1 + math.log(factor) / math.log(s["original_max_position_embeddings"]))
        return freq / torch.tensor(s["long_factor"], dtype=torch.float64), scale
    if kind == "yarn":
        def dim_of(turns):
            length = s["original_max_position_embeddings"]
            return hd * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dim_of(s.get("beta_fast", 32)), dim_of(s.get("beta_slow", 1))
        if s.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, hd - 1)
        keep = 1 - ((torch.arange(hd // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        scale = yarn_mscale(s["factor"], s.get("mscale", 1.0))
        if "mscale_all_dim" in s:
            scale /= yarn_mscale(s["factor"], s["mscale_all_dim"])
    else:
        turns = s["original_max_position_embeddings"] * freq / (2 * math.pi)
        low, high = s["low_freq_factor"], s["high_freq_factor"]
        keep = ((turns - low) / (high - low)).clamp(0, 1)
    if not (keep == 0).any() or not (keep == 1).any() or not ((keep > 0) & (keep < 1)).any():
        sys.exit("golden: rope_scaling: the three ranges do not all occur")
    return freq * (keep + (1 - keep) / s["factor"]), scale


def norm_double(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def offset_norm_double(self, x):
    return (1 + self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def eager_double(module, query, key, value, mask, scaling=None, softcap=None, **_):
    """eager_attention_forward of modeling_gemma2 without its conversions to float32."""
    key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    s = query @ key.transpose(2, 3) * scaling
    s = (torch.tanh(s / softcap) * softcap if softcap else s) + mask
    p = s.softmax(-1)
    return (p @ value).transpose(1, 2).contiguous(), p


def load(path, dtype, attention="sdpa"):
    config = json.loads((path / "config.json").read_text())
    latent = "kv_lora_rank" in config
    experts = latent or "num_local_experts" in config or "num_experts" in config
    more = {"experts_implementation": "eager"} if experts else {}
    if config["model_type"] in ("gemma2", "gpt_oss"):   # sdpa supports neither caps nor sinks
        attention = "eager"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=attention,
                                                 **more).eval()
    if latent:
        s = config["rope_scaling"]
        scale = yarn_mscale(s["factor"], s["mscale_all_dim"]) ** 2 / \
            math.sqrt(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        if any(abs(i.self_attn.scaling / scale - 1) > 1e-9 for i in model.model.layers):
            sys.exit("golden: the softmax scale of transformers is not that of DeepSeek's program")
    return model


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


def rotate_double(q, k, turn):
    """apply_rotary_emb of modeling_deepseek_v2 without its conversions to float32."""
    turn = turn.unsqueeze(1)
    return [torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous()) *
                               turn).flatten(3) for x in (q, k)]


def choose_in_groups(self, scores, best):
    """The experts with the largest scores, in the groups whose `best` scores have the largest sums; sets gap."""
    groups, k = self.num_group or 1, self.topk_group or 1
    of_groups = scores.view(len(scores), groups, -1)
    order = of_groups.topk(min(best, of_groups.shape[-1]), -1).values.sum(-1).sort(-1, descending=True)
    allowed = torch.zeros_like(order.values).scatter(1, order.indices[:, :k], 1).bool()
    left = of_groups.masked_fill(~allowed.unsqueeze(-1), -math.inf).flatten(1).sort(-1, descending=True)
    self.gap = (left.values[:, self.top_k - 1] - left.values[:, self.top_k]) / scores.std()
    if k < groups:
        gap = (order.values[:, k - 1] - order.values[:, k]) / order.values.std()
        self.gap = torch.minimum(self.gap, gap)
    return left.indices[:, :self.top_k]


def router_double(self, x):
    """DeepseekV2TopkRouter's forward in double; self.gap: the margin of each choice."""
    logits = torch.nn.functional.linear(x.view(-1, x.shape[-1]), self.weight)
    chosen = choose_in_groups(self, logits, 1)
    return logits, logits.softmax(-1).gather(1, chosen) * self.routed_scaling_factor, chosen


def router3_double(self, x):
    """DeepseekV3TopkRouter's, likewise."""
    logits = torch.nn.functional.linear(x.view(-1, x.shape[-1]), self.weight)
    chosen = choose_in_groups(self, logits.sigmoid() + self.e_score_correction_bias.double(), 2)
    w = logits.sigmoid().gather(1, chosen)
    w = w / (w.sum(-1, keepdim=True) + 1e-20) if self.norm_topk_prob else w
    return logits, w * self.routed_scaling_factor, chosen


def mixtral_router_double(self, x):
    """MixtralTopKRouter's and Qwen3MoeTopKRouter's, likewise."""
    scores = torch.nn.functional.linear(x.reshape(-1, x.shape[-1]), self.weight)
    order = scores.sort(-1, descending=True).values
    self.gap = (order[:, self.top_k - 1] - order[:, self.top_k]) / scores.std()
    w, chosen = scores.softmax(-1).topk(self.top_k, -1)
    return scores, w / w.sum(-1, keepdim=True), chosen


def gpt_oss_router_double(self, x):
    """GptOssTopKRouter's, likewise."""
    scores = torch.nn.functional.linear(x, self.weight, self.bias)
    order = scores.sort(-1, descending=True)
    self.gap = (order.values[:, self.top_k - 1] - order.values[:, self.top_k]) / scores.std()
    return scores, order.values[:, :self.top_k].softmax(-1), order.indices[:, :self.top_k]


def load_double(path, config):
    model = load(path, torch.float64)
    freq, scale = inv_freq(config)
    rotary = model.model.rotary_emb
    theirs = rotary.inv_freq
    if rotary.rope_type == "longrope":  # the module begins with the short list
        theirs, _ = ROPE_INIT_FUNCTIONS["longrope"](model.config, "cpu", config["max_position_embeddings"])
    if not ((theirs.double() / freq - 1).abs().max() < 1e-6) or \
            abs(rotary.attention_scaling / scale - 1) > 1e-6:
        sys.exit("golden: rotary frequencies differ from those of transformers")

    def rotary_double(self, x, position_ids):
        angle = position_ids[..., None].double() * freq
        if config["model_type"] == "deepseek_v2":
            return torch.polar(torch.full_like(angle, scale), angle)
        if config["model_type"] != "gpt_oss":
            angle = torch.cat((angle, angle), -1)
        return angle.cos() * scale, angle.sin() * scale

    rotary.forward = rotary_double.__get__(rotary, type(rotary))
    for m in model.modules():
        if type(m).__name__ == "Gemma2RMSNorm":
            m.forward = offset_norm_double.__get__(m, type(m))
        elif type(m).__name__ == "GptOssTopKRouter":
            m.forward = gpt_oss_router_double.__get__(m, type(m))
        elif type(m).__name__ in ("MixtralTopKRouter", "Qwen3MoeTopKRouter"):
            m.forward = mixtral_router_double.__get__(m, type(m))
        elif type(m).__name__.endswith("RMSNorm"):
            m.forward = norm_double.__get__(m, type(m))
        elif type(m).__name__ == "DeepseekV2TopkRouter":
            m.forward = router_double.__get__(m, type(m))
        elif type(m).__name__ == "DeepseekV3TopkRouter":
            m.forward = router3_double.__get__(m, type(m))
    return model


def run_double(model, tokens):
    """Logits in double; replaces the rotation of DeepSeek-V2 and the softmax of Gemma 2 during the run."""
    module = sys.modules[type(model).__module__]
    ours = {"apply_rotary_emb": rotate_double}
    if "gemma2" in module.__name__:
        ours["eager_attention_forward"] = eager_double
    theirs = {name: getattr(module, name) for name in ours if hasattr(module, name)}
    for name in theirs:
        setattr(module, name, ours[name])
    try:
        return logits_of(model, tokens)
    finally:
        for name, function in theirs.items():
            setattr(module, name, function)


def router_gap(model):
    """The smallest margin over the layers for the last token of the last run; inf without a router."""
    return min([float(m.gap[-1]) for m in model.modules() if hasattr(m, "gap")], default=math.inf)


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


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[None].long(), use_cache=False).logits[0]


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


def draw_weights(config, seed, gen):
    """(weights, lines of a recipe); no recipe for Llama, whose weights are kept."""
    if config["model_type"] == "llama":
        return make_weights(config, gen), None
    recipe = Recipe(seed, config.get("quantization_config"))
    recipe.model(config)
    return recipe.weights, recipe.lines


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
