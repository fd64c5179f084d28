/* SPDX-License-Identifier: Apache-2.0 */
/* falling - the order of a row of logits, for the references that sort whole rows */
#ifndef CAIRN_FALLING_H
#define CAIRN_FALLING_H

#include <stdint.h>

/*
 * Sets order[] to the indices of x[n], the largest number first and equal ones by index. NaN counts as
 * -INFINITY, a number above FLT_MAX as FLT_MAX. Returns 0 or -ENOMEM.
 */
int cairn_order_falling(int32_t *order, const float *x, int32_t n);

#endif
