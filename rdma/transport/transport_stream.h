/* SPDX-License-Identifier: Apache-2.0 */
/* transport_stream - the kernels of rdma/transport_stream: a put of rows, and a wait of one CTA */
#ifndef CAIRN_TRANSPORT_STREAM_H
#define CAIRN_TRANSPORT_STREAM_H

#include "rdma/transport/transport.h"

struct transport_stream_part {
	uint64_t from, to;		/* addresses */
	uint64_t from_stride, to_stride;
	uint32_t row_units, rows;
	uint32_t unit;			/* bytes that a thread copies at a time: 1, 4 or 16 */
};

struct transport_stream_args {
	struct cairn_device_channel c;
	struct transport_stream_part part[CAIRN_STREAM_PARTS];
	uint64_t value, word, timeout_ns;
	uint32_t slot;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the kernels on the current device: one that is loaded at its first launch may wait for running ones,
 * which may be waits. */
int transport_stream_load(void);
int transport_stream_launch_put(const struct transport_stream_args *a, void *stream);
int transport_stream_launch_wait(const struct transport_stream_args *a, void *stream);

#ifdef __cplusplus
}
#endif

#endif
