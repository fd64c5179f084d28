// SPDX-License-Identifier: Apache-2.0
/* plan_engine - the plans of a file, and which of them a pass takes (plan_engine.h) */
#include "serving/plan/plan_engine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "primitives/base/error.h"

struct cairn_plan_engine {
	struct cairn_plan_file *file;
	struct cairn_plan_lanes *lanes;		/* [plans.num] */
	struct cairn_nano_plan *plans;		/* the same, as engines take them */
	int32_t *index;				/* [num_entries]: of the entry's plan; -1: it has none */
	struct cairn_nano_plans set;
};

static int32_t pick(const void *ctx, int32_t rows, int32_t decodes, int32_t context)
{
	const struct cairn_plan_engine *p = ctx;
	const struct cairn_plan_file_entry *e = cairn_plan_file_pick(p->file, rows, decodes, context);

	return e ? p->index[e - p->file->entries] : -1;
}

static int make_plans(struct cairn_plan_engine *p, const struct cairn_search_pipeline *pipeline)
{
	size_t num = (size_t)p->file->num_entries + 1;

	p->lanes = calloc(num, sizeof(*p->lanes));
	p->plans = calloc(num, sizeof(*p->plans));
	p->index = calloc(num, sizeof(*p->index));
	if (!p->lanes || !p->plans || !p->index)
		return cairn_error(ENOMEM, "plan: out of memory");
	for (int32_t i = 0; i < p->file->num_entries; i++) {
		int32_t n = p->set.num;

		p->index[i] = -1;
		if (!cairn_plan_file_has_gain(&p->file->entries[i]))
			continue;
		CAIRN_TRY(cairn_plan_lanes_make(&p->lanes[n], p->file, i, pipeline));
		p->plans[n] = p->lanes[n].plan;
		p->index[i] = n;
		p->set.num++;
	}
	p->set.plans = p->plans;
	p->set.pick = pick;
	p->set.ctx = p;
	p->set.digest = p->file->digest;
	return 0;
}

/* Writes the path of the plan file to file: path itself, or that of the file in the folder path. */
static void find_file(const char *path, const struct cairn_plan_file_for *want, char *file, size_t len)
{
	struct stat st;
	char name[256];

	snprintf(file, len, "%s", path);
	if (stat(path, &st) || !S_ISDIR(st.st_mode))
		return;
	cairn_plan_file_name(want->gpu, want->shape, want->ranks, name, sizeof(name));
	snprintf(file, len, "%s/%s", path, name);
}

int cairn_plan_engine_open(struct cairn_plan_engine **out, const char *path,
			   const struct cairn_model_config *config, const struct cairn_plan_file_for *want)
{
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_file_for here = *want;
	struct cairn_plan_engine *p;
	char file[PATH_MAX];
	int ret;

	CAIRN_TRY(cairn_search_pipeline(&pipeline, config));
	here.shape = pipeline.shape;
	here.ranks = pipeline.ranks;
	find_file(path, &here, file, sizeof(file));
	p = calloc(1, sizeof(*p));
	if (!p)
		return cairn_error(ENOMEM, "plan: out of memory");
	ret = cairn_plan_file_read(&p->file, file, &here);
	if (!ret) {
		ret = make_plans(p, &pipeline);
		if (ret)
			cairn_error_prefix(ret, "%s", file);
	}
	if (!ret && !p->set.num)
		ret = cairn_error(ENOENT, "%s: no entry has a measured gain of %.2f", file,
				  CAIRN_SEARCH_LEAST_GAIN);
	if (ret)
		cairn_plan_engine_close(p);
	else
		*out = p;
	return ret;
}

void cairn_plan_engine_close(struct cairn_plan_engine *p)
{
	if (!p)
		return;
	for (int32_t i = 0; p->lanes && i <= p->set.num; i++)
		cairn_plan_lanes_free(&p->lanes[i]);
	free(p->lanes);
	free(p->plans);
	free(p->index);
	cairn_plan_file_free(p->file);
	free(p);
}

const struct cairn_nano_plans *cairn_plan_engine_plans(const struct cairn_plan_engine *p)
{
	return &p->set;
}
