// SPDX-License-Identifier: Apache-2.0
/* advise - replays every way to use the GPUs and compares tokens per dollar (advise.h) */
#include "serving/disagg/advise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/disagg/disagg_fault.h"

struct list {
	struct cairn_disagg_way *ways;
	int32_t num, room;
};

static int add(struct list *l, const struct cairn_disagg_gpu *model_gpu,
	       const struct cairn_disagg_gpu *attn_gpu, int32_t a, int32_t b, int32_t replicas, int32_t lanes)
{
	if (l->num == l->room) {
		int32_t room = l->room ? 2 * l->room : 64;
		void *more = realloc(l->ways, (size_t)room * sizeof(*l->ways));

		if (!more)
			return cairn_error(ENOMEM, "advise: out of memory");
		l->ways = more;
		l->room = room;
	}
	l->ways[l->num++] = (struct cairn_disagg_way){
		.model_gpu = model_gpu, .attn_gpu = attn_gpu, .a = a, .b = b, .replicas = replicas,
		.lanes = lanes,
		.dollars_per_hour = a * model_gpu->dollars_per_hour + b * attn_gpu->dollars_per_hour,
	};
	return 0;
}

static bool is_group(int32_t tp)
{
	return tp == 1 || ((tp == 2 || tp == 4 || tp == 8) && !FAULT(TP_NEVER));
}

static int add_whole(struct list *l, const struct cairn_disagg_hardware *hw, int32_t most)
{
	for (int32_t g = 0; g < hw->num_gpus; g++)
		for (int32_t tp = 1; tp <= most; tp++)
			if (is_group(tp))
				CAIRN_TRY(add(l, &hw->gpus[g], &hw->gpus[g], tp, 0, 1, 1));
	return 0;
}

/* Adds `a` model workers of kind x with `b` attention workers of kind y, for all lanes and replicas. */
static int add_degrees(struct list *l, const struct cairn_disagg_gpu *x, const struct cairn_disagg_gpu *y,
		       int32_t a, int32_t b, int32_t most_lanes)
{
	for (int32_t lanes = 1; lanes <= most_lanes; lanes++)
		for (int32_t replicas = 1; replicas <= lanes && replicas <= a; replicas++)
			if (a % replicas == 0 && is_group(a / replicas))
				CAIRN_TRY(add(l, x, y, a, b, replicas, lanes));
	return 0;
}

bool cairn_disagg_allows(const struct cairn_disagg_limits *limits, const struct cairn_disagg_gpu *model_gpu,
			 const struct cairn_disagg_gpu *attn_gpu)
{
	return (!limits->model_gpu || !strcmp(limits->model_gpu, model_gpu->name)) &&
	       (!limits->attn_gpu || !strcmp(limits->attn_gpu, attn_gpu->name));
}

/* Calls add_degrees() for all a and b that the limits allow. x and y may be the same kind of GPU. */
static int add_pairs(struct list *l, const struct cairn_disagg_gpu *x, const struct cairn_disagg_gpu *y,
		     const struct cairn_disagg_limits *limits)
{
	for (int32_t a = 1; a < limits->most_gpus; a++)
		for (int32_t b = 1; a + b <= limits->most_gpus; b++)
			if ((!limits->a || a == limits->a) && (!limits->b || b == limits->b))
				CAIRN_TRY(add_degrees(l, x, y, a, b, limits->most_lanes));
	return 0;
}

static int add_apart(struct list *l, const struct cairn_disagg_hardware *hw,
		     const struct cairn_disagg_limits *limits)
{
	for (int32_t x = 0; x < hw->num_gpus; x++)
		for (int32_t y = 0; y < hw->num_gpus; y++)
			if (cairn_disagg_allows(limits, &hw->gpus[x], &hw->gpus[y]))
				CAIRN_TRY(add_pairs(l, &hw->gpus[x], &hw->gpus[y], limits));
	return 0;
}

static int replay(struct cairn_disagg_way *w, const struct cairn_trace *trace,
		  const struct cairn_disagg_model *model, const struct cairn_disagg_hardware *hw,
		  const struct cairn_disagg_limits *limits)
{
	struct cairn_disagg_system s = { model, w->model_gpu, w->attn_gpu, hw->link, w->replicas,
					 w->a / w->replicas, w->b };
	struct cairn_replay_options options = limits->replay;
	int ret;

	options.lanes = w->lanes;
	ret = cairn_replay(trace, &s, &options, &w->result);
	w->runs = !ret;
	if (ret == -ERANGE)
		snprintf(w->why, sizeof(w->why), "%.90s", cairn_last_error());
	if (!ret && options.tbt_ms > 0 && w->result.p99_tbt_ms > options.tbt_ms) {
		w->runs = false;
		snprintf(w->why, sizeof(w->why), "the p99 of the time between tokens is %.1f ms",
			 w->result.p99_tbt_ms);
	}
	if (w->runs)
		w->tokens_per_dollar = w->result.tokens_per_s * 3600 / w->dollars_per_hour;
	return ret == -ERANGE ? 0 : ret;
}

static int by_dollar(const void *a, const void *b)
{
	const struct cairn_disagg_way *x = a, *y = b;
	double p = FAULT(PRICE_IGNORED) ? x->result.tokens_per_s : x->tokens_per_dollar;
	double q = FAULT(PRICE_IGNORED) ? y->result.tokens_per_s : y->tokens_per_dollar;

	if (x->runs != y->runs)
		return x->runs ? -1 : 1;
	return (p < q) - (p > q);
}

/* Returns the best rate of whole engines on num GPUs of a kind, all of one size. */
static double whole_rate(const struct cairn_disagg_advice *out, const struct cairn_disagg_gpu *gpu,
			 int32_t num, int32_t *engines, int32_t *tp)
{
	double best = 0;

	for (int32_t i = 0; i < out->num_whole; i++) {
		const struct cairn_disagg_way *w = &out->ways[i];
		double rate = num / w->a * w->result.tokens_per_s;

		if (w->model_gpu == gpu && w->runs && rate > best) {
			best = rate;
			*engines = num / w->a;
			*tp = w->a;
		}
	}
	return best;
}

static void compare_same(struct cairn_disagg_advice *out)
{
	const struct cairn_disagg_way *w = out->apart;
	bool one_kind = w->model_gpu == w->attn_gpu;
	int32_t engines[2] = { 0 }, tp[2] = { 1, 1 };

	for (int32_t i = out->num_whole - 1; i >= 0; i--)
		if (out->ways[i].runs && out->ways[i].model_gpu == w->model_gpu)
			out->same_model = &out->ways[i];
	out->same_tokens_per_s = whole_rate(out, w->model_gpu, w->a + (one_kind ? w->b : 0), &engines[0],
					    &tp[0]);
	if (!one_kind)
		out->same_tokens_per_s += whole_rate(out, w->attn_gpu, w->b, &engines[1], &tp[1]);
	if (engines[1])
		snprintf(out->same, sizeof(out->same), "%d of %d %s, %d of %d %s", engines[0], tp[0],
			 w->model_gpu->name, engines[1], tp[1], w->attn_gpu->name);
	else
		snprintf(out->same, sizeof(out->same), "%d of %d %s", engines[0], tp[0], w->model_gpu->name);
}

static int replay_all(struct list *l, const struct cairn_trace *trace, const struct cairn_disagg_model *model,
		      const struct cairn_disagg_hardware *hw, const struct cairn_disagg_limits *limits)
{
	int ret = 0;

#pragma omp parallel for schedule(dynamic)
	for (int32_t i = 0; i < l->num; i++)
		if (replay(&l->ways[i], trace, model, hw, limits)) {
#pragma omp atomic write
			ret = -ENOMEM;
		}
	return ret ? cairn_error(ENOMEM, "advise: out of memory") : 0;
}

int cairn_disagg_advise(struct cairn_disagg_advice *out, const struct cairn_trace *trace,
			const struct cairn_disagg_model *model, const struct cairn_disagg_hardware *hw,
			const struct cairn_disagg_limits *limits)
{
	struct list l = { NULL, 0, 0 };
	int ret = add_whole(&l, hw, limits->most_gpus);

	memset(out, 0, sizeof(*out));
	out->num_whole = l.num;
	if (!ret)
		ret = add_apart(&l, hw, limits);
	if (!ret)
		ret = replay_all(&l, trace, model, hw, limits);
	if (ret) {
		free(l.ways);
		return ret;
	}
	out->ways = l.ways;
	out->num_ways = l.num;
	qsort(l.ways, (size_t)out->num_whole, sizeof(*l.ways), by_dollar);
	qsort(l.ways + out->num_whole, (size_t)(l.num - out->num_whole), sizeof(*l.ways), by_dollar);
	out->whole = l.ways[0].runs ? &l.ways[0] : NULL;
	if (l.num > out->num_whole && l.ways[out->num_whole].runs)
		out->apart = &l.ways[out->num_whole];
	if (out->apart)
		compare_same(out);
	out->do_it = out->apart &&
		     (!out->whole || out->apart->tokens_per_dollar > out->whole->tokens_per_dollar);
	return 0;
}

void cairn_disagg_advice_free(struct cairn_disagg_advice *advice)
{
	free(advice->ways);
	advice->ways = NULL;
}
