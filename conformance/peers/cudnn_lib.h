/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_lib - the loaded library, for cudnn_graph.c */
#ifndef CAIRN_CUDNN_LIB_H
#define CAIRN_CUDNN_LIB_H

#include "conformance/peers/cudnn_api.h"

#define F(type, name, params) type (*name) params;
struct cudnn_lib { CUDNN_FUNCTIONS(F) };
#undef F

extern struct cudnn_lib cairn_cudnn;	/* filled by cairn_cudnn_load() */

/* Turns a status into an error of operation `op` at `what`; -EOPNOTSUPP where the library refuses it. */
int cairn_cudnn_error(const char *op, int status, const char *what);
/* Returns the current device's handle, made at the first call. The caller holds the lock of all calls. */
int cairn_cudnn_handle(const char *op, void **handle);

#endif
