/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attn_link - what passes between the slices of a model and the attention operators that run elsewhere
 *
 * For each layer, in order, a sliced pass (sliced.h) calls send_q, then send_kv, then receive. It may enqueue
 * other operations before each of them. The calls are asynchronous: they enqueue work on the pass's stream,
 * or make the stream wait for another one.
 *
 * With `previous`, the attention worker attends to the keys before this pass only. The pass then attends to
 * its own keys itself, so that keys and values are off the critical path: the next pass of the request needs
 * them first. Its result and the worker's are merged (attn_merge.h), which needs the worker's lse; if each
 * request has one row, and keys are not latents, the merge itself attends to the row's own key. The pages of
 * the previous keys may be divided into stripes; then there is one result for each stripe, and all are
 * merged. Without `previous`, the worker appends the keys and attends to all of them, and its result is the
 * final one.
 *
 * With a window of w keys, row i of a request sees at most w - 1 - i previous keys. If it sees none, the
 * worker's result for the row is 0 and its lse -INFINITY.
 */
#ifndef CAIRN_ATTN_LINK_H
#define CAIRN_ATTN_LINK_H

#include <stdint.h>

/*
 * The rows of one attention operator, in the order of the pass, in the memory of its table. A row has
 * num_attention_heads heads of q, and num_key_value_heads of k and of v. Strides are in elements. q stays as
 * it is until the work that send_kv enqueues has ended; k and v are only given to send_kv. Unless they are
 * latents, a link may change none of them.
 *
 * With latent attention v is NULL. With `previous`, q is rotated and k is the keys as the cache holds them
 * (mla_append.h): that operation rotates q and makes the keys at once, so q is sent when the latents are
 * there, and the worker needs neither norms nor positions. Without it, k is the latents, q is not rotated,
 * and the worker may change q in place.
 */
struct cairn_attn_rows {
	int32_t layer, num_rows;
	int32_t window;			/* keys that a token attends to, itself included; 0: all */
	void *q;
	const void *k, *v;
	int64_t q_stride, kv_stride;
};

struct cairn_attn_link {
	/* results for the keys before this pass, one for each stripe; 0: one result, for all keys */
	int previous;
	int (*send_q)(void *ctx, const struct cairn_attn_rows *rows, void *stream);
	int (*send_kv)(void *ctx, const struct cairn_attn_rows *rows, void *stream);
	/*
	 * Writes the results: o, [previous, num_rows, num_attention_heads, value's head dimension] of the
	 * model's dtype without gaps, and lse, [previous, num_rows, num_attention_heads] (attn_paged.h).
	 * Without `previous`, there is one o, and lse is NULL.
	 */
	int (*receive)(void *ctx, int32_t layer, void *o, float *lse, void *stream);
	void *ctx;
	/*
	 * NULL, or, with `previous`, gives memory of the link for previous + 1 results of the largest pass. A
	 * pass that has its states there, the own one last if there is one, saves a copy: receive() finds its
	 * results in place.
	 */
	void (*states)(void *ctx, void **o, float **lse);
};

#endif
