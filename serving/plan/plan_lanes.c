// SPDX-License-Identifier: Apache-2.0
/* plan_lanes - makes a plan of nano-batches of an entry of a plan file (plan_engine.h) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/plan/plan_engine.h"
#include "serving/search/search_fault.h"

enum { MOST_PLACES = CAIRN_SEARCH_MOST_PARTS * 16 };

/* What the operations of a lane are; the first lane of each is the one for parts with all SMs. */
enum work { PRODUCTS, ATTENTION, NETWORK };

struct maker {
	const struct cairn_plan_file *file;
	const struct cairn_plan_file_entry *e;
	const struct cairn_search_pipeline *pipeline;
	struct cairn_plan_lanes *out;
	enum work works[CAIRN_NANO_LANES];	/* of each lane */
	int32_t index;			/* of the entry */
};

static const struct cairn_search_op *find_op(const struct maker *m, const char *name)
{
	for (int32_t o = 0; o < m->pipeline->num_ops; o++)
		if (!strcmp(m->pipeline->ops[o].name, name))
			return &m->pipeline->ops[o];
	return NULL;
}

static int bad_part(const struct maker *m, const char *op, int32_t nano, const char *why)
{
	return cairn_error(EINVAL, "plan: entries[%d]: operation %s of nano-batch %d %s", m->index, op, nano,
			   why);
}

/* Each operation of the pipeline must have one part for each nano-batch, or one if it is whole. */
static int check_parts(const struct maker *m)
{
	for (int32_t o = 0; o < m->pipeline->num_ops; o++) {
		const struct cairn_search_op *op = &m->pipeline->ops[o];

		for (int32_t n = 0; n < (op->whole ? 1 : m->e->nanos); n++) {
			int found = 0;

			for (int32_t i = 0; i < m->e->num_parts; i++)
				found |= m->e->parts[i].nano == n && !strcmp(m->e->parts[i].op, op->name);
			if (!found)
				return bad_part(m, op->name, n, "is missing");
		}
	}
	for (int32_t i = 0; i < m->e->num_parts; i++) {
		const struct cairn_plan_file_part *p = &m->e->parts[i];
		const struct cairn_search_op *op = find_op(m, p->op);

		if (!op || (op->whole && p->nano))
			return bad_part(m, p->op, p->nano, "is none of this model");
		if (p->how == CAIRN_SEARCH_QUEUE || p->how == CAIRN_SEARCH_CORESIDENT)
			return cairn_error(EOPNOTSUPP, "plan: entries[%d]: how: no engine runs parts by %s",
					   m->index, cairn_search_how_names[p->how]);
	}
	return 0;
}

/* Returns the lane of this work with so many SMs; if none is left, the one with the nearest number. */
static int32_t find_lane(struct maker *m, enum work work, int32_t sms)
{
	struct cairn_nano_plan *plan = &m->out->plan;
	int32_t best = (int32_t)work;

	for (int32_t l = 0; l < plan->num_lanes; l++) {
		if (!plan->lanes[l].sms || m->works[l] != work)
			continue;
		if (plan->lanes[l].sms == sms)
			return l;
		if (!plan->lanes[best].sms ||
		    abs(plan->lanes[l].sms - sms) < abs(plan->lanes[best].sms - sms))
			best = l;
	}
	if (plan->num_lanes == CAIRN_NANO_LANES)
		return best;
	/* a sum is short, and all ranks wait for it */
	plan->lanes[plan->num_lanes] = (struct cairn_nano_lane){ .sms = sms, .priority = work == NETWORK };
	m->works[plan->num_lanes] = work;
	return plan->num_lanes++;
}

static enum work work_of(const struct cairn_search_op *op)
{
	return op->attention && !FAULT(WRONG_LANE) ? ATTENTION :
	       op->network && !FAULT(NETWORK_LANE) ? NETWORK : PRODUCTS;
}

/* Attention and collectives have the first SMs of the GPU, and products have the others. */
static int32_t lane_of(struct maker *m, const struct cairn_search_op *op,
		       const struct cairn_plan_file_part *p)
{
	const enum work work = work_of(op);

	if (p->how != CAIRN_SEARCH_GREEN || op->whole || p->sms == m->file->sms)
		return (int32_t)work;
	return find_lane(m, work, work != PRODUCTS || FAULT(SPLIT_SMS) ? p->sms : p->sms - m->file->sms);
}

static int add_place(struct maker *m, const char *name, size_t len, const struct cairn_search_op *op,
		     const struct cairn_plan_file_part *p, int32_t lane)
{
	struct cairn_nano_plan *plan = &m->out->plan;
	int32_t at = plan->num_places;

	if (at == MOST_PLACES || len >= CAIRN_SEARCH_NAME)
		return bad_part(m, p->op, p->nano, "covers too many operations");
	memcpy(m->out->names[at], name, len);
	m->out->places[at] = (struct cairn_nano_place){
		.op = m->out->names[at], .batch = op->whole ? CAIRN_NANO_WHOLE : p->nano, .lane = lane,
		.start = p->start,
	};
	plan->num_places++;
	return 0;
}

static int add_part(struct maker *m, const struct cairn_plan_file_part *p)
{
	const struct cairn_search_op *op = find_op(m, p->op);
	int32_t lane = lane_of(m, op, p);

	for (const char *at = op->covers; *at;) {
		size_t len = strcspn(at, " ");

		if (!FAULT(LIGHT_LOST) || strstr(at, "_proj") == at + len - 5)
			CAIRN_TRY(add_place(m, at, len, op, p, lane));
		at += len + (at[len] == ' ');
	}
	return 0;
}

static int make(struct maker *m)
{
	const struct cairn_plan_file_entry *e = m->e;
	struct cairn_nano_plan *plan = &m->out->plan;

	plan->num_batches = e->nanos;
	plan->num_lanes = NETWORK + (m->file->ranks > 1);
	for (int32_t i = 0; i < e->nanos; i++) {
		int32_t from = i ? e->cuts[i - 1] : 0, to = i + 1 < e->nanos ? e->cuts[i] : e->rows;

		plan->rows[i] = FAULT(CUTS_EQUAL) ? 1 : to - from;
		plan->decodes[i] = e->decode[i];
	}
	for (int32_t i = 0; i < e->num_parts; i++) {
		const enum work work = work_of(find_op(m, e->parts[i].op));

		if (work != PRODUCTS && e->parts[i].how == CAIRN_SEARCH_PRIORITY)
			plan->lanes[work].priority = 1;
		CAIRN_TRY(add_part(m, &e->parts[i]));
	}
	plan->places = m->out->places;
	return cairn_nano_plan_check(plan);
}

int cairn_plan_lanes_make(struct cairn_plan_lanes *out, const struct cairn_plan_file *file, int32_t entry,
		     const struct cairn_search_pipeline *pipeline)
{
	struct maker m = { .file = file, .e = &file->entries[entry], .pipeline = pipeline, .out = out,
			   .index = entry };
	int ret;

	memset(out, 0, sizeof(*out));
	CAIRN_TRY(check_parts(&m));
	out->places = calloc(MOST_PLACES, sizeof(*out->places));
	out->names = calloc(MOST_PLACES, sizeof(*out->names));
	ret = out->places && out->names ? make(&m) : cairn_error(ENOMEM, "plan: out of memory");
	if (ret)
		cairn_plan_lanes_free(out);
	return ret;
}

void cairn_plan_lanes_free(struct cairn_plan_lanes *lanes)
{
	free(lanes->places);
	free(lanes->names);
	memset(lanes, 0, sizeof(*lanes));
}
