/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dsmem - measures distributed shared memory: latency, bandwidth and synchronisation within clusters
 *
 * One launch runs one test on one cluster shape. All CTAs of a grid are resident, because cairn_dsmem()
 * launches no more clusters than fit, so cluster barriers and remote mbarriers cannot starve. (ACTIVE
 * launches more, but its CTAs wait for no other CTA.) Every kernel that accesses peers ends with a cluster
 * barrier: a CTA must not exit while a peer may access its memory.
 *
 * Dynamic shared memory; the header comes first, so that offsets are the same in all CTAs:
 *
 *	0	mbarrier[16]	ST_ASYNC, BULK, MULTICAST: round t completes on barrier t mod 16 of the
 *				receiver, in one phase that counts the bytes of all its rounds (at most
 *				2^20 - 1). MBARRIER: [0] for the ring of arrivals, [1] for the ring of
 *				st.async; count 1; the rank before arrives, the owner's thread 0 waits
 *	128	uint64[2][16]	BARRIER: slot [t mod 2][sender]. Two slots make one barrier per round enough:
 *				slot t is read before the barrier of round t + 1 and rewritten in round t + 2
 *	384	uint64		MBARRIER: the token; LATENCY*: receives the last load before the clock is read
 *	392	uint64		sum of the CTA
 *	1024	bytes		own memory: chain or words
 *	+bytes	bytes		receive buffer (ST_ASYNC, BULK, MULTICAST)
 *
 * Latency: one thread chases a chain whose values are addresses (cluster addresses that the owner made with
 * mapa; they mean the same in all CTAs of a cluster), so that the loop holds nothing but the load. All ranks
 * chase at the same time, each in another owner's memory: one load in flight per SM does not disturb the
 * others. Chains in global memory hold indices; their figures include the address arithmetic (about 10
 * cycles).
 *
 * Bandwidth: loads of 16 bytes, eight in flight per thread, 512 threads up to cluster size 3 and 256 above,
 * because more loads only queue in the network. st.async: 16 bytes per lane from own shared memory; all
 * threads share a slot if it has 16 bytes for each, else a warp takes it. Bulk copies: one thread copies
 * slots of bytes / cluster_size. Multicast reads the same part of src every round, hence from the L2. Rounds
 * of pushes and multicasts overwrite the same place with the same bytes and do not wait for each other; the
 * result is judged after the last round.
 *
 * Floor: a remote access crosses the SM-to-SM network once, 180 to 216 cycles depending on the pair. The
 * width of a port is not published; the best pattern here moves 19.5 bytes per cycle into each SM and as many
 * out of it. Figures and optimisation history: NOTES.md.
 */
#include "primitives/machine/dsmem.h"
#include "primitives/base/launch.h"
#include "primitives/ptx/ptx_copy.cuh"

#define BAR(i)		((i) * 8)
#define EXCHANGE(t, s)	(128 + ((t) & 1) * 128 + (s) * 8)
#define TOKEN		384
#define SUM		392
#define OWN		1024

#define ACTIVE_NS	20000	/* longer than it takes to launch a full wave of clusters */

extern __shared__ __align__(1024) unsigned char s_mem[];

struct place {
	uint32_t smem;		/* shared address of the header */
	uint32_t size, rank, cta;
};

static __device__ __forceinline__ struct place get_place(void)
{
	struct place p = { ptx_smem(s_mem), ptx_cluster_nctarank(), ptx_cluster_ctarank(), blockIdx.x };

	return p;
}

static __device__ __forceinline__ void cluster_sync(void)
{
	__syncwarp();	/* the barrier is .aligned, but the warp's threads may have diverged */
	ptx_barrier_cluster_arrive_release();
	ptx_barrier_cluster_wait_acquire();
}

static __device__ __forceinline__ uint64_t ld_shared_u64(uint32_t offset)
{
	return *(volatile uint64_t *)(s_mem + offset);
}

static __device__ __forceinline__ void st_shared_u64(uint32_t offset, uint64_t v)
{
	*(volatile uint64_t *)(s_mem + offset) = v;
}

static __device__ __forceinline__ void add_to_sum(uint64_t v)
{
	atomicAdd((unsigned long long *)(s_mem + SUM), (unsigned long long)v);
}

/* Fills own memory with words and the receive buffer, if any, with zeros. All threads call it; no barrier. */
static __device__ void fill(const struct cairn_dsmem_args &a, const struct place &p, int receive)
{
	for (int i = threadIdx.x; i < a.bytes / 8; i += blockDim.x) {
		st_shared_u64(OWN + 8 * i, cairn_dsmem_word(a.seed, p.cta, i));
		if (receive)
			st_shared_u64(OWN + a.bytes + 8 * i, 0);
	}
	if (threadIdx.x == 0)
		st_shared_u64(SUM, 0);
}

/* Thread 0 of each CTA writes the CTA's results; CTA 0 also writes those of the CTAs that do not run. */
static __device__ void finish(const struct cairn_dsmem_args &a, const struct place &p, int resident,
			      uint64_t sum, uint64_t start_ns, uint64_t end_ns,
			      int64_t cycles, int64_t cycles2)
{
	int64_t *time = a.time + (int64_t)p.cta * CAIRN_DSMEM_NUM_TIMES;

	if (threadIdx.x)
		return;
	a.sum[p.cta] = sum;
	a.smid[p.cta] = (int32_t)ptx_smid();
	time[CAIRN_DSMEM_START_NS] = (int64_t)start_ns;
	time[CAIRN_DSMEM_END_NS] = (int64_t)end_ns;
	time[CAIRN_DSMEM_CYCLES] = cycles;
	time[CAIRN_DSMEM_CYCLES2] = cycles2;
	if (p.cta)
		return;
	*a.resident = resident;
	for (int c = gridDim.x; c < a.num_clusters * a.cluster_size; c++) {
		a.sum[c] = 0;
		a.smid[c] = -1;
		for (int i = 0; i < CAIRN_DSMEM_NUM_TIMES; i++)
			a.time[(int64_t)c * CAIRN_DSMEM_NUM_TIMES + i] = 0;
		for (int i = 0; i < a.cluster_size && a.test == CAIRN_DSMEM_LATENCY; i++)
			a.pair_cycles[(int64_t)c * a.cluster_size + i] = 0;
	}
}

static __device__ void make_chain(const struct cairn_dsmem_args &a, const struct place &p, int cluster)
{
	uint32_t links = a.bytes / CAIRN_DSMEM_LINK, own = p.smem + OWN;
	uint32_t base = cluster ? ptx_mapa(own, p.rank) : own;

	for (uint32_t i = threadIdx.x; i < links; i += blockDim.x)
		*(volatile uint32_t *)(s_mem + OWN + i * CAIRN_DSMEM_LINK) =
			base + cairn_dsmem_next_link(i, links, p.rank) * CAIRN_DSMEM_LINK;
}

/* LATENCY: in step t, rank r reads rank (r + t) mod size. The CTA is one warp, whose thread 0 chases. */
__global__ void __launch_bounds__(32) dsmem_latency_kernel(const __grid_constant__ struct cairn_dsmem_args a,
							     int resident)
{
	struct place p = get_place();
	int32_t *pairs = a.pair_cycles + (int64_t)p.cta * p.size;
	uint64_t sum = 0, start_ns;
	int64_t total = 0;

	make_chain(a, p, 1);
	cluster_sync();
	start_ns = ptx_globaltimer();
	for (uint32_t t = 0; t < p.size; t++) {
		uint32_t owner = (p.rank + t) % p.size;
		uint32_t base = ptx_mapa(p.smem + OWN, owner), addr = base;

		if (threadIdx.x == 0) {
			int64_t start = ptx_clock64(), cycles;

#pragma unroll 16
			for (int i = 0; i < a.rounds; i++)
				addr = ptx_ld_shared_cluster_b32(addr);
			st_shared_u64(TOKEN, addr);	/* needs the last load: the clock is read after it */
			cycles = ptx_clock64() - start;
			sum += (addr - base) / CAIRN_DSMEM_LINK;
			pairs[owner] = (int32_t)cycles;
			total += cycles;
		}
		cluster_sync();
	}
	finish(a, p, resident, sum, start_ns, ptx_globaltimer(), total, 0);
}

/* Brings a region into the L2; a region larger than the L2 evicts everything else. */
__global__ void __launch_bounds__(1024) dsmem_touch_kernel(const uint64_t *src, int64_t num_lines)
{
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < num_lines;
	     i += (int64_t)gridDim.x * blockDim.x)
		ptx_ld_relaxed_gpu_u64(src + i * (CAIRN_DSMEM_LINK / 8));
}

/* LATENCY_SMEM, LATENCY_L2, LATENCY_HBM. The CTA is one warp. */
__global__ void __launch_bounds__(32) dsmem_chase_kernel(const __grid_constant__ struct cairn_dsmem_args a,
							   int resident)
{
	const uint64_t *src = (const uint64_t *)a.src;
	struct place p = get_place();
	uint64_t start_ns, link = 0;
	int64_t start, cycles = 0;

	make_chain(a, p, 0);
	if (a.test == CAIRN_DSMEM_LATENCY_HBM) {
		/* read one line of every 2 MiB page, so that no address translation is cold */
		for (int64_t at = (int64_t)threadIdx.x << 21; at < a.src_bytes / 16; at += 32 << 21)
			ptx_ld_relaxed_gpu_u64(src + at / 8 + 8);
	}
	cluster_sync();
	start_ns = ptx_globaltimer();
	if (threadIdx.x == 0 && a.test == CAIRN_DSMEM_LATENCY_SMEM) {
		uint32_t addr = p.smem + OWN;

		start = ptx_clock64();
#pragma unroll 16
		for (int i = 0; i < a.rounds; i++)
			asm volatile("ld.shared.b32 %0, [%0];" : "+r"(addr) : : "memory");
		st_shared_u64(TOKEN, addr);
		cycles = ptx_clock64() - start;
		link = (addr - p.smem - OWN) / CAIRN_DSMEM_LINK;
	} else if (threadIdx.x == 0) {
		/* The L2 has two halves: a first pass brings the lines into the half near this SM. */
		for (int pass = a.test == CAIRN_DSMEM_LATENCY_HBM; pass < 2; pass++) {
			link = 0;
			start = ptx_clock64();
#pragma unroll 8
			for (int i = 0; i < a.rounds; i++)
				link = ptx_ld_global_cg_u64(src + link * (CAIRN_DSMEM_LINK / 8));
			st_shared_u64(TOKEN, link);
			cycles = ptx_clock64() - start;
		}
	}
	finish(a, p, resident, link, start_ns, ptx_globaltimer(), cycles, 0);
}

static __device__ __forceinline__ uint64_t add_words(uint64_t sum, uint4 v)
{
	return sum + (((uint64_t)v.y << 32) | v.x) + (((uint64_t)v.w << 32) | v.z);
}

/*
 * LOAD: warp w visits the peers starting w ranks further on, so that at any time an SM reads from all peers
 * and all peers read from it.
 */
__global__ void __launch_bounds__(1024, 1)
dsmem_load_kernel(const __grid_constant__ struct cairn_dsmem_args a, int resident)
{
	struct place p = get_place();
	int num_vecs = a.bytes / 16, warp = threadIdx.x / 32;
	uint64_t sum = 0, start_ns;
	int64_t start, cycles;

	fill(a, p, 0);
	cluster_sync();
	start_ns = ptx_globaltimer();
	start = ptx_clock64();
	for (int t = 0; t < a.rounds; t++) {
		uint32_t base = ptx_mapa(p.smem + OWN, cairn_dsmem_peer(p.rank, p.size, t + warp));

		for (int i = threadIdx.x; i < num_vecs; i += 8 * blockDim.x) {
			uint4 v[8];

#pragma unroll
			for (int u = 0; u < 8; u++)
				v[u] = i + u * blockDim.x < num_vecs ?
				       ptx_ld_shared_cluster_v4(base + 16 * (i + u * blockDim.x)) :
				       make_uint4(0, 0, 0, 0);
#pragma unroll
			for (int u = 0; u < 8; u++)
				sum = add_words(sum, v[u]);
		}
	}
	add_to_sum(sum);
	__syncthreads();
	cycles = ptx_clock64() - start;
	sum = ld_shared_u64(SUM);
	finish(a, p, resident, sum, start_ns, ptx_globaltimer(), cycles, 0);
	cluster_sync();
}

/* Returns the weighted sum of the receive buffer to every thread. */
static __device__ uint64_t weigh(const struct cairn_dsmem_args &a)
{
	uint64_t sum = 0;

	for (int i = threadIdx.x; i < a.bytes / 8; i += blockDim.x)
		sum += ld_shared_u64(OWN + a.bytes + 8 * i) * cairn_dsmem_weight(i);
	add_to_sum(sum);
	__syncthreads();
	return ld_shared_u64(SUM);
}

/* This CTA receives bytes_a_round in each round; one phase of each barrier covers all of its rounds. */
static __device__ void expect_rounds(const struct cairn_dsmem_args &a, const struct place &p,
				     uint32_t bytes_a_round)
{
	if (threadIdx.x == 0) {
		for (int b = 0; b < CAIRN_DSMEM_NUM_BARS; b++) {
			int rounds = (a.rounds - b + CAIRN_DSMEM_NUM_BARS - 1) / CAIRN_DSMEM_NUM_BARS;

			ptx_mbarrier_init(p.smem + BAR(b), 1);
			ptx_mbarrier_arrive_expect_tx(p.smem + BAR(b),
						      rounds > 0 ? rounds * bytes_a_round : 0);
		}
		ptx_fence_mbarrier_init_release_cluster();
	}
	/* bulk copies access memory that ordinary stores have just filled */
	ptx_fence_proxy_async();
	cluster_sync();
}

static __device__ void await_rounds(const struct place &p)
{
	for (int b = 0; b < CAIRN_DSMEM_NUM_BARS; b++)
		ptx_mbarrier_wait_cluster(p.smem + BAR(b), 0);
}

/* ST_ASYNC: all threads share a slot if it has work for all, else a warp takes it. BULK: thread 0 sends. */
__global__ void __launch_bounds__(1024, 1)
dsmem_push_kernel(const __grid_constant__ struct cairn_dsmem_args a, int resident)
{
	struct place p = get_place();
	uint32_t slot = a.bytes / p.size;
	uint64_t start_ns, end_ns, sum;
	int64_t start, cycles;

	fill(a, p, 1);
	expect_rounds(a, p, slot);
	start_ns = ptx_globaltimer();
	start = ptx_clock64();
	if (a.test == CAIRN_DSMEM_ST_ASYNC) {
		bool whole = slot >= 16 * blockDim.x;
		uint32_t warp = threadIdx.x / 32, first = 16 * (whole ? threadIdx.x : threadIdx.x & 31);
		uint32_t step = 16 * (whole ? blockDim.x : 32);

		for (uint32_t t = whole ? 0 : warp; t < (uint32_t)a.rounds;
		     t += whole ? 1 : blockDim.x / 32) {
			uint32_t peer = cairn_dsmem_peer(p.rank, p.size, t);
			uint32_t from = p.smem + OWN + peer * slot;
			uint32_t to = ptx_mapa(p.smem + OWN + a.bytes + p.rank * slot, peer);
			uint32_t bar = ptx_mapa(p.smem + BAR(t % CAIRN_DSMEM_NUM_BARS), peer);

#pragma unroll 4
			for (uint32_t i = first; i < slot; i += step)
				ptx_st_async_v4(to + i, ptx_ld_shared_v4(from + i), bar);
		}
	} else if (threadIdx.x == 0) {
		for (int t = 0; t < a.rounds; t++) {
			uint32_t peer = cairn_dsmem_peer(p.rank, p.size, t);

			ptx_cp_async_bulk_s2s(ptx_mapa(p.smem + OWN + a.bytes + p.rank * slot, peer),
					      p.smem + OWN + peer * slot, slot,
					      ptx_mapa(p.smem + BAR(t % CAIRN_DSMEM_NUM_BARS), peer));
		}
	}
	await_rounds(p);
	cycles = ptx_clock64() - start;
	end_ns = ptx_globaltimer();
	sum = weigh(a);
	finish(a, p, resident, sum, start_ns, end_ns, cycles, 0);
	cluster_sync();
}

__global__ void __launch_bounds__(1024, 1)
dsmem_multicast_kernel(const __grid_constant__ struct cairn_dsmem_args a, int resident)
{
	struct place p = get_place();
	uint32_t slot = a.bytes / p.size;
	uint64_t start_ns, end_ns, sum;
	int64_t start, cycles;

	fill(a, p, 1);
	expect_rounds(a, p, a.bytes);
	start_ns = ptx_globaltimer();
	start = ptx_clock64();
	if (threadIdx.x == 0) {
		const char *src = (const char *)a.src +
				  cairn_dsmem_src_offset(a.src_bytes, a.bytes, p.cta / p.size) +
				  p.rank * slot;

		for (int t = 0; t < a.rounds; t++)
			ptx_cp_async_bulk_g2s_multicast(p.smem + OWN + a.bytes + p.rank * slot, src, slot,
							p.smem + BAR(t % CAIRN_DSMEM_NUM_BARS),
							(uint16_t)((1u << p.size) - 1));
	}
	await_rounds(p);
	cycles = ptx_clock64() - start;
	end_ns = ptx_globaltimer();
	sum = weigh(a);
	finish(a, p, resident, sum, start_ns, end_ns, cycles, 0);
	cluster_sync();
}

/* BARRIER: 128 threads take part in the barriers; thread 0 exchanges the values. */
static __device__ void barriers(const struct cairn_dsmem_args &a, const struct place &p, int64_t cycles[2],
				uint64_t *sum)
{
	int64_t start = ptx_clock64();

	for (int t = 0; t < a.rounds; t++)
		cluster_sync();
	cycles[0] = ptx_clock64() - start;
	start = ptx_clock64();
	for (int t = 0; t < a.rounds; t++) {
		uint32_t peer = cairn_dsmem_peer(p.rank, p.size, t);
		uint32_t sender = p.size == 1 ? 0 : (p.rank + p.size - 1 - t % (p.size - 1)) % p.size;

		if (threadIdx.x == 0)
			ptx_st_relaxed_cluster_shared_b64(ptx_mapa(p.smem + EXCHANGE(t, p.rank), peer),
							  cairn_dsmem_word(a.seed, p.cta, t));
		cluster_sync();
		if (threadIdx.x == 0)
			*sum += ld_shared_u64(EXCHANGE(t, sender));
	}
	cycles[1] = ptx_clock64() - start;
}

/* MBARRIER: runs in thread 0 of every rank. Rank 0 sends the token first and receives it last. */
static __device__ void rings(const struct cairn_dsmem_args &a, const struct place &p, int64_t cycles[2],
			     uint64_t *last)
{
	uint32_t next = (p.rank + 1) % p.size, mine = p.smem + BAR(0);
	uint32_t theirs = ptx_mapa(mine, next), slot = ptx_mapa(p.smem + TOKEN, next);
	uint64_t token = cairn_dsmem_word(a.seed, p.cta, 0);
	uint32_t phase = 0;
	int64_t start = ptx_clock64();

	for (int t = 0; t < a.rounds; t++) {
		if (p.rank == 0)
			ptx_mbarrier_arrive_cluster(theirs);
		ptx_mbarrier_wait_cluster(mine, phase);
		if (p.rank)
			ptx_mbarrier_arrive_cluster(theirs);
		phase ^= 1;
	}
	cycles[0] = ptx_clock64() - start;

	mine = p.smem + BAR(1);
	theirs = ptx_mapa(mine, next);
	phase = 0;
	start = ptx_clock64();
	for (int t = 0; t < a.rounds; t++) {
		if (p.rank == 0)
			ptx_st_async_b64(slot, token, theirs);
		ptx_mbarrier_wait_cluster(mine, phase);
		*last = ld_shared_u64(TOKEN);
		/* arm the next phase before sending the token, which could complete it */
		if (t + 1 < a.rounds)
			ptx_mbarrier_arrive_expect_tx(mine, 8);
		token = cairn_dsmem_token(*last, p.rank);
		if (p.rank)
			ptx_st_async_b64(slot, token, theirs);
		phase ^= 1;
	}
	cycles[1] = ptx_clock64() - start;
}

__global__ void __launch_bounds__(128) dsmem_sync_kernel(const __grid_constant__ struct cairn_dsmem_args a,
							   int resident)
{
	struct place p = get_place();
	int64_t cycles[2] = { 0, 0 };
	uint64_t start_ns, end_ns, sum = 0;

	if (threadIdx.x == 0) {
		ptx_mbarrier_init(p.smem + BAR(0), 1);
		ptx_mbarrier_init(p.smem + BAR(1), 1);
		ptx_mbarrier_arrive_expect_tx(p.smem + BAR(1), 8);
		ptx_fence_mbarrier_init_release_cluster();
	}
	cluster_sync();
	start_ns = ptx_globaltimer();
	if (a.test == CAIRN_DSMEM_BARRIER)
		barriers(a, p, cycles, &sum);
	else if (threadIdx.x == 0)
		rings(a, p, cycles, &sum);
	__syncwarp();
	end_ns = ptx_globaltimer();
	finish(a, p, resident, sum, start_ns, end_ns, cycles[0], cycles[1]);
	cluster_sync();
}

/* ACTIVE: CTAs that started before the first one ended were resident at the same time. */
__global__ void __launch_bounds__(32) dsmem_active_kernel(const __grid_constant__ struct cairn_dsmem_args a,
							    int resident)
{
	struct place p = get_place();
	uint64_t start_ns = ptx_globaltimer(), end_ns;

	do {
		end_ns = ptx_globaltimer();
	} while (end_ns - start_ns < ACTIVE_NS);
	finish(a, p, resident, 0, start_ns, end_ns, 0, 0);
}

/* Indexed by enum cairn_dsmem_test. */
static const struct {
	const void *kernel;
	unsigned int threads;	/* per CTA */
	int receive;		/* 1: there is a receive buffer of a.bytes */
} tests[CAIRN_DSMEM_NUM_TESTS] = {
	{ (const void *)dsmem_latency_kernel, 32, 0 },		/* LATENCY */
	{ (const void *)dsmem_chase_kernel, 32, 0 },		/* LATENCY_SMEM */
	{ (const void *)dsmem_chase_kernel, 32, 0 },		/* LATENCY_L2 */
	{ (const void *)dsmem_chase_kernel, 32, 0 },		/* LATENCY_HBM */
	{ (const void *)dsmem_load_kernel, 512, 0 },		/* LOAD */
	{ (const void *)dsmem_push_kernel, 512, 1 },		/* ST_ASYNC */
	{ (const void *)dsmem_push_kernel, 512, 1 },		/* BULK */
	{ (const void *)dsmem_multicast_kernel, 512, 1 },	/* MULTICAST */
	{ (const void *)dsmem_sync_kernel, 128, 0 },		/* BARRIER */
	{ (const void *)dsmem_sync_kernel, 32, 0 },		/* MBARRIER */
	{ (const void *)dsmem_active_kernel, 32, 0 },		/* ACTIVE */
};

static int touch(const void *src, int64_t bytes, void *stream)
{
	const uint64_t *from = (const uint64_t *)src;
	int64_t num_lines = bytes / CAIRN_DSMEM_LINK;
	struct cairn_launch launch = { 0 };
	void *params[] = { &from, &num_lines };
	int num_sms = cairn_num_sms();

	if (num_sms < 0)
		return num_sms;
	launch.grid[0] = num_sms;
	launch.block[0] = 1024;
	launch.stream = stream;
	return cairn_launch((const void *)dsmem_touch_kernel, &launch, params);
}

extern "C" int cairn_dsmem(const struct cairn_dsmem_args *args, void *stream)
{
	struct cairn_dsmem_args a;
	struct cairn_launch launch = { 0 };
	void *params[2];
	int resident, run;

	CAIRN_TRY(cairn_dsmem_check(args));
	a = *args;
	launch.block[0] = tests[a.test].threads;
	if (a.test == CAIRN_DSMEM_LOAD && a.cluster_size > 3)
		launch.block[0] = 256;	/* more loads in flight would only queue in the network */
	launch.smem = OWN + (size_t)a.bytes * (1 + tests[a.test].receive);
	if (launch.smem < (size_t)a.smem_bytes)
		launch.smem = a.smem_bytes;
	launch.cluster = a.cluster_size;
	launch.stream = stream;
	launch.grid[0] = a.cluster_size;
	resident = cairn_max_active_clusters(tests[a.test].kernel, &launch);
	if (resident <= 0)
		return cairn_error(EOPNOTSUPP,
				   "dsmem: this device cannot run clusters of %d CTAs with %zu bytes each",
				   a.cluster_size, launch.smem);
	run = a.test == CAIRN_DSMEM_ACTIVE || resident > a.num_clusters ? a.num_clusters : resident;
	launch.grid[0] = run * a.cluster_size;
	if (a.test == CAIRN_DSMEM_LATENCY_L2)
		CAIRN_TRY(touch(a.src, a.src_bytes, stream));
	if (a.test == CAIRN_DSMEM_LATENCY_HBM)
		CAIRN_TRY(touch((const char *)a.src + a.src_bytes / 2, a.src_bytes / 2, stream));
	params[0] = &a;
	params[1] = &resident;
	return cairn_launch(tests[a.test].kernel, &launch, params);
}
