/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks_first_test - the time to the first token of `cairn generate` with several ranks; for the rows of
 * cp_prefill_test.c and ring_attention_test.c
 *
 * Each run is a program of its own, because ranks are forked before a table is started. Its second run of the
 * prompt counts: the first one loads kernels.
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_RANKS_FIRST_TEST_H
#define CAIRN_RANKS_FIRST_TEST_H

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
};

/* Returns the time in ms, or 0 after a failed expectation. */
static inline double ranks_first_ms(struct cairn_test *t, const struct ranks_run *r)
{
	char tokens[16], rows[16], shared[16], tp[16], cp[16], path[4096], text[4096] = "", out[4096];
	const char *argv[32] = { "cairn", "generate", "--impl", r->impl, r->shape ? "--shape" : "--model",
				 r->shape ? r->shape : r->model, "--prompt-tokens", tokens, "--prefill-rows",
				 rows, "--max-new-tokens", "3", "--repeat", "2", "--ignore-eos", "--json",
				 path };
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
	if (!EXPECT(t, !cairn_spawn((char *const *)argv, out, sizeof(out)))) {
		cairn_note(t, "%.2000s", out);
		return 0;
	}
	f = fopen(path, "r");
	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	found = strstr(text, "\"first_token_ns\":");
	EXPECT(t, found && strstr(text, "\"ok\":true"));
	return found ? atof(found + strlen("\"first_token_ns\":")) * 1e-6 : 0;
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
