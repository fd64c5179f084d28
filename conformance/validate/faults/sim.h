/* SPDX-License-Identifier: Apache-2.0 */
/* sim - what the files of sim_plugin.so share; sim_plugin.c describes the device */
#ifndef CAIRN_SIM_H
#define CAIRN_SIM_H

#include "conformance/abi.h"

extern int sim_device;		/* number of the device of this process */

/* Returns NAME of $CAIRN_SIM. */
long long sim_option(const char *name, long long otherwise);
uint64_t sim_hash(uint64_t x);

/* sim_links.c: communicators, links and their clock */
int sim_comm_open(const struct cairn_comm_args *args, struct cairn_comm *comm);
void sim_comm_close(struct cairn_comm *comm);
/* Called before a copy on the device of `bytes` bytes to dst, and after it; 0, or an error. */
int sim_link_begin(const void *dst, size_t bytes);
void sim_link_end(void *dst, size_t bytes);
int sim_event_create(void **event);
void sim_event_destroy(void *event);
int sim_event_record(void *event, void *stream);
int sim_event_sync(void *event);
int sim_event_elapsed(float *ms, void *start, void *end);

#endif
