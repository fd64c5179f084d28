/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_engine_test - a plan file for Llama-3-8B in which attention of nano-batch 0 runs beside qkv of 1
 *
 * The plan for the share of one of two ranks has the collectives, too.
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_PLAN_ENGINE_TEST_H
#define CAIRN_PLAN_ENGINE_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serving/base/json_test.h"
#include "serving/model/model_graph.h"
#include "serving/plan/plan_engine.h"

static const struct cairn_plan_file_for engine_plan_here = { "G", "none", "K", NULL, 1, false };

static inline int engine_config(struct cairn_model_config *config, int ranks)
{
	int32_t kv_shares;

	CAIRN_TRY(cairn_model_shape("llama3-8b", config));
	return ranks > 1 ? cairn_model_share_config(config, "llama3-8b", ranks, 0, &kv_shares) : 0;
}

static inline int engine_pipeline(struct cairn_search_pipeline *pipeline, int ranks)
{
	struct cairn_model_config config;

	CAIRN_TRY(engine_config(&config, ranks));
	return cairn_search_pipeline(pipeline, &config);
}

/* how: members how and sms of the attention that runs beside qkv; from is replaced by to. */
static inline char *engine_plan_text(int ranks, const char *how, const char *from, const char *to)
{
	static const char *const others[] = { "o", "gate_up", "down", "attn_norm", "mlp_norm" };
	struct cairn_search_pipeline pipeline;
	char text[8192];
	size_t n;
	int sms = (int)strtol(strstr(how, "'sms': ") + 7, NULL, 10);

	if (engine_pipeline(&pipeline, ranks))
		return NULL;
	n = (size_t)snprintf(text, sizeof(text),
		"{'v': 2, 'gpu': 'G', 'impl': 'none', 'kernels': 'K', 'shape': '%s', 'ranks': %d,"
		"'sms': 132, 'entries': [{'rows': 1024, 'decode_eighths': 3, 'context': 1024, 'cuts': [384],"
		"'decode': [300, 84], 'parts': ["
		"{'op': 'qkv', 'nano': 0, 'start': 0, 'r': 1, 'how': 'alone', 'sms': 132},"
		"{'op': 'attn', 'nano': 0, 'start': 0.25, 'r': 0.5, %s},"
		"{'op': 'qkv', 'nano': 1, 'start': 0.25, 'r': 0.5, %.*s'sms': %d},"
		"{'op': 'attn', 'nano': 1, 'start': 1.25, 'r': 1, 'how': 'alone', 'sms': 132}",
		pipeline.shape, ranks, how, (int)(strstr(how, "'sms'") - how), how,
		sms < 132 ? 132 - sms : 132);
	for (int i = 0; i < (ranks > 1 ? 10 : 6); i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n,
				      ",{'op': '%s', 'nano': %d, 'start': 1.5, 'r': 1, 'how': 'alone',"
				      "'sms': 132}", others[i / 2], i % 2);
	snprintf(text + n, sizeof(text) - n,
		 "],'sequential_ms': 33.0, 'predicted_ms': 30.0, 'gap': 0.01,"
		 "'measured_sequential_ms': 33.5, 'measured_ms': 30.5},"
		 "{'rows': 2048, 'decode_eighths': 3, 'context': 1024, 'cuts': [512], 'decode': [384, 384],"
		 "'parts': [{'op': 'qkv', 'nano': 0, 'start': 0, 'r': 1, 'how': 'alone', 'sms': 132}],"
		 "'sequential_ms': 33.0, 'predicted_ms': 30.0, 'gap': 0.01,"
		 "'measured_sequential_ms': 33.5, 'measured_ms': 33.0}]}");
	return *from ? cairn_json_text(text, from, to) : cairn_json_text(text, "{", "{");
}

static inline struct cairn_plan_file *open_engine_plan(struct cairn_test *t, int ranks, const char *how,
						       const char *from, const char *to)
{
	struct cairn_plan_file_for here = engine_plan_here;
	char *text = engine_plan_text(ranks, how, from, to);
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_file *file = NULL;

	if (!EXPECT(t, text && engine_pipeline(&pipeline, ranks) == 0))
		return NULL;
	here.shape = pipeline.shape;
	here.ranks = ranks;
	if (!EXPECT(t, cairn_plan_file_parse(&file, text, strlen(text), "plan", &here) == 0))
		cairn_note(t, "%s", cairn_last_error());
	free(text);
	return file;
}

#endif
