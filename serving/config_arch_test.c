/* SPDX-License-Identifier: Apache-2.0 */
/* config_arch_test - config.json of Qwen2 and DeepSeek-V2-Lite, and what of it is refused */
#include <math.h>

#include "../conformance/harness.h"
#include "config_test.h"

static const char qwen2[] =
	"{'architectures':['Qwen2ForCausalLM'],'bos_token_id':151643,'eos_token_id':151645,"
	"'hidden_act':'silu','hidden_size':3584,'intermediate_size':18944,'max_position_embeddings':32768,"
	"'max_window_layers':28,'model_type':'qwen2','num_attention_heads':28,'num_hidden_layers':28,"
	"'num_key_value_heads':4,'rms_norm_eps':1e-06,'rope_theta':1000000.0,'sliding_window':131072,"
	"'tie_word_embeddings':false,'torch_dtype':'bfloat16','use_sliding_window':false,"
	"'vocab_size':152064}";

/* V2-Lite's. */
static const char deepseek[] =
	"{'architectures':['DeepseekV2ForCausalLM'],'attention_bias':false,'bos_token_id':100000,"
	"'eos_token_id':100001,'first_k_dense_replace':1,'hidden_act':'silu','hidden_size':2048,"
	"'intermediate_size':10944,'kv_lora_rank':512,'max_position_embeddings':163840,"
	"'model_type':'deepseek_v2','moe_intermediate_size':1408,'moe_layer_freq':1,'n_group':1,"
	"'n_routed_experts':64,'n_shared_experts':2,'norm_topk_prob':false,'num_attention_heads':16,"
	"'num_experts_per_tok':6,'num_hidden_layers':27,'num_key_value_heads':16,'q_lora_rank':null,"
	"'qk_nope_head_dim':128,'qk_rope_head_dim':64,'rms_norm_eps':1e-06,'rope_scaling':{'beta_fast':32,"
	"'beta_slow':1,'factor':40,'mscale':0.707,'mscale_all_dim':0.707,"
	"'original_max_position_embeddings':4096,'type':'yarn'},'rope_theta':10000,"
	"'routed_scaling_factor':1.0,'scoring_func':'softmax','tie_word_embeddings':false,'topk_group':1,"
	"'topk_method':'greedy','torch_dtype':'bfloat16','v_head_dim':128,'vocab_size':102400}";

static void qwen2_dense(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };
	char *text;

	if (!EXPECT(t, !parse(qwen2, NULL, &c)))
		return;
	EXPECT(t, c.arch == CAIRN_ARCH_QWEN2 && c.qkv_bias && !c.o_bias && !c.mlp_bias);
	EXPECT(t, c.head_dim == 128 && c.num_key_value_heads == 4 && !c.tie_word_embeddings);
	EXPECT(t, c.rope.scaling == CAIRN_ROPE_NONE && c.rope.attention_factor == 1);
	EXPECT(t, fabs(cairn_softmax_scale(&c) - 1 / sqrt(128)) < 1e-12);
	EXPECT(t, !c.latent.kv_lora_rank && !c.experts.num_experts && cairn_rope_dim(&c) == 128);
	/* as Qwen2.5's model cards say for long contexts: cos and sin take 0.1 ln(4) + 1 */
	text = cairn_json_text(qwen2, "'sliding_window':131072", "'rope_scaling':{'factor':4.0,"
			       "'original_max_position_embeddings':32768,'type':'yarn'}");
	if (EXPECT(t, !parse(text, NULL, &c))) {
		EXPECT(t, c.rope.scaling == CAIRN_ROPE_YARN && c.rope.beta_fast == 32 &&
		       c.rope.beta_slow == 1);
		EXPECT(t, fabs(c.rope.attention_factor - 1.1386294361119891) < 1e-12);
		EXPECT(t, fabs(cairn_softmax_scale(&c) * sqrt(128) - 1.2964769927807063) < 1e-12);
	}
	free(text);
}

static void deepseek_v2_lite(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };
	char *text;

	if (!EXPECT(t, !parse(deepseek, NULL, &c)))
		return;
	EXPECT(t, c.arch == CAIRN_ARCH_DEEPSEEK_V2 && !c.qkv_bias && !c.o_bias && !c.mlp_bias);
	EXPECT(t, c.head_dim == 192 && c.latent.q_lora_rank == 0 && c.latent.kv_lora_rank == 512);
	EXPECT(t, c.latent.nope_dim == 128 && c.latent.rope_dim == 64 && c.latent.v_dim == 128);
	EXPECT(t, c.experts.num_experts == 64 && c.experts.per_token == 6 &&
			  c.experts.intermediate_size == 1408);
	EXPECT(t, c.experts.shared_intermediate_size == 2816 && c.experts.dense_layers == 1);
	EXPECT(t, !c.experts.normalize && c.experts.scaling == 1 && cairn_rope_dim(&c) == 64);
	EXPECT(t, c.rope.scaling == CAIRN_ROPE_YARN && c.rope.factor == 40 && c.rope.attention_factor == 1);
	/* DeepSeek's own: mscale = 0.1 * 0.707 * ln(40) + 1, squared */
	EXPECT(t, fabs(cairn_softmax_scale(&c) * sqrt(192) - 1.5896261651208736) < 1e-12);
	text = cairn_json_text(deepseek, "'q_lora_rank':null", "'q_lora_rank':1536");
	EXPECT(t, !parse(text, NULL, &c) && c.latent.q_lora_rank == 1536);
	free(text);
	text = cairn_json_text(deepseek, "'n_shared_experts':2", "'n_shared_experts':null");
	EXPECT(t, !parse(text, NULL, &c) && c.experts.shared_intermediate_size == 0);
	free(text);
	text = cairn_json_text(deepseek, "'norm_topk_prob':false", "'norm_topk_prob':true");
	EXPECT(t, !parse(text, NULL, &c) && c.experts.normalize);
	free(text);
}

static const struct change qwen2_changes[] = {
	{ "'use_sliding_window':false", "'use_sliding_window':true", EOPNOTSUPP,
	  "use_sliding_window: true is not supported" },
	{ "'use_sliding_window':false", "'use_sliding_window':0", EINVAL,
	  "use_sliding_window: must be true or" },
	{ "'max_window_layers':28", "'layer_types':['full_attention','sliding_attention']", EOPNOTSUPP,
	  "layer_types: \"sliding_attention\" is not supported (full_attention is)" },
	{ "'max_window_layers':28", "'layer_types':[7]", EINVAL, "layer_types[0]: must be a string" },
	{ "'num_key_value_heads':4,", "", EINVAL, "num_key_value_heads: is missing" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn','factor':4,'truncate':false}", EOPNOTSUPP,
	  "rope_scaling.truncate: false is not supported" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn','factor':4,'mscale':1}", EOPNOTSUPP,
	  "rope_scaling.mscale: is not supported without mscale_all_dim" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn','factor':4,'beta_slow':32}", EINVAL,
	  "rope_scaling.beta_slow: 32 must be below beta_fast 32" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn'}", EINVAL,
	  "rope_scaling.factor: is missing" },
};

static const struct change deepseek_changes[] = {
	{ "'deepseek_v2'", "'deepseek_v3'", EOPNOTSUPP, "model_type: \"deepseek_v3\" is not supported" },
	{ "'topk_method':'greedy'", "'topk_method':'group_limited_greedy'", EOPNOTSUPP,
	  "topk_method: \"group_limited_greedy\" is not supported (greedy is)" },
	{ "'scoring_func':'softmax'", "'scoring_func':'sigmoid'", EOPNOTSUPP,
	  "scoring_func: \"sigmoid\" is not supported (softmax is)" },
	{ "'moe_layer_freq':1", "'moe_layer_freq':2", EOPNOTSUPP, "moe_layer_freq: 2 is not supported" },
	{ "'norm_topk_prob':false,'num_attention_heads':16,'num_experts_per_tok':6,'num_hidden_layers':27,"
	  "'num_key_value_heads':16", "'num_attention_heads':16,'num_experts_per_tok':6,"
	  "'num_hidden_layers':27,'num_key_value_heads':8", EINVAL,
	  "num_key_value_heads: must be num_attention_heads 16, is 8" },
	{ "'routed_scaling_factor':1.0", "'routed_scaling_factor':0", EINVAL,
	  "routed_scaling_factor: must be above 0" },
	{ "'attention_bias':false", "'attention_bias':true", EOPNOTSUPP,
	  "attention_bias: true is not supported" },
	{ "'attention_bias':false", "'mlp_bias':true", EOPNOTSUPP, "mlp_bias: true is not supported" },
	{ "'attention_bias':false", "'rope_interleave':false", EOPNOTSUPP,
	  "rope_interleave: false is not supported" },
	{ "1e-06", "1e-05", EOPNOTSUPP, "rms_norm_eps: 1e-05 is not supported" },
	{ "'q_lora_rank':null,", "", EINVAL, "q_lora_rank: is missing" },
	{ "'q_lora_rank':null", "'q_lora_rank':0", EINVAL, "q_lora_rank: must be 1 to" },
	{ "'kv_lora_rank':512,", "", EINVAL, "kv_lora_rank: is missing" },
	{ "'kv_lora_rank':512", "'kv_lora_rank':null", EINVAL, "kv_lora_rank: is null" },
	{ "'qk_nope_head_dim':128,", "", EINVAL, "qk_nope_head_dim: is missing" },
	{ "'qk_rope_head_dim':64,", "", EINVAL, "qk_rope_head_dim: is missing" },
	{ "'qk_rope_head_dim':64", "'qk_rope_head_dim':63", EINVAL,
	  "qk_rope_head_dim, qk_nope_head_dim: must be" },
	{ "'v_head_dim':128,", "", EINVAL, "v_head_dim: is missing" },
	{ "'num_attention_heads':16", "'num_attention_heads':1024", EINVAL,
	  "num_attention_heads: 1024 heads of 128 + 64 and 128 exceed" },
	{ "'n_routed_experts':64,", "", EINVAL, "n_routed_experts: is missing" },
	{ "'num_experts_per_tok':6,", "", EINVAL, "num_experts_per_tok: is missing" },
	{ "'num_experts_per_tok':6", "'num_experts_per_tok':65", EINVAL,
	  "num_experts_per_tok: must be 1 to 64" },
	{ "'moe_intermediate_size':1408,", "", EINVAL, "moe_intermediate_size: is missing" },
	{ "'n_shared_experts':2", "'n_shared_experts':1000000", EINVAL, "n_shared_experts: must be 0 to" },
	{ "'first_k_dense_replace':1", "'first_k_dense_replace':27", EINVAL,
	  "first_k_dense_replace: must be 0 to 26, is 27" },
	{ "'mscale':0.707", "'mscale':1.0", EOPNOTSUPP,
	  "rope_scaling.mscale: with latent attention cos and sin must have the factor 1" },
	{ "'mscale':0.707,'mscale_all_dim':0.707,", "", EOPNOTSUPP,
	  "rope_scaling.mscale: with latent attention cos and sin must have the factor 1" },
};

static void refused(struct cairn_test *t)
{
	struct cairn_model_config c;
	char *text, *both;

	refused_of(t, qwen2, qwen2_changes, ARRAY_SIZE(qwen2_changes));
	refused_of(t, deepseek, deepseek_changes, ARRAY_SIZE(deepseek_changes));
	/* two keys at once; cairn_json_text() leaves " */
	text = cairn_json_text(deepseek, "'norm_topk_prob':false", "'norm_topk_prob':true");
	both = cairn_json_text(text, "\"routed_scaling_factor\":1.0", "'routed_scaling_factor':2.5");
	EXPECT(t, parse(both, NULL, &c) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(),
			"routed_scaling_factor: 2.5 is not supported together with norm_topk");
	free(text);
	free(both);
}

static const struct cairn_unit units[] = {
	{ "qwen2_dense", qwen2_dense }, { "deepseek_v2_lite", deepseek_v2_lite }, { "refused", refused },
};

const struct cairn_family cairn_config_arch_family = {
	.stage = "serving", .name = "config_arch", .units = units, .num_units = ARRAY_SIZE(units),
};
