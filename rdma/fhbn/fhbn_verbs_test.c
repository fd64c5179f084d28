// SPDX-License-Identifier: Apache-2.0
/*
 * fhbn_verbs_test.c - repeats the tests of fhbn, fhbn_fault and fhbn_gpu on queue pairs of unmodified libmlx5
 *
 * The model must be preloaded so that libibverbs finds it as a card; each test therefore runs in a new
 * process of this program. From device file to doorbell everything is as on a real card, except that the UAR
 * page is memory.
 */
#include "conformance/harness.h"
#include "rdma/nic/nic_child.h"

/* Runs one test in a child: fails with the child's notes, skips with its reason. */
static void again(struct cairn_test *t, const char *test)
{
	char words[256], text[16384], *skip;
	struct child c;

#ifdef CAIRN_SANITIZED
	cairn_skip(t, "a sanitizer must be the first library loaded");
	return;
#endif
#ifndef CONFIG_VERBS
	cairn_skip(t, "built without <infiniband/mlx5dv.h>");
	return;
#endif
	if (missing(t, "cairn"))
		return;
	snprintf(words, sizeof(words), "cairn check -v %s", test);
	start(t, &c, words, NULL, "out");
	finish(t, &c);
	text_of(c.out, text, sizeof(text));
	skip = strstr(text, " # SKIP ");
	if (!EXPECT(t, c.status == 0) || !EXPECT(t, strstr(text, "\n1 passed, 0 failed") || skip))
		cairn_note(t, "%s", text);
	else if (skip)
		cairn_skip(t, "%.*s", (int)strcspn(skip + 8, "\n"), skip + 8);
}

#define AGAIN(F)								\
	F(fhbn, modes) F(fhbn, several_posters) F(fhbn, many_queues)		\
	F(fhbn, adversaries) F(fhbn, index_wraps) F(fhbn, read_back)		\
	F(fhbn_fault, errors) F(fhbn_fault, time_outs)				\
	F(fhbn_gpu, host_ring) F(fhbn_gpu, several_posters)			\
	F(fhbn_gpu, many_queues) F(fhbn_gpu, adversaries)			\
	F(fhbn_gpu, index_wraps) F(fhbn_gpu, errors_and_time_outs)

#define F(family, unit)								\
static void family##_##unit(struct cairn_test *t)				\
{										\
	again(t, "rdma." #family "." #unit);					\
}
AGAIN(F)
#undef F

#define F(family, unit) { #family "_" #unit, family##_##unit },
static const struct cairn_unit units[] = {
	AGAIN(F)
};
#undef F

const struct cairn_family cairn_fhbn_verbs_family = {
	.stage = "rdma", .name = "fhbn_verbs", .units = units, .num_units = ARRAY_SIZE(units), .cost_s = 9,
};
