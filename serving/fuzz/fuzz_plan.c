// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_plan - reads arbitrary bytes as a plan, or as the message of a rank that asks to join
 *
 * If the input begins with 'j', the next byte is the message's kind and the rest its body. Otherwise the
 * first byte is the plan's number of records, and the rest is what follows the plan's header. The fuzzer
 * makes a matching header, so that the digest does not reject the plan. All numbers of an accepted plan must
 * be in range.
 */
#include <string.h>

#include "serving/fuzz/fuzz.h"
#include "serving/engine/worker/plan_impl.h"
#include "serving/ranks/rendezvous.h"

static const struct cairn_plan_limits limits = {
	.max_batch = 8, .max_rows = 32, .max_context = 256, .num_pages = 40, .page_size = 16, .vocab = 1000,
	.host_pages = 10, .disk_pages = 20, .num_drawn = 3, .number = 5,
};

static void check_ids(const int32_t *ids, int32_t num, int32_t end)
{
	FUZZ_HOLDS(num >= 0);
	for (int32_t i = 0; i < num; i++)
		FUZZ_HOLDS(ids[i] >= 0 && ids[i] < end);
}

static void check_treat(const struct cairn_worker_treat *t)
{
	const int32_t slots = CAIRN_WORKER_SLOTS(limits.max_batch);

	FUZZ_HOLDS(t->slot >= -1 && t->slot < slots && t->from >= 0 && t->from < slots);
	FUZZ_HOLDS(t->bias_at >= 0 && t->num_bias >= 0 && t->bias_at + t->num_bias <= CAIRN_WORKER_LISTS);
	FUZZ_HOLDS(t->forbidden_at >= 0 && t->num_forbidden >= 0 &&
		   t->forbidden_at + t->num_forbidden <= CAIRN_WORKER_LISTS);
	FUZZ_HOLDS(t->num_logprobs >= 0 && t->num_logprobs <= 1 + CAIRN_LOGPROBS_MAX);
	check_ids(t->prompt, t->num_prompt, limits.vocab);
	check_ids(t->drafts, t->num_drafts, limits.vocab);
}

static void check_part(const struct cairn_worker_part *p)
{
	const int32_t end = p->position + p->num_rows;

	FUZZ_HOLDS(p->num_rows >= 1 && p->position >= 0 && end <= limits.max_context);
	FUZZ_HOLDS(p->follows < limits.num_drawn && (p->follows < 0 || p->num_rows == 1));
	FUZZ_HOLDS(p->num_pages * limits.page_size >= end);
	FUZZ_HOLDS(p->score_from >= 0 && p->score_from + p->num_scored <= p->num_rows);
	if (p->follows < 0)
		check_ids(p->ids, p->num_rows, limits.vocab);
	check_ids(p->pages, p->num_pages, limits.num_pages);
	check_ids(p->targets, p->num_scored, limits.vocab);
}

static void check_moves(const struct cairn_plan *p)
{
	FUZZ_HOLDS(p->num_moves_before >= 0 && p->num_moves_before <= p->num_moves);
	for (int32_t i = 0; i < p->num_moves; i++) {
		const struct cairn_move *m = &p->moves[i];
		const int of_disk = m->kind == CAIRN_MOVE_SPILL || m->kind == CAIRN_MOVE_FETCH;

		FUZZ_HOLDS(m->page >= 0 && m->page < (of_disk ? limits.host_pages : limits.num_pages));
		FUZZ_HOLDS(m->to >= 0 && m->to < (m->kind == CAIRN_MOVE_COPY ? limits.num_pages : of_disk ?
						  limits.disk_pages : limits.host_pages));
		FUZZ_HOLDS(!of_disk || i < p->num_moves_before);
	}
}

static void check_plan(const struct cairn_plan *p)
{
	int32_t rows = 0, logits = 0, rows_of_last = 0;

	check_moves(p);
	for (int32_t i = 0; i < p->num_items; i++) {
		const struct cairn_plan_item *item = &p->items[i];

		if (item->kind == CAIRN_PLAN_LISTS)
			check_ids(item->lists.forbidden, item->lists.num_forbidden, limits.vocab);
		if (item->kind == CAIRN_PLAN_PART) {
			check_part(&item->part);
			rows_of_last = item->part.num_rows;
			rows += rows_of_last;
		}
		if (item->kind == CAIRN_PLAN_DRAW)
			FUZZ_HOLDS(item->row >= 0 && item->row < rows_of_last);
		logits += (item->part.draw != NULL) + item->part.num_scored;
		if (item->part.treat)
			check_treat(item->part.treat);
	}
	FUZZ_HOLDS(rows <= limits.max_rows && logits <= limits.max_batch && p->num_parts <= limits.max_batch);
}

static void read_plan(const uint8_t *data, size_t size)
{
	struct plan_header h = { .magic = PLAN_MAGIC, .version = PLAN_VERSION, .number = limits.number };
	struct cairn_plan plan = { 0 };
	unsigned char *bytes = malloc(sizeof(h) + size);

	h.num_records = data[0];
	h.len = sizeof(h) + size - 1;
	h.digest = plan_digest(data + 1, size - 1);
	memcpy(bytes, &h, sizeof(h));
	memcpy(bytes + sizeof(h), data + 1, size - 1);
	if (!cairn_plan_read(&plan, bytes, (size_t)h.len, &limits))
		check_plan(&plan);
	cairn_plan_free(&plan);
	free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct cairn_join mine = { CAIRN_JOIN_VERSION, 0, 4, 2, "0123abcd" };
	int32_t rank = -1;

	if (size >= 2 && data[0] == 'j') {
		const struct cairn_channel_message m = { data[1], data + 2, size - 2 };

		FUZZ_HOLDS(cairn_join_check(&m, &mine, &rank) || (rank >= 1 && rank < mine.ranks));
	} else if (size >= 1) {
		read_plan(data, size);
	}
	return 0;
}
