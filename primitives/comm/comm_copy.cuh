/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_copy - moves rows of bytes through mailboxes, for collectives that copy
 *
 * Three vectors of 16 bytes form a group, which travels as four LL words. Word k of group g lies at index
 * k * COMM_GROUPS + g of the mailbox, so that neighbouring threads store neighbouring words.
 */
#ifndef CAIRN_COMM_COPY_CUH
#define CAIRN_COMM_COPY_CUH

#include "primitives/comm/comm_device.cuh"

#define COMM_GROUPS	(COMM_WORDS / 4)
#define COMM_VECTORS	(3 * COMM_GROUPS)	/* of a mailbox */

/* Rows of vectors, `stride` bytes apart. */
struct comm_rows {
	char *base;
	int64_t stride;
	uint32_t row;		/* vectors of a row */
	uint32_t total;		/* vectors of all rows */
};

COMM uint4 *comm_vector(const struct comm_rows &r, uint32_t i)
{
	return (uint4 *)(r.base + (int64_t)(i / r.row) * r.stride) + i % r.row;
}

/* The first group of this thread, and the number of threads of the grid. */
COMM uint32_t comm_thread(void) { return blockIdx.x * blockDim.x + threadIdx.x; }
COMM uint32_t comm_threads(void) { return gridDim.x * blockDim.x; }

COMM void comm_send_rows(const struct comm_device &c, int to, uint32_t number, const struct comm_rows &rows)
{
	for (uint32_t g = comm_thread(); g * 3 < rows.total; g += comm_threads()) {
		uint4 v[3];

#pragma unroll
		for (int j = 0; j < 3; j++)
			v[j] = g * 3 + j < rows.total ? *comm_vector(rows, g * 3 + j) :
			       make_uint4(0, 0, 0, 0);
		ptx_st_relaxed_sys_b128(comm_word(c, to, c.rank, number, g),
					make_uint4(v[0].x, v[0].y, v[0].z, number));
		ptx_st_relaxed_sys_b128(comm_word(c, to, c.rank, number, COMM_GROUPS + g),
					make_uint4(v[0].w, v[1].x, v[1].y, number));
		ptx_st_relaxed_sys_b128(comm_word(c, to, c.rank, number, 2 * COMM_GROUPS + g),
					make_uint4(v[1].z, v[1].w, v[2].x, number));
		ptx_st_relaxed_sys_b128(comm_word(c, to, c.rank, number, 3 * COMM_GROUPS + g),
					make_uint4(v[2].y, v[2].z, v[2].w, number));
	}
}

COMM void comm_receive_rows(const struct comm_device &c, int op, int from, uint32_t number,
			    const struct comm_rows &rows)
{
	for (uint32_t g = comm_thread(); g * 3 < rows.total; g += comm_threads()) {
		uint4 w[4], v[3];

#pragma unroll
		for (int k = 0; k < 4; k++)	/* all first looks are in flight together */
			w[k] = ptx_ld_relaxed_sys_b128(comm_word(c, c.rank, from, number,
								 k * COMM_GROUPS + g));
#pragma unroll
		for (int k = 0; k < 4; k++)
			w[k] = comm_await(c, op, number, from,
					  comm_word(c, c.rank, from, number, k * COMM_GROUPS + g), w[k]);
		v[0] = make_uint4(w[0].x, w[0].y, w[0].z, w[1].x);
		v[1] = make_uint4(w[1].y, w[1].z, w[2].x, w[2].y);
		v[2] = make_uint4(w[2].z, w[3].x, w[3].y, w[3].z);
#pragma unroll
		for (int j = 0; j < 3; j++)
			if (g * 3 + j < rows.total)
				*comm_vector(rows, g * 3 + j) = v[j];
	}
}

COMM void comm_copy_rows(const struct comm_rows &to, const struct comm_rows &from)
{
	for (uint32_t i = comm_thread(); i < from.total; i += comm_threads())
		*comm_vector(to, i) = *comm_vector(from, i);
}

#endif
