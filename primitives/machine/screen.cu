/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen - runs the same work on every SM, with one CTA on each: its shared memory leaves no room for another
 *
 * A CTA has 16 warps. Warp w runs on sub-partition w mod 4, the part, and belongs to group w / 4, a
 * warpgroup. Step s of a round runs on group s mod 4, so that four steps are in flight: while one group adds
 * its results to the digest, the tensor cores and lanes work for the others. Groups meet at the start and at
 * the end of a round. In between, the products of a step wait until the first 12 slices of the step before
 * have been multiplied. The last 4 slices keep the tensor cores busy until the next products arrive, and the
 * other groups add their digests meanwhile. A thread holds at most 64 results of a step; they, the sums and
 * little else fit in the 128 registers that 512 threads leave to each.
 *
 * Dynamic shared memory:
 *
 *	0	uint64[4][2]	digest of each part in this round
 *	64	uint64[4]	cycles of each part
 *	96	int64		start_ns
 *	104	uint64		place
 *	1024	4 * 8 KiB	tile A: panels of 64 rows of 128 bytes, swizzled as wgmma.cuh describes;
 *				slice i is 32 bytes of panel i / 4
 *	33792	4 * 16 KiB	tile B: panels of 128 rows
 *	99328	16 * 8 KiB	MEMORY: a region for each warp. In odd rounds of MEMORY alone, warps 0 to
 *				11 march over the tiles instead, so that all shared memory has its turn.
 *
 * Digest: screen_digest.h. There is a kernel for digests of all steps and one for the digest of the last step
 * alone, because a branch around the digest would keep the compiler from placing it between the special
 * functions or the loads of the same step.
 *
 * Preemption may move a CTA to another SM: %smid is read at both ends of a round, and a round that moved is
 * dropped.
 */
#include "primitives/base/args.h"
#include "primitives/base/launch.h"
#include "primitives/machine/screen_digest.h"
#include "primitives/ptx/ptx_screen.cuh"

#define THREADS		(32 * CAIRN_SCREEN_PARTS * CAIRN_SCREEN_GROUPS)
#define SUM(p)		((p) * 16)
#define CYCLES(p)	(64 + (p) * 8)
#define START_NS	96
#define PLACE		104
#define TILE_A		1024
#define PANEL_A		(CAIRN_SCREEN_ROWS_A * 128)
#define TILE_B		(TILE_A + 4 * PANEL_A)
#define PANEL_B		(CAIRN_SCREEN_ROWS_B * 128)
#define MEMORY		(TILE_B + 4 * PANEL_B)
#define REGION		(CAIRN_SCREEN_WORDS * 4)
#define SMEM		(MEMORY + THREADS / 32 * REGION)

#define ALONE		12	/* slices of a step that end before the next step's products begin */
#define BAR_TURN	1	/* named barriers, one for each group */

#define WAIT_NS		20000	/* longer than it takes to start a CTA on every SM */

/* A build for tests changes the results of a step here: conformance/validate/faults/faulty_plugin.cu. */
#ifndef CAIRN_SCREEN_HOOK
#define CAIRN_SCREEN_HOOK(n, w, step, word)	((void)0)
#endif

extern __shared__ __align__(1024) unsigned char s_mem[];

/* What a warp does in a round. */
struct work {
	int32_t program, inputs, part, group, lane, steps;
	bool last_only;		/* constant in each kernel */
	float zero;		/* 0, which the compiler cannot know: it would merge equal evaluations */
	bool in_turn;		/* all groups run the same tensor program, in the order of steps */
	uint32_t region;	/* shared address of the warp's memory to march over */
	uint64_t key;
	uint32_t *raw;		/* of the part, for the last step; or NULL */
};

/*
 * Ends a step: adds the lane's n words to the digest and writes raw results, if they are wanted. Words from n
 * to 63 are absent; raw results have zeros there.
 */
template <int n, bool tile> static __device__ __forceinline__ void end_step(
	const struct work &w, int step, uint32_t *word, struct cairn_screen_digest *digest)
{
	bool last = step == w.steps - 1;

	CAIRN_SCREEN_HOOK(n, w, step, word);
	/* computes the words even in steps whose results are not wanted, which must take as long */
#pragma unroll
	for (int j = 0; j < n; j++)
		asm volatile("" : : "r"(word[j]));
	if (last || !w.last_only)
		cairn_screen_add(digest, word, n);
	if (last && w.raw) {
		uint32_t *raw = w.raw + cairn_screen_first(tile, w.lane);

		/* else the compiler keeps 64 addresses in registers through all steps */
		asm volatile("" : "+l"(raw));
#pragma unroll
		for (int j = 0; j < n; j++)
			raw[cairn_screen_distance(tile, j)] = word[j];
		for (int j = n; j < 64; j++)
			raw[cairn_screen_distance(tile, j)] = 0;
	}
}

static __device__ __forceinline__ uint32_t start_word(const struct work &w, int step, uint32_t n)
{
	return cairn_screen_word(w.key, w.inputs, CAIRN_SCREEN_STEP(w.part, step) + n);
}

/* Keeps d in its registers until products end; wgmma_keep() for words. */
static __device__ __forceinline__ void keep(uint32_t *d)
{
#pragma unroll
	for (int i = 0; i < 64; i++)
		asm volatile("" : "+r"(d[i]) : : "memory");
}

/*
 * Moves a descriptor by a number of 16-byte units. Its low word never carries, so that the high word remains
 * a constant.
 */
static __device__ __forceinline__ uint64_t move_desc(uint64_t desc, uint32_t units)
{
	return desc >> 32 << 32 | ((uint32_t)desc + units);
}

template <int program> static __device__ __forceinline__ void run_tensor(const struct work &w,
									 struct cairn_screen_digest *digest)
{
	uint64_t a = wgmma_desc(ptx_smem(s_mem + TILE_A), 0), b = wgmma_desc(ptx_smem(s_mem + TILE_B), 0);

	for (int s = w.group; s < w.steps; s += CAIRN_SCREEN_GROUPS) {
		uint32_t d[64];

#pragma unroll
		for (int i = 0; i < 64; i++)
			d[i] = 0;
		if (w.in_turn && s > 0)
			ptx_bar_sync(BAR_TURN + w.group, 256);
		keep(d);
		ptx_wgmma_fence();
#pragma unroll
		for (int i = 0; i < CAIRN_SCREEN_SLICES; i++) {
			uint32_t k = (uint32_t)(i + s) % CAIRN_SCREEN_SLICES;
			uint64_t x = move_desc(a, i / 4 * (PANEL_A >> 4) + i % 4 * 2);
			uint64_t y = move_desc(b, k / 4 * (PANEL_B >> 4) + k % 4 * 2);

			if (program == CAIRN_SCREEN_F16)
				ptx_wgmma_128_f16(d, x, y, i > 0);
			else if (program == CAIRN_SCREEN_BF16)
				ptx_wgmma_128_bf16(d, x, y, i > 0);
			else if (program == CAIRN_SCREEN_TF32)
				ptx_wgmma_128_tf32(d, x, y, i > 0);
			else if (program == CAIRN_SCREEN_E4M3)
				ptx_wgmma_128_e4m3(d, x, y, i > 0);
			else if (program == CAIRN_SCREEN_E5M2)
				ptx_wgmma_128_e5m2(d, x, y, i > 0);
			else
				ptx_wgmma_128_s8(d, x, y, i > 0);
			if (i == ALONE - 1 || i == CAIRN_SCREEN_SLICES - 1)
				ptx_wgmma_commit_group();
		}
		ptx_wgmma_wait_group<1>();
		if (w.in_turn && s + 1 < w.steps)
			ptx_bar_arrive(BAR_TURN + (w.group + 1) % CAIRN_SCREEN_GROUPS, 256);
		ptx_wgmma_wait_group<0>();
		keep(d);
		end_step<64, true>(w, s, d, digest);
	}
}

static __device__ __forceinline__ void run_f32(const struct work &w,
							struct cairn_screen_digest *digest)
{
	for (int s = w.group; s < w.steps; s += CAIRN_SCREEN_GROUPS) {
		uint32_t word[8];
		float x[8], a[8], b[8], d[8];

#pragma unroll
		for (int j = 0; j < 8; j++) {
			x[j] = cairn_screen_f32_start(start_word(w, s, 64 * j + w.lane));
			a[j] = cairn_screen_f32_parameter(start_word(w, s, 64 * j + 32 + w.lane));
			b[j] = __fmul_rn(-6, a[j]);
			d[j] = __fmaf_rn(-9, a[j], 4);
		}
#pragma unroll 4
		for (int i = 0; i < CAIRN_SCREEN_F32_LINKS; i++)
#pragma unroll
			for (int j = 0; j < 8; j++)
				x[j] = __fmaf_rn(-__fmaf_rn(a[j], x[j], b[j]), x[j], d[j]);
#pragma unroll
		for (int j = 0; j < 8; j++)
			word[j] = cairn_screen_float_bits(x[j]);
		end_step<8, false>(w, s, word, digest);
	}
}

static __device__ __forceinline__ void run_f64(const struct work &w,
							struct cairn_screen_digest *digest)
{
	for (int s = w.group; s < w.steps; s += CAIRN_SCREEN_GROUPS) {
		uint32_t word[8];
		double x[4], a[4], b[4], d[4];

#pragma unroll
		for (int j = 0; j < 4; j++) {
			x[j] = cairn_screen_f64_start(start_word(w, s, 64 * j + w.lane));
			a[j] = cairn_screen_f64_parameter(start_word(w, s, 64 * j + 32 + w.lane));
			b[j] = __dmul_rn(-6, a[j]);
			d[j] = __fma_rn(-9, a[j], 4);
		}
#pragma unroll 4
		for (int i = 0; i < CAIRN_SCREEN_F64_LINKS; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				x[j] = __fma_rn(-__fma_rn(a[j], x[j], b[j]), x[j], d[j]);
#pragma unroll
		for (int j = 0; j < 4; j++) {
			uint64_t bits;

			memcpy(&bits, &x[j], sizeof(bits));
			word[2 * j] = (uint32_t)bits;
			word[2 * j + 1] = (uint32_t)(bits >> 32);
		}
		end_step<8, false>(w, s, word, digest);
	}
}

static __device__ __forceinline__ void run_int(const struct work &w,
							struct cairn_screen_digest *digest)
{
	for (int s = w.group; s < w.steps; s += CAIRN_SCREEN_GROUPS) {
		uint32_t x[8];

#pragma unroll
		for (int j = 0; j < 8; j++)
			x[j] = start_word(w, s, 32 * j + w.lane);
#pragma unroll 1
		for (int i = 0; i < CAIRN_SCREEN_INT_LINKS; i += 8)
#pragma unroll
			for (int u = 0; u < 8; u++) {
#pragma unroll
				for (int j = 0; j < 8; j++)
					x[j] = x[j] * CAIRN_SCREEN_INT_FACTOR + x[(j + 1) % 8];
#pragma unroll
				for (int j = 0; j < 8; j++)
					x[j] = __funnelshift_l(x[j], x[j], 7 + j) ^
					       (x[(j + 3) % 8] & ~x[(j + 6) % 8]);
				/* i is a multiple of 8, but not of 5 */
				x[u] += __shfl_xor_sync(~0u, x[(u + 1) % 8], 1 << u % 5);
			}
		end_step<8, false>(w, s, x, digest);
	}
}

static __device__ __forceinline__ float special(int function, float x)
{
	switch (function) {
	case CAIRN_SCREEN_EX2:
		return ptx_ex2_approx_ftz(x);
	case CAIRN_SCREEN_LG2:
		return ptx_lg2_approx_ftz(x);
	case CAIRN_SCREEN_RCP:
		return ptx_rcp_approx_ftz(x);
	case CAIRN_SCREEN_RSQRT:
		return ptx_rsqrt_approx_ftz(x);
	case CAIRN_SCREEN_SQRT:
		return ptx_sqrt_approx_ftz(x);
	case CAIRN_SCREEN_SIN:
		return ptx_sin_approx_ftz(x);
	case CAIRN_SCREEN_COS:
		return ptx_cos_approx_ftz(x);
	}
	return ptx_tanh_approx(x);
}

/* All draws come first, so that the compiler can place the digest of some values between the next ones. */
static __device__ __forceinline__ void run_special(const struct work &w,
							    struct cairn_screen_digest *digest)
{
	for (int s = w.group; s < w.steps; s += CAIRN_SCREEN_GROUPS) {
		float u[CAIRN_SCREEN_NUM_FUNCTIONS];
		uint32_t word[64];

#pragma unroll
		for (int f = 0; f < CAIRN_SCREEN_NUM_FUNCTIONS; f++)
			u[f] = (float)(start_word(w, s, 32 * f + w.lane) >> 8) * 0x1p-24f;
#pragma unroll
		for (int n = 63; n >= 0; n--) {
			int f = n % CAIRN_SCREEN_NUM_FUNCTIONS;
			float at = __fmaf_rn(u[f], 0.5f, n / CAIRN_SCREEN_NUM_FUNCTIONS * 0.0625f);
			float x = __fmaf_rn(at, cairn_screen_width(f), cairn_screen_low(f));

			word[n] = 3 * cairn_screen_float_bits(special(f, x)) -
				  cairn_screen_float_bits(special(f, x + w.zero)) -
				  cairn_screen_float_bits(special(f, x - w.zero));
		}
		end_step<64, false>(w, s, word, digest);
	}
}

/* Replaces the words of a region by their complements, through 64 registers of each lane. */
static __device__ __forceinline__ void complement(uint32_t mine, bool down)
{
	uint4 v[16];

#pragma unroll
	for (int i = 0; i < 16; i++) {
		int k = down ? 15 - i : i;

		v[k] = ptx_ld_shared_v4(mine + 512 * k);
	}
#pragma unroll
	for (int i = 0; i < 16; i++) {
		int k = down ? 15 - i : i;

		ptx_st_shared_v4(mine + 512 * k, make_uint4(~v[k].x, ~v[k].y, ~v[k].z, ~v[k].w));
	}
}

/* The region belongs to the warp alone: __syncwarp() orders passes that give words to other lanes. */
static __device__ __forceinline__ void run_memory(const struct work &w,
							   struct cairn_screen_digest *digest)
{
	uint32_t mine = w.region + 16 * w.lane;

	for (int s = w.group; s < w.steps; s += CAIRN_SCREEN_GROUPS) {
		uint32_t v[64];

		__syncwarp();
#pragma unroll 4
		for (int k = 0; k < 16; k++) {
			uint32_t n = 128 * k + 4 * w.lane;

			ptx_st_shared_v4(mine + 512 * k,
					 make_uint4(start_word(w, s, n), start_word(w, s, n + 1),
						    start_word(w, s, n + 2), start_word(w, s, n + 3)));
		}
#pragma unroll
		for (int i = 0; i < CAIRN_SCREEN_COMPLEMENTS; i++)
			complement(mine, i % 2 == 0);
		__syncwarp();
#pragma unroll
		for (int k = 0; k < 64; k++)	/* each lane at another bank in each access */
			v[k] = ptx_ld_shared_b32(w.region + 128 * k + 4 * (w.lane ^ k % 32));
#pragma unroll
		for (int k = 0; k < 64; k++)
			ptx_st_shared_b32(w.region + 128 * k + 4 * (w.lane ^ k % 32),
					  __funnelshift_l(v[k], v[k], 1));
		__syncwarp();
#pragma unroll
		for (int k = 15; k >= 0; k--)	/* row l of matrix m is word 128 k + 32 m + 4 (l mod 8) on */
			ptx_ldmatrix_x4(v + 4 * k, mine + 512 * k);
		end_step<64, false>(w, s, v, digest);
	}
}

/* Fills both tiles; all threads of the CTA call it. */
static __device__ void make_tiles(int32_t program, int32_t inputs, uint64_t key)
{
#pragma unroll 1
	for (int i = threadIdx.x; i < CAIRN_SCREEN_B(CAIRN_SCREEN_ROWS_B, 0); i += THREADS) {
		int row = i / CAIRN_SCREEN_ROW_WORDS, k = i % CAIRN_SCREEN_ROW_WORDS;
		bool in_a = row < CAIRN_SCREEN_ROWS_A;
		int r = in_a ? row : row - CAIRN_SCREEN_ROWS_A;
		uint32_t panel = in_a ? TILE_A + k / 32 * PANEL_A : TILE_B + k / 32 * PANEL_B;
		uint32_t piece = (uint32_t)(k % 32 / 4 ^ r % 8);
		uint32_t word = cairn_screen_word(key, inputs, i);

		ptx_st_shared_b32(ptx_smem(s_mem) + panel + r * 128 + piece * 16 + k % 4 * 4,
				  cairn_screen_elements(program, inputs, word, i));
	}
}

static __device__ __forceinline__ void run_program(const struct work &w,
							    struct cairn_screen_digest *digest)
{
	switch (w.program) {
	case CAIRN_SCREEN_F16:
		run_tensor<CAIRN_SCREEN_F16>(w, digest);
		break;
	case CAIRN_SCREEN_BF16:
		run_tensor<CAIRN_SCREEN_BF16>(w, digest);
		break;
	case CAIRN_SCREEN_TF32:
		run_tensor<CAIRN_SCREEN_TF32>(w, digest);
		break;
	case CAIRN_SCREEN_E4M3:
		run_tensor<CAIRN_SCREEN_E4M3>(w, digest);
		break;
	case CAIRN_SCREEN_E5M2:
		run_tensor<CAIRN_SCREEN_E5M2>(w, digest);
		break;
	case CAIRN_SCREEN_S8:
		run_tensor<CAIRN_SCREEN_S8>(w, digest);
		break;
	case CAIRN_SCREEN_F32:
		run_f32(w, digest);
		break;
	case CAIRN_SCREEN_F64:
		run_f64(w, digest);
		break;
	case CAIRN_SCREEN_INT:
		run_int(w, digest);
		break;
	case CAIRN_SCREEN_SPECIAL:
		run_special(w, digest);
		break;
	default:
		run_memory(w, digest);
	}
}

static __device__ __forceinline__ uint64_t sum_of_lanes(uint64_t x)
{
#pragma unroll
	for (int i = 16; i; i /= 2)
		x += __shfl_xor_sync(~0u, x, i);
	return x;
}

static __device__ __forceinline__ unsigned long long *shared_u64(uint32_t offset)
{
	return (unsigned long long *)(s_mem + offset);
}

/* Thread 0 writes what the unit has found in round r; place -1: nothing. */
static __device__ void write_round(const struct cairn_screen_args &a, int unit, int r, int32_t place,
				   uint64_t start_ns)
{
	int64_t at = (int64_t)r * a.units + unit;
	bool ran = place >= 0;

	a.place[at] = place;
	a.start_ns[at] = ran ? (int64_t)start_ns : 0;
	for (int p = 0; p < CAIRN_SCREEN_PARTS; p++) {
		a.cycles[at * CAIRN_SCREEN_PARTS + p] = ran ? (int64_t)*shared_u64(CYCLES(p)) : 0;
		for (int k = 0; k < 2; k++)
			a.digest[(at * CAIRN_SCREEN_PARTS + p) * 2 + k] =
				ran ? *shared_u64(SUM(p) + 8 * k) : 0;
	}
}

/* Writes that units ran no round, from unit `first` on: one CTA for each. */
__global__ void __launch_bounds__(THREADS)
screen_idle_kernel(const __grid_constant__ struct cairn_screen_args a, int first)
{
	const int words = CAIRN_SCREEN_PARTS * CAIRN_SCREEN_WORDS, unit = first + blockIdx.x;

	for (int r = threadIdx.x; r < a.rounds; r += THREADS)
		write_round(a, unit, r, -1, 0);
	for (int i = threadIdx.x; a.raw && i < words; i += THREADS)
		a.raw[(int64_t)unit * words + i] = 0;
}

template <bool last_only> __global__ void __launch_bounds__(THREADS, 1)
screen_kernel(const __grid_constant__ struct cairn_screen_args a)
{
	/* a shuffle: the compiler learns that all lanes have the same result, and uses uniform registers */
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), unit = a.only < 0 ? blockIdx.x : 0;
	struct work w;

	if (a.only >= 0 && ptx_smid_now() != (uint32_t)a.only) {
		uint64_t start_ns = ptx_globaltimer();

		/* if this CTA exited at once, the next one could start on this SM, and another SM get none */
		while (ptx_globaltimer() - start_ns < WAIT_NS)
			;
		return;
	}
	w.inputs = a.inputs;
	w.part = warp % CAIRN_SCREEN_PARTS;
	w.group = warp / CAIRN_SCREEN_PARTS;
	w.lane = threadIdx.x % 32;
	w.steps = a.steps;
	w.last_only = last_only;
	w.zero = a.first_round < 0;
	for (int r = 0; r < a.rounds; r++) {
		int64_t round = a.first_round + r, start;
		int32_t tensor = a.program;		/* the program that the tiles are for */
		struct cairn_screen_digest digest = {};
		uint64_t sums[2];
		bool moved;

		w.program = a.program;
		w.in_turn = a.program < CAIRN_SCREEN_NUM_TENSOR;
		if (a.program == CAIRN_SCREEN_MIX) {
			w.program = cairn_screen_draw(a.seed, a.inputs, round, w.group);
			tensor = cairn_screen_draw(a.seed, a.inputs, round, 0);
		}
		w.key = cairn_screen_key(a.seed, w.program, round);
		w.region = ptx_smem(s_mem) + MEMORY + warp * REGION;
		if (a.program == CAIRN_SCREEN_MEMORY && round % 2 && warp < (MEMORY - TILE_A) / REGION)
			w.region = ptx_smem(s_mem) + TILE_A + warp * REGION;
		w.raw = a.raw && r == a.rounds - 1 ?
			a.raw + ((int64_t)unit * CAIRN_SCREEN_PARTS + w.part) * CAIRN_SCREEN_WORDS : NULL;
		if (threadIdx.x < 3 * CAIRN_SCREEN_PARTS)
			*shared_u64(8 * threadIdx.x) = 0;	/* sums and cycles */
		if (threadIdx.x == 0)
			*shared_u64(PLACE) = ptx_smid_now();
		if (tensor < CAIRN_SCREEN_NUM_TENSOR)
			make_tiles(tensor, a.inputs, cairn_screen_key(a.seed, tensor, round));
		ptx_fence_proxy_async_shared_cta();	/* wgmma reads what ordinary stores have written */
		__syncthreads();

		if (threadIdx.x == 0)
			*shared_u64(START_NS) = ptx_globaltimer();
		start = ptx_clock64();
		run_program(w, &digest);
		cairn_screen_sums(&digest, w.program < CAIRN_SCREEN_NUM_TENSOR, w.lane,
				  w.program >= CAIRN_SCREEN_F32 && w.program <= CAIRN_SCREEN_INT ? 8 : 64,
				  cairn_screen_last_step(w.group, w.steps), sums);
		sums[0] = sum_of_lanes(sums[0]);
		sums[1] = sum_of_lanes(sums[1]);
		if (w.lane == 0) {
			atomicAdd(shared_u64(SUM(w.part)), (unsigned long long)sums[0]);
			atomicAdd(shared_u64(SUM(w.part) + 8), (unsigned long long)sums[1]);
			atomicMax(shared_u64(CYCLES(w.part)), (unsigned long long)(ptx_clock64() - start));
		}
		moved = __syncthreads_or(*shared_u64(PLACE) != ptx_smid_now());
		if (threadIdx.x == 0)
			write_round(a, unit, r, moved ? -1 : (int32_t)*shared_u64(PLACE),
				    *shared_u64(START_NS));
		if (moved && w.raw)
			for (int i = threadIdx.x % 32 + w.group * 32; i < CAIRN_SCREEN_WORDS;
			     i += 32 * CAIRN_SCREEN_GROUPS)
				w.raw[i] = 0;
		__syncthreads();	/* the next round rewrites the sums and the tiles */
	}
}

extern "C" int cairn_screen(const struct cairn_screen_args *args, void *stream)
{
	struct cairn_launch launch = { 0 };
	struct cairn_screen_args a;
	int num_sms = cairn_num_sms(), first;
	void *params[] = { &a, &first };
	const void *kernel;

	CAIRN_TRY(cairn_screen_check(args));
	if (num_sms < 0)
		return num_sms;
	cairn_copy_args(&a, args, sizeof(a));
	launch.block[0] = THREADS;
	launch.stream = stream;
	/* the only unit to run may be one that the device does not have */
	first = a.only < 0 ? num_sms : 0;
	if (first < a.units) {
		launch.grid[0] = a.units - first;
		CAIRN_TRY(cairn_launch((const void *)screen_idle_kernel, &launch, params));
	}
	launch.grid[0] = a.only < 0 && a.units < num_sms ? a.units : num_sms;
	launch.smem = SMEM;
	kernel = a.last_only ? (const void *)screen_kernel<true> : (const void *)screen_kernel<false>;
	CAIRN_TRY(cairn_check_resident(kernel, &launch, "screen"));
	return cairn_launch(kernel, &launch, params);
}
