// SPDX-License-Identifier: Apache-2.0
/*
 * engine_chaos_test - requests of all kinds, submitted, cancelled and stopped at random
 *
 * The pools are too small for all requests, with and without host and disk tiers and drafts, or with
 * attention workers that are killed. Every invariant
 * is checked after each step, and requests that were not disturbed must get the tokens of the naive
 * computation.
 */
#include <signal.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"
#include "serving/remote/lead/lead.h"

#ifdef CAIRN_SANITIZED
enum { FIRST = 1 };	/* with attention workers: only the run with lanes */
#else
enum { FIRST = 0 };
#endif
enum { REQUESTS = 26, ANSWERS = 4 };

struct client {
	struct cairn_request r;
	struct answer answers[ANSWERS];
	int32_t prompt[NAIVE_LEN];
	int there, disturbed;
};

static int below(struct cairn_test *t, int n)
{
	return (int)(cairn_rand(t) % (uint64_t)n);
}

static void make_client(struct cairn_test *t, const struct golden *g, struct client *c)
{
	static const int32_t stops[] = { 20, 50, 80 };
	int shared = below(t, 3) * 9, own = 1 + below(t, 30);
	struct cairn_sampling *s = &c->r.sampling;

	memset(c, 0, sizeof(*c));
	c->r = request(g, shared + own, 1 + below(t, 24), &c->answers[0]);
	memcpy(c->prompt, g->tokens, (size_t)shared * sizeof(*c->prompt));
	for (int i = 0; i < own; i++)
		c->prompt[shared + i] = 3 + below(t, 180);
	c->r.prompt = c->prompt;
	c->r.ignore_eos = below(t, 2);
	c->r.stop_ids = stops;
	c->r.num_stop_ids = below(t, 4);
	c->r.salt.lo = below(t, 4) == 0;
	c->r.keep = below(t, 2);
	s->min_new_tokens = below(t, 4) ? 0 : below(t, c->r.max_new_tokens + 1);
	if (below(t, 5) == 0) {
		c->r.beam_width = 1 + below(t, 4);
		c->r.num_seqs = 1 + below(t, c->r.beam_width);
		c->r.length_penalty = (float)below(t, 3) * 0.5f;
		return;
	}
	c->r.num_seqs = 1 + below(t, ANSWERS) * below(t, 2);
	c->r.num_given = c->r.num_seqs > 1 ? 0 : below(t, c->r.num_prompt) * below(t, 2);
	s->temperature = below(t, 2) ? 1 : 0;
	s->seed = cairn_rand(t);
	s->presence_penalty = below(t, 3) ? 0 : 0.5f;
	s->repetition_penalty = below(t, 3) ? 0 : 1.2f;
	s->num_logprobs = below(t, 3);
}

static void check_client(struct cairn_test *t, struct naive *n, struct client *c)
{
	struct naive_beam best[ANSWERS + 1];
	int num_seqs = c->r.num_seqs ? c->r.num_seqs : 1, num = 0;
	int32_t want[MAX_NEW];

	if (c->r.beam_width)
		num = naive_beams(t, n, &c->r, best);
	for (int k = 0; k < num_seqs; k++) {
		const struct answer *a = &c->answers[k];
		const int32_t *ids = c->r.beam_width ? best[k].tokens : want;
		int len = !c->r.beam_width ? naive_answer(t, n, &c->r, k, want) :
			k < num ? best[k].num_tokens : 0;

		if (!EXPECT(t, a->num_ids == len && !memcmp(a->ids, ids, (size_t)len * sizeof(*ids))))
			cairn_note(t, "answer %d of %d, %d beams, prompt of %d: %d tokens, not %d", k,
				   num_seqs, c->r.beam_width, c->r.num_prompt, a->num_ids, len);
	}
}

/* Sometimes cancels or stops a random request. */
static void disturb(struct cairn_test *t, struct cairn_engine *e, struct client *clients)
{
	struct client *c = &clients[below(t, REQUESTS)];

	if (!c->there || c->answers[0].num_finished || below(t, 6))
		return;
	c->disturbed = 1;
	if (below(t, 2))
		cairn_engine_cancel(e, c->r.id);
	else
		cairn_engine_stop(e, c->r.id, below(t, ANSWERS));
}

/* Sometimes kills an attention worker, or stops it. */
static void disturb_worker(struct cairn_test *t, struct cairn_lead *lead)
{
	const int pid = below(t, 12) ? 0 : cairn_lead_pid(lead, 1 + below(t, cairn_lead_attention(lead)));

	if (pid)
		kill(pid, below(t, 3) ? SIGKILL : SIGSTOP);
}

/* lead: of attention workers; NULL: none. num_lanes: 1 without workers */
static void one_run(struct cairn_test *t, struct cairn_model *m, struct naive *n, const struct golden *g,
		    struct cairn_lead *lead, int32_t num_lanes)
{
	struct cairn_engine_options opt = {
		.max_batch = 4 + below(t, 5), .max_context = 96, .max_rows = 12 + below(t, 40),
		.page_size = 1 << below(t, 4), .in_turn = below(t, 4) == 0, .expected_new = 1,
		.recompute_ns = 100, .swap_ns = 1, .max_passes = below(t, 10), .max_queued = 12,
		.disk_dir = cairn_tmpdir(t), .decode = CAIRN_DECODE_UNFUSED, .attention = lead,
		.attends_all = 1,
	};
	struct client *clients = calloc(REQUESTS, sizeof(*clients));
	struct cairn_engine_stats st;
	struct cairn_engine *e;
	int next = 0, busy = 1;

	opt.num_pages = 90 / opt.page_size + 2 + below(t, 50 / opt.page_size);
	opt.host_pages = !lead && below(t, 2) ? 60 / opt.page_size + below(t, 200 / opt.page_size) : 0;
	opt.disk_pages = opt.host_pages && below(t, 2) ? 400 / opt.page_size : 0;
	opt.cache_grain = below(t, 3) - 1;	/* none, pages, tokens */
	opt.lanes = num_lanes;
	opt.kv_journal = lead && below(t, 2) ? 1 << 28 : 0;
	if (num_lanes < 2 && below(t, 4))	/* mostly wrong drafts */
		opt.speculation = (struct cairn_speculation){
			.method = CAIRN_SPECULATE_NGRAM, .num_tokens = 1 + below(t, 6), .lookup_min = 1,
			.lookup_max = 1 + below(t, 2), .always = below(t, 4) > 0,
		};
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		goto out;
	while (busy || next < REQUESTS) {
		for (int arrivals = below(t, 6) - 1; arrivals > 0 && next < REQUESTS; arrivals--, next++) {
			struct client *c = &clients[next];
			int ret;

			make_client(t, g, c);
			ret = cairn_engine_submit(e, &c->r);
			c->there = ret == 0;
			/* The queue is full, or the request has more answers than can run at once. */
			EXPECT(t, ret == 0 || ret == -EAGAIN || (ret == -EINVAL && opt.max_batch < 8));
		}
		if (!EXPECT(t, cairn_engine_step(e, &busy) == 0) ||
		    !EXPECT(t, cairn_engine_verify(e) == 0)) {
			cairn_note(t, "%s", cairn_last_error());
			break;
		}
		if (lead)
			disturb_worker(t, lead);
		disturb(t, e, clients);
	}
	cairn_engine_stats(e, &st);
	EXPECT(t, st.scheduler.num_running == 0 && st.scheduler.num_waiting == 0);
	EXPECT(t, st.scheduler.device.num_seqs == 0 && st.scheduler.device.table_pages == 0);
	for (int i = 0; i < REQUESTS; i++) {
		int num_seqs = clients[i].r.num_seqs ? clients[i].r.num_seqs : 1;

		for (int k = 0; k < num_seqs; k++)
			EXPECT(t, clients[i].answers[k].num_finished == clients[i].there);
		if (clients[i].there && !clients[i].disturbed)
			check_client(t, n, &clients[i]);
	}
	cairn_note(t, "%lld of %lld drafts right", (long long)st.speculation.accepted_tokens,
		   (long long)st.speculation.draft_tokens);
	cairn_note(t, "%d pages of %d, %d on the host, %d on disk: %lld preempted, %lld loaded, %lld fetched",
		   opt.num_pages, opt.page_size, opt.host_pages, opt.disk_pages,
		   (long long)(st.scheduler.swapped + st.scheduler.recomputed),
		   (long long)st.scheduler.loaded_tokens, (long long)st.scheduler.moves[CAIRN_MOVE_FETCH]);
	EXPECT(t, !lead || st.recoveries > 0);
	cairn_note(t, "%lld attention workers lost", (long long)st.recoveries);
	cairn_engine_destroy(e);
out:
	free(clients);
}

static void chaos(struct cairn_test *t)
{
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;

	if (open_model(t, "ref", "llama2_tiny", &impl, &g, &m))
		return;
	if (!naive_open(t, &n, g.dir)) {
		for (int i = 0; i < 8; i++)
			one_run(t, m, &n, &g, NULL, 1);
	}
	naive_close(&n);
	close_model(m, &g);
}

/* The same with attention in other processes; some of them are killed or stopped on the way. */
static void lost_workers(struct cairn_test *t)
{
	const struct cairn_lead_options o = { .attention = 2, .table = "ref", .join_ms = 60000 };
	struct cairn_lead *lead;
	struct cairn_model *m;
	struct cairn_impl impl;
	struct naive n;
	struct golden g;
	int ret;

	if (open_model(t, "ref", "llama2_tiny", &impl, &g, &m))
		return;
	ret = naive_open(t, &n, g.dir) ? -EIO : cairn_lead_create(&lead, &o);
	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	for (int i = FIRST; i < 2 && EXPECT(t, ret == 0 || ret == -EOPNOTSUPP) && !ret; i++)
		one_run(t, m, &n, &g, lead, 1 + i % 2 * 2);
	if (!ret)
		cairn_lead_destroy(lead);
	naive_close(&n);
	close_model(m, &g);
}

static const struct cairn_unit units[] = {
	{ "chaos", chaos },
	{ "lost_workers", lost_workers },
};

const struct cairn_family cairn_engine_chaos_family = {
	.stage = "serving",
	.name = "engine_chaos",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 16,
};
