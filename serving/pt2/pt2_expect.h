/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt2_expect - compares a program with the results that PyTorch computed
 *
 * The file is what tools/export_pt2.py writes: a list of {"ids": [token ids], "logits": [results]}. The
 * program has one input, the ids of one sequence, and one output.
 *
 * Errors: -EINVAL (the file; results that differ by more than CAIRN_PT2_TOLERANCE of the largest result;
 * slices that do not give the bits of the whole program), -EIO, -ENOMEM, and those of pt2_run.h.
 */
#ifndef CAIRN_PT2_EXPECT_H
#define CAIRN_PT2_EXPECT_H

#include "serving/pt2/pt2_run.h"

/* PyTorch's sums in float32 have errors of 2^-24 for each of some 1000 terms. */
#define CAIRN_PT2_TOLERANCE	0x1p-14

/* Sets *worst to the largest difference, as a fraction of the largest result. */
int cairn_pt2_expect(const struct cairn_pt2 *p, const struct cairn_pt2_slices *s, const char *path,
		     double *worst);

#endif
