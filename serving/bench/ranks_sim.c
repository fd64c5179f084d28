// SPDX-License-Identifier: Apache-2.0
/* ranks_sim - simulates context parallelism */
#include "serving/bench/ranks_sim.h"

#include <math.h>
#include <string.h>

#include "conformance/abi.h"
#include "primitives/base/error.h"

#define MAX	CAIRN_COMM_MAX_RANKS

/* When the streams and links of all ranks become free. */
struct sim {
	const struct cairn_sim_costs *c;
	enum cairn_sim_way way;
	int32_t n;
	double tokens;
	double stream[MAX], link[MAX];
};

int cairn_sim_fit(struct cairn_sim_costs *c, int64_t a, double a_ns, int64_t b, double b_ns)
{
	const double rows = (double)a, more = (double)b, layers = c->layers;
	/* time / tokens = layers * (row_ns + pair_ns * tokens / 2) */
	const double slope = (b_ns / more - a_ns / rows) / (more - rows);

	c->pair_ns = 2 * slope / layers;
	c->row_ns = (a_ns / rows - slope * rows) / layers;
	if (!(a < b) || !(c->pair_ns > 0) || !(c->row_ns > 0))
		return cairn_error(EINVAL, "ranks_sim: %.4g ns for %lld tokens and %.4g ns for %lld tokens "
				   "do not fit", a_ns, (long long)a, b_ns, (long long)b);
	return 0;
}

static double send_ns(const struct sim *s, double bytes)
{
	return s->c->alpha_ns + bytes / s->c->gb_per_s;
}

/* Every rank sends `bytes` to each other rank, and waits for those of all. */
static void exchange(struct sim *s, double bytes)
{
	double all = 0;

	if (s->n < 2)
		return;
	for (int32_t r = 0; r < s->n; r++) {
		s->link[r] = fmax(s->link[r], s->stream[r]) + s->c->alpha_ns +
			     (s->n - 1) * bytes / s->c->exchange_gb_per_s;
		all = fmax(all, s->link[r]);
	}
	for (int32_t r = 0; r < s->n; r++)
		s->stream[r] = all;
}

static void heads_layer(struct sim *s)
{
	const double rows = s->tokens / s->n;

	for (int32_t r = 0; r < s->n; r++)
		s->stream[r] += s->c->row_ns * rows;
	exchange(s, rows * (s->c->q_bytes + s->c->kv_bytes) / s->n);
	for (int32_t r = 0; r < s->n; r++)
		s->stream[r] += s->c->pair_ns * s->tokens * s->tokens / 2 / s->n;
	exchange(s, rows * s->c->out_bytes / s->n);
}

/* The number of the first or second piece of rank r, of 2n. */
static int32_t piece(const struct sim *s, int32_t r, int second)
{
	if (s->way == CAIRN_SIM_CONTIGUOUS)
		return 2 * r + second;
	return second ? 2 * s->n - 1 - r : r;
}

/* Returns how many pairs of a row of rank r and a key of rank k there are that attention computes. */
static double pairs(const struct sim *s, int32_t r, int32_t k)
{
	const double size = s->tokens / (2 * s->n);
	double sum = 0;

	for (int i = 0; i < 4; i++) {
		const int32_t rows = piece(s, r, i / 2), keys = piece(s, k, i % 2);

		sum += keys < rows ? size * size : keys == rows ? size * size / 2 : 0;
	}
	return sum;
}

static double copy_ns(const struct sim *s, double bytes)
{
	return bytes / s->c->copy_gb_per_s;
}

/* Returns how much later than on average the last unit of attention to the keys of others ends. */
static double tail_ns(const struct sim *s, int32_t r)
{
	const double size = s->tokens / (2 * s->n);
	const int32_t first = piece(s, r, 0), second = piece(s, r, 1);
	const int32_t later = first > second ? first : second, earlier = first + second - later;
	/* the units of the earlier piece come last, if its rows see keys of others */
	const double keys = size * (earlier ? earlier : later - 1);
	const double units = size / s->c->unit_tokens * s->c->kv_heads * (earlier ? 2 : 1);

	if (!s->c->sms || units < 4 * s->c->sms)
		return 0;	/* units are cut, so that all SMs end together */
	return s->c->pair_ns * keys * s->c->unit_tokens / s->c->kv_heads * s->c->sms / 2;
}

/*
 * Sends the keys of all ranks around the ring. ready[r] is the time at which the keys of rank r may be sent;
 * on return, it is the time at which rank r has received the keys of all other ranks.
 */
static void travel(struct sim *s, double bytes, double ready[MAX])
{
	double arrived[MAX];

	for (int32_t t = 1; t < s->n; t++) {
		for (int32_t r = 0; r < s->n; r++) {
			s->link[r] = fmax(s->link[r], ready[r]) + send_ns(s, bytes);
			arrived[(r + 1) % s->n] = s->link[r];
		}
		memcpy(ready, arrived, sizeof(arrived));
	}
}

static void ring_layer(struct sim *s)
{
	const double rows = s->tokens / s->n, bytes = rows * s->c->kv_bytes;
	double ready[MAX] = { 0 };

	for (int32_t r = 0; r < s->n; r++) {
		s->stream[r] += s->c->row_ns * rows + (s->n > 1 ? copy_ns(s, 2 * bytes) : 0);
		ready[r] = s->stream[r];
	}
	travel(s, bytes, ready);
	for (int32_t r = 0; r < s->n; r++) {
		s->stream[r] = fmax(s->stream[r] + s->c->pair_ns * pairs(s, r, r), ready[r]);
		for (int32_t k = 0; k < s->n; k++)
			s->stream[r] += k == r ? 0 : s->c->pair_ns * pairs(s, r, k);
		/* two results are read, one is written */
		if (s->n > 1)
			s->stream[r] += copy_ns(s, 2 * (s->n - 1) * bytes) + tail_ns(s, r) +
					3 * rows * s->c->out_bytes / s->c->merge_gb_per_s +
					RING_LAUNCHES * s->c->launch_ns;
	}
}

double cairn_sim_prefill(const struct cairn_sim_costs *c, enum cairn_sim_way way, int32_t n, int64_t tokens)
{
	struct sim s = { .c = c, .way = way, .n = n, .tokens = (double)tokens };
	double end = 0;

	for (int32_t l = 0; l < c->layers; l++)
		(way == CAIRN_SIM_HEADS ? heads_layer : ring_layer)(&s);
	for (int32_t r = 0; r < n; r++)
		end = fmax(end, s.stream[r]);
	return end;
}
