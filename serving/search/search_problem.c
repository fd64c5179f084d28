// SPDX-License-Identifier: Apache-2.0
/* search_problem - the times and levels of a pass, taken from a profile */
#include "serving/search/search_problem.h"

#include <math.h>
#include <string.h>

#include "primitives/base/error.h"

/*
 * Adds the level at which operations bound by arithmetic run beside level m of memory and level n of the
 * network (0: nothing of that kind). Does nothing if no share is left to them, if another level has the same
 * share, or if there are too many levels.
 */
static void add_level(struct cairn_search_problem *p, int32_t m, int32_t n)
{
	const struct cairn_search_level *memory = p->levels[CAIRN_SEARCH_MEMORY];
	const struct cairn_search_level *network = p->levels[CAIRN_SEARCH_NETWORK];
	const struct cairn_search_level *of = m ? &memory[m] : &network[n];
	struct cairn_search_level *levels = p->levels[CAIRN_SEARCH_COMPUTE];
	double r = 1 - (m ? memory[m].r : 0) - (n ? network[n].r : 0);
	int32_t *num = &p->num_levels[CAIRN_SEARCH_COMPUTE], at = *num;

	for (int32_t i = 0; i < *num; i++)
		if (fabs(levels[i].r - r) < 1e-9)
			return;
	if (r <= 1e-9 || *num == CAIRN_SEARCH_MOST_LEVELS)
		return;
	for (; at > 1 && levels[at - 1].r < r; at--) {
		levels[at] = levels[at - 1];
		for (int32_t o = 0; o < p->num_ops; o++)
			if (p->kinds[o] == CAIRN_SEARCH_COMPUTE)
				p->speed[o][at] = p->speed[o][at - 1];
	}
	levels[at] = (struct cairn_search_level){ r, r, of->how, of->other_sms, of->sms };
	(*num)++;
	for (int32_t o = 0; o < p->num_ops; o++) {
		double lost = (m ? 1 - p->keeps[CAIRN_SEARCH_MEMORY][m][o] : 0) +
			      (n ? 1 - p->keeps[CAIRN_SEARCH_NETWORK][n][o] : 0);

		if (p->kinds[o] == CAIRN_SEARCH_COMPUTE)	/* the sum of both may leave it nothing */
			p->speed[o][at] = lost < 1 ? 1 - lost : r;
	}
}

void cairn_search_compute_levels(struct cairn_search_problem *p)
{
	p->levels[CAIRN_SEARCH_COMPUTE][0] = p->levels[CAIRN_SEARCH_MEMORY][0];
	p->num_levels[CAIRN_SEARCH_COMPUTE] = 1;
	for (int32_t o = 0; o < p->num_ops; o++)
		for (int32_t i = 0; i < p->num_levels[p->kinds[o]]; i++)
			p->speed[o][i] = p->levels[p->kinds[o]][i].p;
	for (int32_t m = 1; m < p->num_levels[CAIRN_SEARCH_MEMORY]; m++)
		add_level(p, m, 0);
	for (int32_t n = 1; n < p->num_levels[CAIRN_SEARCH_NETWORK]; n++)
		add_level(p, 0, n);
	for (int32_t m = 1; m < p->num_levels[CAIRN_SEARCH_MEMORY]; m++)
		for (int32_t n = 1; n < p->num_levels[CAIRN_SEARCH_NETWORK]; n++)
			add_level(p, m, n);
}

/* With two tables, each has few levels, because the sums of both are levels of the third kind. */
static int take_levels(struct cairn_search_problem *p, const struct cairn_search_profile *profile,
		       unsigned hows)
{
	int network = 0;

	for (int32_t i = 0; i < p->num_ops; i++)
		network |= p->ops[i].network;
	for (int kind = CAIRN_SEARCH_MEMORY; kind < CAIRN_NUM_SEARCH_KINDS; kind++) {
		int32_t num = cairn_search_curve(profile, (enum cairn_search_kind)kind, hows, p->levels[kind],
						 network ? 4 : 8);

		if (num < 0)
			return num;
		p->num_levels[kind] = kind == CAIRN_SEARCH_NETWORK && !network ? 1 : num;
		for (int32_t i = 1; i < p->num_levels[kind]; i++)
			for (int32_t o = 0; o < p->num_ops; o++)
				p->keeps[kind][i][o] = cairn_search_keeps(profile, p->ops[o].name,
									  (enum cairn_search_kind)kind,
									  &p->levels[kind][i]);
	}
	cairn_search_compute_levels(p);
	return 0;
}

static int take_attn(struct cairn_search_problem *p, const struct cairn_search_profile *profile)
{
	struct cairn_search_line line;
	int32_t prompt = p->pass.rows - p->pass.decode;

	p->base_ms = p->request_ms = p->row_ms = 0;
	if (p->pass.decode) {
		CAIRN_TRY(cairn_search_profile_line(profile, "dec", &line));
		p->base_ms = line.base_ms;
		p->request_ms = line.slope_ms * p->pass.context;
	}
	/* A prompt's rows attend to half of it on average. */
	if (prompt && cairn_search_profile_has(profile, "pre")) {
		CAIRN_TRY(cairn_search_profile_line(profile, "pre", &line));
		p->base_ms += line.base_ms;
		p->row_ms = line.slope_ms * 0.5 * prompt;
	}
	return 0;
}

/* Returns the name that the operation has in a profile: collectives of a layer are all the same one. */
static const char *measured_as(const struct cairn_search_op *op)
{
	return op->network ? CAIRN_SEARCH_ALL_REDUCE : op->name;
}

/* Takes the sizes for which the profile has every operation. */
static int take_times(struct cairn_search_problem *p, const struct cairn_search_profile *profile)
{
	for (int32_t o = 0; o < p->num_ops; o++)
		if (!p->ops[o].attention)
			CAIRN_TRY(cairn_search_profile_ms(profile, measured_as(&p->ops[o]), p->pass.rows,
							  &p->whole_ms[o]));
	p->num_sizes = 0;
	for (int32_t b = CAIRN_SEARCH_TILE; b < p->pass.rows; b += CAIRN_SEARCH_TILE) {
		int missing = 0;

		for (int32_t o = 0; o < p->num_ops; o++)
			if (!p->ops[o].attention && !p->ops[o].whole)
				missing |= cairn_search_profile_ms(profile, measured_as(&p->ops[o]), b,
								   &p->ms[o][p->num_sizes]) != 0;
		if (missing)
			continue;
		if (p->num_sizes == CAIRN_SEARCH_MOST_SIZES)
			return cairn_error(EINVAL, "search: more than %d sizes of nano-batches",
					   CAIRN_SEARCH_MOST_SIZES);
		p->sizes[p->num_sizes++] = b;
	}
	return 0;
}

int cairn_search_problem(struct cairn_search_problem *out, const struct cairn_search_pipeline *pipeline,
			 const struct cairn_model_config *config, const struct cairn_search_profile *profile,
			 const struct cairn_search_pass *pass, unsigned hows)
{
	memset(out, 0, sizeof(*out));
	memcpy(out->ops, pipeline->ops, sizeof(out->ops));
	memcpy(out->edges, pipeline->edges, sizeof(out->edges));
	out->num_ops = pipeline->num_ops;
	out->num_edges = pipeline->num_edges;
	out->num_layers = pipeline->num_layers;
	out->pass = *pass;
	if (pass->rows % CAIRN_SEARCH_TILE || pass->rows <= 0 || pass->decode < 0 ||
	    pass->decode > pass->rows ||
	    pass->context < 1)
		return cairn_error(EINVAL,
				   "search: a pass of %d rows, %d of them decoding with context %d: rows "
				   "must be a multiple of %d", pass->rows, pass->decode, pass->context,
				   CAIRN_SEARCH_TILE);
	if (!(profile->tflops > 0) || !(profile->gbps > 0))
		return cairn_error(EINVAL, "profile: no row has %s",
				   profile->tflops > 0 ? "gbps_b" : "tflops_a");
	CAIRN_TRY(cairn_search_kinds(pipeline, config, pass, profile->tflops, profile->gbps, out->kinds));
	CAIRN_TRY(take_times(out, profile));
	CAIRN_TRY(take_attn(out, profile));
	return take_levels(out, profile, hows);
}

double cairn_search_attn_ms(const struct cairn_search_problem *p, int32_t rows, int32_t decode)
{
	return p->base_ms + p->request_ms * decode + p->row_ms * (rows - decode);
}

double cairn_search_sequential_ms(const struct cairn_search_problem *p)
{
	double ms = 0;

	for (int32_t o = 0; o < p->num_ops; o++)
		ms += p->ops[o].attention ? cairn_search_attn_ms(p, p->pass.rows, p->pass.decode) :
					    p->whole_ms[o];
	return ms;
}

double cairn_search_part_ms(const struct cairn_search_problem *p, const struct cairn_search_parts *parts,
			    const struct cairn_search_schedule *s, int32_t part)
{
	int32_t op = parts->parts[part].op, nano = parts->parts[part].nano, b = 0;

	if (p->ops[op].attention)
		return cairn_search_attn_ms(p, s->size[nano], s->decode[nano]);
	if (p->ops[op].whole)
		return p->whole_ms[op];
	while (p->sizes[b] != s->size[nano])
		b++;
	return p->ms[op][b];
}

const struct cairn_search_level *cairn_search_level_of(const struct cairn_search_problem *p,
						       const struct cairn_search_parts *parts,
						       const struct cairn_search_schedule *s, int32_t part)
{
	return &p->levels[p->kinds[parts->parts[part].op]][s->level[part]];
}

double cairn_search_speed(const struct cairn_search_problem *p, const struct cairn_search_parts *parts,
			  const struct cairn_search_schedule *s, int32_t part)
{
	return p->speed[parts->parts[part].op][s->level[part]];
}

double cairn_search_level_ms(const struct cairn_search_problem *p, const struct cairn_search_parts *parts,
			     const struct cairn_search_schedule *s, int32_t part)
{
	return cairn_search_part_ms(p, parts, s, part) / cairn_search_speed(p, parts, s, part);
}
