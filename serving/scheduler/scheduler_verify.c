// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_verify - returns the scheduler's statistics and checks its invariants
 */
#include "serving/scheduler/scheduler_impl.h"

void cairn_scheduler_stats(const struct cairn_scheduler *s, struct cairn_scheduler_stats *stats)
{
	*stats = s->stats;
	stats->num_running = s->num_running;
	stats->num_waiting = s->num_waiting;
	stats->num_queued = s->num_queued;
	stats->queued_tokens = s->queued_tokens;
	stats->expected_new = s->expected_new;
	cairn_kv_pool_stats(s->device.pool, &stats->device);
	if (s->host.pool)
		cairn_kv_pool_stats(s->host.pool, &stats->host);
	if (s->disk.pool)
		cairn_kv_pool_stats(s->disk.pool, &stats->disk);
}

static int verify_seq(const struct cairn_scheduler *s, const struct sched_seq *q)
{
	int32_t len = q->num_known + q->in_flight, draws = 0;

	if (q->computed - q->drafted > len || q->in_flight < 0 || q->in_flight > s->unreported ||
	    len + q->drafted - q->req->num_prompt > q->req->max_new || (q->drafted && q->in_flight != 1))
		return cairn_error(
			EIO,
			"scheduler: invariant 2: request %llu, answer %d: %d known, %d in flight, %d "
			"computed",
			(unsigned long long)q->req->id, q->index, q->num_known, q->in_flight, q->computed);
	if (q->shadow >= 0 && cairn_kv_pool_len(s->host.pool, q->shadow) >= len)
		return cairn_error(EIO, "scheduler: invariant 2: request %llu, answer %d: %lld tokens in the "
				   "host, %d known, %d in flight", (unsigned long long)q->req->id, q->index,
				   (long long)cairn_kv_pool_len(s->host.pool, q->shadow), q->num_known,
				   q->in_flight);
	for (int i = 0; i < SCHED_PLANS; i++) {
		draws += q->draw[i] >= 0;
		if (q->draw[i] >= 0 && s->plans[i].draws[q->draw[i]].seq != q)
			return cairn_error(
				EIO,
				"scheduler: invariant 2: request %llu: draw %d belongs to another sequence",
				(unsigned long long)q->req->id, q->draw[i]);
	}
	if (draws != q->in_flight)
		return cairn_error(EIO, "scheduler: invariant 2: request %llu: draws in flight",
				   (unsigned long long)q->req->id);
	return 0;
}

static int verify_queue(const struct cairn_scheduler *s, int32_t *pins, int32_t *host_pins)
{
	int32_t waiting = 0, queued = 0, tails = 0;
	int64_t tokens = 0;

	for (const struct sched_seq *q = s->queue; q; q = q->next) {
		CAIRN_TRY(verify_seq(s, q));
		if (!q->is_waiting || q->kv != NOWHERE || q->computed ||
		    (q->next && !sched_younger(q->next, q)))
			return cairn_error(EIO, "scheduler: invariant 1: request %llu in the queue",
					   (unsigned long long)q->req->id);
		if (q->passed > s->opt.max_passes)
			return cairn_error(EIO, "scheduler: invariant 4: request %llu was overtaken by %d",
					   (unsigned long long)q->req->id, q->passed);
		*pins += q->node != CAIRN_PREFIX_NONE;
		*host_pins += q->host_node != CAIRN_PREFIX_NONE;
		if (q->tail != NOWHERE && cairn_kv_pool_refs(s->device.pool, q->tail) != 1)
			return cairn_error(EIO, "scheduler: invariant 8: request %llu: page %d is shared",
					   (unsigned long long)q->req->id, q->tail);
		tails += q->tail != NOWHERE;
		waiting++;
		queued += !q->was_running;
		tokens += q->was_running ? 0 : q->req->num_prompt;
	}
	if (waiting != s->num_waiting || queued != s->num_queued || tokens != s->queued_tokens ||
	    waiting - queued != s->num_preempted)
		return cairn_error(EIO,
				   "scheduler: invariant 1: %d wait, %d of them new with %lld tokens; stored "
				   "%d, %d, %lld",
				   waiting, queued, (long long)tokens, s->num_waiting, s->num_queued,
				   (long long)s->queued_tokens);
	if (tails != s->num_tails)
		return cairn_error(EIO, "scheduler: invariant 8: %d tails wait; stored %d", tails,
				   s->num_tails);
	return 0;
}

static int verify_running(const struct cairn_scheduler *s, int32_t *pins, int32_t *host_pins)
{
	int32_t promised = 0;

	for (int32_t i = 0; i < s->num_running; i++) {
		const struct sched_seq *q = s->running[i];

		CAIRN_TRY(verify_seq(s, q));
		if (q->is_waiting || cairn_kv_pool_len(s->device.pool, q->kv) != q->computed ||
		    (i && !sched_younger(q, s->running[i - 1])))
			return cairn_error(
				EIO,
				"scheduler: invariant 1: request %llu, answer %d at %d of running[]",
				(unsigned long long)q->req->id, q->index, i);
		if (q->req->lane < 0 || q->req->lane >= s->opt.lanes ||
		    (s->opt.lanes > 1 && q->in_flight > 1))
			return cairn_error(EIO, "scheduler: invariant 5: request %llu: lane %d of %d, %d in "
					   "flight", (unsigned long long)q->req->id, q->req->lane,
					   s->opt.lanes, q->in_flight);
		promised += q->req->unforked;
		*pins += q->node != CAIRN_PREFIX_NONE;
		*host_pins += q->host_node != CAIRN_PREFIX_NONE;
	}
	if (promised != s->promised_seqs || s->num_running + promised > s->opt.max_seqs)
		return cairn_error(EIO, "scheduler: invariant 3: %d run, %d are promised; stored %d",
				   s->num_running, promised, s->promised_seqs);
	return 0;
}

static int verify_tier(const struct tier *tier, int32_t pins, int32_t num_seqs)
{
	struct cairn_prefix_stats st = { 0 };

	if (!tier->pool)
		return 0;
	CAIRN_TRY(cairn_kv_pool_verify(tier->pool));
	if (num_seqs >= 0) {
		struct cairn_kv_pool_stats pool;

		cairn_kv_pool_stats(tier->pool, &pool);
		if (pool.num_seqs != num_seqs)
			return cairn_error(EIO, "scheduler: invariants 1, 7: %d handles in the pool, %d run "
					   "or are reserved", pool.num_seqs, num_seqs);
	}
	if (!tier->tree)
		return 0;
	CAIRN_TRY(cairn_prefix_tree_verify(tier->tree));
	cairn_prefix_tree_stats(tier->tree, &st);
	if (st.num_pins != pins)
		return cairn_error(EIO, "scheduler: invariant 6: %d pins in the tree, %d of sequences",
				   st.num_pins, pins);
	return 0;
}

/* *handles: that they have in the pool. */
static int verify_reservations(const struct cairn_scheduler *s, int32_t *handles)
{
	int32_t pages = 0;

	*handles = 0;
	for (int32_t i = 0; i < s->num_reservations; i++) {
		const struct reservation *v = &s->reservations[i];

		if (v->kv == NOWHERE)
			continue;
		if (cairn_kv_pool_len(s->device.pool, v->kv) != v->num_tokens - v->first)
			return cairn_error(EIO, "scheduler: invariant 7: reservation of request %llu",
					   (unsigned long long)v->request);
		pages += sched_pages(s, v->num_tokens - v->first);
		++*handles;
	}
	if (pages != s->num_reserved_pages || pages > s->opt.reserved_pages)
		return cairn_error(EIO, "scheduler: invariant 7: %d pages are reserved of at most %d; stored "
				   "%d", pages, s->opt.reserved_pages, s->num_reserved_pages);
	return 0;
}

int cairn_scheduler_verify(const struct cairn_scheduler *s)
{
	int32_t pins = 0, host_pins = 0, reserved;

	CAIRN_TRY(verify_queue(s, &pins, &host_pins));
	CAIRN_TRY(verify_running(s, &pins, &host_pins));
	CAIRN_TRY(verify_reservations(s, &reserved));
	CAIRN_TRY(verify_tier(&s->device, pins, s->num_running + reserved));
	CAIRN_TRY(verify_tier(&s->host, host_pins, -1));
	return verify_tier(&s->disk, 0, 0);
}
