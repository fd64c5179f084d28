/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads - sets how many OpenMP threads the next parallel loop uses; a build with SAN=thread has no OpenMP
 */
#ifndef CAIRN_THREADS_H
#define CAIRN_THREADS_H

#ifdef _OPENMP
#include <omp.h>

static inline int cairn_get_threads(void) { return omp_get_max_threads(); }
static inline void cairn_set_threads(int num) { omp_set_num_threads(num); }
#else
static inline int cairn_get_threads(void) { return 1; }
static inline void cairn_set_threads(int num) { (void)num; }
#endif
#endif
