/* SPDX-License-Identifier: Apache-2.0 */
/* comm_measure_test - the measures of the family comm (comm_test.c) */
#ifndef CAIRN_COMM_MEASURE_TEST_H
#define CAIRN_COMM_MEASURE_TEST_H

struct cairn_test;

/* Rows of the table cuda, and of NCCL beside it, for so many GPUs; skips if there are fewer. */
void comm_measure_ours(struct cairn_test *t, int ranks);
void comm_measure_nccl(struct cairn_test *t, int ranks);

#endif
