/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command - what the subcommands generate and eval share
 *
 * Functions return 0 or -errno with the text set, as libraries do; printing is left to the commands,
 * but for the progress of loading.
 */
#ifndef CAIRN_COMMAND_H
#define CAIRN_COMMAND_H

#include <stdint.h>

#include "../conformance/abi.h"
#include "model.h"
#include "tokenizer.h"

/* Exit status of a command, also of those of conformance/. */
enum { CAIRN_EXIT_OK, CAIRN_EXIT_FAILED, CAIRN_EXIT_USAGE };

/* A whole number in [lo, hi]; a number in [lo, hi]. -EINVAL names option and range. */
int cairn_option_int(const char *option, const char *text, int64_t lo, int64_t hi, int64_t *value);
int cairn_option_float(const char *option, const char *text, double lo, double hi, float *value);

struct cairn_session {
	struct cairn_impl impl;
	int started;
	struct cairn_model *model;
	struct cairn_tokenizer *tokenizer;	/* NULL with a shape */
	char dir[4096];				/* of the model; "" with a shape */
};

/* impl: NULL for cuda where there is a device, else cpu. */
int cairn_session_start(struct cairn_session *s, const char *impl, int device);
/* dir: NULL for the embedded model. Tells on stderr how loading goes. */
int cairn_session_load(struct cairn_session *s, const char *dir);
/* Random weights of a published shape; no tokenizer. */
int cairn_session_shape(struct cairn_session *s, const char *shape, uint64_t seed);
void cairn_session_close(struct cairn_session *s);

/* GB/s of a pure read by the table's stream operation, the best of five; 0 where it has none. */
double cairn_session_read_gbps(const struct cairn_session *s);

/* The members of a bench record that name the device and the program: "\"gpu\":...", without braces. */
void cairn_session_record(const struct cairn_session *s, char *json, size_t len);

double cairn_now(void);		/* seconds, monotonic */

#endif
