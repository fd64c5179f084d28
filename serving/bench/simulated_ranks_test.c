// SPDX-License-Identifier: Apache-2.0
/*
 * simulated_ranks_test - the simulation of context parallelism against times that are known; and rows of
 * `cairn bench`
 *
 *   n2, n4, n8
 *	llama32-1b on so many GPUs, one pass of 32K tokens, by heads and in a ring: measured, and simulated
 *	from the times of one GPU for 8K and 128K tokens in the same run. error_pct: of the simulated time.
 *	Only if it is at most 5 with two GPUs, n2 also writes rows for 4 and 8 ranks, which are simulated and
 *	say so.
 */
#include "conformance/harness.h"
#include "serving/bench/ranks_load_test.h"
#include "serving/bench/ranks_sim.h"

#define NEAR(a, b)	(fabs((a) / (b) - 1) < 1e-9)

/* A link that takes no time. */
static const struct cairn_sim_costs free_link = {
	.layers = 4, .row_ns = 100, .pair_ns = 0.5, .gb_per_s = 1e30, .exchange_gb_per_s = 1e30,
	.copy_gb_per_s = 1e30, .merge_gb_per_s = 1e30, .q_bytes = 8192, .kv_bytes = 4096, .out_bytes = 8192,
};

static void ideal(struct cairn_test *t)
{
	const double one = 4 * (100 * 4096.0 + 0.5 * 4096.0 * 4096 / 2);

	for (int n = 1; n <= 8; n++)
		for (int way = CAIRN_SIM_HEADS; way <= CAIRN_SIM_ZIGZAG; way++)
			EXPECT(t, NEAR(cairn_sim_prefill(&free_link, way, n, 4096), one / n));
}

/* The last of n ranks with contiguous rows sees n - 1/2 of its n key segments, twice the average less 1/n. */
static void contiguous(struct cairn_test *t)
{
	struct cairn_sim_costs c = free_link;

	c.row_ns = 0;
	for (int n = 2; n <= 8; n++)
		EXPECT(t, NEAR(cairn_sim_prefill(&c, CAIRN_SIM_CONTIGUOUS, n, 4096) /
			       cairn_sim_prefill(&c, CAIRN_SIM_ZIGZAG, n, 4096), 2 - 1.0 / n));
}

/* A slow link is all that counts: n - 1 messages a layer in a ring, two exchanges by heads. */
static void slow_link(struct cairn_test *t)
{
	struct cairn_sim_costs c = free_link;
	double ring, heads;

	c.row_ns = c.pair_ns = 1e-12;
	c.gb_per_s = c.exchange_gb_per_s = 1;
	c.alpha_ns = 1000;
	for (int n = 2; n <= 8; n++) {
		ring = 4 * (n - 1) * (1000 + 4096.0 / n * 4096);
		heads = 4 * (2000 + (n - 1) * 4096.0 / n * (8192 + 4096 + 8192) / n);
		EXPECT(t, NEAR(cairn_sim_prefill(&c, CAIRN_SIM_ZIGZAG, n, 4096), ring));
		EXPECT(t, NEAR(cairn_sim_prefill(&c, CAIRN_SIM_HEADS, n, 4096), heads));
	}
}

/* A message costs no time if it is shorter than the attention beside it, and only the excess otherwise. */
static void overlap(struct cairn_test *t)
{
	struct cairn_sim_costs c = free_link;
	const double step = 0.5 * 2 * 1024 * 1024;	/* of each of two steps */

	c.layers = 1;
	c.row_ns = 0;
	c.gb_per_s = 1e30;
	c.alpha_ns = step;
	EXPECT(t, NEAR(cairn_sim_prefill(&c, CAIRN_SIM_ZIGZAG, 2, 4096), 2 * step));
	c.alpha_ns = 1.5 * step;
	EXPECT(t, NEAR(cairn_sim_prefill(&c, CAIRN_SIM_ZIGZAG, 2, 4096), 2.5 * step));
}

/* A ring copies own keys to slots, those of others from slots, and merges two results. */
static void copies(struct cairn_test *t)
{
	struct cairn_sim_costs c = free_link;

	c.row_ns = c.pair_ns = 1e-12;
	c.copy_gb_per_s = 1;
	c.merge_gb_per_s = 2;
	c.launch_ns = 1000;
	for (int n = 2; n <= 8; n++)
		EXPECT(t, NEAR(cairn_sim_prefill(&c, CAIRN_SIM_ZIGZAG, n, 4096),
			       4 * (4096.0 / n * (2 * n * 4096 + 3 * 8192 / 2) + RING_LAUNCHES * 1000)));
}

/* Rank 0 of two has 256 units of 32 rows that see 2048 keys of others. With more SMs, units are cut. */
static void tails(struct cairn_test *t)
{
	struct cairn_sim_costs c = free_link;
	const double ideal = cairn_sim_prefill(&c, CAIRN_SIM_ZIGZAG, 2, 4096);

	c.unit_tokens = 32;
	c.kv_heads = 8;
	c.sms = 64;
	EXPECT(t, NEAR(cairn_sim_prefill(&c, CAIRN_SIM_ZIGZAG, 2, 4096),
		       ideal + 4 * 0.5 * 2048 * 32 / 8 * 64 / 2));
	c.sms = 65;
	EXPECT(t, cairn_sim_prefill(&c, CAIRN_SIM_ZIGZAG, 2, 4096) <
		  ideal + 4 * 0.5 * 2048 * 32 / 8 * 65 / 2);
}

static void fit(struct cairn_test *t)
{
	struct cairn_sim_costs c = free_link, got = free_link;

	got.row_ns = got.pair_ns = 0;
	EXPECT(t, cairn_sim_fit(&got, 1024, cairn_sim_prefill(&c, CAIRN_SIM_HEADS, 1, 1024), 8192,
				cairn_sim_prefill(&c, CAIRN_SIM_HEADS, 1, 8192)) == 0);
	EXPECT(t, NEAR(got.row_ns, c.row_ns) && NEAR(got.pair_ns, c.pair_ns));
	EXPECT(t, cairn_sim_fit(&got, 1024, 5e6, 8192, 5e6) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "ranks_sim: 5e+06 ns for 1024 tokens");
}

/* ---- rows ---- */

enum { SHORT = 8192, TOKENS = 32768, LONG = 130048 };

static const struct { const char *name; enum cairn_exchange exchange; enum cairn_sim_way way; } ways[] = {
	{ "heads", CAIRN_EXCHANGE_HEADS, CAIRN_SIM_HEADS },
	{ "ring", CAIRN_EXCHANGE_RING, CAIRN_SIM_ZIGZAG },
};

/* Fits the costs to the times of one GPU for two prompts, each in one pass. */
static int fit_one(struct cairn_test *t, struct cairn_sim_costs *c)
{
	const struct ranks_model m = { .impl = "cuda", .shape = "llama32-1b" };
	const struct ranks_load loads[] = {
		{ .batch = 1, .tokens = SHORT, .rows = SHORT, .runs = 4 },
		{ .batch = 1, .tokens = LONG, .rows = LONG, .runs = 2 },
	};
	struct ranks_times times[ARRAY_SIZE(loads)];

	if (ranks_measure(t, &m, loads, ARRAY_SIZE(loads), times))
		return -1;
	return EXPECT(t, cairn_sim_fit(c, SHORT, (double)times[0].first_ns, LONG,
				       (double)times[1].first_ns) == 0) ? 0 : -1;
}

static void write_simulated(struct cairn_test *t, const struct cairn_sim_costs *c, size_t i)
{
	char name[64];

	for (int n = 4; n <= 8; n *= 2) {
		const double one = cairn_sim_prefill(c, ways[i].way, 1, TOKENS);
		const double all = cairn_sim_prefill(c, ways[i].way, n, TOKENS);

		snprintf(name, sizeof(name), "llama32_1b_32k_n%d_%s_simulated", n, ways[i].name);
		cairn_row(t, name, "cuda", "\"simulated\":true,\"prompt_tokens\":%d,\"ranks\":%d,"
			  "\"simulated_ms\":%.2f,\"ideal_pct\":%.1f", TOKENS, n, all * 1e-6,
			  100 * one / all / n);
	}
}

static void measure(struct cairn_test *t, int32_t ranks)
{
	/*
	 * The rates are those of H200s: a long message through a stage, kv_move and attn_merge. An exchange
	 * has the rate of LL words between two H100s. A unit of attn_bsr has 128 rows of 4 query heads.
	 */
	struct cairn_sim_costs c = { .layers = 16, .alpha_ns = 12000, .gb_per_s = 197,
				     .exchange_gb_per_s = 133, .copy_gb_per_s = 3600, .merge_gb_per_s = 2100,
				     .launch_ns = 5000, .sms = 132, .unit_tokens = 32, .kv_heads = 8,
				     .q_bytes = 2 * 2048, .kv_bytes = 2 * 2 * 8 * 64, .out_bytes = 2 * 2048 };
	const struct ranks_load l = { .batch = 1, .tokens = TOKENS, .rows = TOKENS, .runs = 4 };
	struct ranks_times times[ARRAY_SIZE(ways)];
	char name[64];

	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		const struct ranks_model m = { .impl = "cuda", .shape = "llama32-1b", .cp = ranks,
					       .exchange = ways[i].exchange };

		if (ranks_measure(t, &m, &l, 1, &times[i]))
			return;
	}
	if (fit_one(t, &c))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		const double ns = (double)times[i].first_ns;
		const double simulated = cairn_sim_prefill(&c, ways[i].way, ranks, TOKENS);
		const double error = 100 * (simulated / ns - 1);

		snprintf(name, sizeof(name), "llama32_1b_32k_n%d_%s", ranks, ways[i].name);
		cairn_row(t, name, "cuda", "\"prompt_tokens\":%d,\"ranks\":%d,\"first_ms\":%.2f,"
			  "\"simulated_ms\":%.2f,\"error_pct\":%.2f", TOKENS, ranks, ns * 1e-6,
			  simulated * 1e-6, error);
		if (ranks == 2 && fabs(error) <= 5)
			write_simulated(t, &c, i);
	}
}

static void n2(struct cairn_test *t)
{
	measure(t, 2);
}

static void n4(struct cairn_test *t)
{
	measure(t, 4);
}

static void n8(struct cairn_test *t)
{
	measure(t, 8);
}

static const struct cairn_unit units[] = {
	{ "ideal", ideal }, { "contiguous", contiguous }, { "slow_link", slow_link }, { "overlap", overlap },
	{ "copies", copies }, { "tails", tails }, { "fit", fit },
};

static const struct cairn_unit measures[] = {
	{ "n2", n2 }, { "n4", n4 }, { "n8", n8 },
};

const struct cairn_family cairn_simulated_ranks_family = {
	.stage = "serving", .name = "simulated_ranks",
	.units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures),
	.timeout_s = 120,
};
