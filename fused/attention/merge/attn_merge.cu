/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_merge.cu - merges states on the GPU; a lane holds 16 bytes of each state of one row and head
 *
 * A pair is one row and head. It gets 8 to 128 lanes, the power of two that covers head_dim. Up to 32 lanes
 * are part of one warp; more lanes are several warps, each of which computes the weights for itself. No lane
 * reads an element of o that another lane writes, so out may be state 0.
 *
 *   1  Independent loads are issued together: counts, lse (one state a lane), and o of the first `ahead`
 *      states.
 *   2  The lanes find max by shuffles and compute the weights. They list the states with weight, in order, in
 *      shared memory; a ballot gives the place of a state in the list.
 *   3  Listed states below `ahead` are added from registers; the others are loaded, `depth` at a time, and
 *      added in the order of the list. States without weight are not in the list and are not read.
 *   4  out is multiplied by 1 / sum of weights and rounded once; one lane writes lse_out.
 *
 * A sink counts in max, and its weight is added to the sum of weights last. With own keys, the lanes also
 * load 16 bytes each of q, k and v in step 1; the products of q and k are added in each lane by fused
 * multiply-adds and across the lanes by exchanges with lane ^ n, so that all lanes get the same bits. The own
 * key's state is added behind the listed ones. A pair then has 32 lanes at most, and `depth` is always small.
 *
 * All sums run over the states in increasing order, so the bits depend neither on the lanes nor on `ahead`.
 *
 * Loading ahead overlaps the latency of lse with that of o. In a small grid, which is bound by latency,
 * `ahead` is `depth`. In a large grid, which is bound by bandwidth, it is 2, because states without weight
 * would be loaded for nothing.
 *
 * shared memory   a list per pair and warp: (num_states | 1) x 8 bytes; the odd length keeps the lists of a
 *                 warp on different banks. At most 8.1 KiB.
 * barriers        one __syncthreads, only if lse_out is lse and a pair has several warps
 * registers       depth 4 (num_states up to 4): 48, 40 warps an SM; with own keys 64, 32 warps; depth 16:
 *                 128, 16 warps an SM. With 2 and 16 states of 512 bytes a warp, 40 and 128 KiB are in
 *                 flight; hiding the latency takes 40.
 *
 * Floor: the bytes of out and of the states with weight, at 4.5 TB/s, plus 0.8 us for the launch. 64 rows of
 * 32 heads of 128 from f32 to bf16 take 0.6 us for 2 states, 2.0 us for 8, 7.6 us for 32; 4096 rows of 2
 * states take 37 us. With own keys, q, k and v are read, too: 128 rows of 32 heads (8 of k and v) of 128 in
 * bf16 with one state take 0.8 us.
 */
#include "fused/attention/merge/attn_merge.h"

#include <math_constants.h>

#include "fused/attention/base/attn_softmax.cuh"
#include "primitives/base/launch.h"
#include "primitives/rows/row.cuh"

#define THREADS		128
#define FEW		4	/* the small depth: up to this num_states, and with q */
#define MANY		16
#define LOG2E		1.44269504f

/* A listed state. */
struct term {
	float weight;
	int32_t state;
};

template <int dtype> ROW void add_state(float *sum, uint4 v, float weight)
{
	float x[row_vec(dtype)];

	row_unpack<dtype>(v, x);
#pragma unroll
	for (int j = 0; j < row_vec(dtype); j++)
		sum[j] = fmaf(weight, x[j], sum[j]);
}

/* Returns the sink of a head, or -INFINITY. */
ROW float sink_of(const struct cairn_attn_merge_args &a, uint32_t head)
{
	return a.sink ? __ldg(a.sink + head) : -CUDART_INF_F;
}

/*
 * Returns the lse of an own key to all lanes of its pair. q and k: 16 bytes of each lane, 0 in idle lanes.
 * a.sm_scale: with a softcap, twice log2(e) sm_scale / softcap.
 */
template <int dtype>
ROW float own_lse(const struct cairn_attn_merge_args &a, uint4 q, uint4 k, int width)
{
	float x[row_vec(dtype)], y[row_vec(dtype)], sum = 0;

	row_unpack<dtype>(q, x);
	row_unpack<dtype>(k, y);
#pragma unroll
	for (int j = 0; j < row_vec(dtype); j++)
		sum = fmaf(x[j], y[j], sum);
#pragma unroll
	for (int step = 16; step; step /= 2)
		if (step < width)
			sum += __shfl_xor_sync(0xffffffffu, sum, step);
	return a.softcap > 0 ? a.softcap * attn_cap(sum, a.sm_scale) : sum * a.sm_scale;
}

/*
 * Lists the states with weight among the first `used` and returns their number to all lanes of the pair in
 * this warp. lse points to the lse of state 0; it is not read if `used` is negative. With `own`, sets *own_at
 * to the lse of the own key while the lse of states are on their way. If one of these lse or the sink is NaN
 * or +INFINITY, *max becomes NaN and no state is listed.
 */
template <int dtype, int own>
ROW int list_states(struct term *list, const struct cairn_attn_merge_args &a, const float *lse, float sink,
		    int used, int width, float *max, uint4 q, uint4 k, float *own_at)
{
	const int sub = threadIdx.x & (width - 1), first = threadIdx.x % 32 - sub;
	const uint32_t part = (0xffffffffu >> (32 - width)) << first;
	const uint32_t below = part & ((1u << (first + sub)) - 1);
	float top = sink;
	int bad = !(sink < CUDART_INF_F), listed = 0;

	for (int s0 = sub; s0 - sub < a.num_states; s0 += 4 * width) {
		float e[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			int s = s0 + i * width;

			e[i] = used >= 0 && s < a.num_states ? lse[s * a.lse_stride] : -CUDART_INF_F;
		}
		if (own && s0 == sub) {
			*own_at = own_lse<dtype>(a, q, k, width);
			bad |= !(*own_at < CUDART_INF_F);
			top = fmaxf(top, *own_at);
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int s = s0 + i * width;

			e[i] = s < used ? e[i] : -CUDART_INF_F;
			if (s < a.num_states)
				list[s].weight = e[i];
			bad |= !(e[i] < CUDART_INF_F);
			top = fmaxf(top, e[i]);
		}
	}
	for (int step = width / 2; step; step /= 2)
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
	if (__ballot_sync(0xffffffffu, bad) & part)
		top = CUDART_NAN_F;
	/* entries only move towards the start of the list, where the old entries have already been read */
	for (int s = sub; s - sub < a.num_states; s += width) {
		float d = s < a.num_states ? list[s].weight - top : -CUDART_INF_F;
		bool keep = d >= CAIRN_ATTN_MERGE_CUTOFF;	/* false for NaN: -INFINITY - -INFINITY */
		uint32_t kept = __ballot_sync(0xffffffffu, keep);

		__syncwarp();
		if (keep)
			list[listed + __popc(kept & below)] = { ptx_ex2_approx_ftz(d * LOG2E), s };
		listed += __popc(kept & part);
	}
	__syncwarp();
	*max = top;
	return listed;
}

/* Writes the elements of one lane: 16 bytes of o, widened or narrowed. */
template <int vec> ROW void write_out(void *out, int dtype, int64_t at, const float *f)
{
	if (dtype == CAIRN_F32) {
#pragma unroll
		for (int k = 0; k < vec; k += 4)
			*(uint4 *)((float *)out + at + k) = row_pack<CAIRN_F32>(f + k);
		return;
	}
#pragma unroll
	for (int k = 0; k < vec; k += 4) {
		uint2 v;

		v.x = dtype == CAIRN_F16 ? row_pack2<CAIRN_F16>(f[k], f[k + 1]) :
					   row_pack2<CAIRN_BF16>(f[k], f[k + 1]);
		v.y = dtype == CAIRN_F16 ? row_pack2<CAIRN_F16>(f[k + 2], f[k + 3]) :
					   row_pack2<CAIRN_BF16>(f[k + 2], f[k + 3]);
		*(uint2 *)((uint16_t *)out + at + k) = v;
	}
}

/*
 * a has the strides of o, q, k and v filled in, in 16-byte vectors. A pair has 1 << shift lanes. own: there
 * are own keys; then a.num_kv_heads is the number of heads that share one of k, and own_lse() says what
 * a.sm_scale is.
 */
template <int dtype, int depth, int own>
__global__ void __launch_bounds__(THREADS, own ? 8 : depth == FEW ? 10 : 4)
attn_merge_kernel(const __grid_constant__ struct cairn_attn_merge_args a, int shift, int ahead)
{
	extern __shared__ struct term s_lists[];
	constexpr int vec = row_vec(dtype);
	const int lanes = 1 << shift, lane = threadIdx.x & (lanes - 1), width = min(lanes, 32);
	const uint32_t pair = blockIdx.x * (THREADS >> shift) + (threadIdx.x >> shift);
	const uint32_t row = pair / a.num_heads, head = pair - row * a.num_heads;
	const bool live = row < a.rows, has = live && lane * vec < a.head_dim;
	const uint4 *o = (const uint4 *)a.o + row * a.row_stride + head * a.head_stride + lane;
	struct term *list = s_lists + (threadIdx.x >> min(shift, 5)) * (a.num_states | 1);
	int used = live ? a.num_states : -1, listed, at = 0;
	const uint32_t kv_lane = own ? head / a.num_kv_heads * (a.head_dim / vec) + lane : 0;
	float sum[vec], total = 0, top, scale, own_at = -CUDART_INF_F;
	uint4 v[depth], q = make_uint4(0, 0, 0, 0), k_own = q, v_own = q;
	bool own_adds;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
#pragma unroll
	for (int k = 0; k < depth; k++) {
		v[k] = make_uint4(0, 0, 0, 0);
		if (has && k < ahead)
			v[k] = __ldcg(o + k * a.state_stride);
	}
	if (own && has) {
		q = __ldcg((const uint4 *)a.q + row * a.q_stride + head * (a.head_dim / vec) + lane);
		k_own = __ldca((const uint4 *)a.k + row * a.kv_stride + kv_lane);
		v_own = __ldca((const uint4 *)a.v + row * a.kv_stride + kv_lane);
	}
	if (live && a.counts)
		used = max(0, min(a.counts[row], used));
	listed = list_states<dtype, own>(list, a, a.lse + pair, sink_of(a, head), used, width, &top, q, k_own,
					 &own_at);
	own_adds = own && own_at - top >= CAIRN_ATTN_MERGE_CUTOFF;	/* false for NaN */
	/* x + -0 is x for every x, so a state that alone has weight keeps all its bits */
#pragma unroll
	for (int j = 0; j < vec; j++)
		sum[j] = listed || own_adds ? -0.0f : isnan(top) ? top : 0;
#pragma unroll
	for (int k = 0; k < depth; k++) {
		if (k < ahead && at < listed && list[at].state == k) {
			total += list[at].weight;
			add_state<dtype>(sum, v[k], list[at].weight);
			at++;
		}
	}
	for (; at < listed; at += depth) {
		int state[depth];	/* read before the loads of o, which are volatile */

#pragma unroll
		for (int k = 0; k < depth; k++)
			state[k] = list[min(at + k, listed - 1)].state;
#pragma unroll
		for (int k = 0; k < depth; k++)
			if (has && at + k < listed)
				v[k] = __ldcg(o + state[k] * a.state_stride);
#pragma unroll
		for (int k = 0; k < depth; k++) {
			if (at + k < listed) {
				total += list[at + k].weight;
				add_state<dtype>(sum, v[k], list[at + k].weight);
			}
		}
	}
	if (own_adds) {
		float weight = ptx_ex2_approx_ftz((own_at - top) * LOG2E);

		total += weight;
		add_state<dtype>(sum, v_own, weight);
	}
	if (sink_of(a, head) - top >= CAIRN_ATTN_MERGE_CUTOFF)	/* false for NaN */
		total += ptx_ex2_approx_ftz((sink_of(a, head) - top) * LOG2E);
	scale = total > 0 ? 1 / total : 1;
#pragma unroll
	for (int j = 0; j < vec; j++)
		sum[j] *= scale;
	if (has)
		write_out<vec>(a.out, a.out_dtype, (int64_t)pair * a.head_dim + lane * vec, sum);
	if (lanes > 32 && a.lse_out == a.lse)
		__syncthreads();	/* the other warps of the pair have read lse */
	if (live && lane == 0 && a.lse_out)
		a.lse_out[pair] = total > 0 ? top + logf(total) : isnan(top) ? top : -CUDART_INF_F;
}

template <int depth> static const void *kernel_of(int dtype)
{
	switch (dtype) {
	case CAIRN_F32:
		return (const void *)attn_merge_kernel<CAIRN_F32, depth, 0>;
	case CAIRN_F16:
		return (const void *)attn_merge_kernel<CAIRN_F16, depth, 0>;
	default:
		return (const void *)attn_merge_kernel<CAIRN_BF16, depth, 0>;
	}
}

static const void *own_kernel_of(int dtype)
{
	return dtype == CAIRN_F16 ? (const void *)attn_merge_kernel<CAIRN_F16, FEW, 1> :
				    (const void *)attn_merge_kernel<CAIRN_BF16, FEW, 1>;
}

/*
 * Converts the members that describe own keys to what the kernel expects: strides in 16-byte vectors, the
 * number of query heads per KV head in num_kv_heads and, with a softcap, the factor for attn_cap() in
 * sm_scale.
 */
static void prepare_own(struct cairn_attn_merge_args *a, int vec)
{
	a->q_stride /= vec;
	a->kv_stride /= vec;
	a->num_kv_heads = a->num_heads / a->num_kv_heads;
	if (a->softcap > 0)
		a->sm_scale = 2 * ATTN_LOG2E * a->sm_scale / a->softcap;
}

extern "C" int cairn_attn_merge(const struct cairn_attn_merge_args *args, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	struct cairn_attn_merge_args a;
	int shift = 3, sms, ahead, depth, vec;
	void *params[] = { &a, &shift, &ahead };
	uint32_t pairs;

	CAIRN_TRY(cairn_attn_merge_check(args));
	if (args->rows == 0)
		return 0;
	a = cairn_attn_merge_strides(args);
	vec = row_vec(a.dtype);
	a.state_stride /= vec;
	a.row_stride /= vec;
	a.head_stride /= vec;
	if (a.q)
		prepare_own(&a, vec);
	while ((vec << shift) < a.head_dim)
		shift++;
	pairs = (uint32_t)a.rows * a.num_heads;
	l.grid[0] = (pairs + (THREADS >> shift) - 1) / (THREADS >> shift);
	l.smem = sizeof(struct term) * (a.num_states | 1) * (THREADS >> (shift < 5 ? shift : 5));
	sms = cairn_num_sms();
	if (sms < 0)
		return sms;
	depth = a.q || a.num_states <= FEW ? FEW : MANY;
	ahead = l.grid[0] <= 4u * sms ? depth : 2;	/* four CTAs of any depth fit an SM */
	ahead = ahead < a.num_states ? ahead : a.num_states;
	return cairn_launch(a.q ? own_kernel_of(a.dtype) : depth == FEW ? kernel_of<FEW>(a.dtype) :
			    kernel_of<MANY>(a.dtype), &l, params);
}
