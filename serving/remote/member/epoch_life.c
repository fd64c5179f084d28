// SPDX-License-Identifier: Apache-2.0
/* epoch_life - the life of an epoch's thread (epoch_life.h) */
#include "serving/remote/member/epoch_life.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

int cairn_epoch_begin(struct cairn_epoch_life *l, size_t blob_bytes, void *(*run)(void *arg), void *arg)
{
	int ret;

	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->changed, NULL);
	l->is_begun = 1;
	l->blob_bytes = blob_bytes;
	l->mine = calloc(2, blob_bytes);
	if (!l->mine)
		return cairn_error(ENOMEM, "no memory for an epoch");
	l->theirs = l->mine + blob_bytes;
	ret = pthread_create(&l->thread, NULL, run, arg);
	l->has_thread = !ret;
	return ret ? cairn_error(EIO, "no thread: %s", strerror(ret)) : 0;
}

/* ---- the epoch's thread ---- */

int cairn_epoch_introduce(struct cairn_epoch_life *l, const void *mine)
{
	pthread_mutex_lock(&l->lock);
	memcpy(l->mine, mine, l->blob_bytes);
	l->state = CAIRN_EPOCH_PREPARED;
	while (!l->has_theirs && !atomic_load(&l->stop))
		pthread_cond_wait(&l->changed, &l->lock);
	pthread_mutex_unlock(&l->lock);
	return atomic_load(&l->stop) ? -ECANCELED : 0;
}

void cairn_epoch_connected(struct cairn_epoch_life *l)
{
	pthread_mutex_lock(&l->lock);
	l->state = CAIRN_EPOCH_CONNECTED;
	pthread_mutex_unlock(&l->lock);
}

void cairn_epoch_passed(struct cairn_epoch_life *l)
{
	pthread_mutex_lock(&l->lock);
	l->passes++;
	pthread_mutex_unlock(&l->lock);
}

void cairn_epoch_ended(struct cairn_epoch_life *l, int ret)
{
	pthread_mutex_lock(&l->lock);
	if (l->state != CAIRN_EPOCH_FAILED) {
		l->state = ret && ret != -ECANCELED && ret != -ECONNRESET ? CAIRN_EPOCH_FAILED :
			   CAIRN_EPOCH_OVER;
		snprintf(l->why, sizeof(l->why), "%s", cairn_last_error());
	}
	atomic_store(&l->stop, 1);
	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->lock);
}

/* ---- the main thread ---- */

enum cairn_epoch_state cairn_epoch_state(struct cairn_epoch_life *l, void *blob, char *text, size_t len)
{
	enum cairn_epoch_state state;

	pthread_mutex_lock(&l->lock);
	state = l->state;
	if (blob && state == CAIRN_EPOCH_PREPARED)
		memcpy(blob, l->mine, l->blob_bytes);
	if (text)
		snprintf(text, len, "%s", l->why);
	pthread_mutex_unlock(&l->lock);
	return state;
}

int cairn_epoch_connect(struct cairn_epoch_life *l, const void *theirs)
{
	int ret = 0;

	pthread_mutex_lock(&l->lock);
	if (l->state != CAIRN_EPOCH_PREPARED || l->has_theirs) {
		ret = cairn_error(EINVAL, "the lead's blob comes %s", l->has_theirs ? "twice" : "too early");
	} else {
		memcpy(l->theirs, theirs, l->blob_bytes);
		l->has_theirs = 1;
	}
	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->lock);
	return ret;
}

uint64_t cairn_epoch_passes(struct cairn_epoch_life *l)
{
	uint64_t passes;

	pthread_mutex_lock(&l->lock);
	passes = l->passes;
	pthread_mutex_unlock(&l->lock);
	return passes;
}

void cairn_epoch_stop(struct cairn_epoch_life *l)
{
	pthread_mutex_lock(&l->lock);
	atomic_store(&l->stop, 1);
	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->lock);
}

void cairn_epoch_destroy(struct cairn_epoch_life *l)
{
	if (!l->is_begun)
		return;
	cairn_epoch_stop(l);
	if (l->has_thread)
		pthread_join(l->thread, NULL);
	if (l->mine)	/* the lead's blob may hold a key */
		explicit_bzero(l->mine, 2 * l->blob_bytes);
	free(l->mine);
	pthread_cond_destroy(&l->changed);
	pthread_mutex_destroy(&l->lock);
	*l = (struct cairn_epoch_life){ 0 };
}
