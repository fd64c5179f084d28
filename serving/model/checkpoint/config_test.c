/* SPDX-License-Identifier: Apache-2.0 */
/* config_test - reads real checkpoints' config.json files, and changes one key at a time */
#include "conformance/harness.h"
#include "serving/model/checkpoint/config_test.h"

/* As transformers 4 writes it, without irrelevant members. */
static const char llama3[] =
	"{'architectures':['LlamaForCausalLM'],'attention_bias':false,'bos_token_id':128000,"
	"'eos_token_id':128009,"
	"'head_dim':128,'hidden_act':'silu','hidden_size':4096,'intermediate_size':14336,"
	"'max_position_embeddings':131072,'mlp_bias':false,'model_type':'llama',"
	"'num_attention_heads':32,"
	"'num_hidden_layers':32,'num_key_value_heads':8,'pretraining_tp':1,'rms_norm_eps':1e-05,"
	"'rope_scaling':{'factor':8.0,'low_freq_factor':1.0,'high_freq_factor':4.0,"
	"'original_max_position_embeddings':8192,'rope_type':'llama3'},'rope_theta':500000.0,"
	"'tie_word_embeddings':false,'torch_dtype':'bfloat16','use_cache':true,'vocab_size':"
	"128256}";

static const char llama2[] =
	"{'architectures':['LlamaForCausalLM'],'bos_token_id':1,'eos_token_id':2,'hidden_act':"
	"'silu',"
	"'hidden_size':4096,'intermediate_size':11008,'max_position_embeddings':4096,'model_type':"
	"'llama',"
	"'num_attention_heads':32,'num_hidden_layers':32,'rms_norm_eps':1e-05,'rope_scaling':null,"
	"'torch_dtype':'float16','vocab_size':32000}";

static void llama3_and_2(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };

	if (!EXPECT(t, !parse(llama3, NULL, &c)))
		return;
	EXPECT(t, c.arch == CAIRN_ARCH_LLAMA && c.hidden_act == CAIRN_ACT_SILU &&
			  c.dtype == CAIRN_BF16);
	EXPECT(t,
	       c.hidden_size == 4096 && c.intermediate_size == 14336 && c.num_hidden_layers == 32);
	EXPECT(t, c.num_attention_heads == 32 && c.num_key_value_heads == 8 && c.head_dim == 128);
	EXPECT(t, c.vocab_size == 128256 && c.max_position_embeddings == 131072 &&
			  c.rms_norm_eps == 1e-5);
	EXPECT(t,
	       c.rope.theta == 500000 && c.rope.scaling == CAIRN_ROPE_LLAMA3 && c.rope.factor == 8);
	EXPECT(t, c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
	EXPECT(t, c.rope.original_max_position_embeddings == 8192);
	EXPECT(t, !c.tie_word_embeddings && !c.qkv_bias && !c.o_bias && !c.mlp_bias);
	EXPECT(t, c.bos_token_id == 128000 && c.num_eos == 1 && c.eos_token_ids[0] == 128009);

	if (!EXPECT(t, !parse(llama2, NULL, &c)))
		return;
	EXPECT(t, c.num_key_value_heads == 32 && c.head_dim == 128 && c.dtype == CAIRN_F16);
	EXPECT(t, c.rope.theta == 10000 && c.rope.scaling == CAIRN_ROPE_NONE && c.rope.factor == 1);
}

/* more: members of the group, or what closes it and follows */
#define COMPRESSED(format, bits, type, strategy, more) \
	"'quantization_config':{'quant_method':'compressed-tensors','format':'" format "','config_groups':{" \
	"'a':{'targets':['Linear'],'weights':{'num_bits':" bits ",'type':'" type "','strategy':'" strategy \
	"'}" more "}}}"
#define AWQ(members) "'quantization_config':{'quant_method':'awq'," members "}"
#define GPTQ(bits, more) \
	"'quantization_config':{'quant_method':'gptq','bits':" bits ",'group_size':128" more "}"
#define SCALING "'rope_scaling':{'factor':8.0,'low_freq_factor':1.0,'high_freq_factor':4.0," \
		"'original_max_position_embeddings':8192,'rope_type':'llama3'}"

static const struct change changes[] = {
	{ "'llama'", "'falcon'", EOPNOTSUPP,
	  "model_type: \"falcon\" is not supported (llama, qwen2, deepseek_v2, mistral, qwen3, gemma2, "
	  "mixtral, qwen3_moe, deepseek_v3, gpt_oss are)" },
	{ "'llama'", "'qwen2'", EINVAL,
	  "architectures: LlamaForCausalLM does not match model_type \"qwen2\"" },
	{ "LlamaForCausalLM", "LlamaForSequenceClassification", EOPNOTSUPP,
	  "architectures: \"LlamaForSeq" },
	{ "LlamaForCausalLM", "LlamaForCausalLMEagle3", EINVAL, "draft_vocab_size: is missing" },
	{ "'architectures':['LlamaForCausalLM']", "'architectures':['LlamaForCausalLMEagle3'],"
	  "'draft_vocab_size':32000,'eagle_aux_hidden_state_layer_ids':[1,2]", EOPNOTSUPP,
	  "eagle_aux_hidden_state_layer_ids: has 2 layers, must have 3" },
	{ "'architectures':['LlamaForCausalLM']", "'architectures':['LlamaForCausalLMEagle3'],"
	  "'draft_vocab_size':32000,'eagle_config':{'eagle_aux_hidden_state_layer_ids':[1,0,2]}", EINVAL,
	  "eagle_aux_hidden_state_layer_ids[1]: is no layer from 1 on" },
	{ "['LlamaForCausalLM']", "'LlamaForCausalLM'", EINVAL, "architectures: must be an array" },
	{ "['LlamaForCausalLM']", "[1]", EINVAL, "architectures[0]: must be a string" },
	{ "'model_type':'llama'", "'model_type':5", EINVAL, "model_type: must be a string" },
	{ "'hidden_size':4096,", "", EINVAL, "hidden_size: is missing" },
	{ "'hidden_size':4096", "'hidden_size':null", EINVAL, "hidden_size: is null" },
	{ "'hidden_size':4096", "'hidden_size':4096.0", EINVAL, "hidden_size: must be an integer" },
	{ "'hidden_size':4096", "'hidden_size':'4096'", EINVAL, "hidden_size: must be an integer" },
	{ "'hidden_size':4096", "'hidden_size':0", EINVAL, "hidden_size: must be 1 to" },
	{ "'hidden_size':4096", "'hidden_size':4294967296", EINVAL, "hidden_size: must be 1 to" },
	{ "'intermediate_size':14336", "'intermediate_size':-1", EINVAL,
	  "intermediate_size: must be 1 to" },
	{ "'num_hidden_layers':32", "'num_hidden_layers':0", EINVAL,
	  "num_hidden_layers: must be 1 to 1024, is 0" },
	{ "'num_hidden_layers':32", "'num_hidden_layers':9223372036854775807", EINVAL,
	  "num_hidden_layers: must be" },
	{ "'num_attention_heads':32", "'num_attention_heads':2000", EINVAL,
	  "num_attention_heads: must be 1 to" },
	{ "'num_key_value_heads':8", "'num_key_value_heads':7", EINVAL,
	  "num_key_value_heads: 7 does not divide" },
	{ "'num_key_value_heads':8", "'num_key_value_heads':64", EINVAL,
	  "num_key_value_heads: 64 does not divide" },
	{ "'head_dim':128", "'head_dim':127", EINVAL, "head_dim: must be even" },
	{ "'head_dim':128", "'head_dim':2048", EINVAL, "head_dim: must be 1 to 1024" },
	{ "'head_dim':128,'hidden_act':'silu','hidden_size':4096", "'hidden_size':4095", EINVAL,
	  "hidden_size: 4095 is not a multiple of num_attention_heads 32" },
	{ "'vocab_size':128256", "'vocab_size':0", EINVAL, "vocab_size: must be 1 to" },
	{ "'vocab_size':128256", "'vocab_size':128000", EINVAL,
	  "bos_token_id: must be 0 to 127999, is 128000" },
	{ "'eos_token_id':128009", "'eos_token_id':128256", EINVAL,
	  "eos_token_id: must be ids from 0 to 128255" },
	{ "'eos_token_id':128009", "'eos_token_id':[1,'2']", EINVAL, "eos_token_id: must be ids" },
	{ "'eos_token_id':128009", "'eos_token_id':[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
	  EINVAL, "17 ids" },
	{ "'max_position_embeddings':131072", "'max_position_embeddings':1e5", EINVAL,
	  "max_position_embeddings: must be" },
	{ "1e-05", "0", EINVAL, "rms_norm_eps: must be above 1.17549e-38" },
	{ "1e-05", "-1e-5", EINVAL, "rms_norm_eps: must be above 1.17549e-38" },
	{ "1e-05", "1e-39", EINVAL, "rms_norm_eps: must be above 1.17549e-38" },
	{ "1e-05", "1e999", EINVAL, "line 1" },
	{ "500000.0", "0", EINVAL, "rope_theta: must be above 0" },
	{ "500000.0", "true", EINVAL, "rope_theta: must be a number" },
	{ "'rope_type':'llama3'", "'rope_type':'proportional'", EOPNOTSUPP,
	  "rope_scaling.rope_type: \"proportional\" is not supported" },
	{ ",'rope_type':'llama3'", "", EINVAL, "rope_scaling.rope_type: is missing" },
	{ "'factor':8.0,", "", EINVAL, "rope_scaling.factor: is missing" },
	{ "'factor':8.0", "'factor':0", EINVAL, "rope_scaling.factor: must be above 0" },
	{ "'low_freq_factor':1.0", "'low_freq_factor':4.0", EINVAL,
	  "rope_scaling.low_freq_factor: 4 must be below" },
	{ "'high_freq_factor':4.0,", "", EINVAL, "rope_scaling.high_freq_factor: is missing" },
	{ "8192", "0", EINVAL, "rope_scaling.original_max_position_embeddings: must be" },
	{ SCALING, "'rope_scaling':[]", EINVAL, "rope_scaling: must be an object" },
	{ SCALING, "'rope_parameters':{'full_attention':{'rope_type':'linear','factor':4}}", EOPNOTSUPP,
	  "rope_parameters.\"full_attention\": per-layer rotations are not supported" },
	{ "'pretraining_tp':1", "'original_max_position_embeddings':4096", EOPNOTSUPP,
	  "original_max_position_embeddings: 4096 is not supported, as rope_scaling.original_" },
	{ "'pretraining_tp':1", "'partial_rotary_factor':0.5", EOPNOTSUPP,
	  "partial_rotary_factor: 0.5" },
	{ "'pretraining_tp':1", "'is_causal':false", EOPNOTSUPP, "is_causal: false is not supported" },
	{ "'pretraining_tp':1", "'quantization_config':{}", EOPNOTSUPP, "quantization_config" },
	{ "'pretraining_tp':1", "'quantization_config':[]", EINVAL,
	  "quantization_config: must be an object" },
	{ "'pretraining_tp':1", "'quantization_config':{'quant_method':'bitsandbytes'}", EOPNOTSUPP,
	  "quantization_config.quant_method: \"bitsandbytes\" is not supported (fp8, compressed-tensors, "
	  "awq, gptq, mxfp4 are)" },
	{ "'pretraining_tp':1", "'quantization_config':{'quant_method':'mxfp4'}", EOPNOTSUPP,
	  "quantization_config.quant_method: \"mxfp4\" is only supported with model_type \"gpt_oss\"" },
	{ "'pretraining_tp':1", "'quantization_config':{'quant_method':'fp8','fmt':'e5m2'}", EOPNOTSUPP,
	  "quantization_config.fmt: \"e5m2\" is not supported (e4m3 is)" },
	{ "'pretraining_tp':1", "'quantization_config':{'quant_method':'fp8','weight_block_size':[128]}",
	  EOPNOTSUPP, "quantization_config.weight_block_size: only [128, 128] is supported" },
	{ "'pretraining_tp':1", "'quantization_config':{'quant_method':'fp8','weight_block_size':[128,64]}",
	  EOPNOTSUPP, "quantization_config.weight_block_size: only [128, 128] is supported" },
	{ "'pretraining_tp':1", COMPRESSED("int-quantized", "8", "float", "channel", ""), EOPNOTSUPP,
	  "quantization_config.format: \"int-quantized\" is not supported (float-quantized, "
	  "pack-quantized, naive-quantized, nvfp4-pack-quantized are)" },
	{ "'pretraining_tp':1", COMPRESSED("float-quantized", "4", "float", "channel", ""), EOPNOTSUPP,
	  "quantization_config.config_groups.*.weights.num_bits: 4 is not supported (8 is)" },
	{ "'pretraining_tp':1", COMPRESSED("float-quantized", "8", "int", "channel", ""), EOPNOTSUPP,
	  "quantization_config.config_groups.*.weights.type: \"int\" is not supported (float is)" },
	{ "'pretraining_tp':1", COMPRESSED("float-quantized", "8", "float", "group", ""), EOPNOTSUPP,
	  "weights.strategy: \"group\" is not supported (channel, tensor are)" },
	{ "'pretraining_tp':1", COMPRESSED("float-quantized", "8", "float", "channel",
	  ",'output_activations':{}"), EOPNOTSUPP, "*.output_activations: is not supported" },
	{ "'pretraining_tp':1", COMPRESSED("float-quantized", "8", "float", "channel",
	  ",'input_activations':{'num_bits':16}"), EOPNOTSUPP, "*.input_activations.num_bits: 16 is not" },
	{ "'pretraining_tp':1", COMPRESSED("float-quantized", "8", "float", "channel", "},'b':{"), EOPNOTSUPP,
	  "quantization_config.config_groups: has 2 groups, only 1 is supported" },
	{ "'pretraining_tp':1", COMPRESSED("float-quantized", "8", "float", "channel",
	  "}},'sparsity_config':{'format':'sparse-24','x':{"), EOPNOTSUPP,
	  "quantization_config.sparsity_config.format: \"sparse-24\" is not supported (dense is)" },
	{ "'pretraining_tp':1", COMPRESSED("float-quantized", "8", "float", "channel",
	  "}},'transform_config':{'x':{"), EOPNOTSUPP, "quantization_config.transform_config: is not" },
	{ "'pretraining_tp':1", COMPRESSED("pack-quantized", "8", "int", "channel", ""), EOPNOTSUPP,
	  "quantization_config.config_groups.*.weights.num_bits: 8 is not supported (4 is)" },
	{ "'pretraining_tp':1", COMPRESSED("pack-quantized", "4", "float", "channel", ""), EOPNOTSUPP,
	  "*.weights.type: \"float\" is not supported (int is)" },
	{ "'pretraining_tp':1", COMPRESSED("pack-quantized", "4", "int", "tensor", ""), EOPNOTSUPP,
	  "*.weights.strategy: \"tensor\" is not supported (channel, group are)" },
	{ "'pretraining_tp':1", COMPRESSED("pack-quantized", "4", "int", "group", ""), EINVAL,
	  "*.weights.group_size: is missing" },
	{ "'pretraining_tp':1", COMPRESSED("pack-quantized", "4", "int", "channel",
	  ",'input_activations':{'num_bits':8}"), EOPNOTSUPP, "*.input_activations: is not supported with" },
	{ "'pretraining_tp':1", AWQ("'bits':3,'group_size':128"), EOPNOTSUPP,
	  "quantization_config.bits: 3 is not supported (4 is)" },
	{ "'pretraining_tp':1", AWQ("'group_size':128"), EINVAL, "quantization_config.bits: is missing" },
	{ "'pretraining_tp':1", AWQ("'bits':4"), EINVAL, "quantization_config.group_size: is missing" },
	{ "'pretraining_tp':1", AWQ("'bits':4,'group_size':100"), EOPNOTSUPP,
	  "quantization_config.group_size: 100 is not supported (32, 64, 128 and -1 are)" },
	{ "'pretraining_tp':1", AWQ("'bits':4,'group_size':0"), EOPNOTSUPP, "group_size: 0 is not" },
	{ "'pretraining_tp':1", AWQ("'bits':4,'group_size':128,'version':'gemv'"), EOPNOTSUPP,
	  "quantization_config.version: \"gemv\" is not supported" },
	{ "'pretraining_tp':1", AWQ("'bits':4,'group_size':128,'zero_point':false"), EOPNOTSUPP,
	  "quantization_config.zero_point: false is not supported" },
	{ "'pretraining_tp':1", GPTQ("8", ""), EOPNOTSUPP, "quantization_config.bits: 8 is not" },
	{ "'pretraining_tp':1", GPTQ("4", ",'checkpoint_format':'marlin'"), EOPNOTSUPP,
	  "quantization_config.checkpoint_format: \"marlin\" is not supported (gptq, gptq_v2 are)" },
	{ "'pretraining_tp':1", GPTQ("4", ",'lm_head':true"), EOPNOTSUPP, "lm_head: true is not supported" },
	{ "'pretraining_tp':1", GPTQ("4", ",'desc_act':1"), EINVAL, "desc_act: must be true or false" },
	{ "'silu'", "'gelu'", EOPNOTSUPP, "hidden_act: \"gelu\" is not supported" },
	{ "bfloat16", "float8", EOPNOTSUPP, "torch_dtype: \"float8\" is not supported" },
	{ "'mlp_bias':false", "'mlp_bias':0", EINVAL, "mlp_bias: must be true or false" },
	{ "'mlp_bias':false", "'mlp_bias':false,'mlp_bias':true", EINVAL, "line 1" },
	{ "128256}", "128256", EINVAL, "line 1" },
	{ "'llama'", "'x\\ny\\u001b[2Jz'", EOPNOTSUPP, "model_type: \"x\\x0ay\\x1b[2Jz\"" },
};

static void refused(struct cairn_test *t)
{
	refused_of(t, llama3, changes, ARRAY_SIZE(changes));
}

/* Equivalent spellings of a config give the same result. */
static void spellings(struct cairn_test *t)
{
	static const struct {
		const char *from, *to;
		enum cairn_rope_scaling scaling;
		double theta, factor;
	} ropes[] = {
		{ SCALING, "'rope_scaling':{'type':'linear','factor':4}", CAIRN_ROPE_LINEAR, 500000,
		  4 },
		{ SCALING, "'rope_scaling':{'rope_type':'default'}", CAIRN_ROPE_NONE, 500000, 1 },
		{ SCALING, "'rope_scaling':{}", CAIRN_ROPE_NONE, 500000, 1 },
		/* If both are given, rope_parameters counts only if rope_scaling is empty. */
		{ SCALING, SCALING ",'rope_parameters':{'rope_type':'linear','factor':4,'rope_theta':1}",
		  CAIRN_ROPE_LLAMA3, 500000, 8 },
		{ SCALING, "'rope_scaling':{},'rope_parameters':{'rope_type':'linear','factor':4}",
		  CAIRN_ROPE_LINEAR, 500000, 4 },
		{ SCALING, SCALING ",'original_max_position_embeddings':8192", CAIRN_ROPE_LLAMA3, 500000, 8 },
		{ SCALING ",'rope_theta':500000.0",
		  "'rope_parameters':{'rope_theta':1000000,'rope_type':'default'}", CAIRN_ROPE_NONE,
		  1000000, 1 },
		{ SCALING ",'rope_theta':500000.0",
		  "'rope_parameters':{'rope_theta':7e4,'rope_type':'llama3',"
		  "'factor':32,'low_freq_factor':1,'high_freq_factor':4,'original_max_position_"
		  "embeddings':8192}",
		  CAIRN_ROPE_LLAMA3, 70000, 32 },
	};
	struct cairn_model_config c;
	char *text;

	for (size_t i = 0; i < ARRAY_SIZE(ropes); i++) {
		text = cairn_json_text(llama3, ropes[i].from, ropes[i].to);
		if (EXPECT(t, text && !parse(text, NULL, &c)))
			EXPECT(t, c.rope.scaling == ropes[i].scaling &&
					  c.rope.theta == ropes[i].theta &&
					  c.rope.factor == ropes[i].factor);
		else
			cairn_note(t, "%s", cairn_last_error());
		free(text);
	}
	text = cairn_json_text(llama3, "'torch_dtype':'bfloat16'",
			       "'dtype':'float32','torch_dtype':null");
	EXPECT(t, text && !parse(text, NULL, &c) && c.dtype == CAIRN_F32);
	free(text);
	text = cairn_json_text(llama3, "'torch_dtype':'bfloat16',", "");
	EXPECT(t, text && !parse(text, NULL, &c) && c.dtype == -1);
	free(text);
	text = cairn_json_text(llama3, "'bos_token_id':128000,'eos_token_id':128009",
			       "'bos_token_id':null,'eos_token_id':[]");
	EXPECT(t, text && !parse(text, NULL, &c) && c.bos_token_id == -1 && c.num_eos == 0);
	free(text);
}

static void generation_config(struct cairn_test *t)
{
	struct cairn_model_config c;

	EXPECT(t, !parse(llama3, "{'eos_token_id':[128001,128008,128009],'temperature':0.6}", &c));
	EXPECT(t, c.num_eos == 3 && c.eos_token_ids[0] == 128001 && c.eos_token_ids[2] == 128009);
	EXPECT(t, !parse(llama3, "{'eos_token_id':7}", &c) && c.num_eos == 1 &&
			  c.eos_token_ids[0] == 7);
	EXPECT(t, !parse(llama3, "{}", &c) && c.num_eos == 1 && c.eos_token_ids[0] == 128009);
	EXPECT(t, parse(llama3, "{'eos_token_id':-1}", &c) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "dir/generation_config.json: eos_token_id");
	EXPECT(t, parse(llama3, "{", &c) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "dir/generation_config.json: line 1");
}

static void files(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };
	char path[4096], *text = cairn_json_text("", NULL, llama2);

	EXPECT(t, cairn_model_config_load(cairn_tmpdir(t), &c) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "/config.json: No such file");
	cairn_tmpfile(t, path, sizeof(path), "config.json", text, strlen(text));
	free(text);
	EXPECT(t, !cairn_model_config_load(cairn_tmpdir(t), &c) && c.vocab_size == 32000 &&
			  c.eos_token_ids[0] == 2);
	cairn_tmpfile(t, path, sizeof(path), "generation_config.json", "{\"eos_token_id\":3}", 18);
	EXPECT(t, !cairn_model_config_load(cairn_tmpdir(t), &c) && c.eos_token_ids[0] == 3);
}

static const struct cairn_unit units[] = {
	{ "llama3_and_2", llama3_and_2 }, { "refused", refused }, { "spellings", spellings },
	{ "generation_config", generation_config }, { "files", files },
};

const struct cairn_family cairn_config_family = {
	.stage = "serving", .name = "config", .units = units, .num_units = ARRAY_SIZE(units),
};
