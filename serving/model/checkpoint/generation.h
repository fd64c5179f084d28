/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generation - the sampling defaults that a checkpoint recommends in generation_config.json
 *
 * Reads temperature, top_k, top_p, min_p and repetition_penalty, with the same bounds as in requests. As in
 * vLLM, do_sample is ignored: a file that says only "do_sample": false does not make answers greedy. Other
 * keys are ignored, too; config.c reads eos_token_id.
 *
 * Errors: -EINVAL (a value is out of bounds, or the file is not JSON), -EIO, -ENOMEM; the text names file and
 * key.
 */
#ifndef CAIRN_GENERATION_H
#define CAIRN_GENERATION_H

#include <stdint.h>

struct cairn_generation {
	double temperature;		/* 0..2; 0: greedy */
	double top_p, min_p;		/* (0, 1], 1: off; 0..1, 0: off */
	double repetition_penalty;	/* (0, 10], 1: off */
	int64_t top_k;			/* 0: off */
	char set[160];			/* what the file sets, "temperature 0.6, top_p 0.9"; "": nothing */
};

/*
 * Reads generation_config.json from a checkpoint directory, if it is there. Members that the file does not
 * set keep their values; on an error all do.
 */
int cairn_generation_load(const char *dir, struct cairn_generation *generation);

/* Values of the option --generation-config: "auto", "none" (ignore the file), NULL. */
extern const char *const cairn_generation_names[];

#endif
