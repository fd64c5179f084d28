// SPDX-License-Identifier: Apache-2.0
/*
 * nic_execute.c - executes one work request of the NIC model: requester's checks, responder's checks,
 * movement
 *
 * First the requester's local keys are checked, then the responder: whether it exists, has posted a receive,
 * and its key is valid for all bytes of the message. Only then is the first byte moved. The tables' lock is
 * held throughout.
 */
#include <errno.h>
#include <stdlib.h>

#include "rdma/nic/nic_model.h"

#define MAX_MESSAGE_BYTES	(1u << 30)
#define RNR_FOR_EVER		7
#define TRANSPORT_UNIT_NS	4096ull
#define TRANSPORT_LONGEST_NS	2000000000ull	/* longest retry time; on hardware it may be minutes */

/* Receiver-not-ready timers in the specification's numbering, in units of 10 us. */
static const uint16_t rnr_timer_10us[32] = {
	65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
	3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
};

static int check_local(const struct nic_qp *qp, const struct nic_request *r, uint32_t access)
{
	int i;

	if (r->bytes > MAX_MESSAGE_BYTES && r->num_segments > 1)
		return CAIRN_CQE_LOCAL_LENGTH;
	for (i = 0; i < r->num_segments; i++) {
		const struct nic_segment *s = &r->segments[i];

		if (!s->inline_bytes && !nic_mr_find(qp, s->key, s->addr, s->bytes, access))
			return CAIRN_CQE_LOCAL_PROTECTION;
	}
	return 0;
}

static uint64_t local_address(const struct nic_qp *qp, const struct nic_segment *s)
{
	return nic_mr_address(nic_mr_find(qp, s->key, s->addr, s->bytes, 0), s->addr);
}

/* Moves the message's bytes from .. from + bytes to the responder's memory. */
static int move_out(const struct nic_qp *qp, const struct nic_request *r, pid_t pid, uint64_t to,
		    uint64_t from,
		    uint64_t bytes)
{
	uint64_t start = 0;
	int i;

	for (i = 0; i < r->num_segments; i++, start += r->segments[i - 1].bytes) {
		const struct nic_segment *s = &r->segments[i];
		uint64_t lo = from > start ? from - start : 0, hi = from + bytes - start;
		const uint8_t *p;

		if (start >= from + bytes)
			break;
		if (lo >= s->bytes)
			continue;
		hi = hi < s->bytes ? hi : s->bytes;
		p = s->inline_bytes ? s->inline_bytes : (const uint8_t *)(uintptr_t)local_address(qp, s);
		if (nic_copy_to(pid, to + (start + lo - from), p + lo, hi - lo))
			return -EFAULT;
	}
	return 0;
}

/* Stores returned bytes into the requester's own segments. */
static void scatter(const struct nic_qp *qp, const struct nic_request *r, const uint8_t *data)
{
	int i;

	for (i = 0; i < r->num_segments; i++) {
		nic_copy_to(qp->pid, local_address(qp, &r->segments[i]), data, r->segments[i].bytes);
		data += r->segments[i].bytes;
	}
}

/* Finds the peer if it can answer; otherwise counts down the transport retries. */
static int find_peer(struct nic_sq *sq, struct nic_qp **peer)
{
	struct nic_qp *p = nic_qp_find(sq->qp->dest_qpn);
	uint64_t now, patience;

	if (p && p->state >= NIC_RTR && p->state <= NIC_SQE && p->dest_qpn == sq->qp->qpn) {
		sq->retry_ns = 0;
		*peer = p;
		return 0;
	}
	now = nic_now_ns();
	patience = (TRANSPORT_UNIT_NS << sq->qp->timeout) * (sq->qp->retry + 1u);
	if (!sq->qp->timeout || patience > TRANSPORT_LONGEST_NS)
		patience = TRANSPORT_LONGEST_NS;
	if (!sq->retry_ns)
		sq->retry_ns = now + patience;
	if (now >= sq->retry_ns)
		return CAIRN_CQE_TRANSPORT_RETRY;
	sq->wait_ns = now + TRANSPORT_UNIT_NS;
	return -EAGAIN;
}

/* Returns 0 if the responder has a receive posted. */
static int find_receive(struct nic_sq *sq, const struct nic_qp *peer)
{
	uint32_t raw;

	if (nic_copy_from(peer->pid, &raw, peer->dbrec, sizeof(raw)))
		return CAIRN_CQE_TRANSPORT_RETRY;
	if (peer->rq_entries && (uint16_t)be32toh(raw) != peer->rq_head)
		return 0;
	nic_count(&nic_stats.rnr, 1);
	if (!sq->rnr_left)
		return CAIRN_CQE_RNR_RETRY;
	if (sq->qp->rnr_retry != RNR_FOR_EVER)
		sq->rnr_left--;
	sq->wait_ns = nic_now_ns() + rnr_timer_10us[peer->min_rnr_timer & 31] * 10000ull;
	return -EAGAIN;
}

static void complete_receive(struct nic_qp *peer, const struct nic_request *r, int opcode, int syndrome)
{
	struct nic_completion c = {
		.receive = 1, .opcode = syndrome ? CAIRN_CQE_RESP_ERR : opcode, .syndrome = syndrome,
		.index = peer->rq_head++, .bytes = (uint32_t)r->bytes, .imm = r->imm,
		.solicited = !!(r->flags & CAIRN_WQE_SOLICITED),
	};

	nic_complete(peer, &c);
	if (syndrome)
		nic_qp_fail(peer);
}

/* Stores the message into the next receive's buffers. Returns 0 or the responder's own syndrome. */
static int fill_receive(struct nic_qp *peer, const struct nic_request *r, const uint8_t *data)
{
	uint32_t stride = 1u << peer->rq_shift;
	uint64_t left = r->bytes, room = 0, at;
	uint8_t entry[NIC_MAX_WQE];
	unsigned i, n;

	if (stride > sizeof(entry))
		return CAIRN_CQE_LOCAL_QP_OP;
	at = peer->rq + (uint64_t)(peer->rq_head & (peer->rq_entries - 1)) * stride;
	if (nic_copy_from(peer->pid, entry, at, stride))
		return CAIRN_CQE_LOCAL_PROTECTION;
	for (n = 0; n < stride / NIC_SEGMENT; n++) {
		if (nic_get32(entry + n * NIC_SEGMENT + 4) == NIC_NO_KEY)
			break;
		room += nic_get32(entry + n * NIC_SEGMENT);
	}
	if (room < left)
		return CAIRN_CQE_LOCAL_LENGTH;
	for (i = 0; i < n && left; i++) {
		const uint8_t *s = entry + i * NIC_SEGMENT;
		uint64_t addr = nic_get64(s + 8), bytes = nic_get32(s);
		const struct nic_mr *mr;

		bytes = bytes < left ? bytes : left;
		mr = nic_mr_find(peer, nic_get32(s + 4), addr, bytes, NIC_LOCAL_WRITE);
		if (!mr || nic_copy_to(peer->pid, nic_mr_address(mr, addr), data, bytes))
			return CAIRN_CQE_LOCAL_PROTECTION;
		data += bytes;
		left -= bytes;
	}
	return 0;
}

static int send(struct nic_sq *sq, const struct nic_request *r, struct nic_qp *peer)
{
	int ret = find_receive(sq, peer), syndrome, opcode;
	uint8_t *data;

	if (ret)
		return ret;
	data = malloc(r->bytes + 1);
	if (!data)
		return CAIRN_CQE_LOCAL_QP_OP;
	move_out(sq->qp, r, sq->qp->pid, (uintptr_t)data, 0, r->bytes);
	syndrome = fill_receive(peer, r, data);
	free(data);
	opcode = r->opcode == CAIRN_WQE_SEND ? CAIRN_CQE_RESP_SEND : CAIRN_CQE_RESP_SEND_IMM;
	complete_receive(peer, r, opcode, syndrome);
	if (syndrome == CAIRN_CQE_LOCAL_LENGTH)
		return CAIRN_CQE_REMOTE_INVALID;
	return syndrome ? CAIRN_CQE_REMOTE_OP : 0;
}

/* Checks the responder's rights to the remote range; a request of zero bytes needs no key. */
static int check_remote(struct nic_qp *peer, const struct nic_request *r, uint32_t access, uint64_t *addr)
{
	const struct nic_mr *mr;

	*addr = 0;
	/*
	 * a queue pair without the right is "not set up for this operation", which the specification
	 * answers differently from a bad key
	 */
	if (!(peer->access & access)) {
		nic_qp_fail(peer);
		return CAIRN_CQE_REMOTE_INVALID;
	}
	if (!r->bytes)
		return 0;
	mr = nic_mr_find(peer, r->rkey, r->remote, r->bytes, access);
	if (mr && nic_adversary_revokes()) {
		nic->mrs[mr - nic->mrs].revoked = 1;
		mr = NULL;
	}
	if (!mr) {
		nic_qp_fail(peer);
		return CAIRN_CQE_REMOTE_ACCESS;
	}
	*addr = nic_mr_address(mr, r->remote);
	return 0;
}

static int deliver_piece(struct nic_sq *sq, const struct nic_request *r, pid_t pid, uint64_t to)
{
	struct nic_delivery *d = &sq->delivery;
	uint64_t size = (r->bytes / (unsigned)d->num_pieces + 7) & ~7ull, from = d->order[d->piece] * size;
	uint64_t bytes = from >= r->bytes ? 0 : r->bytes - from < size ? r->bytes - from : size;

	if (d->order[d->piece] == d->num_pieces - 1 && from < r->bytes)
		bytes = r->bytes - from;
	if (bytes && move_out(sq->qp, r, pid, to + from, from, bytes))
		return CAIRN_CQE_TRANSPORT_RETRY;
	if (++d->piece == d->num_pieces) {
		d->active = 0;
		return 0;
	}
	sq->wait_ns = nic_now_ns() + nic_adversary_piece_ns();
	return -EAGAIN;
}

static int write_remote(struct nic_sq *sq, const struct nic_request *r, struct nic_qp *peer)
{
	struct nic_delivery *d = &sq->delivery;
	uint64_t to;
	int ret;

	if (!d->active) {
		ret = r->opcode == CAIRN_WQE_WRITE_IMM ? find_receive(sq, peer) : 0;
		ret = ret ? ret : check_remote(peer, r, NIC_REMOTE_WRITE, &to);
		if (ret)
			return ret;
		d->to = to;
		d->piece = 0;
		d->num_pieces = nic_adversary_pieces(r->bytes, d->order);
		d->active = d->num_pieces > 1;
	}
	if (d->active)
		ret = deliver_piece(sq, r, peer->pid, d->to);
	else
		ret = move_out(sq->qp, r, peer->pid, d->to, 0, r->bytes) ? CAIRN_CQE_TRANSPORT_RETRY : 0;
	if (!ret && r->opcode == CAIRN_WQE_WRITE_IMM)
		complete_receive(peer, r, CAIRN_CQE_RESP_WRITE_IMM, 0);
	return ret;
}

/* Within the responder's process this is an atomic instruction. Across processes and in GPU memory it is
 * atomic only with respect to the atomics of other NICs. */
static int fetch_and_change(struct nic_qp *peer, const struct nic_request *r, uint64_t addr, pid_t self,
			    uint64_t *old)
{
	uint64_t *word = (uint64_t *)(uintptr_t)addr, next;

	if (peer->pid == self && !nic_is_foreign(addr)) {
		*old = r->compare;
		if (r->opcode == CAIRN_WQE_ATOMIC_FA)
			*old = __atomic_fetch_add(word, r->swap_add, __ATOMIC_SEQ_CST);
		else
			__atomic_compare_exchange_n(word, old, r->swap_add, 0, __ATOMIC_SEQ_CST,
						    __ATOMIC_SEQ_CST);
		return 0;
	}
	if (nic_copy_from(peer->pid, old, addr, sizeof(*old)))
		return CAIRN_CQE_TRANSPORT_RETRY;
	next = r->opcode == CAIRN_WQE_ATOMIC_FA ? *old + r->swap_add : *old == r->compare ? r->swap_add :
		*old;
	return nic_copy_to(peer->pid, addr, &next, sizeof(next)) ? CAIRN_CQE_TRANSPORT_RETRY : 0;
}

/* Fetches the data of READ and atomics now; nic_place() stores it when the entry retires. */
static int fetch_remote(struct nic_sq *sq, const struct nic_request *r, struct nic_qp *peer,
			struct nic_inflight *f)
{
	int atomic = r->opcode != CAIRN_WQE_READ, ret;
	uint64_t from;

	ret = check_remote(peer, r, atomic ? NIC_REMOTE_ATOMIC : NIC_REMOTE_READ, &from);
	if (ret || !r->bytes)
		return ret;
	if (atomic && r->remote % 8) {
		nic_qp_fail(peer);
		return CAIRN_CQE_REMOTE_INVALID;
	}
	f->data = malloc(r->bytes);
	if (!f->data)
		return CAIRN_CQE_LOCAL_QP_OP;
	if (atomic) {
		uint64_t old;

		ret = fetch_and_change(peer, r, from, sq->qp->pid, &old);
		memcpy(f->data, &old, sizeof(old));
	} else if (nic_copy_from(peer->pid, f->data, from, r->bytes)) {
		ret = CAIRN_CQE_TRANSPORT_RETRY;
	}
	if (ret) {
		free(f->data);
		f->data = NULL;
		return ret;
	}
	f->due_ns = nic_adversary_read_ns();
	f->due_ns += f->due_ns ? nic_now_ns() : 0;
	return 0;
}

int nic_execute(struct nic_sq *sq, struct nic_request *r, struct nic_inflight *f)
{
	uint32_t access = r->opcode >= CAIRN_WQE_READ ? NIC_LOCAL_WRITE : 0;
	struct nic_qp *peer;
	int ret;

	if (r->opcode == CAIRN_WQE_NOP)
		return 0;
	ret = check_local(sq->qp, r, access);
	if (ret)
		return ret;
	ret = find_peer(sq, &peer);
	if (ret)
		return ret;
	switch (r->opcode) {
	case CAIRN_WQE_SEND: case CAIRN_WQE_SEND_IMM:
		return send(sq, r, peer);
	case CAIRN_WQE_WRITE: case CAIRN_WQE_WRITE_IMM:
		return write_remote(sq, r, peer);
	default:
		return fetch_remote(sq, r, peer, f);
	}
}

/*
 * The segments were checked when the request was executed. If a key was revoked since then, the data is lost.
 */
void nic_place(struct nic_sq *sq, struct nic_inflight *f, const struct nic_request *r)
{
	if (!check_local(sq->qp, r, NIC_LOCAL_WRITE))
		scatter(sq->qp, r, f->data);
	free(f->data);
	f->data = NULL;
}
