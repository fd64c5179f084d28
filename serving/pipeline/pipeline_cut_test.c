// SPDX-License-Identifier: Apache-2.0
/* pipeline_cut_test - ranges of layers, chunks of equal time, and the index arrays of chunks */
#include "conformance/harness.h"
#include "serving/model/model_graph.h"
#include "serving/pipeline/pipeline.h"

#define PAGE	16
#define MOST	4096	/* rows */
#define REQUESTS	8
#define LLAMA	26624	/* row_keys of llama3-8b */

static void layers(struct cairn_test *t)
{
	for (int32_t num = 1; num < 40; num++)
		for (int32_t stages = 1; stages <= num && stages <= 8; stages++) {
			int32_t least = num, most = 0;

			EXPECT(t, !cairn_stage_first(num, 0, stages));
			EXPECT(t, cairn_stage_first(num, stages, stages) == num);
			for (int32_t s = 0; s < stages; s++) {
				const int32_t n = cairn_stage_first(num, s + 1, stages) -
						  cairn_stage_first(num, s, stages);

				least = n < least ? n : least;
				most = n > most ? n : most;
			}
			EXPECT(t, least >= 1 && most - least <= 1);
		}
}

static void row_keys(struct cairn_test *t)
{
	struct cairn_model m = { 0 };

	/* (4096 (4096 + 2048 + 4096) + 3 * 4096 * 14336) / (2 * 4096), rounded up */
	EXPECT(t, !cairn_model_shape("llama3-8b", &m.config));
	cairn_model_dims(&m.config, m.whole);
	EXPECT(t, cairn_pipeline_row_keys(&m) == LLAMA);
}

/* A pass of requests: `rows` rows from `position` on. */
struct pass {
	int32_t qo_indptr[REQUESTS + 1], kv_indptr[REQUESTS + 1], positions[MOST];
	struct cairn_pipeline_host host;
};

static void add(struct pass *p, int32_t position, int32_t rows)
{
	struct cairn_pipeline_host *h = &p->host;

	for (int32_t i = 0; i < rows; i++)
		p->positions[h->num_rows + i] = position + i;
	p->kv_indptr[h->batch + 1] = p->kv_indptr[h->batch] + (position + rows + PAGE - 1) / PAGE;
	h->num_rows += rows;
	p->qo_indptr[++h->batch] = h->num_rows;
	h->qo_indptr = p->qo_indptr;
	h->kv_indptr = p->kv_indptr;
	h->positions = p->positions;
	h->page_size = PAGE;
}

static int64_t time_of(const struct pass *p, int32_t first, int32_t end, int64_t keys)
{
	int64_t time = 0;

	for (int32_t r = first; r < end; r++)
		time += keys + p->positions[r] + 1;
	return time;
}

/* Chunks have about the same time. Of chunks of equal rows, the last one would take three times as long. */
static void equal_times(struct cairn_test *t)
{
	static struct pass p;
	static int32_t ends[MOST];
	int64_t most = 0;
	int32_t num, first = 0;

	memset(&p, 0, sizeof(p));
	add(&p, 0, 4000);
	num = cairn_pipeline_cut(&p.host, 1600, &(struct cairn_pipeline_sizes){ 512, 1, 1 }, ends);
	EXPECT(t, num >= 8 && ends[num - 1] == 4000);
	for (int32_t c = 0; c < num; first = ends[c++]) {
		const int64_t time = time_of(&p, first, ends[c], 1600);

		EXPECT(t, ends[c] > first && ends[c] - first <= 512);
		EXPECT(t, c == num - 1 || ends[c] % PAGE == 0);
		EXPECT(t, !c || ends[c] - first <= ends[0]);
		most = time > most ? time : most;
	}
	/* each cut is moved by at most half a page */
	EXPECT(t, most <= (int64_t)512 * 1600 + 512 * 513 / 2 + PAGE * (1600 + 4000));
	EXPECT(t, (double)time_of(&p, 0, 4000, 1600) >= 0.93 * (double)most * num);
	EXPECT(t, ends[num - 1] - ends[num - 2] < ends[0] / 2);
}

/* On an H200, chunks of llama3-8b fill the SMs and have 1024 rows or more; the last one may be longer. */
static void sizes(struct cairn_test *t)
{
	static struct pass p;
	static int32_t ends[MOST];
	struct cairn_model m = { 0 };
	struct cairn_pipeline_sizes s;
	int32_t num;

	EXPECT(t, !cairn_model_shape("llama3-8b", &m.config));
	s = cairn_pipeline_sizes(&m, 2048, 132);
	EXPECT(t, s.most == 2048 && s.least == 1024 && s.even == 512);
	s = cairn_pipeline_sizes(&m, 256, 132);
	EXPECT(t, s.most == 256 && s.least == 256 && s.even == 512);
	s = cairn_pipeline_sizes(&m, 2048, 0);
	EXPECT(t, s.most == 2048 && s.least == 1 && s.even == 1);

	memset(&p, 0, sizeof(p));
	add(&p, 100000 / PAGE * PAGE, 4000);		/* 400 rows would take as long as the first 2048 */
	num = cairn_pipeline_cut(&p.host, LLAMA, &(struct cairn_pipeline_sizes){ 2048, 1024, 512 }, ends);
	EXPECT(t, num == 4 && ends[0] == 1024 && ends[1] == 2048 && ends[2] == 3072 && ends[3] == 4000);
	p.host.num_rows = p.qo_indptr[1] = 3200;		/* 128 rows more are no chunk */
	num = cairn_pipeline_cut(&p.host, LLAMA, &(struct cairn_pipeline_sizes){ 2048, 1024, 512 }, ends);
	EXPECT(t, num == 3 && ends[1] == 2048 && ends[2] == 3200);
	memset(&p, 0, sizeof(p));
	add(&p, 0, 4000);
	num = cairn_pipeline_cut(&p.host, LLAMA, &(struct cairn_pipeline_sizes){ 2048, 1024, 512 }, ends);
	EXPECT(t, num == 3 && ends[0] == 1536 && ends[1] == 2560 && ends[2] == 4000);
}

/* Returns a number that looks random. */
static int32_t draw(uint64_t *state, int32_t below)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (int32_t)((*state >> 33) % (uint64_t)below);
}

/* Checks the arrays of a chunk against the pass, key by key. Returns how many rows it has. */
static int32_t check_chunk(struct cairn_test *t, const struct pass *p, const struct cairn_batch *c,
			   const struct cairn_batch *whole)
{
	const int32_t *const qo = c->qo_indptr, *const kv = c->kv_indptr;
	const int32_t first = (int32_t)(c->positions - whole->positions);
	const int32_t page_at = (int32_t)(c->kv_indices - whole->kv_indices);
	int32_t b = 0, prompts = 0, rows = 0, past = 0;

	EXPECT(t, c->ids - whole->ids == first && !c->num_logits && !c->logits && !c->logit_rows);
	EXPECT(t, !qo[0] && !kv[0] && qo[c->batch] == c->num_rows);
	while (p->qo_indptr[b + 1] <= first)
		b++;
	for (int32_t i = 0; i < c->batch; i++, b++) {
		const int32_t from = first + qo[i], to = first + qo[i + 1];
		const int32_t keys = (kv[i + 1] - kv[i] - 1) * PAGE + c->kv_last_page_len[i];

		EXPECT(t, from >= p->qo_indptr[b] && to <= p->qo_indptr[b + 1] && to > from);
		EXPECT(t, page_at + kv[i] == p->kv_indptr[b]);
		EXPECT(t, keys == p->positions[to - 1] + 1 && keys <= c->max_kv_len);
		EXPECT(t, to - from <= c->max_qo_len && c->kv_last_page_len[i] <= PAGE);
		if (b < p->host.batch - whole->num_prompts)
			continue;
		prompts++;
		rows += to - from;
		past += p->positions[from];
	}
	EXPECT(t, prompts == c->num_prompts && rows == c->prompt_rows && past == c->prompt_past);
	return c->num_rows;
}

static int begins(const struct pass *p, int32_t row)
{
	int begins = 0;

	for (int32_t b = 0; b < p->host.batch; b++)
		begins |= p->qo_indptr[b] == row;
	return begins;
}

/* Decoding requests, and prompts that begin anywhere. */
static void any_pass(struct cairn_test *t)
{
	static struct pass p;
	static int32_t ends[MOST], index[3 * REQUESTS + 5 * MOST], ids[MOST], pages[MOST];
	uint64_t state = 1;

	for (int round = 0; round < 300; round++) {
		struct cairn_batch whole = { 0 }, c;
		const struct cairn_pipeline_sizes some = {
			PAGE * (1 + draw(&state, 4)), 1 + draw(&state, PAGE), 1 + draw(&state, 2 * PAGE),
		};
		int32_t num, first = 0, used = 0;
		const int32_t decodes = draw(&state, 4);

		memset(&p, 0, sizeof(p));
		for (int32_t b = 0; b < REQUESTS; b++)
			add(&p, draw(&state, 300), b < decodes ? 1 : 1 + draw(&state, 200));
		whole.ids = ids;
		whole.positions = p.positions;
		whole.kv_indices = pages;
		whole.num_prompts = draw(&state, REQUESTS + 1);
		num = cairn_pipeline_cut(&p.host, 1 + draw(&state, 400), &some, ends);
		EXPECT(t, num > 0 && ends[num - 1] == p.host.num_rows);
		for (int32_t i = 0; i < num; first = ends[i++]) {
			EXPECT(t, ends[i] - first >= 1 && ends[i] - first <= some.most);
			EXPECT(t, i == num - 1 || p.positions[ends[i]] % PAGE == 0 || begins(&p, ends[i]));
			used += cairn_pipeline_chunk(&c, &p.host, &whole, first, ends[i], index + used,
						     index + used);
			EXPECT(t, check_chunk(t, &p, &c, &whole) == ends[i] - first);
		}
		EXPECT(t, (size_t)used <= cairn_pipeline_index_room(REQUESTS, p.host.num_rows));
	}
}

static const struct cairn_unit units[] = {
	{ "layers", layers }, { "row_keys", row_keys }, { "equal_times", equal_times }, { "sizes", sizes },
	{ "any_pass", any_pass },
};

const struct cairn_family cairn_pipeline_cut_family = {
	.stage = "serving", .name = "pipeline_cut", .units = units, .num_units = ARRAY_SIZE(units),
};
