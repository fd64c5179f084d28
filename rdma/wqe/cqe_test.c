// SPDX-License-Identifier: Apache-2.0
/* cqe_test - compares completion queue entries with entries derived by hand, and all layouts and constants
 * with rdma-core's mlx5dv.h */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"
#include "rdma/wqe/cqe.h"
#include "rdma/wqe/wqe_build.h"

#if __has_include(<infiniband/mlx5dv.h>) && __has_include(<infiniband/verbs.h>)
#include <infiniband/mlx5dv.h>

#define SAME(ours, theirs)	static_assert((int64_t)(ours) == (int64_t)(theirs), #ours " is " #theirs)
#define SAME_PLACE(ours, a, theirs, b)	SAME(offsetof(struct ours, a), offsetof(struct theirs, b))

SAME(CAIRN_WQE_NOP, MLX5_OPCODE_NOP);
SAME(CAIRN_WQE_WRITE, MLX5_OPCODE_RDMA_WRITE);
SAME(CAIRN_WQE_WRITE_IMM, MLX5_OPCODE_RDMA_WRITE_IMM);
SAME(CAIRN_WQE_SEND, MLX5_OPCODE_SEND);
SAME(CAIRN_WQE_SEND_IMM, MLX5_OPCODE_SEND_IMM);
SAME(CAIRN_WQE_READ, MLX5_OPCODE_RDMA_READ);
SAME(CAIRN_WQE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_CS);
SAME(CAIRN_WQE_ATOMIC_FA, MLX5_OPCODE_ATOMIC_FA);
SAME(CAIRN_WQE_SIGNALED, MLX5_WQE_CTRL_CQ_UPDATE);
SAME(CAIRN_WQE_SOLICITED, MLX5_WQE_CTRL_SOLICITED);
SAME(CAIRN_WQE_FENCE, MLX5_WQE_CTRL_FENCE);
SAME(CAIRN_WQE_SMALL_FENCE, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE);
SAME(CAIRN_WQE_BLOCK, MLX5_SEND_WQE_BB);
SAME((int32_t)CAIRN_WQE_INLINE_FLAG, (int32_t)MLX5_INLINE_SEG);
SAME(sizeof(struct cairn_wqe_seg), sizeof(struct mlx5_wqe_ctrl_seg));
SAME(sizeof(struct cairn_wqe_seg), sizeof(struct mlx5_wqe_raddr_seg));
SAME(sizeof(struct cairn_wqe_seg), sizeof(struct mlx5_wqe_atomic_seg));
SAME(sizeof(struct cairn_wqe_seg), sizeof(struct mlx5_wqe_data_seg));
SAME(sizeof(struct cairn_wqe_sge), sizeof(struct ibv_sge));
SAME_PLACE(cairn_wqe_sge, addr, ibv_sge, addr);
SAME_PLACE(cairn_wqe_sge, length, ibv_sge, length);
SAME_PLACE(cairn_wqe_sge, lkey, ibv_sge, lkey);
SAME(CAIRN_CQE_REQ, MLX5_CQE_REQ);
SAME(CAIRN_CQE_RESP_WRITE_IMM, MLX5_CQE_RESP_WR_IMM);
SAME(CAIRN_CQE_RESP_SEND, MLX5_CQE_RESP_SEND);
SAME(CAIRN_CQE_RESP_SEND_IMM, MLX5_CQE_RESP_SEND_IMM);
SAME(CAIRN_CQE_REQ_ERR, MLX5_CQE_REQ_ERR);
SAME(CAIRN_CQE_RESP_ERR, MLX5_CQE_RESP_ERR);
SAME(CAIRN_CQE_INVALID, MLX5_CQE_INVALID);
SAME(CAIRN_CQE_LOCAL_LENGTH, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
SAME(CAIRN_CQE_LOCAL_QP_OP, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
SAME(CAIRN_CQE_LOCAL_PROTECTION, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
SAME(CAIRN_CQE_FLUSHED, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
SAME(CAIRN_CQE_BIND, MLX5_CQE_SYNDROME_MW_BIND_ERR);
SAME(CAIRN_CQE_BAD_RESPONSE, MLX5_CQE_SYNDROME_BAD_RESP_ERR);
SAME(CAIRN_CQE_LOCAL_ACCESS, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR);
SAME(CAIRN_CQE_REMOTE_INVALID, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
SAME(CAIRN_CQE_REMOTE_ACCESS, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
SAME(CAIRN_CQE_REMOTE_OP, MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
SAME(CAIRN_CQE_TRANSPORT_RETRY, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
SAME(CAIRN_CQE_RNR_RETRY, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
SAME(CAIRN_CQE_REMOTE_ABORTED, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);
SAME(sizeof(struct cairn_cqe), sizeof(struct mlx5_cqe64));
SAME_PLACE(cairn_cqe, user_index, mlx5_cqe64, srqn_uidx);
SAME_PLACE(cairn_cqe, imm, mlx5_cqe64, imm_inval_pkey);
SAME_PLACE(cairn_cqe, byte_count, mlx5_cqe64, byte_cnt);
SAME_PLACE(cairn_cqe, timestamp, mlx5_cqe64, timestamp);
SAME_PLACE(cairn_cqe, opcode_qpn, mlx5_cqe64, sop_drop_qpn);
SAME_PLACE(cairn_cqe, wqe_counter, mlx5_cqe64, wqe_counter);
SAME_PLACE(cairn_cqe, signature, mlx5_cqe64, signature);
SAME_PLACE(cairn_cqe, op_own, mlx5_cqe64, op_own);
SAME_PLACE(cairn_cqe, user_index, mlx5_err_cqe, srqn);
SAME_PLACE(cairn_cqe, vendor_syndrome, mlx5_err_cqe, vendor_err_synd);
SAME_PLACE(cairn_cqe, syndrome, mlx5_err_cqe, syndrome);
SAME_PLACE(cairn_cqe, opcode_qpn, mlx5_err_cqe, s_wqe_opcode_qpn);
SAME_PLACE(cairn_cqe, wqe_counter, mlx5_err_cqe, wqe_counter);

/* The compiler has compared constants and offsets. Here mlx5dv.h's own functions build the segments. */
static void as_mlx5dv(struct cairn_test *t)
{
	for (int i = 0; i < 10000; i++) {
		uint64_t index = cairn_rand(t), a = cairn_rand(t), b = cairn_rand(t), c = cairn_rand(t);
		struct mlx5_wqe_ctrl_seg ctrl = { .dci_stream_channel_id = 0 };
		struct mlx5_wqe_data_seg data;
		struct mlx5_wqe_raddr_seg raddr = { htobe64(a), htobe32((uint32_t)b), 0 };
		struct mlx5_wqe_atomic_seg atomic = { htobe64(a), htobe64(b) };
		uint32_t qpn = b & 0xffffff, imm = (uint32_t)(c >> 32);
		uint8_t opcode = a & 0x1f, ds = c & 0x3f, flags = c >> 8 & 0xaa;
		struct cairn_wqe_seg seg = cairn_wqe_ctrl(opcode, index, qpn, ds, flags, imm);

		mlx5dv_set_ctrl_seg(&ctrl, (uint16_t)index, opcode, 0, qpn, flags, ds, 0, imm);
		EXPECT(t, !memcmp(&seg, &ctrl, 16));
		mlx5dv_set_data_seg(&data, (uint32_t)b, (uint32_t)c, a);
		seg = cairn_wqe_data(a, (uint32_t)b, (uint32_t)c);
		EXPECT(t, !memcmp(&seg, &data, 16));
		seg = cairn_wqe_raddr(a, (uint32_t)b);
		EXPECT(t, !memcmp(&seg, &raddr, 16));
		seg = cairn_wqe_atomic(a, b);
		EXPECT(t, !memcmp(&seg, &atomic, 16));
	}
}
#else
static void as_mlx5dv(struct cairn_test *t)
{
	cairn_skip(t, "built without infiniband/mlx5dv.h (package libibverbs-dev)");
}
#endif

/* The same comparison with NVIDIA's own device code, which NCCL ships. */
#define GPUNETIO "nccl_device/gin/gdaki/doca_gpunetio/common/doca_gpunetio_verbs_def.h"
#if __has_include(GPUNETIO)
#include GPUNETIO

#define SAME_HERE(ours, theirs)	\
	static_assert((int64_t)(ours) == (int64_t)DOCA_GPUNETIO_IB_MLX5_##theirs, #ours " is " #theirs)
#define PLACE_HERE(a, theirs, b)	\
	static_assert(offsetof(struct cairn_cqe, a) == offsetof(struct doca_gpunetio_ib_mlx5_##theirs, b), \
		      #a " lies where GPUNetIO's " #b " does")

SAME_HERE(CAIRN_WQE_NOP, OPCODE_NOP);
SAME_HERE(CAIRN_WQE_WRITE, OPCODE_RDMA_WRITE);
SAME_HERE(CAIRN_WQE_WRITE_IMM, OPCODE_RDMA_WRITE_IMM);
SAME_HERE(CAIRN_WQE_SEND, OPCODE_SEND);
SAME_HERE(CAIRN_WQE_SEND_IMM, OPCODE_SEND_IMM);
SAME_HERE(CAIRN_WQE_READ, OPCODE_RDMA_READ);
SAME_HERE(CAIRN_WQE_ATOMIC_CS, OPCODE_ATOMIC_CS);
SAME_HERE(CAIRN_WQE_ATOMIC_FA, OPCODE_ATOMIC_FA);
SAME_HERE(CAIRN_WQE_SIGNALED, WQE_CTRL_CQ_UPDATE);
SAME_HERE(CAIRN_WQE_SOLICITED, WQE_CTRL_SOLICITED);
SAME_HERE(CAIRN_WQE_FENCE, WQE_CTRL_FENCE);
SAME_HERE(CAIRN_WQE_SMALL_FENCE, WQE_CTRL_INITIATOR_SMALL_FENCE);
SAME_HERE(CAIRN_WQE_INLINE_FLAG, INLINE_SEG);
SAME_HERE(CAIRN_CQE_REQ, CQE_REQ);
SAME_HERE(CAIRN_CQE_REQ_ERR, CQE_REQ_ERR);
SAME_HERE(CAIRN_CQE_RESP_ERR, CQE_RESP_ERR);
SAME_HERE(CAIRN_CQE_INVALID, CQE_INVALID);
static_assert(sizeof(struct cairn_cqe) == sizeof(struct doca_gpunetio_ib_mlx5_cqe64), "completions");
static_assert(CAIRN_WQE_BLOCK == 1 << DOCA_GPUNETIO_IB_MLX5_WQE_SQ_SHIFT, "blocks");
PLACE_HERE(imm, cqe64, imm_inval_pkey);
PLACE_HERE(byte_count, cqe64, byte_cnt);
PLACE_HERE(opcode_qpn, cqe64, sop_drop_qpn);
PLACE_HERE(wqe_counter, cqe64, wqe_counter);
PLACE_HERE(op_own, cqe64, op_own);
PLACE_HERE(vendor_syndrome, err_cqe_ex, vendor_err_synd);
PLACE_HERE(syndrome, err_cqe_ex, syndrome);
#endif

static const uint8_t sent[64] = {
	[32] = 0, 0x12, 0x34, 0x56, [44] = 0, 0, 0x10, 0x01,
	[56] = 0x08, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0, 0x01,
};
static const uint8_t received[64] = {
	[36] = 0xde, 0xad, 0xbe, 0xef, [44] = 0x01, 0, 0, 0, [56] = 0, 0, 0x01, 0x23, 0, 0x07, 0, 0x12,
};
static const uint8_t failed[64] = {
	[48] = 1, 2, 3, 4, 5, 6, 0x88, 0x13, [56] = 0x10, 0, 0x01, 0x00, 0, 0x09, 0, 0xd0,
};
static const uint8_t imm[4] = { 0xde, 0xad, 0xbe, 0xef };

static struct cairn_cqe_result parse(const uint8_t bytes[64])
{
	struct cairn_cqe e;

	memcpy(&e, bytes, sizeof(e));
	return cairn_cqe_parse(&e);
}

static void by_hand(struct cairn_test *t)
{
	struct cairn_cqe_result r = parse(sent);

	EXPECT(t, r.opcode == CAIRN_CQE_REQ && !cairn_cqe_is_error(&r));
	EXPECT(t, !r.syndrome && !r.vendor_syndrome && !r.format && !r.solicited);
	EXPECT(t, r.sent_opcode == CAIRN_WQE_WRITE && r.qpn == 0xabcdef && r.wqe_counter == 0xfedc);
	EXPECT(t, r.user_index == 0x123456 && r.byte_count == 0x1001);
	r = parse(received);
	EXPECT(t, r.opcode == CAIRN_CQE_RESP_WRITE_IMM && r.solicited);
	EXPECT(t, r.qpn == 0x123 && r.wqe_counter == 7);
	EXPECT(t, r.byte_count == 0x01000000 && !memcmp(&r.imm_be, imm, 4));
	r = parse(failed);
	EXPECT(t, r.opcode == CAIRN_CQE_REQ_ERR && cairn_cqe_is_error(&r) && r.sent_opcode == CAIRN_WQE_READ);
	EXPECT(t, r.syndrome == CAIRN_CQE_REMOTE_ACCESS && r.vendor_syndrome == 0x88 && r.wqe_counter == 9);
}

/* Builds an entry from the parsed result: the bytes must be the same in either lap. */
static void there_and_back(struct cairn_test *t)
{
	static const uint8_t *const all[] = { sent, received, failed };

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		struct cairn_cqe_result r = parse(all[i]);
		struct cairn_cqe e;

		for (uint64_t index = 5; index < 100; index += 64) {
			e = cairn_cqe_build(&r, index, 64);
			EXPECT(t, (e.op_own & 1) == (index > 64));
			e.op_own = (uint8_t)((e.op_own & 0xfe) | (all[i][63] & 1));
			memcpy(e.timestamp, all[i] + 48, 6);
			EXPECT(t, !memcmp(&e, all[i], 64));
		}
	}
}

/* Runs a ring of 8 entries for three laps. Exactly the entries that the producer has written in this lap
 * are valid. */
static void laps(struct cairn_test *t)
{
	const struct cairn_cqe_result r = { .opcode = CAIRN_CQE_REQ };
	uint8_t op_own[8];

	memset(op_own, CAIRN_CQE_UNUSED, sizeof(op_own));
	EXPECT(t, !cairn_cqe_valid(op_own[0], 0, 8) && !cairn_cqe_valid(op_own[0], 8, 8));
	for (uint64_t produced = 0; produced < 24; produced++) {
		op_own[produced % 8] = cairn_cqe_build(&r, produced, 8).op_own;
		for (uint64_t i = produced >= 7 ? produced - 7 : 0; i <= produced; i++)
			EXPECT(t, cairn_cqe_valid(op_own[i % 8], i, 8));
		for (uint64_t i = produced + 1; i <= produced + 8; i++)
			EXPECT(t, !cairn_cqe_valid(op_own[i % 8], i, 8));
	}
	EXPECT(t, cairn_cqe_valid(0x00, 1ull << 40, 8) && cairn_cqe_valid(0x01, (1ull << 40) + 8, 8));
}

static void indices(struct cairn_test *t)
{
	static const uint8_t record[4] = { 0, 0x34, 0x56, 0x78 };
	uint32_t dbrec = cairn_cqe_dbrec(0xff12345678);

	EXPECT(t, !memcmp(&dbrec, record, 4));
	EXPECT(t, cairn_cqe_index(5, 5) == 5 && cairn_cqe_index(5, 9) == 9);
	EXPECT(t, cairn_cqe_index(0xfffe, 3) == 0x10003);
	EXPECT(t, cairn_cqe_index(0x123450000, 0xffff) == 0x12345ffff);
	EXPECT(t, cairn_cqe_index(0x12345ffff, 0xfffe) == 0x12346fffe);
	EXPECT(t, cairn_cqe_index(UINT64_MAX, 0) == 0);
}

static void names(struct cairn_test *t)
{
	int known = 0;

	EXPECT(t, !strcmp(cairn_cqe_syndrome_name(0x04), "local protection error"));
	EXPECT(t, !strcmp(cairn_cqe_syndrome_name(0x16), "receiver-not-ready retries exceeded"));
	for (int i = 0; i < 256; i++)
		known += !!strcmp(cairn_cqe_syndrome_name((uint8_t)i), "unknown syndrome");
	EXPECT(t, known == 13);
}

static const struct cairn_unit units[] = {
	{ "as_mlx5dv", as_mlx5dv },
	{ "by_hand", by_hand },
	{ "there_and_back", there_and_back },
	{ "laps", laps },
	{ "indices", indices },
	{ "names", names },
};

const struct cairn_family cairn_cqe_family = {
	.stage = "rdma", .name = "cqe", .units = units, .num_units = ARRAY_SIZE(units),
};
