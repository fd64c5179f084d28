/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport.cuh - put, signal, wait and flush from inside a kernel, for every back end with device puts
 *
 * The structures that channel_device, region_device and remote_device return on the host are passed to
 * the kernel by value. Each function branches on the channel's kind, which is uniform over all threads.
 * Functions return 0 or a positive error number: ETIMEDOUT after timeout_ns (globaltimer), or the
 * channel's error. Slots, offsets and lengths are NOT checked, neither here nor on the host; a kernel
 * that exceeds its memory faults.
 *
 *   transport_put()        called by all threads of a grid's CTAs (struct transport_grid) or of one CTA,
 *                          with equal arguments. The source was written before the launch, or by the CTA
 *                          whose share it is, with a barrier in between.
 *   transport_signal()     called by one thread, with a word of 8 bytes: the fast path for a payload of that
 *                          size. It orders no earlier stores; a put of 0 bytes is a signal that does.
 *   transport_wait()       called by one thread; after a barrier the other threads see what it saw
 *   transport_wait_word()  the same for value and word only: payloads are not ordered after it
 *   transport_flush()      called by one thread, after a barrier that follows the puts
 *
 * nvlink: in a put each CTA copies its share with 16-byte stores. The last CTA to arrive has seen all stores
 * and sets the signal: a fence at system scope, then a store. A slot's value and word are one 128-bit store
 * and load, which PTX makes single-copy atomic, so a word that arrives with its value needs no fence.
 * queue (verbs): one thread of the last CTA writes the descriptor, and the proxy posts it. fhbn: that thread
 * builds the work requests and rings the card's doorbell. A put carries no word: it sets the slot's word to
 * 0, except on fhbn, where a put with a payload leaves the word unchanged.
 */
#ifndef CAIRN_TRANSPORT_CUH
#define CAIRN_TRANSPORT_CUH

#include <errno.h>

#include "primitives/ptx/ptx.cuh"
#include "rdma/fhbn/fhbn.cuh"
#include "rdma/transport/transport.h"
#include "rdma/transport/transport_fhbn.h"
#include "rdma/transport/transport_queue.h"

#define TRANSPORT_FN static __device__ __forceinline__

/* ---- 128 and 64 bits at system scope (PTX 9.7.9.8 ld, 9.7.9.12 st) ---- */

TRANSPORT_FN void transport_st_relaxed_sys_b128(void *p, uint64_t low, uint64_t high)
{
	asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.sys.global.b128 [%0], v; }"
		     : : "l"(p), "l"(low), "l"(high) : "memory");
}

TRANSPORT_FN struct cairn_signal transport_ld_relaxed_sys_b128(const void *p)
{
	struct cairn_signal s;

	asm volatile("{ .reg .b128 v; ld.relaxed.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
		     : "=l"(s.value), "=l"(s.word) : "l"(p) : "memory");
	return s;
}

TRANSPORT_FN struct cairn_signal transport_ld_acquire_sys_b128(const void *p)
{
	struct cairn_signal s;

	asm volatile("{ .reg .b128 v; ld.acquire.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
		     : "=l"(s.value), "=l"(s.word) : "l"(p) : "memory");
	return s;
}

TRANSPORT_FN uint64_t transport_ld_relaxed_sys_u64(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

TRANSPORT_FN uint64_t transport_ld_acquire_sys_u64(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

TRANSPORT_FN void transport_st_relaxed_sys_v2_u64(uint64_t *p, uint64_t a, uint64_t b)
{
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" : : "l"(p), "l"(a), "l"(b) : "memory");
}

/* cheaper than fence.acq_rel (9.7.13.4 fence) */
TRANSPORT_FN void transport_fence_release_sys(void)
{
	asm volatile("fence.release.sys;" : : : "memory");
}

/* ---- copies ---- */

#define TRANSPORT_UNROLL 8

/*
 * Copies bytes [0, bytes) with num_threads threads, numbered by thread: 16 bytes at a time where source
 * and destination have equal alignment modulo 16, single bytes at the edges and elsewhere. All loads of
 * an iteration are issued before its stores.
 */
TRANSPORT_FN void transport_copy(uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t thread,
				 uint64_t num_threads)
{
	uint64_t head = -(uint64_t)to & 15, i, units;

	if (((uint64_t)to ^ (uint64_t)from) & 15)
		head = bytes;
	if (head > bytes)
		head = bytes;
	for (i = thread; i < head; i += num_threads)
		to[i] = from[i];
	units = (bytes - head) / 16;
	uint4 *d = (uint4 *)(to + head);
	const uint4 *s = (const uint4 *)(from + head);

	for (i = thread; i + (TRANSPORT_UNROLL - 1) * num_threads < units;
	     i += TRANSPORT_UNROLL * num_threads) {
		uint4 v[TRANSPORT_UNROLL];

#pragma unroll
		for (int k = 0; k < TRANSPORT_UNROLL; k++)
			v[k] = s[i + k * num_threads];
#pragma unroll
		for (int k = 0; k < TRANSPORT_UNROLL; k++)
			d[i + k * num_threads] = v[k];
	}
	for (; i < units; i += num_threads)
		d[i] = s[i];
	for (i = head + units * 16 + thread; i < bytes; i += num_threads)
		to[i] = from[i];
}

/* ---- the proxy's queue ---- */

/* Reserves a place in the ring. The place is free once the descriptor `depth` places earlier is done. */
TRANSPORT_FN int transport_reserve(const struct cairn_device_channel *c, uint64_t timeout_ns, uint64_t *index)
{
	uint64_t begin = ptx_globaltimer(), i = atomicAdd((unsigned long long *)c->next, 1ull), error;

	while (i - transport_ld_relaxed_sys_u64(c->done) >= c->depth) {
		error = transport_ld_relaxed_sys_u64(c->done + 1);
		if (error)
			return (int)error;
		/* the place is lost, and all later ones block: the channel must be reset */
		if (ptx_globaltimer() - begin > timeout_ns)
			return ETIMEDOUT;
	}
	*index = i;
	return 0;
}

TRANSPORT_FN int transport_enqueue(const struct cairn_device_channel *c, const struct queue_entry *e,
				   uint64_t timeout_ns)
{
	uint64_t w[QUEUE_WORDS], index, *at;
	int ret = transport_reserve(c, timeout_ns, &index);

	if (ret)
		return ret;
	queue_pack(e, index, c->depth, w);
	at = c->queue + (index & (c->depth - 1)) * QUEUE_WORDS;
#pragma unroll
	for (int i = 0; i < QUEUE_WORDS; i += 2)
		transport_st_relaxed_sys_v2_u64(at + i, w[i], w[i + 1]);
	return 0;
}

/* ---- the card ---- */

/* Posts word and value if payload is NULL; otherwise the payload, and the value unless slot is
 * CAIRN_NO_SIGNAL. */
TRANSPORT_FN int transport_post(const struct cairn_device_channel *c,
				const struct cairn_fhbn_request *payload,
				uint32_t slot, uint64_t value, uint64_t word, uint64_t timeout_ns)
{
	const struct transport_fhbn_poster *p = (const struct transport_fhbn_poster *)c->poster;
	uint64_t at = p->slots + slot * sizeof(struct cairn_signal);
	struct cairn_fhbn_qp q = p->qp;
	struct cairn_fhbn_request r[2];

	q.timeout_ns = timeout_ns;
	r[0] = payload ? *payload : cairn_fhbn_write_u64(at + offsetof(struct cairn_signal, word),
							 p->slots_rkey, word);
	r[1] = cairn_fhbn_write_u64(at, p->slots_rkey, value);
	return -cairn_fhbn_post(&q, q.mode, r, slot == CAIRN_NO_SIGNAL ? 1 : 2, NULL);
}

/* ---- the interface ---- */

TRANSPORT_FN int transport_signal(const struct cairn_device_channel *c, uint32_t slot, uint64_t value,
				  uint64_t word, uint64_t timeout_ns)
{
	if (c->kind == CAIRN_DEVICE_NVLINK) {
		transport_st_relaxed_sys_b128(&c->theirs[slot], value, word);
		return 0;
	}
	if (c->kind == CAIRN_DEVICE_FHBN)
		return transport_post(c, NULL, slot, value, word, timeout_ns);
	const struct queue_entry e = { .value = value, .word = word, .slot = slot, .op = QUEUE_PUT };

	return transport_enqueue(c, &e, timeout_ns);
}

/*
 * The CTAs that put together. arrived: counters in global memory, used by this grid only, zero when the
 * kernel starts; NULL for one CTA. Puts are counted as turns. CTAs arrive at counter turn % 8 without waiting
 * for each other. At every fourth turn they wait until all CTAs have arrived at the turn four earlier, so
 * that no counter serves two turns at once.
 */
#define TRANSPORT_COUNTERS	8

struct transport_grid {
	uint64_t *arrived;		/* [TRANSPORT_COUNTERS] */
	uint64_t turn;
	uint32_t cta, num_ctas;
};

/* Each thread creates one for all its puts. */
TRANSPORT_FN struct transport_grid transport_grid(uint32_t cta, uint32_t num_ctas, uint64_t *arrived)
{
	const struct transport_grid g = { arrived, 0, cta, num_ctas };

	return g;
}

/* Returns the value of a turn's counter once all CTAs have arrived. */
TRANSPORT_FN uint64_t transport_full(const struct transport_grid *g, uint64_t turn)
{
	return (turn / TRANSPORT_COUNTERS + 1) * g->num_ctas;
}

TRANSPORT_FN int transport_not_too_far(const struct transport_grid *g, uint64_t timeout_ns)
{
	const uint64_t half = TRANSPORT_COUNTERS / 2, turn = g->turn - half;
	uint64_t begin = ptx_globaltimer();

	if (g->turn < half || g->turn % half)
		return 0;
	while (ptx_ld_relaxed_gpu_u64(&g->arrived[turn % TRANSPORT_COUNTERS]) < transport_full(g, turn))
		if (ptx_globaltimer() - begin > timeout_ns)
			return ETIMEDOUT;
	return 0;
}

TRANSPORT_FN uint64_t transport_add_relaxed_gpu(uint64_t *p)
{
	uint64_t old;

	asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;" : "=l"(old) : "l"(p) : "memory");
	return old;
}

/*
 * Returns 0 or an error number. *last is 1 in one thread of the last CTA to arrive: the earlier stores of all
 * CTAs are ordered before its later ones, at system scope.
 */
TRANSPORT_FN int transport_all_arrived(struct transport_grid *g, uint64_t timeout_ns, int *last)
{
	uint64_t old;
	int ret;

	*last = 0;
	__syncthreads();
	if (threadIdx.x)
		return 0;
	transport_fence_release_sys();
	if (g->num_ctas == 1) {
		*last = 1;
		return 0;
	}
	ret = transport_not_too_far(g, timeout_ns);
	if (ret)
		return ret;
	old = transport_add_relaxed_gpu(&g->arrived[g->turn % TRANSPORT_COUNTERS]);
	*last = old + 1 == transport_full(g, g->turn);
	g->turn++;
	if (*last)
		ptx_fence_acq_rel_sys();
	return 0;
}

/* Returns the share of CTA `cta` in a payload: contiguous whole lines of 128 bytes; the last CTA has the
 * remainder. */
TRANSPORT_FN uint64_t transport_share(uint64_t bytes, uint32_t cta, uint32_t num_ctas, uint64_t *begin)
{
	uint64_t per = ((bytes + 127) / 128 + num_ctas - 1) / num_ctas * 128, at = per * cta;

	*begin = at < bytes ? at : bytes;
	return bytes - *begin < per ? bytes - *begin : per;
}

TRANSPORT_FN int transport_put(const struct cairn_device_channel *c, const struct cairn_device_region *local,
			       uint64_t local_offset, const struct cairn_device_region *remote,
			       uint64_t remote_offset, uint64_t bytes, uint32_t slot, uint64_t value,
			       struct transport_grid *g, uint64_t timeout_ns)
{
	uint64_t at, n;
	int last, ret;

	if (c->kind == CAIRN_DEVICE_NVLINK) {
		n = transport_share(bytes, g->cta, g->num_ctas, &at);
		transport_copy((uint8_t *)(remote->addr + remote_offset + at),
			       (const uint8_t *)(local->addr + local_offset + at), n, threadIdx.x,
				       blockDim.x);
	}
	ret = transport_all_arrived(g, timeout_ns, &last);
	if (!last)
		return ret;
	if (c->kind == CAIRN_DEVICE_NVLINK) {
		if (slot != CAIRN_NO_SIGNAL)
			transport_st_relaxed_sys_b128(&c->theirs[slot], value, 0);
		return 0;
	}
	if (c->kind == CAIRN_DEVICE_FHBN) {
		const struct cairn_fhbn_request payload =
			cairn_fhbn_write(remote->addr + remote_offset, remote->key,
					 local->addr + local_offset,
					 local->key, (uint32_t)bytes);

		return bytes ? transport_post(c, &payload, slot, value, 0, timeout_ns) :
			transport_post(c, NULL, slot, value, 0, timeout_ns);
	}
	const struct queue_entry e = {
		.local = local->addr + local_offset, .remote = remote->addr + remote_offset, .bytes = bytes,
		.value = value, .word = 0, .lkey = local->key, .rkey = remote->key,
		.slot = slot == CAIRN_NO_SIGNAL ? QUEUE_NO_SLOT : slot, .op = QUEUE_PUT,
	};

	return transport_enqueue(c, &e, timeout_ns);
}

/* acquire: later reads do not return values older than the signal */
template <int acquire>
TRANSPORT_FN int transport_poll(const struct cairn_device_channel *c, uint32_t slot, uint64_t value,
				uint64_t timeout_ns, struct cairn_signal *found)
{
	uint64_t begin = ptx_globaltimer();
	struct cairn_signal s;
	uint32_t round = 0;

	for (;;) {
		if (c->kind == CAIRN_DEVICE_NVLINK) {
			s = acquire ? transport_ld_acquire_sys_b128(&c->mine[slot]) :
				transport_ld_relaxed_sys_b128(&c->mine[slot]);
		} else {	/* value and word are written separately, the word first */
			s.value = transport_ld_acquire_sys_u64(&c->mine[slot].value);
			s.word = 0;
		}
		if ((int64_t)(s.value - value) >= 0)
			break;
		if (++round % 64)
			continue;
		/* a failure of the card is reported only to the posting end */
		if (c->kind != CAIRN_DEVICE_FHBN) {
			uint64_t error =
				transport_ld_relaxed_sys_u64(c->kind == CAIRN_DEVICE_NVLINK ? c->state :
								      c->done + 1);

			if (error)
				return (int)error;
		}
		if (ptx_globaltimer() - begin > timeout_ns)
			return ETIMEDOUT;
	}
	if (c->kind != CAIRN_DEVICE_NVLINK)
		s.word = transport_ld_relaxed_sys_u64(&c->mine[slot].word);
	*found = s;
	return 0;
}

TRANSPORT_FN int transport_wait(const struct cairn_device_channel *c, uint32_t slot, uint64_t value,
				uint64_t timeout_ns, struct cairn_signal *found)
{
	return transport_poll<1>(c, slot, value, timeout_ns, found);
}

TRANSPORT_FN int transport_wait_word(const struct cairn_device_channel *c, uint32_t slot, uint64_t value,
				     uint64_t timeout_ns, struct cairn_signal *found)
{
	return transport_poll<0>(c, slot, value, timeout_ns, found);
}

TRANSPORT_FN int transport_flush(const struct cairn_device_channel *c, uint64_t timeout_ns)
{
	uint64_t begin = ptx_globaltimer(), want;

	ptx_fence_acq_rel_sys();	/* nvlink: stores to a peer have arrived once a fence has completed */
	if (c->kind == CAIRN_DEVICE_NVLINK)
		return (int)transport_ld_relaxed_sys_u64(c->state);
	if (c->kind == CAIRN_DEVICE_FHBN) {
		struct cairn_fhbn_qp q = ((const struct transport_fhbn_poster *)c->poster)->qp;

		q.timeout_ns = timeout_ns;
		return -cairn_fhbn_flush(&q, q.mode);
	}
	want = transport_ld_relaxed_sys_u64(c->next);
	while ((int64_t)(transport_ld_acquire_sys_u64(c->done) - want) < 0) {
		uint64_t error = transport_ld_relaxed_sys_u64(c->done + 1);

		if (error)
			return (int)error;
		if (ptx_globaltimer() - begin > timeout_ns)
			return ETIMEDOUT;
	}
	return 0;
}

#endif
