// SPDX-License-Identifier: Apache-2.0
/*
 * config_published_test - quantization_config as programs write it into published checkpoints, with all its
 * keys: each is read as what its tensors are, or refused by a line that names the key
 */
#include "conformance/harness.h"
#include "serving/model/checkpoint/config_test.h"

#define LLAMA(quantization) \
	"{'architectures':['LlamaForCausalLM'],'hidden_size':4096,'intermediate_size':14336," \
	"'max_position_embeddings':131072,'model_type':'llama','num_attention_heads':32," \
	"'num_hidden_layers':32,'num_key_value_heads':8,'rms_norm_eps':1e-05,'rope_theta':500000.0," \
	"'torch_dtype':'bfloat16','vocab_size':128256,'quantization_config':{" quantization "}}"

/* A scheme of compressed-tensors, with the keys of llm-compressor */
#define SCHEME(bits, type, strategy, group, dynamic) \
	"{'actorder':null,'block_structure':null,'dynamic':" dynamic ",'group_size':" group \
	",'num_bits':" bits ",'observer':'minmax','observer_kwargs':{},'strategy':'" strategy \
	"','symmetric':true,'type':'" type "'}"
#define COMPRESSED(format, status, weights, inputs) \
	"'config_groups':{'group_0':{'input_activations':" inputs ",'output_activations':null," \
	"'targets':['Linear'],'weights':" weights "}},'format':'" format "'," \
	"'global_compression_ratio':1.46,'ignore':['lm_head'],'kv_cache_scheme':null," \
	"'quant_method':'compressed-tensors','quantization_status':'" status "'"
#define CHANNELS	SCHEME("8", "float", "channel", "null", "false")
#define TOKENS		SCHEME("8", "float", "token", "null", "true")
#define TENSOR		SCHEME("8", "float", "tensor", "null", "false")
#define NVFP4(dynamic)	SCHEME("4", "float", "tensor_group", "16", dynamic)
#define GROUPS		SCHEME("4", "int", "group", "128", "false")

static const struct {
	const char *writer, *text;
	enum cairn_stored_fp8 fp8;
	enum cairn_stored_w4 w4;
	int32_t group;
	const char *refusal;		/* NULL: accepted */
} configs[] = {
	{ "AutoAWQ: Llama-3.1-8B-Instruct-AWQ-INT4, Qwen2.5-7B-Instruct-AWQ",
	  LLAMA("'bits':4,'group_size':128,'modules_to_not_convert':null,'quant_method':'awq',"
		"'version':'gemm','zero_point':true"), .w4 = CAIRN_STORED_AWQ, .group = 128 },
	{ "AutoAWQ of a model with experts",
	  LLAMA("'bits':4,'group_size':128,'modules_to_not_convert':['gate'],'quant_method':'awq',"
		"'version':'gemm','zero_point':true"), .w4 = CAIRN_STORED_AWQ, .group = 128 },
	{ "AutoGPTQ through transformers: Qwen2.5-7B-Instruct-GPTQ-Int4",
	  LLAMA("'batch_size':1,'bits':4,'block_name_to_quantize':null,'cache_block_outputs':true,"
		"'damp_percent':0.01,'dataset':null,'desc_act':false,'exllama_config':{'version':1},"
		"'group_size':128,'max_input_length':null,'model_seqlen':null,"
		"'module_name_preceding_first_block':null,'modules_in_block_to_quantize':null,"
		"'pad_token_id':null,'quant_method':'gptq','sym':true,'tokenizer':null,"
		"'true_sequential':true,'use_cuda_fp16':false,'use_exllama':true"),
	  .w4 = CAIRN_STORED_GPTQ, .group = 128 },
	{ "GPTQModel, with routers left out",
	  LLAMA("'bits':4,'checkpoint_format':'gptq','desc_act':false,'dynamic':{"
		"'-:.*mlp\\\\.gate$':{}},'group_size':128,'lm_head':false,'meta':{'damp_percent':0.05,"
		"'mse':0.0,'quantizer':['gptqmodel:2.2.0'],'static_groups':false,'true_sequential':true,"
		"'uri':'https://github.com/modelcloud/gptqmodel'},'pack_dtype':'int32',"
		"'quant_method':'gptq','sym':true"), .w4 = CAIRN_STORED_GPTQ, .group = 128 },
	{ "GPTQModel, with other settings for some matrices",
	  LLAMA("'bits':4,'dynamic':{'+:.*down_proj':{'bits':8}},'group_size':128,"
		"'quant_method':'gptq'"),
	  .refusal = "quantization_config.dynamic: \"+:.*down_proj\": other settings for some matrices are "
		     "not supported" },
	{ "llm-compressor: Meta-Llama-3.1-8B-Instruct-FP8-dynamic",
	  LLAMA(COMPRESSED("float-quantized", "compressed", CHANNELS, TOKENS)), .fp8 = CAIRN_STORED_ROWS },
	{ "llm-compressor of 2024: Meta-Llama-3.1-8B-Instruct-FP8",
	  LLAMA(COMPRESSED("float-quantized", "frozen", TENSOR, TENSOR)), .fp8 = CAIRN_STORED_TENSOR },
	{ "SparseML", LLAMA(COMPRESSED("naive-quantized", "frozen", TENSOR, TENSOR)),
	  .fp8 = CAIRN_STORED_TENSOR },
	{ "llm-compressor: Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
	  LLAMA(COMPRESSED("pack-quantized", "compressed", GROUPS, "null")), .w4 = CAIRN_STORED_PACKED,
	  .group = 128 },
	{ "llm-compressor: Llama-3.1-8B-Instruct-NVFP4",
	  LLAMA(COMPRESSED("nvfp4-pack-quantized", "compressed", NVFP4("false"), NVFP4("'local'"))),
	  .w4 = CAIRN_STORED_NVFP4, .group = 16 },
	{ "llm-compressor: Llama-3.1-8B-Instruct-NVFP4A16",
	  LLAMA(COMPRESSED("nvfp4-pack-quantized", "compressed", NVFP4("false"), "null")),
	  .w4 = CAIRN_STORED_NVFP4, .group = 16 },
	{ "llm-compressor: Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
	  LLAMA(COMPRESSED("int-quantized", "compressed", SCHEME("8", "int", "channel", "null", "false"),
			   SCHEME("8", "int", "token", "null", "true"))),
	  .refusal = "quantization_config.format: \"int-quantized\" is not supported" },
	{ "AutoFP8: Meta-Llama-3-8B-Instruct-FP8",
	  LLAMA("'activation_scheme':'static','ignored_layers':['lm_head'],'quant_method':'fp8'"),
	  .fp8 = CAIRN_STORED_TENSOR },
	{ "DeepSeek's fp8: Qwen3-8B-FP8",
	  LLAMA("'activation_scheme':'dynamic','fmt':'e4m3','quant_method':'fp8',"
		"'weight_block_size':[128,128]"), .fp8 = CAIRN_STORED_BLOCKS },
	{ "AutoRound", LLAMA("'bits':4,'group_size':128,'packing_format':'auto_round:auto_gptq',"
			     "'quant_method':'auto-round','sym':true"),
	  .refusal = "quantization_config.quant_method: \"auto-round\" is not supported (fp8, " },
	{ "ModelOpt", LLAMA("'producer':{'name':'modelopt'},'quant_algo':'NVFP4','quant_method':'modelopt'"),
	  .refusal = "quantization_config.quant_method: \"modelopt\" is not supported (fp8, " },
	{ "bitsandbytes", LLAMA("'bnb_4bit_quant_type':'nf4','load_in_4bit':true,"
				"'quant_method':'bitsandbytes'"),
	  .refusal = "quantization_config.quant_method: \"bitsandbytes\" is not supported (fp8, " },
};

static void published(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(configs); i++) {
		struct cairn_model_config c = { 0 };
		const int ret = parse(configs[i].text, NULL, &c);

		if (!EXPECT(t, ret == (configs[i].refusal ? -EOPNOTSUPP : 0)))
			cairn_note(t, "%s: %s", configs[i].writer, cairn_last_error());
		if (configs[i].refusal)
			EXPECT_CONTAINS(t, cairn_last_error(), configs[i].refusal);
		else if (!EXPECT(t, c.stored_fp8 == configs[i].fp8 && c.w4.stored == configs[i].w4 &&
				    c.w4.group == configs[i].group))
			cairn_note(t, "%s", configs[i].writer);
	}
}

static const struct cairn_unit units[] = { { "published", published } };

const struct cairn_family cairn_config_published_family = {
	.stage = "serving", .name = "config_published", .units = units, .num_units = ARRAY_SIZE(units),
};
