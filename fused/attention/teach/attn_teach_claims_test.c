// SPDX-License-Identifier: Apache-2.0
/*
 * attn_teach_claims_test - the FlashAttention papers' claims about traffic and memory (claims AT-3, AT-7)
 *
 * Most runs here only count, without data. passes_equal_the_definition() shows that the counts of runs with
 * data equal the closed forms, too.
 */
#include <math.h>
#include <stdio.h>

#include "fused/attention/teach/attn_teach_runs_test.h"

/* Counts the first `passes` passes of a run without data. Counts do not depend on data: shapes[] has both. */
static void count(struct cairn_test *t, int k, struct shape s, int passes, struct traffic moved[2])
{
	struct problem p = new_problem(s, 0, 1);

	for (int pass = 0; pass < passes; pass++) {
		int ret;

		moved[pass] = run_pass(&algorithms[k], pass, &p, &ret);
		EXPECT(t, !ret);
		EXPECT(t, same_traffic(moved[pass], algorithms[k].traffic[pass](s)));
	}
	chip_free(p.chip);
}

static double accesses(struct traffic m)
{
	return (double)(m.loads + m.stores);
}

/*
 * Theorem 2, for d^2 <= M <= nd, with constants that follow from the closed forms. FlashAttention: with M a
 * multiple of 4d, 4nd / M <= Tc < 4nd / M + 1, and 1 <= nd / M, so that 3nd (Tc + 1) + (4 Tc + 2) n lies
 * between 12 and 18 + 24 / d times n^2 d^2 / M. Standard: 4 n^2 + (2 + 2T) nd lies between 2 and 12 times
 * n^2 + nd.
 */
void teach_accesses_grow_as_theorem_2_says(struct cairn_test *t)
{
	struct traffic moved[2], doubled[2];

	for (int64_t d = 32; d <= 128; d *= 2) {
		for (int64_t n = 512; n <= 4096; n *= 2) {
			for (int64_t M = d * d; M <= n * d; M *= 2) {
				double standard = (double)(n * n + n * d);
				double flash = (double)(n * n * d * d) / (double)M;
				struct shape s = { n, d, M, 0 };

				if (n <= M) {		/* a row of S fits SRAM */
					count(t, STANDARD, s, 1, moved);
					EXPECT(t, accesses(moved[0]) >= 2 * standard);
					EXPECT(t, accesses(moved[0]) <= 12 * standard);
				}
				count(t, FLASH1, s, 1, moved);
				EXPECT(t, accesses(moved[0]) >= 12 * flash);
				EXPECT(t, accesses(moved[0]) <= (18 + 24.0 / (double)d) * flash);
				count(t, FLASH2, s, 1, moved);
				EXPECT(t, accesses(moved[0]) < 12 * flash);
			}
		}
	}
	/* Twice the SRAM halves the traffic of FlashAttention, in both passes. */
	for (int k = FLASH1; k <= FLASH2; k++) {
		count(t, k, (struct shape){ 32768, 64, 32768, 0 }, 2, moved);
		count(t, k, (struct shape){ 32768, 64, 65536, 0 }, 2, doubled);
		for (int pass = 0; pass < 2; pass++) {
			double ratio = accesses(moved[pass]) / accesses(doubled[pass]);

			EXPECT(t, ratio > 1.97 && ratio < 2);
		}
	}
}

/* AT-3 and AT-7: twice the length takes twice the memory; standard attention takes four times as much. */
void teach_memory_is_linear_in_n(struct cairn_test *t)
{
	for (int64_t n = 256; n <= 16384; n *= 2) {
		struct traffic moved[2];

		count(t, FLASH1, (struct shape){ n, 64, 51200, 0 }, 2, moved);
		EXPECT(t, moved[0].hbm == 2 * n && moved[1].hbm == 0);
		count(t, FLASH2, (struct shape){ n, 64, 51200, 0 }, 2, moved);
		EXPECT(t, moved[0].hbm == n && moved[1].hbm == n);
	}
	for (int64_t n = 256; n <= 1024; n *= 2) {
		struct traffic moved[2];

		count(t, STANDARD, (struct shape){ n, 64, 51200, 0 }, 2, moved);
		EXPECT(t, moved[0].hbm == 2 * n * n && moved[1].hbm == 2 * n * n);
	}
}

/* Where blocks divide each other and n, the sums over visible tiles are (Tr + 1) nd and (Tc + 1) n / 2. */
void teach_causal_skipping_halves_the_traffic(struct cairn_test *t)
{
	struct shape s = { 4096, 64, 65536, 1 };	/* forward Br 256, Bc 64; backward Bc 128, Br 64 */
	int64_t nd = s.n * s.d, Tr = 16, Tc = 32, rows = (Tc + 1) * s.n / 2;
	struct traffic skipped[2], full[2];

	count(t, FLASH2, s, 2, skipped);
	EXPECT(t, skipped[0].loads == nd + (Tr + 1) * nd);
	EXPECT(t, skipped[1].loads == 4 * nd + (3 * s.d + 2) * rows);
	EXPECT(t, skipped[1].stores == 3 * nd + s.n + s.d * rows);
	s.causal = 0;
	count(t, FLASH2, s, 2, full);
	for (int pass = 0; pass < 2; pass++)
		EXPECT(t, accesses(full[pass]) / accesses(skipped[pass]) > 1.7);
	/* FlashAttention masks tiles, but visits all of them. */
	count(t, FLASH1, s, 2, full);
	s.causal = 1;
	count(t, FLASH1, s, 2, skipped);
	EXPECT(t, same_traffic(full[0], skipped[0]) && same_traffic(full[1], skipped[1]));
}

/* GPT-2: n 1024, d 64, about 100 KB of SRAM. An element has 2 bytes. */
static const struct shape gpt2 = { 1024, 64, 51200, 0 };

void teach_gpt2_setting(struct cairn_test *t)
{
	double standard = 0;

	for (int k = 0; k < NUM_ALGORITHMS; k++) {
		for (int causal = 0; causal <= (k == FLASH2); causal++) {
			struct shape s = gpt2;
			struct traffic m[2];
			double both;

			if (k == FLASH1_SIMPLE)
				continue;
			s.causal = causal;
			count(t, k, s, 2, m);
			both = accesses(m[0]) + accesses(m[1]);
			standard = k == STANDARD ? both : standard;
			cairn_note(t, "AT-3, AT-7: %s%s: forward %lld loads, %lld stores, %lld allocated; "
				   "backward %lld, %lld, %lld; together %.1f MB a head, standard / this %.1f",
				   algorithms[k].name, causal ? " causal" : "", (long long)m[0].loads,
				   (long long)m[0].stores, (long long)m[0].hbm, (long long)m[1].loads,
				   (long long)m[1].stores, (long long)m[1].hbm, both * 2e-6, standard / both);
			EXPECT(t, k == STANDARD || both < standard / 2);
		}
	}
}

/* The blocks fill no more than SRAM; S and P are in registers. */
void teach_blocks_fit_the_chip(struct cairn_test *t)
{
	for (size_t k = 0; k < ARRAY_SIZE(shapes); k++) {
		int64_t d = shapes[k].d, large = shapes[k].M / (4 * d), half = shapes[k].M / (8 * d);
		int64_t forward = 2 * (large + smaller(large, d)) * d;
		int64_t backward[] = { [FLASH1] = 4 * (half + smaller(half, d)) * d,
				       [FLASH2] = (4 * half + 3 * smaller(half, d)) * d };

		for (int g = FLASH1; g <= FLASH2; g++) {
			struct problem p = new_problem(shapes[k], 0, 1);
			struct chip_counts counts;
			int ret;

			run_pass(&algorithms[g], 0, &p, &ret);
			counts = chip_counts(p.chip);
			EXPECT(t, counts.sram == forward && counts.sram <= shapes[k].M);
			run_pass(&algorithms[g], 1, &p, &ret);
			counts = chip_counts(p.chip);
			EXPECT(t, counts.sram == (forward > backward[g] ? forward : backward[g]));
			EXPECT(t, counts.sram <= shapes[k].M && counts.registers <= shapes[k].M);
			chip_free(p.chip);
		}
	}
}

void teach_too_little_sram_fails(struct cairn_test *t)
{
	struct problem p = new_problem((struct shape){ 200, 4, 128, 0 }, 0, 1);

	/* a row of S does not fit, and the chip keeps the error */
	EXPECT(t, teach_standard_forward(p.chip, &p.a) == -ENOMEM);
	EXPECT(t, teach_flash1_forward(p.chip, &p.a) == -ENOMEM);
	chip_free(p.chip);
	p = new_problem((struct shape){ 200, 4, 128, 0 }, 0, 1);
	EXPECT(t, teach_flash1_forward(p.chip, &p.a) == 0);
	chip_sram(p.chip, 32, 4);
	EXPECT(t, chip_end_kernel(p.chip) == 0);
	chip_sram(p.chip, 32, 4);
	chip_sram(p.chip, 1, 1);
	EXPECT(t, chip_end_kernel(p.chip) == -ENOMEM);
	chip_free(p.chip);
	/* less than four blocks of one row, or less than eight */
	for (int k = 0; k < NUM_ALGORITHMS; k++) {
		for (int pass = 0; pass < (k == STANDARD ? 1 : 2); pass++) {
			p = new_problem((struct shape){ 200, 4, pass ? 31 : 15, 0 }, 0, 1);
			EXPECT(t, algorithms[k].run[pass](p.chip, &p.a) == -EINVAL);
			chip_free(p.chip);
		}
	}
}

/* The bytes of one head at GPT-2's d and M, for a plot over the length (AT-3, AT-7). */
void teach_traffic(struct cairn_test *t)
{
	static const struct {
		const char *impl;
		int k, causal;
	} lines[] = {
		{ "standard", STANDARD, 0 }, { "flash1", FLASH1, 0 }, { "flash2", FLASH2, 0 },
		{ "flash2:causal", FLASH2, 1 },
	};

	for (int n = 256; n <= 16384; n *= 2) {
		char name[32];

		snprintf(name, sizeof(name), "n%d_d%d", n, (int)gpt2.d);
		for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
			struct shape s = { n, gpt2.d, gpt2.M, lines[i].causal };
			struct traffic m[2];

			count(t, lines[i].k, s, 2, m);
			cairn_host_row(t, name, lines[i].impl,
				       "\"kv_len\":%d,\"head_dim\":%d,\"sram_bytes\":%lld,"
				       "\"forward_bytes\":%.0f,\"backward_bytes\":%.0f,"
				       "\"forward_memory_bytes\":%lld,\"backward_memory_bytes\":%lld,"
				       "\"simulated\":true", n, (int)gpt2.d,
				       2 * (long long)gpt2.M, 2 * accesses(m[0]), 2 * accesses(m[1]),
				       2 * (long long)m[0].hbm, 2 * (long long)m[1].hbm);
		}
	}
}
