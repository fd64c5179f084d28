/* SPDX-License-Identifier: Apache-2.0 */
/* pull_speed_test - measures of the family disagg with a prefill worker (pull_speed_test.c) */
#ifndef CAIRN_PULL_SPEED_TEST_H
#define CAIRN_PULL_SPEED_TEST_H

struct cairn_test;

void cairn_measure_pulls_cuda(struct cairn_test *t);
void cairn_measure_pulls_cpu(struct cairn_test *t);

#endif
