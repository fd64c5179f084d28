// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_receiver [ROUNDS [MODE]] - Cairn's poster, and a receiver that uses only libibverbs
 *
 * The poster's ring belongs to a queue pair that unmodified libmlx5 created, and is accessed through
 * mlx5dv_init_obj. The card (in tests, the NIC model) executes what it posts. The other end uses none of
 * Cairn's code: it posts receives with ibv_post_recv and reads completions with ibv_poll_cq. Each round is
 * drawn at random: a WRITE with immediate of 0 to 4096 bytes, whose completion must carry the immediate and
 * the length and must not come before the whole payload; or a WRITE and a sequence number, which the receiver
 * polls in memory as perftest's receivers do.
 *
 * Exit status 0: all rounds arrived as posted; 1: some did not; 77: no mlx5 device.
 */
#include <infiniband/mlx5dv.h>

#include "primitives/base/error.h"
#include "rdma/fhbn/fhbn_host.h"
#include "rdma/nic/nic_verbs.h"

#define WAIT_S		5.0
#define RECEIVES	16
#define PLACES		4		/* payload places, 8 KiB apart */
#define FLAG_AT		(END_BYTES - 64)

static struct end a, b;
static struct cairn_fhbn_state state;
static uint64_t rng = 0x9e3779b97f4a7c15u;

static uint32_t draw(uint32_t below)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng >> 33) % below;
}

static void post_receive(void)
{
	struct ibv_recv_wr *bad, wr = { .num_sge = 0 };

	must(!ibv_post_recv(b.qp, &wr, &bad), "ibv_post_recv");
}

static struct cairn_fhbn_qp lay_open(uint32_t mode)
{
	struct mlx5dv_qp qp = { 0 };
	struct mlx5dv_cq cq = { 0 };
	struct mlx5dv_obj obj = { .qp = { a.qp, &qp }, .cq = { a.cq, &cq } };

	must(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ), "mlx5dv_init_obj");
	must(qp.sq.stride == CAIRN_WQE_BLOCK && cq.cqe_cnt >= qp.sq.wqe_cnt, "a ring for the poster");
	return (struct cairn_fhbn_qp) {
		.sq = { qp.sq.buf, qp.sq.wqe_cnt, a.qp->qp_num }, .record = (uint32_t *)qp.dbrec + 1,
		.reg = { qp.bf.reg, (uint64_t *)(void *)((char *)qp.bf.reg + qp.bf.size) },
		.cq = cq.buf, .cq_record = cq.dbrec, .state = &state, .timeout_ns = 5000000000u,
		.num_cqes = cq.cqe_cnt, .mode = mode | CAIRN_FHBN_SYS,
	};
}

static void fill(uint8_t *p, uint32_t bytes, uint32_t round)
{
	for (uint32_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(round * 167 + i * 13 + (i >> 8));
}

/* Returns whether the payload is whole and the bytes after it are unchanged. */
static int is_whole(const uint8_t *p, uint32_t bytes, uint32_t round)
{
	for (uint32_t i = 0; i < bytes; i++)
		if (p[i] != (uint8_t)(round * 167 + i * 13 + (i >> 8)))
			return 0;
	return p[bytes] == 0;
}

static int by_immediate(const struct cairn_fhbn_qp *q, uint32_t at, uint32_t bytes, uint32_t imm)
{
	const struct cairn_fhbn_request r =
		cairn_fhbn_write_imm((uintptr_t)b.buf + at, b.mr->rkey, (uintptr_t)a.buf + at, a.mr->lkey,
				     bytes, imm);
	struct ibv_wc wc = { 0 };

	if (cairn_fhbn_host_post(q, &r, 1, NULL) || !end_wait(&b, &wc, WAIT_S))
		return 0;
	post_receive();
	return wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
	       wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == imm && wc.byte_len == bytes;
}

static int by_memory(const struct cairn_fhbn_qp *q, uint32_t at, uint32_t bytes, uint64_t number)
{
	const struct cairn_fhbn_request put = cairn_fhbn_write((uintptr_t)b.buf + at, b.mr->rkey,
							       (uintptr_t)a.buf + at, a.mr->lkey, bytes);
	const uint64_t *flag = (const uint64_t *)(const void *)(b.buf + FLAG_AT);
	double begun = now_s();

	if (cairn_fhbn_host_put_signal(q, &put, (uintptr_t)flag, b.mr->rkey, number))
		return 0;
	while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != number) {
		if (now_s() > begun + WAIT_S)
			return 0;
		relax(begun);
	}
	return 1;
}

int main(int argc, char **argv)
{
	uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 3000, wrong = 0, round, immediates = 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct cairn_fhbn_qp q;

	setenv("MLX5_SCATTER_TO_CQE", "0", 1);
	if (!list || !list[0] || !mlx5dv_is_supported(list[0])) {
		puts("no mlx5 device");
		return 77;
	}
	end_open(&a, list[0], 1024);
	end_open(&b, list[0], 64);
	ibv_free_device_list(list);
	ends_reset(&a, &b, ALL_RIGHTS);
	for (int i = 0; i < RECEIVES; i++)
		post_receive();
	q = lay_open(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 0);
	for (round = 1; round <= rounds && !wrong; round++) {
		uint32_t bytes = draw(8) ? 1 + draw(4096) : 0, at = draw(PLACES) * 8192;
		int immediate = (int)draw(2);

		fill(a.buf + at, bytes, round);
		immediates += (uint32_t)immediate;
		wrong += !(immediate ? by_immediate(&q, at, bytes, draw(1u << 31)) :
			   by_memory(&q, at, bytes, round));
		wrong += !is_whole(b.buf + at, bytes, round);
		memset(b.buf + at, 0, bytes);
	}
	wrong += cairn_fhbn_host_flush(&q) != 0;
	if (wrong && cairn_fhbn_fault_error(&state.fault))
		printf("%s\n", cairn_last_error());
	printf("fhbn_receiver: %u of %u rounds, %u by immediate, %s\n", round - 1, rounds, immediates,
	       wrong ? "WRONG" : "all as posted");
	end_close(&a);
	end_close(&b);
	return wrong != 0;
}
