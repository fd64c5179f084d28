# SPDX-License-Identifier: Apache-2.0
"""The models of transformers in double throughout, for golden.py."""

import json
import math
import sys

import torch
from golden_weights import head_dim
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


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


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[None].long(), use_cache=False).logits[0]


def router_gap(model):
    """The smallest margin over the layers for the last token of the last run; inf without a router."""
    return min([float(m.gap[-1]) for m in model.modules() if hasattr(m, "gap")], default=math.inf)
