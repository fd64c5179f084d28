/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lead_impl - shared by lead.c and lead_epoch.c (what users call), lead_watch.c (the thread), lead_guest.c
 * (who joins) and lead_start.c (processes)
 */
#ifndef CAIRN_REMOTE_LEAD_IMPL_H
#define CAIRN_REMOTE_LEAD_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "serving/remote/lead/lead.h"

#define LEAD_TEXT	512

struct lead_member {
	struct lead_member *next;	/* in order of joining */
	pthread_mutex_t busy;		/* held by the thread that uses the channel */
	struct cairn_control_channel *c;
	enum cairn_member_role role;
	int32_t rank;			/* 0: spare */
	uint32_t epoch;			/* that it works in */
	int32_t users;			/* threads that hold the pointer without the lead's lock */
	int32_t pid;			/* as it says */
	char address[CAIRN_LEAD_ADDRESS];	/* of this end of its connection; "": of this machine alone */
	int is_lost;
	int64_t heard_ns;		/* when its last message came */
	uint32_t ready;			/* epoch of its last READY; 0: none */
	char *blob;			/* its last BLOB in this epoch; NULL: none yet */
	size_t blob_bytes;
};

/* A process that the lead has started. */
struct lead_child {
	pid_t pid;			/* 0: none */
	int has_joined;
	int is_killed;			/* but has not ended yet */
};

/* What the lead does to have enough workers of a role, if it starts them itself. */
struct lead_start {
	int32_t wanted;			/* processes that the thread is to start */
	int32_t failures;		/* processes that ended before they joined, in a row */
	int64_t not_before;		/* when the next one may be started */
};

struct cairn_lead {
	struct cairn_lead_options opt;
	uint8_t secret[CAIRN_SECRET_BYTES];
	const uint8_t *has_secret;	/* secret, or NULL */
	uint64_t digest;
	int listener, wake, port;
	int secret_fd;			/* what started workers inherit; -1: none are started */
	pthread_t thread;
	int has_thread;
	atomic_int stop, is_lost;

	/* The lock protects what follows. It is never held while a channel is used. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct lead_member *members;
	int32_t num_members, num_guests;
	struct { int fd; } guests[CAIRN_LEAD_MAX_GUESTS];	/* -1: free */
	struct lead_child *children;	/* [attention + prefill + model], by role */
	struct lead_start start[CAIRN_NUM_MEMBER_ROLES];
	uint32_t epoch;			/* the last one begun */
	char why[LEAD_TEXT];		/* the first loss of the attention and model workers' epoch */
	char (*whys)[LEAD_TEXT];	/* [prefill]: the last loss of each rank */
	struct cairn_lead_stats stats;
};

/* The following call with the lock held. */
void lead_lose(struct cairn_lead *l, struct lead_member *m, const char *why);
struct lead_member *lead_ranked(struct cairn_lead *l, int32_t rank);	/* NULL: lost, or none */
/* Returns where the reason for the loss of this rank is kept; 0: of any attention or model worker. */
char *lead_why_of(struct cairn_lead *l, int32_t rank);
/* Returns -ECONNRESET with this reason. */
int lead_why(struct cairn_lead *l, int32_t rank);
void lead_refused(struct cairn_lead *l, const char *how, const char *why);	/* notes it for stats */
/* Notes that a process of this role has ended before it joined, or could not be started. */
void lead_start_failed(struct cairn_lead *l, enum cairn_member_role role);

void lead_wake(struct cairn_lead *l);
int lead_lost(struct cairn_lead *l, int32_t rank);	/* lead_why(), without the lock held */

/* A role's children are `*num` from the one returned on; their ranks are larger by 1. */
static inline int32_t lead_children(const struct cairn_lead *l, enum cairn_member_role role, int32_t *num)
{
	const int32_t nums[CAIRN_NUM_MEMBER_ROLES] = {
		[CAIRN_MEMBER_ATTENTION] = l->opt.attention, [CAIRN_MEMBER_PREFILL] = l->opt.prefill,
		[CAIRN_MEMBER_MODEL] = l->opt.model,
	};

	*num = nums[role];
	return role == CAIRN_MEMBER_ATTENTION ? 0 : role == CAIRN_MEMBER_PREFILL ? l->opt.attention :
	       l->opt.attention + l->opt.prefill;
}

static inline int32_t lead_num_children(const struct cairn_lead *l)
{
	return l->opt.attention + l->opt.prefill + l->opt.model;
}

/* Returns whether a rank works together with the attention workers, so that its loss ends their epoch. */
static inline int lead_is_together(const struct cairn_lead *l, int32_t rank)
{
	return rank <= l->opt.attention || rank > l->opt.attention + l->opt.prefill;
}

/* lead_guest.c; serves a new connection in a thread of its own, or closes it if there are too many */
void lead_take_guest(struct cairn_lead *l);

/* lead_watch.c */
int lead_watch_start(struct cairn_lead *l);
void lead_watch_stop(struct cairn_lead *l);

/* lead_start.c; called by the thread, without the lock */
int lead_start_secret(struct cairn_lead *l);
/* index: of the role's children */
int lead_start_process(struct cairn_lead *l, enum cairn_member_role role, int32_t index, pid_t *pid);
void lead_end_process(pid_t pid);	/* kills it and waits for its end */

#endif
