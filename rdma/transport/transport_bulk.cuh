/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_bulk - a put to peer memory with bulk copies (cp.async.bulk), for payloads of megabytes
 *
 * One thread of each CTA runs a ring buffer of stages in shared memory: bulk copies load pieces into stages
 * and store them to the peer, so that no register holds payload. A stage is reloaded once the copy out of it
 * has read it; the loads run TRANSPORT_STAGES - TRANSPORT_LAG pieces ahead of the stores.
 *
 *   smem map, from a base aligned to 128: stages, TRANSPORT_STAGES x TRANSPORT_PIECE bytes; then one
 *   mbarrier of 8 bytes per stage (one arrival, the expect_tx; the load's bytes complete it)
 */
#ifndef CAIRN_TRANSPORT_BULK_CUH
#define CAIRN_TRANSPORT_BULK_CUH

#include "primitives/ptx/ptx_copy.cuh"
#include "rdma/transport/transport.cuh"

#define TRANSPORT_STAGES	6
#define TRANSPORT_LAG		2	/* stores in flight whose stage is not reloaded yet */
#define TRANSPORT_PIECE		16384u
#define TRANSPORT_BULK_SMEM	(TRANSPORT_STAGES * (TRANSPORT_PIECE + 8))

/* All threads of each CTA call it once, before the first put. */
TRANSPORT_FN void transport_bulk_init(uint32_t smem)
{
	if (!threadIdx.x) {
		for (int i = 0; i < TRANSPORT_STAGES; i++)
			ptx_mbarrier_init(smem + TRANSPORT_STAGES * TRANSPORT_PIECE + 8 * i, 1);
		ptx_fence_mbarrier_init_release_cluster();
	}
	__syncthreads();
}

struct transport_pieces {
	uint8_t *to;
	const uint8_t *from;
	uint64_t bytes;			/* a multiple of 16 */
};

TRANSPORT_FN uint32_t transport_piece_bytes(const struct transport_pieces *p, uint64_t i)
{
	uint64_t left = p->bytes - i * TRANSPORT_PIECE;

	return left < TRANSPORT_PIECE ? (uint32_t)left : TRANSPORT_PIECE;
}

TRANSPORT_FN void transport_piece_load(const struct transport_pieces *p, uint64_t i, uint32_t smem,
				       uint32_t stage)
{
	uint32_t mbar = smem + TRANSPORT_STAGES * TRANSPORT_PIECE + 8 * stage,
		n = transport_piece_bytes(p, i);

	ptx_mbarrier_arrive_expect_tx(mbar, n);
	ptx_cp_async_bulk_g2s(smem + stage * TRANSPORT_PIECE, p->from + i * TRANSPORT_PIECE, n, mbar);
}

/* Called by thread 0. count: number of pieces that this CTA has moved so far, from which stage and phase
 * follow; the caller keeps it, zero after transport_bulk_init(). */
TRANSPORT_FN void transport_bulk_copy(const struct transport_pieces *p, uint32_t smem, uint64_t *count)
{
	uint64_t num = (p->bytes + TRANSPORT_PIECE - 1) / TRANSPORT_PIECE, base = *count, i;
	const uint64_t ahead = TRANSPORT_STAGES - TRANSPORT_LAG;

	for (i = 0; i < ahead && i < num; i++)
		transport_piece_load(p, i, smem, (uint32_t)((base + i) % TRANSPORT_STAGES));
	for (i = 0; i < num; i++) {
		uint32_t stage = (uint32_t)((base + i) % TRANSPORT_STAGES);
		uint32_t phase = (uint32_t)((base + i) / TRANSPORT_STAGES) & 1;

		ptx_mbarrier_wait(smem + TRANSPORT_STAGES * TRANSPORT_PIECE + 8 * stage, phase);
		ptx_cp_async_bulk_s2g(p->to + i * TRANSPORT_PIECE, smem + stage * TRANSPORT_PIECE,
				      transport_piece_bytes(p, i));
		ptx_cp_async_bulk_commit_group();
		ptx_cp_async_bulk_wait_group_read<TRANSPORT_LAG>();
		if (i + ahead < num)
			transport_piece_load(p, i + ahead, smem,
					     (uint32_t)((base + i + ahead) % TRANSPORT_STAGES));
	}
	ptx_cp_async_bulk_wait_group<0>();
	ptx_fence_proxy_async();
	*count = base + num;
}

/* Does the same as transport_put(), with bulk copies if addresses are multiples of 16 and the back end is
 * peer memory; otherwise it calls transport_put(). smem, count: see above. */
TRANSPORT_FN int transport_put_bulk(const struct cairn_device_channel *c,
				    const struct cairn_device_region *local, uint64_t local_offset,
				    const struct cairn_device_region *remote, uint64_t remote_offset,
				    uint64_t bytes, uint32_t slot, uint64_t value, struct transport_grid *g,
				    uint64_t timeout_ns, uint32_t smem, uint64_t *count)
{
	uint8_t *to = (uint8_t *)(remote->addr + remote_offset);
	const uint8_t *from = (const uint8_t *)(local->addr + local_offset);
	uint64_t at, n, whole;
	int last, ret;

	if (c->kind != CAIRN_DEVICE_NVLINK || (((uint64_t)to | (uint64_t)from) & 15))
		return transport_put(c, local, local_offset, remote, remote_offset, bytes, slot, value, g,
				     timeout_ns);
	n = transport_share(bytes, g->cta, g->num_ctas, &at);
	whole = n & ~15ull;
	if (!threadIdx.x) {
		const struct transport_pieces p = { to + at, from + at, whole };

		/* orders what this thread wrote or saw before the async proxy's reads */
		ptx_fence_proxy_async();
		transport_bulk_copy(&p, smem, count);
	}
	transport_copy(to + at + whole, from + at + whole, n - whole, threadIdx.x, blockDim.x);
	ret = transport_all_arrived(g, timeout_ns, &last);
	if (last && slot != CAIRN_NO_SIGNAL)
		transport_st_relaxed_sys_b128(&c->theirs[slot], value, 0);
	return ret;
}

#endif
