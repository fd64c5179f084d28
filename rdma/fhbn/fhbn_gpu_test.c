// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_gpu_test.c - the poster in kernels, checked by the NIC model
 *
 * Covers rings in host memory and in GPU memory, payload and sequence number in either, one and several
 * posters, each doorbell dialect, and each fault that the model's adversary injects. Needs only a GPU.
 */
#include <stdio.h>
#include <time.h>

#include "conformance/harness.h"
#include "rdma/fhbn/fhbn_pair.h"

#ifdef CONFIG_CUDA

struct trial {
	enum cairn_fhbn_poster poster;
	uint32_t mode;
	const char *adversary;
	int queues, posters, warps, count, window, on_gpu;
	uint32_t blocks, bytes;
};

static int open_pair(struct cairn_test *t, const struct trial *w, struct pair *m)
{
	const struct cairn_fhbn_qp_args args = {
		.poster = w->poster, .num_blocks = w->blocks, .timeout_ns = TIMEOUT,
		.mode = w->mode | (w->on_gpu ? 0 : CAIRN_FHBN_SYS),
	};
	int ret = pair_open(m, w->adversary, cairn_rand(t), &args, w->queues, w->on_gpu);

	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	else
		EXPECT(t, ret == 0);
	return ret;
}

/*
 * Runs the posters: no payload may be torn, no poster may fail, and no rule may be broken. Returns the number
 * of requests that the model saw.
 */
static uint64_t run(struct cairn_test *t, const struct trial *w, struct pair *m)
{
	struct fhbn_drive_result results[256];
	struct cairn_fhbn_qp queues[PAIR_QUEUES];
	struct fhbn_drive d = {
		.queues = queues, .num_queues = m->num, .num_posters = w->posters,
		.warps_per_block = w->warps, .count = w->count, .window = w->window, .bytes = w->bytes,
		.timeout_ns = TIMEOUT,
	};
	uint64_t rules = pair_stats()->rules, requests = pair_stats()->requests, torn = 0, failed = 0;
	int i;

	for (i = 0; i < m->num; i++)
		queues[i] = *cairn_fhbn_queue_view(m->queue[i]);
	if (!EXPECT(t, !pair_for_gpu(m, &d.memory)) || !EXPECT(t, !fhbn_drive(&d, results)))
		return 0;
	for (i = 0; i < w->posters; i++) {
		torn += (uint64_t)results[i].torn;
		failed += results[i].ret != 0 || results[i].posted != (uint64_t)w->count;
		if (results[i].ret && failed < 4 && cairn_fhbn_fault_error(&results[i].fault))
			cairn_note(t, "poster %d: %s", i, cairn_last_error());
	}
	for (i = 0; i < m->num; i++)
		EXPECT(t, cairn_fhbn_queue_error(m->queue[i]) == 0);
	EXPECT(t, !torn && !failed);
	EXPECT(t, pair_stats()->rules == rules);
	return pair_stats()->requests - requests;
}

static void each(struct cairn_test *t, const struct trial *trials, size_t num)
{
	struct pair m;

	for (size_t i = 0; i < num; i++) {
		const struct trial *w = &trials[i];

		/* libmlx5 allocates its rings in host memory */
		if (pair_provider() == CAIRN_FHBN_VERBS && w->poster == CAIRN_FHBN_BY_GPU_LOCAL)
			continue;
		if (open_pair(t, w, &m))
			return;
		/* two requests per put, one per poster for the flush */
		if (!EXPECT(t, run(t, w, &m) == (uint64_t)w->posters * (2u * (unsigned)w->count + 1)))
			cairn_note(t, "trial %zu: mode %#x", i, w->mode);
		pair_close(&m);
	}
}

#define BOTH	.posters = 1, .queues = 1, .warps = 1, .window = 1, .blocks = 16, .bytes = 512
#define HOST	.poster = CAIRN_FHBN_BY_GPU, BOTH, .count = 300
#define LOCAL	.poster = CAIRN_FHBN_BY_GPU_LOCAL, BOTH, .count = 60

static void host_ring(struct cairn_test *t)
{
	static const struct trial trials[] = {
		{ HOST }, { HOST, .mode = CAIRN_FHBN_BELL_WQE }, { HOST, .mode = CAIRN_FHBN_BLUEFLAME },
		{ HOST, .mode = CAIRN_FHBN_SHARED }, { HOST, .mode = CAIRN_FHBN_QUIET },
		{ HOST, .mode = CAIRN_FHBN_SHARED | CAIRN_FHBN_BLUEFLAME | CAIRN_FHBN_QUIET },
		{ HOST, .on_gpu = 1, .mode = CAIRN_FHBN_SYS },
	};

	each(t, trials, ARRAY_SIZE(trials));
}

static void local_ring(struct cairn_test *t)
{
	static const struct trial trials[] = {
		{ LOCAL, .on_gpu = 1 }, { LOCAL, .on_gpu = 1, .mode = CAIRN_FHBN_BELL_WQE },
		{ LOCAL, .on_gpu = 1, .mode = CAIRN_FHBN_BLUEFLAME },
		{ LOCAL, .on_gpu = 1, .mode = CAIRN_FHBN_SHARED | CAIRN_FHBN_QUIET }, { LOCAL },
	};

	each(t, trials, ARRAY_SIZE(trials));
}

#define SEVERAL	.poster = CAIRN_FHBN_BY_GPU, .queues = 1, .bytes = 256

static void several_posters(struct cairn_test *t)
{
	static const struct trial trials[] = {
		{ SEVERAL, .mode = CAIRN_FHBN_SHARED, .posters = 8, .warps = 8, .window = 1, .count = 200,
		  .blocks = 16 },
		{ SEVERAL, .mode = CAIRN_FHBN_SHARED, .posters = 64, .warps = 4, .window = 1, .count = 40,
		  .blocks = 64 },
		{ SEVERAL, .mode = CAIRN_FHBN_SHARED | CAIRN_FHBN_QUIET, .posters = 32, .warps = 1,
		  .window = 8, .count = 64, .blocks = 128 },
		{ .poster = CAIRN_FHBN_BY_GPU_LOCAL, .mode = CAIRN_FHBN_SHARED, .queues = 1, .posters = 16,
		  .warps = 4, .window = 1, .count = 10, .blocks = 32, .bytes = 256, .on_gpu = 1 },
	};

	each(t, trials, ARRAY_SIZE(trials));
}

static void many_queues(struct cairn_test *t)
{
	static const struct trial trials[] = {
		{ .poster = CAIRN_FHBN_BY_GPU, .queues = 32, .posters = 32, .warps = 1, .window = 1,
		  .count = 50, .blocks = 16, .bytes = 256 },
		{ .poster = CAIRN_FHBN_BY_GPU, .mode = CAIRN_FHBN_SHARED, .queues = 16, .posters = 128,
		  .warps = 4, .window = 1, .count = 20, .blocks = 32, .bytes = 256 },
		{ .poster = CAIRN_FHBN_BY_GPU_LOCAL, .queues = 8, .posters = 8, .warps = 1, .window = 1,
		  .count = 10, .blocks = 16, .bytes = 256, .on_gpu = 1 },
	};

	each(t, trials, ARRAY_SIZE(trials));
}

static void adversaries(struct cairn_test *t)
{
	static const struct trial trials[] = {
		{ HOST, .adversary = "fetch_us=200,completion_us=200" },
		{ HOST, .adversary = "pieces=16,piece_us=20" },
		{ HOST, .adversary = "drop=30,fetch_us=20", .mode = CAIRN_FHBN_SHARED },
		{ HOST, .adversary = "drop_bf=50", .mode = CAIRN_FHBN_BLUEFLAME },
		{ LOCAL, .adversary = "fetch_us=100,completion_us=300,pieces=8,piece_us=10,drop=10",
		  .on_gpu = 1 },
	};

	each(t, trials, ARRAY_SIZE(trials));
}

/* The 16-bit index wraps 15 times. */
static void index_wraps(struct cairn_test *t)
{
	static const struct trial trials[] = {
		{ .poster = CAIRN_FHBN_BY_GPU, .mode = CAIRN_FHBN_QUIET, .queues = 1, .posters = 1,
		  .warps = 1, .window = 64, .count = 15 * 65536 / 2 + 32, .blocks = 512, .bytes = 64 },
	};

	each(t, trials, ARRAY_SIZE(trials));
}

/* A kernel's failure is reported on the host: which thread, what, where. */
static void errors_and_time_outs(struct cairn_test *t)
{
	const struct trial w = { HOST }, late = { HOST, .adversary = "fetch_us=1000000" };
	struct fhbn_drive_result result;
	struct cairn_fhbn_qp q;
	struct fhbn_drive d = {
		.queues = &q, .num_queues = 1, .num_posters = 1, .warps_per_block = 1, .count = 40,
		.window = 64, .bytes = 256, .timeout_ns = 20 * MS,
	};
	struct pair m;
	char room[96];

	if (open_pair(t, &w, &m))
		return;
	q = *cairn_fhbn_queue_view(m.queue[0]);
	EXPECT(t, !pair_for_gpu(&m, &d.memory));
	d.memory.to_rkey ^= 0x100;
	d.window = 1;
	EXPECT(t, !fhbn_drive(&d, &result));
	EXPECT(t, result.ret == -ETIMEDOUT && result.posted == 1);
	EXPECT(t, cairn_fhbn_fault_error(&result.fault) == -ETIMEDOUT);
	EXPECT(t, result.fault.waited_ns >= 20 * MS && result.fault.waited_ns < 2000 * MS);
	EXPECT_CONTAINS(t, cairn_last_error(), "fhbn: block 0 thread 0 waited ");
	EXPECT_CONTAINS(t, cairn_last_error(), " ms for sequence number 1; last seen 0");
	d.window = 64;
	d.count = (int)q.sq.num_blocks;
	EXPECT(t, !fhbn_drive(&d, &result));
	EXPECT(t, result.ret == -EIO);
	EXPECT(t, cairn_fhbn_queue_error(m.queue[0]) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), ": WRITE at index 0 failed: remote access error "
			"(syndrome 0x13, vendor 0x88), read by block 0 thread 0");
	pair_close(&m);

	if (open_pair(t, &late, &m))
		return;
	q = *cairn_fhbn_queue_view(m.queue[0]);
	q.timeout_ns = 20 * MS;
	EXPECT(t, !pair_for_gpu(&m, &d.memory));
	d.count = (int)q.sq.num_blocks;
	EXPECT(t, !fhbn_drive(&d, &result));
	EXPECT(t, result.ret == -ETIMEDOUT);
	EXPECT(t, cairn_fhbn_queue_error(m.queue[0]) == -ETIMEDOUT);
	EXPECT_CONTAINS(t, cairn_last_error(), ": block 0 thread 0 waited ");
	snprintf(room, sizeof(room), " ms for room up to index %u; completed up to 0", q.sq.num_blocks + 2);
	EXPECT_CONTAINS(t, cairn_last_error(), room);
	pair_close(&m);
}

#define UNIT(name) { #name, name }
#else

static void needs_cuda(struct cairn_test *t)
{
	cairn_skip(t, "built without CUDA");
}

#define UNIT(name) { #name, needs_cuda }
#endif

static const struct cairn_unit units[] = {
	UNIT(host_ring), UNIT(local_ring), UNIT(several_posters), UNIT(many_queues), UNIT(adversaries),
	UNIT(index_wraps), UNIT(errors_and_time_outs),
};

const struct cairn_family cairn_fhbn_gpu_family = {
	.stage = "rdma", .name = "fhbn_gpu", .units = units, .num_units = ARRAY_SIZE(units), .timeout_s = 60,
};
