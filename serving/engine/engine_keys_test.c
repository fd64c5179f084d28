// SPDX-License-Identifier: Apache-2.0
/*
 * engine_keys_test - the engine's bound on all keys of a pass (nnz_kv) is never exceeded, and is given where
 * it helps attn_paged
 */
#include "conformance/harness.h"
#include "serving/engine/engine_test.h"

enum { MOST = 32, CONTEXT = 512, LONG = 400, SHORT = 10, NEW = 12 };

/* The calls of attn_paged so far. */
static struct {
	int all, bounded, wrong;
	int quarter, sixteenth;		/* of what the batch could have, as bounds */
} calls;

static int attn_counted(const struct cairn_attn_paged_args *a, void *stream)
{
	int64_t keys = 0;

	for (int32_t i = 0; i < a->kv.batch; i++)
		keys += cairn_kv_len(&a->kv, i);
	calls.all++;
	calls.bounded += a->nnz_kv > 0;
	calls.wrong += a->nnz_kv && a->nnz_kv < keys;
	calls.quarter += a->nnz_kv == (int64_t)a->kv.batch * a->kv.max_len / 4;
	calls.sixteenth += a->nnz_kv == (int64_t)a->kv.batch * a->kv.max_len / 16;
	return cairn_attn_paged_cpu(a, stream);
}

/* Runs `num` requests of which the first `num_long` are long, and counts the calls. */
static void run(struct cairn_test *t, struct cairn_model *m, int num, int num_long, int repeatable)
{
	const struct cairn_engine_options opt = {
		.max_batch = num, .max_context = CONTEXT, .max_rows = 128, .repeatable = repeatable,
	};
	int32_t prompt[LONG + MOST];
	static struct answer a[MOST];
	struct cairn_engine *e;

	memset(&calls, 0, sizeof(calls));
	if (!EXPECT(t, cairn_engine_create(&e, m, &opt) == 0))
		return;
	for (int i = 0; i < LONG + MOST; i++)
		prompt[i] = (int32_t)(cairn_rand(t) % (uint64_t)m->config.vocab_size);
	for (int i = 0; i < num; i++) {
		const struct golden g = { .tokens = prompt + i };
		struct cairn_request r = request(&g, i < num_long ? LONG : SHORT, NEW, &a[i]);

		r.ignore_eos = 1;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
	}
	EXPECT(t, cairn_engine_run(e) == 0 && calls.all > NEW && calls.wrong == 0);
	for (int i = 0; i < num; i++)
		EXPECT(t, a[i].num_ids == NEW);
	cairn_engine_destroy(e);
}

static void bounds(struct cairn_test *t)
{
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama3_tiny"))
		return;
	impl.attn_paged = attn_counted;
	impl.decode_step = NULL;
	if (EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_PLAIN, NULL,
					  NULL) == 0)) {
		/* a long request among short ones: one of 8 is more than a sixteenth, one of 32 is less */
		run(t, m, 8, 1, 0);
		EXPECT(t, calls.quarter >= NEW && calls.sixteenth == 0);
		run(t, m, MOST, 1, 0);
		EXPECT(t, calls.sixteenth >= NEW && calls.quarter > 0);
		EXPECT(t, calls.quarter + calls.sixteenth == calls.bounded);
		run(t, m, 8, 8, 0);
		EXPECT(t, calls.bounded == 0);
		run(t, m, 8, 1, 1);	/* with a bound, other requests would decide how keys are divided */
		EXPECT(t, calls.bounded == 0);
		cairn_model_free(m);
	}
	close_golden(&g);
}

static const struct cairn_unit units[] = {
	{ "bounds", bounds },
};

const struct cairn_family cairn_engine_keys_family = {
	.stage = "serving", .name = "engine_keys", .units = units, .num_units = ARRAY_SIZE(units),
};
