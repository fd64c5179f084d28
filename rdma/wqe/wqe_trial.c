// SPDX-License-Identifier: Apache-2.0
/* wqe_trial.c - draws random work requests and compares built WQEs */
#include "rdma/wqe/wqe_trial.h"

uint64_t cairn_wqe_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1du;
}

static uint32_t below(uint64_t *state, uint32_t n)
{
	return (uint32_t)((cairn_wqe_random(state) >> 32) * n >> 32);
}

/* Half of the lengths are taken from those at which the layout changes. */
static uint32_t inline_length(uint64_t *state)
{
	static const uint16_t edges[] = { 0, 1, 4, 8, 11, 12, 13, 27, 28, 29, 44, 45, 60, 61, 92, 93,
					  CAIRN_WQE_TRIAL_INLINE };

	if (below(state, 2))
		return edges[below(state, sizeof(edges) / sizeof(edges[0]))];
	return below(state, CAIRN_WQE_TRIAL_INLINE + 1);
}

void cairn_wqe_trial_random(struct cairn_wqe_trial *t, const struct cairn_wqe_area *area, uint64_t *state)
{
	static const uint8_t opcodes[] = {
		CAIRN_WQE_WRITE, CAIRN_WQE_WRITE, CAIRN_WQE_WRITE_IMM, CAIRN_WQE_SEND, CAIRN_WQE_SEND_IMM,
		CAIRN_WQE_READ, CAIRN_WQE_ATOMIC_CS, CAIRN_WQE_ATOMIC_FA,
	};
	const uint32_t piece = area->bytes / (2 * CAIRN_WQE_TRIAL_SGES);
	struct cairn_wqe_req *r = &t->req;

	*r = (struct cairn_wqe_req){
		.opcode = opcodes[below(state, sizeof(opcodes))],
		.sge = t->sge, .inline_data = t->data,
		.remote_addr = area->remote + 8 * below(state, area->bytes / 16),
		.rkey = area->rkey,
		.imm_be = (uint32_t)cairn_wqe_random(state),
		.swap_add = cairn_wqe_random(state), .compare = cairn_wqe_random(state),
	};
	r->flags |= below(state, 4) ? 0 : CAIRN_WQE_SIGNALED;
	r->flags |= below(state, 8) ? 0 : CAIRN_WQE_SOLICITED;
	r->flags |= below(state, 8) ? 0 : CAIRN_WQE_FENCE;
	if (cairn_wqe_is_atomic(r->opcode)) {
		r->num_sge = 1;
		t->sge[0] = (struct cairn_wqe_sge){
			area->local + 8 * below(state, area->bytes / 8), 8, area->lkey,
		};
		return;
	}
	if (r->opcode != CAIRN_WQE_READ && below(state, 2)) {
		r->inline_bytes = inline_length(state);
		for (uint32_t i = 0; i < r->inline_bytes; i += 4) {
			uint32_t word = (uint32_t)cairn_wqe_random(state);

			__builtin_memcpy(t->data + i, &word, 4);
		}
		return;
	}
	/* Half of the requests have one segment; one segment in six has length zero. */
	r->num_sge = below(state, 2) ? 1 : below(state, CAIRN_WQE_TRIAL_SGES + 1);
	for (uint32_t i = 0; i < r->num_sge; i++) {
		uint32_t length = below(state, 6) ? 1 + below(state, piece) : 0;

		t->sge[i] = (struct cairn_wqe_sge){
			area->local + below(state, area->bytes - piece), length, area->lkey,
		};
	}
}

int cairn_wqe_differs(const struct cairn_wqe_ring *a, const struct cairn_wqe_ring *b, uint64_t index,
		      const struct cairn_wqe_req *r)
{
	uint32_t bytes = 16 * (uint32_t)cairn_wqe_ds(r);

	if (r->inline_bytes)
		bytes = 16 * cairn_wqe_head_segs(r->opcode) + 4 + r->inline_bytes;
	for (uint32_t i = 0; i < bytes; i++) {
		const uint8_t *x = (const uint8_t *)cairn_wqe_at(a, index, i / 16);
		const uint8_t *y = (const uint8_t *)cairn_wqe_at(b, index, i / 16);

		if (r->opcode == CAIRN_WQE_ATOMIC_FA && i >= 40 && i < 48)
			continue;
		if (x[i % 16] != y[i % 16])
			return (int)i;
	}
	return -1;
}
