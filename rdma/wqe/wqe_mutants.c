// SPDX-License-Identifier: Apache-2.0
/*
 * wqe_mutants - WQE builders with one defect each, made by altering the request or the result of the correct
 * builder
 *
 * Each defect is an easy mistake in code that posts to an mlx5 card. The tests must tell every mutant from
 * the correct builder.
 */
#include <stddef.h>

#include "rdma/wqe/wqe_trial.h"

struct built {
	const struct cairn_wqe_ring *q;
	uint64_t index;
	const struct cairn_wqe_req *r;
	uint32_t head, ds;		/* segments before the data, and segments in total */
	int blocks;
};

struct cairn_wqe_builder {
	const char *name;
	/* alters the request before cairn_wqe_build() */
	void (*misread)(struct cairn_wqe_req *r);
	/* alters the result after cairn_wqe_build() */
	void (*bend)(struct built *b);
	uint32_t (*dbrec)(uint64_t next);
	uint64_t (*doorbell)(const struct built *b);
};

static uint32_t *word(const struct built *b, uint32_t seg, int w)
{
	return &cairn_wqe_at(b->q, b->index, seg)->w[w];
}

static void swap_bytes(uint32_t *w)
{
	*w = cairn_be32(*w);
}

static void set_index(const struct built *b, uint64_t index_unmasked)
{
	*word(b, 0, 0) = cairn_be32((uint32_t)index_unmasked << 8 | b->r->opcode);
}

/* The defects, ordered by the byte of the WQE that they affect. */
static void index_little_endian(struct built *b)
{
	uint8_t *p = (uint8_t *)word(b, 0, 0), byte = p[1];

	p[1] = p[2];
	p[2] = byte;
}

static void index_not_masked(struct built *b)
{
	set_index(b, b->index);
}

static void index_is_place(struct built *b)
{
	set_index(b, b->index & (b->q->num_blocks - 1));
}

static void index_of_next(struct built *b)
{
	set_index(b, (b->index + (uint64_t)b->blocks) & 0xffff);
}

static void opcode_without_imm(struct built *b)
{
	if (cairn_wqe_has_imm(b->r->opcode))
		*word(b, 0, 0) -= 0x01000000;
}

static void qpn_little_endian(struct built *b)
{
	*word(b, 0, 1) = (*word(b, 0, 1) & 0xff000000) | b->q->qpn;
}

static void ds_one_more(struct built *b)
{
	*word(b, 0, 1) += 0x01000000;
}

static void ds_one_less(struct built *b)
{
	*word(b, 0, 1) -= 0x01000000;
}

/* Counts the bytes of inline data but not the 4 bytes of the inline header. */
static void ds_without_inline_header(struct built *b)
{
	if (b->r->inline_bytes)
		*word(b, 0, 1) -= (b->ds - b->head - (b->r->inline_bytes + 15) / 16) << 24;
}

static void ds_reserved_bit(struct built *b)
{
	*word(b, 0, 1) |= 0x40000000;
}

static void signature_left_over(struct built *b)
{
	*word(b, 0, 2) |= 0x5a;
}

static void stream_left_over(struct built *b)
{
	*word(b, 0, 2) |= 0x00010000;
}

static void flags_first(struct built *b)
{
	swap_bytes(word(b, 0, 2));
}

static void fence_forgotten(struct cairn_wqe_req *r)
{
	r->flags &= ~(uint32_t)CAIRN_WQE_FENCE;
}

static void fence_small(struct cairn_wqe_req *r)
{
	if (r->flags & CAIRN_WQE_FENCE)
		r->flags ^= CAIRN_WQE_FENCE | CAIRN_WQE_SMALL_FENCE;
}

static void signalled_forgotten(struct cairn_wqe_req *r)
{
	r->flags &= ~(uint32_t)CAIRN_WQE_SIGNALED;
}

static void signalled_always(struct cairn_wqe_req *r)
{
	r->flags |= CAIRN_WQE_SIGNALED;
}

static void signalled_on_error_alone(struct built *b)
{
	*word(b, 0, 2) = (*word(b, 0, 2) & ~0x0c000000u) | (*word(b, 0, 2) >> 1 & 0x04000000);
}

static void solicited_forgotten(struct cairn_wqe_req *r)
{
	r->flags &= ~(uint32_t)CAIRN_WQE_SOLICITED;
}

static void imm_swapped(struct built *b)
{
	swap_bytes(word(b, 0, 3));
}

static void imm_forgotten(struct built *b)
{
	*word(b, 0, 3) = 0;
}

static void imm_always(struct built *b)
{
	*word(b, 0, 3) = b->r->imm_be;
}

static void raddr_little_endian(struct built *b)
{
	if (b->head < 2)
		return;
	*word(b, 1, 0) = (uint32_t)b->r->remote_addr;
	*word(b, 1, 1) = (uint32_t)(b->r->remote_addr >> 32);
}

static void raddr_low_word_first(struct built *b)
{
	if (b->head < 2)
		return;
	*word(b, 1, 0) = cairn_be32((uint32_t)b->r->remote_addr);
	*word(b, 1, 1) = cairn_be32((uint32_t)(b->r->remote_addr >> 32));
}

static void rkey_little_endian(struct built *b)
{
	if (b->head > 1)
		swap_bytes(word(b, 1, 2));
}

static void raddr_reserved_not_zero(struct built *b)
{
	if (b->head > 1)
		*word(b, 1, 3) = 7;
}

static void atomic_exchanged(struct cairn_wqe_req *r)
{
	uint64_t swap = r->swap_add;

	if (r->opcode == CAIRN_WQE_ATOMIC_CS) {
		r->swap_add = r->compare;
		r->compare = swap;
	}
}

static void add_from_compare(struct cairn_wqe_req *r)
{
	if (r->opcode == CAIRN_WQE_ATOMIC_FA)
		r->swap_add = r->compare;
}

static void inline_flag_forgotten(struct built *b)
{
	if (b->r->inline_bytes)
		*word(b, b->head, 0) &= ~0x80u;
}

static void inline_counts_header(struct built *b)
{
	if (b->r->inline_bytes)
		*word(b, b->head, 0) = cairn_be32((b->r->inline_bytes + 4) | CAIRN_WQE_INLINE_FLAG);
}

/* Emits a segment for inline data of zero bytes. */
static void inline_empty(struct built *b)
{
	if (b->r->inline_data && !b->r->num_sge && !b->r->inline_bytes && b->ds == b->head) {
		*word(b, 0, 1) += 0x01000000;
		*word(b, b->head, 0) = cairn_be32(CAIRN_WQE_INLINE_FLAG);
	}
}

/* Emits segments of length zero like all others. */
static void data_empty(struct built *b)
{
	uint32_t n = b->r->num_sge, k = b->head;

	if (!n)
		return;
	*word(b, 0, 1) += (b->head + n - b->ds) << 24;
	for (uint32_t i = 0; i < n; i++)
		*cairn_wqe_at(b->q, b->index, k++) = cairn_wqe_data(b->r->sge[i].addr, b->r->sge[i].length,
								    b->r->sge[i].lkey);
	b->blocks = (int)cairn_wqe_blocks(k);
}

static void data_flagged_inline(struct built *b)
{
	if (!b->r->inline_bytes && b->ds > b->head)
		*word(b, b->head, 0) |= 0x80;
}

static void data_key_first(struct built *b)
{
	uint32_t length = *word(b, b->head, 0);

	if (!b->r->inline_bytes && b->ds > b->head) {
		*word(b, b->head, 0) = *word(b, b->head, 1);
		*word(b, b->head, 1) = length;
	}
}

static void lkey_little_endian(struct built *b)
{
	if (!b->r->inline_bytes && b->ds > b->head)
		swap_bytes(word(b, b->head, 1));
}

/* Writes past the ring's end instead of wrapping. The blocks at the beginning keep their old contents. */
static void wrap_forgotten(struct built *b)
{
	uint32_t place = 4 * (uint32_t)(b->index & (b->q->num_blocks - 1));

	for (uint32_t k = 4 * b->q->num_blocks - place; k < b->ds; k++)
		for (int w = 0; w < 4; w++)
			*word(b, k, w) = 0xeeeeeeee;
}

/* Never splits a WQE: a WQE that does not fit before the ring's end starts at the first block. */
static void wrap_whole(struct built *b)
{
	uint32_t place = 4 * (uint32_t)(b->index & (b->q->num_blocks - 1));

	if (place + b->ds <= 4 * b->q->num_blocks)
		return;
	for (uint32_t k = b->ds; k-- > 0; ) {
		b->q->segs[k] = *cairn_wqe_at(b->q, b->index, k);
		if (place + k < 4 * b->q->num_blocks)
			cairn_wqe_at(b->q, b->index, k)->w[0] = 0xeeeeeeee;
	}
}

static void blocks_one_more(struct built *b)
{
	b->blocks++;
}

static void blocks_rounded_down(struct built *b)
{
	b->blocks = b->ds < 4 ? 1 : (int)(b->ds / 4);
}

static void blocks_are_wqes(struct built *b)
{
	b->blocks = 1;
}

static uint32_t record_little_endian(uint64_t next)
{
	return (uint32_t)next & 0xffff;
}

static uint32_t record_not_masked(uint64_t next)
{
	return cairn_be32((uint32_t)next);
}

static uint32_t record_of_last_block(uint64_t next)
{
	return cairn_wqe_dbrec(next - 1);
}

static uint64_t doorbell_of_next(const struct built *b)
{
	uint64_t next = b->index + (uint64_t)b->blocks;

	return cairn_wqe_doorbell(cairn_wqe_ctrl(b->r->opcode, next, b->q->qpn, b->ds, 0, 0));
}

static uint64_t doorbell_without_ds(const struct built *b)
{
	return cairn_wqe_doorbell(cairn_wqe_ctrl(b->r->opcode, b->index, b->q->qpn, 0, 0, 0));
}

static uint64_t doorbell_words_swapped(const struct built *b)
{
	uint64_t v = cairn_wqe_doorbell(*cairn_wqe_at(b->q, b->index, 0));

	return v << 32 | v >> 32;
}

#define MISREAD(f)	{ .name = #f, .misread = f }
#define BENT(f)		{ .name = #f, .bend = f }
#define RECORD(f)	{ .name = #f, .dbrec = f }
#define DOORBELL(f)	{ .name = #f, .doorbell = f }

static const struct cairn_wqe_builder mutants[] = {
	BENT(index_little_endian), BENT(index_not_masked), BENT(index_is_place), BENT(index_of_next),
	BENT(opcode_without_imm), BENT(qpn_little_endian), BENT(ds_one_more), BENT(ds_one_less),
	BENT(ds_without_inline_header), BENT(ds_reserved_bit), BENT(signature_left_over),
	BENT(stream_left_over), BENT(flags_first), MISREAD(fence_forgotten), MISREAD(fence_small),
	MISREAD(signalled_forgotten), MISREAD(signalled_always), BENT(signalled_on_error_alone),
	MISREAD(solicited_forgotten), BENT(imm_swapped), BENT(imm_forgotten), BENT(imm_always),
	BENT(raddr_little_endian), BENT(raddr_low_word_first), BENT(rkey_little_endian),
	BENT(raddr_reserved_not_zero), MISREAD(atomic_exchanged), MISREAD(add_from_compare),
	BENT(inline_flag_forgotten), BENT(inline_counts_header), BENT(inline_empty), BENT(data_empty),
	BENT(data_flagged_inline), BENT(data_key_first), BENT(lkey_little_endian), BENT(wrap_forgotten),
	BENT(wrap_whole), BENT(blocks_one_more), BENT(blocks_rounded_down), BENT(blocks_are_wqes),
	RECORD(record_little_endian), RECORD(record_not_masked), RECORD(record_of_last_block),
	DOORBELL(doorbell_of_next), DOORBELL(doorbell_without_ds), DOORBELL(doorbell_words_swapped),
};

const struct cairn_wqe_builder *cairn_wqe_mutant(int i)
{
	return i >= 0 && i < (int)(sizeof(mutants) / sizeof(mutants[0])) ? &mutants[i] : NULL;
}

const char *cairn_wqe_builder_name(const struct cairn_wqe_builder *b)
{
	return b ? b->name : "the builder";
}

int cairn_wqe_builder_build(const struct cairn_wqe_builder *b, const struct cairn_wqe_ring *q, uint64_t index,
			    const struct cairn_wqe_req *r, struct cairn_wqe_bells *bells)
{
	struct built built = { .q = q, .index = index, .r = r };
	struct cairn_wqe_req req = *r;

	if (b && b->misread)
		b->misread(&req);
	built.blocks = cairn_wqe_build(q, index, &req);
	if (built.blocks < 0)
		return built.blocks;
	built.head = cairn_wqe_head_segs(r->opcode);
	built.ds = (uint32_t)cairn_wqe_ds(r);
	if (b && b->bend)
		b->bend(&built);
	bells->dbrec = (b && b->dbrec ? b->dbrec : cairn_wqe_dbrec)(index + (uint64_t)built.blocks);
	bells->doorbell = b && b->doorbell ? b->doorbell(&built) :
					     cairn_wqe_doorbell(*cairn_wqe_at(q, index, 0));
	return built.blocks;
}
