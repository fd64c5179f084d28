// SPDX-License-Identifier: Apache-2.0
/*
 * search_profile_test - reads profiles with known closed forms, and refuses bad rows by file, line and member
 */
#include <limits.h>

#include "conformance/harness.h"
#include "serving/base/json_test.h"
#include "serving/search/search_test.h"

static struct cairn_search_profile *read_closed(struct cairn_test *t)
{
	struct cairn_search_profile *p = NULL;
	char path[PATH_MAX];

	closed_profile(t, 512, path, sizeof(path));
	if (!EXPECT(t, cairn_search_profile_read(&p, path) == 0))
		cairn_note(t, "%s", cairn_last_error());
	return p;
}

static void times(struct cairn_test *t)
{
	struct cairn_search_profile *p = read_closed(t);
	struct cairn_search_line line;
	double ms = 0;

	if (!p)
		return;
	EXPECT(t, !strcmp(p->gpu, "closed form") && !strcmp(p->kernels, "0123456789abcdef"));
	EXPECT(t, p->sms == 132 && p->tflops == 10 && p->gbps == 1000);
	EXPECT(t, cairn_search_profile_ms(p, "gate_up", 384, &ms) == 0);
	EXPECT(t, fabs(ms - (2e3 + 384 * 110) * 1e-6) < 1e-9);
	EXPECT(t, cairn_search_profile_ms(p, "gate_up", 640, &ms) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "no row of gate_up_m640 alone on 132 SMs");
	EXPECT(t, cairn_search_profile_line(p, "dec", &line) == 0);
	EXPECT(t, fabs(line.base_ms - 5e-3) < 1e-9 && fabs(line.slope_ms - 1e-7) < 1e-13 &&
	       line.worst < 1e-6);
	EXPECT(t, cairn_search_profile_line(p, "pre", &line) == -EINVAL);
	EXPECT(t, cairn_search_profile_has(p, "dec") && !cairn_search_profile_has(p, "pre"));
	cairn_search_profile_free(p);
}

/* Levels 1 and up are settings of one pair each; they descend in R and P, and no pair is better in both. */
static void curve(struct cairn_test *t)
{
	static const double points[4][2] = { { 0.7, 0.91 }, { 0.5, 0.75 }, { 0.3, 0.51 }, { 0.1, 0.19 } };
	struct cairn_search_profile *p = read_closed(t);
	struct cairn_search_level l[8];

	if (!p)
		return;
	EXPECT(t, cairn_search_curve(p, CAIRN_SEARCH_MEMORY, ~0u, l, 8) == 5);
	EXPECT(t, l[0].r == 1 && l[0].p == 1 && l[0].how == CAIRN_SEARCH_ALONE && l[0].sms == 132);
	for (int i = 0; i < 4; i++)
		EXPECT(t, fabs(l[i + 1].r - points[i][0]) < 1e-8 && fabs(l[i + 1].p - points[i][1]) < 1e-8 &&
			  l[i + 1].how == CAIRN_SEARCH_QUEUE && l[i + 1].sms + l[i + 1].other_sms == 132);
	EXPECT(t, cairn_search_curve(p, CAIRN_SEARCH_MEMORY, 1u << CAIRN_SEARCH_STREAMS, l, 8) == 2);
	EXPECT(t, fabs(l[1].r - 0.5) < 1e-8 && fabs(l[1].p - 0.375) < 1e-8);
	EXPECT(t, cairn_search_curve(p, CAIRN_SEARCH_MEMORY, 1u << CAIRN_SEARCH_GREEN, l, 8) == 1);
	/* the least and the largest share stay */
	EXPECT(t, cairn_search_curve(p, CAIRN_SEARCH_MEMORY, ~0u, l, 4) == 4);
	EXPECT(t, fabs(l[1].r - 0.7) < 1e-8 && fabs(l[3].r - 0.1) < 1e-8);
	cairn_search_profile_free(p);
}

/* A setting has the means of its pairs, weighted by times; an operation keeps what its own pairs kept. */
static void settings(struct cairn_test *t)
{
	static const char rows[] =
		"{'v':1,'op':'interference','case':'o_m128','impl':'cuda','how':'alone','sms_a':132,"
		"'alone_a_ns':100,'gpu':'G','kernels':'S'}\n"
		"{'v':1,'op':'interference','case':'o_m128__dec_b8_kv64','impl':'cuda','how':'green',"
		"'sms_a':92,'sms_b':40,'alone_a_ns':100,'alone_b_ns':60,'pair_a_ns':200,'pair_b_ns':100,"
		"'r':0.5,'p':0.6,'gpu':'G','kernels':'S'}\n"
		"{'v':1,'op':'interference','case':'down_m128__dec_b8_kv64','impl':'cuda','how':'green',"
		"'sms_a':92,'sms_b':40,'alone_a_ns':300,'alone_b_ns':60,'pair_a_ns':500,'pair_b_ns':300,"
		"'r':0.6,'p':0.2,'gpu':'G','kernels':'S'}\n"
		"{'v':1,'op':'interference','case':'o_m128__dec_b8_kv64','impl':'cuda','how':'green',"
		"'sms_a':72,'sms_b':60,'alone_a_ns':100,'alone_b_ns':60,'pair_a_ns':400,'pair_b_ns':80,"
		"'r':0.25,'p':0.75,'gpu':'G','kernels':'S'}\n";
	struct cairn_search_profile *p = NULL;
	struct cairn_search_level l[8];
	char *text = cairn_json_text(rows, "{", "{");

	if (!EXPECT(t, text && cairn_search_profile_parse(&p, text, strlen(text), "rows") == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		free(text);
		return;
	}
	free(text);
	EXPECT(t, cairn_search_curve(p, CAIRN_SEARCH_MEMORY, ~0u, l, 8) == 3);
	EXPECT(t, l[1].sms == 60 && fabs(l[1].r - 0.75) < 1e-12 && fabs(l[1].p - 0.75) < 1e-12);
	EXPECT(t, l[2].sms == 40 && fabs(l[2].r - 0.425) < 1e-12 && fabs(l[2].p - 0.3) < 1e-12);
	EXPECT(t, fabs(cairn_search_keeps(p, "o", CAIRN_SEARCH_MEMORY, &l[2]) - 0.5) < 1e-12);
	EXPECT(t, fabs(cairn_search_keeps(p, "down", CAIRN_SEARCH_MEMORY, &l[2]) - 0.6) < 1e-12);
	EXPECT(t, fabs(cairn_search_keeps(p, "down", CAIRN_SEARCH_MEMORY, &l[1]) - 0.25) < 1e-12);
	cairn_search_profile_free(p);
}

static const char alone[] =
	"{'v':1,'op':'interference','case':'o_m128','impl':'cuda','how':'alone','sms_a':132,"
	"'alone_a_ns':100,'gpu':'G','kernels':'S'}\n";
static const char both[] =
	"{'v':1,'op':'interference','case':'o_m128','impl':'cuda','how':'alone','sms_a':132,"
	"'alone_a_ns':100,'gpu':'G','kernels':'S'}\n"
	"{'v':1,'op':'interference','case':'o_m128__dec_b8_kv64','impl':'cuda','how':'green','sms_a':92,"
	"'sms_b':40,'alone_a_ns':100,'alone_b_ns':50,'pair_a_ns':200,'pair_b_ns':100,'r':0.5,'p':0.5,"
	"'gpu':'G','kernels':'S'}\n";

static void refuse(struct cairn_test *t, const char *base, const char *from, const char *to, const char *want)
{
	char *text = cairn_json_text(base, from, to), path[PATH_MAX];
	struct cairn_search_profile *p = NULL;

	if (!EXPECT(t, text))
		return;
	cairn_tmpfile(t, path, sizeof(path), "bad.jsonl", text, strlen(text));
	if (!EXPECT(t, cairn_search_profile_read(&p, path) == -EINVAL && !p))
		cairn_note(t, "'%s' for '%s' is accepted", to, from);
	EXPECT_CONTAINS(t, cairn_last_error(), want);
	EXPECT_CONTAINS(t, cairn_last_error(), "bad.jsonl: ");
	free(text);
}

static void refusals(struct cairn_test *t)
{
	static const struct {
		const char *from, *to, *want;
	} rows[] = {
		{ "'v':1", "'v':2", "line 1: v" },
		{ "'interference'", "'gemm'", "line 1: op: \"gemm\" is not \"interference\"" },
		{ "o_m128", "o_m", "line 1: case: \"o_m\" does not name" },
		{ "o_m128", "o", "line 1: case" },
		{ "o_m128", "o_m12a", "line 1: case" },
		{ "o_m128", "o_m0", "line 1: case" },
		{ "o_m128", "o_m128_kv5", "line 1: case" },
		{ "o_m128", "dec_m128", "line 1: case" },
		{ "o_m128", "a_m1__b_m2__c_m3__d_m4", "line 1: case" },
		{ "'alone'", "'queue'", "line 1: how: \"queue\" is no way to run one operation" },
		{ "'sms_a':132", "'sms_a':0", "line 1: sms_a" },
		{ "'sms_a':132", "'sms_a':1.5", "line 1: sms_a" },
		{ "'sms_a':132,", "", "line 1: sms_a" },
		{ "'alone_a_ns':100", "'alone_a_ns':0", "line 1: alone_a_ns" },
		{ "'alone_a_ns':100", "'alone_a_ns':'100'", "line 1: alone_a_ns" },
		{ "'alone_a_ns':100", "'alone_a_ns':NaN", "line 1" },
		{ "'gpu':'G'", "'gpu':''", "line 1: gpu" },
		{ ",'kernels':'S'", "", "line 1: kernels" },
		{ "'impl':'cuda',", "", "line 1: impl" },
		{ "'gpu':'G'", "'gpu':'G','shape':''", "line 1: shape" },
		{ "'S'}\n", "'S'}", "line 1: truncated" },
		{ "{", "[", "line 1" },
	};
	static const struct {
		const char *from, *to, *want;
	} pairs[] = {
		{ "'green'", "'alone'", "line 2: how: \"alone\" is no way to run operations together" },
		{ "'green'", "'fast'", "line 2: how" },
		{ "'sms_b':40,", "", "line 2: sms_b" },
		{ "'alone_b_ns':50,", "", "line 2: alone_b_ns" },
		{ "'pair_a_ns':200", "'pair_a_ns':0", "line 2: pair_a_ns" },
		{ "'r':0.5", "'r':0.6", "line 2: r: 0.6, but the row's times give 0.5" },
		{ "'p':0.5", "'p':0.4", "line 2: p: 0.4" },
		{ "'p':0.5", "'p':-0.5", "line 2: p" },
		{ "'alone_a_ns':100,'alone_b_ns'", "'alone_a_ns':1,'alone_b_ns'", "line 2: r" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		refuse(t, alone, rows[i].from, rows[i].to, rows[i].want);
	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
		refuse(t, both, pairs[i].from, pairs[i].to, pairs[i].want);
	refuse(t, both, "40,'alone_a_ns':100,'alone_b_ns':50,'pair_a_ns':200,'pair_b_ns':100,'r':0.5,'p':0.5,"
	       "'gpu':'G'", "40,'alone_a_ns':100,'alone_b_ns':50,'pair_a_ns':200,'pair_b_ns':100,'r':0.5,"
	       "'p':0.5,'gpu':'H'", "line 2: gpu: \"H\", but the first row has \"G\"");
	refuse(t, "", NULL, "", "no row of an operation alone");
}

static const struct cairn_unit units[] = {
	{ "times", times },
	{ "curve", curve },
	{ "settings", settings },
	{ "refusals", refusals },
};

const struct cairn_family cairn_search_profile_family = {
	.stage = "serving",
	.name = "search_profile",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
