/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_times_test - times of `cairn generate` with several ranks; for the rows of cp_prefill_test.c,
 * cp_decode_test.c, ring_attention_test.c and simulated_ranks_test.c
 *
 * Each run is a program of its own, because ranks are forked before a table is started. Its second run of the
 * prompt counts: the first one loads kernels.
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_RANKS_TIMES_TEST_H
#define CAIRN_RANKS_TIMES_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/spawn.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"

struct ranks_run {
	const char *impl, *model, *shape;	/* one of the last two; the other is NULL */
	int tokens, rows;			/* of the prompt; of a pass */
	int tp, cp;				/* ranks; 0: none */
	const char *exchange;			/* --cp-exchange; NULL: not given */
	const char *keys;			/* --cp-keys; NULL: not given */
	int stripes;				/* --cp-stripes */
	const char *batch, *new_tokens;		/* NULL: 1 and 3 */
};

/* Returns the time in ms that this member of the record has, or 0 after a failed expectation. */
static inline double ranks_ms(struct cairn_test *t, const struct ranks_run *r, const char *member)
{
	char tokens[16], rows[16], shared[16], tp[16], cp[16], path[4096], text[4096] = "", out[4096];
	const char *argv[40] = { "cairn", "generate", "--impl", r->impl, r->shape ? "--shape" : "--model",
				 r->shape ? r->shape : r->model, "--prompt-tokens", tokens, "--prefill-rows",
				 rows, "--repeat", "2", "--ignore-eos", "--json", path, "--max-new-tokens",
				 r->new_tokens ? r->new_tokens : "3" };
	const char *found;
	int n = 17;
	FILE *f;

	snprintf(tokens, sizeof(tokens), "%d", r->tokens);
	snprintf(rows, sizeof(rows), "%d", r->rows);
	snprintf(shared, sizeof(shared), "%d", r->rows / 4);
	snprintf(tp, sizeof(tp), "%d", r->tp);
	snprintf(cp, sizeof(cp), "%d", r->cp);
	cairn_tmpfile(t, path, sizeof(path), "first.jsonl", "", 0);
	if (r->tp > 1)
		argv[n++] = "--tp", argv[n++] = tp;
	if (r->cp > 1)
		argv[n++] = "--cp", argv[n++] = cp, argv[n++] = "--cp-rows", argv[n++] = shared;
	if (r->exchange)
		argv[n++] = "--cp-exchange", argv[n++] = r->exchange;
	if (r->keys)
		argv[n++] = "--cp-keys", argv[n++] = r->keys;
	if (r->stripes)
		argv[n++] = "--cp-stripes";
	if (r->batch)
		argv[n++] = "--batch", argv[n++] = r->batch;
	if (!EXPECT(t, !cairn_spawn((char *const *)argv, out, sizeof(out)))) {
		cairn_note(t, "%.2000s", out);
		return 0;
	}
	f = fopen(path, "r");
	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	found = strstr(text, member);
	EXPECT(t, found && strstr(text, "\"ok\":true"));
	return found ? atof(found + strlen(member) + strlen("\":")) * 1e-6 : 0;
}

static inline double ranks_first_ms(struct cairn_test *t, const struct ranks_run *r)
{
	return ranks_ms(t, r, "first_token_ns");
}

/* Skips the measure, and returns 1, unless there are n GPUs. */
static inline int ranks_lack_gpus(struct cairn_test *t, int n)
{
	struct cairn_impl impl;
	int ret = cairn_impl_open("cuda", &impl);

	if (!ret)
		ret = cairn_impl_start(&impl, n - 1);
	if (ret)
		cairn_skip(t, "needs %d GPUs", n);
	else if (impl.fini)
		impl.fini();
	return ret != 0;
}

#endif
