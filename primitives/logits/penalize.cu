/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penalize.cu - each CTA owns a range of tokens of one row; no step depends on another CTA
 *
 * Schedule. Between steps, __syncthreads orders one thread's store to a logit before another thread's load of
 * it:
 *   1. with a cap, all logits of the range, in vectors of 16 bytes
 *   2. the row's bias: every CTA reads all entries and applies those within its range
 *   3. the counters of the range, 8 per load with UNROLL loads in flight; only logits with a nonzero counter
 *      are accessed, and a row with all penalties off skips this step
 *   4. forbidden tokens, as the bias
 *
 * The size of a range gives each SM about CTAS_PER_SM CTAs, within PART_MIN and PART_MAX.
 *
 * Floor: without a cap, 2 bytes per token plus the sectors of the logits that change: 64 rows of 128256 are
 * 16 MB, 3.6 us at the read stream's speed; with a cap 8 bytes more per token (66 MB), 16 us. A row without
 * history costs its lists and a launch. A list of the distinct tokens of each sequence would be less to read
 * than all counters, but such a list has no reproducible order; it was not built.
 */
#include "primitives/base/launch.h"
#include "primitives/logits/penalize.h"
#include "primitives/ptx/ptx.cuh"
#include "primitives/rows/row.cuh"
#include "primitives/logits/token_counts.h"

#define THREADS		256
#define UNROLL		2
#define PART_MIN	2048
#define PART_MAX	(UNROLL * THREADS * 8)
#define CTAS_PER_SM	8

struct rule {
	float repetition, frequency, presence;
};

ROW void apply(float *x, uint32_t c, const struct rule *r)
{
	float y = *x, n = (float)(c & CAIRN_TOKEN_COUNT);

	y = y > 0 ? __fdiv_rn(y, r->repetition) : y * r->repetition;
	if (c & CAIRN_TOKEN_COUNT)
		y = y - r->frequency * n - r->presence;
	*x = y;
}

ROW float capped(float x, float cap)
{
	return cap * tanhf(__fdiv_rn(x, cap));
}

/* Returns the number of elements of x[0 .. n) before the first 16-byte boundary. */
ROW int head_of(const void *x, int n, int esize)
{
	return min((int)((16 - ((uintptr_t)x & 15)) % 16) / esize, n);
}

ROW void cap_range(float *x, int n, float cap)
{
	const int head = head_of(x, n, 4), vecs = (n - head) / 4, tail = head + vecs * 4;
	float4 *v = (float4 *)(x + head);

	if (threadIdx.x < head)
		x[threadIdx.x] = capped(x[threadIdx.x], cap);
	if (tail + threadIdx.x < n)
		x[tail + threadIdx.x] = capped(x[tail + threadIdx.x], cap);
#pragma unroll 4
	for (int i = threadIdx.x; i < vecs; i += THREADS) {
		float4 f = v[i];

		f.x = capped(f.x, cap);
		f.y = capped(f.y, cap);
		f.z = capped(f.z, cap);
		f.w = capped(f.w, cap);
		v[i] = f;
	}
}

/* Appends a nonzero counter c and its index `at` within the range to the list, for apply(). */
ROW void note(uint32_t *list, uint32_t *num, int at, uint32_t c)
{
	if (c)
		list[atomicAdd(num, 1u)] = (uint32_t)at << 16 | c;
}

ROW void note_8(uint32_t *list, uint32_t *num, int at, uint4 c)
{
	const uint32_t pairs[4] = { c.x, c.y, c.z, c.w };

	if (!(c.x | c.y | c.z | c.w))
		return;
#pragma unroll
	for (int k = 0; k < 4; k++) {
		note(list, num, at + 2 * k, pairs[k] & 0xffff);
		note(list, num, at + 2 * k + 1, pairs[k] >> 16);
	}
}

/* Applies the penalties to the n logits of the range. All threads of the CTA must call this. */
ROW void count_range(float *x, const uint16_t *counts, int n, const struct rule *r)
{
	const int head = head_of(counts, n, 2), vecs = (n - head) / 8, tail = head + vecs * 8;
	const uint4 *v = (const uint4 *)(counts + head);
	__shared__ uint32_t s_list[PART_MAX], s_num;
	uint4 c[UNROLL];

	if (threadIdx.x == 0)
		s_num = 0;
#pragma unroll
	for (int k = 0; k < UNROLL; k++) {
		int i = threadIdx.x + k * THREADS;

		c[k] = i < vecs ? ptx_ld_global_nc_no_allocate_v4(v + i) : make_uint4(0, 0, 0, 0);
	}
	__syncthreads();
	if (threadIdx.x < head)
		note(s_list, &s_num, threadIdx.x, counts[threadIdx.x]);
	if (tail + threadIdx.x < n)
		note(s_list, &s_num, tail + threadIdx.x, counts[tail + threadIdx.x]);
#pragma unroll
	for (int k = 0; k < UNROLL; k++)
		note_8(s_list, &s_num, head + 8 * (threadIdx.x + k * THREADS), c[k]);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < s_num; i += THREADS)
		apply(x + (s_list[i] >> 16), s_list[i] & 0xffff, r);
}

__global__ void __launch_bounds__(THREADS)
penalize_kernel(const __grid_constant__ struct cairn_penalize_args a, int parts, int part)
{
	const int row = blockIdx.x / parts, lo = blockIdx.x % parts * part, n = min(part, a.vocab - lo);
	float *x = a.logits + (int64_t)row * a.vocab + lo;
	struct rule r = { 1, 0, 0 };
	int slot = -1, num_bias = 0, num_forbidden = 0, bias_at = 0, forbidden_at = 0;

	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (a.counts) {
		slot = a.slots[row];
		r.repetition = a.repetition[row];
		r.frequency = a.frequency[row];
		r.presence = a.presence[row];
	}
	if (a.num_bias) {
		num_bias = a.num_bias[row];
		bias_at = a.bias_at[row];
	}
	if (a.num_forbidden) {
		num_forbidden = a.num_forbidden[row];
		forbidden_at = a.forbidden_at[row];
	}
	if (a.softcap > 0) {
		cap_range(x, n, a.softcap);
		__syncthreads();
	}
	for (int k = threadIdx.x; k < num_bias; k += THREADS) {
		int at = a.bias_ids[bias_at + k] - lo;

		if (at >= 0 && at < n)
			x[at] += a.bias[bias_at + k];
	}
	if (num_bias > 0)
		__syncthreads();
	if (slot >= 0 && slot < a.num_slots && (r.repetition != 1 || r.frequency != 0 || r.presence != 0))
		count_range(x, a.counts + (int64_t)slot * a.vocab + lo, n, &r);
	if (num_forbidden <= 0)
		return;
	__syncthreads();
	for (int k = threadIdx.x; k < num_forbidden; k += THREADS) {
		int at = a.forbidden_ids[forbidden_at + k] - lo;

		if (at >= 0 && at < n)
			x[at] = -INFINITY;
	}
}

extern "C" int cairn_penalize(const struct cairn_penalize_args *a, void *stream)
{
	struct cairn_launch l = { .block = { THREADS }, .pdl = 1, .stream = stream };
	int sms = cairn_num_sms(), parts, part;
	void *params[] = { (void *)a, &parts, &part };
	int64_t want;

	CAIRN_TRY(cairn_penalize_check(a));
	if (a->rows == 0 || (!a->counts && !a->num_bias && !a->num_forbidden && !(a->softcap > 0)))
		return 0;
	if (sms < 0)
		return sms;
	want = ((int64_t)CTAS_PER_SM * sms + a->rows - 1) / a->rows;
	part = (int)((a->vocab + want - 1) / want);
	part = part < PART_MIN ? PART_MIN : part > PART_MAX ? PART_MAX : (part + 7) / 8 * 8;
	parts = (a->vocab + part - 1) / part;
	if ((int64_t)a->rows * parts > INT32_MAX)
		return cairn_error(EOPNOTSUPP, "penalize: rows: %d are too many", a->rows);
	l.grid[0] = (unsigned int)(a->rows * parts);
	return cairn_launch((const void *)penalize_kernel, &l, params);
}
