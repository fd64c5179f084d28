/* SPDX-License-Identifier: Apache-2.0 */
/* nano_ablation_test - a plan for a dense model of any size; include conformance/harness.h first */
#ifndef CAIRN_NANO_ABLATION_TEST_H
#define CAIRN_NANO_ABLATION_TEST_H

#include <stdlib.h>
#include <string.h>

#include "serving/profile/nano_ablation.h"

enum { ROWS = 224, FIRST = 104, DECODE = 24, CONTEXT = 32 };

/*
 * A plan of two nano-batches in which each operation of the first runs beside an earlier one of the second.
 * config: that of a rank's share.
 */
static inline struct cairn_plan_file *make_plan(struct cairn_test *t, const struct cairn_model_config *config,
						 const char *how)
{
	struct cairn_plan_file *file = calloc(1, sizeof(*file));
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_file_entry *e;

	if (!EXPECT(t, file && cairn_search_pipeline(&pipeline, config) == 0))
		return NULL;
	memcpy(file->shape, pipeline.shape, sizeof(file->shape));
	strcpy(file->gpu, "G");
	strcpy(file->impl, "known");
	strcpy(file->kernels, "K");
	file->ranks = pipeline.ranks;
	file->sms = 20;
	file->num_entries = 1;
	file->entries = e = calloc(1, sizeof(*e));
	*e = (struct cairn_plan_file_entry){
		.rows = ROWS, .decode_eighths = 1, .context = CONTEXT, .nanos = 2, .cuts = { FIRST },
		.decode = { 8, 16 }, .num_parts = 2 * pipeline.num_ops, .sequential_ms = 1, .predicted_ms = 1,
	};
	for (int i = 0; i < e->num_parts; i++) {
		struct cairn_plan_file_part *p = &e->parts[i];
		const struct cairn_search_op *op = &pipeline.ops[i / 2];

		memcpy(p->op, op->name, sizeof(p->op));
		p->nano = i % 2;
		p->start = 0.2 * i;
		p->r = 0.5;
		p->how = strcmp(how, "green") ? CAIRN_SEARCH_STREAMS : CAIRN_SEARCH_GREEN;
		p->sms = op->attention || op->network ? 8 : 12;
	}
	return file;
}

#endif
