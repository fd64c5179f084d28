// SPDX-License-Identifier: Apache-2.0
/*
 * scheduler_claims_test - tests the claims that depend only on scheduling (AT-14, NF-9, NF-11) and the
 * prediction of memory
 *
 * All results are counts of tokens and pages over length traces (kv_lengths_test.h); nothing is timed.
 */
#include "conformance/harness.h"

#include "serving/kv/kv_lengths_test.h"
#include "serving/scheduler/scheduler_sim_test.h"

static struct sim sim;
static int is_measure;	/* write rows for `cairn bench` */

static struct cairn_scheduler_options base(void)
{
	return (struct cairn_scheduler_options){
		.dense_rows = 512, .max_seqs = 128, .max_context = 2048, .page_size = 16, .num_pages = 8192,
		.grain = 16, .ahead = 1, .max_queued = 1 << 20, .max_passes = 64,
	};
}

/* NF-11: an end is noticed one step late and wastes one token. Checks the share of such tokens. */
static void late_ends_waste_little(struct cairn_test *t)
{
	struct cairn_scheduler_options opt = base();
	struct cairn_scheduler_stats st;

	for (int ahead = 0; ahead < 2; ahead++) {
		opt.ahead = ahead;
		if (!sim_create(t, &sim, &opt, 500))
			return;
		for (int32_t i = 0; i < sim.num_requests; i++) {
			sim_prompt(t, &sim, i, draw_length(t, sharegpt.prompt),
				   draw_length(t, sharegpt.answer));
			EXPECT(t, sim_submit(&sim, i) == 0);
		}
		sim_run(t, &sim, 20000);
		cairn_scheduler_stats(sim.s, &st);
		cairn_note(t, "%s%s: %lld draws, %lld dropped: %.2f%% (answers of %.0f tokens)",
			   ahead ? "NF-11: " : "", ahead ? "one step ahead" : "in turn", (long long)st.draws,
			   (long long)st.dropped_draws, 100.0 * (double)st.dropped_draws / (double)st.draws,
			   (double)(st.draws - st.dropped_draws) / sim.num_requests);
		if (is_measure && ahead)
			cairn_host_row(
				t, "late_ends", "host",
				"\"draws\":%lld,\"dropped\":%lld,\"dropped_share\":%.5f,\"simulated\":true",
				(long long)st.draws, (long long)st.dropped_draws,
				(double)st.dropped_draws / (double)st.draws);
		EXPECT(t, sim.num_ended == sim.num_requests);
		EXPECT(t, ahead || !st.dropped_draws);
		EXPECT(t, !ahead || (st.dropped_draws > 0 && st.dropped_draws * 100 < st.draws));
		sim_destroy(t, &sim);
	}
}

/* AT-14: questions about 24 documents arrive in random order; memory holds only some of the documents. */
static void longest_prefix_first_hits_more(struct cairn_test *t)
{
	enum { DOCUMENTS = 24, QUESTIONS = 20, DOCUMENT = 640, QUESTION = 32 };
	static const int32_t passes[] = { 0, 16, 64, 1 << 20 };
	struct cairn_scheduler_options opt = base();
	static int32_t documents[DOCUMENTS][DOCUMENT], about[DOCUMENTS * QUESTIONS];
	double rate[ARRAY_SIZE(passes)];
	struct cairn_scheduler_stats st;

	opt.num_pages = 400;		/* room for ten documents */
	opt.max_seqs = 16;
	opt.window = 512;
	for (int32_t d = 0; d < DOCUMENTS; d++) {
		for (int32_t i = 0; i < DOCUMENT; i++)
			documents[d][i] = (int32_t)(cairn_rand(t) & 0xffffff);
	}
	for (int32_t i = 0; i < DOCUMENTS * QUESTIONS; i++)
		about[i] = (int32_t)(cairn_rand(t) % DOCUMENTS);
	for (size_t k = 0; k < ARRAY_SIZE(passes); k++) {
		int32_t longest_wait = 0;

		opt.max_passes = passes[k];
		if (!sim_create(t, &sim, &opt, DOCUMENTS * QUESTIONS))
			return;
		for (int32_t i = 0; i < sim.num_requests; i++) {
			sim_prompt(t, &sim, i, DOCUMENT + QUESTION, 16);
			memcpy(sim.requests[i].prompt, documents[about[i]], sizeof(documents[0]));
			EXPECT(t, sim_submit(&sim, i) == 0);
		}
		sim_run(t, &sim, 20000);
		cairn_scheduler_stats(sim.s, &st);
		for (int32_t i = 0; i < sim.num_requests; i++)
			longest_wait = sim.requests[i].step_first > longest_wait ? sim.requests[i].step_first
										 : longest_wait;
		rate[k] = (double)st.hit_tokens / (double)st.prompt_tokens;
		cairn_note(
			t,
			"AT-14: overtaken by at most %d: %.1f%% of prompt tokens found, %d steps; the "
			"last request had its first token in step %d",
			passes[k], 100 * rate[k], sim.num_steps, longest_wait);
		EXPECT(t, sim.num_ended == sim.num_requests);
		sim_destroy(t, &sim);
	}
	cairn_note(t, "AT-14: in order of arrival %.1f%%, longest prefix first %.1f%%", 100 * rate[0],
		   100 * rate[3]);
	if (is_measure)
		cairn_host_row(t, "longest_prefix_first", "host",
			       "\"arrival_hits\":%.4f,\"bound16_hits\":%.4f,\"bound64_hits\":%.4f,"
			       "\"longest_hits\":%.4f,\"simulated\":true",
			       rate[0], rate[1], rate[2], rate[3]);
	EXPECT(t, rate[3] > rate[0] + 0.1 && rate[2] > rate[0] && rate[1] >= rate[0]);
}

/* NF-9: 40 conversations of five turns alternate; the device has room for a few of them, the host for all. */
static void offload_saves_recomputation(struct cairn_test *t)
{
	enum { CHATS = 40, TURNS = 5 };
	struct cairn_scheduler_options opt = base();
	static int32_t said[CHATS * TURNS], answered[CHATS * TURNS];
	struct cairn_scheduler_stats st;
	double computed[3];

	opt.num_pages = 512;
	opt.max_seqs = 16;
	for (int32_t i = 0; i < CHATS * TURNS; i++) {
		said[i] = 1 + draw_length(t, 60) % 200;
		answered[i] = 1 + draw_length(t, 120) % 200;
	}
	for (int tiers = 0; tiers < 3; tiers++) {
		opt.host_pages = tiers == 1 ? 8192 : tiers == 2 ? 700 : 0;
		opt.disk_pages = tiers == 2 ? 8192 : 0;
		if (!sim_create(t, &sim, &opt, CHATS * TURNS))
			return;
		for (int32_t i = 0; i < CHATS * TURNS; i++) {
			const struct sim_request *before = i < CHATS ? NULL : &sim.requests[i - CHATS];
			int32_t history = before ? before->num_prompt + before->told : 0;

			sim_prompt(t, &sim, i, history + said[i], answered[i]);
			if (before) {
				memcpy(sim.requests[i].prompt, before->prompt,
				       (size_t)before->num_prompt * sizeof(int32_t));
				for (int32_t k = 0; k < before->told; k++)
					sim.requests[i].prompt[before->num_prompt + k] =
						sim_token((uint64_t)(i - CHATS), k);
			}
			sim.requests[i].keep = 1;
			EXPECT(t, sim_submit(&sim, i) == 0);
			for (int k = 0; (i + 1) % 8 == 0 && k < 10000; k++) {	/* eight at a time */
				sim_step(t, &sim);
				for (int32_t q = i - 7; q <= i; q++)
					cairn_scheduler_fetched(sim.s, (uint64_t)q);
				if (sim.num_ended == i + 1 && !sim.num_flights)
					break;
			}
		}
		cairn_scheduler_stats(sim.s, &st);
		EXPECT(t, sim.num_ended == sim.num_requests);
		computed[tiers] = (double)(st.prompt_tokens - st.hit_tokens - st.loaded_tokens);
		cairn_note(t,
			   "host %d, disk %d pages: %lld prompt tokens, %lld found, %lld loaded, %.0f "
			   "computed; moves: %lld "
			   "offload, %lld in, %lld spill, %lld fetch",
			   opt.host_pages, opt.disk_pages, (long long)st.prompt_tokens,
			   (long long)st.hit_tokens, (long long)st.loaded_tokens, computed[tiers],
			   (long long)(st.moves[CAIRN_MOVE_OFFLOAD] + st.moves[CAIRN_MOVE_OUT]),
			   (long long)st.moves[CAIRN_MOVE_IN], (long long)st.moves[CAIRN_MOVE_SPILL],
			   (long long)st.moves[CAIRN_MOVE_FETCH]);
		sim_destroy(t, &sim);
	}
	cairn_note(
		t,
		"NF-9: offload saves %.2fx of the recomputation (simulated); with most of it on disk %.2fx",
		computed[0] / computed[1], computed[0] / computed[2]);
	if (is_measure)
		cairn_host_row(
			t, "offload", "host",
			"\"computed_tokens\":%.0f,\"computed_with_host\":%.0f,\"computed_with_disk\":%.0f,"
			"\"saved_ratio\":%.3f,\"simulated\":true",
			computed[0], computed[1], computed[2], computed[0] / computed[1]);
	EXPECT(t, computed[0] > 2 * computed[1] && computed[0] > 2 * computed[2]);
}

/*
 * Admission by predicted memory: far more sequences run at once than if each reserved memory for its longest
 * possible answer, and few are preempted.
 */
static void prediction_fills_memory(struct cairn_test *t)
{
	struct cairn_scheduler_options opt = base();
	struct cairn_scheduler_stats st;
	double running, sure;

	opt.num_pages = 1500;
	opt.expected_new = 100;		/* wrong until the scheduler has learned the mean */
	if (!sim_create(t, &sim, &opt, 500))
		return;
	for (int32_t i = 0; i < sim.num_requests; i++) {
		sim_prompt(t, &sim, i, draw_length(t, sharegpt.prompt), draw_length(t, sharegpt.answer));
		EXPECT(t, sim_submit(&sim, i) == 0);
	}
	sim_run(t, &sim, 100000);
	cairn_scheduler_stats(sim.s, &st);
	running = (double)st.decode_rows / (double)st.plans;
	sure = (double)opt.num_pages * opt.page_size / opt.max_context;
	cairn_note(t,
		   "%d pages: %.1f decode at once (with room for the longest answer: %.1f), %lld of %lld "
		   "admitted requests were preempted",
		   opt.num_pages, running, sure, (long long)(st.swapped + st.recomputed),
		   (long long)st.admitted);
	EXPECT(t, sim.num_ended == sim.num_requests);
	EXPECT(t, running > 2 * sure && (st.swapped + st.recomputed) * 10 < st.admitted);
	sim_destroy(t, &sim);
}

/* With prompts and answers of mixed lengths, every step has dense_rows rows as long as requests wait. */
static void batch_is_constant(struct cairn_test *t)
{
	struct cairn_scheduler_options opt = base();

	opt.dense_rows = 256;
	opt.max_seqs = 256;
	opt.num_pages = 16384;
	if (!sim_create(t, &sim, &opt, 1200))
		return;
	for (int32_t i = 0; i < sim.num_requests; i++) {
		sim_prompt(t, &sim, i, draw_length(t, sharegpt.prompt), draw_length(t, sharegpt.answer));
		EXPECT(t, sim_submit(&sim, i) == 0);
	}
	sim_run(t, &sim, 20000);
	cairn_note(t, "%lld of %lld steps with waiting requests had %d rows", (long long)sim.full_steps,
		   (long long)sim.busy_steps, opt.dense_rows);
	EXPECT(t, sim.busy_steps > 500 && sim.full_steps == sim.busy_steps);
	sim_destroy(t, &sim);
}

/* Writes AT-14, NF-9 and NF-11 as rows for `cairn bench`. */
static void claims(struct cairn_test *t)
{
	is_measure = 1;
	late_ends_waste_little(t);
	longest_prefix_first_hits_more(t);
	offload_saves_recomputation(t);
}

#define UNIT(name)	{ #name, name }
static const struct cairn_unit units[] = {
	UNIT(late_ends_waste_little), UNIT(longest_prefix_first_hits_more), UNIT(offload_saves_recomputation),
	UNIT(prediction_fills_memory), UNIT(batch_is_constant),
};

static const struct cairn_unit measures[] = {
	{ "claims", claims },
};

const struct cairn_family cairn_scheduler_claims_family = {
	.stage = "serving",
	.name = "scheduler_claims",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
