// SPDX-License-Identifier: Apache-2.0
/* harness_test - tests of the harness: every kind of wrong result must be detected */
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/suite/draw.h"
#include "conformance/suite/op_case.h"
#include "conformance/suite/families.h"
#include "conformance/suite/guard.h"
#include "conformance/suite/place.h"
#include "conformance/suite/runner.h"
#include "conformance/tables/tables.h"

/* Returns whether `got` passes for one f32 element with this exact value and bound. */
static int passes(double val, double bound, float got)
{
	struct cairn_exact exact = { .val = &val, .bound = &bound };
	float before = 0.25f;
	double worst = 0;
	int64_t first, judged = 0;

	return cairn_judge(CAIRN_F32, 1, &got, &before, &exact, 0, &first, &worst, &judged) == 0;
}

static void nan_and_infinity(struct cairn_test *t)
{
	EXPECT(t, passes(1, 0.5, 1.25f));
	EXPECT(t, !passes(1, 0.5, 1.75f));
	EXPECT(t, !passes(1, 0.5, NAN));
	EXPECT(t, !passes(1, INFINITY, NAN));
	EXPECT(t, passes(1, INFINITY, 1e30f));
	EXPECT(t, passes(NAN, 0, NAN));
	EXPECT(t, !passes(NAN, 1, 0));
	EXPECT(t, passes(NAN, INFINITY, 0) && passes(NAN, INFINITY, NAN));
	EXPECT(t, passes(-INFINITY, 0, -INFINITY));
	EXPECT(t, !passes(-INFINITY, 0, INFINITY));
	EXPECT(t, !passes(-INFINITY, 1, -3e38f));
	EXPECT(t, !passes(1e38, 1e30, INFINITY));
	EXPECT(t, passes(3.5e38, 1e30, INFINITY));
	EXPECT(t, !passes(3.5e38, 1e30, -INFINITY));
	EXPECT(t, passes(0, INFINITY, -INFINITY) && passes(0, 3.5e38, -INFINITY));
	EXPECT(t, !passes(1e38, 4e38, -INFINITY) && passes(1e38, 4.5e38, -INFINITY));
}

static void unwritten_means_unchanged(struct cairn_test *t)
{
	EXPECT(t, passes(NAN, NAN, 0.25f));
	EXPECT(t, !passes(NAN, NAN, 0.5f));
	EXPECT(t, !passes(NAN, NAN, NAN));
}

static void equal_rounds_once(struct cairn_test *t)
{
	double val = 1 + 0x1p-9, bound = 1, worst = 0;	/* a tie in bf16: rounds to even, down */
	struct cairn_exact exact = { .val = &val, .bound = &bound };
	uint16_t one = 0x3f80, next = 0x3f81, before = 0;
	int64_t first, judged = 0;

	EXPECT(t, !cairn_judge(CAIRN_BF16, 1, &one, &before, &exact, 1, &first, &worst, &judged));
	EXPECT(t, cairn_judge(CAIRN_BF16, 1, &next, &before, &exact, 1, &first, &worst, &judged) == 1);
}

static void narrowing(struct cairn_test *t)
{
	/* double to bf16 in one rounding; rounding to float first would give 0x3f80 */
	EXPECT(t, cairn_double_to_bf16(1 + 0x1p-8 + 0x1p-40) == 0x3f81);
	EXPECT(t, cairn_double_to_bf16(1 + 0x1p-8) == 0x3f80);
	EXPECT(t, cairn_double_to_bf16(1 + 0x1p-8 - 0x1p-40) == 0x3f80);
	EXPECT(t, cairn_double_to_bf16(-1 - 0x1p-8 - 0x1p-40) == 0xbf81);
	EXPECT(t, cairn_double_to_bf16(1e39) == 0x7f80);
	EXPECT(t, cairn_double_to_f16(1 + 0x1p-11 + 0x1p-40) == 0x3c01);
	EXPECT(t, cairn_double_to_f16(65519.9) == 0x7bff);
	EXPECT(t, cairn_double_to_f16(65520.0) == 0x7c00);
	EXPECT(t, isnan(cairn_bf16_to_float(cairn_double_to_bf16(NAN))));
	for (int i = 0; i < 1000; i++) {
		uint16_t h = (uint16_t)cairn_rand(t);
		float f = cairn_bf16_to_float(h), g = cairn_f16_to_float(h);

		EXPECT(t, isnan(f) || cairn_double_to_bf16(f) == h);
		EXPECT(t, isnan(g) || cairn_double_to_f16(g) == h);
	}
}

/* Rounding a row of floats gives the same as rounding each number, including ties, NaN and infinities. */
static void rows_are_rounded_alike(struct cairn_test *t)
{
	static const int dtypes[] = { CAIRN_F32, CAIRN_F16, CAIRN_BF16 };
	static const uint32_t special[] = { 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff,
					    0x7f7fffff };
	enum { NUM = 4096 };
	uint32_t bits[NUM], row[NUM], one[NUM];
	float x[NUM];

	for (int i = 0; i < NUM; i++)
		bits[i] = (uint32_t)cairn_rand(t) & (i % 4 ? ~0u : 0xffff8000);
	memcpy(bits, special, sizeof(special));
	memcpy(x, bits, sizeof(x));
	for (size_t d = 0; d < ARRAY_SIZE(dtypes); d++) {
		memset(row, 0, sizeof(row));
		memset(one, 0, sizeof(one));
		cairn_store_row(row, dtypes[d], 1, x, NUM - 1);
		for (int i = 0; i < NUM - 1; i++)
			cairn_store(one, dtypes[d], 1 + i, (double)x[i]);
		for (int i = 0; i < NUM; i++) {
			double v = cairn_load(row, dtypes[d], i), w = cairn_load(one, dtypes[d], i);

			EXPECT(t, isnan(w) ? isnan(v) : !memcmp(&v, &w, sizeof(v)));
		}
	}
}

/* Idle elements may be read and written, and a write to one never changes a touched element. */
static void idle_elements_are_apart(struct cairn_test *t)
{
	const size_t bytes = (size_t)1 << 30;
	const struct cairn_span spans[] = { { 0, 10 }, { 10, 3 }, { (size_t)3 << 28, 5000 },
					    { bytes - 7, 7 } };
	struct cairn_guard g = { 0 };
	size_t below, above;

	if (!EXPECT(t, !cairn_guard_open_far(&g, bytes, 16, spans, ARRAY_SIZE(spans), 1)))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(spans); i++)
		memset(g.data + spans[i].at, (int)i + 1, spans[i].bytes);
	EXPECT(t, g.data[13] == 0 && g.data[bytes / 2] == 0xff);
	for (size_t at = 64; at < bytes; at += 4096)
		if (at / 8192 != spans[2].at / 8192)
			g.data[at] = 0x77;
	for (size_t i = 0; i < ARRAY_SIZE(spans); i++)
		for (size_t k = 0; k < spans[i].bytes; k++)
			EXPECT(t, g.data[spans[i].at + k] == i + 1);
	cairn_guard_count(&g, 0xff, &below, &above);
	EXPECT(t, !below && !above);
	EXPECT(t, !g.stray[0].at && !g.stray[1].at && !g.stray[2].at);
	cairn_guard_close(&g);
}

static volatile int waits;

static void count_wait(void)
{
	waits++;
}

/* Each page of held data waits once; short data ends in a page of its own. No access is a stray one. */
static void held_pages_wait(struct cairn_test *t)
{
	struct cairn_guard g;
	size_t below, above;

	if (!EXPECT(t, !cairn_guard_open(&g, 240, 16)))
		return;
	cairn_guard_place_apart(&g);
	cairn_guard_fill(&g, 0x4b);
	cairn_guard_hold(&g, count_wait);
	waits = 0;
	g.data[0] = g.data[223] = 1;
	EXPECT(t, waits == 1);
	g.data[224] = g.data[239] = 1;
	EXPECT(t, waits == 2);
	cairn_guard_release(&g);
	cairn_guard_count(&g, 0x4b, &below, &above);
	EXPECT(t, !below && !above);
	EXPECT(t, !g.stray[0].at && !g.stray[1].at && !g.stray[2].at);
	cairn_guard_close(&g);
}

static void says_more_than_a_line(struct cairn_test *t)
{
	cairn_note(t, "one%cP a.b.c 0 1", '\n');
	cairn_expect(t, 0, "two\nP a.b.c 0 1", "file", 1);
	cairn_expect_contains(t, "three\nP a.b.c 0 1", "four", "file", 2);
}

/* Text that a test prints must never be parsed as a result. */
static void notes_are_no_verdicts(struct cairn_test *t)
{
	const struct cairn_unit unit = { "notes", says_more_than_a_line };
	char *text = NULL, reason[256];
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!EXPECT(t, out != NULL))
		return;
	EXPECT(t, cairn_unit_run(&unit, 1, out, reason, sizeof(reason)) == CAIRN_UNIT_FAIL);
	fclose(out);
	EXPECT_CONTAINS(t, text, "one");
	EXPECT_CONTAINS(t, text, "three");
	for (char *line = text; line && *line; line = strchr(line, '\n') + 1)
		EXPECT(t, !strncmp(line, "D ", 2));
	free(text);
}

static int count_name(const struct cairn_selected *s, void *arg)
{
	int *bad = arg;

	/* names are permanent and have one spelling */
	for (const char *c = s->name; *c; c++)
		if (!((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '_' || *c == '.'))
			(*bad)++;
	return 0;
}

static void names_are_unique_and_plain(struct cairn_test *t)
{
	struct cairn_options all = { .repeat = 1 };

	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		int bad = 0;

		cairn_each(&all, *f, count_name, &bad);
		if (!EXPECT(t, bad == 0))
			cairn_note(t, "%s: %d characters in names are not a-z, 0-9, _ or .", (*f)->name, bad);
		for (int i = 0; i < (*f)->num_cases; i++) {
			struct cairn_case a, b;

			memset(&a, 0, sizeof(a));
			(*f)->describe(i, &a);
			for (int k = 0; k < i; k++) {
				memset(&b, 0, sizeof(b));
				(*f)->describe(k, &b);
				if (!EXPECT(t, strcmp(a.name, b.name)))
					cairn_note(t, "%s: case %s exists twice", (*f)->name, a.name);
			}
		}
	}
}

static int match_any(const struct cairn_selected *s, void *arg)
{
	return !fnmatch(arg, s->name, 0);
}

static void globs_match(struct cairn_test *t, const char *name)
{
	struct cairn_options all = { .repeat = 1 };
	struct cairn_list list;
	char path[4200];

	snprintf(path, sizeof(path), "%s/conformance/%s", cairn_srcdir(), name);
	if (!EXPECT(t, cairn_list_load(path, 0, &list) == 0))
		return;
	EXPECT(t, list.num > 0);
	for (int i = 0; i < list.num; i++) {
		int found = 0;

		for (const struct cairn_family *const *f = cairn_families(); *f && !found; f++)
			found = cairn_each(&all, *f, match_any, list.rows[i].glob);
		if (!EXPECT(t, found))
			cairn_note(t, "%s matches no case", list.rows[i].glob);
	}
	cairn_list_free(&list);
}

static void mustpass_globs_match(struct cairn_test *t)
{
	globs_match(t, "mustpass.txt");
	globs_match(t, "ladder.txt");
}

static int is_mutant(const char *name)
{
	const struct cairn_mutant *m;

	for (int i = 0; (m = cairn_mutant_at(i)); i++)
		if (!strcmp(m->name, name))
			return 1;
	return 0;
}

static int is_of_family(const char *name, const struct cairn_family *f)
{
	size_t stage = strlen(f->stage), len = strlen(f->name);

	return !strncmp(name, f->stage, stage) && name[stage] == '.' &&
	       !strncmp(name + stage + 1, f->name, len) && name[stage + 1 + len] == '.';
}

/* Every name in catchers.txt must exist. A stale name only costs time, so nobody would notice it. */
static void catchers_are_cases(struct cairn_test *t)
{
	struct cairn_list list;
	char path[4200];

	snprintf(path, sizeof(path), "%s/conformance/catchers.txt", cairn_srcdir());
	if (!EXPECT(t, cairn_list_load(path, 1, &list) == 0))
		return;
	EXPECT(t, list.num > 0);
	for (int i = 0; i < list.num; i++) {
		char *name = list.rows[i].reason;
		/* a drawn case is found only by its name */
		struct cairn_options named = { .globs = &name, .num_globs = cairn_draw_named(name) >= 0 };
		int found = 0;

		for (const struct cairn_family *const *f = cairn_families(); *f && !found; f++)
			found = is_of_family(name, *f) && cairn_each(&named, *f, match_any, name);
		if (!EXPECT(t, found))
			cairn_note(t, "%s is not a case", list.rows[i].reason);
		if (!EXPECT(t, is_mutant(list.rows[i].glob)))
			cairn_note(t, "%s is not a mutant", list.rows[i].glob);
	}
	cairn_list_free(&list);
}

static void sanitized_cases_exist(struct cairn_test *t)
{
	const struct cairn_options all = { 0 };
	char name[224];
	int num = 0;

	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		for (const char *const *tail = (*f)->sanitized; tail && *tail; tail++, num++) {
			snprintf(name, sizeof(name), "%s.%s.%s", (*f)->stage, (*f)->name, *tail);
			if (!EXPECT(t, cairn_each(&all, *f, match_any, name)))
				cairn_note(t, "%s is not a case", name);
		}
	EXPECT(t, num > 0);
}

struct slow {
	unsigned int us;
	int lines;			/* arrived in the parent */
};

static void print_three(FILE *out, void *arg)
{
	const struct slow *slow = arg;

	for (int i = 0; i < 3; i++) {
		usleep(slow->us);
		fprintf(out, "line\n");
	}
}

static void count_line(char *text, void *arg)
{
	(void)text;
	((struct slow *)arg)->lines++;
}

/* The time-out limits a case, not the family: it restarts with every line. */
static void timeout_is_a_cases(struct cairn_test *t)
{
	const struct cairn_family f = { .stage = "stage", .name = "slow", .timeout_s = 1 };
	const struct cairn_options opt = { 0 };
	struct slow slow = { .us = 400000 };	/* three lines take longer than the time-out, one much less */
	struct cairn_child child = { .run = print_three, .line = count_line, .arg = &slow };

	unsetenv("CAIRN_TIMEOUT");
	child.timeout_s = cairn_timeout_s(&opt, &f);
	EXPECT(t, !cairn_child_run(&child) && slow.lines == 3);
	slow.us = 30000000;
	EXPECT(t, cairn_child_run(&child) && !strcmp(child.death, "TIMEOUT after 1 s") && slow.lines == 3);
}

static void nothing(FILE *out, void *arg)
{
	(void)out, (void)arg;
}

static void crash(FILE *out, void *arg)
{
	fprintf(out, "line\n");
	(void)arg;
	signal(SIGSEGV, SIG_DFL);	/* a sanitizer's handler would end the process by exit() */
	raise(SIGSEGV);
}

/* When several children run at the same time, each death is reported once, with its own cause. */
static void children_end_apart(struct cairn_test *t)
{
	struct slow slow[3] = { { .us = 200000 }, { .us = 0 }, { .us = 0 } };
	struct cairn_child c[3] = {
		{ .run = print_three, .line = count_line, .arg = &slow[0], .timeout_s = 60 },
		{ .run = crash, .line = count_line, .arg = &slow[1], .timeout_s = 60 },
		{ .run = nothing, .line = count_line, .arg = &slow[2], .timeout_s = 60 },
	};
	struct cairn_child *running[3] = { &c[0], &c[1], &c[2] };
	int num = 3;

	for (int i = 0; i < num; i++)
		if (!EXPECT(t, !cairn_child_start(&c[i])))
			return;
	while (num) {
		int i = cairn_children_wait(running, num);

		running[i] = running[--num];
	}
	EXPECT(t, slow[0].lines == 3 && slow[1].lines == 1 && slow[2].lines == 0);
	EXPECT(t, !c[0].death[0] && !c[2].death[0]);
	EXPECT_CONTAINS(t, c[1].death, "CRASH: signal 11");
}

static void describe_one(int i, struct cairn_case *c)
{
	(void)i;
	strcpy(c->name, "one");
}

static void no_setup(struct cairn_op *op)
{
	(void)op;
}

/* Accepts all arguments, and so would pass a refused call whose expected result is 0. */
static int accept_all(const struct cairn_silu_mul_args *args, void *stream)
{
	(void)args, (void)stream;
	return 0;
}

static const char *reject_one(void *args, int i, int *want)
{
	(void)args;
	*want = 0;
	return i == 0 ? "nothing" : NULL;
}

static void rows_setup(struct cairn_op *op)
{
	struct cairn_silu_mul_args *a = op->args;

	a->rows = 2;
	a->dim = 8;
	cairn_out(op, offsetof(struct cairn_silu_mul_args, out), CAIRN_F32, 16);
	cairn_in(op, offsetof(struct cairn_silu_mul_args, x), CAIRN_F32, 32);
}

/* The argument check that the operation below leaves out. The calls of reject_one() do not notice it. */
static int left_out;

static int check_but_one(const struct cairn_silu_mul_args *args, void *stream)
{
	struct cairn_silu_mul_args a = *args;

	(void)stream;
	if (left_out == 1)
		a.x = (void *)((uintptr_t)a.x / 16 * 16);
	if (left_out == 2 && a.rows < 0)
		a.rows = 2;
	if (left_out == 3 && !a.out)
		a.out = (void *)a.x;
	if (left_out == 4)
		a.size = sizeof(a);
	return cairn_silu_mul_check(&a);
}

/* Each argument is made bad in turn, even if the family's list of bad arguments does not name it. */
static void every_bad_argument_is_tried(struct cairn_test *t)
{
	static const char *const texts[] = { "", "aligned", "rows -1", "null", "size is 0" };
	const struct cairn_family f = {
		.stage = "stage", .name = "careless", .op = offsetof(struct cairn_impl, silu_mul),
		.args_size = sizeof(struct cairn_silu_mul_args), .num_cases = 1,
		.describe = describe_one, .setup = rows_setup, .reject = reject_one,
	};
	struct cairn_impl impl = cairn_host_runtime;
	struct cairn_outcome *o = calloc(1, sizeof(*o));

	impl.silu_mul = check_but_one;
	for (left_out = 0; EXPECT(t, o) && left_out < 5; left_out++) {
		cairn_op_reject(&f, 1, &impl, NULL, 1, o);
		EXPECT(t, o->verdict == (left_out ? CAIRN_FAIL : CAIRN_PASS));
		EXPECT_CONTAINS(t, o->text, texts[left_out]);
	}
	free(o);
}

/*
 * When memory is short, a refused call that cannot be made must fail, and an incomplete list of cases must be
 * an error.
 */
static void without_memory_nothing_passes(struct cairn_test *t)
{
	struct cairn_family f = {
		.stage = "stage", .name = "starved", .op = offsetof(struct cairn_impl, silu_mul),
		.args_size = sizeof(struct cairn_silu_mul_args), .num_cases = 1,
		.describe = describe_one, .setup = no_setup, .reject = reject_one,
	};
	struct cairn_impl impl = cairn_host_runtime;
	struct cairn_options opt = { .repeat = 1 };
	struct cairn_outcome *o = calloc(1, sizeof(*o));
	int bad = 0;

	if (!EXPECT(t, o))
		return;
	impl.silu_mul = accept_all;
	cairn_op_reject(&f, 0, &impl, NULL, 1, o);
	EXPECT(t, o->verdict == CAIRN_PASS);
	EXPECT(t, cairn_each(&opt, &f, count_name, &bad) == 0);
	/* index 2 is past the end: the list is followed by one entry, the bad values of all members */
	cairn_op_reject(&f, 2, &impl, NULL, 1, o);
	EXPECT(t, o->verdict == CAIRN_FAIL);
	EXPECT_CONTAINS(t, o->text, "not made");
#ifndef CAIRN_SANITIZED	/* ASan ends a program that allocates so much */
	f.args_size = PTRDIFF_MAX;	/* the allocation of the arguments fails */
	cairn_op_reject(&f, 0, &impl, NULL, 1, o);
	EXPECT(t, o->verdict == CAIRN_FAIL);
	EXPECT_CONTAINS(t, o->text, "no memory");
	EXPECT(t, cairn_each(&opt, &f, count_name, &bad) == -ENOMEM);
	EXPECT_CONTAINS(t, cairn_last_error(), "starved: no memory");
#endif
	free(o);
}

/* Bad elements of a buffer of 8 rows of 4 heads of 16 dims; an element is bad where bit[] says so. */
struct marks {
	uint8_t bad[8 * 80];
};

static int is_marked(const void *arg, int64_t i)
{
	return ((const struct marks *)arg)->bad[i];
}

/* Marks a box of elements, every `every`-th in each dimension. */
static void mark(struct marks *m, int64_t stride, const int lo[3], const int hi[3], const int every[3])
{
	for (int r = lo[0]; r <= hi[0]; r += every[0])
		for (int h = lo[1]; h <= hi[1]; h += every[1])
			for (int d = lo[2]; d <= hi[2]; d += every[2])
				m->bad[r * stride + h * 16 + d] = 1;
}

/* A phrase must say, by coordinates, where the bad elements lie. */
static void bad_elements_have_a_place(struct cairn_test *t)
{
	static const struct {
		int lo[3], hi[3], every[3];
		const char *says;
	} rows[] = {
		{ { 0, 0, 0 }, { 7, 3, 15 }, { 1, 1, 1 }, "every element" },
		{ { 3, 2, 9 }, { 3, 2, 9 }, { 1, 1, 1 }, "all of row 3, head 2, dim 9" },
		{ { 3, 0, 0 }, { 3, 3, 15 }, { 1, 1, 1 }, "all of row 3" },
		{ { 0, 1, 0 }, { 7, 1, 15 }, { 1, 1, 1 }, "all of head 1" },
		{ { 0, 0, 11 }, { 7, 3, 15 }, { 1, 1, 1 }, "all of dims 11 to 15 (the last 5)" },
		{ { 0, 0, 0 }, { 2, 3, 15 }, { 1, 1, 1 }, "all of rows 0 to 2 (the first 3)" },
		{ { 6, 0, 0 }, { 7, 3, 15 }, { 1, 1, 1 }, "all of rows 6 to 7 (the last 2)" },
		{ { 1, 0, 0 }, { 7, 3, 15 }, { 2, 1, 1 }, "all of every second row, from row 1" },
		{ { 0, 0, 1 }, { 7, 3, 15 }, { 1, 1, 4 }, "all of 1 of every 4 dims, from dim 1" },
		{ { 2, 1, 3 }, { 5, 2, 12 }, { 1, 1, 1 }, "all of rows 2 to 5, heads 1 to 2, dims 3 to 12" },
		{ { 0, 0, 0 }, { 7, 3, 15 }, { 5, 1, 1 }, "all of 2 of 8 rows, 0 to 5" },
	};
	struct cairn_buf b = { .count = 8 * 80, .name = "out", .num_dims = 3,
			       .dims = { { "row", 8, 80 }, { "head", 4, 16 }, { "dim", 16, 1 } } };
	struct marks m = { { 0 } };
	char text[256];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		memset(&m, 0, sizeof(m));
		mark(&m, 80, rows[i].lo, rows[i].hi, rows[i].every);
		cairn_place_pattern(&b, is_marked, &m, text, sizeof(text));
		if (!EXPECT(t, !strcmp(text, rows[i].says)))
			cairn_note(t, "'%s', not '%s'", text, rows[i].says);
	}
	m.bad[2] = 0;			/* the last box is incomplete, */
	cairn_place_pattern(&b, is_marked, &m, text, sizeof(text));
	EXPECT(t, !strcmp(text, "all in 2 of 8 rows, 0 to 5"));
	m.bad[70] = 1;			/* and an element in the gap between two rows is bad */
	EXPECT(t, cairn_place_pattern(&b, is_marked, &m, text, sizeof(text)) == 128);
	EXPECT(t, !strcmp(text, "all in 2 of 8 rows, 0 to 5; and 1 in gaps of the stride"));
	memset(&m, 0, sizeof(m));
	for (int i = 0; i < 8 * 4 * 16; i += 7)
		m.bad[i / 64 * 80 + i % 64] = 1;
	cairn_place_pattern(&b, is_marked, &m, text, sizeof(text));
	EXPECT(t, !strcmp(text, "scattered over all rows, heads, dims"));
	cairn_place_element(&b, 3 * 80 + 2 * 16 + 9, text, sizeof(text));
	EXPECT(t, !strcmp(text, "out[row 3, head 2, dim 9]"));
	cairn_place_element(&b, 79, text, sizeof(text));
	EXPECT(t, !strcmp(text, "out[element 79, in a gap of the stride]"));
	cairn_place_name(&b, "view + offsetof(struct cairn_x_args, kv.k_pages)");
	EXPECT(t, !strcmp(b.name, "kv.k_pages"));
}

/* Every buffer must be named after its argument, and every output and in/out buffer must have coordinates. */
static void arguments_have_names_and_shapes(struct cairn_test *t)
{
	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		struct cairn_op op;

		if (!(*f)->num_cases || !EXPECT(t, !cairn_op_open(&op, *f, 0, CAIRN_KIND_NORMAL, 1)))
			continue;
		for (int i = 0; i < op.num_bufs; i++) {
			const struct cairn_buf *b = &op.bufs[i];
			int64_t last = 0;
			size_t n = strspn(b->name, "abcdefghijklmnopqrstuvwxyz0123456789_.[]");

			if (!EXPECT(t, n && !b->name[n] && strcmp(b->name, "field")))
				cairn_note(t, "%s: buffer %d has the name '%s'", (*f)->name, i, b->name);
			for (int d = 0; d < b->num_dims; d++)
				last += (b->dims[d].count - 1) * b->dims[d].stride;
			if (!EXPECT(t, b->role == CAIRN_ROLE_IN || (b->num_dims && last < b->count)))
				cairn_note(t, "%s: %s has no cairn_shape(), or too large a one", (*f)->name,
					   b->name);
		}
		cairn_op_close(&op);
	}
}

/* The judges of families must name a bad element and say where all bad ones lie. */
static void judges_name_the_pattern(struct cairn_test *t)
{
	static const struct {
		const char *family;
		size_t field, first, bytes;	/* what is overwritten with 0xaa */
		const char *says, *where;
	} rows[] = {
#define FIELD(op, f)	offsetof(struct cairn_##op##_args, f)
		{ "sample", FIELD(sample, out), 0, 8, "out[row 0]: token -1431655766 is not kept",
		  "; 2 of " },
		{ "cluster_gather", FIELD(cluster_gather, out), 0, 2,
		  "out[cluster 0, call 0, rank 0, part 0, element 0]: got -3.01980663e-13 (0xaaaa), want ",
		  "; 1 of 2 elements bad: all of call 0" },
		{ "stream", FIELD(stream, sum), 16, 8, "sum[block 2]: got aaaaaaaaaaaaaaaa, want ",
		  "; 1 of 512 elements bad: all of block 2" },
		{ "dsmem", FIELD(dsmem, sum), 0, 8, "sum[cluster 0, CTA 0]: got aaaaaaaaaaaaaaaa, want ",
		  " elements bad: all of cluster 0" },
#undef FIELD
	};
	struct cairn_impl ref;

	if (!EXPECT(t, cairn_impl_open("ref", &ref) == 0))
		return;
	for (size_t k = 0; k < ARRAY_SIZE(rows); k++) {
		const struct cairn_family *const *f = cairn_families();
		int (*fn)(const void *args, void *stream);
		char why[512] = "";
		struct cairn_op op;
		void *p;

		while (*f && strcmp((*f)->name, rows[k].family))
			f++;
		if (!EXPECT(t, *f && !cairn_op_open(&op, *f, 0, CAIRN_KIND_NORMAL, 1)))
			continue;
		memcpy(&fn, (char *)&ref + (*f)->op, sizeof(fn));
		EXPECT(t, fn(op.args, NULL) == 0);
		EXPECT(t, (*f)->judge(&op, op.args, why, sizeof(why)) == 0);
		memcpy(&p, (char *)op.args + rows[k].field, sizeof(p));
		memset((char *)p + rows[k].first, 0xaa, rows[k].bytes);
		EXPECT(t, (*f)->judge(&op, op.args, why, sizeof(why)) == 1);
		EXPECT_CONTAINS(t, why, rows[k].says);
		EXPECT_CONTAINS(t, why, rows[k].where);
		cairn_op_close(&op);
	}
}

/*
 * Returns how many of an operation's first cases are called five times, or -1 if a case cannot be opened.
 * Only those calls detect state that an operation keeps between calls, and only they pass a shorter struct.
 */
static int cheap_cases(const struct cairn_family *f)
{
	int cheap = 0;

	for (int i = 0; i < f->num_cases && cheap < 3; i++) {
		struct cairn_selected s = { .what = CAIRN_SEL_CASE };
		enum cairn_kind kind = 0;
		struct cairn_op op;

		f->describe(i, &s.desc);
		if (s.desc.bench || s.desc.device_only || s.desc.far || cairn_cost(&s) > 1e9)
			continue;
		while (s.desc.kinds && !(s.desc.kinds >> kind & 1))
			kind++;
		if (cairn_op_open(&op, f, i, kind, 1))
			return -1;
		cheap += op.num_bufs && cairn_op_is_cheap(f, &op);
		cairn_op_close(&op);
	}
	return cheap;
}

static void five_calls_reach_every_operation(struct cairn_test *t)
{
	for (const struct cairn_family *const *f = cairn_families(); *f; f++)
		if ((*f)->num_cases && !EXPECT(t, cheap_cases(*f) >= 3))
			cairn_note(t, "%s: only %d cases are called five times", (*f)->name, cheap_cases(*f));
}

static const struct cairn_unit units[] = {
	{ "five_calls_reach_every_operation", five_calls_reach_every_operation },
	{ "mustpass_globs_match", mustpass_globs_match },
	{ "catchers_are_cases", catchers_are_cases },
	{ "sanitized_cases_exist", sanitized_cases_exist },
	{ "nan_and_infinity", nan_and_infinity },
	{ "notes_are_no_verdicts", notes_are_no_verdicts },
	{ "unwritten_means_unchanged", unwritten_means_unchanged },
	{ "equal_rounds_once", equal_rounds_once },
	{ "rows_are_rounded_alike", rows_are_rounded_alike },
	{ "idle_elements_are_apart", idle_elements_are_apart },
	{ "held_pages_wait", held_pages_wait },
	{ "narrowing", narrowing },
	{ "names_are_unique_and_plain", names_are_unique_and_plain },
	{ "timeout_is_a_cases", timeout_is_a_cases },
	{ "children_end_apart", children_end_apart },
	{ "every_bad_argument_is_tried", every_bad_argument_is_tried },
	{ "without_memory_nothing_passes", without_memory_nothing_passes },
	{ "bad_elements_have_a_place", bad_elements_have_a_place },
	{ "judges_name_the_pattern", judges_name_the_pattern },
	{ "arguments_have_names_and_shapes", arguments_have_names_and_shapes },
};

const struct cairn_family cairn_harness_family = {
	.stage = "conformance", .name = "harness", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 9,
};
