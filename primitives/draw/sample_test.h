/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample_test - declarations that the files of the test share: sample_test.c lists and judges the cases,
 * sample_pairs_test.c makes the pair cases and the sweeps
 */
#ifndef CAIRN_SAMPLE_TEST_H
#define CAIRN_SAMPLE_TEST_H

#include "conformance/harness.h"
#include "primitives/draw/sample.h"

#define SAMPLE_PAIRS	35
#define SAMPLE_ENDS	60	/* cases with vocabularies at the ends of tiles */
#define SAMPLE_ROWS	36	/* rows of a pair case */

/* Names pair case i, or from SAMPLE_PAIRS on a case of SAMPLE_ENDS; sets its vocabulary. */
void sample_pair_describe(int i, char *name, size_t len, int32_t *vocab);
/* Fills all inputs, whose pointers in op->args are to buffers of SAMPLE_ROWS rows. */
void sample_pair_fill(struct cairn_op *op, int i);
void sample_pairs_are_covered(struct cairn_test *t);

/* Sweeps: each row has another value of one parameter. */
#define SAMPLE_SWEEPS		5
#define SAMPLE_SWEEP_ROWS	290
#define SAMPLE_SWEEP_VOCAB	300

const char *sample_sweep_name(int i);
/* Fills all inputs, whose pointers in op->args are to buffers of SAMPLE_SWEEP_ROWS rows. */
void sample_sweep_fill(struct cairn_op *op, int i);

#endif
