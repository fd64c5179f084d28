/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share - which heads an attention worker holds, and what it must know about the model
 *
 * KV heads are divided into contiguous groups, each with the query heads that read it. The groups differ by
 * at most one head: 8 heads on 3 workers are 3, 3 and 2. If there are more workers than heads, each worker
 * has one head, and the workers of a head divide its pages into stripes (lists.h). Latent attention counts as
 * one head. A layer waits for its slowest worker, so the others are idle for a share of the time, which
 * cairn_heads_waste() returns.
 *
 * An attention worker has no weights, except those of latent attention that stand between queries and latents
 * (CAIRN_W_KV_B), which the model worker sends. Its model is only the struct, with the sizes that attention
 * needs.
 */
#ifndef CAIRN_REMOTE_SHARE_H
#define CAIRN_REMOTE_SHARE_H

#include "serving/model/model.h"
#include "serving/remote/control/control.h"
#include "serving/remote/attention/pass.h"
#include "serving/remote/remote_fault.h"

struct cairn_heads {
	int32_t first, num;
};

/* The KV heads of worker `i` of `workers`, which are at most num_kv_heads. */
static inline struct cairn_heads cairn_heads_of(int32_t num_kv_heads, int32_t workers, int32_t i)
{
	const int32_t each = num_kv_heads / workers, more = num_kv_heads % workers;

	return (struct cairn_heads){ i * each + (i < more ? i : more), each + (i < more) };
}

/* What worker `i` of `workers` holds. */
struct cairn_part_of_cache {
	struct cairn_heads heads;
	int32_t stripe, stripes;
};

static inline struct cairn_part_of_cache cairn_part_of(int32_t num_kv_heads, int32_t workers, int32_t i)
{
	const int32_t head = i % num_kv_heads;

	if (workers <= num_kv_heads)
		return (struct cairn_part_of_cache){ cairn_heads_of(num_kv_heads, workers, i), 0, 1 };
	return (struct cairn_part_of_cache){
		{ head, 1 }, i / num_kv_heads, (workers - head + num_kv_heads - 1) / num_kv_heads,
	};
}

/* The largest number of stripes that a head has. */
static inline int32_t cairn_most_stripes(int32_t num_kv_heads, int32_t workers)
{
	return workers <= num_kv_heads ? 1 : cairn_part_of(num_kv_heads, workers, 0).stripes;
}

/* Returns which part of the workers' time is lost because they cannot be given equal parts. */
static inline double cairn_heads_waste(int32_t num_kv_heads, int32_t workers)
{
	const double most = workers <= num_kv_heads ? (num_kv_heads + workers - 1) / workers :
			    1. / (workers / num_kv_heads);

	return 1 - num_kv_heads / (most * workers);
}

/* Returns the heads of keys that workers can divide. */
static inline int32_t cairn_share_heads(const struct cairn_model_config *config)
{
	return config->latent.kv_lora_rank ? 1 : config->num_key_value_heads;
}

/* Returns a digest of the numbers of a model's configuration. */
uint64_t cairn_share_digest(const struct cairn_model_config *config);

/*
 * Fills in the share of worker i: all but epoch, rank and transport. *scales is set to what follows the
 * struct in the message, num_bytes of it, for the caller to free; NULL: nothing.
 */
int cairn_share_assign(struct cairn_control_assign *a, float **scales, const struct cairn_model *model,
		       const struct cairn_remote_limits *limits, int previous, int32_t workers, int32_t i);

/* Makes the model of a share. a and scales: a checked message. The table must outlive it. */
int cairn_share_model(struct cairn_model *out, const struct cairn_impl *impl,
		      const struct cairn_control_assign *a, const void *scales);
void cairn_share_model_free(struct cairn_model *m);	/* does nothing if *m is zeroed */

static inline struct cairn_remote_limits cairn_share_limits(const struct cairn_control_assign *a)
{
	return (struct cairn_remote_limits){ a->max_rows, a->max_batch, a->max_context, a->num_pages,
					     a->page_size, (int32_t)a->lanes, (int)a->repeatable };
}

/*
 * Buffers of a share, in bytes: the queries of a pass, its keys or its values, and the result, O followed by
 * the log-sum-exps. For each lane, a worker has two buffers of keys and values, used in turn, and one of the
 * others. The buffers of a kind lie one behind the other.
 * Latents have no values.
 */
struct cairn_share_sizes {
	size_t q, k, o, lse;		/* of one row */
	int sides;			/* keys and values, or latents alone */
	size_t q_bytes, kv_bytes, result_bytes;		/* of max_rows; kv_bytes: of all sides */
	size_t page_bytes;		/* of a page of one layer in the cache, of all sides */
	size_t weight_bytes;		/* of one layer; 0: has none */
};

struct cairn_share_sizes cairn_share_sizes(const struct cairn_control_assign *a);

/* In the order of streams, values lie behind room for the keys of the largest pass. */
static inline size_t cairn_share_v_offset(const struct cairn_share_sizes *s)
{
	return s->kv_bytes / (size_t)s->sides;
}

/*
 * With a table whose memory is a device's, ends put to each other in the order of streams (transport.h), and
 * the hosts are not on the way. Then all workers write their results into one buffer of the model worker, for
 * each lane as a pass needs them: O [states, rows, heads], then the log-sum-exps [states, rows, heads], where
 * rows are those of the pass, up to max_rows, and states are 2 with `previous`: workers write the first one.
 */
static inline int cairn_share_by_stream(const struct cairn_impl *impl)
{
	return !(impl->flags & CAIRN_IMPL_HOST_MEM);
}

/* Rounds the bytes of memory that peers map: smaller pieces would share a granule, which is mapped whole. */
static inline size_t cairn_share_granules(size_t bytes)
{
	const size_t granule = (size_t)2 << 20;

	return (bytes + granule - 1) / granule * granule;
}

/* The transport by which such ends reach each other: nvlink. Tests, whose host memory acts as a device's, set
 * another one. */
extern const char *cairn_share_streams_over;

struct cairn_share_results {		/* of one lane, in bytes */
	size_t o, lse;			/* where the first row of this share begins */
	size_t o_stride, lse_stride;	/* between two rows */
	size_t bytes;
};

struct cairn_share_results cairn_share_results(const struct cairn_control_assign *a);

/*
 * A turn is one layer of a pass of one lane. Turns are counted from 1 in each epoch, over all lanes, in the
 * order in which the model worker sends them. Signals carry the number of their turn. Bit 63 stays 0, because
 * waits compare with the 0 that a slot holds at first. In the order of streams, each lane counts its own
 * turns and has slots of its own.
 */
static inline uint64_t cairn_share_number(uint32_t epoch, uint64_t turn)
{
	return (uint64_t)(epoch & 0x7fff) << 48 | (turn & 0xffffffffffff);
}

/*
 * Which of the lane's two buffers of keys and values a layer takes: they are used in turn by all layers of
 * all passes. `layers` counts the lane's layers before it in this epoch. The parity of the layer would not
 * do: with an odd number of layers, the last one of a pass and the first one of the next would share a
 * buffer.
 */
static inline size_t cairn_share_buffer(uint64_t layers, int32_t layer)
{
	if (FAULT(ONE_KV_BUFFER))
		return 0;
	return FAULT(PARITY_OF_LAYER) ? (size_t)layer % 2 : layers % 2;
}

#endif
