// SPDX-License-Identifier: Apache-2.0
/*
 * remote_mutants_test - checks that the comparisons of remote_test.c detect each fault of remote_fault.h
 *
 * Both ends have the fault if it concerns both. They are slowed down at the places where a fault lets one end
 * overtake the other; the same delays without a fault must cause no error.
 */
#include "conformance/harness.h"
#include "serving/remote/remote_mutants.h"

#include "serving/remote/remote_noticed_test.h"
#include "serving/remote/remote_rig_test.h"
#include "serving/remote/remote_lanes_test.h"
#include "serving/remote/remote_graphs_test.h"
#include "serving/remote/remote_async_test.h"
#include "serving/remote/attention/attn_remote_impl.h"
#include "serving/remote/remote_watch_test.h"
#include "serving/remote/attention/journal_rig_test.h"
#include "serving/remote/control/sodium.h"
#include "serving/remote/member/member_end_test.h"

int cairn_remote_fault;

void cairn_remote_nap(int ms)
{
	const struct timespec nap = { 0, ms * 1000000 };

	nanosleep(&nap, NULL);
}

#undef cairn_transport_get
const struct cairn_transport_table *cairn_transport_get(int i);

/* The transports of the modules under test. */
const struct cairn_transport_table *mutant_transport_get(int i)
{
	const struct cairn_transport_table *t = cairn_transport_get(i);

	return t && is_async && !strcmp(t->name, "tcp") ? &async_tcp : t;
}

static void make_table(const struct rig_shape *shape, struct cairn_impl *impl)
{
	cairn_share_streams_over = "tcp";
	is_async = 0;
	if (shape->by_stream)
		async_make(impl);
}

static struct rig rig;

/* Returns whether passes differ, or fail; with `lose`, those after the loss of a worker. */
static int differs(struct cairn_test *t, const struct rig_shape *shape, int lose)
{
	int64_t bad = rig_open(t, &rig, shape);

	if (!bad)
		bad = rig_passes(t, &rig, 10);
	if (!bad && lose)
		bad = rig_lose(&rig, 1);
	if (!bad && lose)
		bad = rig_passes(t, &rig, 3);
	rig_close(&rig);
	return bad != 0;
}

/* 3 layers, windows, moves, two workers with as many heads */
static int passes(struct cairn_test *t)
{
	const struct rig_shape shape = { .workers = 2, .kv_heads = 2, .group = 1, .layers = 3, .window = 6 };

	return differs(t, &shape, 0);
}

/* As passes(), in the order of streams; the passes are of two lanes, one after the other. */
static int queued(struct cairn_test *t)
{
	const struct rig_shape shape = {
		.workers = 2, .kv_heads = 2, .group = 2, .layers = 3, .window = 6, .lanes = 2, .by_stream = 1,
	};

	return differs(t, &shape, 0);
}

/* two stripes of one head, windows, moves between the stripes */
static int stripes(struct cairn_test *t)
{
	const struct rig_shape shape = { .workers = 2, .kv_heads = 1, .group = 1, .layers = 3, .window = 9 };

	return differs(t, &shape, 0);
}

static int latents(struct cairn_test *t)
{
	const struct rig_shape shape = { .workers = 2, .kv_heads = 1, .group = 1, .layers = 2, .latent = 1 };

	return differs(t, &shape, 0);
}

/* Lanes whose passes are under way together, in the order of streams. */
static int queued_lanes(struct cairn_test *t)
{
	const struct rig_shape shape = {
		.workers = 2, .kv_heads = 2, .group = 1, .layers = 3, .lanes = 3, .by_stream = 1,
	};
	int64_t bad = rig_open(t, &rig, &shape);

	if (!bad)
		bad = rig_turns(t, &rig, 60);
	rig_close(&rig);
	return bad != 0;
}

/* Passes of two lanes, one after the other, as graphs at both ends; with three layers, of both sides. */
static int graphs(struct cairn_test *t)
{
	const struct rig_shape shape = {
		.workers = 2, .kv_heads = 3, .group = 1, .layers = 3, .window = 6, .lanes = 2, .by_stream = 1,
		.decode = 1,
	};
	int64_t bad = rig_open(t, &rig, &shape);

	if (!bad)
		bad = rig_replays(t, &rig, 40);
	rig_close(&rig);
	return bad != 0;
}

/* Passes of three lanes take turns. */
static int lanes(struct cairn_test *t)
{
	const struct rig_shape shape = { .workers = 2, .kv_heads = 2, .group = 1, .layers = 3, .lanes = 3 };
	int64_t bad = rig_open(t, &rig, &shape);

	if (!bad)
		bad = rig_turns(t, &rig, 60);
	rig_close(&rig);
	return bad != 0;
}

/* Rows of one model worker overtake those of another one. */
static int models(struct cairn_test *t)
{
	return rig_models(t, &rig, 40) != 0;
}

/* Returns whether a model worker's end goes unnoticed. */
static int model_ends(struct cairn_test *t)
{
	struct rig_model m = { 0 };
	const struct rig_shape shape = {
		.workers = 1, .kv_heads = 1, .group = 1, .layers = 1, .lanes = 2, .models = 2,
		.add_model = rig_add_model, .model = &m,
	};
	int is_lost = 0, ret = rig_open(t, &rig, &shape);

	pthread_join(m.thread, NULL);
	cairn_channel_close(m.g.c);
	for (int i = 0; i < (cairn_remote_fault ? 60 : 2000) && !ret && !is_lost; i++) {
		is_lost = cairn_attn_remote_lost(rig.remote);
		cairn_remote_nap(10);
	}
	atomic_store(&m.stop, 1);
	cairn_attn_remote_destroy(m.remote);
	rig_close(&rig);
	return !is_lost;
}

/* A loss with a journal, after passes that copy pages. */
static int journal(struct cairn_test *t)
{
	const struct rig_shape shape = {
		.workers = 1, .kv_heads = 1, .group = 1, .layers = 2, .spares = 1, .journal = 1,
		.join_ms = cairn_remote_fault ? 1000 : 0,
	};

	return differs(t, &shape, 1);
}

/* As journal(), in the order of streams. */
static int queued_journal(struct cairn_test *t)
{
	const struct rig_shape shape = {
		.workers = 1, .kv_heads = 1, .group = 1, .layers = 2, .spares = 1, .journal = 1,
		.by_stream = 1, .join_ms = cairn_remote_fault ? 1000 : 0,
	};

	return differs(t, &shape, 1);
}

static pthread_t losing_thread;

/* The worker is lost when its first restored pass has got its numbers, which are copied to the device. */
static int losing_copy(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
	if (kind == CAIRN_COPY_TO_DEVICE && bytes == sizeof(struct cairn_stream_now) &&
	    pthread_equal(pthread_self(), losing_thread)) {
		rig.impl.mem_copy = async_copy;
		cairn_error(EIO, "by the test");
		cairn_lead_report(rig.lead, 1);
	}
	return async_copy(dst, src, bytes, kind, stream);
}

/*
 * As queued_journal(), but the spare is lost, too, during the restore. Returns whether passes differ or fail,
 * or the stream of that restore is used after it was destroyed.
 */
static int lost_again(struct cairn_test *t)
{
	const struct rig_shape shape = {
		.workers = 1, .kv_heads = 1, .group = 1, .layers = 2, .spares = 2, .journal = 1,
		.by_stream = 1,
	};
	int64_t bad = rig_open(t, &rig, &shape);

	if (!bad)
		bad = rig_passes(t, &rig, 5);
	losing_thread = pthread_self();
	if (!bad) {
		rig.impl.mem_copy = losing_copy;
		bad = rig_lose(&rig, 1) || rig.impl.mem_copy != async_copy;
	}
	if (!bad)
		bad = rig_passes(t, &rig, 3);
	rig_close(&rig);
	return bad || async_late_calls;
}

/* A journal alone, of passes whose copies are late. */
static int late_journal(struct cairn_test *t)
{
	return journal_differs(t, "late");
}

static int loss(struct cairn_test *t)
{
	const struct rig_shape shape = {
		.workers = 1, .kv_heads = 1, .group = 1, .layers = 1, .spares = 1,
		.join_ms = cairn_remote_fault ? 300 : 0,
	};

	return differs(t, &shape, 1);
}

/* Returns whether a guest with a wrong JOIN becomes a member: another build (0), table (1) or weights (2). */
static int joins(struct cairn_test *t, int what)
{
	const struct rig_shape shape = { .workers = 1, .weights = 5 };
	struct cairn_control_join j = rig_join();
	struct cairn_channel_message m;
	struct rig_guest g = { 0 };
	int ret = rig_open_lead(t, &rig, &shape);

	if (what == 1)
		j.table[0] = 'x';
	else if (what == 2)
		j.weights = 6;
	else
		j.digest++;
	if (!ret && EXPECT(t, rig_knock(&rig, &g) == 0))
		ret = rig_say(&g, CAIRN_CONTROL_JOIN, &j, sizeof(j), CAIRN_CONTROL_ASSIGN, &m,
			      cairn_remote_fault ? 500 : 20000);
	cairn_channel_close(g.c);
	rig_close(&rig);
	return ret != -EPERM;
}

static int other_build(struct cairn_test *t)
{
	return joins(t, 0);
}

static int other_table(struct cairn_test *t)
{
	return joins(t, 1);
}

static int other_weights(struct cairn_test *t)
{
	return joins(t, 2);
}

/*
 * Gathers a member that is silent, or whose channel ends, or that sends a blob of another size. Returns
 * whether the lead takes it for good.
 */
static int trusts(struct cairn_test *t, int what)
{
	const struct cairn_lead_options o = {
		.attention = 1, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = what ? 20000 : 200,
	};
	const struct cairn_control_join j = rig_join();
	struct {
		struct cairn_control_blob head;
		char bytes[16];
	} blob = { .head = { .from = 1, .num_bytes = 16 } };
	struct rig_guest g = { 0 };
	char room[8];
	int is_lost = 0;

	if (!EXPECT(t, cairn_lead_create(&rig.lead, &o) == 0))
		return 0;
	snprintf(rig.join, sizeof(rig.join), "127.0.0.1:%d", cairn_lead_port(rig.lead));
	if (EXPECT(t, !rig_knock(&rig, &g) &&
		   !cairn_channel_send(g.c, CAIRN_CONTROL_JOIN, &j, sizeof(j), 5000) &&
		   !cairn_lead_gather(rig.lead, &blob.head.epoch))) {
		if (what == 1)
			cairn_channel_close(g.c);
		if (what == 2)
			cairn_channel_send(g.c, CAIRN_CONTROL_BLOB, &blob, sizeof(blob), 5000);
		if (what == 2)
			is_lost = cairn_lead_blob(rig.lead, 1, room, sizeof(room)) != 0;
		for (int i = 0; i < (cairn_remote_fault ? 60 : 2000) && !is_lost && what < 2; i++) {
			is_lost = cairn_lead_lost(rig.lead);
			cairn_remote_nap(10);
		}
		if (what != 1)
			cairn_channel_close(g.c);
	}
	cairn_lead_destroy(rig.lead);
	return !is_lost;
}

static int silence(struct cairn_test *t)
{
	return trusts(t, 0);
}

static int cut(struct cairn_test *t)
{
	return trusts(t, 1);
}

static int blob(struct cairn_test *t)
{
	return trusts(t, 2);
}

static int flooded(struct cairn_test *t)
{
	return watch_flooded(t, &rig);
}

static int dies(struct cairn_test *t)
{
	return watch_dies(t, &rig);
}

/* Returns whether a member does not beat while it frees an epoch. */
static int silent(struct cairn_test *t)
{
	(void)t;
	return end_next(cairn_remote_fault ? 400 : 10000) != 0;
}

static int bad_plan(struct cairn_test *t)
{
	const int32_t plan[] = { 1, 1, 1, 0, 0, 1, 0, 1, 1, RIG_PAGES };
	const struct cairn_remote_limits limits = rig_limits();
	struct cairn_remote_pass p;

	(void)t;
	return cairn_remote_pass_read(&p, plan, sizeof(plan), &limits) == 0;
}

/*
 * Returns whether a token beyond the vocabulary is accepted: as the draw, or in the list of the most likely
 * ones of a draw or of a scored row. A list that nobody asked for may hold anything.
 */
static int bad_tokens(struct cairn_test *t)
{
	enum { VOCAB = 50, K = 2 };
	/* places of numbers: draws 0 and 1, log-probabilities of these and of a scored row, their lists */
	static const int bad[] = { 0, 1, 6, 9 }, any[] = { 7, 8 };
	const int32_t rows[] = { 1, 0 }, wanted[] = { 0, 0 }, late[] = { 0, 1 };
	const struct cairn_attn_wants w = { 2, 1, VOCAB, rows, wanted, late };
	struct {
		struct cairn_attn_result r;
		int32_t numbers[11];
	} x = { .r = { .num_tokens = 2, .num_scored = 1, .k = K } };
	int is_taken = 0;

	for (size_t i = 0; i < ARRAY_SIZE(any); i++)
		x.numbers[any[i]] = -7;
	EXPECT(t, cairn_attn_result_check(&x.r, &w) == 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		x.numbers[bad[i]] = i % 2 ? VOCAB : -1;
		is_taken |= cairn_attn_result_check(&x.r, &w) == 0;
		x.numbers[bad[i]] = VOCAB - 1;
	}
	EXPECT(t, cairn_attn_result_check(&x.r, &w) == 0);
	x.r.k = CAIRN_LOGPROBS_MAX + 1;
	EXPECT(t, cairn_attn_result_check(&x.r, &w) == -EIO);
	x.r.k = K;
	x.r.num_scored = 2;
	EXPECT(t, cairn_attn_result_check(&x.r, &w) == -EIO);
	return is_taken;
}

/*
 * Returns whether a model worker can change a result that the lead has checked, by another put to its place,
 * or whether no result comes.
 */
static int changed_result(struct cairn_test *t)
{
	struct rig_model m = { 0 };
	const struct rig_shape shape = {
		.workers = 1, .kv_heads = 1, .group = 1, .layers = 1, .lanes = 2, .models = 2,
		.add_model = rig_add_model, .model = &m,
	};
	struct {
		struct cairn_attn_result r;
		int32_t token;
		float logprob;
	} x = { .r = { .pass = 1, .num_tokens = 1 }, .token = 3 };
	const int32_t zero = 0;
	const struct cairn_attn_wants w = { 1, 0, 50, &zero, &zero, &zero };
	const struct cairn_attn_result *r;
	int is_changed = 0, ret = rig_open(t, &rig, &shape);

	pthread_join(m.thread, NULL);
	if (!ret)
		ret = cairn_attn_remote_run(rig.remote, 1, "", 0);
	if (!ret)
		ret = cairn_attn_remote_answer(m.remote, &x.r, sizeof(x));
	if (!ret)
		ret = cairn_attn_remote_result(rig.remote, 1, 10000, &w, &r);
	x.r = (struct cairn_attn_result){ .pass = 2, .num_tokens = 1, .k = CAIRN_LOGPROBS_MAX + 1 };
	if (!ret)
		ret = cairn_attn_remote_answer(m.remote, &x.r, sizeof(x));
	if (!ret)
		ret = m.remote->table->flush(m.remote->models[0].c, 10000);
	if (!ret)
		is_changed = r->pass != 1 || r->k;
	atomic_store(&m.stop, 1);
	cairn_attn_remote_destroy(m.remote);
	rig_close(&rig);
	cairn_channel_close(m.g.c);
	return ret || is_changed;
}

/* The epoch waits for the model worker's blob, and carries no plan out. */
static int plan_twice(struct cairn_test *t)
{
	const struct cairn_control_assign a = {
		.epoch = 1, .rank = 1, .num_heads = 1, .num_layers = 1, .num_kv_heads = 1, .head_dim = 64,
		.num_pages = 4, .page_size = 4, .dtype = CAIRN_BF16, .group = 1, .max_rows = 4,
		.max_batch = 4, .max_context = 16, .query_scalar = 64, .attention_factor = 1, .stripes = 1,
	};
	const struct cairn_control_plan plan = { .pass = 1 };
	struct cairn_attn_epoch *e;
	struct cairn_impl impl;
	int ret;

	if (open_table(t, "cpu", &impl) ||
	    !EXPECT(t, cairn_attn_epoch_create(&e, &impl, &a, "", "127.0.0.1") == 0))
		return 0;
	EXPECT(t, cairn_attn_epoch_plan(e, &plan, "") == 0);
	ret = cairn_attn_epoch_plan(e, &plan, "");
	cairn_attn_epoch_destroy(e);
	return ret == 0;
}

static const struct remote_mutant mutants[] = {
	MUTANT(OWN_KEYS_REMOTE, passes), MUTANT(NEVER_APPENDS, passes), MUTANT(ONE_KV_BUFFER, passes),
	MUTANT(PARITY_OF_LAYER, passes), MUTANT(WINDOW_IGNORED, passes), MUTANT(NO_MOVES, passes),
	MUTANT(MOVES_LATE, passes), MUTANT(NO_ACQUIRE, passes), MUTANT(NUMBER_OF_TURN_BEFORE, passes),
	MUTANT(POSITIONS_OF_BEFORE, queued), MUTANT(RESULTS_PACKED, queued),
	MUTANT(LANES_UNORDERED, queued_lanes), MUTANT(GRAPH_OF_ANY_ROWS, graphs),
	MUTANT(GRAPH_OF_ANY_SIDE, graphs), MUTANT(NUMBER_OF_CAPTURE, graphs),
	MUTANT(MOVES_AT_ONCE, lanes), MUTANT(BUFFER_BY_TURN, lanes), MUTANT(WORKER_LANES_SHARE, lanes),
	MUTANT(RESULTS_SHARED, lanes), MUTANT(TURN_OF_LANE, lanes),
	MUTANT(TURN_UNORDERED, models), MUTANT(PLAN_OVERTAKES, models),
	MUTANT(MODEL_BUFFERS_SHARED, models), MUTANT(MODEL_LOSS_FORGOTTEN, model_ends),
	MUTANT(HEADS_SHIFTED, passes), MUTANT(LSE_OF_OTHERS, passes), MUTANT(RESULT_UNAWAITED, passes),
	MUTANT(SIGNAL_FIRST, passes), MUTANT(PADDING_KEPT, passes), MUTANT(EPOCH_KEPT, loss),
	MUTANT(SPARE_UNASSIGNED, loss), MUTANT(STRIPE_OF_ROW, latents), MUTANT(LAST_PAGE_FULL, stripes),
	MUTANT(POSITIONS_OF_LIST, stripes), MUTANT(PAGE_OF_BEFORE, stripes),
	MUTANT(STRIPES_IN_ONE_PLACE, stripes), MUTANT(WEIGHTS_OF_LAYER_0, latents),
	MUTANT(PLAN_UNCHECKED, bad_plan), MUTANT(PLAN_REPEATED, plan_twice),
	MUTANT(TOKENS_UNCHECKED, bad_tokens), MUTANT(RESULT_IN_PLACE, changed_result),
	MUTANT(JOURNAL_NO_MOVES, journal), MUTANT(JOURNAL_NO_V, journal), MUTANT(JOURNAL_SHIFTED, journal),
	MUTANT(JOURNAL_UNDRAINED, journal), MUTANT(JOURNAL_COMMIT_LOST, journal),
	MUTANT(RESTORE_FIRST_LAYER, journal), MUTANT(RESTORE_SHORT, journal),
	MUTANT(RESTORE_STREAM_KEPT, lost_again),
	MUTANT(JOURNAL_RUN_SHORT, late_journal), MUTANT(JOURNAL_UNAWAITED, late_journal),
	MUTANT(JOURNAL_NOT_QUEUED, queued_journal),
	MUTANT(ANY_BUILD, other_build), MUTANT(ANY_TABLE, other_table),
	MUTANT(ANY_WEIGHTS, other_weights), MUTANT(SILENCE, silence),
	MUTANT(LOSS_FORGOTTEN, cut), MUTANT(BLOB_OF_ANY_SIZE, blob),
	MUTANT(FLOOD_READ, flooded), MUTANT(BURIAL_AWAITED, dies),
	MUTANT(FREED_WITHOUT_BEATS, silent),
};

_Static_assert(ARRAY_SIZE(mutants) == FIRST_PULL_FAULT - 1, "every fault has a test");

/*
 * Without a fault, passes in the order of streams have the bits of the local worker, for workers with unequal
 * heads, all keys, latents, and after the loss of a worker. Faults of the code that both orders share are
 * noticed in this order, too.
 */
static void by_stream(struct cairn_test *t)
{
	static const struct rig_shape shapes[] = {
		{ .workers = 3, .kv_heads = 4, .group = 2, .layers = 2, .window = 6, .by_stream = 1 },
		{ .workers = 2, .kv_heads = 3, .group = 1, .layers = 3, .all = 1, .by_stream = 1 },
		{ .workers = 1, .kv_heads = 1, .group = 1, .layers = 1, .latent = 1, .by_stream = 1 },
	};
	static const struct rig_shape lost = {
		.workers = 1, .kv_heads = 2, .group = 1, .layers = 2, .spares = 1, .by_stream = 1,
	};
	static const int faults[] = {
		FAULT_NEVER_APPENDS, FAULT_WINDOW_IGNORED, FAULT_NO_MOVES, FAULT_HEADS_SHIFTED,
		FAULT_NUMBER_OF_TURN_BEFORE, FAULT_PADDING_KEPT,
	};
	const struct sodium *s;

	rig_table = make_table;
	if (sodium_load(&s))
		return cairn_skip(t, "%s", cairn_last_error());
	if (!EXPECT(t, !queued_lanes(t)))
		cairn_note(t, "lanes: %s", cairn_last_error());
	if (!EXPECT(t, !graphs(t)))
		cairn_note(t, "graphs: %s", cairn_last_error());
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
		if (!EXPECT(t, !differs(t, &shapes[i], 0)))
			cairn_note(t, "shape %zu: %s", i, cairn_last_error());
	if (!EXPECT(t, !differs(t, &lost, 1)))
		cairn_note(t, "after a loss: %s", cairn_last_error());
	if (!EXPECT(t, !queued_journal(t)))
		cairn_note(t, "journal: %s", cairn_last_error());
	for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
		cairn_remote_fault = faults[i];
		if (!EXPECT(t, queued(t)))
			cairn_note(t, "fault %d is not noticed", faults[i]);
	}
	cairn_remote_fault = FAULT_NONE;
}

static void noticed(struct cairn_test *t)
{
	rig_table = make_table;
	all_noticed(t, mutants, ARRAY_SIZE(mutants));
}

static const struct cairn_unit units[] = {
	{ "noticed", noticed }, { "by_stream", by_stream },
};

const struct cairn_family cairn_remote_mutants_family = {
	.stage = "serving", .name = "remote_mutants", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 8, .waits = 1,
};
