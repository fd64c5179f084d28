// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_measure_test.c - rows "fhbn": the cost of a post by a kernel, and of a CPU on the critical path
 *
 *   case                                     impl       what
 *   post_64_bytes_signal_RING_BELL[_shared]  fhbn       from the payload's stores to the doorbell's store: a
 *                                                       WRITE of 64 bytes and an inline WRITE of the number
 *                                            gpunetio   NVIDIA's put with signal: WRITE, atomic addition
 *     RING: gpu_ring, host_ring; BELL: bell8, blueflame. form_, fence_, record_, register_cycles: medians of
 *     the parts of a post. _shared: until the call returns, with the queue handed on.
 *   model_loopback_N_bytes_MEMORY            fhbn       one way, half a round trip: kernels post and poll
 *                                            host_path  the same by kernel end, CPU post, CPU poll, launch
 *                                            cpu_to_cpu  no GPU: the model's own share
 *     Same model NIC, same memory. This is not a network latency: the "wire" is a copy by a CPU thread.
 *   flag_round_trip_host_memory              fhbn       a CPU writes a number, a kernel polls and answers it
 *   flag_round_trip_gpu_memory               fhbn       the same, written by a stream as the model does
 *   flag_round_trip_behind_64_bytes          fhbn       the same, after a payload that the copy engine moves
 *   copy_64_bytes_gpu_memory                 fhbn       that payload alone, until the CPU sees it complete;
 *                                                       host_path includes it, but a card would not need it
 *
 * Members: n, min_ns, median_ns, p95_ns, and cycles where the SM's clock was read. Ring, payload and
 * flags are in the memory that the case's name gives.
 */
#include <stdio.h>
#include <time.h>

#include "conformance/harness.h"
#include "rdma/fhbn/fhbn_measure.h"

#ifdef CONFIG_CUDA

static struct spread spread_of_cycles(const int64_t *cycles, int n, int stride)
{
	double v[POSTS > ROUNDS ? POSTS : ROUNDS];

	for (int i = 0; i < n; i++)
		v[i] = (double)cycles[i * stride];
	return spread_of(v, n);
}

static void post_row(struct cairn_test *t, const char *name, const char *impl, const int64_t *cycles,
		     const char *parts, double mhz)
{
	struct spread s = spread_of_cycles(cycles, POSTS, 1);
	double ns = 1e3 / mhz;

	cairn_row(t, name, impl, "\"n\":%d,\"min_ns\":%.1f,\"median_ns\":%.1f,\"p95_ns\":%.1f,"
		  "\"min_cycles\":%.0f,\"median_cycles\":%.0f,\"p95_cycles\":%.0f%s,\"sm_mhz\":%.0f",
		  POSTS - POSTS / 10, s.min * ns, s.median * ns, s.p95 * ns, s.min, s.median, s.p95, parts,
		  mhz);
}

static void one_post(struct cairn_test *t, enum cairn_fhbn_poster poster, uint32_t mode)
{
	static int64_t cycles[POSTS], steps[POSTS * FHBN_STEPS];
	static const char *const names[] = { "form", "fence", "record", "register" };
	int local = poster == CAIRN_FHBN_BY_GPU_LOCAL, apart = !(mode & CAIRN_FHBN_SHARED);
	char name[96], parts[256] = "";
	uint64_t rules;
	struct fhbn_memory memory;
	struct pair m;
	double mhz;

	if (measure_open(t, &m, poster, mode, 1, 1))
		return;
	rules = pair_stats()->rules;
	if (EXPECT(t, !pair_for_gpu(&m, &memory)) &&
	    EXPECT(t, !fhbn_cost(cairn_fhbn_queue_view(m.queue[0]), &memory, POSTS, cycles,
				 apart ? steps : NULL, &mhz))) {
		for (int k = 0; apart && k < FHBN_STEPS; k++)
			snprintf(parts + strlen(parts), sizeof(parts) - strlen(parts), ",\"%s_cycles\":%.0f",
				 names[k], spread_of_cycles(steps + k, POSTS, FHBN_STEPS).median);
		snprintf(name, sizeof(name), "post_64_bytes_signal_%s_%s%s", local ? "gpu_ring" : "host_ring",
			 mode & CAIRN_FHBN_BLUEFLAME ? "blueflame" : "bell8",
			 mode & CAIRN_FHBN_SHARED ? "_shared" : "");
		EXPECT(t, pair_stats()->rules == rules);
		post_row(t, name, "fhbn", cycles, parts, mhz);
	}
	pair_close(&m);
}

static void post_cost(struct cairn_test *t)
{
	static const uint32_t modes[] = { 0, CAIRN_FHBN_BLUEFLAME, CAIRN_FHBN_SHARED };

	for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
		one_post(t, CAIRN_FHBN_BY_GPU_LOCAL, modes[i]);
		one_post(t, CAIRN_FHBN_BY_GPU, modes[i]);
	}
}

static void gpunetio_cost(struct cairn_test *t)
{
	static int64_t cycles[POSTS];
	struct fhbn_memory memory;
	struct nic_stats before;
	struct pair m;
	double mhz = 0;
	int ret;

	if (measure_open(t, &m, CAIRN_FHBN_BY_GPU_LOCAL, 0, 1, 1))
		return;
	before = *pair_stats();
	EXPECT(t, !pair_for_gpu(&m, &memory));
	ret = fhbn_cost_gpunetio(cairn_fhbn_queue_view(m.queue[0]), &memory, POSTS, cycles, &mhz);
	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	else if (EXPECT(t, !ret)) {
		EXPECT(t, pair_rules_but_reserved(&before) == 0);
		post_row(t, "post_64_bytes_signal_gpu_ring_bell8", "gpunetio", cycles, "", mhz);
	}
	pair_close(&m);
}

/* Ways to write the flag; those in GPU memory use the model's own copy calls. */
enum asking { HOST_FLAG, GPU_FLAG, BEHIND_PAYLOAD, PAYLOAD };

struct asker {
	enum asking what;
	uint64_t *flag;			/* polled by the kernel */
	volatile uint64_t *answer;
	uint8_t *payload;		/* [2][64], in GPU memory */
	double ns[ROUNDS];
};

static int ask(void *arg, uint64_t k)
{
	struct asker *a = arg;
	double start = now_ns();

	if (a->what >= BEHIND_PAYLOAD)
		CAIRN_TRY(fhbn_gpu_copy_async(a->payload + 64, a->payload, 64));
	if (a->what == HOST_FLAG)
		__atomic_store_n(a->flag, k, __ATOMIC_RELEASE);
	else if (a->what != PAYLOAD)
		CAIRN_TRY(fhbn_gpu_copy_async(a->flag, &k, sizeof(k)));
	else
		CAIRN_TRY(fhbn_gpu_settle());
	while (a->what != PAYLOAD && *a->answer < k)
		if (now_ns() - start > (double)TIMEOUT)
			return cairn_error(ETIMEDOUT, "no answer to number %d", (int)k);
	a->ns[k - 1] = now_ns() - start;
	return a->what == HOST_FLAG ? 0 : fhbn_gpu_settle();
}

static int ask_all(struct asker *a, uint64_t *seen_by_gpu, uint64_t *answer_of_gpu)
{
	if (a->what != PAYLOAD)
		return fhbn_echo(seen_by_gpu, answer_of_gpu, ROUNDS, TIMEOUT, ask, a);
	for (uint64_t k = 1; k <= ROUNDS; k++)
		CAIRN_TRY(ask(a, k));
	return 0;
}

static void flag_round_trip(struct cairn_test *t)
{
	static const char *const names[] = {
		"flag_round_trip_host_memory", "flag_round_trip_gpu_memory",
		"flag_round_trip_behind_64_bytes", "copy_64_bytes_gpu_memory",
	};
	uint64_t *host = aligned_alloc(4096, 8192), zero = 0;
	void *gpu_host = NULL, *gpu = NULL;

	memset(host, 0, 8192);
	if (fhbn_gpu_alloc(4096, &gpu)) {
		cairn_skip(t, "%s", cairn_last_error());
		goto out;
	}
	if (!EXPECT(t, !fhbn_gpu_map(host, 8192, 0, &gpu_host)))
		goto out;
	for (int i = 0; i < 4; i++) {
		struct asker a = {
			.what = (enum asking)i, .flag = i ? gpu : host, .answer = &host[512],
			.payload = (uint8_t *)gpu + 1024,
		};
		struct spread s;

		host[0] = host[512] = 0;
		if (!EXPECT(t, !fhbn_gpu_copy(gpu, &zero, sizeof(zero))) ||
		    !EXPECT(t, !ask_all(&a, i ? gpu : gpu_host, (uint64_t *)gpu_host + 512)))
			break;
		s = spread_of(a.ns, ROUNDS);
		cairn_row(t, names[i], "fhbn", "\"n\":%d,\"min_ns\":%.0f,\"median_ns\":%.0f,\"p95_ns\":%.0f",
			  ROUNDS - ROUNDS / 10, s.min, s.median, s.p95);
	}
	fhbn_gpu_unmap(host);
out:
	fhbn_gpu_free(gpu);
	free(host);
}

#define MEASURE(name) { #name, name }
#else

static void needs_cuda(struct cairn_test *t)
{
	cairn_skip(t, "built without CUDA");
}

#define MEASURE(name) { #name, needs_cuda }
#endif

const struct cairn_unit fhbn_measures[FHBN_NUM_MEASURES] = {
	MEASURE(post_cost), MEASURE(gpunetio_cost), MEASURE(flag_round_trip),
	{ "pingpong", fhbn_measure_loopback },
};
