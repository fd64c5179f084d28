/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_fp8 - attention over 8-bit blocks, by wgmma and TMA (FlashAttention-3 in fp8)
 *
 * CTAs are persistent, with two consumer warpgroups and a producer warp; attn_fp8.cuh describes their
 * schedule. The order of the row tiles is that of attn_dense. This file lays out the call.
 *
 * Forms: rows x keys of a tile, stages of K and V, buffers of Q, shared memory
 *   head_dim 128   128 x 128   4   2   160 KiB
 *   head_dim  64   128 x 128   4   2    80 KiB
 *
 * Floor, in clocks of an SM for a tile of 128 x 128 at head_dim 128: products 1024 (8192 flop a clock),
 * exponentials 1024 (16 a clock), other instructions about 800. The products of one warpgroup overlap the
 * other instructions of the other. At that rate, 4 * head_dim flop a pair are 1.9 PFLOP/s at 1.75 GHz.
 * Optimisation history: ../NOTES.md.
 */
#include "fused/attention/fp8/attn_fp8.cuh"

#include "primitives/base/tensor_map.h"
#include "fused/attention/dense/attn_dense_plan.cuh"

template <int dtype, class F>
static __global__ __launch_bounds__(F::threads, 1) void
attn_fp8_kernel(const __grid_constant__ struct attn_call a,
		const __grid_constant__ struct attn_fp8_scales scales,
		const __grid_constant__ struct attn_dense_plan plan,
		const __grid_constant__ struct attn_fp8_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	struct attn_smem<struct attn_row_tile> s = attn_lay_out<F, struct attn_row_tile>(s_all);

	if (threadIdx.x == 0)
		attn_init_barriers<F>(s, 1);
	__syncthreads();
	ptx_griddepcontrol_wait();
	if (threadIdx.x >= F::groups * 128) {
		ptx_setmaxnreg_dec<F::producer_regs>();
		if (threadIdx.x < F::groups * 128 + 32)
			attn_fp8_produce<F>(plan, a, scales, maps, s, attn_fp8_origins<F>(s_all));
		else
			attn_dense_write_empty(plan, a, blockIdx.x * 3 + threadIdx.x / 32 - F::groups * 4 - 1,
					       gridDim.x * 3);
		ptx_griddepcontrol_launch_dependents();
	} else {
		ptx_setmaxnreg_inc<F::regs>();
		attn_fp8_consume<dtype, F>(a, scales, s, attn_fp8_origins<F>(s_all));
	}
}

/* An instance: its kernel for f16 and bf16, and the sizes of its form. */
struct attn_fp8_instance {
	const void *kernel[2];
	int32_t rows, threads;
	size_t smem;
};

template <class F> static struct attn_fp8_instance instance(void)
{
	return { { (const void *)attn_fp8_kernel<CAIRN_F16, F>,
		   (const void *)attn_fp8_kernel<CAIRN_BF16, F> },
		 F::rows, F::threads, F::smem_bytes };
}

static int make_maps(struct attn_fp8_maps *maps, const struct cairn_attn_fp8_args *a,
		     const struct attn_fp8_scales *z, int rows, int32_t shift)
{
	const uint64_t dim = (uint64_t)a->head_dim, kv_blocks = (uint64_t)z->kv_blocks * a->num_kv_heads;
	const uint64_t q_rows = (uint64_t)z->q_blocks * ATTN_FP8_BLOCK;
	const struct cairn_tensor_layout q = {
		.data = a->q, .dims = 3, .element_bytes = 1,
		.size = { dim, (uint64_t)a->num_qo_heads, q_rows },
		.stride = { q_rows * dim, dim },
		.box = { (uint32_t)dim, 1u << shift, (uint32_t)(rows >> shift) },
		.swizzle = a->head_dim, .promotion = 256,
	};
	const struct cairn_tensor_layout k = {
		.data = a->k, .dims = 2, .element_bytes = 1,
		.size = { dim, kv_blocks * ATTN_FP8_BLOCK }, .stride = { dim },
		.box = { (uint32_t)dim, ATTN_FP8_BLOCK }, .swizzle = a->head_dim, .promotion = 256,
	};
	const struct cairn_tensor_layout v = {
		.data = a->v, .dims = 2, .element_bytes = 1,
		.size = { ATTN_FP8_BLOCK, kv_blocks * dim }, .stride = { ATTN_FP8_BLOCK },
		.box = { ATTN_FP8_BLOCK, (uint32_t)dim }, .swizzle = 128, .promotion = 256,
	};

	CAIRN_TRY(cairn_tensor_map(&maps->q, &q, "attn_fp8"));
	CAIRN_TRY(cairn_tensor_map(&maps->k, &k, "attn_fp8"));
	return cairn_tensor_map(&maps->v, &v, "attn_fp8");
}

extern "C" int cairn_attn_fp8_workspace(const struct cairn_attn_fp8_args *args, size_t *bytes)
{
	if (!bytes)
		return cairn_error(EINVAL, "attn_fp8_workspace: null pointer");
	CAIRN_TRY(cairn_attn_fp8_check_shape(args));
	*bytes = ATTN_DENSE_COUNTER_BYTES;
	return 0;
}

extern "C" int cairn_attn_fp8(const struct cairn_attn_fp8_args *args, void *stream)
{
	struct attn_fp8_instance f;
	struct attn_fp8_maps maps;
	struct attn_fp8_scales z = {};
	struct attn_dense_plan plan = {};
	struct attn_call call = {};
	struct attn_dense_sizes sizes = {};
	struct cairn_launch l = {};
	void *params[] = { &call, &z, &plan, &maps };
	int num_sms, items;

	CAIRN_TRY(cairn_attn_fp8_check(args));
	CAIRN_TRY(attn_dense_check_counter(args->workspace, args->workspace_bytes, "attn_fp8"));
	if (!args->batch || !args->nnz_qo || !args->max_qo_len)
		return 0;
	num_sms = cairn_sms_of(args->sms);
	if (num_sms < 0)
		return num_sms;
	f = args->head_dim == 64 ? instance<attn_fp8_form<64, 4, 2, 232, 40>>() :
				   instance<attn_fp8_form<128, 4, 2, 232, 40>>();
	call.out = args->out;
	call.lse = args->lse;
	call.num_qo_heads = args->num_qo_heads;
	call.v_dim = args->head_dim;
	call.shift = attn_dense_shift(args->num_qo_heads / args->num_kv_heads);
	call.causal = args->causal;
	z.q = args->q_scale;
	z.k = args->k_scale;
	z.v = args->v_scale;
	z.sm_scale_log2 = args->sm_scale * ATTN_LOG2E;
	z.q_blocks = attn_fp8_blocks(args->nnz_qo, args->batch);
	z.kv_blocks = attn_fp8_blocks(args->nnz_kv, args->batch);
	plan.qo_indptr = args->qo_indptr;
	plan.kv_indptr = args->kv_indptr;
	/* rows of all blocks are coordinates of tensor maps */
	if ((int64_t)z.q_blocks * ATTN_FP8_BLOCK > INT32_MAX ||
	    (int64_t)z.kv_blocks * ATTN_FP8_BLOCK * args->num_kv_heads > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "attn_fp8: nnz_qo, nnz_kv, num_kv_heads: too large");
	sizes = { "attn_fp8", args->batch, args->max_qo_len, args->max_kv_len, args->num_qo_heads,
		  args->num_kv_heads, f.rows, num_sms, args->head_dim * 2, args->causal };
	items = attn_dense_lay_out_tiles(&sizes, &plan);
	if (items < 0)
		return items;
	CAIRN_TRY(make_maps(&maps, args, &z, f.rows, call.shift));
	l.block[0] = (unsigned int)f.threads;
	l.smem = f.smem;
	l.stream = stream;
	CAIRN_TRY(attn_dense_start_tiles(&plan, &l, items, num_sms, args->workspace, args->sms,
					 0));
	return cairn_launch(f.kernel[args->dtype == CAIRN_BF16], &l, params);
}
