/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_paged_decode - what a decode CTA of attn_paged does for a task
 *
 * A task is up to 16 packed rows of a request and a KV head. This has what the kernels share: Q, a step of a
 * warp with a tile of keys, the states of warps and their merge. In attn_paged.cu, which describes the step,
 * and in attn_paged_uneven.cu a task has a team of CTAs (attn_paged_team.cuh); in attn_paged_shares.cu, a CTA
 * attends to several tasks in turn.
 */
#ifndef CAIRN_ATTN_PAGED_DECODE_CUH
#define CAIRN_ATTN_PAGED_DECODE_CUH

#include "fused/attention/paged/attn_paged_8bit.cuh"

#define ROWS	ATTN_DECODE_TILE

/*
 * The sizes of a ring: keys and bytes of a K or V tile, stages, total bytes. The rings of head_dim 64 and 128
 * are equally large.
 */
template <int dim, bool fp8> ATTN_CONST tile_keys(void)
{
	return attn_decode_keys(dim, fp8);
}
template <int dim, bool fp8> ATTN_CONST tile_bytes(void)
{
	return tile_keys<dim, fp8>() * dim * (fp8 ? 1 : 2);
}
template <int dim, bool fp8> ATTN_CONST num_stages(void)
{
	return fp8 && dim < 256 ? 256 / dim : dim == 64 ? 6 : dim == 128 ? 3 : fp8 ? 4 : 2;
}
template <int dim, bool fp8> ATTN_CONST ring_bytes(void)
{
	return num_stages<dim, fp8>() * 2 * tile_bytes<dim, fp8>();
}
/* Returns the stage before stage n of a ring. If n has the next tile, it had the last one, and is free. */
template <int stages> ATTN_DEV int stage_before(int n) { return n == 0 ? stages - 1 : n - 1; }
/* Returns the warps of the widest CTA. */
template <int dim, bool fp8> ATTN_CONST num_warps(void) { return attn_decode_warps(dim, fp8, ATTN_WHOLE); }

/*
 * Q of 8-bit keys is loaded into registers, in which it is then converted. Rows of the tile past `rows` are
 * zeros, here and below.
 */
template <int head_dim>
ATTN_DEV void load_q_for_codes(uint32_t (*q)[4], const struct cairn_attn_paged_args &a,
			       const struct attn_request &r, int row0, int rows)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = row0 + threadIdx.x % 32 / 4 + half * 8;
		const uint16_t *from = (const uint16_t *)a.q + attn_q_row(a, r, row);

		attn_q_for_codes<head_dim>(q, half, from, row < rows);
	}
}

/*
 * Returns the lane. The asm keeps the compiler from computing what follows from it before a loop over tasks,
 * the steps of which would lack the registers.
 */
ATTN_DEV int late_lane(void)
{
	int lane = threadIdx.x % 32;

	asm volatile("" : "+r"(lane));
	return lane;
}

/*
 * Q of 16-bit keys passes through shared memory: this starts its copy to s_q. If it were loaded into
 * registers, the first product of every step in the loop over the keys would wait for it, and with it for the
 * page ids of the next step, which ptxas puts on the same scoreboard.
 */
template <int head_dim>
ATTN_DEV void copy_q(const struct cairn_attn_paged_args &a, const struct attn_request &r, uint32_t s_q,
		     int row0, int rows)
{
	constexpr int chunks = head_dim / 8, per_pass = 32 / chunks;
	const int lane = late_lane(), chunk = lane % chunks, first = row0 + lane / chunks;
	const int64_t stride = a.q_stride ? a.q_stride : (int64_t)a.num_qo_heads * head_dim;
	/* row i begins at byte i * 2 * head_dim, plus `gap` for each token before it, counted from here */
	const uint64_t gap = 2 * (stride - r.group * head_dim);
	const char *q = attn_opaque((const char *)a.q + 2 * (r.qo_first * stride + chunk * 8 +
							     (r.head * r.group + first) * head_dim));

	s_q += attn_swizzle(lane / chunks, chunk, head_dim * 2);
#pragma unroll
	for (int i = 0; i < ROWS; i += per_pass) {
		const int row = first + i, exists = row < rows;
		const uint32_t to = (s_q ^ (i & 7) << 4) + i * head_dim * 2;
		const uint32_t token = exists ? attn_token(row, r.magic) : 0;

		ptx_cp_async_cg(to, q + token * gap + i * head_dim * 2, exists ? 16 : 0);
	}
}

/* Loads Q as A fragments from s_q. The whole warp has waited for the copies of all its lanes. */
template <int head_dim> ATTN_DEV void read_q(uint32_t (*q)[4], uint32_t s_q)
{
	s_q += attn_q_at<head_dim>(late_lane());
#pragma unroll
	for (int k = 0; k < head_dim / 16; k++)
		ptx_ldmatrix_x4(q[k], s_q ^ k * 32);
}

/* The keys that each of a lane's two rows sees: first .. first + span - 1. */
struct seen {
	int32_t first[2], span[2];
};

/* Starts the copy of a tile of keys: lane i passes the slot of key i, or ~0. */
template <int head_dim, bool fp8>
ATTN_DEV void gather(const struct cairn_attn_paged_args &a, const struct attn_request &r, uint32_t s_k,
		     uint32_t slot)
{
	constexpr int v_offset = tile_bytes<head_dim, fp8>();

	if (fp8)
		attn_gather_codes<head_dim, tile_keys<head_dim, fp8>(), v_offset>(a, r, s_k, slot);
	else
		attn_gather<head_dim, tile_keys<head_dim, fp8>(), v_offset>(a, r, s_k, 0, slot);
}

/*
 * Adds Q K^T of 16 keys of 16 bits. Each logit has `sums` partial sums, over which its products are divided.
 */
template <int dtype, int head_dim, int sums>
ATTN_DEV void qk_tile(float (*s)[2][4], uint32_t (*q)[4], uint32_t s_k)
{
	uint32_t b[4];

	s_k += attn_k_at<head_dim>(threadIdx.x % 32);
#pragma unroll
	for (int k = 0; k < head_dim / 16; k++) {
		ptx_ldmatrix_x4(b, s_k ^ k * 32);
		attn_mma<dtype>(s[k % sums][0], q[k], b);
		attn_mma<dtype>(s[k % sums][1], q[k], b + 2);
	}
}

/* O += P V of 16 keys of 16 bits. */
template <int dtype, int head_dim>
ATTN_DEV void pv_tile(float (*o)[4], const uint32_t p[4], uint32_t s_v)
{
	uint32_t b[4];

	s_v += attn_v_at<head_dim>(threadIdx.x % 32);
#pragma unroll
	for (int d = 0; d < head_dim / 16; d++) {
		ptx_ldmatrix_x4_trans(b, s_v ^ d * 32);
		attn_mma<dtype>(o[2 * d], p, b);
		attn_mma<dtype>(o[2 * d + 1], p, b + 2);
	}
}

/* In the tile that begins at key `key`, masks the keys that a row does not see. */
template <int tiles> ATTN_DEV void mask_tile(float (*s)[4], const struct seen &see, int key)
{
#pragma unroll
	for (int t = 0; t < tiles; t++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t nth = key + t * 8 + threadIdx.x % 4 * 2 + (i & 1) - see.first[i >> 1];

			if (nth >= (uint32_t)see.span[i >> 1])
				s[t][i] = -CUDART_INF_F;
		}
	}
}

/* Returns whether every row certainly sees all keys of a tile that ends at `end`. */
ATTN_DEV bool all_see(const struct cairn_attn_paged_args &a, const struct attn_request &r, int end)
{
	return end <= r.kv_len - r.qo_len + 1 && (r.qo_len == 1 || !a.window);
}

/*
 * Masks a tile as mask_tile() does, but for 8-bit keys. Only the few tiles in which some row does not see all
 * keys need it, so the range that a row sees is computed here instead of being kept in registers during the
 * loop. The asm keeps the compiler from moving this computation out of the loop. For 16-bit keys, this would
 * make calls with few tiles per warp 1% slower, and would not make calls with many tiles faster.
 */
template <int tiles>
ATTN_DEV void mask_late(float (*s)[4], const struct cairn_attn_paged_args &a, const struct attn_request &r,
			int row0, int key)
{
	int lane = threadIdx.x % 32;

	asm volatile("" : "+r"(row0));
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = row0 + lane / 4 + half * 8, first = attn_row_first(a, r, row);
		int span = max(0, attn_row_sees(a, r, row) - first);

#pragma unroll
		for (int i = 0; i < 2 * tiles; i++) {
			int nth = key + i / 2 * 8 + lane % 4 * 2 + i % 2 - first;

			if ((uint32_t)nth >= (uint32_t)span)
				s[i / 2][2 * half + i % 2] = -CUDART_INF_F;
		}
	}
}

/* S = Q K^T, capped if cap is not 0, masked; then O += P V, for the tile of keys that begins at `key`. */
template <int dtype, int head_dim, bool fp8>
ATTN_DEV void attend_tile(float (*o)[4], float m[2], float l[2], const struct cairn_attn_paged_args &a,
			  const struct attn_request &r, const struct seen &see, uint32_t (*q)[4],
			  uint32_t s_tiles, int row0, int key, float scale_log2, float cap, bool q_is_f16)
{
	constexpr bool placed = fp8 && attn_places_codes<dtype, head_dim>();
	/*
	 * two partial sums per logit where registers allow: a single chain of products would stall the warp
	 */
	constexpr int sums = head_dim == 256 || placed ? 1 : 2;
	constexpr int keys = tile_keys<head_dim, fp8>(), tiles = keys / 8;
	constexpr int raise = placed ? ATTN_CODES_RAISE : 0;
	uint32_t s_v = s_tiles + tile_bytes<head_dim, fp8>();
	float s[sums][tiles][4] = {}, (*logits)[4] = s[0], keep[2];
	uint32_t p[4];

	if constexpr (placed) {
		if (q_is_f16)
			attn_qk_codes<CAIRN_F16, head_dim, keys, sums>(s, q, s_tiles);
		else
			attn_qk_codes<dtype, head_dim, keys, sums>(s, q, s_tiles);
	} else if constexpr (fp8) {
		attn_qk_codes<dtype, head_dim, keys, sums>(s, q, s_tiles);
	} else {
		qk_tile<dtype, head_dim, sums>(s, q, s_tiles);
	}
#pragma unroll
	for (int i = 0; sums == 2 && i < 4 * tiles; i++)
		logits[i / 4][i % 4] += s[sums - 1][i / 4][i % 4];
	if (cap != 0) {
#pragma unroll
		for (int i = 0; i < 4 * tiles; i++)
			logits[i / 4][i % 4] = attn_cap(logits[i / 4][i % 4], cap);
	}
	if (!fp8)
		mask_tile<tiles>(logits, see, key);
	else if (!all_see(a, r, key + keys))
		mask_late<tiles>(logits, a, r, row0, key);
	attn_softmax<tiles, raise>(logits, m, l, keep, scale_log2);
	attn_rescale<head_dim>(o, keep);
#pragma unroll
	for (int i = 0; i < keys / 16; i++) {
		attn_p_fragment<dtype>(p, logits + 2 * i);
		if constexpr (fp8)
			attn_pv_codes<dtype, head_dim>(o, p, s_v + i * 16 * head_dim);
		else
			pv_tile<dtype, head_dim>(o, p, s_v);
	}
}

/* Returns the weight of a state with maximum m in a merge with maximum top. */
ATTN_DEV float merge_weight(float m, float top, float scale_log2)
{
	return m == -CUDART_INF_F ? 0 : ptx_ex2_approx_ftz((m - top) * scale_log2);
}

ATTN_DEV void add_part(float4 *sum, float *l, float4 part, float part_l, float weight)
{
	*l += weight * part_l;
	sum->x += weight * part.x;
	sum->y += weight * part.y;
	sum->z += weight * part.z;
	sum->w += weight * part.w;
}

/* Writes four columns of a finished packed row; o is not yet divided by l. */
template <int dtype, int head_dim>
ATTN_DEV void write_out(const struct cairn_attn_paged_args &a, const struct attn_request &r,
			const struct attn_scales &scales, int row, int column, float4 o, float m, float l)
{
	int64_t at = attn_out_row(a, r, row);
	float factor = l > 0 ? 1 / l * scales.v : 0;
	uint2 packed;

	packed.x = attn_pack<dtype>(o.x * factor, o.y * factor);
	packed.y = attn_pack<dtype>(o.z * factor, o.w * factor);
	*(uint2 *)((uint16_t *)a.out + at * head_dim + column) = packed;
	if (a.lse && column == 0)
		a.lse[at] = attn_lse(m, l, attn_logit_scale(a, scales.k));
}

/* Stores a warp's state: O as [rows][head_dim] to its own ring, which only this warp uses; also m and l. */
template <int dtype, int head_dim, bool fp8>
ATTN_DEV void put_state(uint8_t *s_o, float *s_m, float *s_l, float (*o)[4], const float m[2],
			const float l[2], int num_rows)
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = lane / 4 + half * 8;
		float2 *to = (float2 *)s_o + (row * head_dim + lane % 4 * 2) / 2;
		float sum = attn_quad_sum(l[half]);

		if (fp8 && attn_places_codes<dtype, head_dim>())
			sum *= 0x1p-100f;	/* ATTN_CODES_RAISE */
		if (lane % 4 == 0) {
			s_m[row] = m[half];
			s_l[row] = sum;
		}
		if (row >= num_rows)
			continue;
		if constexpr (fp8) {
			attn_put_codes_row<dtype, head_dim>((float *)s_o + row * head_dim, o, half);
		} else {
#pragma unroll
			for (int t = 0; t < head_dim / 8; t++)
				to[t * 4] = make_float2(o[t][2 * half], o[t][2 * half + 1]);
		}
	}
}

/* The keys that packed rows row0 .. rows - 1 see, begin .. end - 1, and their tiles. */
struct attn_span {
	int32_t begin, end, num_tiles;
};

template <int head_dim, bool fp8>
ATTN_DEV struct attn_span span_of(const struct cairn_attn_paged_args &a, const struct attn_request &r,
				  int32_t row0, int32_t rows)
{
	struct attn_span s;

	s.begin = attn_row_first(a, r, row0);
	s.end = attn_row_sees(a, r, rows - 1);
	s.num_tiles = attn_div_up(s.end - s.begin, tile_keys<head_dim, fp8>());
	return s;
}

/* The shared memory of a CTA. */
struct attn_decode_smem {
	uint8_t *ring;			/* of all warps */
	float *m, *l, *cta_m, *cta_l;
};

template <int head_dim, bool fp8> ATTN_DEV struct attn_decode_smem decode_smem(void)
{
	extern __shared__ __align__(1024) uint8_t s_ring[];
	constexpr int ring = ring_bytes<head_dim, fp8>();
	const int warps = blockDim.x / 32;
	struct attn_decode_smem s;

	s.ring = s_ring;
	s.m = (float *)(s_ring + warps * ring);
	s.l = s.m + warps * ROWS;
	s.cta_m = s.l + warps * ROWS;
	s.cta_l = s.cta_m + ROWS;
	return s;
}

/* scale_log2 turns a product of Q and K in registers into the exponent of a power of two. */
struct attn_scaling {
	struct attn_scales scales;
	float scale_log2;
};

/*
 * Brings Q of 8-bit keys, as it was loaded, into the form that products with K take, and completes *z, which
 * has the scales of the KV head. Sets *cap, 0 without a softcap, and whether 8-bit keys meet Q in f16. Q of
 * 16-bit keys is read afterwards (read_q()).
 */
template <int dtype, int head_dim, bool fp8>
ATTN_DEV void prepare_q(const struct cairn_attn_paged_args &a, uint32_t (*q)[4], struct attn_scaling *z,
			float *cap, bool *q_is_f16)
{
	*q_is_f16 = false;
	if constexpr (fp8 && attn_places_codes<dtype, head_dim>()) {
		const float down = attn_q_in_f16<head_dim>(q);

		*q_is_f16 = down != 0;
		z->scales.k *= *q_is_f16 ? down : 1;
	} else if constexpr (fp8) {
		attn_q_in_order<dtype, head_dim>(q);
	}
	z->scale_log2 = attn_logit_scale(a, z->scales.k) * ATTN_LOG2E;
	*cap = attn_cap_factor(a, z->scales.k);
}

/* Sets the keys that a lane's two rows of the tile that begins at packed row row0 see. */
ATTN_DEV void set_seen(const struct cairn_attn_paged_args &a, const struct attn_request &r, int row0,
		       int lane, struct seen *see)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = row0 + lane / 4 + half * 8;

		see->first[half] = attn_row_first(a, r, row);
		see->span[half] = max(0, attn_row_sees(a, r, row) - see->first[half]);
	}
}

/* Four columns of a row's state, with the row's maximum and sum. */
struct attn_vec {
	float4 o;
	float m, l;
};

/*
 * Returns vector i, of [rows][head_dim / 4], of the CTA's state: the merged states of its warps. place(w) is
 * where in the ring warp w has put its O.
 */
template <int head_dim, class Place>
ATTN_DEV struct attn_vec merge_warps(const struct attn_decode_smem &s, int i, float scale_log2,
				     const Place &place)
{
	const int row = i / (head_dim / 4), warps = blockDim.x / 32;
	struct attn_vec v = { make_float4(0, 0, 0, 0), -CUDART_INF_F, 0 };

#pragma unroll 4
	for (int w = 0; w < warps; w++)
		v.m = fmaxf(v.m, s.m[w * ROWS + row]);
#pragma unroll 4
	for (int w = 0; w < warps; w++)
		add_part(&v.o, &v.l, ((float4 *)(s.ring + place(w)))[i], s.l[w * ROWS + row],
			 merge_weight(s.m[w * ROWS + row], v.m, scale_log2));
	return v;
}

#endif
