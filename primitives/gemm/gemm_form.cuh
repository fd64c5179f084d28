/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm_form - forms of the product for few rows: which rows of b belong together, and what becomes of sums
 *
 * The kernels of gemm_skinny.cuh and gemm_tile.cuh take b in units of 16 rows. Its elements have 16 bits; for
 * gemm_skinny.cuh, gemm_weight.cuh has others. A form is a struct that is passed to a kernel by value and has
 * these members; g are the arguments of the product:
 *
 *	paired		the last eight rows of a unit are partners of the first eight, and results come of two
 *			sums; else each sum gives a result
 *	adders		warps that gemm_skinny adds for the sums: 0, or 2 for a form with prepare()
 *	row(unit)	the first row of a unit
 *	gap(g)		rows of b from a row to its partner
 *	map(m, g, n)	host: sets the tensor map of b for tiles of n rows; returns 0 or -errno
 *	struct tile	where the boxes of a tile's rows lie
 *	at(row, n)	returns this for n rows from number `row` on, counted in the order of units
 *	fetch()		copies 64 elements of k of a tile's rows
 *	struct rows	what the lanes of a warp know of rows of a: lane l of rows l and l + 32
 *	find(g)		returns this; called after griddepcontrol.wait
 *	struct ready	paired: what a lane must know of one result before its sums arrive
 *	prepare()	paired: returns this for row i of a and row r of a unit's first eight. All lanes of a
 *			warp call it together; i is g.m or more in those without a result.
 *	store()		paired: takes the sums x and y of row i of a with this row and with its partner
 *			not paired: takes the sum of row i of a and row j of b
 */
#ifndef CAIRN_GEMM_FORM_CUH
#define CAIRN_GEMM_FORM_CUH

#include "primitives/base/tensor_map.h"
#include "primitives/gemm/gemm.cuh"
#include "primitives/ptx/ptx_copy.cuh"

#define GEMM_UNIT	16	/* rows of b */
#define GEMM_HALF	8	/* rows that have partners */
#define GEMM_PANEL_K	64	/* elements of k that a box of a tensor map has */

#define GEMM_METHOD	__device__ __forceinline__

/* gemm itself. residual: as in cairn_gemm_own() */
struct gemm_plain {
	const void *residual;

	static constexpr bool paired = false;
	static constexpr int adders = 0;
	struct rows { };
	struct ready { };
	struct tile { int row; };

	GEMM_METHOD int row(int unit) const { return unit * GEMM_UNIT; }
	GEMM_METHOD int gap(const struct cairn_gemm_args &) const { return GEMM_HALF; }
	GEMM_METHOD struct rows find(const struct cairn_gemm_args &) const { return {}; }

	GEMM_METHOD struct tile at(int row, int) const { return { row }; }

	GEMM_METHOD void fetch(uint32_t to, const CUtensorMap *map, int k, struct tile at, uint32_t full,
			       uint64_t policy) const
	{
		ptx_cp_async_bulk_tensor_2d_g2s_hint(to, map, k, at.row, full, policy);
	}

	template <int dtype>
	GEMM_METHOD void store(const struct cairn_gemm_args &g, int i, int j, float sum) const
	{
		gemm_store(g, i, j, sum, residual);
	}

	int map(CUtensorMap *map, const struct cairn_gemm_args *g, int rows) const
	{
		const struct cairn_tensor_layout t = {
			.data = g->b, .dims = 2, .element_bytes = 2,
			.size = { (uint64_t)g->k, (uint64_t)g->n }, .stride = { (uint64_t)g->k * 2 },
			.box = { GEMM_PANEL_K, (uint32_t)rows }, .swizzle = 128,
		};

		return cairn_tensor_map(map, &t, "gemm");
	}
};

#endif
