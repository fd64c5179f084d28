/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_graph_test - the graphs of all models, for the tests of this folder
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_OP_GRAPH_TEST_H
#define CAIRN_OP_GRAPH_TEST_H

#include <stdlib.h>

#include "serving/model/model_graph.h"
#include "serving/model/model_test.h"

#define NUM_MODELS	29

struct subject {
	const char *name;
	struct cairn_model_config c;
	struct cairn_op_graph *g;
	int32_t dims[CAIRN_NUM_DIMS];
};

static const char *const golden_names[] = {
	"llama2_tiny", "llama3_tiny", "qwen2_tiny", "deepseek_tiny", "deepseek_q_tiny", "mistral_tiny",
	"qwen3_tiny", "gemma2_tiny", "mixtral_tiny", "qwen3_moe_tiny", "longrope_tiny",
	"deepseek_v2_group_tiny", "deepseek_v3_tiny", "deepseek_v3_fp8_tiny", "gpt_oss_tiny",
};

/* Opens the published shapes, the golden checkpoints, and a Llama with every bias and norm. */
static inline int open_subjects(struct cairn_test *t, struct subject *s)
{
	static const char *const shapes[] = {
		"llama2-7b", "llama3-8b", "llama32-1b", "qwen2-7b", "mistral-7b", "qwen3-8b", "gemma2-9b",
		"mixtral-8x7b", "qwen3-30b-a3b", "dsv2lite", "dsv3", "gpt-oss-20b",
	};
	char dir[PATH_MAX];
	int num = 0;

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		s[num].name = shapes[i];
		EXPECT(t, cairn_model_shape(shapes[i], &s[num++].c) == 0);
	}
	for (size_t i = 0; i < ARRAY_SIZE(golden_names); i++) {
		snprintf(dir, sizeof(dir), "%s/serving/golden/%s", cairn_data_dir(), golden_names[i]);
		s[num].name = golden_names[i];
		EXPECT(t, cairn_model_config_load(dir, &s[num++].c) == 0);
	}
	s[num].name = "biases and norms";
	EXPECT(t, cairn_model_shape("llama3-8b", &s[num].c) == 0);
	s[num].c.qkv_bias = s[num].c.o_bias = s[num].c.mlp_bias = true;
	s[num].c.head_norms = s[num].c.block_norms = true;
	num++;
	for (int i = 0; i < num; i++) {
		s[i].g = NULL;
		if (!EXPECT(t, cairn_model_graph(&s[i].g, &s[i].c) == 0))
			cairn_note(t, "%s: %s", s[i].name, cairn_last_error());
		cairn_model_dims(&s[i].c, s[i].dims);
	}
	return num;
}

static inline void close_subjects(struct subject *s, int num)
{
	for (int i = 0; i < num; i++)
		cairn_op_graph_destroy(s[i].g);
}

static inline int open_shape(struct cairn_test *t, struct subject *s, const char *name)
{
	s->name = name;
	if (!EXPECT(t, cairn_model_shape(name, &s->c) == 0) ||
	    !EXPECT(t, cairn_model_graph(&s->g, &s->c) == 0))
		return -1;
	cairn_model_dims(&s->c, s->dims);
	return 0;
}

#endif
