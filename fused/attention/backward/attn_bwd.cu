/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bwd - the gradients of attn_dense, by wgmma and TMA (FlashAttention-2, backward), repeatable
 *
 *   attn_bwd_rows_kernel   delta of each row; lse and delta, by heads, to the workspace
 *   attn_bwd_kv_kernel     dk, dv: a CTA has keys and walks over tokens; 4 products (attn_bwd_kv.cu)
 *   attn_bwd_q_kernel      dq: a CTA has tokens and walks over keys; 3 products (attn_bwd_q.cu)
 *
 * Two of the five products are computed twice, so that every sum is in one CTA's registers: there is no
 * atomic addition, and no partial result in memory. One kernel would need five products, but would have to
 * add dq over CTAs in a fixed order.
 *
 * Floor: 5 * (qk_dim + v_dim) * (query, key) pairs for five products, 7 for seven, at the rate of wgmma.
 */
#include "fused/attention/backward/attn_bwd_tile.cuh"

#include "primitives/base/launch.h"
#include "primitives/base/tensor_map.h"

#define ROW_WARPS	8

/* Rows of the workspace's arrays begin at multiples of this, in elements. */
#define STRIDE_STEP	64

struct row_call {
	const void *out, *dout;
	const float *lse_in;
	float *lse, *delta;
	int64_t stride;
	int32_t rows, heads, v_dim, dtype;
};

ATTN_DEV float2 row_unpack(uint32_t x, int dtype)
{
	if (dtype == CAIRN_BF16)
		return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000));
	float lo, hi;

	asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
	    : "=f"(lo), "=f"(hi) : "r"(x));
	return make_float2(lo, hi);
}

/* A warp takes one row of one head at a time. */
static __global__ __launch_bounds__(ROW_WARPS * 32) void
attn_bwd_rows_kernel(const __grid_constant__ struct row_call a)
{
	int lane = threadIdx.x % 32, chunks = a.v_dim / 8;
	int64_t num = (int64_t)a.rows * a.heads, step = (int64_t)gridDim.x * ROW_WARPS;

	for (int64_t i = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32; i < num; i += step) {
		float sum = 0;

		if (lane < chunks) {
			uint4 x = ((const uint4 *)a.out)[i * chunks + lane];
			uint4 y = ((const uint4 *)a.dout)[i * chunks + lane];
			const uint32_t xs[4] = { x.x, x.y, x.z, x.w }, ys[4] = { y.x, y.y, y.z, y.w };

#pragma unroll
			for (int j = 0; j < 4; j++) {
				float2 u = row_unpack(xs[j], a.dtype), v = row_unpack(ys[j], a.dtype);

				sum = fmaf(u.x, v.x, sum);
				sum = fmaf(u.y, v.y, sum);
			}
		}
#pragma unroll
		for (int j = 16; j; j /= 2)
			sum += __shfl_xor_sync(~0u, sum, j);
		if (lane == 0) {
			int64_t at = i % a.heads * a.stride + i / a.heads;

			a.lse[at] = a.lse_in[i];
			a.delta[at] = sum;
		}
	}
}

static int64_t stride_of(const struct cairn_attn_bwd_args *a)
{
	return ((int64_t)a->nnz_qo + STRIDE_STEP - 1) / STRIDE_STEP * STRIDE_STEP;
}

static size_t bytes_of(const struct cairn_attn_bwd_args *a)
{
	return (size_t)stride_of(a) * (size_t)a->num_qo_heads * 2 * sizeof(float);
}

int cairn_attn_bwd_workspace(const struct cairn_attn_bwd_args *args, size_t *bytes)
{
	if (!bytes)
		return cairn_error(EINVAL, "attn_bwd_workspace: null pointer");
	CAIRN_TRY(cairn_attn_bwd_check_shape(args));
	*bytes = bytes_of(args);
	return 0;
}

static struct attn_bwd_kernel choose_kv(int32_t qk, int32_t v)
{
	if (qk <= 64 && v <= 64)
		return attn_bwd_kv_64();
	if (qk <= 128 && v <= 128)
		return attn_bwd_kv_128();
	return qk <= 192 && v <= 128 ? attn_bwd_kv_192_128() : attn_bwd_kv_256();
}

static struct attn_bwd_kernel choose_q(int32_t qk, int32_t v)
{
	if (qk <= 64 && v <= 64)
		return attn_bwd_q_64();
	if (qk <= 128 && v <= 128)
		return attn_bwd_q_128();
	return qk <= 192 && v <= 128 ? attn_bwd_q_192_128() : attn_bwd_q_256();
}

/* Maps [outer][middle][dim], whose strides are in elements, in boxes of 64 elements. */
static int make_map(CUtensorMap *map, const void *data, int32_t dim, int64_t middle, int64_t middle_stride,
		    int64_t outer, int64_t outer_stride, int box_middle, int box_outer)
{
	const struct cairn_tensor_layout t = {
		.data = data, .dims = 3, .element_bytes = 2,
		.size = { (uint64_t)dim, (uint64_t)(middle ? middle : 1), (uint64_t)(outer ? outer : 1) },
		.stride = { (uint64_t)middle_stride * 2, (uint64_t)outer_stride * 2 },
		.box = { 64, (uint32_t)box_middle, (uint32_t)box_outer }, .swizzle = 128, .promotion = 256,
	};

	return cairn_tensor_map(map, &t, "attn_bwd");
}

static int make_maps(struct attn_bwd_maps *maps, const struct cairn_attn_bwd_args *a,
		     const struct attn_bwd_kernel *f)
{
	const struct cairn_attn_dense_args d = cairn_attn_bwd_forward(a);
	const int32_t heads = a->num_qo_heads;

	CAIRN_TRY(make_map(&maps->q, a->q, a->qk_dim, heads, a->qk_dim, a->nnz_qo,
			   cairn_attn_dense_q_stride(&d), 1, f->q_rows));
	CAIRN_TRY(make_map(&maps->dout, a->dout, a->v_dim, heads, a->v_dim, a->nnz_qo,
			   (int64_t)heads * a->v_dim, 1, f->q_rows));
	CAIRN_TRY(make_map(&maps->k, a->k, a->qk_dim, a->nnz_kv, cairn_attn_dense_k_stride(&d),
			   a->num_kv_heads, cairn_attn_dense_k_head_stride(&d), f->kv_rows, 1));
	return make_map(&maps->v, a->v, a->v_dim, a->nnz_kv, cairn_attn_dense_v_stride(&d), a->num_kv_heads,
			cairn_attn_dense_v_head_stride(&d), f->kv_rows, 1);
}

static int launch_rows(const struct cairn_attn_bwd_args *args, const struct attn_bwd_call *call, int num_sms,
		       void *stream)
{
	struct row_call a = { args->out, args->dout, args->lse, (float *)call->lse, (float *)call->delta,
			      call->stride, args->nnz_qo, args->num_qo_heads, args->v_dim, args->dtype };
	int64_t ctas = ((int64_t)args->nnz_qo * args->num_qo_heads + ROW_WARPS - 1) / ROW_WARPS;
	int64_t most = (int64_t)num_sms * (args->sms ? 1 : 8);
	void *params[] = { &a };
	struct cairn_launch l = {};

	if (!ctas)
		return 0;
	l.grid[0] = (unsigned int)(ctas < most ? ctas : most);
	l.block[0] = ROW_WARPS * 32;
	l.stream = stream;
	return cairn_launch((const void *)attn_bwd_rows_kernel, &l, params);
}

/* Launches one of the two kernels over all its tiles; if `sms` limits the call, that many at a time. */
static int launch_tiles(const struct cairn_attn_bwd_args *args, struct attn_bwd_call *call,
			const struct attn_bwd_kernel *f, int32_t max_len, int32_t heads, int num_sms,
			void *stream)
{
	int64_t tiles, most;
	struct attn_bwd_maps maps;
	void *params[] = { call, &maps };
	struct cairn_launch l = {};

	call->tiles = max_len / f->tile + (max_len % f->tile != 0);
	tiles = (int64_t)call->tiles * heads * args->batch;
	if (!tiles)
		return 0;
	if (tiles > 0x7fffffff)
		return cairn_error(EOPNOTSUPP, "attn_bwd: batch, heads, max_qo_len, max_kv_len: too large");
	CAIRN_TRY(make_maps(&maps, args, f));
	most = args->sms ? num_sms : tiles;
	l.block[0] = (unsigned int)f->threads;
	l.smem = f->smem;
	l.stream = stream;
	for (call->first = 0; call->first < tiles; call->first += (int32_t)most) {
		l.grid[0] = (unsigned int)(tiles - call->first < most ? tiles - call->first : most);
		CAIRN_TRY(cairn_launch(f->kernel[args->dtype == CAIRN_BF16], &l, params));
		if (tiles - call->first <= most)
			break;
	}
	return 0;
}

int cairn_attn_bwd(const struct cairn_attn_bwd_args *args, void *stream)
{
	struct attn_bwd_call call = {};
	struct attn_bwd_kernel kv, q;
	int num_sms;

	CAIRN_TRY(cairn_attn_bwd_check(args));
	if (bytes_of(args) && (!args->workspace || (uintptr_t)args->workspace % 256 ||
			       args->workspace_bytes < bytes_of(args)))
		return cairn_error(EINVAL, "attn_bwd: workspace, workspace_bytes: at least %zu bytes, "
				   "256-byte aligned", bytes_of(args));
	if (!args->batch)
		return 0;
	num_sms = cairn_sms_of(args->sms);
	if (num_sms < 0)
		return num_sms;
	call.dq = args->dq;
	call.dk = args->dk;
	call.dv = args->dv;
	call.stride = stride_of(args);
	call.lse = (const float *)args->workspace;
	call.delta = call.lse + call.stride * args->num_qo_heads;
	call.qo_indptr = args->qo_indptr;
	call.kv_indptr = args->kv_indptr;
	call.batch = args->batch;
	call.num_qo_heads = args->num_qo_heads;
	call.num_kv_heads = args->num_kv_heads;
	call.group = args->num_qo_heads / args->num_kv_heads;
	call.qk_dim = args->qk_dim;
	call.v_dim = args->v_dim;
	call.causal = args->causal;
	call.window = args->window;
	call.sm_scale = args->sm_scale;
	call.softcap = args->softcap;
	kv = choose_kv(args->qk_dim, args->v_dim);
	q = choose_q(args->qk_dim, args->v_dim);
	CAIRN_TRY(launch_rows(args, &call, num_sms, stream));
	CAIRN_TRY(launch_tiles(args, &call, &kv, args->max_kv_len, args->num_kv_heads, num_sms, stream));
	return launch_tiles(args, &call, &q, args->max_qo_len, args->num_qo_heads, num_sms, stream);
}
