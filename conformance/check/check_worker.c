// SPDX-License-Identifier: Apache-2.0
/* check_worker - starts the processes of `cairn check`, takes their lines, and handles their deaths */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/check/check_run.h"

/* a table that kills this many processes of a family, or hangs this often, is no longer called there */
#define MAX_DEATHS	8
#define MAX_HANGS	2

static const struct cairn_check_work *work_of(void *arg, int index)
{
	return &((struct cairn_check_run *)arg)->groups[index]->work;
}

static void child_run(FILE *out, void *arg)
{
	struct cairn_check_worker *w = arg;

	cairn_check_child(out, &w->work, work_of, w->run);
}

/* Assigns family g to the process, which takes its next item or continues with the given one. */
static void assign(struct cairn_check_worker *w, struct cairn_check_group *g, int resume_item,
		   int resume_impl)
{
	int slot = w->work.slot;

	w->g = g;
	w->work = g->work;
	w->work.slot = slot;
	w->work.resume_item = resume_item;
	w->work.resume_impl = resume_impl;
	w->impl = w->last_impl = w->last_item = w->called = w->beside = -1;
	w->child.timeout_s = cairn_timeout_s(w->run->opt, g->work.f);
	g->running++;
	g->started++;
}

/*
 * Answers a process whose family has no item left: it gets the family that needs a process most. If that one
 * needs a process of its own, this process ends and makes room for it.
 */
static void give_another(struct cairn_check_worker *w)
{
	struct cairn_check_run *r = w->run;
	int next = cairn_check_neediest(r);

	if (next >= 0 && !cairn_check_shares(&r->groups[next]->work))
		next = -1;
	if (next >= 0) {
		w->g->running--;
		assign(w, r->groups[next], -1, 0);
	}
	r->shared->next[w->work.slot].group = next;
	sem_post(&r->shared->next[w->work.slot].given);
}

static void add_note(struct cairn_check_worker *w, const char *text)
{
	size_t had = w->notes ? strlen(w->notes) : 0, len = strlen(text);
	char *longer = realloc(w->notes, had + len + 2);

	if (!longer)
		abort();
	memcpy(longer + had, text, len);
	strcpy(longer + had + len, "\n");
	w->notes = longer;
}

static void child_line(char *text, void *arg)
{
	struct cairn_check_worker *w = arg;
	struct cairn_check_group *g = w->g;
	struct cairn_check_result result = { .verdict = text[0] };
	int impl, item = 0, at = 0;

	if (text[0] == 'D') {
		add_note(w, text + 2);
		return;
	}
	if (text[0] == 'N') {
		give_another(w);
		return;
	}
	if (text[0] == 'T' && sscanf(text + 1, "%d", &item) == 1) {
		w->last_item = item;
		w->last_impl = item == w->work.resume_item ? w->work.resume_impl - 1 : -1;
		return;
	}
	if (text[0] == 'I' && sscanf(text + 1, "%d %31[^\n]", &w->beside, w->doing) >= 1)
		return;
	if (text[0] == 'E' && sscanf(text + 1, "%d %n", &impl, &at) == 1 && impl < g->work.num_impls) {
		w->lost = impl == w->called;
		cairn_check_death(&g->r, impl, text + 1 + at);
		return;
	}
	if (!strchr("BPFS", text[0]) || sscanf(text + 1, "%d %d %n", &impl, &item, &at) < 2 || impl < 0 ||
	    impl >= g->work.num_impls || item < 0 || item >= g->work.num_cases)
		return;
	text += 1 + at;
	result.item = item;
	w->last_impl = impl;
	switch (result.verdict) {
	case 'B':
		w->impl = w->called = impl;
		w->item = w->called_item = item;
		return;
	case 'P':
		sscanf(text, "%lf %lld %lf", &result.ratio, &result.judged, &result.seconds);
		break;
	case 'F':
		sscanf(text, "%lf", &result.seconds);
		break;
	case 'S':
		result.text = strdup(text);
		break;
	}
	result.notes = w->notes;
	w->notes = NULL;
	w->impl = -1;
	cairn_check_result(&g->r, impl, &result);
}

int cairn_check_start(struct cairn_check_run *r, struct cairn_check_group *g, int resume_item,
		      int resume_impl)
{
	struct cairn_check_worker *w = calloc(1, sizeof(*w));

	if (!w)
		return cairn_error(ENOMEM, "no memory for a test process");
	w->run = r;
	while (r->slots[w->work.slot])
		w->work.slot++;
	r->slots[w->work.slot] = 1;
	if (sem_init(&r->shared->next[w->work.slot].given, 1, 0))
		return cairn_error(errno, "no semaphore for a test process: %s", strerror(errno));
	w->child = (struct cairn_child){ .run = child_run, .line = child_line, .arg = w };
	assign(w, g, resume_item, resume_impl);
	if (!g->work.f->waits)
		atomic_fetch_add(&r->shared->working, 1);
	CAIRN_TRY(cairn_child_start(&w->child));
	r->workers[r->num_workers++] = w;
	return 0;
}

/* Ensures that no process of this family calls table k any more. */
static void bury(struct cairn_check_group *g, int k, const char *why)
{
	atomic_store(&g->work.counter->dead[k], 1);
	cairn_check_death(&g->r, k, why);
}

/* Fails the case under way, unless it is waived. */
static void fail_case(struct cairn_check_run *r, struct cairn_check_worker *w)
{
	struct cairn_check_group *g = w->g;
	struct cairn_check_result result = { .verdict = 'F', .item = w->item, .notes = w->notes };
	const char *name = g->cases[g->order[w->item]].name;
	const char *waiver = cairn_list_match(&r->opt->waivers, name);
	char text[300];

	snprintf(text, sizeof(text), "waived: %s", waiver ? waiver : "");
	if (waiver)
		result.verdict = 'S';
	result.text = strdup(waiver ? text : w->child.death);
	w->notes = NULL;
	cairn_check_result(&g->r, w->impl, &result);
}

/* Counts a process that died during or after a case of table k. */
static void count_death(struct cairn_check_worker *w, int k)
{
	struct cairn_check_group *g = w->g;
	char text[200];

	g->deaths[k]++;
	g->hangs[k] += !strncmp(w->child.death, "TIMEOUT", 7);
	if (g->work.f->num_cases == 0)		/* units are independent of each other */
		return;
	snprintf(text, sizeof(text), "%d cases of this family have ended their process, the last by %s",
		 g->deaths[k], w->child.death);
	if (g->hangs[k] >= MAX_HANGS)
		snprintf(text, sizeof(text), "%d cases of this family have hung, the last by %s", g->hangs[k],
			 w->child.death);
	if (g->deaths[k] >= MAX_DEATHS || g->hangs[k] >= MAX_HANGS)
		bury(g, k, text);
}

/*
 * Handles the death of a process: the case under way has failed, and another process continues with the rest.
 * If it died between two cases, the first of them has failed.
 */
static int died(struct cairn_check_run *r, struct cairn_check_worker *w)
{
	struct cairn_check_group *g = w->g;
	char text[200];

	if (w->impl >= 0) {
		fail_case(r, w);
		count_death(w, w->impl);
	} else if (w->beside >= 0 && w->beside < g->work.num_impls) {
		snprintf(text, sizeof(text), "%s: %s", w->doing, w->child.death);
		cairn_check_fail(&g->r, w->beside, w->last_item >= 0 ? w->last_item : 0, text);
		bury(g, w->beside, text);
		if (w->last_item < 0)	/* it has not begun its first item */
			return cairn_check_start(r, g, w->work.resume_item, w->work.resume_impl);
	} else if (w->called >= 0 && !w->lost) {
		snprintf(text, sizeof(text), "after the case: %s", w->child.death);
		cairn_check_fail(&g->r, w->called, w->called_item, text);
		count_death(w, w->called);
	} else if (w->called < 0) {
		/* it died before its first case, and any other process would die there too */
		for (int k = 0; k < g->work.num_impls; k++)
			bury(g, k, w->child.death);
		return 0;
	}
	return cairn_check_start(r, g, w->last_item, w->last_impl + 1);
}

int cairn_check_ended(struct cairn_check_run *r, int i)
{
	struct cairn_check_worker *w = r->workers[i];
	struct cairn_check_group *g = w->g;
	int ret = 0;

	r->workers[i] = r->workers[--r->num_workers];
	r->slots[w->work.slot] = 0;
	r->shared->claims[w->work.slot] = 0;
	g->running--;
	if (!g->work.f->waits)
		atomic_fetch_sub(&r->shared->working, 1);
	if (w->impl >= 0 && !w->child.death[0])
		snprintf(w->child.death, sizeof(w->child.death), "EXIT before the end");
	if (w->child.death[0])
		ret = died(r, w);
	free(w->notes);
	free(w);
	return ret;
}
