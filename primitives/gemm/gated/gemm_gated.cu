// SPDX-License-Identifier: Apache-2.0
/*
 * gemm_gated - a form of the kernels of gemm for few rows: the partners of rows of gate are those of up
 *
 * Floor: reading b once, as gemm. What it saves is a launch, 2 to 4 us: ../NOTES.md.
 */
#include "primitives/base/error.h"
#include "primitives/gemm/gated/gemm_gated.h"
#include "primitives/gemm/gemm_skinny.cuh"
#include "primitives/gemm/gemm_tile.cuh"
#include "primitives/rows/act_mul.cuh"

struct gated {
	static constexpr bool paired = true;
	static constexpr int adders = 0;
	struct rows { };
	struct ready { };
	struct tile { int unit; };

	GEMM_METHOD int row(int unit) const { return unit * GEMM_HALF; }
	GEMM_METHOD int gap(const struct cairn_gemm_args &g) const { return g.n / 2; }
	GEMM_METHOD struct rows find(const struct cairn_gemm_args &) const { return {}; }

	GEMM_METHOD struct tile at(int row, int) const { return { row / GEMM_UNIT }; }

	GEMM_METHOD void fetch(uint32_t to, const CUtensorMap *map, int k, struct tile at, uint32_t full,
			       uint64_t policy) const
	{
		ptx_cp_async_bulk_tensor_4d_g2s_hint(to, map, k, 0, 0, at.unit, full, policy);
	}

	GEMM_METHOD struct ready prepare(const struct cairn_gemm_args &, const struct rows &, int, int,
					 int) const
	{
		return {};
	}

	template <int dtype>
	GEMM_METHOD void store(const struct cairn_gemm_args &g, const struct ready &, int i, int unit, int r,
			       float gate, float up) const
	{
		const int col = row(unit) + r;
		float y[2];

		if (g.bias) {
			gate += row_load(g.bias, dtype, col);
			up += row_load(g.bias, dtype, g.n / 2 + col);
		}
		row_unpack2<dtype>(row_pack2<dtype>(gate, up), y);
		row_store(g.out, dtype, (int64_t)i * (g.n / 2) + col, act_mul_16<0>(y[0], y[1]));
	}

	/* dimensions: k, eight rows, gate and up, eights */
	int map(CUtensorMap *map, const struct cairn_gemm_args *g, int rows) const
	{
		const uint64_t row = (uint64_t)g->k * 2;
		const struct cairn_tensor_layout t = {
			.data = g->b, .dims = 4, .element_bytes = 2,
			.size = { (uint64_t)g->k, GEMM_HALF, 2, (uint64_t)g->n / GEMM_UNIT },
			.stride = { row, (uint64_t)g->n / 2 * row, GEMM_HALF * row },
			.box = { GEMM_PANEL_K, GEMM_HALF, 2, (uint32_t)rows / GEMM_UNIT }, .swizzle = 128,
		};

		return cairn_tensor_map(map, &t, "gemm_gated");
	}
};

extern "C" int cairn_gemm_gated(const struct cairn_gemm_gated_args *args, void *stream)
{
	struct cairn_gemm_args product;

	CAIRN_TRY(cairn_gemm_gated_check(args));
	product = cairn_gemm_gated_product(args);
	return gemm_is_skinny(&product) ? gemm_skinny(&product, gated{}, gemm_weight_16{}, stream) :
	       gemm_tile<CAIRN_GEMM_GATED_M>(&product, gated{}, stream);
}
