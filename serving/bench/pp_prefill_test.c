// SPDX-License-Identifier: Apache-2.0
/*
 * pp_prefill_test - time to the first token on the stages of a pipeline: rows of `cairn bench`
 *
 *   llama3_8b_32k_n2_chunk1024   random weights of llama3-8b; a prompt of 32K tokens in one pass on two
 *                                GPUs, with a first chunk of 1024 rows. n1: one GPU, passes of so many rows
 *   simulated_ranks_...          the same counted, not timed, with the chunks of an H200: products and
 *                                attention take the time of their multiplications, communication takes none
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/bench/ranks_load_test.h"
#include "serving/model/model_graph.h"
#include "serving/pipeline/pipeline.h"

#define RUNS	4	/* with the one that warms up */

struct setting {
	const char *impl, *shape;	/* shape NULL: the embedded model's, with random weights */
	int32_t stages, tokens, chunk;
};

static int run(struct cairn_test *t, const struct setting *s, struct ranks_times *times)
{
	const struct ranks_model m = { .impl = s->impl, .shape = s->shape, .pp = s->stages };
	const struct ranks_load l = {
		.batch = 1, .tokens = s->tokens, .rows = s->stages > 1 ? s->tokens : s->chunk,
		.chunk = s->chunk, .page_size = s->shape ? 64 : 16, .runs = s->shape ? RUNS : 2,
	};

	return ranks_measure(t, &m, &l, 1, times);
}

static void name_case(char *name, size_t len, const struct setting *s, const char *before)
{
	snprintf(name, len, "%s_%dk_n%d_chunk%d", before, s->tokens >> 10, s->stages, s->chunk);
}

static void measure(struct cairn_test *t, int32_t stages, int32_t tokens, int32_t chunk)
{
	const struct setting s = { "cuda", "llama3-8b", stages, tokens, chunk };
	struct ranks_times times;
	char name[64];

	name_case(name, sizeof(name), &s, "llama3_8b");
	if (!run(t, &s, &times))
		cairn_row(t, name, "cuda", "\"prompt_tokens\":%d,\"stages\":%d,\"chunk_rows\":%d,"
			  "\"first_token_ns\":%lld,\"min_ns\":%lld", tokens, stages, chunk,
			  (long long)times.first_ns, (long long)times.first_min_ns);
}

/* On the CPU: the two stages of a small model and the whole one give a first token. */
static void small(struct cairn_test *t)
{
	struct setting s = { "cpu", NULL, 2, 200, 32 };
	struct ranks_times times;

	if (!run(t, &s, &times))
		EXPECT(t, times.first_min_ns > 0 && times.first_ns >= times.first_min_ns);
	s.stages = 1;
	run(t, &s, &times);
}

/* ---- simulated ---- */

static double time_of(int64_t keys, int32_t first, int32_t end)
{
	const double c = end - first, l = first;

	return (double)keys * c + ((l + c) * (l + c) - l * l + c) / 2;
}

/* Returns how many times faster the stages are than one. Each step takes the time of its longest chunk. */
static double speedup(const int32_t *ends, int32_t num, int32_t stages, int64_t keys)
{
	double whole = 0, steps = 0;

	for (int32_t step = 0; step < num + stages - 1; step++) {
		double longest = 0;

		for (int32_t c = step < stages ? 0 : step - stages + 1; c <= step && c < num; c++) {
			const double time = time_of(keys, c ? ends[c - 1] : 0, ends[c]);

			longest = time > longest ? time : longest;
		}
		steps += longest / stages;
		whole += step < num ? time_of(keys, step ? ends[step - 1] : 0, ends[step]) : 0;
	}
	return whole / steps;
}

/* Simulates chunks of equal time, and for comparison chunks of equally many rows. */
static int simulate(const struct setting *s, double *equal_time, double *equal_rows, int32_t *num)
{
	int32_t *ends = malloc(2 * (size_t)s->tokens * sizeof(*ends)), *positions = ends + s->tokens;
	const int32_t qo_indptr[2] = { 0, s->tokens };
	const struct cairn_pipeline_host host = {
		.qo_indptr = qo_indptr, .positions = positions, .num_rows = s->tokens, .batch = 1,
		.page_size = 64,
	};
	struct cairn_pipeline_sizes sizes;
	struct cairn_model m = { 0 };
	int32_t rows = 0;
	int64_t keys;

	if (!ends)
		return cairn_error(ENOMEM, "no memory");
	cairn_model_shape(s->shape, &m.config);
	cairn_model_dims(&m.config, m.whole);
	keys = cairn_pipeline_row_keys(&m);
	for (int32_t i = 0; i < s->tokens; i++)
		positions[i] = i;
	sizes = cairn_pipeline_sizes(&m, s->chunk, 132);
	*num = cairn_pipeline_cut(&host, keys, &sizes, ends);
	*equal_time = speedup(ends, *num, s->stages, keys);
	for (int32_t end = s->chunk; end <= s->tokens; end += s->chunk)
		ends[rows++] = end;
	*equal_rows = speedup(ends, rows, s->stages, keys);
	free(ends);
	return 0;
}

/* The model of the design, with chunks of equal rows, predicts 1.83 and 1.91 for 32K on two GPUs. */
static void simulated(struct cairn_test *t)
{
	static const int32_t stages[] = { 2, 4, 8 }, tokens[] = { 32768, 131072 }, chunks[] = { 2048, 1024 };

	for (size_t i = 0; i < ARRAY_SIZE(stages) * ARRAY_SIZE(tokens) * ARRAY_SIZE(chunks); i++) {
		const struct setting s = { NULL, "llama3-8b", stages[i / 4], tokens[i / 2 % 2],
					   chunks[i % 2] };
		double equal_time = 0, equal_rows = 0;
		int32_t num = 0;
		char name[64];

		EXPECT(t, !simulate(&s, &equal_time, &equal_rows, &num));
		EXPECT(t, equal_time >= equal_rows && equal_time < s.stages);
		name_case(name, sizeof(name), &s, "simulated_ranks_llama3_8b");
		cairn_host_row(t, name, "host", "\"prompt_tokens\":%d,\"stages\":%d,\"chunk_rows\":%d,"
			       "\"chunks\":%d,\"speedup\":%.3f,\"equal_rows_speedup\":%.3f,"
			       "\"simulated\":true", s.tokens, s.stages, s.chunk, num, equal_time,
			       equal_rows);
	}
}

#define MEASURE(stages, tokens, chunk) \
	static void n##stages##_##tokens##k_chunk##chunk(struct cairn_test *t) \
	{ \
		measure(t, stages, tokens << 10, chunk); \
	}

MEASURE(1, 32, 2048)
MEASURE(1, 128, 2048)
MEASURE(2, 32, 1024)
MEASURE(2, 32, 2048)
MEASURE(2, 32, 4096)
MEASURE(2, 128, 1024)
MEASURE(2, 128, 2048)
MEASURE(2, 128, 4096)
MEASURE(4, 32, 1024)
MEASURE(4, 128, 2048)
MEASURE(8, 128, 2048)

static const struct cairn_unit units[] = {
	{ "small", small },
};

#define ROW(stages, tokens, chunk) \
	{ "n" #stages "_" #tokens "k_chunk" #chunk, n##stages##_##tokens##k_chunk##chunk }

static const struct cairn_unit measures[] = {
	ROW(1, 32, 2048), ROW(1, 128, 2048), ROW(2, 32, 1024), ROW(2, 32, 2048), ROW(2, 32, 4096),
	ROW(2, 128, 1024), ROW(2, 128, 2048), ROW(2, 128, 4096), ROW(4, 32, 1024), ROW(4, 128, 2048),
	ROW(8, 128, 2048), { "simulated", simulated },
};

const struct cairn_family cairn_pp_prefill_family = {
	.stage = "serving", .name = "pp_prefill",
	.units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
