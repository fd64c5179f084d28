/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid_ranks - what a step does when several ranks share the model: sums over the ranks, and gathered logits
 *
 * All ranks divide the rows of w_o and w_down over their CTAs in the same way. When a warp has the sums of a
 * unit, it sends them to the same CTA of every other rank, as LL words of 128 bits in a mailbox
 * (comm_device.h): two sums in fp32 and the number of the call. It adds the other ranks' sums when it sends
 * its next unit or, for its last unit, at the end of the product, so that words cross while other units are
 * multiplied. The result is an LL word for the CTAs of this rank, as in a step of one rank. Logits are words
 * of the same mailbox. Each word of a mailbox is written once in a call.
 *
 * words of a mailbox   [layers][out, down][batch][hidden / 2], then [batch][share of the vocabulary / 2]
 */
#ifndef CAIRN_GRID_RANKS_CUH
#define CAIRN_GRID_RANKS_CUH

#include "fused/grid/grid_exchange.cuh"
#include "primitives/comm/comm_device.cuh"

/* A unit's sums that a warp has sent, one for each lane, and still has to add to those of the other ranks. */
struct grid_sent {
	float sum;
	uint16_t x;			/* of the residual stream */
	uint64_t *to;			/* where the LL word of this lane's pair goes */
	uint32_t word;			/* the pair's word in a mailbox */
	int writes;			/* this lane has a pair */
	int there;			/* 0: nothing was sent */
};

/* A call that ranks share, as one thread sees it. */
struct grid_call {
	uint32_t number, entered;
	int sends;			/* 0: an earlier wait has failed */
	struct grid_sent sent;
};

GRID void grid_call_begin(const struct grid_args &a, struct grid_call &c)
{
	c.number = comm_number(a.comm);
	c.sends = !comm_has_failed(a.comm);
	c.sent.there = 0;
}

GRID uint32_t grid_sum_word(const struct grid_args &a, int phase, int kind, int row, int col)
{
	const int nth = phase / GRID_KINDS * 2 + (kind == GRID_DOWN);

	return (uint32_t)(((nth * a.s.kv.batch + row) * a.s.hidden + col) / 2);
}

GRID uint32_t grid_logit_word(const struct grid_args &a, int row, int col)
{
	return (uint32_t)(a.s.num_layers * a.s.kv.batch * a.s.hidden + (row * a.s.vocab + col) / 2);
}

/* Sends a pair of numbers to all other ranks. */
GRID void grid_send_pair(const struct grid_args &a, const struct grid_call &c, uint32_t word, float even,
			 float odd)
{
	const uint4 v = make_uint4(__float_as_uint(even), __float_as_uint(odd), 0, c.number);

	for (int r = 0; c.sends && r < a.comm.ranks; r++)
		if (r != a.comm.rank)
			ptx_st_relaxed_sys_b128(comm_word(a.comm, r, a.comm.rank, c.number, word), v);
}

/* Returns the pair that rank r has sent. If the wait fails, it is undefined. */
GRID float2 grid_await_pair(const struct grid_args &a, const struct grid_call &c, uint32_t word, int r)
{
	const char *at = comm_word(a.comm, a.comm.rank, r, c.number, word);
	const uint4 v = comm_await(a.comm, COMM_DECODE_STEP_RANKS, c.number, r, at,
				   ptx_ld_relaxed_sys_b128(at));

	return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

/*
 * Adds the other ranks' sums to those that this warp has sent last, in the order of the ranks, then x, and
 * writes the results. Called by all lanes.
 */
template <int dtype>
GRID void grid_settle(const struct grid_args &a, struct grid_call &c, uint32_t number)
{
	const struct grid_sent &s = c.sent;
	const float next = __shfl_down_sync(~0u, s.sum, 1);
	float2 sum = { 0, 0 };
	float odd;

	if (!s.there)
		return;
	for (int r = 0; s.writes && r < a.comm.ranks; r++) {
		const float2 p = r == a.comm.rank ? make_float2(s.sum, next) :
				 grid_await_pair(a, c, s.word, r);

		sum.x = r ? sum.x + p.x : p.x;
		sum.y = r ? sum.y + p.y : p.y;
	}
	odd = row_element<dtype>(&s.x, 0);
	sum.x += odd;
	sum.y += __shfl_down_sync(~0u, odd, 1);
	if (s.writes)
		ptx_st_relaxed_gpu_u64(s.to, (uint64_t)number << 32 | row_pack2<dtype>(sum.x, sum.y));
	c.sent.there = 0;
}

/*
 * Sends the sums of a unit to the other ranks. Logits are also stored; other sums are kept, and grid_settle()
 * adds the other ranks' sums to them at the warp's next unit or at the end of the product. Called by all
 * lanes.
 */
template <int dtype>
GRID void grid_send(const struct grid_args &a, int phase, int kind, const struct grid_element &e, float sum,
		    const struct grid_addend &addend, struct grid_call &c, uint32_t number)
{
	const int writes = e.mine && e.col % 2 == 0;
	uint32_t word;
	float next;

	if (kind == GRID_OUT)
		sum += row_element<dtype>(&addend.bias, 0);
	next = __shfl_down_sync(~0u, sum, 1);
	word = kind == GRID_HEAD ? grid_logit_word(a, e.row, e.col) :
	       grid_sum_word(a, phase, kind, e.row, e.col);
	if (writes)
		grid_send_pair(a, c, word, sum, next);
	if (kind == GRID_HEAD) {
		float *own = a.s.logits + ((int64_t)e.row * a.comm.ranks + a.comm.rank) * a.s.vocab + e.col;

		if (writes)
			*(float2 *)own = make_float2(sum, next);
		return;
	}
	grid_settle<dtype>(a, c, number);
	c.sent = (struct grid_sent){ sum, addend.x, addend.to, word, writes, 1 };
}

/* Collects the other ranks' logits, after this rank's last product. */
GRID void grid_gather_logits(const struct grid_args &a, const struct grid_call &c)
{
	const int pairs = a.s.vocab / 2, vocab = a.s.vocab * a.comm.ranks, step = gridDim.x * WORKERS;

	for (int r = 0; r < a.comm.ranks; r++) {
		if (r == a.comm.rank)
			continue;
		for (int i = blockIdx.x * WORKERS + threadIdx.x; i < a.s.kv.batch * pairs; i += step) {
			const int row = i / pairs, col = i % pairs * 2;
			const float2 v = grid_await_pair(a, c, grid_logit_word(a, row, col), r);

			*(float2 *)(a.s.logits + (int64_t)row * vocab + r * a.s.vocab + col) = v;
		}
	}
}

#endif
