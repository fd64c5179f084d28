// SPDX-License-Identifier: Apache-2.0
/* search_lp_test - solves small programs with cbc, and checks what happens without it or if it misbehaves */
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "serving/search/search_lp.h"
#include "serving/search/search_test.h"

/* max 5 a + 4 b, 6 a + 4 b <= 24, a + 2 b <= 6, whole numbers: a = 4, b = 0 with 20 (as reals 21) */
static struct cairn_lp *product(int32_t *a, int32_t *b, int feasible)
{
	struct cairn_lp *lp = NULL;

	if (cairn_lp_create(&lp))
		return NULL;
	*a = cairn_lp_col(lp, 0, 10, true, "a_%d", 1);
	*b = cairn_lp_col(lp, 0, 10, true, "b_%d", 1);
	cairn_lp_cost(lp, *a, -5);
	cairn_lp_cost(lp, *b, -4);
	cairn_lp_row(lp, '<', 24, "first");
	cairn_lp_term(lp, *b, 4);
	cairn_lp_term(lp, *a, 4);
	cairn_lp_term(lp, *a, 2);	/* terms of one column add up */
	cairn_lp_row(lp, '<', 6, "second");
	cairn_lp_term(lp, *a, 1);
	cairn_lp_term(lp, *b, 2);
	if (!feasible) {
		cairn_lp_row(lp, '>', 5, "third");
		cairn_lp_term(lp, *a, 1);
	}
	return lp;
}

static const struct cairn_lp_limits limits = { .seconds = 30, .gap = 1e-9 };

static void solve(struct cairn_test *t)
{
	struct cairn_lp_answer answer = { .values = NULL };
	struct cairn_lp_limits dump = limits;
	char path[PATH_MAX], text[512] = "";
	int32_t a, b;
	struct cairn_lp *lp = product(&a, &b, 1);
	FILE *f;

	if (!has_solver(t) || !EXPECT(t, lp))
		return;
	EXPECT(t, cairn_lp_num_cols(lp) == 2 && cairn_lp_num_rows(lp) == 2 && cairn_lp_num_integers(lp) == 2);
	cairn_lp_start(lp, a, 1);
	cairn_lp_start(lp, b, 1);
	snprintf(path, sizeof(path), "%s/product.lp", cairn_tmpdir(t));
	dump.dump = path;
	if (EXPECT(t, cairn_lp_solve(lp, &dump, &answer) == 0)) {
		EXPECT(t, answer.optimal && answer.values[a] == 4 && answer.values[b] == 0);
		EXPECT(t, fabs(answer.cost + 20) < 1e-6 && fabs(answer.bound + 20) < 1e-6);
	}
	f = fopen(path, "r");
	EXPECT(t, f && fread(text, 1, sizeof(text) - 1, f) > 0);
	if (f)
		fclose(f);
	EXPECT_CONTAINS(t, text, "Minimize\n obj: -5 a_1 -4 b_1\n");
	EXPECT_CONTAINS(t, text, " first: +4 b_1 +6 a_1 <= 24\n");
	EXPECT_CONTAINS(t, text, "Integers\n a_1\n b_1\nEnd\n");
	free(answer.values);
	cairn_lp_destroy(lp);
}

static void no_solution(struct cairn_test *t)
{
	struct cairn_lp_answer answer = { .values = NULL };
	int32_t a, b;
	struct cairn_lp *lp = product(&a, &b, 0);

	if (!has_solver(t) || !EXPECT(t, lp))
		return;
	EXPECT(t, cairn_lp_solve(lp, &limits, &answer) == -EINVAL && !answer.values);
	EXPECT_CONTAINS(t, cairn_last_error(), "no solution exists");
	cairn_lp_destroy(lp);
}

/* Makes $CAIRN_CBC a shell script, solves with it, and returns the error. */
static int with_script(struct cairn_test *t, const char *script, const struct cairn_lp_limits *l)
{
	struct cairn_lp_answer answer = { .values = NULL };
	char path[PATH_MAX];
	int32_t a, b;
	struct cairn_lp *lp = product(&a, &b, 1);
	int ret = -ENOMEM;

	cairn_tmpfile(t, path, sizeof(path), "cbc.sh", script, strlen(script));
	EXPECT(t, chmod(path, 0700) == 0 && setenv("CAIRN_CBC", path, 1) == 0);
	if (EXPECT(t, lp))
		ret = cairn_lp_solve(lp, l, &answer);
	free(answer.values);
	cairn_lp_destroy(lp);
	unsetenv("CAIRN_CBC");
	return ret;
}

/* The script writes the given text where cbc would write its solution: its last argument. */
#define HEADING	"Optimal - objective value -20\\n0 first 24 0\\n1 second 4 0\\n0 a_1 4 0\\n"
#define ANSWERS(text)	"#!/bin/sh\nfor f; do :; done\nprintf '" text "' >\"$f\"\n"

static void bad_solver(struct cairn_test *t)
{
	static const struct {
		const char *script;
		int err;
		const char *want;
	} all[] = {
		{ "#!/bin/sh\nexit 3\n", -EIO, "cbc failed (status 0x300)" },
		{ "#!/bin/sh\nkill -9 $$\n", -EIO, "cbc failed" },
		{ "#!/bin/sh\nexit 0\n", -EIO, "solution.txt" },
		{ ANSWERS(""), -ETIMEDOUT, "no solution was found in time" },
		{ ANSWERS(HEADING), -EIO, "3 lines instead of 4" },
		{ ANSWERS(HEADING "1 c_1 0 0\\n"), -EIO, "c_1" },
		{ ANSWERS(HEADING "1 b_1 nan 0\\n"), -EIO, "nan" },
		{ ANSWERS(HEADING "1 b_1 0 0\\n"), 0, NULL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		int ret = with_script(t, all[i].script, &limits);

		if (!EXPECT(t, ret == all[i].err))
			cairn_note(t, "script %zu: %d, %s", i, ret, cairn_last_error());
		if (all[i].want)
			EXPECT_CONTAINS(t, cairn_last_error(), all[i].want);
	}
}

static void missing_solver(struct cairn_test *t)
{
	struct cairn_lp_answer answer = { .values = NULL };
	int32_t a, b;
	struct cairn_lp *lp = product(&a, &b, 1);

	if (!EXPECT(t, lp))
		return;
	setenv("CAIRN_CBC", "no-such-solver", 1);
	EXPECT(t, cairn_lp_solve(lp, &limits, &answer) == -ENOENT);
	EXPECT_CONTAINS(t, cairn_last_error(), "no program 'no-such-solver': install the package coinor-cbc");
	unsetenv("CAIRN_CBC");
	cairn_lp_destroy(lp);
}

/* A solver that ignores its time is killed. */
static void hanging_solver(struct cairn_test *t)
{
	struct cairn_lp_limits l = { .seconds = 0.1, .gap = 0.01, .grace = 0.2 };

	EXPECT(t, with_script(t, "#!/bin/sh\nexec sleep 600\n", &l) == -ETIMEDOUT);
	EXPECT_CONTAINS(t, cairn_last_error(), "did not end when its time was up");
}

static const struct cairn_unit units[] = {
	{ "solve", solve },
	{ "no_solution", no_solution },
	{ "bad_solver", bad_solver },
	{ "missing_solver", missing_solver },
	{ "hanging_solver", hanging_solver },
};

const struct cairn_family cairn_search_lp_family = {
	.stage = "serving",
	.name = "search_lp",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};
