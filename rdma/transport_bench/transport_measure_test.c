// SPDX-License-Identifier: Apache-2.0
/*
 * transport_measure_test.c - rows of `cairn bench rdma.transport`
 *
 * put_latency_BYTES: one way, half of a ping-pong between two persistent kernels, with payload and signal;
 * impl flag: 8 bytes without a payload, the lower bound. put_bandwidth_BYTES: the same put repeated, by
 * kernels (stores and bulk copies) and by the methods compared with. With one GPU both ends are on it, and
 * the names begin with one_gpu_: this tests the code and says nothing about a link. host_put_latency_BYTES:
 * the host's puts. "model_loopback" means through the NIC model or the loop, within one process; this is
 * never a network latency.
 */
#include "conformance/harness.h"
#include "rdma/transport_bench/transport_bench_pair.h"
#include "rdma/transport/transport_run.h"

#include <stdio.h>
#include <string.h>

#ifdef CONFIG_CUDA
#include <cuda_runtime_api.h>

#include "primitives/base/launch.h"
#ifdef CONFIG_NCCL
#include "rdma/transport_bench/transport_nccl_bench.h"
#endif

static void row(struct cairn_test *t, const struct bench_pair *p, const char *what, uint64_t bytes,
		const char *impl, const struct bench_spread *s, const char *how)
{
	char name[96];

	snprintf(name, sizeof(name), "%s%s_%llu", p->num_gpus > 1 ? "" : "one_gpu_", what,
		 (unsigned long long)bytes);
	cairn_row(t, name, impl, "\"gpus\":%d,\"bytes\":%llu,\"n\":%d,\"min_ns\":%.1f,\"median_ns\":%.1f,"
		  "\"p95_ns\":%.1f,\"gbps\":%.2f%s%s%s", p->num_gpus, (unsigned long long)bytes, s->n,
		  s->min, s->median,
		  s->p95, (double)bytes / s->median, how[0] ? ",\"how\":\"" : "", how, how[0] ? "\"" : "");
}

static int opened(struct cairn_test *t, struct bench_pair *p, uint64_t half)
{
	int ret = bench_pair_open(p, half);

	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	else
		EXPECT(t, !ret);
	return !ret;
}

static const uint32_t grids[] = { 1, 4, 16, 64, 0 };

/* Reports the best of several grid sizes. */
static void put_latency(struct cairn_test *t, struct bench_pair *p, uint64_t bytes)
{
	struct bench_spread s, best = { 0 };
	char how[32] = "";
	int k;

	for (k = 0; grids[k] && grids[k] * 1024 <= bytes + 1023; k++)
		if (EXPECT(t, !bench_pair_pingpong(p, BENCH_PUT, bytes, grids[k], 50, &s)) &&
		    (!best.n || s.median < best.median)) {
			best = s;
			snprintf(how, sizeof(how), "memory, CTAs: %u", grids[k]);
		}
	if (best.n)
		row(t, p, "put_latency", bytes, "nvlink", &best, how);
}

static void latency(struct cairn_test *t)
{
	struct bench_spread s;
	struct bench_pair p;
	uint64_t bytes;

	if (opened(t, &p, 1 << 20)) {
		if (EXPECT(t, !bench_pair_pingpong(&p, BENCH_FLAG, 8, 1, 200, &s)))
			row(t, &p, "put_latency", 8, "flag", &s, "");
		if (EXPECT(t, !bench_pair_pingpong(&p, BENCH_WORD, 8, 1, 200, &s)))
			row(t, &p, "put_latency", 8, "nvlink", &s, "word");
		if (EXPECT(t, !bench_pair_pingpong(&p, BENCH_PUT, 8, 1, 200, &s)))
			row(t, &p, "put_latency", 8, "nvlink_memory", &s, "memory");
		for (bytes = 64; bytes <= 1 << 20; bytes *= 4)
			put_latency(t, &p, bytes);
	}
	bench_pair_close(&p);
}

/* Copies with the copy engine, with one event before and one after `puts` copies. */
static int copy_engine(struct bench_pair *p, uint64_t bytes, int puts, int num, struct bench_spread *s)
{
	cudaEvent_t begin, end;
	double v[32];
	float ms;
	int i, k;

	CAIRN_TRY(bench_fill(p->gpu[0], p->memory[0], bytes, p->next++, p->stream[0]));
	CAIRN_CUDA(cudaEventCreate(&begin));
	CAIRN_CUDA(cudaEventCreate(&end));
	for (i = -1; i < num && i < 32; i++) {
		CAIRN_CUDA(cudaEventRecord(begin, p->stream[0]));
		for (k = 0; k < puts; k++)
			CAIRN_CUDA(cudaMemcpyPeerAsync(p->memory[1] + p->half, p->gpu[1], p->memory[0],
						       p->gpu[0], bytes,
						       p->stream[0]));
		CAIRN_CUDA(cudaEventRecord(end, p->stream[0]));
		CAIRN_CUDA(cudaStreamSynchronize(p->stream[0]));
		CAIRN_CUDA(cudaEventElapsedTime(&ms, begin, end));
		if (i >= 0)
			v[i] = (double)ms * 1e6 / puts;
	}
	cudaEventDestroy(begin);
	cudaEventDestroy(end);
	CAIRN_TRY(bench_equal(p->gpu[0], p->memory[0], p->memory[1] + p->half, bytes, p->stream[0]));
	bench_spread(v, num, s);
	return 0;
}

/* Reports the best of several grid sizes. */
static void streams(struct cairn_test *t, struct bench_pair *p, uint32_t way, uint64_t bytes, uint64_t puts)
{
	int bulk = way == BENCH_STREAM_BULK, k, sms = cairn_num_sms();
	uint32_t ctas[] = { 16, 32, 64, bulk && sms > 64 ? (uint32_t)sms : 128, 0 };
	struct bench_spread s, best = { 0 };
	char how[64] = "";

	for (k = 0; ctas[k]; k++)
		if (EXPECT(t, !bench_pair_stream(p, way, bytes, ctas[k], puts, 7, &s)) &&
		    (!best.n || s.median < best.median)) {
			best = s;
			snprintf(how, sizeof(how), "%s of %u CTAs", bulk ? "bulk copies" : "stores", ctas[k]);
		}
	if (best.n)
		row(t, p, "put_bandwidth", bytes, bulk ? "nvlink" : "nvlink_stores", &best, how);
}

static void bandwidth(struct cairn_test *t)
{
	struct bench_spread s;
	struct bench_pair p;
	uint64_t bytes;

	if (opened(t, &p, 256 << 20))
		for (bytes = 1 << 20; bytes <= 256 << 20; bytes *= 4) {
			uint64_t puts = bytes > 32 << 20 ? 4 : (128 << 20) / bytes;

			streams(t, &p, BENCH_STREAM, bytes, puts);
			streams(t, &p, BENCH_STREAM_BULK, bytes, puts);
			if (EXPECT(t, !copy_engine(&p, bytes, (int)puts, 7, &s)))
				row(t, &p, "put_bandwidth", bytes, "copy_engine", &s, "");
		}
	bench_pair_close(&p);
}

#ifdef CONFIG_NCCL
static void nccl_row(struct cairn_test *t, const char *what, uint64_t bytes, const char *impl,
		     const struct bench_spread *s, const char *how)
{
	const struct bench_pair two = { .num_gpus = 2 };

	row(t, &two, what, bytes, impl, s, how);
}

static int nccl_opened(struct cairn_test *t, struct nccl_bench **b, uint64_t half)
{
	int ret = nccl_bench_open(b, half);

	if (ret == -ENODEV)
		cairn_skip(t, "%s", cairn_last_error());
	else
		EXPECT(t, !ret);
	return !ret;
}

static void nccl(struct cairn_test *t)
{
	struct nccl_bench *b = NULL;
	struct bench_spread s;
	uint64_t bytes;

	if (nccl_opened(t, &b, 256 << 20)) {
		cairn_note(t, "NCCL %d", nccl_bench_version(b));
		for (bytes = 8; bytes <= 1 << 20; bytes *= bytes < 64 ? 8 : 4)
			if (EXPECT(t, !nccl_bench_pingpong(b, bytes, &s)))
				nccl_row(t, "put_latency", bytes, "nccl", &s, "send and recv in a graph");
		for (bytes = 1 << 20; bytes <= 256 << 20; bytes *= 4)
			if (EXPECT(t, !nccl_bench_stream(b, bytes,
							 bytes > 32 << 20 ? 4 : (128 << 20) / (int)bytes,
							 7, &s)))
				nccl_row(t, "put_bandwidth", bytes, "nccl", &s, "send and recv");
	}
	nccl_bench_close(b);
}

static void nccl_lsa(struct cairn_test *t, struct nccl_bench *b, uint64_t bytes)
{
	struct bench_spread s, best = { 0 };
	char how[64] = "";
	int k;

	for (k = 0; grids[k] && grids[k] * 1024 <= bytes + 1023; k++)
		if (EXPECT(t, !nccl_bench_device(b, NCCL_BENCH_LSA, bytes, grids[k], &s)) &&
		    (!best.n || s.median < best.median)) {
			best = s;
			snprintf(how, sizeof(how), "LSA stores and barrier, CTAs: %u", grids[k]);
		}
	if (best.n)
		nccl_row(t, "put_latency", bytes, "nccl_device_lsa", &best, how);
}

static void nccl_device(struct cairn_test *t)
{
	struct nccl_bench *b = NULL;
	struct bench_spread s;
	uint64_t bytes;
	int ret;

	if (nccl_opened(t, &b, 1 << 20)) {
		ret = nccl_bench_device(b, NCCL_BENCH_LL, 8, 1, &s);
		if (ret == -ENODEV || ret == -EOPNOTSUPP)
			cairn_skip(t, "%s", cairn_last_error());
		else if (EXPECT(t, !ret))
			nccl_row(t, "put_latency", 8, "nccl_device", &s, "LL all-to-all session");
		for (bytes = 8; bytes <= 1 << 20 && !ret; bytes *= bytes < 64 ? 8 : 4)
			nccl_lsa(t, b, bytes);
	}
	nccl_bench_close(b);
}
#endif
#endif

/* Times the host's puts with the program transport_end: the cost of the code, without a network. */
static void host_pingpong(struct cairn_test *t, const char *backend, int on_model, const char *options,
			  int gpu)
{
	unsigned long long bytes;
	double min, median, p95;
	char words[128], text[8192], name[64], *line, *save;
	struct child c;

	if (missing(t, "transport_end"))
		return;
	snprintf(words, sizeof(words), "transport_end %s pingpong %s", backend, options);
	start_child(t, &c, words, on_model, NULL, backend);
	if (!EXPECT(t, finish(t, &c) == 0))
		cairn_note(t, "%s", text_of(c.out, text, sizeof(text)));
	text_of(c.out, text, sizeof(text));
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (sscanf(line, "time %llu %lf %lf %lf", &bytes, &min, &median, &p95) != 4)
			continue;
		snprintf(name, sizeof(name), "host_put_latency_%llu", bytes);
		(gpu ? cairn_row : cairn_host_row)(t, name, backend,
						   "\"model_loopback\":%s,\"bytes\":%llu,\"n\":15,"
			"\"min_ns\":%.0f,\"median_ns\":%.0f,\"p95_ns\":%.0f", gpu ? "false" : "true",
			bytes, min, median,
			p95);
	}
}

static void host(struct cairn_test *t)
{
	host_pingpong(t, "loop", 0, "", 0);
	host_pingpong(t, "tcp", 0, "", 0);
	host_pingpong(t, "verbs", 1, "", 0);
	host_pingpong(t, "fhbn", 1, "", 0);
	if (num_gpus())
		host_pingpong(t, "nvlink", 0,
			      num_gpus() > 1 ? "gpu=0,1 memory=device" : "gpu=0 memory=device", 1);
}

static const struct cairn_unit measures[] = {
	{ "host", host },
#ifdef CONFIG_CUDA
	{ "latency", latency }, { "bandwidth", bandwidth },
#ifdef CONFIG_NCCL
	{ "nccl", nccl }, { "nccl_device", nccl_device },
#endif
#endif
};

const struct cairn_family cairn_transport_family = {
	.stage = "rdma", .name = "transport", .measures = measures, .num_measures = ARRAY_SIZE(measures),
};
