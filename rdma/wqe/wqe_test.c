// SPDX-License-Identifier: Apache-2.0
/* wqe_test - compares the bytes of work queue entries with entries derived by hand */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "rdma/wqe/wqe_trial.h"

#define RING	16			/* blocks */
#define QPN	0xabcdefu
#define RADDR	"11223344 55667788 99aabbcc 00000000"
#define DATA	"00001000 deadbeef 01020304 05060708"

static const struct cairn_wqe_sge buffer = { 0x0102030405060708, 4096, 0xdeadbeef };
static const struct cairn_wqe_sge with_holes[] = {
	{ 1, 0, 2 }, { 0x0102030405060708, 4096, 0xdeadbeef }, { 3, 0, 4 },
	{ 0x10, 0x7fffefff, 0x20 }, { 5, 0, 6 },
};
static const struct cairn_wqe_sge old_value = { 0x0102030405060708, 8, 0xdeadbeef };

/* Expected bytes as they are stored in memory, in groups of 4. Padding after inline data is not compared,
 * because the card ignores it. */
static const struct row {
	const char *name;
	uint64_t index;
	struct cairn_wqe_req r;
	int blocks;
	uint32_t record;		/* index after the WQE, as the big-endian doorbell record holds it */
	const char *bytes;
} rows[] = {
	{ "write", 0x1234, { .opcode = CAIRN_WQE_WRITE, .flags = CAIRN_WQE_SIGNALED, .num_sge = 1,
			     .sge = &buffer, .imm_be = 0x01020304 }, 1, 0x1235,
	  "00123408 abcdef03 00000008 00000000" RADDR DATA },
	{ "write_nothing", 0xffff, { .opcode = CAIRN_WQE_WRITE }, 1, 0x0000,
	  "00ffff08 abcdef02 00000000 00000000" RADDR },
	{ "write_holes_far", 0xfedcba9876543210, { .opcode = CAIRN_WQE_WRITE, .flags = CAIRN_WQE_FENCE,
						   .num_sge = 5, .sge = with_holes }, 1, 0x3211,
	  "00321008 abcdef04 00000080 00000000" RADDR DATA "7fffefff 00000020 00000000 00000010" },
	{ "write_imm", 0x10001, { .opcode = CAIRN_WQE_WRITE_IMM, .num_sge = 1, .sge = &buffer,
				  .flags = CAIRN_WQE_SOLICITED, .imm_be = 0x04030201 }, 1, 0x0002,
	  "00000109 abcdef03 00000002 01020304" RADDR DATA },
	{ "inline4", 0, { .opcode = CAIRN_WQE_WRITE, .flags = CAIRN_WQE_SIGNALED, .inline_bytes = 4 }, 1, 1,
	  "00000008 abcdef03 00000008 00000000" RADDR "80000004 00010203" },
	{ "inline12", 1, { .opcode = CAIRN_WQE_WRITE, .inline_bytes = 12 }, 1, 2,
	  "00000108 abcdef03 00000000 00000000" RADDR "8000000c 00010203 04050607 08090a0b" },
	{ "inline13", 2, { .opcode = CAIRN_WQE_WRITE, .inline_bytes = 13 }, 1, 3,
	  "00000208 abcdef04 00000000 00000000" RADDR "8000000d 00010203 04050607 08090a0b 0c" },
	{ "inline28", 3, { .opcode = CAIRN_WQE_WRITE, .inline_bytes = 28 }, 1, 4,
	  "00000308 abcdef04 00000000 00000000" RADDR
	  "8000001c 00010203 04050607 08090a0b 0c0d0e0f 10111213 14151617 18191a1b" },
	{ "inline29_wraps", 0xffff, { .opcode = CAIRN_WQE_WRITE, .inline_bytes = 29 }, 2, 1,
	  "00ffff08 abcdef05 00000000 00000000" RADDR
	  "8000001d 00010203 04050607 08090a0b 0c0d0e0f 10111213 14151617 18191a1b 1c" },
	{ "send_inline", 0x2ffff, { .opcode = CAIRN_WQE_SEND, .inline_bytes = 1 }, 1, 0,
	  "00ffff0a abcdef02 00000000 00000000 80000001 00" },
	{ "send_nothing", 7, { .opcode = CAIRN_WQE_SEND, .inline_data = "" }, 1, 8,
	  "0000070a abcdef01 00000000 00000000" },
	{ "send_imm", 8, { .opcode = CAIRN_WQE_SEND_IMM, .num_sge = 1, .sge = &buffer,
			   .imm_be = 0xefbeadde }, 1, 9,
	  "0000080b abcdef02 00000000 deadbeef" DATA },
	{ "read_all_flags", 9, { .opcode = CAIRN_WQE_READ, .num_sge = 1, .sge = &buffer,
				 .flags = CAIRN_WQE_SIGNALED | CAIRN_WQE_SOLICITED | CAIRN_WQE_FENCE }, 1, 10,
	  "00000910 abcdef03 0000008a 00000000" RADDR DATA },
	{ "compare_swap", 10, { .opcode = CAIRN_WQE_ATOMIC_CS, .num_sge = 1, .sge = &old_value,
				.swap_add = 0x0011223344556677, .compare = 0x8899aabbccddeeff }, 1, 11,
	  "00000a11 abcdef04 00000000 00000000" RADDR
	  "00112233 44556677 8899aabb ccddeeff 00000008 deadbeef 01020304 05060708" },
	{ "fetch_add", 11, { .opcode = CAIRN_WQE_ATOMIC_FA, .num_sge = 1, .sge = &old_value,
			     .swap_add = 0x0011223344556677, .compare = 0x8899aabbccddeeff }, 1, 12,
	  "00000b12 abcdef04 00000000 00000000" RADDR
	  "00112233 44556677 00000000 00000000 00000008 deadbeef 01020304 05060708" },
	{ "nop_small_fence", 12, { .opcode = CAIRN_WQE_NOP, .flags = CAIRN_WQE_SMALL_FENCE }, 1, 13,
	  "00000c00 abcdef01 00000020 00000000" },
};

static int from_hex(const char *hex, uint8_t *out)
{
	unsigned int byte;
	int n = 0;

	for (; *hex; hex++)
		if (*hex != ' ' && sscanf(hex++, "%2x", &byte) == 1)
			out[n++] = (uint8_t)byte;
	return n;
}

/* Returns 0 if builder b writes exactly the row's bytes and nothing outside the WQE's blocks. */
static int row_differs(const struct row *row, const struct cairn_wqe_builder *b)
{
	struct cairn_wqe_seg segs[4 * RING];
	const struct cairn_wqe_ring q = { segs, RING, QPN };
	struct cairn_wqe_req r = row->r;
	uint8_t want[128], data[64];
	struct cairn_wqe_bells bells;
	int n = from_hex(row->bytes, want), blocks;

	for (int i = 0; i < 64; i++)
		data[i] = (uint8_t)i;
	if (!r.inline_data)
		r.inline_data = data;
	r.remote_addr = 0x1122334455667788;
	r.rkey = 0x99aabbcc;
	memset(segs, 0xa5, sizeof(segs));
	blocks = cairn_wqe_builder_build(b, &q, row->index, &r, &bells);
	if (blocks != row->blocks || bells.dbrec != cairn_be32(row->record) ||
	    memcmp(&bells.doorbell, want, 8))
		return 1;
	for (int i = 0; i < n; i++)
		if (((uint8_t *)segs)[(row->index * 64 + (uint64_t)i) % sizeof(segs)] != want[i])
			return 1;
	for (int i = (n + 15) / 16 * 16; i < (int)sizeof(segs); i++)
		if (((uint8_t *)segs)[(row->index * 64 + (uint64_t)i) % sizeof(segs)] != 0xa5)
			return 1;
	return 0;
}

static void by_hand(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		if (!EXPECT(t, !row_differs(&rows[i], NULL)))
			cairn_note(t, "row %s", rows[i].name);
}

static void mutants(struct cairn_test *t)
{
	int m, caught = 0;

	for (m = 0; cairn_wqe_mutant(m); m++) {
		int differs = 0;

		for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
			differs |= row_differs(&rows[i], cairn_wqe_mutant(m));
		caught += differs;
		if (!EXPECT(t, differs))
			cairn_note(t, "%s is not caught", cairn_wqe_builder_name(cairn_wqe_mutant(m)));
	}
	EXPECT(t, m >= 12);
	cairn_note(t, "wqe mutants: %d of %d caught", caught, m);
}

static int ds_of(uint32_t opcode, uint32_t inline_bytes, uint32_t num_sge, const struct cairn_wqe_sge *sge)
{
	const struct cairn_wqe_req r = { .opcode = opcode, .inline_bytes = inline_bytes, .num_sge = num_sge,
					 .sge = sge };

	return cairn_wqe_ds(&r);
}

static void limits(struct cairn_test *t)
{
	struct cairn_wqe_sge one[64], half[] = { { 0, 1u << 30, 1 }, { 0, 1u << 30, 1 } };
	struct cairn_wqe_sge most = { 0, 0x7fffffff, 1 }, too_much = { 0, 0x80000000, 1 };

	for (int i = 0; i < 64; i++)
		one[i] = (struct cairn_wqe_sge){ 16, 1, 3 };
	EXPECT(t, ds_of(CAIRN_WQE_WRITE, 0, 61, one) == 63);
	EXPECT(t, ds_of(CAIRN_WQE_WRITE, 0, 62, one) == -E2BIG);
	EXPECT(t, ds_of(CAIRN_WQE_SEND, 0, 62, one) == 63);
	EXPECT(t, ds_of(CAIRN_WQE_SEND, 0, 63, one) == -E2BIG);
	one[5].length = 0;
	EXPECT(t, ds_of(CAIRN_WQE_WRITE, 0, 62, one) == 63);
	EXPECT(t, ds_of(CAIRN_WQE_WRITE, 972, 0, NULL) == 63);
	EXPECT(t, ds_of(CAIRN_WQE_WRITE, 973, 0, NULL) == -EMSGSIZE);
	EXPECT(t, ds_of(CAIRN_WQE_SEND, 988, 0, NULL) == 63);
	EXPECT(t, ds_of(CAIRN_WQE_SEND, 989, 0, NULL) == -EMSGSIZE);
	EXPECT(t, ds_of(CAIRN_WQE_SEND, 0xffffffff, 0, NULL) == -EMSGSIZE);
	EXPECT(t, ds_of(CAIRN_WQE_READ, 0, 1, &most) == 3);
	EXPECT(t, ds_of(CAIRN_WQE_READ, 0, 1, &too_much) == -EOVERFLOW);
	EXPECT(t, ds_of(CAIRN_WQE_READ, 0, 2, half) == -EOVERFLOW);
	EXPECT(t, cairn_wqe_blocks(1) == 1 && cairn_wqe_blocks(4) == 1 && cairn_wqe_blocks(5) == 2 &&
		  cairn_wqe_blocks(63) == 16);
}

static void refused(struct cairn_test *t)
{
	static const struct { struct cairn_wqe_req r; struct cairn_wqe_ring q; int want; } bad[] = {
		{ { .opcode = 0x14 }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = 0x108 }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_WRITE, .flags = 4 }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_WRITE, .flags = 0xa0 }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_NOP, .inline_bytes = 1 }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_NOP, .num_sge = 1, .sge = &buffer }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_READ, .inline_bytes = 1 }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_ATOMIC_FA, .inline_bytes = 8 }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_ATOMIC_FA }, { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_ATOMIC_CS, .num_sge = 1, .sge = &buffer },
		  { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_WRITE, .inline_bytes = 1, .num_sge = 1, .sge = &buffer },
		  { NULL, RING, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_NOP }, { NULL, 0, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_NOP }, { NULL, 12, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_NOP }, { NULL, 65536, QPN }, -EINVAL },
		{ { .opcode = CAIRN_WQE_NOP }, { NULL, RING, 1u << 24 }, -EINVAL },
		{ { .opcode = CAIRN_WQE_WRITE, .inline_bytes = 29 }, { NULL, 1, QPN }, -E2BIG },
		{ { .opcode = CAIRN_WQE_WRITE, .inline_bytes = 973 }, { NULL, RING, QPN }, -EMSGSIZE },
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)	/* the ring has no memory, so a write would crash */
		if (!EXPECT(t, cairn_wqe_build(&bad[i].q, 0, &bad[i].r) == bad[i].want))
			cairn_note(t, "row %zu", i);
}

/* Fills a queue from just below 2^16, 2^32 and 2^64 on. Places and doorbell records must continue without
 * a gap. */
static void wraps(struct cairn_test *t)
{
	static const uint64_t starts[] = { 0xffff - 99, 0xffffffff - 99, UINT64_MAX - 99 };
	struct cairn_wqe_seg segs[4 * RING];
	const struct cairn_wqe_ring q = { segs, RING, QPN };
	uint8_t data[300] = { 1 };

	for (size_t s = 0; s < ARRAY_SIZE(starts); s++) {
		uint64_t index = starts[s];

		for (uint32_t i = 0; i < 300; i++) {
			const struct cairn_wqe_req r = { .opcode = CAIRN_WQE_SEND, .inline_data = data,
							 .inline_bytes = i };
			int blocks = cairn_wqe_build(&q, index, &r);
			const uint8_t *head = (const uint8_t *)segs + 64 * (index % RING);

			EXPECT(t, blocks == (int)(16 + (i ? i + 4 : 0) + 63) / 64);
			EXPECT(t, head[0] == 0 && head[1] == (index >> 8 & 0xff) &&
				  head[2] == (index & 0xff));
			index += (uint64_t)blocks;
			EXPECT(t, cairn_wqe_dbrec(index) == cairn_be32((uint32_t)(index % 65536)));
		}
	}
}

static void doorbells(struct cairn_test *t)
{
	static const struct { uint64_t next; uint8_t want[8]; } next[] = {
		{ 0x1235, { 0, 0x12, 0x35, 0, 0xab, 0xcd, 0xef, 0 } },
		{ 0x10000, { 0, 0, 0, 0, 0xab, 0xcd, 0xef, 0 } },
		{ 0xff0000ffff, { 0, 0xff, 0xff, 0, 0xab, 0xcd, 0xef, 0 } },
	};
	static const uint8_t last[8] = { 0, 0x12, 0x34, 0x08, 0xab, 0xcd, 0xef, 3 };
	static const uint8_t word[16] = { 0x80, 0, 0, 8, 8, 7, 6, 5, 4, 3, 2, 1 };
	static const uint8_t record[4] = { 0, 0, 0x12, 0x35 };
	struct cairn_wqe_seg seg = cairn_wqe_inline_u64(0x0102030405060708), general;
	uint64_t v = cairn_wqe_doorbell(cairn_wqe_ctrl(CAIRN_WQE_WRITE, 0x991234, QPN, 3, 8, 7));
	uint32_t dbrec = cairn_wqe_dbrec(0x10000001235);

	EXPECT(t, !memcmp(&v, last, 8));
	EXPECT(t, !memcmp(&dbrec, record, 4));
	for (size_t i = 0; i < ARRAY_SIZE(next); i++) {
		v = cairn_wqe_doorbell_next(next[i].next, QPN);
		EXPECT(t, !memcmp(&v, next[i].want, 8));
	}
	v = 0x0102030405060708;
	general = cairn_wqe_inline(&v, 8, 0);
	EXPECT(t, !memcmp(&seg, word, 16));
	EXPECT(t, !memcmp(&general, word, 16));
}

static const struct cairn_unit units[] = {
	{ "by_hand", by_hand },
	{ "mutants", mutants },
	{ "limits", limits },
	{ "refused", refused },
	{ "wraps", wraps },
	{ "doorbells", doorbells },
};

const struct cairn_family cairn_wqe_family = {
	.stage = "rdma", .name = "wqe", .units = units, .num_units = ARRAY_SIZE(units),
};
