// SPDX-License-Identifier: Apache-2.0
/* philox_test - known answers and statistics of philox.h */
#include "primitives/draw/philox.h"

#include "conformance/harness.h"

/* from kat_vectors of Random123, the library of the generator's authors */
static void known_answers(struct cairn_test *t)
{
	static const struct { uint32_t counter[4], key[2], out[4]; } known[] = {
		/* { counter, key, out } */
		{ { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
		{ { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff }, { 0xffffffff, 0xffffffff },
		  { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
		{ { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
		  { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
	};

	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		uint32_t out[4];

		cairn_philox4x32_10(known[i].counter, known[i].key, out);
		EXPECT(t, !memcmp(out, known[i].out, sizeof(out)));
	}
	/* the uniform number of sample.h: 53 bits of the first two words */
	EXPECT(t, cairn_philox_uniform(0, 0) == 0x6627e8d5e169c58dull >> 11 << 11);
	EXPECT(t, cairn_philox_uniform(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull) !=
		  cairn_philox_uniform(0xa4093822299f31d0ull, 0x85a308d3243f6a88ull));
}

/*
 * Each of the 53 bits must be set in about half of the draws, over offsets, over seeds, and over both in
 * large steps.
 */
static void bits_are_even(struct cairn_test *t)
{
	enum { DRAWS = 100000 };
	/* 8 standard deviations of a fair coin: by Hoeffding's inequality one bit fails with probability
	 * 1.3e-15 */
	const double room = 4 * sqrt(DRAWS);
	uint64_t base = cairn_rand(t);

	for (int way = 0; way < 3; way++) {
		int ones[64] = { 0 };

		for (uint64_t i = 0; i < DRAWS; i++) {
			uint64_t u =
				cairn_philox_uniform(way == 1 ? i : base, way == 0 ? i : base + (i << 40));

			for (int b = 0; b < 64; b++)
				ones[b] += (int)(u >> b & 1);
		}
		for (int b = 0; b < 11; b++)
			EXPECT(t, ones[b] == 0);
		for (int b = 11; b < 64; b++)
			EXPECT(t, fabs(ones[b] - DRAWS / 2.0) <= room);
	}
}

static const struct cairn_unit units[] = {
	{ "known_answers", known_answers },
	{ "bits_are_even", bits_are_even },
};

const struct cairn_family cairn_philox_family = {
	.stage = "primitives", .name = "philox",
	.units = units, .num_units = ARRAY_SIZE(units),
};
