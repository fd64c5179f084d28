/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_mla_product.cuh - the products of cluster_mla
 *
 * The products use mma.m16n8k16; the 16 rows are the batch and the 8 columns are outputs. k is permuted
 * within each 32 elements, in the same way for both operands: lane 4 g + t holds elements 8 t .. 8 t + 7 of
 * row g, for two mma.
 */
#ifndef CAIRN_CLUSTER_MLA_PRODUCT_CUH
#define CAIRN_CLUSTER_MLA_PRODUCT_CUH

#include "primitives/rows/angle.cuh"
#include "fused/latent/cluster_mla.cuh"

/* The A operand of a stage: rows g (lo) and g + 8 (hi) of the batch, 32 of the 128 elements of each. */
struct mla_a {
	uint4 lo[4], hi[4];
};

/*
 * Loads pieces from..end-1 (8 elements each, 32 apart) of rows of LL words, `stride` words apart, in one
 * round trip. The stage begins at element k of the n elements of a row.
 */
template <int wide, int from, int end>
MLA void mla_a_ll(const struct mla_ctx &c, struct mla_a *x, uint32_t at, int stride,
		  int k, int n, int batch)
{
	constexpr int pairs = 2 * (end - from);
	const int32_t offset[8] = { 0, 2, 16, 18, 32, 34, 48, 50 };
	const int row = c.lane / 4, lo = row < batch ? n - k - from * 32 : 0;
	const int hi = row + 8 < batch ? n - k - from * 32 : 0;
	const uint64_t *base = c.words + at + row * stride + (k + from * 32) / 2 + c.lane % 4 * 4;
	int32_t places[pairs << wide];
	uint2 v[pairs << wide];
	uint32_t wanted = 0;

#pragma unroll
	for (int i = 0; i < pairs; i++) {
		places[i] = offset[i];
		wanted |= i / 2 * 32 < lo ? 1u << i : 0;
		if constexpr (wide) {
			places[pairs + i] = offset[i] + 8 * stride;
			wanted |= i / 2 * 32 < hi ? 1u << (pairs + i) : 0;
		}
	}
	mla_get_ll<(pairs << wide)>(c, base, places, wanted, v);
#pragma unroll
	for (int i = 0; i < end - from; i++) {
		x->lo[from + i] = make_uint4(v[2 * i].x, v[2 * i].y, v[2 * i + 1].x, v[2 * i + 1].y);
		if constexpr (wide)
			x->hi[from + i] = make_uint4(v[pairs + 2 * i].x, v[pairs + 2 * i].y,
						     v[pairs + 2 * i + 1].x, v[pairs + 2 * i + 1].y);
	}
}

template <int dtype> MLA uint32_t mla_scaled2(uint32_t x, uint32_t w, float scale)
{
	float a[2], b[2];

	row_unpack2<dtype>(x, a);
	row_unpack2<dtype>(w, b);
	return row_pack2<dtype>(a[0] * scale * b[0], a[1] * scale * b[1]);
}

template <int dtype> MLA uint4 mla_scaled8(uint4 x, uint4 w, float scale)
{
	return make_uint4(mla_scaled2<dtype>(x.x, w.x, scale), mla_scaled2<dtype>(x.y, w.y, scale),
			  mla_scaled2<dtype>(x.z, w.z, scale), mla_scaled2<dtype>(x.w, w.w, scale));
}

/* Multiplies x by its row's scale and the norm's weights. */
template <int dtype, int wide, int from, int end>
MLA void mla_a_scale(const struct mla_ctx &c, struct mla_a *x, const void *weight, int k, int n)
{
	const float lo = c.scale[0], hi = c.scale[1];

#pragma unroll
	for (int i = from; i < end; i++) {
		int e = k + i * 32 + c.lane % 4 * 8;
		uint4 w = make_uint4(0, 0, 0, 0);

		if (e < n)
			w = __ldg((const uint4 *)((const char *)weight + e * 2));
		x->lo[i] = make_uint4(mla_scaled2<dtype>(x->lo[i].x, w.x, lo),
				      mla_scaled2<dtype>(x->lo[i].y, w.y, lo),
				      mla_scaled2<dtype>(x->lo[i].z, w.z, lo),
				      mla_scaled2<dtype>(x->lo[i].w, w.w, lo));
		if (wide)
			x->hi[i] = make_uint4(mla_scaled2<dtype>(x->hi[i].x, w.x, hi),
					      mla_scaled2<dtype>(x->hi[i].y, w.y, hi),
					      mla_scaled2<dtype>(x->hi[i].z, w.z, hi),
					      mla_scaled2<dtype>(x->hi[i].w, w.w, hi));
	}
}

/*
 * In batches of 9 to 16, n is computed once, with one warp for each row of x, and stored where the keys will
 * be after MLA_DOWN. 64 bytes between rows avoid bank conflicts between two rows that are read together.
 */
MLA int mla_n_fits(const struct cairn_cluster_mla_args &a)
{
	return a.hidden <= WARPS * STAGE_K;
}

MLA uint32_t mla_n_at(const struct cairn_cluster_mla_args &a, int row, int e)
{
	return mla_smem() + MLA_TILES + row * (a.hidden * 2 + 64) + e * 2;
}

/* Copies the norm's weights, which no earlier kernel writes, to MLA_SUMS, which is not in use yet. */
MLA void mla_keep_weights(const struct cairn_cluster_mla_args &a)
{
	const int e = threadIdx.x * 8;

	if (e < a.hidden)
		ptx_st_shared_v4(mla_smem() + MLA_SUMS + e * 2,
				 __ldg((const uint4 *)((const char *)a.norm_weight + e * 2)));
}

/* Computes n. The workers must have passed a barrier since mla_keep_weights(). */
template <int dtype> MLA void mla_norm_rows(const struct mla_ctx &c, const struct cairn_cluster_mla_args &a)
{
	constexpr int pieces = WARPS * STAGE_K / 256;
	const char *x = (const char *)a.x + (int64_t)c.warp * a.hidden * 2;
	float sum = 0, f[8];
	uint4 v[pieces];

#pragma unroll
	for (int i = 0; i < pieces; i++) {
		const int e = i * 256 + c.lane * 8;

		v[i] = make_uint4(0, 0, 0, 0);
		if (c.warp < a.kv.batch && e < a.hidden)
			v[i] = __ldcg((const uint4 *)(x + e * 2));
	}
#pragma unroll
	for (int i = 0; i < pieces; i++) {
		row_unpack<dtype>(v[i], f);
#pragma unroll
		for (int k = 0; k < 8; k++)
			sum += f[k] * f[k];
	}
	for (int i = 16; i; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	sum = 1 / sqrtf(sum / (float)a.hidden + a.eps);
#pragma unroll
	for (int i = 0; i < pieces; i++) {
		const int e = i * 256 + c.lane * 8;
		const uint32_t w = mla_smem() + MLA_SUMS + e * 2;

		if (e < a.hidden)
			ptx_st_shared_v4(mla_n_at(a, c.warp, e),
					 mla_scaled8<dtype>(v[i], ptx_ld_shared_v4(w), sum));
	}
	work_sync();
}

template <int from, int end>
MLA void mla_a_shared(const struct mla_ctx &c, const struct cairn_cluster_mla_args &a, struct mla_a *x, int k)
{
#pragma unroll
	for (int i = from; i < end; i++) {
		const int e = k + i * 32 + c.lane % 4 * 8;

		x->lo[i] = x->hi[i] = make_uint4(0, 0, 0, 0);
		if (e < a.hidden) {
			x->lo[i] = ptx_ld_shared_v4(mla_n_at(a, c.lane / 4, e));
			x->hi[i] = ptx_ld_shared_v4(mla_n_at(a, c.lane / 4 + 8, e));
		}
	}
}

template <int wide, int from, int end>
MLA void mla_a_rows(const struct mla_ctx &c, struct mla_a *x, const void *rows, int k, int n, int batch)
{
#pragma unroll
	for (int i = from; i < end; i++) {
		int e = k + i * 32 + c.lane % 4 * 8, row = c.lane / 4;
		const char *at = (const char *)rows + ((int64_t)row * n + e) * 2;

		x->lo[i] = x->hi[i] = make_uint4(0, 0, 0, 0);
		if (row < batch && e < n)
			x->lo[i] = __ldcg((const uint4 *)at);
		if (wide && row + 8 < batch && e < n)
			x->hi[i] = __ldcg((const uint4 *)(at + (int64_t)n * 16));
	}
}

/* Multiplies pieces from..end-1 of x with the stage in a slot of the warp's ring. */
template <int dtype, int from, int end, int tensor>
MLA void mla_multiply(const struct mla_ctx &c, float (&sum)[2][2][4], const struct mla_a &x,
		      int product, int slot)
{
	uint32_t ring = mla_smem() + (c.warp * STAGES + slot) * STAGE_BYTES;
	int quad = c.lane / 4, t = c.lane & 3, pair = c.lane >> 1 & 3;
	/* MLA_ABSORB: ldmatrix reads rows of the stage in the order of k; this lane's row and half */
	uint32_t column = (((c.lane >> 3 & 1) << 2 | (c.lane & 1) << 1 | c.lane >> 4) ^ (pair & 1) ^
			   (pair & 2) << 1) * 16;
	uint32_t mine = product == MLA_ABSORB ? ring + pair * 256 + column : ring + quad * 256;
	constexpr int block = tensor ? 512 : 128;	/* MLA_ABSORB: bytes to the next 16 of k */

	if (tensor && product == MLA_ABSORB) {
		const int row = (c.lane >> 3 & 1) << 1 | (c.lane & 1);

		mine = ring + row * 128 + pair * 32 + (c.lane >> 4 ^ (c.lane & 1)) * 16;
	} else if (tensor) {
		mine = ring + quad / 4 * 1024 + quad % 4 * 64 + t * 16;
	}
	if (product == MLA_ABSORB) {
#pragma unroll
		for (int i = from; i < end; i++) {
			const uint32_t a[2][4] = { { x.lo[i].x, x.hi[i].x, x.lo[i].y, x.hi[i].y },
						   { x.lo[i].z, x.hi[i].z, x.lo[i].w, x.hi[i].w } };

#pragma unroll
			for (int h = 0; h < 2; h++) {	/* elements 16 h .. 16 h + 15 of the piece's k */
				uint32_t b[4];

				ptx_ldmatrix_x4_trans(b, mine + i * 1024 + h * block);
				attn_mma<dtype>(sum[0][h], a[h], b);
				attn_mma<dtype>(sum[1][h], a[h], b + 2);
			}
		}
		return;
	}
#pragma unroll
	for (int i = from; i < end; i++) {
		const uint32_t a[2][4] = { { x.lo[i].x, x.hi[i].x, x.lo[i].y, x.hi[i].y },
					   { x.lo[i].z, x.hi[i].z, x.lo[i].w, x.hi[i].w } };

#pragma unroll
		for (int h = 0; h < 2; h++) {	/* half h of the columns */
			uint4 w = ptx_ld_shared_v4(mine + h * 2048 +
						   (tensor ? i * 256 : ((i * 4 + t) ^ (quad & 1) << 2) * 16));
			const uint32_t b[4] = { w.x, w.y, w.z, w.w };

			attn_mma<dtype>(sum[h][0], a[0], b);
			attn_mma<dtype>(sum[h][1], a[1], b + 2);
		}
	}
}

/*
 * Called by the workers: sets c->scale to 1 / rms of n elements of rows of x or, if NULL, of the
 * compressed q.
 */
template <int dtype>
MLA void mla_rms(struct mla_ctx *c, const struct cairn_cluster_mla_args &a, const void *x, int n)
{
	int shift = a.kv.batch > 8 ? 4 : a.kv.batch > 4 ? 3 : a.kv.batch > 2 ? 2 : a.kv.batch > 1 ? 1 : 0;
	int warps = WARPS >> shift, row = c->warp / warps, nth = c->warp % warps * 32 + c->lane;
	float sum = 0, f[8];

	/* eight elements (x) or four (LL words) a thread; loop bounds are the same for a whole warp */
	if (x) {
		/* eight loads in flight: with 16 requests one warp reads a whole row */
		for (int first = nth * 8; first < n && row < a.kv.batch; first += 8 * warps * 256) {
			const char *at = (const char *)x + ((int64_t)row * n + first) * 2;
			uint4 v[8];

#pragma unroll
			for (int j = 0; j < 8; j++)
				v[j] = first + j * warps * 256 < n ?
				       __ldcg((const uint4 *)(at + j * warps * 512)) :
				       make_uint4(0, 0, 0, 0);
#pragma unroll
			for (int j = 0; j < 8; j++) {
				row_unpack<dtype>(v[j], f);
#pragma unroll
				for (int k = 0; k < 8; k++)
					sum += f[k] * f[k];
			}
		}
	} else {
#pragma unroll 1
		for (int i = nth * 4; i - c->lane * 4 < n && row < a.kv.batch; i += warps * 256) {
			const uint64_t *base = c->words + mla_small()->at.cq + (row * n + i) / 2;
			const int32_t from[2] = { 0, warps * 64 };
			uint2 v[2];

			mla_get_ll<2>(*c, base, from, (i < n) | (i + warps * 128 < n) << 1, v);
#pragma unroll
			for (int k = 0; k < 2; k++) {
				row_unpack2<dtype>(v[k].x, f);
				row_unpack2<dtype>(v[k].y, f + 2);
				sum += f[0] * f[0] + f[1] * f[1] + f[2] * f[2] + f[3] * f[3];
			}
		}
	}
	for (int i = 16; i; i /= 2)
		sum += __shfl_xor_sync(~0u, sum, i);
	if (c->lane == 0)
		mla_small()->part[c->warp] = sum;
	work_sync();
	/* four lanes add up a row */
#pragma unroll
	for (int half = 0; half < 2; half++) {
		row = c->lane / 4 + 8 * half;
		sum = 0;
		for (int i = c->lane % 4; i < warps && row < a.kv.batch; i += 4)
			sum += mla_small()->part[row * warps + i];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		c->scale[half] = 1 / sqrtf(sum / (float)n + a.eps);
	}
}

MLA float2 mla_rotation(int position, float freq)
{
	float2 v;

	angle_cos_sin(__fmul_rn((float)position, freq), &v.x, &v.y);
	return v;
}

/*
 * Rotates a pair. The explicit roundings keep the compiler from contracting differently in different kernels.
 */
MLA float2 mla_turn(const float *f, float2 turn)
{
	return make_float2(__fmaf_rn(f[0], turn.x, -__fmul_rn(f[1], turn.y)),
			   __fmaf_rn(f[1], turn.x, __fmul_rn(f[0], turn.y)));
}

/* The destination of a pair of outputs, and its last operand; loaded before the sums are complete. */
struct mla_target {
	void *to;			/* NULL: not stored */
	uint32_t residual;		/* MLA_OUT: the pair of x */
	int turned;			/* the pair is rotated by `turn` */
	float2 turn;
};

/* Loads the residual of outputs `row` and row + 1 of request b. */
MLA uint32_t mla_residual(const struct cairn_cluster_mla_args &a, int b, int row)
{
	return __ldcg((const uint32_t *)((const char *)a.x + ((int64_t)b * a.hidden + row) * 2));
}

/* Returns the target for MLA_OUT if the residual is already loaded. */
MLA struct mla_target mla_aim_out(const struct cairn_cluster_mla_args &a, int b, int row, uint32_t residual)
{
	struct mla_target t = {};

	t.residual = residual;
	if (mla_small()->len[b] > 0)
		t.to = (char *)a.out + ((int64_t)b * a.hidden + row) * 2;
	return t;
}

/* Returns the target of outputs `row` and row + 1 of request b. */
MLA struct mla_target mla_aim(const struct mla_ctx &c, const struct cairn_cluster_mla_args &a,
			      int product, int b, int row)
{
	uint32_t at = mla_small()->at.q, width = a.num_heads * Q_DIM;
	struct mla_target t = {};

	if (product == MLA_OUT)
		return mla_aim_out(a, b, row, mla_residual(a, b, row));
	if (product == MLA_DOWN && row >= mla_small()->m[MLA_DOWN].rows) {
		at = mla_small()->at.kv;
		width = WIDTH;
		row -= mla_small()->m[MLA_DOWN].rows;
	} else if (product == MLA_DOWN && a.q_lora_rank) {
		at = mla_small()->at.cq;
		width = a.q_lora_rank;
	} else if (product == MLA_ABSORB) {
		at = mla_small()->at.ql;
		width = a.num_heads * RANK;
	} else if (product == MLA_VALUE) {
		at = mla_small()->at.v;
		width = a.num_heads * V_DIM;
	} else {
		int d = row % Q_DIM - NOPE;

		t.turned = d >= 0;
		if (d >= 0)
			t.turn = mla_small()->rotation[b][d / 2];
	}
	t.to = c.words + at + (b * width + row) / 2;
	return t;
}

/* Rounds, rotates or adds the residual, and stores a pair: MLA_OUT to out, others as an LL word. */
template <int dtype>
MLA void mla_put(const struct mla_ctx &c, int product, const struct mla_target &t, float2 v)
{
	uint32_t packed = row_pack2<dtype>(v.x, v.y);
	float f[2];

	if (!t.to)
		return;
	if (product == MLA_OUT) {
		row_unpack2<dtype>(t.residual, f);
		*(uint32_t *)t.to = row_pack2<dtype>(f[0] + v.x, f[1] + v.y);
		return;
	}
	if (product <= MLA_UP && t.turned) {
		row_unpack2<dtype>(packed, f);
		v = mla_turn(f, t.turn);
		packed = row_pack2<dtype>(v.x, v.y);
	}
	ptx_st_relaxed_gpu_u64((uint64_t *)t.to, (uint64_t)c.epoch << 32 | packed);
}

/* Loads pieces from..end-1 of a stage's A operand. k: its first element; unit: of this CTA's units. */
template <int dtype, int wide, int from, int end>
MLA void mla_load_a(const struct mla_ctx &c, const struct cairn_cluster_mla_args &a,
		    struct mla_a *x, int product, int unit, int k)
{
	const struct mla_matrix *m = &mla_small()->m[product];
	int first = m->first + unit * 16, n = m->k;
	uint32_t at = mla_small()->at.v, stride = n / 2;

	if constexpr (wide) {
		if (product == MLA_DOWN && mla_n_fits(a)) {
			mla_a_shared<from, end>(c, a, x, k);
			return;
		}
	}
	if (product == MLA_DOWN) {
		mla_a_rows<wide, from, end>(c, x, a.x, k, n, a.kv.batch);
	} else {
		if (product == MLA_UP) {
			at = mla_small()->at.cq;
		} else if (product == MLA_ABSORB) {
			at = mla_small()->at.q + first / RANK * (Q_DIM / 2);
			stride = a.num_heads * (Q_DIM / 2);
		} else if (product == MLA_VALUE) {
			at = mla_small()->at.c + first / V_DIM * (RANK / 2);
			stride = a.num_heads * (RANK / 2);
		}
		mla_a_ll<wide, from, end>(c, x, at, stride, k, n, a.kv.batch);
	}
	if (product <= MLA_UP)
		mla_a_scale<dtype, wide, from, end>(c, x,
						    product == MLA_DOWN ? a.norm_weight : a.q_norm, k, n);
}

/*
 * Returns whether each warp has one stage of MLA_DOWN's k (see `keep` in mla_run()). If so, a warp loads its
 * part of x and of the norm's weights early and computes the rms from them: mla_first_weights(),
 * mla_first_x(), mla_first_norm().
 */
MLA int mla_first_fits(const struct cairn_cluster_mla_args &a)
{
	return a.hidden > 8 * STAGE_K && a.hidden <= WARPS * STAGE_K;
}

/*
 * In batches of 1 and 2, most lanes have no row of the A operand. So the four lanes from 16 row + 4 i on load
 * piece i of the row into w[0] and x[0], and mla_first_norm() then distributes the pieces. A linked body
 * lacks the registers for this; both variants add in the same order.
 */
template <int may> MLA int mla_spread(const struct cairn_cluster_mla_args &a)
{
	return may && a.kv.batch <= 2;
}

template <int may>
MLA void mla_first_weights(const struct mla_ctx &c, const struct cairn_cluster_mla_args &a, uint4 (&w)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int piece = mla_spread<may>(a) ? c.lane / 4 % 4 : i;
		const int e = c.warp * STAGE_K + piece * 32 + c.lane % 4 * 8;

		w[i] = make_uint4(0, 0, 0, 0);
		if (e < a.hidden)
			w[i] = __ldg((const uint4 *)((const char *)a.norm_weight + e * 2));
		if (mla_spread<may>(a))
			break;
	}
}

template <int may>
MLA void mla_first_x(const struct mla_ctx &c, const struct cairn_cluster_mla_args &a, uint4 (&x)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = mla_spread<may>(a) ? c.lane / 16 : c.lane / 4;
		const int piece = mla_spread<may>(a) ? c.lane / 4 % 4 : i;
		const int e = c.warp * STAGE_K + piece * 32 + c.lane % 4 * 8;

		x[i] = make_uint4(0, 0, 0, 0);
		if (row < a.kv.batch && e < a.hidden)
			x[i] = __ldcg((const uint4 *)((const char *)a.x + ((int64_t)row * a.hidden + e) * 2));
		if (mla_spread<may>(a))
			break;
	}
}

template <int dtype> MLA float mla_squares(uint4 x)
{
	float f[8], sum = 0;

	row_unpack<dtype>(x, f);
#pragma unroll
	for (int k = 0; k < 8; k++)
		sum += f[k] * f[k];
	return sum;
}

template <int dtype, int may>
MLA void mla_first_norm(const struct mla_ctx &c, const struct cairn_cluster_mla_args &a, const uint4 (&w)[4],
			uint4 (&x)[4])
{
	const int spread = mla_spread<may>(a);
	float *part = mla_small()->part;
	float sum = 0, scale = 0;

	if (spread) {
		sum = mla_squares<dtype>(x[0]);
		for (int i = 8; i; i /= 2)
			sum += __shfl_xor_sync(~0u, sum, i);
		if (c.lane % 16 == 0)
			part[c.lane / 16 * WARPS + c.warp] = sum;
	} else {
		sum = (mla_squares<dtype>(x[0]) + mla_squares<dtype>(x[2])) +
		      (mla_squares<dtype>(x[1]) + mla_squares<dtype>(x[3]));
		sum += __shfl_xor_sync(~0u, sum, 2);
		sum += __shfl_xor_sync(~0u, sum, 1);
		if (c.lane % 4 == 0)
			part[c.warp * 8 + c.lane / 4] = sum;
	}
	work_sync();
	if (spread) {
		scale = part[c.lane];
		for (int i = 8; i; i /= 2)
			scale += __shfl_xor_sync(~0u, scale, i);
	} else {
		part += c.lane % 4 * 8 + c.lane / 4;
		scale = (part[0] + part[64]) + (part[32] + part[96]);
		scale += __shfl_xor_sync(~0u, scale, 2);
		scale += __shfl_xor_sync(~0u, scale, 1);
	}
	scale = 1 / sqrtf(scale / (float)a.hidden + a.eps);
	if (spread) {
		const uint4 mine = mla_scaled8<dtype>(x[0], w[0], scale);
		const int there = c.lane / 4 < a.kv.batch, from = c.lane / 4 % 2 * 16 + c.lane % 4;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			x[i].x = __shfl_sync(~0u, mine.x, from + 4 * i);
			x[i].y = __shfl_sync(~0u, mine.y, from + 4 * i);
			x[i].z = __shfl_sync(~0u, mine.z, from + 4 * i);
			x[i].w = __shfl_sync(~0u, mine.w, from + 4 * i);
			if (!there)
				x[i] = make_uint4(0, 0, 0, 0);
		}
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		x[i] = mla_scaled8<dtype>(x[i], w[i], scale);
}

/*
 * Computes this CTA's share of a product. *used: stages of the ring used so far; loaded: x already holds the
 * operand.
 */
template <int dtype, int wide, int tensor>
MLA void mla_run(const struct mla_ctx &c, const struct cairn_cluster_mla_args &a, int product, uint32_t *used,
		 struct mla_a &x, int loaded)
{
	const struct mla_matrix *m = &mla_small()->m[product];
	const int units = m->units, stages = m->stages, shift = m->shift, count = m->count;
	constexpr int row_shift = wide ? 4 : 3, rows = 1 << row_shift;
	/* the A operand is the same for all units if a warp has one stage of each unit */
	const int keep = product != MLA_ABSORB && product != MLA_VALUE && stages <= WARPS;
	float *s_sum = (float *)(mla_mem + MLA_SUMS);
	int buf = 0;

#pragma unroll 1
	for (int group = 0; group << (4 - shift) < units; group++) {
		int unit0 = group << (4 - shift), unit = unit0 + (c.warp >> shift),
		    n = min(units - unit0, 16 >> shift);
		float sum[2][2][4] = {};
		float *to = s_sum + ((buf << 4 | c.warp) << row_shift << 4) +
			    c.lane / 4 * 16 + c.lane % 4 * 2;
		struct mla_target target = {};
		uint32_t residual = 0;

		if (wide ? product == MLA_OUT : product != MLA_ABSORB) {
			int b = threadIdx.x >> 3 & (rows - 1);
			int at = (unit0 + ((int)threadIdx.x >> (3 + row_shift))) * 16 + (threadIdx.x & 7) * 2;

			if (wide && b < a.kv.batch && at < count)	/* the target follows with the sums */
				residual = mla_residual(a, b, m->first + at);
			else if (b < a.kv.batch && at < count)
				target = mla_aim(c, a, product, b, m->first + at);
		}
#pragma unroll 1
		for (int stage = c.warp & ((1 << shift) - 1); unit < units && stage < stages;
		     stage += 1 << shift) {
			const int slot = *used % STAGES;

			if constexpr (wide) {	/* one half after the other, to save registers */
				mla_load_a<dtype, wide, 0, 2>(c, a, &x, product, unit, stage * STAGE_K);
				ptx_mbarrier_wait(ptx_smem(&mla_small()->filled[c.warp][slot]),
						  *used / STAGES & 1);
				mla_multiply<dtype, 0, 2, tensor>(c, sum, x, product, slot);
				mla_load_a<dtype, wide, 2, 4>(c, a, &x, product, unit, stage * STAGE_K);
				mla_multiply<dtype, 2, 4, tensor>(c, sum, x, product, slot);
			} else {
				if (!keep || !loaded)
					mla_load_a<dtype, wide, 0, 4>(c, a, &x, product,
								      unit, stage * STAGE_K);
				loaded = 1;
				ptx_mbarrier_wait(ptx_smem(&mla_small()->filled[c.warp][slot]),
						  *used / STAGES & 1);
				mla_multiply<dtype, 0, 4, tensor>(c, sum, x, product, slot);
			}
			if (tensor)	/* orders the lanes' reads before the copy engine's next writes */
				ptx_fence_proxy_async_shared_cta();
			elected_arrive(ptx_smem(&mla_small()->freed[c.warp][slot]));
			++*used;
		}
		if (product == MLA_ABSORB) {	/* one warp has all of k: no partial sums */
#pragma unroll
			for (int i = 0; i < 2 + 2 * wide; i++) {
				const int b = c.lane / 4 + i / 2 * 8, h = i / 2 * 2;
				const int at = unit * 16 + i % 2 * 8 + c.lane % 4 * 2;
				const float (&v)[2][4] = sum[i % 2];

				if (unit < units && b < a.kv.batch)
					mla_put<dtype>(c, product, mla_aim(c, a, product, b, m->first + at),
						       make_float2(v[0][h] + v[1][h],
								   v[0][h + 1] + v[1][h + 1]));
			}
			continue;
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			*(float2 *)(to + 8 * i) = make_float2(sum[i][0][0] + sum[i][1][0],
							      sum[i][0][1] + sum[i][1][1]);
			if (wide)
				*(float2 *)(to + 128 + 8 * i) = make_float2(sum[i][0][2] + sum[i][1][2],
									    sum[i][0][3] + sum[i][1][3]);
		}
		work_sync();
#pragma unroll 1
		for (int i = threadIdx.x; i < n << (3 + row_shift); i += WORKERS) {
			int nth = i >> (3 + row_shift), b = i >> 3 & (rows - 1),
			    at = (unit0 + nth) * 16 + (i & 7) * 2;
			const float2 *from = (const float2 *)s_sum +
					     ((buf << 4 | nth << shift) << row_shift << 3) + b * 8 + (i & 7);
			float2 total = make_float2(0, 0);

			if (shift == 4) {
#pragma unroll
				for (int w = 0; w < WARPS; w++) {
					float2 v = from[w << row_shift << 3];

					total.x += v.x;
					total.y += v.y;
				}
			} else {
#pragma unroll 1
				for (int w = 0; w < 1 << shift; w++) {
					float2 v = from[w << row_shift << 3];

					total.x += v.x;
					total.y += v.y;
				}
			}
			if (b >= a.kv.batch || at >= count)
				continue;
			if (wide && product == MLA_OUT && i < WORKERS)
				target = mla_aim_out(a, b, m->first + at, residual);
			else if (wide || i >= WORKERS)
				target = mla_aim(c, a, product, b, m->first + at);
			mla_put<dtype>(c, product, target, total);
		}
		if (wide)
			work_sync();
		else
			buf ^= 1;
	}
	if (product != MLA_ABSORB)
		work_sync();
}

#endif
