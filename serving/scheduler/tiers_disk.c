// SPDX-License-Identifier: Apache-2.0
/*
 * tiers_disk - the disk tier and its thread
 *
 *   step: add -> staged -- earlier passes have ended --> todo -> thread: pread, pwrite -> finished -> poll
 *
 * One thread does the jobs in order, so that a page is written before it is fetched again. The file is
 * unlinked, and all of its space is allocated at creation, so that a full disk is reported when the engine
 * starts.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serving/scheduler/tiers_impl.h"

static int push(struct job_queue *q, const struct disk_job *job)
{
	if (q->first == q->end)
		q->first = q->end = 0;
	if (q->end == q->room) {
		int32_t room = q->room ? 2 * q->room : 64;
		struct disk_job *jobs = realloc(q->jobs, (size_t)room * sizeof(*jobs));

		if (!jobs)
			return -ENOMEM;
		q->jobs = jobs;
		q->room = room;
	}
	q->jobs[q->end++] = *job;
	return 0;
}

/* Transfers all bytes of a page; returns 0 or an errno. */
static int transfer(struct cairn_tiers *t, const struct disk_job *job)
{
	char *at = t->host + (size_t)job->buffer * t->slot_bytes;
	off_t place = (off_t)job->place * (off_t)t->slot_bytes;
	size_t left = t->slot_bytes;

	while (left) {
		ssize_t n = job->fetch ? pread(t->file, at, left, place) : pwrite(t->file, at, left, place);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? errno : EIO;
		at += n;
		place += n;
		left -= (size_t)n;
	}
	return 0;
}

static void *serve(void *arg)
{
	struct cairn_tiers *t = arg;

	pthread_mutex_lock(&t->lock);
	for (;;) {
		struct disk_job job;
		int err;

		while (!t->stop && t->todo.first == t->todo.end)
			pthread_cond_wait(&t->wake, &t->lock);
		if (t->stop)
			break;
		job = t->todo.jobs[t->todo.first++];
		pthread_mutex_unlock(&t->lock);
		err = transfer(t, &job);
		pthread_mutex_lock(&t->lock);
		if (!err && push(&t->finished, &job))
			err = ENOMEM;
		if (err)
			t->error = err;
		pthread_cond_signal(&t->done);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static int open_file(struct cairn_tiers *t)
{
	const char *dir = t->opt.disk_dir ? t->opt.disk_dir : "/tmp";
	off_t bytes = (off_t)t->opt.disk_pages * (off_t)t->slot_bytes;
	char path[4200];
	int err;

	t->file = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (t->file < 0) {	/* the file system has no unnamed files */
		snprintf(path, sizeof(path), "%s/cairn-kv-XXXXXX", dir);
		t->file = mkostemp(path, O_CLOEXEC);
		if (t->file < 0)
			return cairn_error(EINVAL, "disk_dir: %s: %s", dir, strerror(errno));
		unlink(path);
	}
	err = posix_fallocate(t->file, 0, bytes);
	return err ? cairn_error(EINVAL, "disk_pages: %s: %lld bytes: %s", dir, (long long)bytes,
				 strerror(err)) : 0;
}

int tiers_disk_create(struct cairn_tiers *t)
{
	int err;

	CAIRN_TRY(open_file(t));
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->wake, NULL);
	pthread_cond_init(&t->done, NULL);
	err = pthread_create(&t->thread, NULL, serve, t);
	if (err) {
		pthread_cond_destroy(&t->done);
		pthread_cond_destroy(&t->wake);
		pthread_mutex_destroy(&t->lock);
		return cairn_error(err, "tiers: cannot create the disk thread");
	}
	t->thread_runs = 1;
	return 0;
}

void tiers_disk_destroy(struct cairn_tiers *t)
{
	if (t->thread_runs) {
		pthread_mutex_lock(&t->lock);
		t->stop = 1;
		pthread_cond_signal(&t->wake);
		pthread_mutex_unlock(&t->lock);
		pthread_join(t->thread, NULL);
		pthread_cond_destroy(&t->done);
		pthread_cond_destroy(&t->wake);
		pthread_mutex_destroy(&t->lock);
	}
	if (t->file >= 0)
		close(t->file);
	free(t->staged.jobs);
	free(t->todo.jobs);
	free(t->finished.jobs);
	free(t->fetched.jobs);
}

int tiers_disk_add(struct cairn_tiers *t, int fetch, int32_t buffer, int32_t place, uint64_t request)
{
	struct disk_job job = {
		.fetch = fetch, .buffer = buffer, .place = place, .request = request,
		.pass = t->launched + 1,
	};
	struct job_queue *q = &t->staged;

	/* only a request's last page reports it: jobs are done in order, so all its pages have arrived */
	for (int32_t i = q->end; request && i-- > q->first;) {
		if (q->jobs[i].request == request) {
			q->jobs[i].request = 0;
			break;
		}
	}
	if (push(q, &job))
		return cairn_error(ENOMEM, "tiers: no memory for a job of the disk");
	t->buffers[buffer].jobs++;
	t->buffers[buffer].fetches += fetch;
	t->num_open++;
	return 0;
}

void tiers_disk_release(struct cairn_tiers *t, int64_t pass)
{
	struct job_queue *q = &t->staged;

	if (q->first == q->end)
		return;
	pthread_mutex_lock(&t->lock);
	while (q->first < q->end && q->jobs[q->first].pass <= pass) {
		if (push(&t->todo, &q->jobs[q->first]))
			t->error = ENOMEM;
		q->first++;
	}
	pthread_cond_signal(&t->wake);
	pthread_mutex_unlock(&t->lock);
}

/* Processes the finished jobs; called with the lock held. Returns 0 or an errno. */
static int take_finished(struct cairn_tiers *t)
{
	struct job_queue *q = &t->finished;

	for (; q->first < q->end; q->first++) {
		const struct disk_job *job = &q->jobs[q->first];
		int32_t b = job->buffer;

		t->num_open--;
		t->buffers[b].jobs--;
		t->buffers[b].fetches -= job->fetch;
		if (!t->buffers[b].jobs && t->buffers[b].slot < 0)
			t->spares[t->num_spares++] = b;
		if (job->request && push(&t->fetched, job))
			return ENOMEM;
	}
	return t->error;
}

int tiers_disk_poll(struct cairn_tiers *t)
{
	int err;

	if (!t->num_open)
		return 0;
	pthread_mutex_lock(&t->lock);
	err = take_finished(t);
	pthread_mutex_unlock(&t->lock);
	return err ? cairn_error(EIO, "the disk tier has failed: %s", strerror(err)) : 0;
}

int tiers_disk_wait(struct cairn_tiers *t)
{
	int err;

	pthread_mutex_lock(&t->lock);
	while (!t->error && t->finished.first == t->finished.end)
		pthread_cond_wait(&t->done, &t->lock);
	err = take_finished(t);
	pthread_mutex_unlock(&t->lock);
	return err ? cairn_error(EIO, "the disk tier has failed: %s", strerror(err)) : 0;
}

int cairn_tiers_fetched(struct cairn_tiers *t, uint64_t *request)
{
	struct job_queue *q = &t->fetched;

	if (q->first == q->end)
		return 0;
	*request = q->jobs[q->first++].request;
	return 1;
}

int cairn_tiers_wait(struct cairn_tiers *t)
{
	if (!t->num_open)
		return 0;
	CAIRN_TRY(CAIRN_TABLE(t->impl, stream_sync, t->stream));
	tiers_disk_release(t, INT64_MAX);
	return tiers_disk_wait(t);
}
