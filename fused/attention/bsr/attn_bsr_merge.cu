/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_bsr_merge - merges the states of pieces and of parts into out and lse; a warp merges one packed row of
 * a unit
 *
 * If the call has one part, units that are not cut are already finished. The states of a row are added in a
 * fixed order: parts ascending, and the pieces of a part by their keys. The lanes read the lse of up to 32
 * pieces at once; they do not read states without weight.
 */
#include "fused/attention/bsr/attn_bsr_dev.cuh"

#define THREADS		ATTN_MERGE_THREADS
#define WARPS		(THREADS / 32)

/* The states of a row that have been added so far: their sums relative to the largest lse. */
template <int vec> struct merged {
	float top, sum, o[vec];
};

/* Adds n states, at most 32. Lane i < n holds the lse of state i and the number of its row in o. */
template <int vec>
ATTN_DEV void add(struct merged<vec> *m, const float *o, int n, float lse, int64_t at)
{
	const float top = fmaxf(m->top, attn_warp_max(lse));
	const float keep = ptx_ex2_approx_ftz((m->top - top) * ATTN_LOG2E);
	const float weight = ptx_ex2_approx_ftz((lse - top) * ATTN_LOG2E);

	if (top == -CUDART_INF_F)
		return;
	m->top = top;
	m->sum *= keep;
#pragma unroll
	for (int i = 0; i < vec; i++)
		m->o[i] *= keep;
#pragma unroll 4
	for (int k = 0; k < n; k++) {
		const float w = __shfl_sync(~0u, weight, k);
		const int64_t row = __shfl_sync(~0u, (long long)at, k);
		const float2 *v = (const float2 *)(o + row * 32 * vec) + threadIdx.x % 32;

		m->sum += w;
#pragma unroll
		for (int i = 0; i < vec / 2; i++) {
			float2 two = w > 0 ? v[32 * i] : make_float2(0, 0);

			m->o[2 * i] = fmaf(w, two.x, m->o[2 * i]);
			m->o[2 * i + 1] = fmaf(w, two.y, m->o[2 * i + 1]);
		}
	}
}

/* Adds the states of a packed row of a unit. If the unit is whole, `state` is the index of its state. */
template <int vec>
ATTN_DEV void add_unit(const struct attn_bsr_call &c, struct merged<vec> *m, int32_t unit, int32_t row,
		       int64_t state)
{
	const struct attn_unit u = c.w.units[unit];
	const int32_t lane = threadIdx.x % 32, runs = c.w.head->runs;
	int n = 32;

	if (!u.cut) {
		add<vec>(m, c.w.part_o, 1, lane ? -CUDART_INF_F : c.w.part_lse[state], state);
		return;
	}
	/* the first piece is the last one of run u.cut - 1, in its second slot; the others begin runs */
	for (int32_t first = u.cut - 1; n == 32; first += 32) {
		const int32_t run = first + lane;
		const int64_t at = (run < u.cut ? 2 * run + 1 : 2 * run) * (int64_t)c.d.rows + row - u.row0;
		bool of_unit = run < u.cut ||
			       (run < runs && c.w.runs[run].unit == unit && c.w.runs[run].tile > 0);

		n = __ffs(~__ballot_sync(~0u, of_unit)) - 1;
		n = n < 0 ? 32 : n;
		add<vec>(m, c.w.piece_o, n, lane < n ? c.w.piece_lse[at] : -CUDART_INF_F, at);
	}
}

/* Returns the block row of a part that holds a place. */
ATTN_DEV int32_t row_of(const struct cairn_attn_part *p, int32_t place)
{
	int32_t low = 0, high = p->rows;

	if (!p->row_indptr)
		return place / p->block_m;
	while (high - low > 1) {
		int32_t middle = low + (high - low) / 2;

		if (p->row_indptr[middle] <= place)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Adds the states of a token and a query head in part k. */
template <int vec>
ATTN_DEV void add_part(const struct attn_bsr_call &c, struct merged<vec> *m, int k, int32_t token,
		       int32_t head)
{
	const struct cairn_attn_part *p = &c.a.part[k];
	const int32_t kv_head = head / c.d.group, index_head = p->index_heads > 1 ? kv_head : 0;
	int64_t places = p->row_indptr ? p->row_indptr[p->rows] : (int64_t)p->rows * p->block_m;
	int32_t place = p->q_index ? c.w.place[k][token] : token, heads = attn_list_heads(&c.a, &c.d, k);
	int32_t row, list, packed;
	struct attn_list l;

	if (place < 0 || place >= places)
		return;
	row = row_of(p, place);
	list = c.d.lists[k] + index_head * p->rows + row;
	l = attn_bsr_list(&c.a, &c.d, list);
	packed = (place - l.first) * c.d.group + head - kv_head * c.d.group;
	list = c.w.list_units[list] + attn_unit_of(&c.d, heads, attn_list_tiles(&c.d, &l), packed / c.d.rows,
						   heads > 1 ? kv_head : 0);
	add_unit<vec>(c, m, list, packed, ((int64_t)k * c.a.nnz_qo + token) * c.a.num_qo_heads + head);
}

template <int dtype, int vec>
ATTN_DEV void write_row(const struct attn_bsr_call &c, const struct merged<vec> &m, int64_t at)
{
	const float factor = m.sum > 0 ? 1 / m.sum : 0;
	uint32_t *out = (uint32_t *)c.a.out + at * 16 * vec + threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < vec / 2; i++)
		out[32 * i] = attn_pack<dtype>(m.o[2 * i] * factor, m.o[2 * i + 1] * factor);
	if (c.a.lse && threadIdx.x % 32 == 0)
		c.a.lse[at] = m.sum > 0 ? m.top + logf(m.sum) : -CUDART_INF_F;
}

/* A packed row of a unit of part 0. token -1: there is no such row, or it is already finished. */
struct merge_row {
	int32_t unit, row, token, head;
};

/* Returns row `in_tile` of a unit's row tile. */
ATTN_DEV struct merge_row find_row(const struct attn_bsr_call &c, int32_t unit, int32_t in_tile)
{
	const struct cairn_attn_part *p = &c.a.part[0];
	const struct attn_unit u = c.w.units[unit];
	const int32_t row = u.row0 + in_tile, ordinal = attn_token(row, c.d.magic);
	struct attn_list l;

	if (c.a.num_parts == 1 && !u.cut)
		return { unit, row, -1, 0 };
	l = attn_bsr_list(&c.a, &c.d, (p->index_heads > 1 ? u.kv_head : 0) * p->rows + u.row);
	if (ordinal >= l.tokens)
		return { unit, row, -1, 0 };
	return { unit, row, attn_bsr_token(p, l.first + ordinal),
		 u.kv_head * c.d.group + row - ordinal * c.d.group };
}

/*
 * Number n stands for row n / units in the row tile of unit n % units, so that the rows of units with few
 * rows go to different warps. Each lane looks up one number, so that a warp finds the existing ones among its
 * next 32 rows at once.
 */
template <int dtype, int vec>
static __global__ __launch_bounds__(THREADS, 8) void
merge_kernel(const __grid_constant__ struct attn_bsr_call c)
{
	const int64_t warps = (int64_t)gridDim.x * WARPS;
	int64_t rows;
	int32_t units;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	units = c.w.list_units[c.d.lists[1]];
	if (c.a.num_parts == 1 && c.w.head->whole)
		return;
	rows = (int64_t)units * c.d.rows;
	for (int64_t first = blockIdx.x * WARPS + threadIdx.x / 32; first < rows; first += 32 * warps) {
		const int64_t own = first + threadIdx.x % 32 * warps;
		struct merge_row r = { 0, 0, -1, 0 };

		if (own < rows)
			r = find_row(c, (int32_t)(own % units), (int32_t)(own / units));
		for (uint32_t left = __ballot_sync(~0u, r.token >= 0); left; left &= left - 1) {
			const int lane = __ffs(left) - 1;
			const int32_t unit = __shfl_sync(~0u, r.unit, lane);
			const int32_t row = __shfl_sync(~0u, r.row, lane);
			const int32_t token = __shfl_sync(~0u, r.token, lane);
			const int32_t head = __shfl_sync(~0u, r.head, lane);
			const int64_t at = (int64_t)token * c.a.num_qo_heads + head;
			struct merged<vec> m = { -CUDART_INF_F };

			add_unit<vec>(c, &m, unit, row, at);
			for (int k = 1; k < c.a.num_parts; k++)
				add_part<vec>(c, &m, k, token, head);
			write_row<dtype, vec>(c, m, at);
		}
	}
}

template <int dtype> static const void *kernel_of(int32_t head_dim)
{
	switch (head_dim) {
	case 64:
		return (const void *)merge_kernel<dtype, 2>;
	case 128:
		return (const void *)merge_kernel<dtype, 4>;
	default:
		return (const void *)merge_kernel<dtype, 8>;
	}
}

const void *attn_bsr_merge_kernel(int32_t head_dim, int32_t dtype)
{
	return dtype == CAIRN_BF16 ? kernel_of<CAIRN_BF16>(head_dim) : kernel_of<CAIRN_F16>(head_dim);
}
