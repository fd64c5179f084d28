/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_part - streams on some of a GPU's SMs: stream_create_part of the tables that run on a GPU
 *
 * Such a stream belongs to a green context, which owns SMs in multiples of 8. The SMs are cut once for each
 * number, into the first ones and the others, and both contexts are kept until the process ends: a context
 * costs little, and destroying one would need to know that no stream of it is left.
 */
#ifndef CAIRN_CUDA_PART_H
#define CAIRN_CUDA_PART_H

#include <stdint.h>

int cairn_cuda_stream_part(void **stream, int32_t sms, int32_t priority);

#endif
