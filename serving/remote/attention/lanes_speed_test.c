// SPDX-License-Identifier: Apache-2.0
/*
 * lanes_speed_test - measures how much of a slow network lanes hide, and how fast a journal is
 *
 *   journal_cpu
 *	8 layers with 8 KV heads of 128 elements, bf16, recorded in passes of 512 rows, and all of them
 *	restored after the loss of the one worker, over loopback. The rates are those of the passes' own
 *	copies, of the thread that moves the rows to their pages, and of restoring, attention included.
 *
 *   lanes_cpu_paced
 *	a tiny model on the cpu table, one attention worker, a paced link: loopback TCP whose signals show one
 *	latency later than they come, and behind the bytes before them (transport_tcp_pace.c). 12 requests
 *	decode together in 1, 2 and 3 lanes, and in as many as --lanes auto chooses. The rates are medians of
 *	3 runs. In a layer, 12 KiB go to the worker (Q, and K and V, which the result needs here) and 6 KiB
 *	come back: one after the other 4.8 ms. With lanes, one direction alone is busy for 3.1 ms, so without
 *	any time to compute, two or more lanes could give 1.57 times one.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/clock.h"
#include "serving/remote/attention/attn_remote.h"
#include "serving/remote/attention/attn_worker.h"
#include "serving/remote/attention/disagg_nvlink_test.h"
#include "serving/remote/attention/remote_engine_test.h"

enum { PACED_REQUESTS = 12, PACED_NEW = 100, PACED_RUNS = 3 };

#define PACE_US		100
#define PACE_MB		4	/* per second */
#define TEXT(x)		#x
#define PACE(us, mb)	TEXT(us) ":" TEXT(mb)

/* Runs all requests. Returns the tokens per second of the steps in which all decode; 0: it failed. */
static double run(struct cairn_test *t, struct cairn_model *m, struct cairn_lead *lead, int32_t lanes)
{
	const struct cairn_engine_options opt = {
		.max_context = 128, .max_batch = PACED_REQUESTS, .max_rows = 64, .page_size = 4,
		.num_pages = 400, .max_passes = 8, .attention = lead, .attends_all = 1, .lanes = lanes,
	};
	static struct answer answers[PACED_REQUESTS];
	struct cairn_engine_stats stats;
	const struct golden none = { 0 };
	int32_t prompt[8];
	struct cairn_engine *e;
	int64_t begin = 0, first = 0;
	int busy = 1, ret = cairn_engine_create(&e, m, &opt);

	if (!EXPECT(t, ret == 0))
		return 0;
	for (int i = 0; i < PACED_REQUESTS && !ret; i++) {
		struct cairn_request r = request(&none, 8, PACED_NEW, &answers[i]);

		memset(&answers[i], 0, sizeof(answers[i]));
		for (int k = 0; k < 8; k++)
			prompt[k] = 3 + 11 * i + k;
		r.prompt = prompt;
		r.ignore_eos = 1;
		ret = cairn_engine_submit(e, &r);
	}
	while (!ret && busy) {
		ret = cairn_engine_step(e, &busy);
		cairn_engine_stats(e, &stats);
		if (!begin && !stats.scheduler.num_waiting && stats.new_tokens > 4 * PACED_REQUESTS) {
			begin = cairn_clock_ns();
			first = stats.new_tokens;
		}
	}
	cairn_engine_destroy(e);
	return EXPECT(t, ret == 0 && stats.new_tokens == PACED_REQUESTS * PACED_NEW) ?
	       (double)(stats.new_tokens - first) * 1e9 / (double)(cairn_clock_ns() - begin) : 0;
}

static int by_rate(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void lanes_cpu_paced(struct cairn_test *t)
{
	static const int32_t lanes[] = { 1, 2, 3, CAIRN_LANES_AUTO };
	const struct cairn_lead_options o = { .attention = 1, .table = "cpu", .join_ms = 60000 };
	double rates[ARRAY_SIZE(lanes)][PACED_RUNS], median[ARRAY_SIZE(lanes)];
	struct cairn_model *m;
	struct cairn_lead *lead;
	struct cairn_impl impl;
	struct golden g;
	int has_lead;

	if (open_model(t, "cpu", "llama3_tiny", &impl, &g, &m))
		return;
	setenv("CAIRN_TCP_PACE", PACE(PACE_US, PACE_MB), 1);
	has_lead = create_lead(t, &lead, &o);
	for (size_t i = 0; i < ARRAY_SIZE(lanes) && has_lead; i++) {
		for (int k = 0; k < PACED_RUNS; k++)
			rates[i][k] = run(t, m, lead, lanes[i]);
		qsort(rates[i], PACED_RUNS, sizeof(rates[i][0]), by_rate);
		median[i] = rates[i][PACED_RUNS / 2];
	}
	unsetenv("CAIRN_TCP_PACE");
	if (has_lead) {
		EXPECT(t, median[1] > median[0]);
		cairn_host_row(t, "lanes_cpu_paced", "cpu",
			       "\"link\":\"paced\",\"latency_us\":%d,\"mb_per_s\":%d,\"requests\":%d,"
			       "\"tokens_per_s_1\":%.0f,\"tokens_per_s_2\":%.0f,\"tokens_per_s_3\":%.0f,"
			       "\"tokens_per_s_auto\":%.0f,\"two_over_one\":%.2f,\"three_over_one\":%.2f",
			       PACE_US, PACE_MB, PACED_REQUESTS, median[0], median[1], median[2], median[3],
			       median[1] / median[0], median[2] / median[0]);
		cairn_lead_destroy(lead);
	}
	close_model(m, &g);
}

enum { JOURNAL_ROWS = 512, JOURNAL_PAGES = 256, JOURNAL_PAGE = 16, JOURNAL_HEADS = 8, JOURNAL_LAYERS = 8 };

static void *serve_lead(void *arg)
{
	cairn_attn_worker_run(arg);
	return NULL;
}

/* Fills all pages, in passes of so many requests as their pages need. */
static int fill_pages(struct cairn_attn_remote *r, struct cairn_attn_rows *rows, void *o)
{
	const struct cairn_attn_link *link = cairn_attn_remote_link(r, 0);
	enum { BATCH = JOURNAL_ROWS / JOURNAL_PAGE };
	int32_t indptr[BATCH + 1], pages[BATCH], qo[BATCH + 1], last[BATCH];
	const struct cairn_remote_pass p = {
		.num_rows = JOURNAL_ROWS, .batch = BATCH, .num_pages = BATCH, .qo_indptr = qo,
		.kv_indptr = indptr, .last_page_len = last, .kv_indices = pages,
	};

	for (int32_t first = 0; first < JOURNAL_PAGES; first += BATCH) {
		for (int32_t i = 0; i <= BATCH; i++) {
			indptr[i] = i;
			qo[i] = i * JOURNAL_PAGE;
			if (i < BATCH) {
				pages[i] = first + i;
				last[i] = JOURNAL_PAGE;
			}
		}
		CAIRN_TRY(cairn_attn_remote_begin(r, 0, &p));
		for (rows->layer = 0; rows->layer < JOURNAL_LAYERS; rows->layer++) {
			CAIRN_TRY(link->send_q(link->ctx, rows, NULL));
			CAIRN_TRY(link->send_kv(link->ctx, rows, NULL));
			CAIRN_TRY(link->receive(link->ctx, rows->layer, o, NULL, NULL));
		}
	}
	return 0;
}

static void journal_cpu(struct cairn_test *t)
{
	const struct cairn_remote_limits limits = {
		JOURNAL_ROWS, JOURNAL_ROWS, JOURNAL_PAGES * JOURNAL_PAGE, JOURNAL_PAGES, JOURNAL_PAGE, 1, 0,
	};
	const struct cairn_lead_options o = {
		.attention = 1, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = 60000, .join_ms = 60000,
	};
	const int32_t row = JOURNAL_HEADS * 128;
	struct cairn_attn_remote *r = NULL;
	struct cairn_attn_remote_stats s;
	struct cairn_attn_rows rows = { .num_rows = JOURNAL_ROWS, .q_stride = row, .kv_stride = row };
	struct cairn_attn_worker_options w = { .member = { .join_ms = 5000, .rejoin_ms = 1 } };
	struct cairn_model m = { .dtype = CAIRN_BF16 };
	struct cairn_impl impl;
	struct cairn_lead *lead;
	pthread_t threads[2];
	uint16_t *data = calloc(4 * (size_t)JOURNAL_ROWS * (size_t)row, sizeof(*data));
	char join[32];
	int ret;

	if (!EXPECT(t, data != NULL) || open_table(t, "cpu", &impl))
		goto out;
	if (!create_lead(t, &lead, &o))
		goto out;
	snprintf(join, sizeof(join), "127.0.0.1:%d", cairn_lead_port(lead));
	m.impl = w.impl = &impl;
	m.config = (struct cairn_model_config){
		.num_hidden_layers = JOURNAL_LAYERS, .num_attention_heads = JOURNAL_HEADS,
		.num_key_value_heads = JOURNAL_HEADS, .head_dim = 128,
	};
	w.member.join = join;
	rows.q = data;
	rows.k = data + (size_t)JOURNAL_ROWS * (size_t)row;
	rows.v = data + 2 * (size_t)JOURNAL_ROWS * (size_t)row;
	for (int i = 0; i < 2; i++)		/* one is a spare */
		pthread_create(&threads[i], NULL, serve_lead, &w);
	ret = cairn_attn_remote_create(&r, lead, &m, &limits, 0, 1 << 30);
	if (!ret)
		ret = fill_pages(r, &rows, data + 3 * (size_t)JOURNAL_ROWS * (size_t)row);
	cairn_error(EIO, "by the measure");
	if (!ret)
		cairn_lead_report(lead, 1);
	if (!ret)
		ret = cairn_attn_remote_restart(r);
	if (EXPECT(t, ret == 0)) {
		cairn_attn_remote_stats(r, &s);
		EXPECT(t, s.restored_bytes == s.journal.bytes);
		cairn_host_row(t, "journal_cpu", "cpu", "\"link\":\"loopback\",\"bytes\":%lld,"
			       "\"record_gb_per_s\":%.2f,\"write_gb_per_s\":%.2f,"
			       "\"restore_gb_per_s\":%.2f", (long long)s.journal.bytes,
			       (double)s.journal.bytes / (double)s.journal.record_ns,
			       (double)s.journal.bytes / (double)s.journal.write_ns,
			       (double)s.restored_bytes / (double)s.restore_ns);
	}
	cairn_attn_remote_destroy(r);
	cairn_lead_destroy(lead);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
out:
	free(data);
}

static const struct cairn_unit measures[] = {
	{ "lanes_cpu_paced", lanes_cpu_paced }, { "journal_cpu", journal_cpu },
	{ "lanes_cuda", cairn_measure_lanes_cuda }, { "lanes_cuda_paced", cairn_measure_lanes_paced },
};

const struct cairn_family cairn_disagg_family = {
	.stage = "serving", .name = "disagg", .measures = measures, .num_measures = ARRAY_SIZE(measures),
};
