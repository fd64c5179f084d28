/* SPDX-License-Identifier: Apache-2.0 */
/* moe_body - what each kind of warp of moe does, as a kernel of its own or linked into another kernel */
#ifndef CAIRN_MOE_BODY_CUH
#define CAIRN_MOE_BODY_CUH

#include "fused/moe/moe_down.cuh"
#include "fused/moe/moe_route.cuh"

#define MOE_VECS_AHEAD	4	/* 16-byte vectors of x that a thread has in flight */

/* ---- the norm and the router ---- */

/*
 * Returns the address of columns 32 at .. 32 at + 31 of request `row`'s n, for lane t = 0: 16 bytes. Those of
 * lane t are 16 t bytes further on.
 */
MOE uint32_t n_at(const struct moe_args &g, int row, int at)
{
	return ptx_smem(moe_mem) + g.at_act + row * g.a.hidden * 2 + (at ^ (row & 1)) * 64;
}

/*
 * Returns the address of the first pair of vector v (8 elements); n_pair() returns the offset of pair j. The
 * order is that of LL words (moe.cuh).
 */
template <int fp8>
MOE uint32_t n_vec(const struct moe_args &g, int row, int v)
{
	return n_at(g, row, v / 4) + (v / 2 % 2) * 8 + v % 2 * (fp8 ? 32 : 4);
}

template <int fp8>
MOE uint32_t n_pair(int j)
{
	return fp8 ? j / 2 * 16 + j % 2 * 4 : 16 * j;
}

/* Returns the indices of the two elements of pair j. */
template <int dtype, int fp8>
MOE int2 n_of_pair(int j)
{
	return fp8 && dtype != CAIRN_F16 ? make_int2(j / 2 * 4 + j % 2, j / 2 * 4 + j % 2 + 2) :
					   make_int2(2 * j, 2 * j + 1);
}

MOE uint4 vec_at(const void *p, int v)
{
	return __ldg((const uint4 *)p + v);
}

/* Operands that do not depend on the preceding kernel, loaded before it ends */
struct moe_ahead {
	uint4 norm, router;
};

MOE struct moe_ahead look_ahead(const struct moe_args &g)
{
	struct moe_ahead w = {};

	if ((int)threadIdx.x < g.a.hidden / 8) {
		w.norm = vec_at(g.a.norm_weight, threadIdx.x);
		if ((int)blockIdx.x < g.a.num_experts)
			w.router = vec_at((const char *)g.a.w_router + (int64_t)blockIdx.x * g.a.hidden * 2,
					  threadIdx.x);
	}
	return w;
}

/*
 * Adds a thread's part of a sum for request b. The sum does not depend on the batch; sum_of() returns it
 * after a barrier.
 */
MOE void put_part(int which, int b, float part)
{
	part = row_warp_sum(part);
	if (threadIdx.x % 32 == 0)
		moe_small()->red[which][b][threadIdx.x / 32] = part;
}

MOE float sum_of(int which, int b)
{
	float sum = 0;

#pragma unroll
	for (int w = 0; w < MOE_WARPS; w++)
		sum += moe_small()->red[which][b][w];
	return sum;
}

/* Writes n = rmsnorm of all rows to shared memory; each thread later reads what it wrote itself. */
template <int dtype, int fp8 = 0>
MOE void make_n(const struct moe_args &g, const struct moe_ahead &ahead)
{
	const uint4 *x = (const uint4 *)g.a.x;
	const int vecs = g.a.hidden / 8, per_row = (vecs + MOE_WORKERS - 1) / MOE_WORKERS, batch = g.a.batch;
	int load_b = 0, load_v = threadIdx.x;
	float f[2], w[8];

	/* vectors of all rows, one row after the other; vectors past the end of a row are skipped */
#pragma unroll 1
	for (int i = 0; i < batch * per_row; i += MOE_VECS_AHEAD) {
		int b = load_b, v = load_v;
		uint4 p[MOE_VECS_AHEAD] = {};

#pragma unroll
		for (int j = 0; j < MOE_VECS_AHEAD; j++) {
			if (load_b < batch && load_v < vecs)
				p[j] = __ldcg(x + (int64_t)load_b * vecs + load_v);
			load_v += MOE_WORKERS;
			if (load_v >= per_row * MOE_WORKERS) {
				load_v = threadIdx.x;
				load_b++;
			}
		}
#pragma unroll
		for (int j = 0; j < MOE_VECS_AHEAD; j++) {
			if (b < batch && v < vecs) {
				if (fp8) {
					fp8_reorder<dtype>(&p[j].x, &p[j].y);
					fp8_reorder<dtype>(&p[j].z, &p[j].w);
				}
				ptx_st_shared_b32(n_vec<fp8>(g, b, v), p[j].x);
				ptx_st_shared_b32(n_vec<fp8>(g, b, v) + n_pair<fp8>(1), p[j].y);
				ptx_st_shared_b32(n_vec<fp8>(g, b, v) + n_pair<fp8>(2), p[j].z);
				ptx_st_shared_b32(n_vec<fp8>(g, b, v) + n_pair<fp8>(3), p[j].w);
			}
			v += MOE_WORKERS;
			if (v >= per_row * MOE_WORKERS) {
				v = threadIdx.x;
				b++;
			}
		}
	}
#pragma unroll 1
	for (int b = 0; b < batch; b++) {
		float sum = 0;

#pragma unroll 1
		for (int v = threadIdx.x; v < vecs; v += MOE_WORKERS)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				row_unpack2<dtype>(ptx_ld_shared_b32(n_vec<fp8>(g, b, v) + n_pair<fp8>(j)),
						   f);
				sum += f[0] * f[0] + f[1] * f[1];
			}
		put_part(0, b, sum);
	}
	moe_sync();
#pragma unroll 1
	for (int b = 0; b < batch; b++) {
		const float scale = rsqrtf(sum_of(0, b) / (float)g.a.hidden + g.a.eps);

#pragma unroll 1
		for (int v = threadIdx.x; v < vecs; v += MOE_WORKERS) {
			const uint32_t vec = n_vec<fp8>(g, b, v);

			row_unpack<dtype>(v < MOE_WORKERS ? ahead.norm : vec_at(g.a.norm_weight, v), w);
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const uint32_t at = vec + n_pair<fp8>(j);

				const int2 i = n_of_pair<dtype, fp8>(j);

				row_unpack2<dtype>(ptx_ld_shared_b32(at), f);
				ptx_st_shared_b32(at, row_pack2<dtype>(f[0] * scale * w[i.x],
								       f[1] * scale * w[i.y]));
			}
		}
	}
}

/* Computes the logits of this CTA's experts. Ends with a barrier: n is complete. */
template <int dtype, int fp8>
MOE void run_router(const struct moe_args &g, const struct moe_ahead &ahead, uint32_t number)
{
	const int vecs = g.a.hidden / 8, batch = g.a.batch;
	int which = 1;

#pragma unroll 1
	for (int e = blockIdx.x; e < g.a.num_experts; e += gridDim.x, which ^= 1) {
		const char *row = (const char *)g.a.w_router + (int64_t)e * g.a.hidden * 2;

#pragma unroll 1
		for (int b = 0; b < batch; b++) {
			float sum = 0, f[2], w[8];

#pragma unroll 1
			for (int v = threadIdx.x; v < vecs; v += MOE_WORKERS) {
				row_unpack<dtype>(e == (int)blockIdx.x && v < MOE_WORKERS ?
						  ahead.router : vec_at(row, v), w);
#pragma unroll
				for (int j = 0; j < 4; j++) {
					const uint32_t at = n_vec<fp8>(g, b, v) + n_pair<fp8>(j);

					const int2 i = n_of_pair<dtype, fp8>(j);

					row_unpack2<dtype>(ptx_ld_shared_b32(at), f);
					sum += f[0] * w[i.x] + f[1] * w[i.y];
				}
			}
			put_part(which, b, sum);
		}
		moe_sync();
		if ((int)threadIdx.x < batch)
			ptx_st_relaxed_gpu_u64(g.logits + (int64_t)threadIdx.x * g.a.num_experts + e,
					       (uint64_t)number << 32 |
					       __float_as_uint(sum_of(which, threadIdx.x)));
	}
	moe_sync();
}

/* ---- gates and ups ---- */

/*
 * Returns the index of the LL word that holds an even element of a request's activations and the next
 * element.
 */
template <int fp8>
MOE int ll_at(int element)
{
	return fp8 ? element / 2 : element / 16 * 8 + element % 8 / 2 * 2 + element % 16 / 8;
}

/* Multiplies 16 rows by n, over this warp's columns. */
template <int dtype>
MOE void multiply_n(const struct moe_args &g, struct ring &r, float (&total)[4])
{
	const int quad = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	float sum[2][2][4] = {};

#pragma unroll 1
	for (int first = threadIdx.x / 32 * MOE_STAGE_K; first < g.a.hidden;
	     first += 2 * MOE_WARPS * MOE_STAGE_K) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int from = first + i * MOE_WARPS * MOE_STAGE_K;
			uint4 x[4];

			if (from >= g.a.hidden)
				break;
#pragma unroll
			for (int j = 0; j < 4; j++)
				x[j] = quad < g.a.batch && from + 32 * j < g.a.hidden ?
				       ptx_ld_shared_v4(n_at(g, quad, from / 32 + j) + t * 16) :
				       make_uint4(0, 0, 0, 0);
			multiply<dtype>(ring_wait(r), x, g.a.hidden - from, sum[i]);
			ring_release(g, r);
		}
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
		total[j] = sum[0][0][j] + sum[0][1][j] + (sum[1][0][j] + sum[1][1][j]);
}

/* Returns element `at` of an expert's biases, of which there are n for each expert; 0 without biases. */
template <int dtype>
MOE float bias_of(const void *bias, int expert, int n, int at)
{
	return bias ? row_element<dtype>((const uint16_t *)bias + (int64_t)expert * n + at, 0) : 0;
}

/*
 * Computes up to 8 pairs of a gate and an up, from `row` on. pick: NULL for the shared experts. between: NULL
 * for silu(gate) * up without biases.
 */
template <int dtype, bool plain>
MOE void gate_up(const struct moe_args &g, struct ring &r, struct moe_sums &s, int row, int count,
		 const struct moe_pick *pick, const struct cairn_moe_between &between, uint32_t number)
{
	const int element = s.turn * 32 + (int)threadIdx.x % 32, b = element / MOE_STAGE_ROWS;
	const int at = element % MOE_STAGE_ROWS;
	float sum[4], total;

	multiply_n<dtype>(g, r, sum);
	total = sum_up(g, s, sum, element);
	if (s.turn < sum_writers(g)) {
		const uint32_t slot = pick ? pick->slots >> 4 * b & 15 : 0;
		float up, v, next;

		if (!plain && pick && at % 8 < count)	/* at: a gate, or from 8 on its up */
			total += bias_of<dtype>(between.gate_up_bias, pick->expert, 2 * g.a.intermediate,
						row + at % 8 + at / 8 * g.a.intermediate);
		up = __shfl_down_sync(~0u, total, 8);
		v = plain ? total / (1 + expf(-total)) * up : moe_activated(between, total, up);
		if (pick && b < g.a.batch)
			v *= moe_small()->weight[b][slot];
		next = __shfl_down_sync(~0u, v, 1);
		if (b < g.a.batch && at < count && at % 2 == 0 && (!pick || pick->mask >> b & 1)) {
			uint64_t *to = !pick ? g.shared + (int64_t)b * (g.a.shared_intermediate / 2) :
				       g.routed + (int64_t)(b * g.a.experts_per_token + slot) *
						  (g.a.intermediate / 2);

			ptx_st_relaxed_gpu_u64(to + ll_at<0>(row + at),
					       (uint64_t)number << 32 | row_pack2<dtype>(v, next));
		}
	}
	next_turn(g, s);
}

/* ---- the body ---- */

#define MOE_MBARS	(MOE_WARPS * MOE_MAX_STAGES * 2 + 1)

/*
 * Initialises the mbarriers with `warps` warps; a CTA barrier must follow. Only one lane of each warp does
 * it: the instruction takes its address from a uniform register, so lanes would run one after the other
 * anyway.
 */
MOE void moe_init(int thread, int warps)
{
	const int warp = __shfl_sync(~0u, thread / 32, 0);

#pragma unroll 1
	for (int i = warp; i < MOE_MBARS; i += warps) {
		const uint32_t count = i % 2 && i < MOE_MBARS - 1 ? MOE_RELEASERS : 32;

		if (thread % 32 == 0)
			ptx_mbarrier_init(ptx_smem(moe_small()->mbar) + i * 8, count);
	}
}

template <int dtype, int linked, bool plain = true>
MOE void moe_worker(const struct moe_args &g, const struct moe_ahead &ahead, const struct body_link &link,
		    const struct cairn_moe_between &between = {})
{
	struct ring r = ring_of(g, threadIdx.x / 32);
	struct moe_sums s = { 0, (int)threadIdx.x / 32 };
	int2 cta_rows = linked ? make_int2(0, 0) : share_of(g.a.hidden);
	struct moe_slices slices = {};
	/* initialised, so that its registers do not stay live from body to body */
	struct moe_rows_ahead rows = {};
	uint32_t number = 0;

	body_wait<linked>(link);
	if (!linked)
		number = __ldcg(g.calls + blockIdx.x) + 1;
	make_n<dtype>(g, ahead);
	run_router<dtype, 0>(g, ahead, body_number<linked>(link, number));
#pragma unroll 1
	for (int routed = 0; routed < 2; routed++) {
		const int intermediate = routed ? g.a.intermediate : g.a.shared_intermediate;
		struct moe_units units;

		if (routed) {
			ptx_mbarrier_wait(ptx_smem(&moe_small()->routed), 0);
			slices = slices_of(g);
		}
		units = routed ? moe_small()->units : g.units;
#pragma unroll 1
		for (int i = 0; i < units.rounds; i++) {
			if (routed && i == units.rounds - 1)	/* s is complete by now */
				request_rows(g, slices, 0, rows);
#pragma unroll 1
			for (int2 p = unit_pairs(units, i); p.x < p.y;) {
				struct moe_unit u = unit_at(p.x, p.y, intermediate);

				gate_up<dtype, plain>(g, r, s, u.row, u.count,
						      routed ? &moe_small()->pick[u.pick] : NULL, between,
						      body_number<linked>(link, number));
				p.x += u.count;
			}
		}
	}
	if (!linked && threadIdx.x == 0)
		g.calls[blockIdx.x] = number;	/* the route warps have read it */
	if (linked)		/* computed here, because registers are scarce */
		cta_rows = share_of(g.a.hidden);
#pragma unroll 1
	for (int row = cta_rows.x; row < cta_rows.y; row += MOE_STAGE_ROWS)
		down<dtype, plain>(g, r, s, slices, rows, row, cta_rows.y - row, between.down_bias,
				   body_number<linked>(link, number));
}

MOE void start_loader(const struct moe_args &g, struct loader &l, int most)
{
	l.ring = l.oldest = ring_of(g, (int)threadIdx.x / 32 - MOE_WARPS);
	l.in_flight = 0;
	l.most = most;
	l.policy = ptx_createpolicy_evict_first();
}

MOE void end_loader(void)
{
	ptx_cp_async_commit_group();
	ptx_cp_async_wait_group<0>();
}

MOE void moe_loader(const struct moe_args &g)
{
	struct loader l;

	start_loader(g, l, MOE_IN_FLIGHT_FIRST);
	load_gates_and_ups(g, l, 0);
	ptx_mbarrier_wait(ptx_smem(&moe_small()->routed), 0);
	l.most = MOE_IN_FLIGHT;
	load_gates_and_ups(g, l, 1);
	load_downs(g, l);
	end_loader();
}

/* ---- the head of a model: rows of one matrix with n, in fp32 ---- */

template <int dtype, int linked>
MOE void head_worker(const struct moe_args &g, float *logits, int vocab, const struct body_link &link)
{
	struct ring r = ring_of(g, threadIdx.x / 32);
	struct moe_sums s = { 0, (int)threadIdx.x / 32 };
	const int2 rows = share_of(vocab);
	struct moe_ahead ahead = {};

	if ((int)threadIdx.x < g.a.hidden / 8)
		ahead.norm = vec_at(g.a.norm_weight, threadIdx.x);
	body_wait<linked>(link);
	make_n<dtype>(g, ahead);
	moe_sync();
#pragma unroll 1
	for (int row = rows.x; row < rows.y; row += MOE_STAGE_ROWS) {
		const int element = s.turn * 32 + (int)threadIdx.x % 32, b = element / MOE_STAGE_ROWS;
		const int at = row + element % MOE_STAGE_ROWS;
		float sum[4], total;

		multiply_n<dtype>(g, r, sum);
		total = sum_up(g, s, sum, element);
		if (s.turn < sum_writers(g) && b < g.a.batch && at < rows.y)
			logits[(int64_t)b * vocab + at] = total;
		next_turn(g, s);
	}
}

MOE void head_loader(const struct moe_args &g, const void *w, int vocab)
{
	const int2 rows = share_of(vocab);
	struct loader l;

	start_loader(g, l, MOE_IN_FLIGHT);
#pragma unroll 1
	for (int row = rows.x; row < rows.y; row += MOE_STAGE_ROWS)
		load_rows_of(g, l, w, row, rows.y - row);
	end_loader();
}

#endif
