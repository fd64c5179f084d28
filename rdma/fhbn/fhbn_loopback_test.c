// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_loopback_test.c - ping-pong over the model: by kernels, by a CPU between kernels, and by a CPU alone
 */
#include <stdio.h>

#include "conformance/harness.h"
#include "rdma/fhbn/fhbn_measure.h"

#ifdef CONFIG_CUDA

/* Splits the memory of one pair into two ends. The second half is used in the opposite direction. */
static void two_ends(const struct fhbn_memory *all, struct fhbn_memory ends[2])
{
	for (int i = 0; i < 2; i++) {
		uint32_t half = (uint32_t)i * (PAIR_BYTES / 2);

		ends[i] = *all;
		ends[i].from += half;
		ends[i].to += half;
		ends[i].flags += half;
		ends[i].gpu_from += half;
		ends[i].gpu_to += half;
		ends[i].gpu_flags += half / sizeof(uint64_t);
	}
}

/* Measures each round trip, in ns, with kernels alone. */
static int by_kernels(struct cairn_test *t, uint32_t bytes, int on_gpu, double *ns)
{
	static int64_t cycles[ROUNDS];
	struct fhbn_memory all, ends[2];
	struct cairn_fhbn_qp q[2];
	struct pair m;
	double mhz = 0;
	int wrong = -1, ret;

	if (measure_open(t, &m, CAIRN_FHBN_BY_GPU, 0, 2, on_gpu))
		return -ENODEV;
	ret = pair_for_gpu(&m, &all);
	two_ends(&all, ends);
	for (int i = 0; i < 2; i++)
		q[i] = *cairn_fhbn_queue_view(m.queue[i]);
	ret = ret ? ret : fhbn_pingpong(q, ends, bytes, ROUNDS, cycles, &mhz, &wrong);
	for (int i = 0; ret && i < 2; i++)
		if (cairn_fhbn_queue_error(m.queue[i]))
			cairn_note(t, "%s", cairn_last_error());
	EXPECT(t, !ret && wrong == 0);
	for (int i = 0; !ret && i < ROUNDS; i++)
		ns[i] = (double)cycles[i] * 1e3 / mhz;
	pair_close(&m);
	return ret;
}

/* Measures the same with a CPU between kernels. The CPU always polls host memory, wherever the payload is. */
static int by_host(struct cairn_test *t, uint32_t bytes, int on_gpu, double *ns)
{
	uint64_t *flags[2], *words = aligned_alloc(4096, 8192);
	struct fhbn_memory all, ends[2];
	struct cairn_fhbn_qp q[2];
	uint32_t lkey, rkey = 0;
	struct pair m;
	int wrong = -1, ret;

	if (!words || measure_open(t, &m, CAIRN_FHBN_BY_CPU, 0, 2, on_gpu)) {
		free(words);
		return -ENODEV;
	}
	memset(words, 0, 8192);
	ret = pair_for_gpu(&m, &all);
	two_ends(&all, ends);
	ret = ret ? ret : cairn_fhbn_register(m.nic, words, 8192, &lkey, &rkey);
	for (int i = 0; i < 2; i++) {
		q[i] = *cairn_fhbn_queue_view(m.queue[i]);
		flags[i] = words + i * 512;
		ends[i].flags = (uintptr_t)flags[i];
		ends[i].flags_rkey = rkey;
	}
	ret = ret ? ret : fhbn_pingpong_host(q, ends, flags, bytes, ROUNDS, ns, &wrong);
	if (!EXPECT(t, !ret && wrong == 0))
		cairn_note(t, "%s", cairn_last_error());
	if (rkey)
		cairn_fhbn_unregister(m.nic, lkey);
	pair_close(&m);
	free(words);
	return ret;
}

/* Reports a one-way row; s holds round trips. less: percent saved against the baseline row, 0 for the
 * baseline itself. */
static void one_way_row(struct cairn_test *t, const char *name, const char *impl, uint32_t bytes,
			const struct spread *s, double less)
{
	char more[64] = "";

	if (less != 0)
		snprintf(more, sizeof(more), ",\"less_than_host_path_pct\":%.1f", less);
	cairn_row(t, name, impl, "\"n\":%d,\"bytes\":%u,\"min_ns\":%.0f,\"median_ns\":%.0f,\"p95_ns\":%.0f%s",
		  ROUNDS - ROUNDS / 10, bytes, s->min / 2, s->median / 2, s->p95 / 2, more);
}

/* Measures the model alone: a CPU posts and polls, without a GPU. */
static int by_cpu(struct cairn_test *t, uint32_t bytes, double *ns)
{
	const struct cairn_fhbn_qp *q;
	struct cairn_fhbn_request put;
	struct pair m;
	int ret = 0;

	if (measure_open(t, &m, CAIRN_FHBN_BY_CPU, 0, 1, 0))
		return -ENODEV;
	q = cairn_fhbn_queue_view(m.queue[0]);
	put = cairn_fhbn_write((uintptr_t)m.to, m.to_rkey, (uintptr_t)m.from, m.from_lkey, bytes);
	for (uint64_t k = 1; !ret && k <= ROUNDS; k++) {
		double start = now_ns();

		ret = cairn_fhbn_host_put_signal(q, &put, (uintptr_t)m.flags, m.flags_rkey, k);
		while (!ret && __atomic_load_n(m.flags, __ATOMIC_ACQUIRE) < k)
			if (now_ns() - start > (double)TIMEOUT)
				ret = cairn_error(ETIMEDOUT, "number %d did not arrive", (int)k);
		ns[k - 1] = 2 * (now_ns() - start);
	}
	if (!EXPECT(t, !ret))
		cairn_note(t, "%s", cairn_last_error());
	pair_close(&m);
	return ret;
}

void fhbn_measure_loopback(struct cairn_test *t)
{
	static const uint32_t sizes[] = { 64, 4096, 65536 };
	double ns[ROUNDS];
	void *gpu;

	if (fhbn_gpu_alloc(sizeof(ns), &gpu)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	fhbn_gpu_free(gpu);
	for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
		for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
			struct spread host, s;
			char name[96];

			snprintf(name, sizeof(name), "model_loopback_%u_bytes_%s_memory", sizes[i],
				 on_gpu ? "gpu" : "host");
			if (by_host(t, sizes[i], on_gpu, ns))
				return;
			host = spread_of(ns, ROUNDS);
			one_way_row(t, name, "host_path", sizes[i], &host, 0);
			if (by_kernels(t, sizes[i], on_gpu, ns))
				return;
			s = spread_of(ns, ROUNDS);
			one_way_row(t, name, "fhbn", sizes[i], &s, 100 * (1 - s.median / host.median));
			if (on_gpu)
				continue;
			if (by_cpu(t, sizes[i], ns))
				return;
			s = spread_of(ns, ROUNDS);
			one_way_row(t, name, "cpu_to_cpu", sizes[i], &s, 0);
		}
	}
}

#else

void fhbn_measure_loopback(struct cairn_test *t)
{
	cairn_skip(t, "built without CUDA");
}

#endif
