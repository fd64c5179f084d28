// SPDX-License-Identifier: Apache-2.0
/* search_print - writes pipelines and results of a search as text */
#include "serving/search/search_print.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 96 };

void cairn_search_print_ops(const struct cairn_search_problem *p, FILE *file)
{
	double all = cairn_search_sequential_ms(p);

	for (int32_t o = 0; o < p->num_ops; o++) {
		double ms = p->ops[o].attention ? cairn_search_attn_ms(p, p->pass.rows, p->pass.decode) :
						  p->whole_ms[o];

		fprintf(file, "  %-10s %-7s %5.1f%%%s  %s\n", p->ops[o].name,
			cairn_search_kind_names[p->kinds[o]],
			100 * ms / all, p->ops[o].whole ? "  whole" : "", p->ops[o].covers);
	}
}

static void print_gap(double gap, double seconds, FILE *file)
{
	if (isfinite(gap))
		fprintf(file, " (gap %.2f%%, %.1f s)", 100 * gap, seconds);
	else
		fprintf(file, " (gap unknown, %.1f s)", seconds);
}

static void print_tries(const struct cairn_search_problem *p, const struct cairn_search_found *f, FILE *file)
{
	fprintf(file, "  sequential: %.3f ms a pass, %.4f ms a layer\n", f->sequential_ms,
		f->sequential_ms / p->num_layers);
	for (int32_t i = 0; i < f->num_tries; i++) {
		const struct cairn_search_try *t = &f->tries[i];

		fprintf(file, "  %d nano-batches: a layer %.4f ms without interference", t->nanos,
			t->stage1_ms);
		print_gap(t->stage1_gap, t->stage1_s, file);
		fprintf(file, ", %.4f ms with it", t->stage2_ms);
		print_gap(t->stage2_gap, t->stage2_s, file);
		fprintf(file, ";\n    a pass %.3f ms, %.3fx; from queues %.3f ms, %.3fx\n", t->pass_ms,
			f->sequential_ms / t->pass_ms, t->fluid_ms, f->sequential_ms / t->fluid_ms);
	}
}

/* Writes a part's name over its cells of a line that is one period; what exceeds the period wraps around. */
static void draw(char *line, const char *name, double start, double share)
{
	int from = (int)lround(start * WIDTH), cells = (int)lround((start + share) * WIDTH) - from;
	int length = (int)strlen(name);

	for (int i = 0; i < cells; i++)
		line[(from + i) % WIDTH] = i == 0 ? '|' : i <= length ? name[i - 1] : '=';
}

static void print_timeline(const struct cairn_search_problem *p, const struct cairn_search_found *f,
			   FILE *file)
{
	const struct cairn_search_schedule *s = &f->schedule;

	for (int kind = 0; kind < CAIRN_NUM_SEARCH_KINDS; kind++) {
		char line[WIDTH + 1], name[CAIRN_SEARCH_NAME + 8];
		int used = 0;

		memset(line, ' ', WIDTH);
		line[WIDTH] = 0;
		for (int32_t i = 0; i < f->parts.num_parts; i++) {
			const struct cairn_search_part *part = &f->parts.parts[i];

			if ((int)p->kinds[part->op] != kind)
				continue;
			used = 1;
			snprintf(name, sizeof(name), "%s.%d", p->ops[part->op].name, part->nano);
			draw(line, name, s->start[i] - floor(s->start[i]),
			     cairn_search_level_ms(p, &f->parts, s, i) / s->period_ms);
		}
		if (used)
			fprintf(file, "  %-8s|%s|\n", cairn_search_kind_names[kind], line);
	}
}

static void print_parts(const struct cairn_search_problem *p, const struct cairn_search_found *f, FILE *file)
{
	const struct cairn_search_schedule *s = &f->schedule;
	uint8_t done[CAIRN_SEARCH_MOST_PARTS] = { 0 };

	fprintf(file, "  %-12s %9s %9s %6s %6s  %-10s %s\n", "operation", "start ms", "end ms", "R", "P",
		"how", "SMs");
	for (int32_t n = 0; n < f->parts.num_parts; n++) {
		const struct cairn_search_level *level;
		const struct cairn_search_part *part;
		int32_t i = -1;
		double start;

		for (int32_t k = 0; k < f->parts.num_parts; k++)
			if (!done[k] && (i < 0 || s->start[k] < s->start[i]))
				i = k;
		done[i] = 1;
		part = &f->parts.parts[i];
		level = cairn_search_level_of(p, &f->parts, s, i);
		start = s->start[i] * s->period_ms;
		fprintf(file, "  %-10s.%d %9.4f %9.4f %6.3f %6.3f  %-10s %d\n", p->ops[part->op].name,
			part->nano, start, start + cairn_search_level_ms(p, &f->parts, s, i), level->r,
			cairn_search_speed(p, &f->parts, s, i), cairn_search_how_names[level->how],
			level->sms);
	}
}

void cairn_search_print_found(const struct cairn_search_problem *p, const struct cairn_search_found *f,
			      FILE *file)
{
	const struct cairn_search_schedule *s = &f->schedule;

	print_tries(p, f, file);
	fprintf(file, "  best:");
	for (int32_t i = 0; i < s->nanos; i++)
		fprintf(file, "%s %d rows (%d decoding)", i ? "," : "", s->size[i], s->decode[i]);
	fprintf(file, "\n");
	print_parts(p, f, file);
	fprintf(file, "  one layer of %.4f ms in the steady state:\n", s->period_ms);
	print_timeline(p, f, file);
}
