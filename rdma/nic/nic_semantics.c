// SPDX-License-Identifier: Apache-2.0
/*
 * nic_semantics [CHAINS] - prints how reliable connections behave, as text that can be compared between two
 * RDMA devices
 *
 * Connects two queue pairs of this process: both on the device that CAIRN_RDMA_DEVICE names (with entry
 * CAIRN_RDMA_GID_INDEX of its port's GID table, 1); otherwise one on each of the first two devices, or both
 * on the only one. First comes the FHBN pattern: a WRITE of data and an inline WRITE of a sequence number in
 * one post; the receiver polls memory and checks for torn data. Then each case posts its request and another
 * one on a fresh pair, and prints their statuses, the sender's state and the statuses of the receives. After
 * that come unsignalled posts until the library refuses, and completion channels (nic_semantics_events.c). No
 * times and no addresses are printed, because the output is compared as text with nic_semantics.txt.
 *
 * Exit status 0: all cases ran; 1: torn data or a time-out, after which no case runs; 77: no device.
 */
#include "rdma/nic/nic_verbs.h"
#include "rdma/nic/nic_semantics.h"

#define WAIT_S	5.0
#define FULL_S	2.0		/* a queue that refuses for so long is taken for full */
#define FLAG_AT	(END_BYTES - 64)
#define LEN	64u

static struct end a, b;
static int failed;

struct row {
	const char *name;
	enum ibv_wr_opcode opcode;
	unsigned bytes, flags;
	long local, remote;		/* offsets into the buffers; negative: before them */
	uint32_t lkey_flip, rkey_flip;
	int receives;			/* receives posted by the other end, of LEN bytes each */
	uint32_t receive_flip;
	int access;			/* rights of the other end's queue pair; 0: all */
	int other_end;			/* state to which the other end is moved first, or 0 */
};

#define W	IBV_WR_RDMA_WRITE
#define BEYOND	(END_BYTES - (long)LEN + 1)
static const struct row rows[] = {
	{ .name = "write_ok", .opcode = W, .bytes = LEN },
	{ .name = "write_0_bytes", .opcode = W },
	{ .name = "write_inline", .opcode = W, .bytes = 60, .flags = IBV_SEND_INLINE },
	{ .name = "write_to_the_last_byte", .opcode = W, .bytes = LEN, .remote = BEYOND - 1 },
	{ .name = "write_bad_rkey", .opcode = W, .bytes = LEN, .rkey_flip = 0x100 },
	{ .name = "write_remote_end_plus_1", .opcode = W, .bytes = LEN, .remote = BEYOND },
	{ .name = "write_remote_begin_minus_1", .opcode = W, .bytes = LEN, .remote = -1 },
	{ .name = "write_bad_lkey", .opcode = W, .bytes = LEN, .lkey_flip = 0x100 },
	{ .name = "write_local_end_plus_1", .opcode = W, .bytes = LEN, .local = BEYOND },
	{ .name = "write_local_begin_minus_1", .opcode = W, .bytes = LEN, .local = -1 },
	{ .name = "write_no_right", .opcode = W, .bytes = LEN, .access = IBV_ACCESS_REMOTE_READ },
	{ .name = "write_imm_ok", .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = LEN, .receives = 2 },
	{ .name = "write_imm_rnr", .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = LEN },
	{ .name = "read_ok", .opcode = IBV_WR_RDMA_READ, .bytes = LEN },
	{ .name = "read_bad_rkey", .opcode = IBV_WR_RDMA_READ, .bytes = LEN, .rkey_flip = 0x100 },
	{ .name = "read_no_right", .opcode = IBV_WR_RDMA_READ, .bytes = LEN,
	  .access = IBV_ACCESS_REMOTE_WRITE },
	{ .name = "read_local_end_plus_1", .opcode = IBV_WR_RDMA_READ, .bytes = LEN, .local = BEYOND },
	{ .name = "send_ok", .opcode = IBV_WR_SEND, .bytes = LEN, .receives = 2 },
	{ .name = "send_imm_ok", .opcode = IBV_WR_SEND_WITH_IMM, .bytes = LEN, .receives = 2 },
	{ .name = "send_rnr", .opcode = IBV_WR_SEND, .bytes = LEN },
	{ .name = "send_too_long", .opcode = IBV_WR_SEND, .bytes = LEN + 1, .receives = 2 },
	{ .name = "send_to_bad_lkey", .opcode = IBV_WR_SEND, .bytes = LEN, .receives = 2,
	  .receive_flip = 0x100 },
	{ .name = "fetch_add_ok", .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .bytes = 8 },
	{ .name = "cmp_swap_ok", .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .bytes = 8 },
	{ .name = "fetch_add_misaligned", .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .bytes = 8, .remote = 4 },
	{ .name = "fetch_add_no_right", .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .bytes = 8,
	  .access = IBV_ACCESS_REMOTE_WRITE },
	{ .name = "write_to_error_state", .opcode = W, .bytes = LEN, .other_end = IBV_QPS_ERR },
};

static void post_receives(const struct row *r)
{
	struct ibv_recv_wr *bad;
	int i;

	for (i = 0; i < r->receives; i++) {
		struct ibv_sge s = end_sge(&b, (size_t)(4096 + i * 4096), LEN);
		struct ibv_recv_wr w = { .wr_id = 20 + (unsigned)i, .sg_list = &s, .num_sge = 1 };

		s.lkey ^= r->receive_flip;
		must(!ibv_post_recv(b.qp, &w, &bad), "ibv_post_recv");
	}
}

static const char *status(int got, const struct ibv_wc *wc)
{
	if (!got)
		failed = 1;
	return got ? ibv_wc_status_str(wc->status) : "none in time";
}

/* Returns whether the expected bytes arrived, for the cases that succeed. */
static const char *moved(const struct row *r)
{
	const uint8_t *from = a.buf + r->local, *to = b.buf + r->remote;
	uint64_t word;

	switch (r->opcode) {
	case IBV_WR_ATOMIC_FETCH_AND_ADD: case IBV_WR_ATOMIC_CMP_AND_SWP:
		/* two additions of 5 to 7 give 17; of two compare-and-swaps from 7 to 5 the first succeeds */
		memcpy(&word, to, sizeof(word));
		return word == (r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 17 : 5) ? "right" : "wrong";
	case IBV_WR_SEND: case IBV_WR_SEND_WITH_IMM:
		to = b.buf + 8192;	/* the second receive */
		break;
	default:
		break;
	}
	return memcmp(from, to, r->bytes) ? "wrong" : "right";
}

static void fill(const struct row *r)
{
	uint64_t seven = 7;
	int i;

	for (i = 0; i < END_BYTES; i++) {
		a.buf[i] = (uint8_t)(i * 5 + 1);
		b.buf[i] = (uint8_t)(i * 3 + 2);
	}
	if (r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || r->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
		memcpy(b.buf, &seven, sizeof(seven));
}

static void run(const struct row *r)
{
	struct ibv_sge s = { (uintptr_t)a.buf + (uintptr_t)r->local, r->bytes, a.mr->lkey ^ r->lkey_flip };
	struct ibv_send_wr second, *bad, first = {
		.wr_id = 7, .sg_list = &s, .num_sge = 1, .opcode = r->opcode,
		.send_flags = r->flags | IBV_SEND_SIGNALED,
	};
	uint64_t remote = (uintptr_t)b.buf + (uintptr_t)r->remote;
	struct ibv_wc wc[2] = { { 0 } }, rc[2] = { { 0 } };
	int got[2], i, ok;

	ends_reset(&a, &b, r->access ? r->access : ALL_RIGHTS);
	fill(r);
	post_receives(r);
	if (r->other_end)
		must(!end_modify(&b, (enum ibv_qp_state)r->other_end), "modify");
	if (r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || r->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		first.wr.atomic.remote_addr = remote;
		first.wr.atomic.rkey = b.mr->rkey ^ r->rkey_flip;
		first.wr.atomic.compare_add = r->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? 7 : 5;
		first.wr.atomic.swap = 5;
	} else {
		first.wr.rdma.remote_addr = remote;
		first.wr.rdma.rkey = b.mr->rkey ^ r->rkey_flip;
	}
	second = first;
	second.wr_id = 8;
	first.next = &second;
	if (ibv_post_send(a.qp, &first, &bad)) {
		printf("case %-28s refused by ibv_post_send state %d\n", r->name, end_state(&a));
		return;
	}
	for (i = 0; i < 2; i++)
		got[i] = end_wait(&a, &wc[i], WAIT_S);
	printf("case %-28s first '%s'%s second '%s'%s", r->name,
	       status(got[0], &wc[0]), wc[0].wr_id == 7 ? "" : " ID",
	       status(got[1], &wc[1]), wc[1].wr_id == 8 ? "" : " ID");
	ok = got[0] && got[1] && !wc[0].status && !wc[1].status;
	printf(" state %d", end_state(&a));
	for (i = 0; i < r->receives; i++) {
		int n = end_wait(&b, &rc[i], WAIT_S);

		printf(" receive '%s'%s", status(n, &rc[i]), rc[i].wr_id == 20u + (unsigned)i ? "" : " ID");
	}
	printf("%s%s\n", ok ? " bytes " : "", ok ? moved(r) : "");
}

/*
 * Gathers and scatters several segments, and checks that a fence completes each READ before the WRITE of the
 * data that it has read.
 */
static void run_fence(void)
{
	struct ibv_sge in = end_sge(&a, 0, 4096);
	struct ibv_sge out[2] = { end_sge(&a, 0, 1000), end_sge(&a, 1000, 3096) };
	struct ibv_send_wr *bad, write = {
		.wr_id = 8, .sg_list = out, .num_sge = 2, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
	}, read = { .wr_id = 7, .next = &write, .sg_list = &in, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };
	struct ibv_wc wc = { 0 };
	int round, i, wrong = 0;

	ends_reset(&a, &b, ALL_RIGHTS);
	for (round = 0; round < 50 && !failed; round++) {
		for (i = 0; i < 4096; i++)
			b.buf[i] = (uint8_t)(i * 7 + round);
		read.wr.rdma.remote_addr = (uintptr_t)b.buf;
		write.wr.rdma.remote_addr = (uintptr_t)b.buf + 8192;
		read.wr.rdma.rkey = write.wr.rdma.rkey = b.mr->rkey;
		must(!ibv_post_send(a.qp, &read, &bad), "ibv_post_send");
		if (!end_wait(&a, &wc, WAIT_S) || wc.status)
			failed = 1;
		wrong += memcmp(b.buf, b.buf + 8192, 4096) != 0;
	}
	printf("fence %d read-then-write pairs, %d wrong\n", round, wrong);
	failed |= wrong;
}

static void run_chains(int num_chains)
{
	volatile uint64_t *flag = (volatile uint64_t *)(void *)(b.buf + FLAG_AT);
	uint64_t *seq = (uint64_t *)(void *)(a.buf + FLAG_AT);
	int i, torn = 0;
	unsigned k;

	ends_reset(&a, &b, ALL_RIGHTS);
	for (i = 1; i <= num_chains && !failed; i++) {
		uint32_t len = 1 + (uint32_t)i * 7919u % (END_BYTES / 2);
		struct ibv_sge data = end_sge(&a, 0, len), word = end_sge(&a, FLAG_AT, 8);
		struct ibv_send_wr *bad, signal = {
			.wr_id = (unsigned)i, .sg_list = &word, .num_sge = 1, .opcode = W,
			.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		}, payload = { .next = &signal, .sg_list = &data, .num_sge = 1, .opcode = W };
		double begun = now_s();
		struct ibv_wc wc = { 0 };
		int done = 0;

		for (k = 0; k < len; k++)
			a.buf[k] = (uint8_t)(k * 31 + (unsigned)i);
		*seq = (unsigned)i;
		payload.wr.rdma.remote_addr = (uintptr_t)b.buf;
		signal.wr.rdma.remote_addr = (uintptr_t)flag;
		payload.wr.rdma.rkey = signal.wr.rdma.rkey = b.mr->rkey;
		must(!ibv_post_send(a.qp, &payload, &bad), "ibv_post_send");
		/* a failed write is reported, and its number never arrives */
		while (*flag != (unsigned)i && !(done && wc.status) && now_s() < begun + WAIT_S) {
			done = done || end_wait(&a, &wc, 0);
			relax(begun);
		}
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		torn += memcmp(a.buf, b.buf, len) != 0;
		done = done || end_wait(&a, &wc, WAIT_S);
		if (*flag != (unsigned)i || !done || wc.status || wc.wr_id != (unsigned)i)
			failed = 1;
	}
	printf("chains %d of payload and sequence number, %d torn\n", i - 1, torn);
	failed |= torn;
}

static void run_until_refused(void)
{
	struct ibv_sge s = end_sge(&a, 0, 8);
	struct ibv_send_wr *bad, w = { .sg_list = &s, .num_sge = 1, .opcode = W };
	double since = now_s();
	int n = 0;

	ends_reset(&a, &b, ALL_RIGHTS);
	w.wr.rdma.remote_addr = (uintptr_t)b.buf;
	w.wr.rdma.rkey = b.mr->rkey;
	/* a queue that frees entries by itself may be full for a moment */
	while (n < 200 && now_s() < since + FULL_S) {
		if (!ibv_post_send(a.qp, &w, &bad)) {
			n++;
			since = now_s();
		} else {
			relax(since);
		}
	}
	printf("unsignalled posts before refusal %d\n", n);
}

int main(int argc, char **argv)
{
	const char *name = getenv("CAIRN_RDMA_DEVICE"), *gid = getenv("CAIRN_RDMA_GID_INDEX");
	struct ibv_device **list;
	int num = 0, first = 0;
	unsigned i;

	list = ibv_get_device_list(&num);
	while (name && list && first < num && strcmp(ibv_get_device_name(list[first]), name))
		first++;
	if (!list || first >= num)
		return 77;
	if (gid)
		gid_index = atoi(gid);
	end_open(&a, list[first], 64);
	end_open(&b, list[num > 1 && !name ? 1 : first], 64);
	run_chains(argc > 1 ? atoi(argv[1]) : 200);
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]) && !failed; i++)
		run(&rows[i]);
	if (!failed) {
		run_fence();
		run_until_refused();
		nic_semantics_events(&a, &b);
	}
	end_close(&a);
	end_close(&b);
	ibv_free_device_list(list);
	return failed;
}
