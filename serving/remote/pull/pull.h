/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pull - has prefill workers compute prompts, and pulls their keys and values into pages of the KV cache
 *
 *   begin --> queued --> sent to a worker --> runs arrive --> ended: all pages are written, or none counts
 *                              allow: the pages may be written
 *
 * Each rank of the lead's prefill workers has a thread, which takes a worker when one joins, sends it
 * prompts, takes its runs (run.h), checks them, and copies them to their pages, on a stream of its own. The
 * caller polls for ended jobs.
 *
 * The caller says which pages a job has, and sees to it that nobody else uses them from allow() until the
 * job has ended or drop() has returned. It may begin a job before that, while earlier passes still use these
 * pages.
 *
 * A job ends without its pages if its worker is lost, gives it up, or sends a run with a wrong checksum; if
 * its lease has ended; and if nothing has come for QUIET_MS although it is its worker's oldest. The caller
 * then computes the prompt itself.
 *
 * Lease: a worker holds the pages of a job until it has sent them, but not longer than lease_ms after the
 * lead's last LEASE, which is sent when a third of the time has passed. When the time is over, both ends give
 * the job up, each by its own clock.
 *
 * A worker has at most CAIRN_PULL_JOBS jobs: begin() refuses what goes beyond. A job that is dropped keeps
 * its place until its worker has ended it, because runs of it may be under way; they are read and forgotten,
 * and their credits returned.
 *
 * A head with a wrong checksum or one that does not follow the run before it makes the worker lost: what
 * follows could not be told apart. A wrong payload ends its job only.
 *
 * No call waits for a worker, except destroy, for a second or so.
 * Threads: one caller.
 * Errors: -EINVAL, -EOPNOTSUPP (no libsodium; the table lacks an operation), -ENOMEM; the text names it.
 */
#ifndef CAIRN_PULL_H
#define CAIRN_PULL_H

#include "serving/remote/lead/lead.h"
#include "serving/model/forward/forward.h"
#include "serving/model/model.h"

#define CAIRN_PULL_LEASE_MS	30000
#define CAIRN_PULL_QUIET_MS	60000

struct cairn_pull;

struct cairn_pull_options {
	const struct cairn_kv_store *kv;	/* has the pages; must outlive the pulls */
	int32_t max_rows;		/* of a worker's pass; rounded to whole pages */
	int32_t max_context;		/* tokens of the longest prompt */
	int32_t lease_ms;		/* 0: CAIRN_PULL_LEASE_MS */
};

struct cairn_pulled {
	uint64_t id;
	int failed;			/* none of its pages counts */
};

struct cairn_pull_stats {
	int32_t workers, jobs;		/* now: workers that take jobs; jobs that have a place */
	int64_t begun, completed, failed, dropped;	/* jobs */
	int64_t runs, pages, bytes;	/* taken for jobs that were wanted; pages: of all layers */
	int64_t checksum_errors, leases_ended;
	int64_t stale_runs;		/* of jobs that were not wanted any more */
	char last_failure[256];		/* why a job failed last; "": none has */
};

/* Lead and model must outlive it. */
int cairn_pull_create(struct cairn_pull **out, struct cairn_lead *lead, const struct cairn_model *model,
		      const struct cairn_pull_options *options);
void cairn_pull_destroy(struct cairn_pull *p);		/* NULL is legal */

/* Returns whether begin() would find a worker that is free. */
int cairn_pull_has_place(struct cairn_pull *p);
/*
 * Begins a job under a number that no job in progress has. The keys and values of tokens [first, num_tokens)
 * go to pages[0 .. ceil((num_tokens - first) / page_size)); first < num_tokens is a multiple of page_size.
 * What the last page has behind its tokens is undefined. ids and pages are copied. Returns 1; 0 if no worker
 * is free or the prompt is too long; -ENOMEM.
 */
int cairn_pull_begin(struct cairn_pull *p, uint64_t id, const int32_t *ids, int32_t num_tokens,
		     int32_t first, const int32_t *pages);
/* The pages of a job may be written now. Does nothing if there is no such job. */
void cairn_pull_allow(struct cairn_pull *p, uint64_t id);
/*
 * The job is not wanted any more: ended() will not report it, and when this returns, its pages are not
 * written any more. Waits for a copy that has been enqueued. Does nothing if there is no such job.
 */
void cairn_pull_drop(struct cairn_pull *p, uint64_t id);
/* Takes the result of a job that has ended. Returns 0 if there is none. */
int cairn_pull_ended(struct cairn_pull *p, struct cairn_pulled *out);
/* Waits until a job has ended, at most timeout_ms. */
void cairn_pull_wait(struct cairn_pull *p, int timeout_ms);
void cairn_pull_stats(struct cairn_pull *p, struct cairn_pull_stats *stats);

#endif
