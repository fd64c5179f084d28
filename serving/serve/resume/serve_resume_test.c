// SPDX-License-Identifier: Apache-2.0
/*
 * serve_resume_test - what is submitted to the next worker, and when requests fail after all
 *
 * serve_resume.c is compiled here with fault injection, and with functions of the front that only take notes.
 * Each fault must change the notes. (serve_fault_test.c and serve_attention_test.c kill real workers.)
 */
#include <stdio.h>
#include <string.h>

#include "conformance/harness.h"

#define CAIRN_SERVE_RESUME_MUTANTS
#define serve_end_job		noted_end_job
#define serve_fail		noted_fail
#define serve_fail_all		noted_fail_all
#define serve_free_slots	noted_free_slots
#define serve_hold_all		mutant_hold_all
#define serve_is_scored		noted_is_scored
#define serve_log_print		noted_log_print
#define serve_now_ns		noted_now_ns
#define serve_put_request	noted_put_request
#define serve_resume_all	mutant_resume_all
#define serve_take_finish	noted_take_finish
#define serve_take_slot		noted_take_slot

#include "serving/serve/resume/serve_resume.c"

int serve_resume_fault;

static char notes[4096];
static int64_t clock_ns;
static struct serve_slot slots[16];
static int num_slots;

static void note(const char *what, int a, int b, int c, int d)
{
	const size_t n = strlen(notes);

	snprintf(notes + n, sizeof(notes) - n, "%s %d %d %d %d; ", what, a, b, c, d);
}

int64_t noted_now_ns(void)
{
	return clock_ns;
}

void noted_log_print(struct serve_log *log, const char *format, ...)
{
	(void)log;
	(void)format;
}

void noted_fail_all(struct serve *s, const char *why)
{
	(void)why;
	note("all fail", 0, 0, 0, 0);
	s->live = NULL;
}

void noted_fail(struct serve_job *job, const struct cairn_api_error *e)
{
	note("fail", (int)job->call_seed, e->status, 0, 0);
}

void noted_end_job(struct serve *s, struct serve_job *job)
{
	struct serve_job **at = &s->live;

	while (*at != job)
		at = &(*at)->next_live;
	*at = job->next_live;
	note("end", (int)job->call_seed, 0, 0, 0);
}

void noted_free_slots(struct serve *s)
{
	(void)s;
	num_slots = 0;
}

struct serve_slot *noted_take_slot(struct serve *s, struct serve_part *p, int32_t first, int32_t n)
{
	(void)s;
	slots[num_slots] = (struct serve_slot){ .part = p, .first = first, .num_seqs = n };
	return &slots[num_slots++];
}

void noted_put_request(struct serve *s, const struct serve_part *p, const struct serve_slot *slot,
		       const struct serve_given *given)
{
	(void)s;
	note(given ? "go on" : "anew", (int)p->job->call_seed, (int)(p - p->job->parts), slot->first,
	     slot->num_seqs);
	if (given)
		note("with", given->num, given->num > 0 ? given->ids[given->num - 1] : 0, given->max_tokens,
		     given->seed == cairn_answer_seed(p->job->seed, slot->first));
}

bool noted_take_finish(struct serve_job *job, int32_t choice, enum cairn_api_finish why, int32_t token)
{
	note("finish", (int)job->call_seed, choice, (int)why, token);
	job->choices[choice].finish = why;
	return false;
}

bool noted_is_scored(const struct serve_part *p)
{
	return p->job->req.prompt_logprobs >= 0;
}

/* ---- jobs ---- */

#define JOBS	4

struct scene {
	struct serve s;
	struct serve_job jobs[JOBS];
	struct serve_part parts[JOBS][2];
	struct serve_choice choices[JOBS][4];
	int32_t ids[8];
};

/* A job of so many parts and answers; their first tokens are the scene's ids. */
static struct serve_job *add(struct scene *x, int i, int32_t parts, int32_t n, int32_t max_tokens)
{
	struct serve_job *job = &x->jobs[i];

	*job = (struct serve_job){
		.s = &x->s, .parts = x->parts[i], .choices = x->choices[i], .num_parts = parts,
		.num_choices = parts * n, .call_seed = (uint64_t)i, .seed = 1000 + (uint64_t)i,
		.req = { .n = n, .prompt_logprobs = -1 },
	};
	for (int32_t k = 0; k < parts; k++)
		x->parts[i][k] = (struct serve_part){ .job = job, .num_ids = 6, .max_tokens = max_tokens };
	for (int32_t k = 0; k < parts * n; k++)
		x->choices[i][k].taken = x->ids;
	job->next_live = x->s.live;
	x->s.live = job;
	return job;
}

static void open_scene(struct scene *x)
{
	memset(x, 0, sizeof(*x));
	atomic_store(&x->s.was_ready, true);
	x->s.opt.resume_limit = 4;
	for (int i = 0; i < 8; i++)
		x->ids[i] = 50 + i;
	notes[0] = 0;
	num_slots = 0;
	clock_ns = 1;
}

/* Answers of all kinds: several, one that has ended, one that has all its tokens, beams, a scored prompt. */
static const char *resumed(void)
{
	static struct scene x;

	open_scene(&x);
	add(&x, 0, 1, 3, 20);
	x.choices[0][0].num_taken = 5;
	x.choices[0][1].finish = CAIRN_API_STOP;
	x.choices[0][2].num_taken = 2;
	add(&x, 1, 2, 1, 3);
	x.choices[1][0].num_taken = 3;
	add(&x, 2, 1, 2, 9)->req.use_beam_search = true;
	add(&x, 3, 1, 2, 9)->req.prompt_logprobs = 0;
	x.parts[3][0].num_scored = 2;
	x.parts[3][0].prompt_logprobs.len = 99;
	mutant_hold_all(&x.s, "test");
	mutant_resume_all(&x.s);
	note("scored", (int)x.parts[3][0].num_scored, (int)x.parts[3][0].prompt_logprobs.len, 0, 0);
	return notes;
}

/* A job that gets no token fails with the fifth worker, another one goes on. */
static const char *futile(void)
{
	static struct scene x;

	open_scene(&x);
	add(&x, 0, 1, 1, 20);
	add(&x, 1, 1, 1, 20);
	x.s.opt.resume_limit = 100;
	for (int i = 0; i < 5; i++) {
		mutant_hold_all(&x.s, "test");
		x.jobs[1].futile = 0;		/* as with each token */
	}
	note("left", x.s.live == &x.jobs[1], x.s.live && x.s.live->next_live, 0, 0);
	return notes;
}

/* Four workers may fail in a minute, and four more in the next one, but not five. */
static const char *limited(void)
{
	static struct scene x;

	open_scene(&x);
	for (int i = 0; i < 9; i++) {
		clock_ns = 1 + (i < 4 ? i : i < 8 ? 60 + i : 68) * 1000000000ll;
		add(&x, 0, 1, 1, 20);
		mutant_hold_all(&x.s, "test");
		note("failure", i, x.s.live != NULL, 0, 0);
		x.s.live = NULL;
	}
	return notes;
}

static const char want_resumed[] =
	"anew 3 0 0 2; anew 2 0 0 2; finish 1 0 2 -1; go on 1 1 0 1; with 0 0 3 1; go on 0 0 0 1; "
	"with 5 54 15 1; go on 0 0 2 1; with 2 51 18 1; scored 0 5 0 0; ";
static const char want_futile[] = "fail 0 500 0 0; end 0 0 0 0; left 1 0 0 0; ";
static const char want_limited[] =
	"failure 0 1 0 0; failure 1 1 0 0; failure 2 1 0 0; failure 3 1 0 0; failure 4 1 0 0; "
	"failure 5 1 0 0; failure 6 1 0 0; failure 7 1 0 0; all fail 0 0 0 0; failure 8 0 0 0; ";

static void all_noted(struct cairn_test *t)
{
	static const struct {
		const char *(*run)(void);
		const char *want;
	} runs[] = { { resumed, want_resumed }, { futile, want_futile }, { limited, want_limited } };

	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		if (!EXPECT(t, !strcmp(runs[i].run(), runs[i].want)))
			cairn_note(t, "%s", notes);
}

static void faults(struct cairn_test *t)
{
	for (int i = 1; i < NUM_FAULTS; i++) {
		serve_resume_fault = i;
		if (!EXPECT(t, strcmp(resumed(), want_resumed) || strcmp(futile(), want_futile) ||
			    strcmp(limited(), want_limited)))
			cairn_note(t, "fault %d", i);
	}
	serve_resume_fault = FAULT_NONE;
}

static const struct cairn_unit units[] = {
	{ "all_noted", all_noted }, { "faults", faults },
};

const struct cairn_family cairn_serve_resume_family = {
	.stage = "serving", .name = "serve_resume", .units = units, .num_units = ARRAY_SIZE(units),
};
