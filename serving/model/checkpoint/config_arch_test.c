/* SPDX-License-Identifier: Apache-2.0 */
/* config_arch_test - config.json of architectures other than Llama, and what is refused */
#include <math.h>

#include "conformance/harness.h"
#include "serving/model/checkpoint/config_test.h"

static const char qwen2[] =
	"{'architectures':['Qwen2ForCausalLM'],'bos_token_id':151643,'eos_token_id':151645,"
	"'hidden_act':'silu','hidden_size':3584,'intermediate_size':18944,'max_position_embeddings':32768,"
	"'max_window_layers':28,'model_type':'qwen2','num_attention_heads':28,'num_hidden_layers':28,"
	"'num_key_value_heads':4,'rms_norm_eps':1e-06,'rope_theta':1000000.0,'sliding_window':131072,"
	"'tie_word_embeddings':false,'torch_dtype':'bfloat16','use_sliding_window':false,"
	"'vocab_size':152064}";

/* V2-Lite */
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

/* V3, with the keys of transformers and those of DeepSeek's own files */
static const char deepseek_v3[] =
	"{'architectures':['DeepseekV3ForCausalLM'],'attention_bias':false,'bos_token_id':0,"
	"'eos_token_id':1,'ep_size':1,'first_k_dense_replace':3,'hidden_act':'silu','hidden_size':7168,"
	"'intermediate_size':18432,'kv_lora_rank':512,'max_position_embeddings':163840,"
	"'model_type':'deepseek_v3','moe_intermediate_size':2048,'moe_layer_freq':1,'n_group':8,"
	"'n_routed_experts':256,'n_shared_experts':1,'norm_topk_prob':true,'num_attention_heads':128,"
	"'num_experts_per_tok':8,'num_hidden_layers':61,'num_key_value_heads':128,"
	"'num_nextn_predict_layers':1,'q_lora_rank':1536,'qk_nope_head_dim':128,'qk_rope_head_dim':64,"
	"'quantization_config':{'activation_scheme':'dynamic','fmt':'e4m3','quant_method':'fp8',"
	"'weight_block_size':[128,128]},'rms_norm_eps':1e-06,'rope_scaling':{'beta_fast':32,'beta_slow':1,"
	"'factor':40,'mscale':1.0,'mscale_all_dim':1.0,'original_max_position_embeddings':4096,"
	"'type':'yarn'},'rope_theta':10000,'routed_scaling_factor':2.5,'scoring_func':'sigmoid',"
	"'tie_word_embeddings':false,'topk_group':4,'topk_method':'noaux_tc','torch_dtype':'bfloat16',"
	"'v_head_dim':128,'vocab_size':129280}";

/* 20B, except for the number of layers */
static const char gpt_oss[] =
	"{'architectures':['GptOssForCausalLM'],'attention_bias':true,'eos_token_id':200002,"
	"'experts_per_token':4,'head_dim':64,'hidden_act':'silu','hidden_size':2880,"
	"'initial_context_length':4096,'intermediate_size':2880,'layer_types':['sliding_attention',"
	"'full_attention'],'max_position_embeddings':131072,'model_type':'gpt_oss',"
	"'num_attention_heads':64,'num_experts_per_tok':4,'num_hidden_layers':2,'num_key_value_heads':8,"
	"'num_local_experts':32,'output_router_logits':false,'pad_token_id':199999,"
	"'quantization_config':{'modules_to_not_convert':['model.layers.*.self_attn'],"
	"'quant_method':'mxfp4'},'rms_norm_eps':1e-05,'rope_scaling':{'beta_fast':32.0,'beta_slow':1.0,"
	"'factor':32.0,'original_max_position_embeddings':4096,'rope_type':'yarn','truncate':false},"
	"'rope_theta':150000,'sliding_window':128,'swiglu_limit':7.0,'tie_word_embeddings':false,"
	"'vocab_size':201088}";

/* v0.1, with its window */
static const char mistral[] =
	"{'architectures':['MistralForCausalLM'],'bos_token_id':1,'eos_token_id':2,'hidden_act':'silu',"
	"'hidden_size':4096,'initializer_range':0.02,'intermediate_size':14336,"
	"'max_position_embeddings':32768,'model_type':'mistral','num_attention_heads':32,"
	"'num_hidden_layers':32,'num_key_value_heads':8,'rms_norm_eps':1e-05,'rope_theta':10000.0,"
	"'sliding_window':4096,'tie_word_embeddings':false,'torch_dtype':'bfloat16','vocab_size':32000}";

/* 8B, as written by transformers 5; two layers */
static const char qwen3[] =
	"{'architectures':['Qwen3ForCausalLM'],'attention_bias':false,'bos_token_id':151643,"
	"'dtype':'bfloat16','eos_token_id':151645,'head_dim':128,'hidden_act':'silu','hidden_size':4096,"
	"'intermediate_size':12288,"
	"'layer_types':['full_attention','full_attention'],'max_position_embeddings':40960,"
	"'max_window_layers':36,'model_type':'qwen3','num_attention_heads':32,'num_hidden_layers':2,"
	"'num_key_value_heads':8,'rms_norm_eps':1e-06,'rope_parameters':{'rope_theta':1000000,"
	"'rope_type':'default'},'sliding_window':null,'tie_word_embeddings':false,"
	"'use_sliding_window':false,'vocab_size':151936}";

/* 27B, except for the number of layers; its scalar differs from its head_dim. */
static const char gemma2[] =
	"{'architectures':['Gemma2ForCausalLM'],'attention_bias':false,'attn_logit_softcapping':50.0,"
	"'bos_token_id':2,'cache_implementation':'hybrid','eos_token_id':1,'final_logit_softcapping':30.0,"
	"'head_dim':128,'hidden_act':'gelu_pytorch_tanh','hidden_activation':'gelu_pytorch_tanh',"
	"'hidden_size':4608,'intermediate_size':36864,'max_position_embeddings':8192,'model_type':'gemma2',"
	"'num_attention_heads':32,'num_hidden_layers':5,'num_key_value_heads':16,'pad_token_id':0,"
	"'query_pre_attn_scalar':144,'rms_norm_eps':1e-06,'rope_theta':10000.0,'sliding_window':4096,"
	"'torch_dtype':'float32','vocab_size':256000}";

/* 30B-A3B with three layers, the first without experts, and a window that is not used */
static const char qwen3_moe[] =
	"{'architectures':['Qwen3MoeForCausalLM'],'attention_bias':false,'decoder_sparse_step':1,"
	"'head_dim':128,'hidden_act':'silu','hidden_size':2048,'intermediate_size':6144,"
	"'max_position_embeddings':40960,'mlp_only_layers':[0],'model_type':'qwen3_moe',"
	"'moe_intermediate_size':768,'norm_topk_prob':true,'num_attention_heads':32,'num_experts':128,"
	"'num_experts_per_tok':8,'num_hidden_layers':3,'num_key_value_heads':4,'rms_norm_eps':1e-06,"
	"'rope_theta':1000000.0,'sliding_window':512,'use_sliding_window':false,'vocab_size':151936}";

static const char mixtral[] =
	"{'architectures':['MixtralForCausalLM'],'bos_token_id':1,'eos_token_id':2,'hidden_act':'silu',"
	"'hidden_size':4096,'intermediate_size':14336,'max_position_embeddings':32768,'model_type':'mixtral',"
	"'num_attention_heads':32,'num_experts_per_tok':2,'num_hidden_layers':32,'num_key_value_heads':8,"
	"'num_local_experts':8,'output_router_logits':false,'rms_norm_eps':1e-05,'rope_theta':1000000.0,"
	"'router_aux_loss_coef':0.02,'sliding_window':null,'tie_word_embeddings':false,"
	"'torch_dtype':'bfloat16','vocab_size':32000}";

static const char windowed[] =
	"{'head_dim':128,'hidden_size':4096,'intermediate_size':12288,'max_position_embeddings':40960,"
	"'max_window_layers':2,'model_type':'qwen3','num_attention_heads':32,'num_hidden_layers':5,"
	"'num_key_value_heads':8,'sliding_window':512,'use_sliding_window':true,'vocab_size':151936}";

/* Returns which of the first seven layers have a window, as a string of W and -. */
static const char *windows(const struct cairn_model_config *c, char text[8])
{
	int n = c->num_hidden_layers < 7 ? c->num_hidden_layers : 7;

	for (int i = 0; i < n; i++)
		text[i] = cairn_layer_window(c, i) ? 'W' : '-';
	text[n] = 0;
	return text;
}

/* Checks that a valid config, with `from` replaced by `to`, has these windows of this size. */
static void expect_windows(struct cairn_test *t, const char *whole, const char *from, const char *to,
			   int32_t size, const char *want)
{
	char *text = cairn_json_text(whole, from, to), got[8];
	struct cairn_model_config c = { 0 };

	if (!EXPECT(t, text && !parse(text, NULL, &c)) || !EXPECT(t, c.window == size) ||
	    !EXPECT(t, !strcmp(windows(&c, got), want)))
		cairn_note(t, "%s: %s", to, cairn_last_error());
	free(text);
}

static void sliding_windows(struct cairn_test *t)
{
	expect_windows(t, mistral, "32768", "32768", 4096, "WWWWWWW");
	expect_windows(t, mistral, "'sliding_window':4096", "'sliding_window':null", 0, "-------");
	expect_windows(t, mistral, "'sliding_window':4096,", "", 4096, "WWWWWWW");
	/* a window that no context can exceed is dropped */
	expect_windows(t, mistral, "'sliding_window':4096", "'sliding_window':32768", 0, "-------");
	expect_windows(t, mixtral, "'sliding_window':null,", "", 0, "-------");
	expect_windows(t, mixtral, "'sliding_window':null", "'sliding_window':1000", 1000, "WWWWWWW");
	expect_windows(t, gemma2, "4096", "4096", 4096, "W-W-W");
	expect_windows(t, gemma2, "'sliding_window':4096",
		       "'sliding_window':17,'layer_types':['full_attention',"
		       "'sliding_attention','full_attention','full_attention','sliding_attention']", 17,
		       "-W--W");
	expect_windows(t, gemma2, "'sliding_window':4096",
		       "'sliding_window':null,'layer_types':['full_attention',"
		       "'full_attention','full_attention','full_attention','full_attention']", 0, "-----");
	expect_windows(t, qwen2, "'use_sliding_window':false", "'use_sliding_window':true", 0, "-------");
	expect_windows(t, qwen2, "'max_window_layers':28", "'max_window_layers':3", 0, "-------");
	expect_windows(t, qwen3, "'sliding_window':null", "'sliding_window':100", 0, "--");
	expect_windows(t, windowed, "512", "512", 512, "--WWW");
	expect_windows(t, windowed, "'max_window_layers':2", "'max_window_layers':28", 0, "-----");
	expect_windows(t, windowed, "'use_sliding_window':true", "'use_sliding_window':false", 0, "-----");
	expect_windows(t, windowed, "'sliding_window':512", "'sliding_window':null", 0, "-----");
	expect_windows(t, windowed, "'sliding_window':512",
		       "'sliding_window':8,'layer_types':['sliding_attention',"
		       "'full_attention','full_attention','full_attention','full_attention']", 8, "W----");
}

static void newer_dense(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };

	if (EXPECT(t, !parse(mistral, NULL, &c)))
		EXPECT(t, c.arch == CAIRN_ARCH_MISTRAL && !c.qkv_bias && !c.head_norms && c.head_dim == 128 &&
		       c.hidden_act == CAIRN_ACT_SILU && !c.tie_word_embeddings && !c.block_norms);
	if (EXPECT(t, !parse(qwen3, NULL, &c)))
		EXPECT(t, c.arch == CAIRN_ARCH_QWEN3 && !c.qkv_bias && !c.o_bias && c.head_norms &&
		       c.head_dim == 128 && c.rope.theta == 1000000 && c.dtype == CAIRN_BF16);
	if (!EXPECT(t, !parse(gemma2, NULL, &c)))
		return;
	EXPECT(t, c.arch == CAIRN_ARCH_GEMMA2 && c.hidden_act == CAIRN_ACT_GELU_TANH && c.block_norms);
	EXPECT(t, c.norm_offset == 1 && c.embed_scale && c.tie_word_embeddings && !c.qkv_bias);
	EXPECT(t, c.attn_softcap == 50 && c.logit_softcap == 30 && c.head_dim == 128);
	EXPECT(t, fabs(cairn_softmax_scale(&c) - 1 / sqrt(144)) < 1e-12);
}

static void gemma2_defaults(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };
	char *text = cairn_json_text(gemma2, "'attn_logit_softcapping':50.0,",
				     "'attn_logit_softcapping':null,");

	EXPECT(t, text && !parse(text, NULL, &c) && c.attn_softcap == 0 && c.logit_softcap == 30);
	free(text);
	text = cairn_json_text(gemma2, "'final_logit_softcapping':30.0,", "");
	EXPECT(t, text && !parse(text, NULL, &c) && c.logit_softcap == 30);
	free(text);
	text = cairn_json_text(gemma2, "'head_dim':128,'hidden_act':'gelu_pytorch_tanh',"
			       "'hidden_activation':'gelu_pytorch_tanh',", "'hidden_act':'gelu',");
	EXPECT(t, text && !parse(text, NULL, &c) && c.head_dim == 256);
	free(text);
}

static void mixtral_experts(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };

	if (!EXPECT(t, !parse(mixtral, NULL, &c)))
		return;
	EXPECT(t, c.arch == CAIRN_ARCH_MIXTRAL && c.experts.num_experts == 8 && c.experts.per_token == 2);
	EXPECT(t, c.experts.intermediate_size == 14336 && !c.experts.shared_intermediate_size);
	EXPECT(t, c.experts.dense_layers == 0 && c.experts.normalize && c.experts.scaling == 1);
	EXPECT(t, c.rope.theta == 1000000 && !c.qkv_bias);
}

static void qwen3_moe_experts(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };
	char *text;

	if (!EXPECT(t, !parse(qwen3_moe, NULL, &c)))
		return;
	EXPECT(t, c.arch == CAIRN_ARCH_QWEN3_MOE && c.head_norms && !c.qkv_bias && c.head_dim == 128);
	EXPECT(t, c.experts.num_experts == 128 && c.experts.per_token == 8 && c.experts.normalize);
	EXPECT(t, c.experts.intermediate_size == 768 && !c.experts.shared_intermediate_size);
	EXPECT(t, c.experts.dense_layers == 1 && c.experts.scaling == 1 && !c.window);
	text = cairn_json_text(qwen3_moe, "'mlp_only_layers':[0]", "'mlp_only_layers':null");
	EXPECT(t, text && !parse(text, NULL, &c) && c.experts.dense_layers == 0);
	free(text);
	text = cairn_json_text(qwen3_moe, "'norm_topk_prob':true,", "");
	EXPECT(t, text && !parse(text, NULL, &c) && !c.experts.normalize);
	free(text);
	text = cairn_json_text(qwen3_moe, "'use_sliding_window':false", "'use_sliding_window':true");
	EXPECT(t, text && !parse(text, NULL, &c) && c.window == 512 && cairn_layer_window(&c, 0) == 512);
	free(text);
}

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
	/* YaRN as Qwen2.5's model cards give it for long contexts: the
	 * factor of cos and sin is 0.1 ln(4) + 1. */
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
	text = cairn_json_text(deepseek, "'rms_norm_eps':1e-06", "'rms_norm_eps':1e-05");
	EXPECT(t, cairn_config_has_one_eps(&c));
	EXPECT(t, text && !parse(text, NULL, &c) && c.rms_norm_eps == 1e-5 && !cairn_config_has_one_eps(&c));
	free(text);
	/* DeepSeek's scale: the square of mscale = 0.1 * 0.707 * ln(40) + 1. */
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

static void deepseek_groups(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };
	char *text, *both;

	if (!EXPECT(t, !parse(deepseek_v3, NULL, &c)))
		return;
	EXPECT(t, c.arch == CAIRN_ARCH_DEEPSEEK_V3 && c.stored_fp8 && c.num_nextn_layers == 1);
	EXPECT(t, c.head_dim == 192 && c.latent.q_lora_rank == 1536 && c.num_attention_heads == 128);
	EXPECT(t, c.experts.num_experts == 256 && c.experts.per_token == 8 && c.experts.dense_layers == 3);
	EXPECT(t, c.experts.shared_intermediate_size == 2048 && c.experts.scaling == 2.5);
	EXPECT(t, c.experts.sigmoid && c.experts.normalize);
	EXPECT(t, c.experts.num_groups == 8 && c.experts.groups_per_token == 4);
	/* the square of 0.1 ln(40) + 1 */
	EXPECT(t, fabs(cairn_softmax_scale(&c) * sqrt(192) - 1.8738542070926265) < 1e-12);
	/* defaults of transformers for keys that DeepSeek's own files have */
	text = cairn_json_text(deepseek_v3, "'norm_topk_prob':true,", "");
	both = cairn_json_text(text, "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",", "");
	EXPECT(t, !parse(both, NULL, &c) && c.experts.normalize && c.experts.scaling == 2.5);
	free(text);
	free(both);
	text = cairn_json_text(deepseek_v3, "'n_group':8", "'n_group':1");
	both = cairn_json_text(text, "\"topk_group\":4", "'topk_group':1");
	EXPECT(t, !parse(both, NULL, &c) && c.experts.num_groups == 0 && c.experts.groups_per_token == 0);
	free(text);
	free(both);
	text = cairn_json_text(deepseek, "'topk_method':'greedy'", "'topk_method':'group_limited_greedy'");
	both = cairn_json_text(text, "\"n_group\":1", "'n_group':4");
	EXPECT(t, !parse(both, NULL, &c) && c.experts.num_groups == 4 && c.experts.groups_per_token == 1);
	EXPECT(t, !c.experts.sigmoid && !c.stored_fp8);
	free(text);
	free(both);
	/* without group_limited_greedy, groups have no effect */
	text = cairn_json_text(deepseek, "'n_group':1", "'n_group':4");
	EXPECT(t, !parse(text, NULL, &c) && c.experts.num_groups == 0);
	free(text);
}

static void gpt_oss_20b(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 }, shape;
	float f[32], of_shape[32];
	char *text;

	if (!EXPECT(t, !parse(gpt_oss, NULL, &c)) || !EXPECT(t, !cairn_model_shape("gpt-oss-20b", &shape)))
		return;
	EXPECT(t, c.arch == CAIRN_ARCH_GPT_OSS && c.stored_mxfp4 && !c.stored_fp8 && c.sinks);
	EXPECT(t, c.qkv_bias && c.o_bias && !c.mlp_bias && c.head_dim == 64 && c.experts.biases);
	EXPECT(t, c.experts.num_experts == 32 && c.experts.per_token == 4 && c.experts.normalize);
	EXPECT(t, c.experts.intermediate_size == 2880 && c.experts.scaling == 1 && !c.experts.sigmoid);
	EXPECT(t, c.experts.clamp_alpha == 1.702 && c.experts.clamp_limit == 7);
	EXPECT(t, cairn_layer_window(&c, 0) == 128 && cairn_layer_window(&c, 1) == 0);
	/* the square of 0.1 ln(32) + 1 */
	EXPECT(t, fabs(cairn_softmax_scale(&c) * 8 - 1.8132603) < 1e-6);
	/* within 4096 positions element 8.09 turns 32 times, and element 17.4 once */
	cairn_rope_frequencies(&c, f);
	cairn_rope_frequencies(&shape, of_shape);
	for (int i = 0; i < 32; i++) {
		double low = 32 * log(4096 / (64 * M_PI)) / log(150000);
		double high = 32 * log(4096 / (2 * M_PI)) / log(150000);
		double want = pow(150000, -i / 32.0), slow = fmin(fmax((i - low) / (high - low), 0), 1);

		EXPECT(t, fabs((double)f[i] / (want * (1 - slow) + want / 32 * slow) - 1) < 2e-6);
		EXPECT(t, f[i] == of_shape[i]);
	}
	EXPECT(t, fabs(cairn_softmax_scale(&shape) - cairn_softmax_scale(&c)) < 1e-9);
	text = cairn_json_text(gpt_oss, "'layer_types':['sliding_attention','full_attention'],", "");
	EXPECT(t, !parse(text, NULL, &c) && cairn_layer_window(&c, 0) == 128 && !cairn_layer_window(&c, 1));
	free(text);
}

static const struct change gpt_oss_changes[] = {
	{ "'quant_method':'mxfp4'", "'quant_method':'bitsandbytes'", EOPNOTSUPP,
	  "quant_method: \"bitsandbytes\" is not supported" },
	{ "'num_local_experts':32,", "", EINVAL, "num_local_experts: is missing" },
	{ "'num_experts_per_tok':4", "'num_experts_per_tok':33", EINVAL,
	  "num_experts_per_tok: must be 1 to 32" },
	{ "'swiglu_limit':7.0", "'swiglu_limit':0", EINVAL, "swiglu_limit: must be" },
	{ "'swiglu_limit':7.0", "'swiglu_limit':'7'", EINVAL, "swiglu_limit: must be" },
	{ "'rope_scaling':{'beta_fast':32.0,'beta_slow':1.0,'factor':32.0,"
	  "'original_max_position_embeddings':4096,'rope_type':'yarn','truncate':false},", "", EINVAL,
	  "rope_scaling: is missing" },
	{ "'full_attention']", "'full_attention','full_attention']", EINVAL, "layer_types: has 3 entries" },
};

static const struct change qwen2_changes[] = {
	{ "'use_sliding_window':false", "'use_sliding_window':0", EINVAL,
	  "use_sliding_window: must be true or" },
	{ "'max_window_layers':28", "'layer_types':['full_attention','sliding_attention']", EINVAL,
	  "layer_types: has 2 entries for 28 layers" },
	{ "'max_window_layers':28", "'max_window_layers':-1", EINVAL, "max_window_layers: must be 0 to" },
	{ "'num_key_value_heads':4,", "", EINVAL, "num_key_value_heads: is missing" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn','factor':4,'truncate':0}", EINVAL,
	  "rope_scaling.truncate: must be" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn','factor':4,'mscale':1}", EOPNOTSUPP,
	  "rope_scaling.mscale: is not supported without mscale_all_dim" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn','factor':4,'beta_slow':32}", EINVAL,
	  "rope_scaling.beta_slow: 32 must be below beta_fast 32" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn','factor':4,'rope_theta':1,"
	  "'original_max_position_embeddings':1024}", EINVAL,
	  "rope_theta: must be above 1 with yarn, is 1" },
	{ "'sliding_window':131072", "'rope_scaling':{'type':'yarn'}", EINVAL,
	  "rope_scaling.factor: is missing" },
};

static const struct change deepseek_changes[] = {
	{ "'deepseek_v2'", "'deepseek_v3'", EINVAL, "architectures: DeepseekV2ForCausalLM does not match" },
	{ "'topk_method':'greedy'", "'topk_method':'noaux_tc'", EOPNOTSUPP,
	  "topk_method: \"noaux_tc\" is not supported (greedy, group_limited_greedy are)" },
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
	{ "'q_lora_rank':null,", "", EINVAL, "q_lora_rank: is missing" },
	{ "'q_lora_rank':null", "'q_lora_rank':0", EINVAL, "q_lora_rank: must be 1 to" },
	{ "'kv_lora_rank':512,", "", EINVAL, "kv_lora_rank: is missing" },
	{ "'kv_lora_rank':512", "'kv_lora_rank':null", EINVAL, "kv_lora_rank: is null" },
	{ "'qk_nope_head_dim':128,", "", EINVAL, "qk_nope_head_dim: is missing" },
	{ "'qk_rope_head_dim':64,", "", EINVAL, "qk_rope_head_dim: is missing" },
	{ "'qk_nope_head_dim':128", "'qk_nope_head_dim':1024", EINVAL, "1024 + 64 exceed 1024" },
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
	{ "'n_shared_experts':2,", "", EINVAL, "n_shared_experts: is missing" },
	{ "'n_shared_experts':2", "'n_shared_experts':1000000", EINVAL, "n_shared_experts: must be 0 to" },
	{ "'first_k_dense_replace':1", "'first_k_dense_replace':27", EINVAL,
	  "first_k_dense_replace: must be 0 to 26, is 27" },
	{ "'mscale':0.707", "'mscale':1.0", EOPNOTSUPP,
	  "rope_scaling.mscale: with latent attention cos and sin must have the factor 1" },
	{ "'mscale':0.707,'mscale_all_dim':0.707,", "", EOPNOTSUPP,
	  "rope_scaling.mscale: with latent attention cos and sin must have the factor 1" },
};

static const struct change deepseek_v3_changes[] = {
	{ "'topk_method':'noaux_tc'", "'topk_method':'greedy'", EOPNOTSUPP,
	  "topk_method: \"greedy\" is not supported (noaux_tc is)" },
	{ "'scoring_func':'sigmoid'", "'scoring_func':'softmax'", EOPNOTSUPP,
	  "scoring_func: \"softmax\" is not supported (sigmoid is)" },
	{ "'n_group':8,", "", EINVAL, "n_group: is missing" },
	{ "'n_group':8", "'n_group':7", EINVAL, "n_group: 7 does not divide n_routed_experts 256" },
	{ "'n_group':8", "'n_group':256", EINVAL, "n_group: 256 groups have fewer than 2 experts each" },
	{ "'n_group':8", "'n_group':0", EINVAL, "n_group: must be 1 to 256" },
	{ "'topk_group':4,", "", EINVAL, "topk_group: is missing" },
	{ "'topk_group':4", "'topk_group':9", EINVAL, "topk_group: must be 1 to 8" },
	{ "'num_experts_per_tok':8", "'num_experts_per_tok':129", EINVAL,
	  "topk_group: 4 groups of 32 experts are fewer than num_experts_per_tok 129" },
	{ "'moe_layer_freq':1", "'moe_layer_freq':2", EOPNOTSUPP, "moe_layer_freq: 2 is not supported" },
	{ "'attention_bias':false", "'rope_interleave':false", EOPNOTSUPP,
	  "rope_interleave: false is not supported" },
	{ "'first_k_dense_replace':3", "'first_k_dense_replace':61", EINVAL,
	  "first_k_dense_replace: must be 0 to 60, is 61" },
	{ "'num_hidden_layers':61", "'num_hidden_layers':3", EINVAL,
	  "first_k_dense_replace: must be 0 to 2" },
};

#define TYPES	"'layer_types':['full_attention','full_attention']"

static const struct change qwen3_changes[] = {
	{ TYPES, "'layer_types':['full_attention',7]", EINVAL, "layer_types[1]: must be a string" },
	{ TYPES, "'layer_types':['full_attention','linear_attention']", EOPNOTSUPP,
	  "layer_types: \"linear_attention\" is not supported (full_attention, sliding_attention are)" },
	{ TYPES, "'layer_types':['full_attention','sliding_attention']", EINVAL,
	  "layer_types[1]: sliding_attention, but there is no sliding_window" },
	{ "'num_key_value_heads':8,", "", EINVAL, "num_key_value_heads: is missing" },
	{ "'qwen3'", "'qwen3_next'", EOPNOTSUPP, "model_type: \"qwen3_next\" is not supported" },
};

static const struct change mistral_changes[] = {
	{ "'sliding_window':4096", "'sliding_window':0", EINVAL, "sliding_window: must be 1 to" },
	{ "'sliding_window':4096", "'sliding_window':'all'", EINVAL, "sliding_window: must be an integer" },
	{ "'sliding_window':4096", "'layer_types':['full_attention']", EOPNOTSUPP,
	  "layer_types: is not supported with this model_type" },
	{ "'num_key_value_heads':8,", "", EINVAL, "num_key_value_heads: is missing" },
	{ "'silu'", "'gelu'", EOPNOTSUPP, "hidden_act: \"gelu\" is not supported" },
};

static const struct change gemma2_changes[] = {
	{ "'hidden_activation':'gelu_pytorch_tanh'", "'hidden_activation':'gelu'", EOPNOTSUPP,
	  "hidden_activation: \"gelu\" is not supported (gelu_pytorch_tanh is)" },
	{ "'attn_logit_softcapping':50.0", "'attn_logit_softcapping':0", EINVAL,
	  "attn_logit_softcapping: must be above 0" },
	{ "'final_logit_softcapping':30.0", "'final_logit_softcapping':-1", EINVAL,
	  "final_logit_softcapping: must be above 0" },
	{ "'query_pre_attn_scalar':144", "'query_pre_attn_scalar':0", EINVAL,
	  "query_pre_attn_scalar: must be above 0" },
	{ "'pad_token_id':0", "'use_bidirectional_attention':true", EOPNOTSUPP,
	  "use_bidirectional_attention: true is not supported" },
};

static const struct change mixtral_changes[] = {
	{ "'num_local_experts':8,", "", EINVAL, "num_local_experts: is missing" },
	{ "'num_experts_per_tok':2,", "", EINVAL, "num_experts_per_tok: is missing" },
	{ "'num_experts_per_tok':2", "'num_experts_per_tok':9", EINVAL,
	  "num_experts_per_tok: must be 1 to 8" },
};

static const struct change qwen3_moe_changes[] = {
	{ "'decoder_sparse_step':1", "'decoder_sparse_step':2", EOPNOTSUPP,
	  "decoder_sparse_step: 2 is not supported (1 is)" },
	{ "'mlp_only_layers':[0]", "'mlp_only_layers':[1]", EOPNOTSUPP,
	  "mlp_only_layers[0]: only the first layers may lack experts" },
	{ "'mlp_only_layers':[0]", "'mlp_only_layers':['0']", EOPNOTSUPP, "mlp_only_layers[0]: only the" },
	{ "'mlp_only_layers':[0]", "'mlp_only_layers':[0,1,2]", EOPNOTSUPP, "no layer has experts" },
	{ "'num_experts':128", "'num_experts':0", EINVAL, "num_experts: must be 1 to" },
	{ "'num_experts_per_tok':8", "'num_experts_per_tok':129", EINVAL,
	  "num_experts_per_tok: must be 1 to 128, is 129" },
	{ "'num_key_value_heads':4,", "", EINVAL, "num_key_value_heads: is missing" },
};

static void refused(struct cairn_test *t)
{
	struct cairn_model_config c;
	char *text, *both;

	refused_of(t, qwen2, qwen2_changes, ARRAY_SIZE(qwen2_changes));
	refused_of(t, deepseek, deepseek_changes, ARRAY_SIZE(deepseek_changes));
	refused_of(t, deepseek_v3, deepseek_v3_changes, ARRAY_SIZE(deepseek_v3_changes));
	refused_of(t, qwen3, qwen3_changes, ARRAY_SIZE(qwen3_changes));
	refused_of(t, mistral, mistral_changes, ARRAY_SIZE(mistral_changes));
	refused_of(t, gemma2, gemma2_changes, ARRAY_SIZE(gemma2_changes));
	refused_of(t, mixtral, mixtral_changes, ARRAY_SIZE(mixtral_changes));
	refused_of(t, qwen3_moe, qwen3_moe_changes, ARRAY_SIZE(qwen3_moe_changes));
	refused_of(t, gpt_oss, gpt_oss_changes, ARRAY_SIZE(gpt_oss_changes));
	/* Two keys at once; cairn_json_text() has turned ' into ". */
	text = cairn_json_text(deepseek, "'norm_topk_prob':false", "'norm_topk_prob':true");
	both = cairn_json_text(text, "\"routed_scaling_factor\":1.0", "'routed_scaling_factor':2.5");
	EXPECT(t, parse(both, NULL, &c) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(),
			"routed_scaling_factor: 2.5 is not supported together with norm_topk");
	free(text);
	free(both);
}

static const struct cairn_unit units[] = {
	{ "qwen2_dense", qwen2_dense }, { "deepseek_v2_lite", deepseek_v2_lite },
	{ "deepseek_groups", deepseek_groups }, { "newer_dense", newer_dense },
	{ "gemma2_defaults", gemma2_defaults }, { "mixtral_experts", mixtral_experts },
	{ "qwen3_moe_experts", qwen3_moe_experts }, { "gpt_oss_20b", gpt_oss_20b },
	{ "sliding_windows", sliding_windows }, { "refused", refused },
};

const struct cairn_family cairn_config_arch_family = {
	.stage = "serving", .name = "config_arch", .units = units, .num_units = ARRAY_SIZE(units),
};
