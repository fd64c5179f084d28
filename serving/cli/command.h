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

#include "conformance/abi.h"
#include "serving/model/decode.h"
#include "serving/model/model.h"
#include "serving/tokenizer/tokenizer.h"

/* Exit status of a command, also of those of conformance/. */
enum { CAIRN_EXIT_OK, CAIRN_EXIT_FAILED, CAIRN_EXIT_USAGE };

enum cairn_option_kind {
	CAIRN_OPT_FLAG,		/* int: 1 when given */
	CAIRN_OPT_TEXT,		/* const char * */
	CAIRN_OPT_INT,		/* int64_t, a whole number in [lo, hi] */
	CAIRN_OPT_FLOAT,	/* float, a number in [lo, hi] */
	CAIRN_OPT_CHOICE,	/* int: which of names */
};

struct cairn_option {
	const char *name;	/* behind "--" */
	enum cairn_option_kind kind;
	void *to;		/* keeps its value where the option is not given */
	double lo, hi;
	const char *const *names;	/* NULL ends them */
};

#define CAIRN_MAX_OPTIONS	40

/* What generate and eval both take. */
struct cairn_common_options {
	const char *impl, *model, *json;
	int64_t device, batch;		/* batch 0: not given */
	int decode;			/* enum cairn_decode_path */
	int weights;			/* enum cairn_weights */
};

/*
 * Reads all arguments; options: [num_options], alone where common is NULL. 1: --help was given, and
 * usage is on standard output.
 * -EINVAL: the text names option and range, or getopt has named the option and the text is empty.
 */
int cairn_parse_options(int argc, char **argv, struct cairn_common_options *common,
			const struct cairn_option *options, int num_options, const char *usage);

struct cairn_session {
	struct cairn_impl impl;
	int started;
	enum cairn_weights weights;		/* what the model is loaded as; set before it is */
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

/*
 * The members of a bench record that name the table, the device and the program, without braces:
 * "\"impl\":\"cuda\",\"gpu\":...". A path that was asked for is part of the table's name, "cuda:graph", and
 * so are weights of 8 bits, "cuda:fp8".
 */
void cairn_session_record(const struct cairn_session *s, enum cairn_decode_path path, char *json, size_t len);

/* What its memory does by the maker's datasheet; 0: unknown. */
double cairn_session_peak_gbps(const struct cairn_session *s);

double cairn_now(void);		/* seconds, monotonic */

#endif
