// SPDX-License-Identifier: Apache-2.0
/*
 * disagg_order_test - what it saves to send Q first, and K and V behind it, over sending all three together
 *
 * A decoding pass of some requests runs in three ways, in turn, with one attention worker. All attend to
 * their own keys here and to the previous ones there, so that only the sending differs:
 *
 *   first
 *	Q is sent, then the product of K and V runs, and K and V are sent.
 *   together
 *	The same operations, but Q is sent last. The worker begins when Q has come, and puts follow each other
 *	on the link: it begins when all three have come, as with one message.
 *   one product
 *	As together, with one product for Q, K and V, as in an engine that has no reason to compute Q first.
 *
 * The first two must have logits with the same bits. Passes that warm up end one key before the others, so
 * that those attend to keys that were sent.
 *
 *   llama_65b, llama3_70b
 *	The published shapes with fewer layers and random weights, bf16; 1024 keys for each request. The
 *	worker is on the next GPU, over NVLink and over a paced link of 400 Gbit/s (CAIRN_NVLINK_PACE). Times
 *	are medians of passes with logits, between two events of the stream. saved_pct: 100 (1 - first /
 *	together). The product for the logits makes it smaller by less than a 20th; a whole model has 80
 *	layers for one of these.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "rdma/transport/transport.h"
#include "serving/remote/attention/attn_worker.h"
#include "serving/remote/attention/disagg_side_test.h"
#include "serving/remote/attention/remote_engine_test.h"

/* ONE_PRODUCT writes the same keys as FIRST, which runs behind it, so FIRST sees its own. */
enum way { ONE_PRODUCT, FIRST, TOGETHER, NUM_WAYS };
enum { PASSES = 20, WARM = 3, CPU_BATCH = 4, CPU_PASSES = 5 };

#define PACE_US		5
#define PACE_MB		50000	/* per second: 400 Gbit/s */
#define TEXT(x)		#x
#define PACE(us, mb)	TEXT(us) ":" TEXT(mb)
#define CPU_PACE_MB	0.5

struct order {
	struct side sides[NUM_WAYS];
	struct cairn_attn_link together;	/* ctx: the link that sends */
	float ms[NUM_WAYS][PASSES];
	double us[NUM_WAYS];			/* medians */
	int is_same;				/* the bits of the logits */
};

static int keep_q(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	(void)ctx;
	(void)rows;
	(void)stream;
	return 0;
}

static int send_all(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	const struct cairn_attn_link *to = ctx;

	CAIRN_TRY(to->send_kv(to->ctx, rows, stream));
	return to->send_q(to->ctx, rows, stream);
}

static int receive(void *ctx, int32_t layer, void *o, float *lse, void *stream)
{
	const struct cairn_attn_link *from = ctx;

	return from->receive(from->ctx, layer, o, lse, stream);
}

static void states(void *ctx, void **o, float **lse)
{
	const struct cairn_attn_link *of = ctx;

	of->states(of->ctx, o, lse);
}

static int open_ways(struct order *x, const struct cairn_impl *impl, struct cairn_model *m, int32_t batch,
		     struct cairn_attn_remote *r)
{
	const struct cairn_attn_link *link = cairn_attn_remote_link(r, 0);

	x->together = (struct cairn_attn_link){
		link->previous, keep_q, send_all, receive, (void *)link, link->states ? states : NULL,
	};
	for (int w = 0; w < NUM_WAYS; w++) {
		CAIRN_TRY(open_side(&x->sides[w], impl, m, batch,
				    w == ONE_PRODUCT ? CAIRN_SLICED_ROWS : CAIRN_SLICED_PARTS,
				    w == TOGETHER ? batch * PAGES : 0, r, 0));
		if (w != FIRST)
			x->sides[w].link = &x->together;
	}
	return 0;
}

/* warms: the pass ends one key before the others. */
static int run_pass(struct side *s, struct cairn_attn_remote *r, int warms, void *const events[2], float *ms)
{
	const struct cairn_impl *impl = &s->x.impl;

	for (int32_t i = 0; i < s->x.batch; i++)
		s->x.host.last_page_len[i] = PAGE - warms;
	CAIRN_TRY(launch(s, r, 0, events[0]));
	CAIRN_TRY(impl->event_record(events[1], s->x.stream));
	CAIRN_TRY(cairn_attn_remote_finish(r, 0, s->x.stream));
	return impl->event_elapsed(ms, events[0], events[1]);
}

static int run_ways(struct order *x, struct cairn_attn_remote *r, int passes)
{
	const struct cairn_impl *impl = &x->sides[0].x.impl;
	void *events[2] = { NULL, NULL };
	int ret = impl->event_create(&events[0]);

	if (!ret)
		ret = impl->event_create(&events[1]);
	for (int i = -WARM; i < passes && !ret; i++)
		for (int w = 0; w < NUM_WAYS && !ret; w++)
			ret = run_pass(&x->sides[w], r, i < 0, events, &x->ms[w][i < 0 ? 0 : i]);
	for (int i = 0; i < 2; i++)
		if (events[i])
			impl->event_destroy(events[i]);
	return ret;
}

static int compare_logits(struct order *x)
{
	const size_t bytes = x->sides[FIRST].x.logits_bytes;
	float *logits[NUM_WAYS];

	for (int w = FIRST; w <= TOGETHER; w++) {
		struct bench *b = &x->sides[w].x;

		logits[w] = b->logits[0];
		CAIRN_TRY(b->impl.mem_copy(b->logits[0], b->dev_logits, bytes, CAIRN_COPY_TO_HOST,
					   b->stream));
		CAIRN_TRY(b->impl.stream_sync(b->stream));
	}
	x->is_same = !memcmp(logits[FIRST], logits[TOGETHER], bytes);
	for (size_t i = 0; i < bytes / sizeof(float); i++)
		x->is_same &= isfinite(logits[FIRST][i]) != 0;
	return 0;
}

/* Times passes of so many requests in all ways, and compares their logits. */
static int measure(struct order *x, struct cairn_lead *lead, const struct cairn_impl *impl,
		   struct cairn_model *m, int32_t batch, int passes)
{
	struct cairn_remote_limits limits = limits_of(batch, 1);
	struct cairn_attn_remote *r = NULL;
	int ret;

	memset(x, 0, sizeof(*x));
	limits.num_pages *= 2;		/* those of TOGETHER are its own */
	ret = cairn_attn_remote_create(&r, lead, m, &limits, 1, 0);
	if (!ret)
		ret = open_ways(x, impl, m, batch, r);
	if (!ret)
		ret = run_ways(x, r, passes);
	if (!ret)
		ret = compare_logits(x);
	for (int w = 0; w < NUM_WAYS; w++) {
		qsort(x->ms[w], (size_t)passes, sizeof(x->ms[w][0]), compare_floats);
		x->us[w] = 1e3 * (double)x->ms[w][passes / 2];
	}
	cairn_attn_remote_destroy(r);		/* ends what is under way */
	for (int w = 0; w < NUM_WAYS; w++)
		if (x->sides[w].x.m)
			close_side(&x->sides[w]);
	return ret;
}

/* ---- on two GPUs ---- */

static void write_row(struct cairn_test *t, const struct order *x, const struct cairn_model *m,
		      const char *name, int32_t batch, int is_paced)
{
	const struct cairn_model_config *c = &m->config;
	const double first = x->us[FIRST], together = x->us[TOGETHER], one = x->us[ONE_PRODUCT];
	char row[64], pace[64] = "";

	snprintf(row, sizeof(row), "%s_b%d_kv%d_%s", name, batch, KEYS, is_paced ? "paced" : "nvlink");
	if (is_paced)
		snprintf(pace, sizeof(pace), "\"latency_us\":%d,\"mb_per_s\":%d,", PACE_US, PACE_MB);
	cairn_row(t, row, "cuda", "\"link\":\"%s\",%s\"layers\":%d,\"heads\":%d,\"kv_heads\":%d,"
		  "\"requests\":%d,\"keys\":%d,\"first_us\":%.1f,\"together_us\":%.1f,"
		  "\"one_product_us\":%.1f,\"saved_pct\":%.2f,\"saved_of_one_product_pct\":%.2f",
		  is_paced ? "paced" : "nvlink", pace,
		  c->num_hidden_layers, c->num_attention_heads, c->num_key_value_heads, batch, KEYS, first,
		  together, one, 100 * (1 - first / together), 100 * (1 - first / one));
}

/* A lead starts its worker with the environment of that time; ends of different paces do not connect. */
static int measure_link(struct cairn_test *t, struct order *x, const struct cairn_impl *impl,
			struct cairn_model *m, const char *name, int is_paced)
{
	static const int32_t batches[] = { 32, 64, 128 };
	struct cairn_lead *lead = NULL;
	int is_good;

	if (is_paced)
		setenv("CAIRN_NVLINK_PACE", PACE(PACE_US, PACE_MB), 1);
	is_good = open_lead_as(t, &lead, "cuda", 1);
	for (size_t i = 0; i < ARRAY_SIZE(batches) && is_good; i++) {
		is_good = EXPECT(t, measure(x, lead, impl, m, batches[i], PASSES) == 0 && x->is_same);
		if (is_good)
			write_row(t, x, m, name, batches[i], is_paced);
		else
			cairn_note(t, "%d requests: %s", batches[i], cairn_last_error());
	}
	unsetenv("CAIRN_NVLINK_PACE");
	cairn_lead_destroy(lead);
	return is_good;
}

/* The memory of one GPU holds the layers' weights, that of the other twice the keys of the largest batch. */
static void measure_shape(struct cairn_test *t, const char *shape, const char *name, int32_t layers)
{
	struct order *x = calloc(1, sizeof(*x));
	struct cairn_model_config c;
	struct cairn_model *m;
	struct cairn_impl impl;

	if (cairn_transport_gpus() < 2) {
		cairn_skip(t, "needs 2 CUDA devices");
	} else if (EXPECT(t, x && !cairn_model_shape(shape, &c)) && !open_table(t, "cuda", &impl)) {
		c.num_hidden_layers = layers;
		if (EXPECT(t, !cairn_model_random(&m, &impl, &c, 1))) {
			if (measure_link(t, x, &impl, m, name, 0))
				measure_link(t, x, &impl, m, name, 1);
			cairn_model_free(m);
		}
	}
	free(x);
}

static void llama_65b(struct cairn_test *t)
{
	measure_shape(t, "llama-65b", "llama_65b", 8);
}

static void llama3_70b(struct cairn_test *t)
{
	measure_shape(t, "llama3-70b", "llama3_70b", 20);
}

/* ---- on the host ---- */

static void *attend(void *arg)
{
	cairn_attn_worker_run(arg);
	return NULL;
}

/*
 * No pass that sends Q last takes less time over the paced link: in each layer Q, K and V go there one after
 * the other, and then O comes back, which is as large as Q.
 */
static double least_together_us(const struct cairn_model_config *c)
{
	const double row_bytes = 2.0 * c->head_dim * 2 * (c->num_attention_heads + c->num_key_value_heads);

	return c->num_hidden_layers * CPU_BATCH * row_bytes / CPU_PACE_MB;
}

/*
 * The same measure on a host table that acts as a device's, over tcp with a thread as the worker. On a slow
 * link, K and V of as many heads as Q take twice its time, so Q must not wait for them. The fastest pass
 * shows it, because other load on the machine only makes passes slower.
 */
static void measure_cpu(struct cairn_test *t, struct order *x, const struct cairn_impl *impl,
			struct cairn_model *m, int is_paced)
{
	const struct cairn_lead_options o = {
		.attention = 1, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = 20000, .join_ms = 60000,
	};
	struct cairn_attn_worker_options w = { .impl = impl, .member = { .join_ms = 20000 } };
	struct cairn_lead *lead;
	pthread_t thread;
	char join[32];

	if (!create_lead(t, &lead, &o))
		return;
	snprintf(join, sizeof(join), "127.0.0.1:%d", cairn_lead_port(lead));
	w.member.join = join;
	if (is_paced)
		setenv("CAIRN_TCP_PACE", PACE(100, CPU_PACE_MB), 1);
	if (EXPECT(t, !pthread_create(&thread, NULL, attend, &w))) {
		if (!EXPECT(t, measure(x, lead, impl, m, CPU_BATCH, CPU_PASSES) == 0))
			cairn_note(t, "%s", cairn_last_error());
		EXPECT(t, x->is_same);
		if (is_paced) {
			const double least_ms = least_together_us(&m->config) / 1e3;

			EXPECT(t, (double)x->ms[FIRST][0] < least_ms);
			EXPECT(t, (double)x->ms[TOGETHER][0] >= least_ms);
		}
		cairn_note(t, "%d KV heads, %s: Q first %.0f us, together %.0f, with one product %.0f",
			   m->config.num_key_value_heads, is_paced ? "paced" : "not paced", x->us[FIRST],
			   x->us[TOGETHER], x->us[ONE_PRODUCT]);
		cairn_lead_destroy(lead);
		pthread_join(thread, NULL);
	} else {
		cairn_lead_destroy(lead);
	}
	unsetenv("CAIRN_TCP_PACE");
}

static void cpu(struct cairn_test *t)
{
	static const char *const shapes[] = { "llama-65b", "llama3-70b" };
	struct order *x = calloc(1, sizeof(*x));

	cairn_share_streams_over = "tcp";
	for (size_t i = 0; i < ARRAY_SIZE(shapes) && EXPECT(t, x != NULL); i++) {
		struct cairn_model_config c;
		struct cairn_model *m;
		struct cairn_impl impl;

		if (!EXPECT(t, cairn_model_shape(shapes[i], &c) == 0) || open_table(t, "cpu", &impl))
			break;
		c.hidden_size = c.intermediate_size = 128;
		c.num_hidden_layers = 2;
		c.num_attention_heads /= 8;
		c.num_key_value_heads /= 8;
		c.head_dim = c.vocab_size = 64;
		if (!EXPECT(t, cairn_model_random(&m, &impl, &c, 1) == 0))
			break;
		impl.flags &= ~CAIRN_IMPL_HOST_MEM;
		measure_cpu(t, x, &impl, m, 0);
		if (c.num_key_value_heads == c.num_attention_heads)
			measure_cpu(t, x, &impl, m, 1);
		impl.flags |= CAIRN_IMPL_HOST_MEM;
		cairn_model_free(m);
	}
	cairn_share_streams_over = "nvlink";
	free(x);
}

static const struct cairn_unit units[] = {
	{ "cpu", cpu },
};

static const struct cairn_unit measures[] = {
	{ "llama_65b", llama_65b }, { "llama3_70b", llama3_70b },
};

const struct cairn_family cairn_disagg_order_family = {
	.stage = "serving", .name = "disagg_order", .units = units, .num_units = ARRAY_SIZE(units),
	.measures = measures, .num_measures = ARRAY_SIZE(measures), .cost_s = 1, .waits = 1,
};
