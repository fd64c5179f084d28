/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoch_life - the life of an epoch's thread at a worker of any role: what the main thread asks and tells it
 *
 *   the epoch's thread                         the main thread
 *   introduce   PREPARED, waits for the  <---  connect    gives it the lead's blob
 *               lead's blob
 *   connected   CONNECTED                      state      how far it is, its blob, why it has failed
 *   passed      counts a pass                  passes
 *   ended       FAILED or OVER           <---  stop       the thread ends when it next looks
 *                                              destroy    stops it, and waits for its end
 *
 * Calls of the main thread return at once, except destroy. An epoch may protect members of its own with the
 * lock, and wait for `changed`, which is signalled when stop is set; it may have more threads, which it joins
 * before the first one ends.
 *
 * A struct of zeros is one that was never begun: destroy does nothing with it.
 * Errors: -ECANCELED (stopped), -ENOMEM, -EIO (no thread), -EINVAL (a blob that comes too early or twice).
 */
#ifndef CAIRN_EPOCH_LIFE_H
#define CAIRN_EPOCH_LIFE_H

#include <pthread.h>
#include <stdatomic.h>

#include "serving/remote/control/control.h"

enum cairn_epoch_state {
	CAIRN_EPOCH_PREPARING, CAIRN_EPOCH_PREPARED, CAIRN_EPOCH_CONNECTED, CAIRN_EPOCH_FAILED,
	CAIRN_EPOCH_OVER
};

struct cairn_epoch_life {
	pthread_t thread;
	int is_begun, has_thread;
	atomic_int stop;
	pthread_mutex_t lock;		/* protects what follows */
	pthread_cond_t changed;		/* signalled by stop and by the lead's blob, and by the epoch */
	enum cairn_epoch_state state;
	size_t blob_bytes;
	char *mine, *theirs;		/* blobs; theirs: the thread's, once there */
	int has_theirs;
	char why[CAIRN_CONTROL_TEXT];
	uint64_t passes;		/* completed */
};

/* Starts the thread. Call destroy also after an error. */
int cairn_epoch_begin(struct cairn_epoch_life *l, size_t blob_bytes, void *(*run)(void *arg), void *arg);

int cairn_epoch_introduce(struct cairn_epoch_life *l, const void *mine);
void cairn_epoch_connected(struct cairn_epoch_life *l);
void cairn_epoch_passed(struct cairn_epoch_life *l);
/*
 * ret: an error, whose text becomes the reason, or 0. -ECANCELED is none, nor is -ECONNRESET: the lead's end
 * has closed the transport, and the lead decides what follows. The first failure of several threads counts.
 */
void cairn_epoch_ended(struct cairn_epoch_life *l, int ret);

/* PREPARED: copies this end's blob. FAILED: copies the reason. Each may be NULL. */
enum cairn_epoch_state cairn_epoch_state(struct cairn_epoch_life *l, void *blob, char *text, size_t len);
int cairn_epoch_connect(struct cairn_epoch_life *l, const void *theirs);
uint64_t cairn_epoch_passes(struct cairn_epoch_life *l);
void cairn_epoch_stop(struct cairn_epoch_life *l);
void cairn_epoch_destroy(struct cairn_epoch_life *l);

#endif
