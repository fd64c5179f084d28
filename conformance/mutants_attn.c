// SPDX-License-Identifier: Apache-2.0
/*
 * mutants_attn - attention and KV append as they go wrong in practice
 *
 * One plain online-softmax attention, and one plain append, each with a switch of defects. NONE is
 * right, which the suite checks by the ref and cpu tables; every other value is a bug that some
 * library has had.
 */
#include <math.h>
#include <string.h>

#include "conformance/harness.h"

#define TILE	16	/* keys between two looks at the maximum */

/* Name, and the defect in words. */
#define ATTN_DEFECTS(D) \
	D(causal_edge_one_short, "the last visible key is masked") \
	D(causal_edge_one_far, "one key of the future is visible") \
	D(causal_from_the_top, "the mask is aligned with the first key, not the last") \
	D(causal_ignored, "the mask is not applied") \
	D(causal_always, "the mask is applied to requests without it") \
	D(last_page_ignored, "keys of the last page are dropped") \
	D(last_page_whole, "kv_last_page_len is not looked at: the whole last page is read") \
	D(first_key_dropped, "the walk begins at key 1") \
	D(page_size_less_one, "the page of a key is found by page_size - 1") \
	D(page_table_identity, "page ids are taken to be in order: a stale page table") \
	D(page_table_of_request_0, "all requests read the pages of the first") \
	D(length_of_request_0, "all requests have the length of the first") \
	D(bound_taken_for_length, "max_kv_len is taken for kv_len where the pages allow it") \
	D(head_modulo, "the KV head is h % num_kv_heads") \
	D(head_of_group_0, "all query heads of all groups read KV head 0") \
	D(q_stride_ignored, "rows of q are taken to be contiguous") \
	D(scale_missing, "sm_scale is not applied") \
	D(scale_squared, "sm_scale is applied twice") \
	D(scale_log2_twice, "sm_scale is multiplied with log2(e), and so is the exponent") \
	D(values_from_keys, "P is multiplied with K") \
	D(o_in_dtype, "O is kept in dtype between tiles") \
	D(l_in_dtype, "the sum of p is kept in dtype") \
	D(o_not_rescaled, "O is not multiplied when the maximum rises") \
	D(l_not_rescaled, "l is not multiplied when the maximum rises") \
	D(no_maximum, "exp of the logits themselves") \
	D(sentinel, "-5e4 stands for minus infinity: the running maximum starts there") \
	D(empty_row_nan, "a row without a key is divided by 0") \
	D(empty_row_untouched, "a row without a key is not written") \
	D(empty_row_mean, "a row that the mask leaves no key has the mean of V") \
	D(empty_lse_zero, "lse of a row without a key is 0") \
	D(empty_lse_plus, "lse of a row without a key is plus infinity") \
	D(lse_base_2, "lse is a base-2 logarithm") \
	D(lse_without_max, "lse is ln l alone") \
	D(lse_transposed, "lse is written [heads, rows]") \
	D(masked_times_value, "p = 0 is multiplied with V of slots that hold no key") \
	D(second_half_missing, "the upper half of head_dim is not written") \
	D(row_past_the_end, "one row too many is written") \
	D(last_row_missing, "the last row of the batch is not written") \
	D(last_tile_not_merged, "the state of the last tile is lost") \
	D(not_repeatable, "every other call differs in the last bit") \
	D(input_written, "q is scaled in place") \
	D(window_ignored, "all keys are visible") \
	D(window_one_short, "the window lacks its oldest key") \
	D(window_one_far, "the window has one key too many") \
	D(window_of_tokens, "the window is counted from the row within its request, not from its position") \
	D(window_of_last_row, "all rows of a request have the window of its last one") \
	D(window_from_page, "the window begins with the page that its oldest key is in") \
	D(window_from_tile, "the window begins with the tile that its oldest key is in") \
	D(window_with_causal_only, "without the causal mask the window is forgotten") \
	D(window_masked_times_value, "p = 0 is multiplied with V of keys before the window") \
	D(cap_ignored, "logits are not capped") \
	D(cap_twice, "logits are capped twice") \
	D(cap_before_scale, "q k is capped, and scaled afterwards") \
	D(cap_clamps, "logits are clamped to the cap") \
	D(cap_not_multiplied, "the tanh stays without its factor") \
	D(cap_of_masked, "masked keys are capped, too: their logit is -softcap, not minus infinity") \
	D(cap_approximate, "tanh.approx: a relative error of 2^-11") \
	D(cap_lse_uncapped, "lse is that of the logits before the cap") \
	D(nothing, "success is reported, nothing is done")

#define APPEND_DEFECTS(D) \
	D(slot_plus_one, "each key lands one slot late") \
	D(slot_from_zero, "new keys begin at key 0 instead of kv_len - qo_len") \
	D(stays_on_page, "at a page's end the row goes on in the page before") \
	D(page_table_identity, "page ids are taken to be in order") \
	D(values_from_keys, "V is written from k") \
	D(values_missing, "V is not written") \
	D(k_stride_ignored, "rows of k are taken to be contiguous") \
	D(v_stride_of_rows, "rows of v are taken to be contiguous") \
	D(neighbour_overwritten, "eight elements too many are written") \
	D(head_0_only, "only the first KV head is written") \
	D(last_row_missing, "the last row of the batch is not written") \
	D(padding_written, "rows past qo_indptr[batch] go to the last request") \
	D(request_0_only, "all rows are taken to be the first request's") \
	D(nan_cleaned, "NaN becomes 0 on the way") \
	D(rounded_to_f16, "bf16 passes through f16")

#define NAME_ATTN(name, what)	ATTN_##name,
#define NAME_APPEND(name, what)	APPEND_##name,
enum attn_defect { ATTN_DEFECTS(NAME_ATTN) };
enum append_defect { APPEND_DEFECTS(NAME_APPEND) };

/* Rounded to dtype if the defect is this one. */
static double rounded(double v, int dtype, int yes)
{
	uint64_t box = 0;

	if (!yes)
		return (float)v;
	cairn_store(&box, dtype, 0, v);
	return cairn_load(&box, dtype, 0);
}

struct keys {
	int first_page, num_pages, len, slots;		/* slots: room in the listed pages */
};

static struct keys keys_of(const struct cairn_attn_paged_args *a, int b, enum attn_defect x)
{
	struct keys k;
	int request = x == ATTN_page_table_of_request_0 ? 0 : b, last = a->kv_last_page_len[b];

	k.first_page = a->kv_indptr[request];
	k.num_pages = a->kv_indptr[request + 1] - k.first_page;
	k.slots = k.num_pages * a->page_size;
	k.len = a->kv_indptr[b + 1] - a->kv_indptr[b];
	if (x == ATTN_last_page_whole || k.len == 0)
		last = a->page_size;
	k.len = (k.len - 1) * a->page_size + last;
	if (x == ATTN_last_page_ignored && k.len > a->page_size)
		k.len -= last;
	if (x == ATTN_length_of_request_0)
		k.len = (a->kv_indptr[1] - a->kv_indptr[0] - 1) * a->page_size + a->kv_last_page_len[0];
	if (x == ATTN_bound_taken_for_length)
		k.len = a->max_kv_len;
	k.len = k.len > k.slots ? k.slots : k.len < 0 ? 0 : k.len;
	return k;
}

static int64_t key_at(const struct cairn_attn_paged_args *a, const struct keys *k, int j, int h,
		      enum attn_defect x)
{
	int group = a->num_qo_heads / a->num_kv_heads, head = h / group, nth = j / a->page_size;
	int64_t page;

	if (x == ATTN_page_size_less_one && a->page_size > 1)
		nth = j / (a->page_size - 1);
	nth = nth < k->num_pages ? nth : k->num_pages - 1;
	page = a->kv_indices[k->first_page + nth];
	if (x == ATTN_page_table_identity)
		page = k->first_page + nth;
	if (x == ATTN_head_modulo)
		head = h % a->num_kv_heads;
	if (x == ATTN_head_of_group_0)
		head = 0;
	return ((page * a->page_size + j % a->page_size) * a->num_kv_heads + head) * a->head_dim;
}

static int visible(const struct cairn_attn_paged_args *a, int b, int i, int len, enum attn_defect x)
{
	int qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b], n = len;

	if ((a->causal || x == ATTN_causal_always) && x != ATTN_causal_ignored)
		n = i + 1 + (x == ATTN_causal_from_the_top ? 0 : len - qo_len);
	if (a->causal && x == ATTN_causal_edge_one_short && n > 1)
		n--;
	if (a->causal && x == ATTN_causal_edge_one_far)
		n++;
	return n < 0 ? 0 : n > len ? len : n;
}

/* The first key that row i of request b sees, whose keys are k. */
static int first_key(const struct cairn_attn_paged_args *a, int b, int i, int len, enum attn_defect x)
{
	int qo_len = a->qo_indptr[b + 1] - a->qo_indptr[b], first;
	int64_t position = (int64_t)i + len - qo_len;

	if (x == ATTN_first_key_dropped)
		return 1;
	if (!a->window || x == ATTN_window_ignored || (x == ATTN_window_with_causal_only && !a->causal))
		return 0;
	if (x == ATTN_window_of_tokens)
		position = i;
	if (x == ATTN_window_of_last_row)
		position = len - 1;
	position += (x == ATTN_window_one_short) - (x == ATTN_window_one_far);
	first = position >= a->window ? (int)(position - a->window + 1) : 0;
	if (x == ATTN_window_from_page)
		first -= first % a->page_size;
	if (x == ATTN_window_from_tile)
		first -= first % TILE;
	return first;
}

/* A visible logit, q k before the scale. */
static double logit(const struct cairn_attn_paged_args *a, double dot, double scale, enum attn_defect x)
{
	double cap = (double)a->softcap, v = dot * scale, t;

	if (!(cap > 0) || x == ATTN_cap_ignored)
		return v;
	if (x == ATTN_cap_before_scale)
		return cap * tanh(dot / cap) * scale;
	if (x == ATTN_cap_clamps)
		return fmin(fmax(v, -cap), cap);
	t = tanh(v / cap);
	if (x == ATTN_cap_twice)
		t = tanh(t);
	if (x == ATTN_cap_approximate)
		t *= 1 + 0x1p-11 * sin(1e3 * v);
	return x == ATTN_cap_not_multiplied ? t : cap * t;
}

/* Row i of request b, head h; `row` is where it is written. */
static void attend_row(const struct cairn_attn_paged_args *a, int b, int i, int h, int64_t row,
		       enum attn_defect x)
{
	int64_t packed = (int64_t)a->num_qo_heads * a->head_dim, dim = a->head_dim,
		at = row * a->num_qo_heads + h;
	int64_t stride = a->q_stride && x != ATTN_q_stride_ignored ? a->q_stride : packed;
	int64_t q_at = (a->qo_indptr[b] + i) * stride + h * dim;
	double m = x == ATTN_sentinel ? -5e4 : -INFINITY, l = 0, o[256] = { 0 }, scale = a->sm_scale, lse;
	const void *values = x == ATTN_values_from_keys ? a->k_pages : a->v_pages;
	struct keys k = keys_of(a, b, x);
	int n = visible(a, b, i, k.len, x), first = first_key(a, b, i, k.len, x), read = n, empty = !n;
	int from = first;	/* what is read, if not seen */

	if (x == ATTN_scale_missing)
		scale = 1;
	if (x == ATTN_scale_squared)
		scale *= scale;
	if (x == ATTN_scale_log2_twice)
		scale *= 1.4426950408889634;
	if (x == ATTN_masked_times_value && n)
		read = k.slots < n + TILE ? k.slots : n + TILE;
	if (x == ATTN_last_tile_not_merged && n > TILE)
		read = n = (n - 1) / TILE * TILE;
	if (x == ATTN_empty_row_mean && !n)
		read = k.len;
	if (x == ATTN_window_masked_times_value || (x == ATTN_cap_of_masked && a->softcap > 0))
		from = first > TILE / 2 ? first - TILE / 2 : 0;
	if (x == ATTN_cap_of_masked && a->softcap > 0)
		read = k.len;
	for (int tile = from; tile < read; tile += TILE) {
		double s[TILE], top = m, keep;
		int count = read - tile < TILE ? read - tile : TILE;

		for (int j = 0; j < count; j++) {
			s[j] = 0;
			for (int c = 0; c < dim; c++)
				s[j] += cairn_load(a->q, a->dtype, q_at + c) *
					cairn_load(a->k_pages, a->dtype, key_at(a, &k, tile + j, h, x) + c);
			if (tile + j >= first && tile + j < n)
				s[j] = logit(a, s[j], scale, x);
			else
				s[j] = x == ATTN_empty_row_mean ? 0 :
				       x == ATTN_cap_of_masked && a->softcap > 0 ? -(double)a->softcap :
				       -INFINITY;
			top = s[j] > top ? s[j] : top;
		}
		if (x == ATTN_no_maximum)
			top = 0;
		keep = m == top ? 1 : exp(m - top);	/* also where nothing was seen yet */
		m = top;
		l = rounded(l * (x == ATTN_l_not_rescaled ? 1 : keep), a->dtype, x == ATTN_l_in_dtype);
		for (int c = 0; c < dim; c++)
			o[c] *= x == ATTN_o_not_rescaled && keep > 0 ? 1 : keep;
		for (int j = 0; j < count; j++) {
			double p = (float)exp(s[j] - top);

			l = rounded(l + p, a->dtype, x == ATTN_l_in_dtype);
			for (int c = 0; c < dim; c++)
				o[c] += p * cairn_load(values, a->dtype, key_at(a, &k, tile + j, h, x) + c);
		}
		for (int c = 0; c < dim; c++)
			o[c] = rounded(o[c], a->dtype, x == ATTN_o_in_dtype);
	}
	if (x == ATTN_empty_row_untouched && empty)
		return;
	for (int c = 0; c < (x == ATTN_second_half_missing ? dim / 2 : dim); c++)
		cairn_store(a->out, a->dtype, at * dim + c, l > 0 || x == ATTN_empty_row_nan ? o[c] / l : 0);
	if (!a->lse)
		return;
	lse = l > 0 ? (x == ATTN_lse_without_max ? 0 : m) + log(l) : -INFINITY;
	if (x == ATTN_cap_lse_uncapped && a->softcap > 0 && fabs(m) < (double)a->softcap)
		lse += (double)a->softcap * atanh(m / (double)a->softcap) - m;
	if (x == ATTN_lse_base_2)
		lse *= 1.4426950408889634;
	if (empty && (x == ATTN_empty_lse_zero || x == ATTN_empty_lse_plus))
		lse = x == ATTN_empty_lse_zero ? 0 : INFINITY;
	a->lse[x == ATTN_lse_transposed ? h * (int64_t)a->qo_indptr[a->batch] + row : at] = (float)lse;
}

static int attend(const struct cairn_attn_paged_args *a, enum attn_defect x)
{
	static int calls;
	int64_t bytes = 0;

	CAIRN_TRY(cairn_attn_paged_check(a));
	if (x == ATTN_nothing)
		return 0;
	for (int b = 0; b < a->batch; b++) {
		int len = a->qo_indptr[b + 1] - a->qo_indptr[b];

		if (b == a->batch - 1 && x == ATTN_last_row_missing)
			len--;
		for (int i = 0; i < len; i++)
			for (int h = 0; h < a->num_qo_heads; h++)
				attend_row(a, b, i, h, a->qo_indptr[b] + i, x);
		bytes += (int64_t)len * a->num_qo_heads * a->head_dim * 2;
	}
	if (x == ATTN_row_past_the_end)	/* its first elements: what follows a buffer is not the buffer's */
		memset((char *)a->out + bytes, 0, 64);
	if (x == ATTN_not_repeatable && bytes && calls++ % 2)
		*(uint16_t *)a->out ^= 1;
	if (x == ATTN_input_written && bytes)
		cairn_store((void *)a->q, a->dtype, 0, 2 * cairn_load(a->q, a->dtype, 0) + 1);
	return 0;
}

static int append(const struct cairn_kv_append_args *a, enum append_defect x)
{
	int64_t row, k_stride, v_stride, written;
	int rows;

	CAIRN_TRY(cairn_kv_append_check(a));
	row = (int64_t)a->num_kv_heads * a->head_dim;
	k_stride = a->k_stride && x != APPEND_k_stride_ignored ? a->k_stride : row;
	v_stride = a->v_stride && x != APPEND_v_stride_of_rows ? a->v_stride : row;
	rows = x == APPEND_padding_written ? a->nnz_qo : a->batch ? a->qo_indptr[a->batch] : 0;
	written = x == APPEND_head_0_only ? a->head_dim : x == APPEND_neighbour_overwritten ? row + 8 : row;
	for (int i = 0; i < rows - (x == APPEND_last_row_missing); i++) {
		int b = 0, pages, key, nth, slot;
		int64_t to;

		while (x != APPEND_request_0_only && b < a->batch - 1 && a->qo_indptr[b + 1] <= i)
			b++;
		pages = a->kv_indptr[b + 1] - a->kv_indptr[b];
		key = (pages - 1) * a->page_size + a->kv_last_page_len[b] - a->qo_indptr[b + 1] + i;
		if (x == APPEND_slot_from_zero)
			key = i - a->qo_indptr[b];
		if (x == APPEND_slot_plus_one)
			key++;
		key = key < pages * a->page_size ? key : pages * a->page_size - 1;
		if (key < 0)
			continue;
		nth = key / a->page_size;
		slot = key % a->page_size;
		if (x == APPEND_stays_on_page && nth && !slot)
			nth--;
		nth += a->kv_indptr[b];
		to = x == APPEND_page_table_identity ? nth : a->kv_indices[nth];
		to = to * a->page_size + slot;
		for (int64_t c = 0; c < written; c++) {
			int64_t at = c < row ? c : row - 1;
			double k = cairn_load(a->k, a->dtype, i * k_stride + at);
			double v = cairn_load(a->v, a->dtype, i * v_stride + at);

			if (x == APPEND_values_from_keys)
				v = k;
			if (x == APPEND_nan_cleaned)
				v = isnan(v) ? 0 : v;
			if (x == APPEND_rounded_to_f16)
				v = rounded(v, CAIRN_F16, 1);
			cairn_store(a->k_pages, a->dtype, to * row + c, k);
			if (x != APPEND_values_missing)
				cairn_store(a->v_pages, a->dtype, to * row + c, v);
		}
	}
	return 0;
}

#define DEFINE_ATTN(name, what) \
	static int attn_##name(const struct cairn_attn_paged_args *a, void *stream) \
	{ \
		(void)stream; \
		return attend(a, ATTN_##name); \
	}
#define DEFINE_APPEND(name, what) \
	static int append_##name(const struct cairn_kv_append_args *a, void *stream) \
	{ \
		(void)stream; \
		return append(a, APPEND_##name); \
	}
ATTN_DEFECTS(DEFINE_ATTN)
APPEND_DEFECTS(DEFINE_APPEND)

#define LIST_ATTN(name, what) \
	{ "attn_paged_" #name, offsetof(struct cairn_impl, attn_paged), (void *)attn_##name, what },
#define LIST_APPEND(name, what) \
	{ "kv_append_" #name, offsetof(struct cairn_impl, kv_append), (void *)append_##name, what },

const struct cairn_mutant cairn_attn_mutants[] = { ATTN_DEFECTS(LIST_ATTN) APPEND_DEFECTS(LIST_APPEND) { 0 } };
