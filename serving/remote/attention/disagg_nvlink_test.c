// SPDX-License-Identifier: Apache-2.0
/*
 * disagg_nvlink_test - attention on a second GPU, over nvlink: what a layer takes more, and what lanes gain
 *
 * The model is llama3-8b with random weights, bf16. Each request has 1024 keys and one row, with logits. The
 * cache is not filled: time does not depend on what it holds. The attention worker is a process on the next
 * GPU.
 *
 *   disagg_layer: llama3_8b_b64_kv1024
 *	64 requests. Both times are medians over 30 passes, between two events of the model's stream: with the
 *	same split in one process on one GPU, and with the worker. Their difference over the layers is what a
 *	layer takes more: Q and the result cross the link, in this order, and K and V beside the attention.
 *	The row says which sides ran as graphs: the local pass, the remote one, and that of the worker. It
 *	also has the time of a pass that is not split, as a graph, in which one operation attends to all keys.
 *
 *   disagg: lanes_cuda
 *	Two lanes of 128 requests each, as graphs; as in an engine, a lane begins its next pass when its last
 *	one has ended. Beside them: one lane of 128 requests, one of 256, and a whole engine's passes of 128
 *	requests on one GPU. Tokens per second of the host's clock.
 *
 *   disagg: lanes_cuda_paced_1, _2, _3
 *	One, two and three lanes of 128 requests each, as above, over NVLink and over a paced link of 400
 *	Gbit/s (CAIRN_NVLINK_PACE), whose signals become visible only when a card would have delivered them.
 *	The passes run over the two links in turn, and each row has medians of several runs:
 *	free_us and paced_us, the time in which each lane makes a pass. t_n_us is the mean of what the paced
 *	link takes for the queries and for the result of a layer of one lane, each alone on it. The hidden
 *	share is 1 - (paced - free) / (2 t_n layers), see serving/remote/NOTES.md. busy_pct: the
 *	share of free_us for which the model's GPU computes, lanes * model_us / free_us; model_us is the
 *	time of a pass that neither sends to the worker nor waits for it.
 */
#include <errno.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "rdma/transport/transport.h"
#include "serving/base/clock.h"
#include "serving/bench/load_test.h"
#include "serving/remote/attention/disagg_nvlink_test.h"
#include "serving/remote/attention/disagg_side_test.h"
#include "serving/remote/attention/remote_engine_test.h"

enum { LAYER_BATCH = 64, LAYER_PASSES = 30, LANE_BATCH = 128, LANES_PASSES = 20, WARM = 3 };
enum { PACED_LANES = 3, PACED_PASSES = 40, PACED_RUNS = 5 };

#define PACE_US		5
#define PACE_MB		50000	/* per second: 400 Gbit/s */
#define TEXT(x)		#x
#define PACE(us, mb)	TEXT(us) ":" TEXT(mb)

static struct side sides[PACED_LANES];

/* A pass that is not split. */
static int open_whole(struct side *s, const struct cairn_impl *impl, struct cairn_model *m, int32_t batch)
{
	int moved;

	*s = (struct side){ .x = { .impl = *impl, .m = m, .batch = batch } };
	CAIRN_TRY(prepare(&s->x, batch * PAGES, 0));
	return cairn_scratch_reserve(s->x.scratch, &s->x.kv, &s->x.b, s->x.stream, &moved);
}

static int send_nothing(void *ctx, const struct cairn_attn_rows *rows, void *stream)
{
	(void)ctx;
	(void)rows;
	(void)stream;
	return 0;
}

static int receive_nothing(void *ctx, int32_t layer, void *o, float *lse, void *stream)
{
	(void)ctx;
	(void)layer;
	(void)o;
	(void)lse;
	(void)stream;
	return 0;
}

/* A pass that neither sends to workers nor waits for them: what the model's GPU has to do. */
static int open_alone(struct side *s, const struct cairn_impl *impl, struct cairn_model *m, int32_t batch)
{
	static const struct cairn_attn_link nobody = {
		.previous = 1, .send_q = send_nothing, .send_kv = send_nothing, .receive = receive_nothing,
	};
	int moved;

	*s = (struct side){ .x = { .impl = *impl, .m = m, .batch = batch }, .link = &nobody };
	CAIRN_TRY(prepare(&s->x, 1, 0));
	CAIRN_TRY(cairn_sliced_create(&s->sliced, s->x.scratch, s->x.slices, CAIRN_SLICED_PARTS));
	return cairn_sliced_reserve(s->sliced, &s->x.b, s->link, s->x.stream, &moved);
}

/* Sets *us to the median time of a pass. */
static int time_passes(struct side *s, struct cairn_attn_remote *r, double *us)
{
	const struct cairn_impl *impl = &s->x.impl;
	void *begin = NULL, *end = NULL;
	float ms[LAYER_PASSES];
	int ret = impl->event_create(&begin);

	if (!ret)
		ret = impl->event_create(&end);
	for (int i = -WARM; i < LAYER_PASSES && !ret; i++) {
		ret = launch(s, r, 0, begin);
		if (!ret)
			ret = impl->event_record(end, s->x.stream);
		if (!ret && r)
			ret = cairn_attn_remote_finish(r, 0, s->x.stream);
		if (!ret)
			ret = impl->event_elapsed(&ms[i < 0 ? 0 : i], begin, end);
	}
	if (begin)
		impl->event_destroy(begin);
	if (end)
		impl->event_destroy(end);
	qsort(ms, LAYER_PASSES, sizeof(*ms), compare_floats);
	*us = 1e3 * (double)ms[LAYER_PASSES / 2];
	return ret;
}

/* us: of the local pass, the remote one, and the whole one. graphs: of the first two, and the worker's */
static int measure_layer(struct cairn_lead *lead, const struct cairn_impl *impl, struct cairn_model *m,
			 double us[3], int graphs[3])
{
	const struct cairn_remote_limits limits = limits_of(LAYER_BATCH, 1);
	struct cairn_attn_remote *r = NULL;
	int ret = open_whole(&sides[0], impl, m, LAYER_BATCH);

	if (!ret)
		ret = time_passes(&sides[0], NULL, &us[2]);
	close_side(&sides[0]);
	if (!ret)
		ret = open_side(&sides[0], impl, m, LAYER_BATCH, CAIRN_SLICED_PARTS, 0, NULL, 0);
	if (!ret)
		ret = time_passes(&sides[0], NULL, &us[0]);
	graphs[0] = sides[0].graph != NULL;
	close_side(&sides[0]);
	if (!ret)
		ret = cairn_attn_remote_create(&r, lead, m, &limits, 1, 0);
	if (!ret) {
		ret = open_side(&sides[0], impl, m, LAYER_BATCH, CAIRN_SLICED_PARTS, 0, r, 0);
		if (!ret)
			ret = time_passes(&sides[0], r, &us[1]);
		graphs[1] = sides[0].graph != NULL;
		graphs[2] = !ret && cairn_attn_remote_replayed(r, 0);
		cairn_attn_remote_destroy(r);		/* ends what is under way */
		close_side(&sides[0]);
	}
	return ret;
}

/* Sets *rate to the tokens per second of so many lanes of `batch` requests, `passes` of each. */
static int measure_lanes(struct cairn_lead *lead, const struct cairn_impl *impl, struct cairn_model *m,
			 int32_t lanes, int32_t batch, int32_t passes, double *rate)
{
	const int32_t warm = WARM * lanes, num = passes * lanes;
	const struct cairn_remote_limits limits = limits_of(batch, lanes);
	struct cairn_attn_remote *r = NULL;
	int64_t begin = 0;
	int ret = cairn_attn_remote_create(&r, lead, m, &limits, 1, 0);

	for (int32_t i = 0; i < lanes && !ret; i++)
		ret = open_side(&sides[i], impl, m, batch, CAIRN_SLICED_PARTS, i * batch * PAGES, r, i);
	for (int32_t i = 0; i < lanes && !ret; i++)
		ret = launch(&sides[i], r, i, NULL);
	for (int32_t i = 0; i < warm + num && !ret; i++) {
		const int32_t lane = i % lanes;

		ret = cairn_attn_remote_finish(r, lane, sides[lane].x.stream);
		if (i + 1 == warm)
			begin = cairn_clock_ns();
		if (!ret)
			ret = launch(&sides[lane], r, lane, NULL);
	}
	*rate = (double)num * batch * 1e9 / (double)(cairn_clock_ns() - begin);
	cairn_attn_remote_destroy(r);		/* ends the passes that are under way */
	for (int32_t i = 0; i < lanes; i++)
		close_side(&sides[i]);
	return ret;
}

/* Sets *rate to the tokens per second of passes that are not split, of `batch` requests. */
static int measure_whole(const struct cairn_impl *impl, struct cairn_model *m, int32_t batch, double *rate)
{
	double us = 0;
	int ret = open_whole(&sides[0], impl, m, batch);

	if (!ret)
		ret = time_passes(&sides[0], NULL, &us);
	close_side(&sides[0]);
	*rate = batch * 1e6 / us;
	return ret;
}

/* Sets *us to the time for which the model's GPU is busy with a pass. */
static int measure_model(const struct cairn_impl *impl, struct cairn_model *m, double *us)
{
	int ret = open_alone(&sides[0], impl, m, LANE_BATCH);

	if (!ret)
		ret = time_passes(&sides[0], NULL, us);
	close_side(&sides[0]);
	return ret;
}

/* Opens two GPUs and the model. Returns 0 if the test is skipped or has failed. */
static int begin(struct cairn_test *t, struct cairn_impl *impl, struct cairn_model **m,
		 struct cairn_lead **lead)
{
	if (cairn_transport_gpus() < 2) {
		cairn_skip(t, "needs 2 CUDA devices");
		return 0;
	}
	memset(sides, 0, sizeof(sides));
	if (load_open(t, "llama3-8b", impl, m))
		return 0;
	if (open_lead_as(t, lead, "cuda", 1))
		return 1;
	cairn_model_free(*m);
	return 0;
}

static void llama3_8b_b64_kv1024(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct cairn_model *m;
	struct cairn_lead *lead;
	double us[3];
	int graphs[3];

	if (!begin(t, &impl, &m, &lead))
		return;
	if (EXPECT(t, measure_layer(lead, &impl, m, us, graphs) == 0))
		cairn_row(t, "llama3_8b_b64_kv1024", "cuda", "\"link\":\"nvlink\",\"requests\":%d,"
			  "\"local_us\":%.1f,\"remote_us\":%.1f,\"added_layer_us\":%.2f,"
			  "\"local_graph\":%d,\"remote_graph\":%d,\"worker_graph\":%d,"
			  "\"whole_us\":%.1f,\"added_to_whole_layer_us\":%.2f", LAYER_BATCH, us[0], us[1],
			  (us[1] - us[0]) / m->config.num_hidden_layers, graphs[0], graphs[1], graphs[2],
			  us[2], (us[1] - us[2]) / m->config.num_hidden_layers);
	else
		cairn_note(t, "%s", cairn_last_error());
	cairn_lead_destroy(lead);
	cairn_model_free(m);
}

void cairn_measure_lanes_cuda(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct cairn_model *m;
	struct cairn_lead *lead;
	double one, all, two, whole;

	if (!begin(t, &impl, &m, &lead))
		return;
	if (EXPECT(t, !measure_whole(&impl, m, LANE_BATCH, &whole) &&
		   !measure_lanes(lead, &impl, m, 1, LANE_BATCH, LANES_PASSES, &one) &&
		   !measure_lanes(lead, &impl, m, 1, 2 * LANE_BATCH, LANES_PASSES, &all) &&
		   !measure_lanes(lead, &impl, m, 2, LANE_BATCH, LANES_PASSES, &two)))
		cairn_row(t, "lanes_cuda", "cuda", "\"link\":\"nvlink\",\"requests_a_lane\":%d,\"keys\":%d,"
			  "\"one_lane\":%.0f,\"one_lane_of_all\":%.0f,\"two_lanes\":%.0f,\"whole\":%.0f,"
			  "\"two_over_one\":%.2f,\"two_over_one_of_all\":%.2f,\"over_two_engines\":%.2f",
			  LANE_BATCH, KEYS, one, all, two, whole, two / one, two / all,
			  two / (2 * whole));
	else
		cairn_note(t, "%s", cairn_last_error());
	cairn_lead_destroy(lead);
	cairn_model_free(m);
}

/* Returns the mean of what the paced link takes for the queries and for the result of a layer, in us. */
static double paced_us(const struct cairn_model *m)
{
	const double rows = (double)LANE_BATCH * m->config.num_attention_heads;
	const double q = rows * m->config.head_dim * 2, result = q + rows * sizeof(float);

	return PACE_US + (q + result) / 2 / PACE_MB;
}

static int by_time(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/*
 * Sets us[] to the times in which each of so many lanes makes a pass, over NVLink and over the paced link: in
 * turn, so that a GPU that becomes slower changes both. Both ends open their transports in each run. A lead
 * starts its worker in its first run, with the environment of that time; ends of different paces do not
 * connect.
 */
static int measure_paced(struct cairn_lead *const leads[2], const struct cairn_impl *impl,
			 struct cairn_model *m, int32_t lanes, double us[2])
{
	double all[2][PACED_RUNS] = { { 0 } }, rate;
	int ret = 0;

	for (int i = 0; i < 2 * PACED_RUNS && !ret; i++) {
		if (i % 2)
			setenv("CAIRN_NVLINK_PACE", PACE(PACE_US, PACE_MB), 1);
		ret = measure_lanes(leads[i % 2], impl, m, lanes, LANE_BATCH, PACED_PASSES, &rate);
		unsetenv("CAIRN_NVLINK_PACE");
		all[i % 2][i / 2] = 1e6 * lanes * LANE_BATCH / rate;
	}
	for (int i = 0; i < 2; i++) {
		qsort(all[i], PACED_RUNS, sizeof(all[i][0]), by_time);
		us[i] = all[i][PACED_RUNS / 2];
	}
	return ret;
}

void cairn_measure_lanes_paced(struct cairn_test *t)
{
	struct cairn_impl impl;
	struct cairn_model *m;
	struct cairn_lead *leads[2] = { NULL, NULL };
	double us[2], model_us = 0;
	int ret;

	if (!begin(t, &impl, &m, &leads[0]))
		return;
	ret = !open_lead_as(t, &leads[1], "cuda", 1);
	if (!ret)
		ret = measure_model(&impl, m, &model_us);
	for (int32_t lanes = 1; lanes <= PACED_LANES && !ret; lanes++) {
		const double t_n = paced_us(m), all = 2 * t_n * m->config.num_hidden_layers;
		char name[32];

		ret = measure_paced(leads, &impl, m, lanes, us);
		if (!EXPECT(t, ret == 0)) {
			cairn_note(t, "%s", cairn_last_error());
			break;
		}
		snprintf(name, sizeof(name), "lanes_cuda_paced_%d", lanes);
		cairn_row(t, name, "cuda", "\"link\":\"paced\",\"latency_us\":%d,\"mb_per_s\":%d,"
			  "\"lanes\":%d,\"requests_a_lane\":%d,\"keys\":%d,\"t_n_us\":%.2f,"
			  "\"free_us\":%.1f,\"paced_us\":%.1f,\"free_tokens_per_s\":%.0f,"
			  "\"paced_tokens_per_s\":%.0f,\"hidden_pct\":%.1f,\"model_us\":%.1f,"
			  "\"busy_pct\":%.1f", PACE_US, PACE_MB, lanes, LANE_BATCH, KEYS, t_n, us[0],
			  us[1], 1e6 * lanes * LANE_BATCH / us[0], 1e6 * lanes * LANE_BATCH / us[1],
			  100 * (1 - (us[1] - us[0]) / all), model_us, 100 * lanes * model_us / us[0]);
	}
	cairn_lead_destroy(leads[1]);
	cairn_lead_destroy(leads[0]);
	cairn_model_free(m);
}

static const struct cairn_unit measures[] = {
	{ "llama3_8b_b64_kv1024", llama3_8b_b64_kv1024 },
};

const struct cairn_family cairn_disagg_layer_family = {
	.stage = "serving", .name = "disagg_layer", .measures = measures,
	.num_measures = ARRAY_SIZE(measures),
};
