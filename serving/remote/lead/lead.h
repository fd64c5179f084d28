/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lead - lets workers join, watches them, and passes messages between them and their users
 *
 *   listener --> a thread for each guest: handshake, JOIN, checks --> spare -- gather(), take() --> ranked
 *   spare, ranked --> lost: the channel has ended, FAILED, or no beat for beat_ms
 *
 * Members have roles. Ranks 1 .. attention are attention workers; the ranks after them are prefill workers,
 * and those after these model workers. A spare takes a rank of its own role only.
 *
 *   attention   All ranks work together. Their user (attn_remote.h) takes the workers of an epoch by
 *               gather(), and works with them until one is lost: lost() then becomes 1 and stays so until
 *               the next gather(), which fills the gaps with spares.
 *   model       Further processes that compute passes, besides the lead's own. They belong to the attention
 *               workers' epoch: gather() takes both, and lost() tells of both.
 *   prefill     Each rank works alone. Its user (pull.h) takes a worker by take(), with an epoch of its own,
 *               and works with it until has() becomes 0. The loss of one touches no other.
 *
 * Without `listen` the lead starts the workers itself, on this machine, with a secret that only they inherit,
 * and replaces those that are lost. It kills a lost worker, because that may only have been stopped.
 *
 * A guest has SHAKE_MS for its handshake, and at most MAX_GUESTS are served at a time. A guest whose build,
 * table, role, model, weights or transport does not match is refused by a line that names what differs.
 *
 * Threads: one user of the attention and model workers, and one of each rank of prefill workers, at a time.
 * The lead's own threads touch no memory of a user.
 * Errors: -EINVAL, -EACCES (an address of other machines without a secret), -EADDRINUSE, -ETIMEDOUT (fewer
 * workers than wanted), -ECONNRESET (a worker is lost), -EOPNOTSUPP (no libsodium), -ENOMEM. The text names
 * the worker.
 */
#ifndef CAIRN_REMOTE_LEAD_H
#define CAIRN_REMOTE_LEAD_H

#include "serving/remote/control/control.h"

#define CAIRN_LEAD_BEAT_MS	100	/* between two beats of a member */
#define CAIRN_LEAD_SHAKE_MS	5000
#define CAIRN_LEAD_MAX_GUESTS	16
#define CAIRN_LEAD_PREFILL	16		/* most prefill workers */
#define CAIRN_LEAD_ADDRESS	64		/* bytes of a numeric address, with its NUL */

struct cairn_lead;

/* The lead may read the texts and arrays until it is destroyed: it starts workers anew. */
struct cairn_lead_options {
	int32_t attention, prefill;	/* workers of each role; at least one in all */
	int32_t model;			/* besides the lead's process; only with attention */
	const char *table;		/* name of the table whose operations all run */
	const char *impl;		/* --impl of workers that the lead starts; NULL: `table` */
	const char *listen;		/* HOST:PORT; NULL: start the workers on this machine */
	const char *secret_file;	/* with listen; NULL: none, which only a loopback address allows */
	int32_t beat_ms;		/* a member without a beat for this time is lost; 0: 500 */
	int32_t join_ms;		/* for gather(); 0: 30000 */
	/*
	 * Digests of the model's configuration and weights, which prefill and model workers must have, and
	 * an attention worker too if it has any. 0: not checked.
	 */
	uint64_t config, weights;
	/* Options that name the model, for prefill and model workers that the lead starts, up to a NULL;
	 * NULL: none */
	const char *const *model_options;
	/*
	 * GPUs of the workers that the lead starts: the first worker gets GPU first_device, the others the
	 * next ones in the order of their ranks, modulo num_devices. num_devices: GPUs of the machine; 0: the
	 * table has none. prefill_devices: GPUs of one prefill worker; 0: one.
	 */
	int32_t first_device, num_devices, prefill_devices;
};

struct cairn_lead_stats {
	int32_t members, spares;	/* now */
	int64_t joined, lost, refused, started;		/* since creation; started: processes */
	int64_t noticed_ns;		/* CLOCK_MONOTONIC when a ranked worker was last found lost */
	char last_loss[512];		/* which ranked worker, and why; "": none yet */
	char last_refused[512];		/* which guest or spare the lead does not have, and why; "": none */
};

int cairn_lead_create(struct cairn_lead **out, const struct cairn_lead_options *options);
/* Closes all channels, which ends the members, and ends the processes that it started. NULL is legal. */
void cairn_lead_destroy(struct cairn_lead *l);
int cairn_lead_port(const struct cairn_lead *l);
int32_t cairn_lead_attention(const struct cairn_lead *l);	/* workers of this role, as wanted */
int32_t cairn_lead_prefill(const struct cairn_lead *l);
int32_t cairn_lead_models(const struct cairn_lead *l);	/* the lead's process included */
/* Returns the rank of model worker 1 .. models - 1; the lead's process is number 0. */
int32_t cairn_lead_model_rank(const struct cairn_lead *l, int32_t number);

/* Begins an epoch in which all ranks have attention and model workers. Waits up to join_ms. Epochs ascend
 * from 1. */
int cairn_lead_gather(struct cairn_lead *l, uint32_t *epoch);
/* Begins an epoch with a prefill worker of this rank. Waits up to timeout_ms: -ETIMEDOUT. */
int cairn_lead_take(struct cairn_lead *l, int32_t rank, int timeout_ms, uint32_t *epoch);
/* Returns whether the rank has a worker that is not lost. */
int cairn_lead_has(struct cairn_lead *l, int32_t rank);

int cairn_lead_send(struct cairn_lead *l, int32_t rank, enum cairn_control_kind kind, const void *head,
		    size_t head_bytes, const void *rest, size_t rest_bytes);
/* Waits for the blob that the worker sends in this epoch, which must have num_bytes. */
int cairn_lead_blob(struct cairn_lead *l, int32_t rank, void *bytes, size_t num_bytes);
int cairn_lead_ready(struct cairn_lead *l, int32_t rank);	/* waits for READY of this epoch */

/*
 * Writes the numeric address of this machine at which a worker reaches the lead; rank 0: at which all
 * attention and model workers do. 127.0.0.1 if they are on this machine.
 */
void cairn_lead_address(struct cairn_lead *l, int32_t rank, char host[CAIRN_LEAD_ADDRESS]);

int cairn_lead_lost(const struct cairn_lead *l);
/* Returns -ECONNRESET, with the reason why the first worker of this epoch was lost as the text. */
int cairn_lead_why(struct cairn_lead *l);
/* Declares a worker lost, for the reason in cairn_last_error(). Returns -ECONNRESET. */
int cairn_lead_report(struct cairn_lead *l, int32_t rank);
void cairn_lead_stats(struct cairn_lead *l, struct cairn_lead_stats *stats);
/* For tests: the process of a worker; 0: unknown. */
int cairn_lead_pid(struct cairn_lead *l, int32_t rank);

#endif
