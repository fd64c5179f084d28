/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_skinny - the kernel for up to 8 rows of a, which is as fast as b can be read; its form: gemm_form.cuh
 *
 * Floor: reading b once, 2 n k bytes at the rate of stream READ. Arithmetic does not limit it: 18 bytes per
 * clock and SM need one mma.m16n8k16 every 14 clocks.
 *
 * Schedule. Each SM runs one CTA, persistent over units of 16 rows of b. A unit is divided along k into
 * stages of 128 (16 rows x 256 bytes = 4 KiB), which 16 warps, the workers, take in turn. Every worker is an
 * independent pipeline: it fills a private ring of 2 stages by cp.async, waits for its oldest stage,
 * multiplies and refills it, without barriers other than __syncwarp; 128 KiB are in flight per SM. The ring
 * already fetches the next unit while this unit is reduced: the 16 partial sums go to shared memory (two
 * buffers, one barrier per unit), and a thread for each result adds them in the order of the workers.
 * The order of all sums depends only on n and k.
 *
 * Those threads belong to the first workers. If a form has more to do with its sums, it has warps of its own
 * for them, the adders, so that no worker's ring waits.
 *
 * mma takes a as its 16 x 16 operand (rows 8..15 are zero) and 8 rows of b as the other. The k index within
 * a stage is permuted in the same way for both: lane 4 g + t takes elements 8 t .. 8 t + 7 of each 32 of row
 * g, 16 bytes, for two mma. A worker needs the same elements of a in every unit. With k from 2056 to 4096
 * these are two stages, which stay in registers; else a is loaded when needed, 16 bytes per lane, and stays
 * in the L1 if it fits (m k 2 bytes in about 90 KiB), which is why the ring is not larger.
 *
 * Programmatic dependent launch: the ring is filled before griddepcontrol.wait; a is read and out written
 * after.
 *
 * Shared memory (dynamic):
 *	0		16 rings of 2 stages of 16 rows of 256 bytes; 16-byte piece i of row r lies at
 *			i ^ 4 (r & 1), so that the reads of eight lanes (two rows, four pieces) are free of
 *			bank conflicts
 *	131072		float [2][16 workers][8 rows of a][16 rows of b], the partial sums
 * One CTA per SM. Figures and optimisation history: NOTES.md.
 */
#ifndef CAIRN_GEMM_SKINNY_CUH
#define CAIRN_GEMM_SKINNY_CUH

#include "primitives/base/launch.h"
#include "primitives/gemm/gemm_form.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define SKINNY_M	8	/* rows of a, at most */
#define SKINNY_WORKERS	16	/* warps */
#define SKINNY_STAGES	2	/* in a worker's ring */
#define SKINNY_K	128	/* elements of k in a stage */
#define SKINNY_PARTS	(SKINNY_K / 32)		/* vectors of a that a lane needs for a stage */
#define SKINNY_ROW	(SKINNY_K * 2)		/* bytes of a row in a stage */
#define SKINNY_PIECES	(SKINNY_ROW / 16)
#define SKINNY_STAGE	(GEMM_UNIT * SKINNY_ROW)
#define SKINNY_RINGS	(SKINNY_WORKERS * SKINNY_STAGES * SKINNY_STAGE)
#define SKINNY_SUMS	(SKINNY_M * GEMM_UNIT)
#define SKINNY_SMEM	(SKINNY_RINGS + 2 * SKINNY_WORKERS * SKINNY_SUMS * sizeof(float))
#define SKINNY_RESULTS(form)	(form::paired ? GEMM_HALF : GEMM_UNIT)	/* of a unit, for a row of a */
#define SKINNY_THREADS(form)	((SKINNY_WORKERS + form::adders) * 32)

#define SKINNY		static __device__ __forceinline__

/* d += a b for rows 0..7 of a; rows 8..15 are zero. */
template <int dtype>
SKINNY void skinny_mma(float d[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
{
	const uint32_t a[4] = { a0, 0, a2, 0 }, b[2] = { b0, b1 };

	if (dtype == CAIRN_BF16)
		ptx_mma_m16n8k16_bf16(d, a, b);
	else
		ptx_mma_m16n8k16_f16(d, a, b);
}

SKINNY const char *skinny_element(const void *p, int64_t row, int k, int at)
{
	return (const char *)p + (row * k + at) * 2;
}

/* Loads what this lane needs of a for a stage. */
SKINNY void skinny_load_a(uint4 x[SKINNY_PARTS], const struct cairn_gemm_args &g, int stage)
{
	const int row = threadIdx.x % 32 / 4, first = stage * SKINNY_K + threadIdx.x % 4 * 8;

#pragma unroll
	for (int c = 0; c < SKINNY_PARTS; c++) {
		const int at = first + c * 32;

		x[c] = row < g.m && at < g.k ? *(const uint4 *)skinny_element(g.a, row, g.k, at) :
					       make_uint4(0, 0, 0, 0);
	}
}

/* A unit and one of its stages. */
struct skinny_place {
	int unit, stage;
};

/* num_stages is a multiple of SKINNY_WORKERS, so that all have equally many; stages past k are zeros. */
SKINNY struct skinny_place skinny_next(struct skinny_place p, int num_stages)
{
	p.stage += SKINNY_WORKERS;
	if (p.stage >= num_stages) {
		p.stage -= num_stages;
		p.unit += gridDim.x;
	}
	return p;
}

/* Each load of the warp fetches two rows. Outside the matrix it stores zeros and reads nothing. */
template <class form>
SKINNY void skinny_fetch(const struct cairn_gemm_args &g, const form &f, struct skinny_place p,
			 int num_units, uint32_t ring, uint64_t policy)
{
	int lane = threadIdx.x & 31, piece = lane % SKINNY_PIECES, at = p.stage * SKINNY_K + piece * 8;
	int first = lane / SKINNY_PIECES, row = f.row(p.unit) + first;

	if (p.unit < num_units) {
		const char *src = skinny_element(g.b, row, g.k, at);
		/* first is the parity of all rows of this lane, because rows advance by two */
		uint32_t dst = ring + first * SKINNY_ROW + (piece ^ first << 2) * 16;

#pragma unroll
		for (int i = 0; i < GEMM_UNIT; i += 32 / SKINNY_PIECES) {
			int skipped = i >= GEMM_HALF ? f.gap(g) - GEMM_HALF : 0;
			int valid = (form::paired || row + i < g.n) && at < g.k;

			ptx_cp_async_cg_hint(dst + i * SKINNY_ROW,
					     valid ? src + (int64_t)(i + skipped) * g.k * 2 :
						     (const char *)g.b,
					     valid ? 16 : 0, policy);
		}
	}
	ptx_cp_async_commit_group();
}

/* Sums of a worker: [group of 8 rows of b][mma of a pair][element] */
struct skinny_acc {
	float d[2][2][4];
};

/* Multiplies the stage at shared address `stage`. */
template <int dtype> SKINNY void skinny_multiply(struct skinny_acc *acc, const uint4 *x, uint32_t stage)
{
	const int lane = threadIdx.x & 31, quad = lane / 4, t = lane & 3;

#pragma unroll
	for (int c = 0; c < SKINNY_PARTS; c++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint4 w = ptx_ld_shared_v4(stage + (quad + i * 8) * SKINNY_ROW +
						   ((c * 4 + t) ^ (quad & 1) << 2) * 16);

			skinny_mma<dtype>(acc->d[i][0], x[c].x, x[c].y, w.x, w.y);
			skinny_mma<dtype>(acc->d[i][1], x[c].z, x[c].w, w.z, w.w);
		}
}

/* Workers and adders come to it from different places, which __syncthreads() does not permit. */
template <class form> SKINNY void skinny_barrier(void)
{
	if (form::adders)
		ptx_bar_sync(1, SKINNY_THREADS(form));
	else
		__syncthreads();
}

/* Returns the buffer for the sums of a CTA's nth unit. */
SKINNY float *skinny_buffer(float *sums, int nth)
{
	return sums + (nth & 1) * SKINNY_WORKERS * SKINNY_SUMS;
}

/* Leaves the worker's sums of a unit in a buffer, and clears them. */
SKINNY void skinny_leave(struct skinny_acc *acc, float *buffer, int warp)
{
	const int lane = threadIdx.x & 31;
	float *to = buffer + warp * SKINNY_SUMS + lane / 4 * GEMM_UNIT + 2 * (lane & 3);

#pragma unroll
	for (int i = 0; i < 2; i++) {
		*(float2 *)(to + 8 * i) = make_float2(acc->d[i][0][0] + acc->d[i][1][0],
						      acc->d[i][0][1] + acc->d[i][1][1]);
#pragma unroll
		for (int k = 0; k < 4; k++)
			acc->d[i][0][k] = acc->d[i][1][k] = 0;
	}
}

/* Returns the workers' sum for row i of a and row r of a unit. */
SKINNY float skinny_sum(const float *buffer, int i, int r)
{
	float sum = 0;

#pragma unroll
	for (int w = 0; w < SKINNY_WORKERS; w++)
		sum += buffer[w * SKINNY_SUMS + i * GEMM_UNIT + r];
	return sum;
}

/* Each thread adds up the sums of its result of a unit, and lets the form write it. */
template <int dtype, class form>
SKINNY void skinny_write(const struct cairn_gemm_args &g, const form &f, const typename form::ready &ready,
			 const float *buffer, int unit, int thread)
{
	const int i = thread / SKINNY_RESULTS(form), r = thread % SKINNY_RESULTS(form);

	if (i >= g.m)
		return;
	if constexpr (form::paired)
		f.template store<dtype>(g, ready, i, unit, r, skinny_sum(buffer, i, r),
					skinny_sum(buffer, i, r + GEMM_HALF));
	else if (unit * GEMM_UNIT + r < g.n)
		f.template store<dtype>(g, i, unit * GEMM_UNIT + r, skinny_sum(buffer, i, r));
}

/*
 * A worker multiplies its stages of all units of this CTA. kept: its stages of a unit, whose part of a stays
 * in registers; 0: any number, and a is loaded for each
 */
template <int dtype, int kept, class form>
SKINNY void skinny_work(const struct cairn_gemm_args &g, const form &f, float *sums, uint32_t ring,
			struct skinny_place ahead, int num_units, int num_stages, int warp)
{
	const uint64_t policy = ptx_createpolicy_evict_first();
	const int each = kept ? kept : num_stages / SKINNY_WORKERS;
	uint4 x[kept ? kept : 1][SKINNY_PARTS];
	struct skinny_acc acc = {};
	int slot = 0, nth = 0;

#pragma unroll
	for (int s = 0; s < kept; s++)
		skinny_load_a(x[s], g, warp + s * SKINNY_WORKERS);
	for (int unit = blockIdx.x; unit < num_units; unit += gridDim.x, nth++) {
#pragma unroll (kept ? kept : 1)
		for (int s = 0; s < each; s++) {
			if (!kept)
				skinny_load_a(x[0], g, warp + s * SKINNY_WORKERS);
			ptx_cp_async_wait_group<SKINNY_STAGES - 1>();
			__syncwarp();
			skinny_multiply<dtype>(&acc, x[kept ? s : 0], ring + slot * SKINNY_STAGE);
			__syncwarp();	/* all lanes have read the stage that is refilled next */
			skinny_fetch(g, f, ahead, num_units, ring + slot * SKINNY_STAGE, policy);
			ahead = skinny_next(ahead, num_stages);
			slot ^= 1;
		}
		skinny_leave(&acc, skinny_buffer(sums, nth), warp);
		skinny_barrier<form>();
		if (form::adders == 0 && threadIdx.x < SKINNY_M * SKINNY_RESULTS(form))
			skinny_write<dtype>(g, f, {}, skinny_buffer(sums, nth), unit, threadIdx.x);
	}
}

/* An adder's thread computes a result of each unit. */
template <int dtype, class form>
SKINNY void skinny_add(const struct cairn_gemm_args &g, const form &f, float *sums, int num_units, int thread)
{
	const int i = thread / SKINNY_RESULTS(form), r = thread % SKINNY_RESULTS(form);
	const typename form::rows rows = f.find(g);
	int nth = 0;

	for (int unit = blockIdx.x; unit < num_units; unit += gridDim.x) {
		const typename form::ready ready = f.prepare(g, rows, i, unit, r);

		skinny_barrier<form>();
		skinny_write<dtype>(g, f, ready, skinny_buffer(sums, nth++), unit, thread);
	}
}

template <int dtype, int kept, class form> __global__ void __launch_bounds__(SKINNY_THREADS(form), 1)
gemm_skinny_kernel(const __grid_constant__ struct cairn_gemm_args g, const form f)
{
	extern __shared__ __align__(1024) unsigned char s_mem[];
	constexpr int round_k = SKINNY_K * SKINNY_WORKERS;
	const int warp = threadIdx.x / 32, num_units = (g.n + GEMM_UNIT - 1) / GEMM_UNIT;
	const int num_stages = (g.k + round_k - 1) / round_k * SKINNY_WORKERS;
	const uint32_t ring = ptx_smem(s_mem) + warp * SKINNY_STAGES * SKINNY_STAGE;
	struct skinny_place ahead = { (int)blockIdx.x, warp };
	float *sums = (float *)(s_mem + SKINNY_RINGS);

	static_assert(!form::adders || form::adders * 32 == SKINNY_M * SKINNY_RESULTS(form),
		      "an adder's thread has one result of a unit");
	ptx_griddepcontrol_launch_dependents();
	for (int i = 0; i < SKINNY_STAGES && warp < SKINNY_WORKERS; i++) {
		skinny_fetch(g, f, ahead, num_units, ring + i * SKINNY_STAGE, ptx_createpolicy_evict_first());
		ahead = skinny_next(ahead, num_stages);
	}
	ptx_griddepcontrol_wait();
	if (warp < SKINNY_WORKERS)
		skinny_work<dtype, kept>(g, f, sums, ring, ahead, num_units, num_stages, warp);
	else if constexpr (form::adders > 0)
		skinny_add<dtype>(g, f, sums, num_units, threadIdx.x - SKINNY_WORKERS * 32);
}

/* With adders, a thread has 96 registers, which are too few to keep a part of a. */
template <int kept, class form> static const void *skinny_kernel(int dtype)
{
	return dtype == CAIRN_BF16 ? (const void *)gemm_skinny_kernel<CAIRN_BF16, kept, form> :
	       (const void *)gemm_skinny_kernel<CAIRN_F16, kept, form>;
}

/*
 * Returns whether this kernel is faster than that of gemm_tile.cuh, which needs two SMs. With more than 160
 * KiB of a, too much of a comes from the L2 again for each unit.
 */
static inline bool gemm_is_skinny(const struct cairn_gemm_args *g)
{
	return g->m <= 4 || (g->m <= SKINNY_M && ((int64_t)g->m * g->k * 2 <= 160 * 1024 || g->sms == 1));
}

/* Launches the kernel for f16 or bf16; the arguments have been checked, and m is at most SKINNY_M. */
template <class form> static int gemm_skinny(const struct cairn_gemm_args *g, const form &f, void *stream)
{
	constexpr int round_k = SKINNY_K * SKINNY_WORKERS;
	const int units = (g->n + GEMM_UNIT - 1) / GEMM_UNIT, num_sms = cairn_sms_of(g->sms);
	const void *kernel = skinny_kernel<0, form>(g->dtype);
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)g, (void *)&f };

	if (num_sms < 0)
		return num_sms;
	launch.grid[0] = units < num_sms ? units : num_sms;
	launch.block[0] = SKINNY_THREADS(form);
	launch.smem = SKINNY_SMEM;
	launch.pdl = !g->sms;	/* a dependent launch would take SMs that are not this call's */
	launch.stream = stream;
	if (form::adders == 0 && g->k > round_k && g->k <= 2 * round_k)
		kernel = skinny_kernel<form::adders ? 0 : 2, form>(g->dtype);
	return cairn_launch(kernel, &launch, params);
}

#endif
