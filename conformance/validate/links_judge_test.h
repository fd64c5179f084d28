/* SPDX-License-Identifier: Apache-2.0 */
/* links_judge_test - checks of the judges of links, as judge_test.h has them of the others */
#ifndef CAIRN_VALIDATE_LINKS_JUDGE_TEST_H
#define CAIRN_VALIDATE_LINKS_JUDGE_TEST_H

#include "conformance/validate/judge_test.h"
#include "conformance/validate/links.h"

enum { DEVICES = 4 };

struct links_of {
	double gbps[ROUNDS][DEVICES][DEVICES];
	struct validate_slow_link slow[DEVICES * DEVICES];
	int32_t num;
};

/* Links of one kind in the pairs {0, 1} and {2, 3}, and of a slower kind between these pairs. */
static struct links_of *equal_links(uint64_t seed, double slower)
{
	static struct links_of x;

	memset(&x, 0, sizeof(x));
	for (int i = 0; i < ROUNDS * DEVICES * DEVICES; i++) {
		int from = i / DEVICES % DEVICES, to = i % DEVICES;
		double noise = 0.003 * (double)(judge_random(&seed) >> 11) * 0x1p-53;

		(&x.gbps[0][0][0])[i] = from == to ? NAN :
					400 * (from / 2 == to / 2 ? 1 : slower) * (1 + noise);
	}
	return &x;
}

static int32_t slow_links(struct links_of *x)
{
	x->num = validate_slow_links(&x->gbps[0][0][0], ROUNDS, DEVICES, x->slow, DEVICES * DEVICES);
	return x->num;
}

/* A link slower by 5% is named, among links of one kind or of two; so is one unlike its siblings. */
static const char *finds_slow_links(void)
{
	struct links_of *x;

	for (uint64_t seed = 0; seed < 100; seed++) {
		REQUIRE(slow_links(equal_links(seed << 20, 1)) == 0);
		REQUIRE(slow_links(equal_links(seed << 20, 0.1)) == 0);
	}
	for (int kinds = 1; kinds <= 2; kinds++) {
		x = equal_links(1, kinds == 1 ? 1 : 0.1);
		for (int r = 0; r < ROUNDS; r++)
			x->gbps[r][1][0] /= 1.05;
		REQUIRE(slow_links(x) == 1 && x->slow[0].from == 1 && x->slow[0].to == 0);
		REQUIRE(x->slow[0].worse > 0.045 && x->slow[0].worse < 0.055 && !x->slow[0].lacking);
		REQUIRE(x->slow[0].peers == (kinds == 1 ? 11 : 3) && x->slow[0].fast);
		REQUIRE(validate_link_verdict(x->slow, 1) == VALIDATE_FAIL);
		REQUIRE(validate_link_verdict(x->slow, 0) == VALIDATE_WARN);
		x->slow[0].worse = 0.03;
		REQUIRE(validate_link_verdict(x->slow, 1) == VALIDATE_WARN);
	}
	x = equal_links(2, 1);
	for (int r = 0; r < ROUNDS; r++)
		x->gbps[r][2][3] /= 10;
	REQUIRE(slow_links(x) == 1 && x->slow[0].from == 2 && x->slow[0].to == 3 && x->slow[0].lacking);
	REQUIRE(validate_link_verdict(x->slow, 1) == VALIDATE_FAIL);
	return NULL;
}

/* If there are two links, each is the other's only sibling. */
static const char *finds_slow_ways(void)
{
	static const double scatter[ROUNDS] = { 0, 0.2, 0, 0.2, 0, 0.2 };
	double way[ROUNDS][2][2];
	struct validate_slow_link slow[4];

	for (int what = 0; what < 4; what++) {
		for (int r = 0; r < ROUNDS; r++) {
			way[r][0][0] = way[r][1][1] = NAN;
			way[r][0][1] = 400 + r % 3;
			/* equal, always slower, slower for a while, slower by chance */
			way[r][1][0] = what == 0 ? 401 : what == 1 ? 380 : what == 2 ? (r < 3 ? 380 : 380.5) :
				       400 / (1 + scatter[r]);
			if (what == 2 && r >= 4)
				way[r][1][0] = 400;
		}
		REQUIRE(validate_slow_links(&way[0][0][0], ROUNDS, 2, slow, 4) == (what == 1));
		if (what == 1)
			REQUIRE(slow[0].from == 1 && slow[0].to == 0 && slow[0].peers == 1 &&
				slow[0].worse > 0.045 && slow[0].worse < 0.06);
	}
	REQUIRE(validate_down_verdict(0, 1) == VALIDATE_FAIL && validate_down_verdict(1, 0) == VALIDATE_FAIL);
	REQUIRE(validate_down_verdict(0, 0) == VALIDATE_NOT_RUN);
	/* one way is down to another kind */
	for (int r = 0; r < ROUNDS; r++)
		way[r][0][1] = 30;
	REQUIRE(validate_slow_links(&way[0][0][0], ROUNDS, 2, slow, 4) == 1);
	REQUIRE(slow[0].lacking && slow[0].from == 0);
	return NULL;
}

#endif
