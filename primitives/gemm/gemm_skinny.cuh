/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_skinny - the kernel for up to 8 rows of a, which is as fast as b can be read
 *
 * What b and the results are: gemm_weight.cuh, gemm_form.cuh.
 *
 * Floor: reading b once at the rate of stream READ, 18 bytes per clock and SM. With 16 bits arithmetic does
 * not limit it: it needs one mma.m16n8k16 every 14 clocks. e4m3 needs twice as many, and four instructions to
 * widen a pair of elements to bf16: 40% of the issue slots in all.
 *
 * Schedule. Each SM runs one CTA, persistent over units of 16 rows of b. A unit is divided along k into
 * stages of 256 bytes of each row, 4 KiB. 16 warps, the workers, take the stages of all units of the CTA in
 * turn. Every worker is an independent pipeline: it fills a private ring of 2 stages by cp.async, waits for
 * its oldest stage, multiplies and refills it, without barriers other than __syncwarp; 128 KiB are in flight
 * per SM. The ring already fetches the next units while this one is reduced.
 *
 * Sums. A worker that begins a unit with stage s has every 16th stage from there on, and leaves their sum in
 * shared memory as number s of 16. When all have done so, a thread for each result adds up the 16 in their
 * order, which therefore depends only on k, whoever had which stages. There is one barrier for a batch of
 * units: one unit of 16 bits, or two of e4m3, which have half as many stages. A batch has two buffers.
 *
 * Those threads belong to the first workers. If a form has more to do with its sums, it has warps of its own
 * for them, the adders, so that no worker's ring waits.
 *
 * mma takes a as its 16 x 16 operand (rows 8..15 are zero) and 8 rows of b as the other. The k index within
 * a stage is permuted in the same way for both: lane 4 g + t takes pieces t, t + 4, .. of 16 bytes of row g
 * of b, and the same elements of a. If a worker has the same stages in each unit and 32 registers hold their
 * part of a (k from 2056 to 4096 with 16 bits, up to 4096 with e4m3), it stays there. Else a is loaded when
 * needed, and stays in the L1 if it fits (m k 2 bytes in about 90 KiB), which is why the ring is not larger.
 *
 * Programmatic dependent launch: the ring is filled before griddepcontrol.wait; a is read and out written
 * after.
 *
 * Shared memory (dynamic):
 *	0		16 rings of 2 stages of 16 rows of 256 bytes; 16-byte piece i of row r lies at
 *			i ^ 4 (r & 1), so that the reads of eight lanes (two rows, four pieces) are free of
 *			bank conflicts
 *	131072		float [2][units of a batch][16][8 rows of a][16 rows of b], the partial sums
 * One CTA per SM. Figures and optimisation history: NOTES.md.
 */
#ifndef CAIRN_GEMM_SKINNY_CUH
#define CAIRN_GEMM_SKINNY_CUH

#include "primitives/base/launch.h"
#include "primitives/gemm/gemm_weight.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define SKINNY_M	8	/* rows of a, at most */
#define SKINNY_WORKERS	16	/* warps */
#define SKINNY_STAGES	2	/* in a worker's ring */
#define SKINNY_BATCH(weight)	(weight::bytes == 1 ? 2 : 1)	/* units between barriers */
#define SKINNY_LEFT	1	/* barriers; number 0 is __syncthreads() */
#define SKINNY_ADDED	2
#define SKINNY_ROW	256			/* bytes of a row in a stage */
#define SKINNY_PIECES	(SKINNY_ROW / 16)
#define SKINNY_STAGE	(GEMM_UNIT * SKINNY_ROW)
#define SKINNY_K(weight)	(SKINNY_ROW / weight::bytes)	/* elements of k in a stage */
#define SKINNY_ROUND(weight)	(SKINNY_K(weight) * SKINNY_WORKERS)
#define SKINNY_PARTS(weight)	(SKINNY_K(weight) / 32)	/* vectors of a that a lane needs for a stage */
#define SKINNY_EACH(weight)	(2 / weight::bytes)	/* of them for a piece of b */
#define SKINNY_RINGS	(SKINNY_WORKERS * SKINNY_STAGES * SKINNY_STAGE)
#define SKINNY_SUMS	(SKINNY_M * GEMM_UNIT)	/* of a unit */
#define SKINNY_BUFFER	(SKINNY_WORKERS * SKINNY_SUMS)
#define SKINNY_SMEM(weight)	(SKINNY_RINGS + 2 * SKINNY_BATCH(weight) * SKINNY_BUFFER * sizeof(float))
#define SKINNY_RESULTS(form)	(form::paired ? GEMM_HALF : GEMM_UNIT)	/* of a unit, for a row of a */
#define SKINNY_THREADS(form)	((SKINNY_WORKERS + form::adders) * 32)

#define SKINNY		static __device__ __forceinline__

static_assert((SKINNY_WORKERS & (SKINNY_WORKERS - 1)) == 0, "stages of a unit are counted modulo it");

/* Loads what this lane needs of a for a stage: the elements of its pieces of b. */
template <class weight>
SKINNY void skinny_load_a(uint4 x[SKINNY_PARTS(weight)], const struct cairn_gemm_args &g, int stage)
{
	constexpr int each = SKINNY_EACH(weight);
	const int row = threadIdx.x % 32 / 4;
	const int first = stage * SKINNY_K(weight) + threadIdx.x % 4 * 8 * each;
	const uint16_t *a = (const uint16_t *)g.a + (int64_t)row * g.k;

#pragma unroll
	for (int c = 0; c < SKINNY_PARTS(weight); c++) {
		const int at = first + c / each * 32 * each + c % each * 8;

		x[c] = row < g.m && at < g.k ? *(const uint4 *)(a + at) : make_uint4(0, 0, 0, 0);
	}
}

/* A unit and one of its stages. */
struct skinny_place {
	int unit, stage;
};

/* Each load of the warp fetches two rows. Outside the matrix it stores zeros and reads nothing. */
template <class weight, class form>
SKINNY void skinny_fetch(const struct cairn_gemm_args &g, const form &f, struct skinny_place p,
			 int num_units, uint32_t ring, uint64_t policy)
{
	const int lane = threadIdx.x & 31, piece = lane % SKINNY_PIECES, first = lane / SKINNY_PIECES;
	const int at = p.stage * SKINNY_K(weight) + piece * (16 / weight::bytes), row = f.row(p.unit) + first;

	if (p.unit < num_units) {
		const char *src = (const char *)g.b + ((int64_t)row * g.k + at) * weight::bytes;
		/* first is the parity of all rows of this lane, because rows advance by two */
		const uint32_t dst = ring + first * SKINNY_ROW + (piece ^ first << 2) * 16;

#pragma unroll
		for (int i = 0; i < GEMM_UNIT; i += 32 / SKINNY_PIECES) {
			const int skipped = i >= GEMM_HALF ? f.gap(g) - GEMM_HALF : 0;
			const int valid = (form::paired || row + i < g.n) && at < g.k;

			ptx_cp_async_cg_hint(dst + i * SKINNY_ROW,
					     valid ? src + (int64_t)(i + skipped) * g.k * weight::bytes :
						     (const char *)g.b,
					     valid ? 16 : 0, policy);
		}
	}
	ptx_cp_async_commit_group();
}

/* A worker: its ring, the slot that it reads next, and the stage that it fetches next */
struct skinny_worker {
	uint32_t ring;
	int slot, num_units, num_stages;
	struct skinny_place ahead;
};

/* Workers take the stages of all units of a CTA in turn. A unit has at least as many as there are workers. */
SKINNY void skinny_advance(struct skinny_worker *me)
{
	me->ahead.stage += SKINNY_WORKERS;
	if (me->ahead.stage >= me->num_stages) {
		me->ahead.stage -= me->num_stages;
		me->ahead.unit += gridDim.x;
	}
}

/* Sums of a worker: [group of 8 rows of b][chain of mma][element] */
struct skinny_acc {
	float d[2][2][4];
};

/* The scales of a stage: [group of 8 rows of b][block of k] */
struct skinny_scales {
	float of[2][2];
};

template <class weight, class form>
SKINNY void skinny_load_scales(struct skinny_scales *s, const struct cairn_gemm_args &g, const form &f,
			       const weight &w, int unit, int stage)
{
	if constexpr (weight::blocks) {
		const int row = f.row(unit), partner = row + (form::paired ? f.gap(g) : 0);

#pragma unroll
		for (int b = 0; b < 2; b++) {
			s->of[0][b] = w.scale(row, stage * 2 + b);
			s->of[1][b] = w.scale(partner, stage * 2 + b);
		}
	}
}

/* Multiplies the stage at shared address `stage`. */
template <int dtype, class weight>
SKINNY void skinny_multiply(struct skinny_acc *acc, const uint4 *x, const struct skinny_scales &s,
			    uint32_t stage)
{
	constexpr int blocks = weight::blocks ? 2 : 1, pieces = SKINNY_PIECES / 4 / blocks;
	const int lane = threadIdx.x & 31, quad = lane / 4, t = lane & 3;

#pragma unroll
	for (int b = 0; b < blocks; b++) {
		struct skinny_acc part = {};

#pragma unroll
		for (int c = b * pieces; c < (b + 1) * pieces; c++)
#pragma unroll
			for (int i = 0; i < 2; i++)
				weight::template multiply<dtype>(
					weight::blocks ? part.d[i] : acc->d[i], x + c * SKINNY_EACH(weight),
					ptx_ld_shared_v4(stage + (quad + i * 8) * SKINNY_ROW +
							 ((c * 4 + t) ^ (quad & 1) << 2) * 16));
#pragma unroll
		for (int i = 0; weight::blocks && i < 2; i++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				acc->d[i][0][e] += s.of[i][b] * (part.d[i][0][e] + part.d[i][1][e]);
	}
}

/* Returns the buffers for the sums of a CTA's nth batch of units. */
template <class weight> SKINNY float *skinny_buffer(float *sums, int nth)
{
	return sums + (nth & 1) * SKINNY_BATCH(weight) * SKINNY_BUFFER;
}

/* Leaves a worker's sums of a unit in a buffer, as the nth of them. */
SKINNY void skinny_leave(const struct skinny_acc *acc, float *buffer, int nth)
{
	const int lane = threadIdx.x & 31;
	float *to = buffer + nth * SKINNY_SUMS + lane / 4 * GEMM_UNIT + 2 * (lane & 3);

#pragma unroll
	for (int i = 0; i < 2; i++)
		*(float2 *)(to + 8 * i) = make_float2(acc->d[i][0][0] + acc->d[i][1][0],
						      acc->d[i][0][1] + acc->d[i][1][1]);
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
 * A worker multiplies its stages of a unit, which are each 16th from number `first` on, and leaves the sums
 * in the buffer. kept: number of them, and x is their part of a; 0: any number, and a is loaded for each
 */
template <int dtype, int kept, class weight, class form>
SKINNY void skinny_unit(const struct cairn_gemm_args &g, const form &f, const weight &w,
			struct skinny_worker *me, uint4 (*x)[SKINNY_PARTS(weight)], int unit, int first,
			float *buffer)
{
	const uint64_t policy = ptx_createpolicy_evict_first();
	const int end = kept ? kept : (me->num_stages - first + SKINNY_WORKERS - 1) / SKINNY_WORKERS;
	struct skinny_acc acc = {};

#pragma unroll (kept ? kept : 1)
	for (int s = 0; s < end; s++) {
		const int stage = first + s * SKINNY_WORKERS;
		const uint32_t at = me->ring + me->slot * SKINNY_STAGE;
		struct skinny_scales scales;

		if (!kept)
			skinny_load_a<weight>(x[0], g, stage);
		skinny_load_scales(&scales, g, f, w, unit, stage);
		ptx_cp_async_wait_group<SKINNY_STAGES - 1>();
		__syncwarp();
		skinny_multiply<dtype, weight>(&acc, x[kept ? s : 0], scales, at);
		__syncwarp();	/* all lanes have read the stage that is refilled next */
		skinny_fetch<weight>(g, f, me->ahead, me->num_units, at, policy);
		skinny_advance(me);
		me->slot ^= 1;
	}
	skinny_leave(&acc, buffer, first);
}

/*
 * A worker that has left its sums of a batch waits until all workers have left theirs, and until the adders
 * have added those of the batch before, whose buffers are filled next. Adders first wait for the workers,
 * then arrive: else a worker could arrive a second time at a barrier that an adder has not reached once.
 * One barrier of all threads would do, but synccheck reports a barrier at which threads wait in two places,
 * and one loop for workers and adders, with one such place, was 2% slower.
 */
template <class form> SKINNY void skinny_workers_meet(void)
{
	if (form::adders) {
		ptx_bar_arrive(SKINNY_LEFT, SKINNY_THREADS(form));
		ptx_bar_sync(SKINNY_ADDED, SKINNY_THREADS(form));
	} else {
		__syncthreads();
	}
}

template <class form> SKINNY void skinny_adders_meet(void)
{
	ptx_bar_sync(SKINNY_LEFT, SKINNY_THREADS(form));
	ptx_bar_arrive(SKINNY_ADDED, SKINNY_THREADS(form));
}

/* A worker multiplies its stages of all units; without adders, the first workers also write the results. */
template <int dtype, int kept, class weight, class form>
SKINNY void skinny_work(const struct cairn_gemm_args &g, const form &f, const weight &w,
			struct skinny_worker *me, float *sums)
{
	constexpr int batch = SKINNY_BATCH(weight), results = SKINNY_M * SKINNY_RESULTS(form);
	const int warp = threadIdx.x / 32;
	uint4 x[kept ? kept : 1][SKINNY_PARTS(weight)];
	int first = warp;		/* stage of this worker in the next unit */

#pragma unroll
	for (int s = 0; s < kept; s++)
		skinny_load_a<weight>(x[s], g, warp + s * SKINNY_WORKERS);
	for (int unit = blockIdx.x, nth = 0; unit < me->num_units; unit += batch * gridDim.x, nth++) {
		float *buffer = skinny_buffer<weight>(sums, nth);

#pragma unroll 1
		for (int u = 0; u < batch; u++) {
			if (unit + u * (int)gridDim.x >= me->num_units)
				break;
			skinny_unit<dtype, kept>(g, f, w, me, x, unit + u * gridDim.x, first,
						 buffer + u * SKINNY_BUFFER);
			first = (first - me->num_stages) & (SKINNY_WORKERS - 1);
		}
		skinny_workers_meet<form>();
		if (form::adders == 0 && threadIdx.x < batch * results) {
			const int u = threadIdx.x / results, its = unit + u * gridDim.x;

			if (its < me->num_units)
				skinny_write<dtype>(g, f, {}, buffer + u * SKINNY_BUFFER, its,
						    threadIdx.x % results);
		}
	}
}

/* An adder's thread computes a result of each unit. */
template <int dtype, class weight, class form>
SKINNY void skinny_add(const struct cairn_gemm_args &g, const form &f, int num_units, float *sums)
{
	const int thread = threadIdx.x - SKINNY_WORKERS * 32;
	const int i = thread / SKINNY_RESULTS(form), r = thread % SKINNY_RESULTS(form);
	const typename form::rows rows = f.find(g);

	static_assert(form::adders == 2 && SKINNY_M * SKINNY_RESULTS(form) == 64 && SKINNY_BATCH(weight) == 1,
		      "a thread has one result");
	for (int unit = blockIdx.x, nth = 0; unit < num_units; unit += gridDim.x, nth++) {
		const typename form::ready ready = f.prepare(g, rows, i, unit, r);

		skinny_adders_meet<form>();
		skinny_write<dtype>(g, f, ready, skinny_buffer<weight>(sums, nth), unit, thread);
	}
}

template <int dtype, int kept, class weight, class form>
__global__ void __launch_bounds__(SKINNY_THREADS(form), 1)
gemm_skinny_kernel(const __grid_constant__ struct cairn_gemm_args g, const form f, const weight w)
{
	extern __shared__ __align__(1024) unsigned char s_mem[];
	const int warp = threadIdx.x / 32;
	struct skinny_worker me;

	me.num_units = (g.n + GEMM_UNIT - 1) / GEMM_UNIT;
	me.num_stages = kept ? kept * SKINNY_WORKERS :
			max(SKINNY_WORKERS, (g.k + SKINNY_K(weight) - 1) / SKINNY_K(weight));
	me.ring = ptx_smem(s_mem) + warp * SKINNY_STAGES * SKINNY_STAGE;
	me.slot = 0;
	me.ahead = { (int)blockIdx.x, warp };
	ptx_griddepcontrol_launch_dependents();
	for (int i = 0; i < SKINNY_STAGES && warp < SKINNY_WORKERS; i++) {
		skinny_fetch<weight>(g, f, me.ahead, me.num_units, me.ring + i * SKINNY_STAGE,
				     ptx_createpolicy_evict_first());
		skinny_advance(&me);
	}
	ptx_griddepcontrol_wait();
	if (warp < SKINNY_WORKERS)
		skinny_work<dtype, kept>(g, f, w, &me, (float *)(s_mem + SKINNY_RINGS));
	else if constexpr (form::adders > 0)
		skinny_add<dtype, weight>(g, f, me.num_units, (float *)(s_mem + SKINNY_RINGS));
}

template <int kept, class weight, class form> static const void *skinny_kernel(int dtype)
{
	return dtype == CAIRN_BF16 ? (const void *)gemm_skinny_kernel<CAIRN_BF16, kept, weight, form> :
	       (const void *)gemm_skinny_kernel<CAIRN_F16, kept, weight, form>;
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
template <class weight, class form>
static int gemm_skinny(const struct cairn_gemm_args *g, const form &f, const weight &w, void *stream)
{
	/* stages whose part of a fits 32 registers of each lane; adders leave too few registers */
	constexpr int most = form::adders ? 0 : 8 / SKINNY_PARTS(weight);
	const int units = (g->n + GEMM_UNIT - 1) / GEMM_UNIT, num_sms = cairn_sms_of(g->sms);
	const int rounds = (g->k + SKINNY_ROUND(weight) - 1) / SKINNY_ROUND(weight);
	const void *kernel = rounds == most ? skinny_kernel<most, weight, form>(g->dtype) :
			     skinny_kernel<0, weight, form>(g->dtype);
	struct cairn_launch launch = { 0 };
	void *params[] = { (void *)g, (void *)&f, (void *)&w };

	if (num_sms < 0)
		return num_sms;
	launch.grid[0] = units < num_sms ? units : num_sms;
	launch.block[0] = SKINNY_THREADS(form);
	launch.smem = SKINNY_SMEM(weight);
	launch.pdl = !g->sms;	/* a dependent launch would take SMs that are not this call's */
	launch.stream = stream;
	return cairn_launch(kernel, &launch, params);
}

#endif
