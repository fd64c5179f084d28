// SPDX-License-Identifier: Apache-2.0
/*
 * qkv_append - a form of the kernels of gemm for few rows: a unit has rows of b whose columns rotate together
 *
 * The rows of b for a head of head_dim d are divided into units of eight rows from the first half of the head
 * and the same eight of the second half. Both sums of a pair are then in one lane, which rotates them and
 * writes them to q or to the slot of their row in the pages.
 *
 * Floor: reading b once, as gemm. What it saves are two launches, a small pass over q, k and v in each:
 * NOTES.md.
 */
#include "fused/cache/kv_slot.h"
#include "fused/qkv/qkv_append.h"
#include "primitives/base/error.h"
#include "primitives/gemm/gemm_skinny.cuh"
#include "primitives/gemm/gemm_tile.cuh"
#include "primitives/ptx/fp8.cuh"
#include "primitives/rows/rope.cuh"

#define BOX_BYTES	(GEMM_UNIT * GEMM_PANEL_K * 2)
#define MAX_BOXES	(TILE_ROWS / GEMM_UNIT)

struct qkv {
	struct cairn_qkv_append_args a;

	static constexpr bool paired = true;
	static constexpr int adders = 2;

	struct rows {
		int64_t slot[2];	/* counted over all pages; -1: not appended */
		float position[2];
	};

	GEMM_METHOD int half(void) const { return a.head_dim / 2; }
	GEMM_METHOD int head_of(int unit) const { return unit / (half() / GEMM_HALF); }
	GEMM_METHOD int gap(const struct cairn_gemm_args &) const { return half(); }
	GEMM_METHOD int row(int unit) const { return unit * GEMM_HALF + head_of(unit) * half(); }

	GEMM_METHOD struct rows find(const struct cairn_gemm_args &g) const
	{
		const int total = a.qo_indptr[a.kv.batch];
		struct rows rows;

#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int i = 32 * h + threadIdx.x % 32;

			rows.position[h] = i < g.m ? (float)a.positions[i] : 0;
			rows.slot[h] = i < g.m && i < total ?
				       kv_new_slot(&a.kv, a.qo_indptr,
						   kv_owner(a.qo_indptr, a.kv.batch, i), i) : -1;
		}
		return rows;
	}

	/* A box has the 16 rows of one unit, since units of different heads are not equally far apart. */
	struct tile {
		int num, eight[MAX_BOXES], head[MAX_BOXES];
	};

	GEMM_METHOD struct tile at(int row, int rows) const
	{
		struct tile t = { rows / GEMM_UNIT };

#pragma unroll
		for (int i = 0; i < MAX_BOXES; i++) {
			t.head[i] = head_of(row / GEMM_UNIT + i);
			t.eight[i] = row / GEMM_UNIT + i - t.head[i] * (half() / GEMM_HALF);
		}
		return t;
	}

	GEMM_METHOD void fetch(uint32_t to, const CUtensorMap *map, int k, const struct tile &t,
			       uint32_t full, uint64_t policy) const
	{
#pragma unroll
		for (int i = 0; i < MAX_BOXES; i++)
			if (i < t.num)
				ptx_cp_async_bulk_tensor_5d_g2s_hint(to + i * BOX_BYTES, map, k, 0, 0,
								     t.eight[i], t.head[i], full, policy);
	}

	/* The cosine and sine of the pair's angle, and where its first element goes; NULL: it is dropped */
	struct ready {
		float c, s, scale;
		char *to;
	};

	GEMM_METHOD bool rotates(int head) const { return head < a.num_qo_heads + a.num_kv_heads; }

	GEMM_METHOD struct ready prepare(const struct cairn_gemm_args &g, const struct rows &rows, int i,
					 int unit, int r) const
	{
		const int lane = i % 32, head = head_of(unit), dim = row(unit) + r - head * a.head_dim;
		const float low = __shfl_sync(~0u, rows.position[0], lane);
		const float high = __shfl_sync(~0u, rows.position[1], lane);
		const int64_t low_slot = __shfl_sync(~0u, rows.slot[0], lane);
		const int64_t high_slot = __shfl_sync(~0u, rows.slot[1], lane);
		const int64_t slot = i < 32 ? low_slot : high_slot;
		struct ready p = { 1, 0, 1, NULL };

		if (i >= g.m)
			return p;
		if (rotates(head))
			angle_cos_sin(__fmul_rn(i < 32 ? low : high, __ldg(a.inv_freq + dim)), &p.c, &p.s);
		if (head < a.num_qo_heads) {
			p.to = (char *)a.q + (i * a.q_stride + (int64_t)head * a.head_dim + dim) * 2;
		} else if (slot >= 0) {
			const bool is_v = !rotates(head);
			const int nth = head - a.num_qo_heads - (is_v ? a.num_kv_heads : 0);
			const float *scales = is_v ? a.v_scale : a.k_scale;

			p.scale = scales ? scales[nth] : 1;
			p.to = (char *)(is_v ? a.kv.v_pages : a.kv.k_pages) +
			       ((slot * a.num_kv_heads + nth) * a.head_dim + dim) * (a.kv_fp8 ? 1 : 2);
		}
		return p;
	}

	template <int dtype>
	GEMM_METHOD void store(const struct cairn_gemm_args &g, const struct ready &p, int, int unit, int r,
			       float x, float y) const
	{
		const int head = head_of(unit), col = row(unit) + r;
		float v[2];

		if (g.bias) {
			x += row_load(g.bias, dtype, col);
			y += row_load(g.bias, dtype, col + half());
		}
		row_unpack2<dtype>(row_pack2<dtype>(x, y), v);
		if (rotates(head))
			rope_pair(p.c, p.s, &v[0], &v[1]);
		if (!p.to)
			return;
		if (!a.kv_fp8 || head < a.num_qo_heads) {
			row_store(p.to, dtype, 0, v[0]);
			row_store(p.to, dtype, half(), v[1]);
		} else {
			uint32_t codes;

			row_unpack2<dtype>(row_pack2<dtype>(v[0], v[1]), v);
			codes = fp8_narrow(__fdiv_rn(v[0], p.scale), __fdiv_rn(v[1], p.scale));
			p.to[0] = (char)codes;
			p.to[half()] = (char)(codes >> 8);
		}
	}

	/* dimensions: k, eight rows, halves of a head, eights of a half, heads */
	int map(CUtensorMap *map, const struct cairn_gemm_args *g, int) const
	{
		const uint64_t row = (uint64_t)g->k * 2, half = (uint64_t)a.head_dim / 2;
		const struct cairn_tensor_layout t = {
			.data = g->b, .dims = 5, .element_bytes = 2,
			.size = { (uint64_t)g->k, GEMM_HALF, 2, half / GEMM_HALF,
				  (uint64_t)(g->n / a.head_dim) },
			.stride = { row, half * row, GEMM_HALF * row, 2 * half * row },
			.box = { GEMM_PANEL_K, GEMM_HALF, 2, 1, 1 }, .swizzle = 128,
		};

		return cairn_tensor_map(map, &t, "qkv_append");
	}
};

extern "C" int cairn_qkv_append(const struct cairn_qkv_append_args *args, void *stream)
{
	struct cairn_gemm_args product = {};
	struct qkv form;

	CAIRN_TRY(cairn_qkv_append_check(args));
	form.a = *args;
	form.a.q_stride = cairn_qkv_append_q_stride(args);
	product.size = sizeof(product);
	product.a = args->a;
	product.b = args->b;
	product.bias = args->bias;
	product.m = args->m;
	product.n = cairn_qkv_append_n(args);
	product.k = args->k;
	product.dtype = product.out_dtype = args->dtype;
	product.sms = args->sms;
	return gemm_is_skinny(&product) ? gemm_skinny(&product, form, gemm_weight_16{}, stream) :
	       gemm_tile<CAIRN_QKV_APPEND_M>(&product, form, stream);
}
