// SPDX-License-Identifier: Apache-2.0
/* profile - which measurements a profile consists of, and their rows (profile.h) */
#include "serving/profile/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/profile/timing.h"

#define LIST(...)	{ { __VA_ARGS__ }, sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t) }

const struct profile_options profile_full = {
	.rows = LIST(128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048),
	.batches = LIST(96, 192, 384, 768), .contexts = LIST(1024, 512, 2048),
	.prompts = LIST(256, 640, 1280), .pair_rows = LIST(512, 1024), .pair_batches = LIST(192, 384),
	.part_sms = LIST(16, 24, 32, 40, 48, 56, 64, 72), .alone_s = 0.3, .pair_s = 0.7, .limit_s = 240,
	.layers = 4, .page_size = 64,
};

const struct profile_options profile_short = {
	.rows = LIST(128, 256, 384, 512, 640, 768, 896, 1024, 1536, 2048), .batches = LIST(192, 384, 768),
	.contexts = LIST(1024, 2048), .prompts = LIST(256, 1280), .pair_rows = LIST(512),
	.pair_batches = LIST(192), .part_sms = LIST(16, 32, 40, 48, 56, 64, 72), .alone_s = 0.25,
	.pair_s = 0.6, .limit_s = 60, .layers = 4, .page_size = 64,
};

#define SUSPECT		1.05	/* an operation that is this much faster in a pair is timed alone again */
#define DISTURBED	1.1	/* a pair with one still this much faster is left out: readers refuse it */

enum { MOST_ALONE = 512, MEMBERS = 1024 };

/* An operation for a batch, and the time of a call alone on all SMs. */
struct known {
	char name[48];			/* as in a case: "gate_up_m512" */
	const char *op;			/* of the pipeline */
	struct task_shape shape;
	double ns, tflops, gbps;
};

struct profile {
	const struct profile_options *opt;
	const struct profile_sink *sink;
	struct profile_result *result;
	struct bed bed;
	struct timing timing;
	int32_t num_sms;
	int64_t begun_ns;
	struct known known[MOST_ALONE];
	int num_known;
};

static double seconds_since(const struct profile *p)
{
	return (double)(cairn_clock_ns() - p->begun_ns) * 1e-9;
}

/* Sets *late to whether the time is over, by the clock of rank 0. */
static int look_late(struct profile *p, int *late)
{
	double seconds = seconds_since(p);

	CAIRN_TRY(lockstep_agree(&p->timing.lockstep, &seconds, 1));
	*late = seconds > p->opt->limit_s;
	p->result->num_late += *late;
	return 0;
}

/* Returns whether the list of operations to measure has this one. */
static int is_wanted(const struct profile *p, const char *op)
{
	size_t n = strlen(op);

	for (const char *at = p->opt->ops; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (!strncmp(at, op, n) && (!at[n] || at[n] == ','))
			return 1;
	return !p->opt->ops;
}

/* Writes a row: the members given, and those that all rows have. call_ns: the call whose joules are meant. */
static int put_row(struct profile *p, const char *name, const struct timed *t, double call_ns,
		   const char *members)
{
	char energy[CAIRN_ENERGY_MEMBERS] = "", all[MEMBERS + CAIRN_ENERGY_MEMBERS];

	if (p->timing.impl->pci_bus_id)
		cairn_energy_members(&t->energy, call_ns * 1e-9, energy, sizeof(energy));
	snprintf(all, sizeof(all), "%s,\"at_s\":%.1f,\"shape\":\"%s\",\"kernels\":\"%s\"%s", members,
		 seconds_since(p), p->bed.pipeline.shape, cairn_kernel_digest(), energy);
	p->result->num_rows++;
	return p->sink->row(p->sink->ctx, name, all, t->energy.sm_mhz);
}

/* ---- alone ---- */

static int put_alone(struct profile *p, const struct known *k, int32_t sms, const struct timed *t,
		     const struct task *task)
{
	double ns = t->ns[0];
	char members[MEMBERS];
	int n;

	n = snprintf(members, sizeof(members),
		     "\"how\":\"alone\",\"sms_a\":%d,\"alone_a_ns\":%.1f,\"gbps_a\":%.4g", sms, ns,
		     task->bytes / ns);
	if (task->flops > 0)		/* sums of ranks have none that count */
		snprintf(members + n, sizeof(members) - (size_t)n, ",\"tflops_a\":%.4g",
			 task->flops / ns * 1e-3);
	return put_row(p, k->name, t, ns, members);
}

/* Times an operation alone on all SMs, and keeps the time for its pairs. */
static int time_known(struct profile *p, const struct known *of)
{
	const struct part all = { 0, 0 };
	struct known *k = &p->known[p->num_known];
	struct timed timed;
	struct task task;
	int ret, late;

	CAIRN_TRY(look_late(p, &late));
	if (late)
		return 0;
	if (p->num_known == MOST_ALONE)
		return cairn_error(EINVAL, "profile: more than %d operations", MOST_ALONE);
	CAIRN_TRY(task_open(&task, &p->bed, 0, of->op, &of->shape));
	ret = time_alone(&p->timing, &task, &all, p->opt->alone_s, &timed);
	if (!ret)
		ret = put_alone(p, of, p->num_sms, &timed, &task);
	if (!ret) {
		*k = *of;
		k->ns = timed.ns[0];
		k->tflops = task.flops / k->ns * 1e-3;
		k->gbps = task.bytes / k->ns;
		p->num_known++;
	}
	task_close(&task);
	return ret;
}

static int is_product(const struct cairn_search_op *op)
{
	return !op->attention && !op->network;
}

static int time_products(struct profile *p)
{
	for (int32_t o = 0; o < p->bed.pipeline.num_ops; o++) {
		const struct cairn_search_op *op = &p->bed.pipeline.ops[o];

		for (int i = 0; i < p->opt->rows.num && is_product(op) && is_wanted(p, op->name); i++) {
			int32_t m = p->opt->rows.v[i];
			struct known k = { .op = op->name, .shape = { 1, m, m } };

			snprintf(k.name, sizeof(k.name), "%s_m%d", op->name, m);
			CAIRN_TRY(time_known(p, &k));
		}
	}
	return 0;
}

/* Returns the sum of several ranks for so many rows; op is NULL if there is one rank. */
static struct known all_reduce(const struct profile *p, int32_t rows)
{
	struct known k = { .shape = { 1, rows, rows } };

	for (int32_t o = 0; o < p->bed.pipeline.num_ops; o++)
		if (p->bed.pipeline.ops[o].network)
			k.op = p->bed.pipeline.ops[o].name;
	snprintf(k.name, sizeof(k.name), CAIRN_SEARCH_ALL_REDUCE "_m%d", rows);
	return k;
}

static int time_network(struct profile *p)
{
	for (int i = 0; i < p->opt->rows.num; i++) {
		struct known k = all_reduce(p, p->opt->rows.v[i]);

		if (k.op && is_wanted(p, CAIRN_SEARCH_ALL_REDUCE))
			CAIRN_TRY(time_known(p, &k));
	}
	return 0;
}

static const char *attention_of(const struct bed *b)
{
	for (int32_t o = 0; o < b->pipeline.num_ops; o++)
		if (b->pipeline.ops[o].attention)
			return b->pipeline.ops[o].name;
	return NULL;
}

static struct known decoding(const struct profile *p, int32_t batch, int32_t context)
{
	struct known k = { .op = attention_of(&p->bed), .shape = { batch, 1, context } };

	snprintf(k.name, sizeof(k.name), "dec_b%d_kv%d", batch, context);
	return k;
}

static int time_attention(struct profile *p)
{
	const char *op = attention_of(&p->bed);

	if (!op || !is_wanted(p, op))
		return 0;
	for (int i = 0; i < p->opt->batches.num; i++)
		for (int c = 0; c < p->opt->contexts.num; c++) {
			struct known k = decoding(p, p->opt->batches.v[i], p->opt->contexts.v[c]);

			CAIRN_TRY(time_known(p, &k));
		}
	for (int i = 0; i < p->opt->prompts.num; i++) {
		int32_t m = p->opt->prompts.v[i];
		struct known k = { .op = op, .shape = { 1, m, m } };

		snprintf(k.name, sizeof(k.name), "pre_m%d_kv%d", m, m);
		CAIRN_TRY(time_known(p, &k));
	}
	return 0;
}

/* ---- pairs ---- */

static struct known *find_known(struct profile *p, const char *name)
{
	for (int i = 0; i < p->num_known; i++)
		if (!strcmp(p->known[i].name, name))
			return &p->known[i];
	return NULL;
}

/* A pair that is to be measured. */
struct couple {
	struct known *a, *b;
	struct task tasks[2];
};

static int put_pair(struct profile *p, const struct couple *c, enum cairn_search_how how,
		    const struct part parts[2], const struct timed *t)
{
	double r = c->a->ns / t->ns[0], q = c->b->ns / t->ns[1];
	int32_t left = p->num_sms - parts[1].sms;
	char members[MEMBERS], name[112];

	snprintf(name, sizeof(name), "%s__%s", c->a->name, c->b->name);
	snprintf(members, sizeof(members),
		 "\"how\":\"%s\",\"sms_a\":%d,\"sms_b\":%d,\"alone_a_ns\":%.1f,\"alone_b_ns\":%.1f,"
		 "\"pair_a_ns\":%.1f,\"pair_b_ns\":%.1f,\"r\":%.5f,\"p\":%.5f,\"gain\":%.4f,"
		 "\"tflops_a\":%.4g,\"gbps_b\":%.4g", cairn_search_how_names[how], left,
		 parts[1].sms ? parts[1].sms : p->num_sms, c->a->ns, c->b->ns, t->ns[0], t->ns[1], r, q,
		 r + q, c->a->tflops, c->b->gbps);
	return put_row(p, name, t, t->ns[0], members);
}

/*
 * An operation cannot be faster beside another one than alone: if it seems so, its time alone was disturbed.
 * Measures it again then, and keeps the shorter time.
 */
static int check_alone(struct profile *p, struct known *k, struct task *task, double pair_ns)
{
	const struct part all = { 0, 0 };
	struct timed timed;

	if (k->ns <= SUSPECT * pair_ns)
		return 0;
	CAIRN_TRY(time_alone(&p->timing, task, &all, p->opt->alone_s, &timed));
	if (timed.ns[0] >= k->ns)
		return 0;
	k->tflops *= k->ns / timed.ns[0];
	k->gbps *= k->ns / timed.ns[0];
	k->ns = timed.ns[0];
	return put_alone(p, k, p->num_sms, &timed, task);
}

static int time_how(struct profile *p, struct couple *c, enum cairn_search_how how,
		    const struct part parts[2])
{
	struct task *const tasks[2] = { &c->tasks[0], &c->tasks[1] };
	const double likely[2] = { c->a->ns, c->b->ns };
	struct timed timed;
	int ret, late;

	if (p->opt->hows && !(p->opt->hows & 1u << how))
		return 0;
	CAIRN_TRY(look_late(p, &late));
	if (late)
		return 0;
	ret = time_pair(&p->timing, tasks, parts, likely, p->opt->pair_s, &timed);
	if (ret == -ERANGE) {
		p->result->num_starved++;
		return 0;
	}
	CAIRN_TRY(ret);
	CAIRN_TRY(check_alone(p, c->a, &c->tasks[0], timed.ns[0]));
	CAIRN_TRY(check_alone(p, c->b, &c->tasks[1], timed.ns[1]));
	if (c->a->ns > DISTURBED * timed.ns[0] || c->b->ns > DISTURBED * timed.ns[1]) {
		p->result->num_disturbed++;
		return 0;
	}
	return put_pair(p, c, how, parts, &timed);
}

static int time_hows(struct profile *p, struct couple *c)
{
	const struct part plain[2] = { { 0, 0 }, { 0, 0 } }, priority[2] = { { 0, 0 }, { 0, 1 } };

	CAIRN_TRY(time_how(p, c, CAIRN_SEARCH_STREAMS, plain));
	if (!p->timing.impl->stream_create_part)
		return 0;
	CAIRN_TRY(time_how(p, c, CAIRN_SEARCH_PRIORITY, priority));
	for (int i = 0; i < p->opt->part_sms.num && !c->tasks[0].waits; i++) {
		int32_t sms = p->opt->part_sms.v[i];
		const struct part parts[2] = { { -sms, 0 }, { sms, 0 } };

		if (sms < p->num_sms)
			CAIRN_TRY(time_how(p, c, CAIRN_SEARCH_GREEN, parts));
	}
	return 0;
}

static int time_couple(struct profile *p, struct known *a, struct known *b)
{
	struct couple c = { .a = a, .b = b };
	int ret;

	CAIRN_TRY(task_open(&c.tasks[0], &p->bed, 0, a->op, &a->shape));
	ret = task_open(&c.tasks[1], &p->bed, 1, b->op, &b->shape);
	if (!ret)
		ret = time_hows(p, &c);
	task_close(&c.tasks[1]);
	task_close(&c.tasks[0]);
	return ret;
}

/* Calls fn for each product with pair_rows rows that was timed alone. */
static int each_product(struct profile *p, int (*fn)(struct profile *p, struct known *a))
{
	for (int i = 0; i < p->opt->pair_rows.num; i++)
		for (int32_t o = 0; o < p->bed.pipeline.num_ops; o++) {
			struct known *a;
			char name[48];

			snprintf(name, sizeof(name), "%s_m%d", p->bed.pipeline.ops[o].name,
				 p->opt->pair_rows.v[i]);
			a = find_known(p, name);
			if (a)
				CAIRN_TRY(fn(p, a));
		}
	return 0;
}

static int time_pairs(struct profile *p, struct known *a)
{
	for (int i = 0; i < p->opt->pair_batches.num; i++) {
		struct known want = decoding(p, p->opt->pair_batches.v[i], p->opt->contexts.v[0]);
		struct known *b = find_known(p, want.name);

		if (b)
			CAIRN_TRY(time_couple(p, a, b));
	}
	return 0;
}

static int time_network_pair(struct profile *p, struct known *a)
{
	const struct known want = all_reduce(p, a->shape.rows);
	struct known *b = find_known(p, want.name);

	return b ? time_couple(p, a, b) : 0;
}

/* ---- parts ---- */

static int time_parts(struct profile *p, struct known *a)
{
	struct timed timed;
	struct task task;
	int ret, late;

	if (!p->timing.impl->stream_create_part)
		return 0;
	CAIRN_TRY(task_open(&task, &p->bed, 0, a->op, &a->shape));
	ret = 0;
	for (int i = 0; i < p->opt->part_sms.num && !task.waits && !ret; i++) {
		const struct part part = { -p->opt->part_sms.v[i], 0 };

		if (-part.sms >= p->num_sms)
			continue;
		ret = look_late(p, &late);
		if (ret || late)
			continue;
		ret = time_alone(&p->timing, &task, &part, p->opt->alone_s, &timed);
		if (!ret)
			ret = put_alone(p, a, p->num_sms + part.sms, &timed, &task);
	}
	task_close(&task);
	return ret;
}

/* ---- the whole ---- */

static int32_t most(const struct profile_list *l)
{
	int32_t max = 0;

	for (int i = 0; i < l->num; i++)
		max = l->v[i] > max ? l->v[i] : max;
	return max;
}

static int check_ops(const struct profile *p)
{
	int known = 0, wanted = 1;

	for (const char *at = p->opt->ops; at && (at = strchr(at, ',')); at++)
		wanted++;
	for (int32_t o = 0; o < p->bed.pipeline.num_ops; o++)
		known += !p->bed.pipeline.ops[o].network && is_wanted(p, p->bed.pipeline.ops[o].name);
	known += p->opt->ranks > 1 && is_wanted(p, CAIRN_SEARCH_ALL_REDUCE);
	return !p->opt->ops || known == wanted ? 0 :
	       cairn_error(EINVAL, "ops: '%.64s' names an operation that the pipeline does not have",
			   p->opt->ops);
}

static int run_all(struct profile *p)
{
	CAIRN_TRY(check_ops(p));
	CAIRN_TRY(time_products(p));
	CAIRN_TRY(time_network(p));
	CAIRN_TRY(time_attention(p));
	CAIRN_TRY(each_product(p, time_network_pair));
	CAIRN_TRY(each_product(p, time_pairs));
	return each_product(p, time_parts);
}

int profile_run(const struct cairn_impl *impl, const struct cairn_model_config *config,
		const struct profile_options *opt, const struct profile_sink *sink,
		struct profile_result *result)
{
	struct profile *p;
	struct cairn_device_info info = { .size = sizeof(info) };
	struct bed_sizes sizes = {
		.layers = opt->layers, .page_size = opt->page_size, .max_batch = most(&opt->batches),
		.tokens = (int64_t)most(&opt->batches) * most(&opt->contexts),
		.max_rows = most(&opt->rows), .ranks = opt->ranks,
	};
	int ret;

	if (sizes.max_rows < sizes.max_batch)
		sizes.max_rows = sizes.max_batch;
	if (sizes.max_rows < most(&opt->prompts))
		sizes.max_rows = most(&opt->prompts);
	memset(result, 0, sizeof(*result));
	p = calloc(1, sizeof(*p));
	if (!p)
		return cairn_error(ENOMEM, "profile: no memory");
	p->opt = opt;
	p->sink = sink;
	p->result = result;
	p->begun_ns = cairn_clock_ns();
	ret = CAIRN_TABLE(impl, device_info, &info);
	p->num_sms = info.num_sms;
	sizes.mem_bytes = info.mem_bytes;
	if (!ret)
		ret = bed_open(&p->bed, impl, config, &sizes);
	if (!ret)
		ret = timing_open(&p->timing, impl, opt->ranks > 1 ? opt->ranks : 1);
	if (!ret)
		ret = run_all(p);
	result->seconds = seconds_since(p);
	timing_close(&p->timing);
	bed_close(&p->bed);
	free(p);
	return ret;
}
