/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_file - plan files: schedules for the passes of one model on one GPU
 *
 * A file is named GPU_SHAPE_tpRANKS.json and holds one object:
 *
 *   v                                    2; raised whenever a plan comes to mean something else
 *   gpu, impl, kernels                   name of the GPU; the table, and the digest of its operations'
 *                                        sources (program.h): times and bits depend on them
 *   shape, ranks, sms                    digest of the model's sizes; ranks; SMs of the GPU
 *   entries                              one object for each kind of pass
 *     rows, decode_eighths, context      of the pass: rows, decoding rows in eighths of them, cached tokens
 *                                        of each decoding request, a power of two
 *     cuts                               first row of each nano-batch but the first, ascending
 *     decode                             decoding rows of each nano-batch
 *     parts                              the nano-operations in the order of their starts: op, nano, start in
 *                                        periods, r, how, sms. r 1: the operation runs alone.
 *     sequential_ms, predicted_ms        all layers of the pass, one operation after another, and by the plan
 *     gap                                share by which a better schedule could be better; null: not known
 *     measured_sequential_ms,
 *     measured_ms                        the same on the GPU; null until measured
 *
 * Errors: -EINVAL: the text names file and member. -EIO, -ENOMEM.
 */
#ifndef CAIRN_PLAN_FILE_H
#define CAIRN_PLAN_FILE_H

#include "serving/search/search.h"

#define CAIRN_PLAN_FILE_VERSION		2
#define CAIRN_SEARCH_MOST_ENTRIES	256
#define CAIRN_SEARCH_LEAST_GAIN	1.02	/* measured; below, the engine runs sequentially */
#define CAIRN_PLAN_FILE_MOST_ROWS	1.25

struct cairn_plan_file_part {
	char op[CAIRN_SEARCH_NAME];
	int32_t nano;
	double start, r;
	enum cairn_search_how how;
	int32_t sms;
};

struct cairn_plan_file_entry {
	int32_t rows, decode_eighths, context;
	int32_t nanos, cuts[CAIRN_SEARCH_MOST_SPLIT - 1], decode[CAIRN_SEARCH_MOST_SPLIT];
	struct cairn_plan_file_part parts[CAIRN_SEARCH_MOST_PARTS];
	int32_t num_parts;
	double sequential_ms, predicted_ms;
	double gap;					/* INFINITY: not known */
	double measured_sequential_ms, measured_ms;	/* 0: not measured */
};

struct cairn_plan_file {
	char gpu[96], impl[64], kernels[32], shape[64];
	int32_t ranks, sms;
	struct cairn_plan_file_entry *entries;
	int32_t num_entries;
	uint64_t digest;	/* of the text that was read; never 0 then */
};

/* What the running program has. measured: entries must have been measured. */
struct cairn_plan_file_for {
	const char *gpu, *impl, *kernels, *shape;
	int32_t ranks;
	bool measured;
};

int cairn_plan_file_create(struct cairn_plan_file **out, const struct cairn_search_profile *profile,
			   const struct cairn_search_pipeline *pipeline);
void cairn_plan_file_free(struct cairn_plan_file *plan);	/* NULL is legal */
/* Appends the best schedule of a search. */
int cairn_plan_file_add(struct cairn_plan_file *plan, const struct cairn_search_problem *problem,
			const struct cairn_search_found *found);
/* Writes "GPU_SHAPE_tpRANKS.json" to name; spaces of the GPU's name become _. */
void cairn_plan_file_name(const char *gpu, const char *shape, int32_t ranks, char *name, size_t len);
/* Replaces the file at once: it is never half-written. */
int cairn_plan_file_write(const struct cairn_plan_file *plan, const char *path);

/* Reads a plan and checks all of it. It refuses one for another GPU, table, digest, shape or number
 * of ranks. */
int cairn_plan_file_read(struct cairn_plan_file **out, const char *path,
			 const struct cairn_plan_file_for *want);
/* The same for a file in memory; path: its name in messages. */
int cairn_plan_file_parse(struct cairn_plan_file **out, const char *text, size_t num_bytes, const char *path,
			  const struct cairn_plan_file_for *want);

/* Returns whether the entry's measured gain is at least CAIRN_SEARCH_LEAST_GAIN. */
bool cairn_plan_file_has_gain(const struct cairn_plan_file_entry *entry);

/*
 * Returns the entry to use for a pass, or NULL to run it sequentially. decode: its decoding rows; context:
 * their mean number of keys. An entry fits a pass if all of these hold:
 *
 *   - The pass has at least as many rows as the entry, and at most CAIRN_PLAN_FILE_MOST_ROWS times as many.
 *     Cuts grow with the pass, so the entry's measured times say little about a much larger one.
 *   - The share of decoding rows, rounded to eighths, is the entry's decode_eighths.
 *   - The context, rounded to a power of two, is the entry's, or no row decodes.
 *   - The entry's measured gain is at least CAIRN_SEARCH_LEAST_GAIN.
 *
 * If several entries fit, those with the most rows are preferred, then the one with the nearest share of
 * decoding rows, then the one with the nearest context.
 */
const struct cairn_plan_file_entry *cairn_plan_file_pick(const struct cairn_plan_file *plan, int32_t rows,
							  int32_t decode, int32_t context);

#endif
