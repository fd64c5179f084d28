/* SPDX-License-Identifier: Apache-2.0 */
/* comm_measure_test - the measures of the family comm (comm_test.c) */
#ifndef CAIRN_COMM_MEASURE_TEST_H
#define CAIRN_COMM_MEASURE_TEST_H

struct cairn_test;

void comm_measure_all_reduce_norm(struct cairn_test *t);
void comm_measure_nccl(struct cairn_test *t);

#endif
