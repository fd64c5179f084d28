// SPDX-License-Identifier: Apache-2.0
/* nano_rows_test - cuts seek edges, and index arrays of nano-batches cover each row of a pass once */
#include "conformance/harness.h"
#include "serving/nano/nano_test.h"

#define MOST_ROWS	1024
#define MOST_REQUESTS	64
#define MOST_TABLE	4096		/* pages of all requests together */

struct pass {
	int32_t qo[MOST_REQUESTS + 1], kv[MOST_REQUESTS + 1], last[MOST_REQUESTS], pages[MOST_TABLE];
	int32_t past[MOST_REQUESTS], batch, num_rows, num_decodes, page_size;
};

static int32_t below(struct cairn_test *t, int32_t n)
{
	return (int32_t)(cairn_rand(t) % (uint64_t)n);
}

/* Makes a random pass: decoding requests, then prompts; padding rows if `decoding`. */
static void random_pass(struct cairn_test *t, struct pass *p, int decoding)
{
	int32_t prompts = decoding ? 0 : 1 + below(t, 5);

	memset(p, 0, sizeof(*p));
	p->page_size = 1 + below(t, 20);
	p->num_decodes = decoding ? 1 + below(t, 50) : below(t, 50);
	p->batch = p->num_decodes + prompts;
	for (int32_t i = 0; i < p->batch; i++) {
		int32_t rows = i < p->num_decodes ? 1 : 1 + below(t, 180), len;

		p->past[i] = below(t, 50);
		len = p->past[i] + rows;
		p->qo[i + 1] = p->qo[i] + rows;
		p->kv[i + 1] = p->kv[i] + (len + p->page_size - 1) / p->page_size;
		p->last[i] = (len - 1) % p->page_size + 1;
		for (int32_t k = p->kv[i]; k < p->kv[i + 1] && k < MOST_TABLE; k++)
			p->pages[k] = below(t, 1000);
	}
	p->num_rows = p->qo[p->batch] + (decoding ? below(t, 8) : 0);
	for (int32_t i = p->batch; decoding && i < MOST_REQUESTS; i++) {	/* without rows and keys */
		p->qo[i + 1] = p->qo[i];
		p->kv[i + 1] = p->kv[i];
	}
	p->batch = decoding ? p->num_rows : p->batch;
}

static int is_edge(const struct pass *p, int32_t row)
{
	int edge = row >= p->qo[p->batch];

	for (int32_t i = 0; i <= p->batch; i++)
		edge |= p->qo[i] == row;
	return edge;
}

/* A cut is strictly between its neighbours, near its share, and at an edge if one is near. */
static void judge_cuts(struct cairn_test *t, const struct pass *p, const struct cairn_nano_plan *plan,
		       const struct cairn_nano_cuts *c)
{
	int k = plan->num_batches, bad = 0, all = 0, before = 0, moves = 0;

	for (int i = 0; i < k; i++) {
		all += plan->rows[i];
		moves |= plan->decodes[i] > 0;
	}
	for (int i = 0; i < k; i++) {
		bad |= c->row[i + 1] <= c->row[i] || c->decode[i + 1] < c->decode[i];
		bad |= c->row[i + 1] - c->row[i] < c->decode[i + 1] - c->decode[i];
		if (!i)
			continue;
		before += plan->rows[i - 1];
		/* a cut that moved may push the next one on */
		bad |= abs(c->row[i] - p->num_rows * before / all) > i * (CAIRN_NANO_SEEK + 1);
		/* row c->row[i] of the pass, or the row that takes its place */
		if (moves || is_edge(p, c->row[i]) || c->row[i] <= c->row[i - 1] + CAIRN_NANO_SEEK ||
		    c->row[i] + CAIRN_NANO_SEEK + k >= p->num_rows)
			continue;
		for (int32_t r = c->row[i] - CAIRN_NANO_SEEK; r <= c->row[i] + CAIRN_NANO_SEEK; r++)
			bad |= is_edge(p, r);
	}
	bad |= c->row[0] || c->decode[0] || c->row[k] != p->num_rows;
	EXPECT(t, !bad);
}

/* Finds the request of row `row` of nano-batch b, and which of its keys the row is. */
static int32_t find_row(const struct cairn_nano_index *a, int32_t batch, int32_t page_size, int32_t row,
			int32_t *request)
{
	int32_t r = 0, pages, len;

	while (r < batch && a->qo_indptr[r + 1] <= row)
		r++;
	*request = r;
	if (r == batch)
		return -1;
	pages = a->kv_indptr[r + 1] - a->kv_indptr[r];
	len = pages ? (pages - 1) * page_size + a->last_page_len[r] : 0;
	return row - a->qo_indptr[r] + len - (a->qo_indptr[r + 1] - a->qo_indptr[r]);
}

/* Each row of the pass is in one nano-batch, with its position and its pages. */
static void judge_split(struct cairn_test *t, const struct pass *p, const struct cairn_nano_cuts *c)
{
	static int32_t room[CAIRN_NANO_BATCHES][3][MOST_ROWS + 1], pages[3 * MOST_TABLE];
	static int32_t ids[MOST_ROWS];
	struct cairn_nano_index host[CAIRN_NANO_BATCHES];
	struct cairn_nano_host in = { p->qo, p->kv, p->last, p->pages, p->page_size };
	struct cairn_batch whole = {
		.ids = ids, .positions = ids, .num_rows = p->num_rows, .batch = p->batch,
		.max_qo_len = p->batch == p->num_rows ? 1 : MOST_ROWS, .max_kv_len = 4096,
	};
	struct cairn_nano_pass pass;
	uint8_t seen[MOST_ROWS] = { 0 };
	int bad = 0;

	for (int i = 0; i < CAIRN_NANO_BATCHES; i++)
		host[i] = (struct cairn_nano_index){ room[i][0], room[i][1], room[i][2] };
	whole.num_prompts = whole.max_qo_len > 1 ? p->batch - p->num_decodes : 0;
	if (!EXPECT(t, cairn_nano_split(&pass, host, pages, host, &in, &whole, c) == 0))
		return;
	for (int32_t r = 0; r < p->num_rows; r++) {
		int32_t to = cairn_nano_row(c, r), b = 0, mine = 0, his, at;
		const struct cairn_batch *n;

		bad |= to < 0 || to >= p->num_rows || seen[to]++;
		while (to >= c->row[b + 1])
			b++;
		n = &pass.batch[b];
		bad |= n->ids != ids + c->row[b] || n->num_rows != c->row[b + 1] - c->row[b];
		bad |= whole.max_qo_len == 1 && n->batch != n->num_rows;
		at = find_row(&host[b], n->batch, p->page_size, to - c->row[b], &his);
		while (mine < p->batch && p->qo[mine + 1] <= r)
			mine++;
		if (mine == p->batch) {		/* a padding row belongs to no request */
			bad |= his != n->batch;
			continue;
		}
		bad |= at != p->past[mine] + r - p->qo[mine];
		bad |= host[b].qo_indptr[his + 1] - host[b].qo_indptr[his] > n->max_qo_len;
		bad |= (his >= n->batch - n->num_prompts) != (mine >= p->batch - whole.num_prompts);
		for (int32_t k = 0; k <= at / p->page_size; k++)
			bad |= pages[host[b].kv_indptr[his] + k] != p->pages[p->kv[mine] + k];
	}
	for (int i = 0; i < c->num_batches; i++) {
		const struct cairn_batch *n = &pass.batch[i];
		int32_t rows = 0, past = 0, request;

		for (int32_t r = n->batch - n->num_prompts; r < n->batch; r++) {
			rows += host[i].qo_indptr[r + 1] - host[i].qo_indptr[r];
			past += find_row(&host[i], n->batch, p->page_size, host[i].qo_indptr[r], &request);
		}
		bad |= n->prompt_rows != rows || n->prompt_past != past;
	}
	EXPECT(t, !bad);
}

static void random_passes(struct cairn_test *t)
{
	for (int i = 0; i < 3000; i++) {
		struct cairn_nano_plan plan = {
			.num_batches = 1 + below(t, CAIRN_NANO_BATCHES), .num_lanes = 1,
		};
		struct cairn_nano_cuts c;
		struct pass p;
		int ret;

		random_pass(t, &p, i % 3 == 0);
		for (int k = 0; k < plan.num_batches; k++) {
			plan.rows[k] = 1 + below(t, 5);
			plan.decodes[k] = i % 3 == 1 ? below(t, 4) : 0;
		}
		ret = cairn_nano_cut(&c, &plan, p.qo, p.batch, p.num_rows, i % 3 ? p.num_decodes : 0);
		EXPECT(t, ret == (p.num_rows < plan.num_batches ? -ERANGE : 0));
		if (ret)
			continue;
		judge_cuts(t, &p, &plan, &c);
		judge_split(t, &p, &c);
	}
}

/* 100 decoding rows, then chunks of 300, 50 and 574 rows. */
static void cuts_by_hand(struct cairn_test *t)
{
	static const struct {
		int32_t num, rows[3], decodes[3], row[4], decode[4];
	} cases[] = {
		{ 2, { 0 }, { 0 }, { 0, 450, 1024 }, { 0, 100, 100 } },		/* 512 is 62 from 450 */
		{ 2, { 3, 1 }, { 0 }, { 0, 768, 1024 }, { 0, 100, 100 } },	/* no edge is near */
		{ 2, { 1, 15 }, { 0 }, { 0, 64, 1024 }, { 0, 64, 100 } },
		{ 3, { 0 }, { 0 }, { 0, 400, 683, 1024 }, { 0, 100, 100, 100 } },
		{ 2, { 1, 1 }, { 1, 1 }, { 0, 512, 1024 }, { 0, 50, 100 } },	/* 462 others: to row 562 */
		{ 2, { 2, 3 }, { 1, 1 }, { 0, 400, 1024 }, { 0, 50, 100 } },	/* 360 others: 460, to 450 */
		{ 2, { 1, 1 }, { 0, 1 }, { 0, 512, 1024 }, { 0, 0, 100 } },
		{ 2, { 1, 1 }, { 1, 0 }, { 0, 450, 1024 }, { 0, 100, 100 } },
	};
	int32_t qo[104];

	for (int i = 0; i <= 100; i++)
		qo[i] = i;
	qo[101] = 400;
	qo[102] = 450;
	qo[103] = 1024;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct cairn_nano_plan plan = { .num_batches = cases[i].num, .num_lanes = 1 };
		struct cairn_nano_cuts c;
		size_t bytes;

		memcpy(plan.rows, cases[i].rows, sizeof(cases[i].rows));
		memcpy(plan.decodes, cases[i].decodes, sizeof(cases[i].decodes));
		if (!EXPECT(t, cairn_nano_cut(&c, &plan, qo, 103, 1024, 100) == 0))
			continue;
		bytes = sizeof(int32_t) * (size_t)(plan.num_batches + 1);
		if (!EXPECT(t, !memcmp(c.row, cases[i].row, bytes) &&
			    !memcmp(c.decode, cases[i].decode, bytes)))
			cairn_note(t, "case %zu: rows %d %d %d, decodes %d %d %d", i, c.row[1], c.row[2],
				   c.row[3], c.decode[1], c.decode[2], c.decode[3]);
	}
}

static const struct cairn_unit units[] = {
	{ "cuts_by_hand", cuts_by_hand },
	{ "random_passes", random_passes },
};

const struct cairn_family cairn_nano_rows_family = {
	.stage = "serving",
	.name = "nano_rows",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
