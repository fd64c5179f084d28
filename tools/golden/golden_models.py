# SPDX-License-Identifier: Apache-2.0
"""The models of golden.py: for each, its config.json and what is computed of it."""

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
