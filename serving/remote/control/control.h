/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control - the messages between the lead and its members, inside a channel (channel.h)
 *
 *   member to lead
 *     JOIN         who the member is; the lead answers with ASSIGN or REFUSE
 *     READY        the member has connected its transport
 *     BEAT         every 100 ms
 *     FAILED TEXT  the reason, before the member exits
 *   lead to member
 *     ASSIGN       the member's share: rank, heads, cache; sent again in each epoch
 *     REFUSE TEXT  the reason; the channel is closed after it
 *     PLAN BYTES   what a pass computes; the next one may be sent while a pass is under way
 *     PROMPT IDS   a prompt whose keys and values a prefill worker is to compute and send
 *     LEASE        how long a prefill worker holds them for the lead, from now on
 *     DROP         the lead wants them no more
 *     RUN BYTES    a pass that a model worker is to compute, as ranks get it (engine/worker/plan.h)
 *     STATUS       the error word that ends waiting kernels; 0: none
 *   either
 *     BLOB BYTES   a transport's address, which the lead passes on
 *
 * A message is a struct of this file in the byte order of the machine, followed by text or bytes if its kind
 * has them. Neither side trusts the other: cairn_control_check() refuses any message whose size, direction,
 * numbers or text are not as stated here.
 *
 * Errors: -EINVAL; the text names the kind and the member.
 */
#ifndef CAIRN_CONTROL_H
#define CAIRN_CONTROL_H

#include "serving/model/checkpoint/config.h"
#include "serving/remote/control/channel.h"

#define CAIRN_CONTROL_VERSION	5
#define CAIRN_CONTROL_TABLE	16		/* bytes of a table's name, with its NUL */
#define CAIRN_CONTROL_TEXT	480		/* bytes of a text */
#define CAIRN_CONTROL_BLOB_BYTES	65536		/* bytes of a blob */
#define CAIRN_CONTROL_RANKS	256		/* members */
#define CAIRN_CONTROL_STRIPES	63	/* results that a pass merges, besides its own */
#define CAIRN_CONTROL_LEASE_MS	3600000		/* longest lease */
#define CAIRN_MAX_LANES		3		/* passes in flight together */
#define CAIRN_CONTROL_PEERS	32	/* attention workers of a model worker beside the lead's process */
/* tokens of the longest prompt that fits a message */
#define CAIRN_CONTROL_TOKENS \
	((int32_t)((CAIRN_CHANNEL_MAX - sizeof(struct cairn_control_prompt)) / sizeof(int32_t)))

enum cairn_control_kind {
	CAIRN_CONTROL_JOIN = 1, CAIRN_CONTROL_READY, CAIRN_CONTROL_BEAT, CAIRN_CONTROL_FAILED,
	CAIRN_CONTROL_ASSIGN, CAIRN_CONTROL_REFUSE, CAIRN_CONTROL_PLAN, CAIRN_CONTROL_STATUS,
	CAIRN_CONTROL_BLOB, CAIRN_CONTROL_PROMPT, CAIRN_CONTROL_LEASE, CAIRN_CONTROL_DROP,
	CAIRN_CONTROL_RUN,
	CAIRN_CONTROL_NUM_KINDS
};

enum cairn_member_role {
	CAIRN_MEMBER_MODEL, CAIRN_MEMBER_ATTENTION, CAIRN_MEMBER_PREFILL, CAIRN_NUM_MEMBER_ROLES
};

struct cairn_control_join {
	uint32_t version, role;
	uint64_t digest;		/* of the sources; all must have the same */
	uint64_t config;		/* digest of the model's configuration; 0: has none, takes any */
	uint64_t weights;		/* digest of the model's weights; 0: has none */
	uint32_t transports;		/* bit i: transport i of the table */
	int32_t rank;			/* asked for; -1: any */
	int32_t pid;			/* of the member's process, on its machine */
	uint32_t reserved;		/* 0 */
	char table[CAIRN_CONTROL_TABLE];	/* table whose operations it runs; the same for all */
};

struct cairn_control_assign {
	uint32_t epoch, rank;		/* epoch: counts the lead's restarts, from 1 */
	uint64_t config;		/* digest of the model's configuration */
	/* of keys and values; latent attention counts as one head, which all query heads read */
	int32_t first_head, num_heads;
	int32_t num_layers, num_kv_heads, head_dim;
	int32_t num_pages, page_size;
	int32_t dtype, kv_fp8;
	uint32_t transport;
	int32_t group;			/* query heads of a KV head */
	int32_t max_rows, max_batch, max_context;	/* maxima of one pass; keys of one request */
	int32_t previous;		/* 1: attends to the keys before a pass (attn_link.h) */
	int32_t stripe, stripes;	/* which pages it holds (lists.h); several: of one head */
	int32_t kv_lora_rank, nope_dim, rope_dim, v_dim;	/* of latent attention, or 0 */
	int32_t window;			/* of the layers marked below; 0: none has one */
	/* the softmax scale is attention_factor^2 / sqrt(query_scalar) */
	double query_scalar, attention_factor, softcap;
	uint8_t windowed[CAIRN_MAX_LAYERS / 8];		/* one bit per layer */
	/* bytes of the 8-bit cache's scales, which follow: of K, then of V, f32 [num_layers, num_heads] */
	uint32_t num_bytes, lanes;	/* num_bytes 0: all are 1. lanes: 0 counts as 1 */
	uint32_t models;		/* model workers, the lead's process included; 0 counts as 1 */
	/* for a model worker: its lane; all attention workers; passes are repeatable (worker.h) */
	uint32_t lane, workers, repeatable;
};

struct cairn_control_epoch {		/* READY, STATUS: the epoch that it belongs to */
	uint32_t epoch, error;		/* error: STATUS only; READY 0 */
};

struct cairn_control_beat {
	uint64_t passes;		/* completed */
	int64_t now_ns;			/* the member's clock */
};

struct cairn_control_plan {
	uint64_t pass;			/* from 1, ascending */
	uint32_t lane, num_bytes;
};

struct cairn_control_run {
	uint64_t pass;			/* from 1, ascending in an epoch */
	uint32_t num_bytes, reserved;	/* reserved: 0 */
};

struct cairn_control_blob {
	int32_t from, to;		/* ranks */
	uint32_t num_bytes, epoch;
};

struct cairn_control_prompt {		/* followed by int32 ids [num_tokens] */
	uint64_t job;			/* from 1, ascending in an epoch */
	int32_t first, num_tokens;	/* keys and values of tokens [first, num_tokens) are wanted */
	uint32_t lease_ms, reserved;	/* reserved: 0 */
};

struct cairn_control_lease {
	uint64_t job;
	uint32_t lease_ms, reserved;	/* reserved: 0 */
};

struct cairn_control_drop {
	uint64_t job;
};

/* to_lead: the receiver is the lead. A text has no byte below 32, and no other control character. */
int cairn_control_check(const struct cairn_channel_message *m, int to_lead);
const char *cairn_control_kind_name(uint32_t kind);	/* "join"; "?" if it is none */
/* Sends a message of this struct, followed by text or bytes. */
int cairn_control_send(struct cairn_control_channel *c, enum cairn_control_kind kind, const void *head,
		       size_t head_bytes, const void *rest, size_t rest_bytes, int timeout_ms);

#endif
