// SPDX-License-Identifier: Apache-2.0
/* model_stacked_test - checkpoints of gpt-oss that are refused: each error names the tensor */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/model/model_test.h"

/*
 * Writes the weights of a golden checkpoint, of whose recipe the first line that contains `line` has `from`
 * replaced by `to`. to NULL: the line is left out.
 */
static int edited_weights(struct cairn_test *t, const char *name, const char *line, const char *from,
			  const char *to)
{
	char path[PATH_MAX + 64], text[256];
	FILE *in, *out;
	int done = 0;

	snprintf(path, sizeof(path), "%s/serving/golden/%s/recipe.txt", cairn_data_dir(), name);
	in = fopen(path, "r");
	cairn_tmpfile(t, path, sizeof(path), "edited.txt", "", 0);
	out = fopen(path, "w");
	if (!EXPECT(t, in && out))
		return -1;
	while (fgets(text, sizeof(text), in)) {
		const char *at = done || !strstr(text, line) ? NULL : to ? strstr(text, from) : text;

		if (at && to)
			fprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
		else if (!at)
			fprintf(out, "%s", text);
		done |= at != NULL;
	}
	fclose(in);
	fclose(out);
	return EXPECT(t, done) ? recipe_weights(t, path) : -1;
}

static const struct { const char *name, *line, *from, *to; int error; const char *text; } edits[] = {
	{ "gpt_oss_tiny", "layers.1.self_attn.sinks", "", NULL, -EINVAL,
	  "tensor \"model.layers.1.self_attn.sinks\" is missing" },
	{ "gpt_oss_tiny", "layers.1.self_attn.sinks", "sinks 4", "sinks 2", -EINVAL, "self_attn.sinks" },
	{ "gpt_oss_tiny", "layers.2.mlp.router.bias", "", NULL, -EINVAL, "layers.2.mlp.router.bias" },
	{ "gpt_oss_tiny", "layers.0.mlp.experts.gate_up_proj_bias", "", NULL, -EINVAL,
	  "layers.0.mlp.experts.gate_up_proj_bias" },
	{ "gpt_oss_tiny", "layers.0.mlp.experts.down_proj_bias", "bias 8 128", "bias 8 64", -EINVAL,
	  "layers.0.mlp.experts.down_proj_bias" },
	{ "gpt_oss_tiny", "layers.0.mlp.experts.gate_up_proj ", "8 128 128", "7 128 128", -EINVAL,
	  "shape: is [7, 128, 128], must be [8, 128, 128]" },
	{ "gpt_oss_tiny", "layers.0.mlp.experts.down_proj ", "many", "four", -EINVAL,
	  "layers.0.mlp.experts.down_proj\" is missing" },
	{ "gpt_oss_mxfp4_tiny", "layers.1.mlp.experts.down_proj ", "8 128 64", "8 128 32", -EINVAL,
	  "layers.1.mlp.experts.down_proj_blocks" },
	{ "gpt_oss_mxfp4_tiny", "layers.1.mlp.experts.gate_up_proj ", "8 128 128", "8 64 128", -EINVAL,
	  "layers.1.mlp.experts.gate_up_proj_blocks" },
	{ "gpt_oss_mxfp4_tiny", "layers.1.mlp.experts.gate_up_proj ", "", NULL, -EINVAL,
	  "layers.1.mlp.experts.gate_up_proj_blocks\" is missing" },
};

static void edited(struct cairn_test *t)
{
	struct cairn_impl impl;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(edits); i++) {
		struct golden g;

		if (open_golden(t, &g, edits[i].name))
			return;
		if (!edited_weights(t, edits[i].name, edits[i].line, edits[i].from, edits[i].to))
			refuses(t, &impl, g.dir, edits[i].error, edits[i].text);
		close_golden(&g);
	}
}

/* Returns where the data of a tensor begins in a safetensors file, or -1. */
static long data_of(FILE *f, const char *name)
{
	char *header = calloc(1, RECIPE_HEADER + 1), *at;
	uint64_t bytes = 0;
	long begin = -1;

	if (header && fread(&bytes, sizeof(bytes), 1, f) == 1 && bytes <= RECIPE_HEADER &&
	    fread(header, 1, (size_t)bytes, f) == bytes) {
		at = strstr(header, name);
		at = at ? strstr(at, "data_offsets\":[") : NULL;
		begin = at ? 8 + (long)bytes + atol(strchr(at, '[') + 1) : -1;
	}
	free(header);
	return begin;
}

/* The scale 0xff is NaN, and 0xfe is 2^127, with which 3 and more overflow bf16. */
static void scales_out_of_range(struct cairn_test *t)
{
	static const int bytes[] = { 0xff, 0xfe };
	struct cairn_impl impl;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(bytes); i++) {
		char path[PATH_MAX + 32];
		struct golden g;
		long at;
		FILE *f;

		if (open_golden(t, &g, "gpt_oss_mxfp4_tiny"))
			return;
		snprintf(path, sizeof(path), "%s/model.safetensors", g.dir);
		f = fopen(path, "r+b");
		if (EXPECT(t, f)) {
			at = data_of(f, "layers.1.mlp.experts.down_proj_scales\"");
			EXPECT(t, at > 0 && !fseek(f, at + 5, SEEK_SET) && fputc(bytes[i], f) == bytes[i]);
			fclose(f);
			refuses(t, &impl, g.dir, -EINVAL, "layers.1.mlp.experts.down_proj_blocks: element 1");
		}
		close_golden(&g);
	}
}

static struct cairn_impl right;

/* moe of a table that has no 4-bit weights */
static int moe_without_w4(const struct cairn_moe_args *args, void *stream)
{
	return cairn_moe_w4_of(args) ? -EOPNOTSUPP : right.moe(args, stream);
}

/* Experts stay in MXFP4 if the table's moe takes them, and each rank gets some of their two groups of 32. */
static void kept(struct cairn_test *t)
{
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	static const int ranks[] = { 1, 1, 2, 4 };
	size_t bytes[4] = { 0 };
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "gpt_oss_mxfp4_tiny"))
		return;
	right = impl;
	for (int i = 0; i < 4; i++) {
		impl.moe = i == 1 ? moe_without_w4 : right.moe;
		if (!EXPECT(t, !cairn_model_load_rank(&m, &impl, g.dir, 0, ranks[i], CAIRN_WEIGHTS_PLAIN,
						      CAIRN_KV_PLAIN, NULL, NULL)))
			break;
		EXPECT(t, cairn_model_experts_w4(m) == (i % 2 ? CAIRN_MOE_W4_NONE : CAIRN_MOE_W4_MX));
		EXPECT(t, (cairn_model_scale_w4(m, 0, CAIRN_W_EXPERTS_DOWN) == NULL) == i % 2);
		bytes[i] = m->bytes;
		cairn_model_free(m);
		m = NULL;
	}
	/* 2 layers of 8 experts with 3 matrices of 128 x 64: 17 bytes for 32 elements, not 64 */
	EXPECT(t, bytes[1] - bytes[0] == (size_t)2 * 8 * 3 * 128 * 64 / 32 * (64 - 17));
	close_golden(&g);
}

/* What has no support yet is refused by name before anything is loaded. */
static void not_supported(struct cairn_test *t)
{
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "gpt_oss_mxfp4_tiny"))
		return;
	EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, CAIRN_WEIGHTS_FP8, CAIRN_KV_PLAIN, NULL, NULL) ==
		  -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), "model_type: experts with biases have no 8-bit weights");
	impl.attn_merge = NULL;
	refuses(t, &impl, g.dir, -EOPNOTSUPP, "no operation attn_merge, which adds sinks");
	close_golden(&g);
}

static const struct cairn_unit units[] = {
	{ "edited", edited }, { "scales_out_of_range", scales_out_of_range },
	{ "kept", kept }, { "not_supported", not_supported },
};

const struct cairn_family cairn_model_stacked_family = {
	.stage = "serving", .name = "model_stacked", .units = units, .num_units = ARRAY_SIZE(units),
};
