/* SPDX-License-Identifier: Apache-2.0 */
/* generate - what `cairn generate` was asked for, and what it measured */
#ifndef CAIRN_GENERATE_H
#define CAIRN_GENERATE_H

#include "conformance/tables/energy.h"
#include "serving/cli/command.h"
#include "serving/engine/engine.h"
#include "serving/engine/speculate.h"
#include "serving/grammar/grammar.h"
#include "serving/engine/worker/sampling.h"

struct generate_options {
	struct cairn_common_options common;
	struct cairn_speculative_options speculative;
	struct cairn_attention_options attention;
	struct cairn_adapter_options lora;
	const char *shape, *prompt, *prompt_file, *plan, *slices;
	const char *json_schema, *regex;	/* file; text. NULL: not given */
	int64_t max_new_tokens, prompt_tokens, repeat, prefill_rows, page_size, seed;
	int ignore_eos, no_graphs, no_defaults;
	struct cairn_sampling sampling;		/* temperature, top_p NAN and top_k -1: not given */
};

/* ns has room for all tokens; the caller frees it. */
struct generate_figures {
	double *ns;		/* [n] times between tokens, sorted */
	int n;
	double first_s;		/* time to the first token in the last run */
	double decode_s;	/* time from the first to the last of new_tokens */
	int new_tokens;
	double kv_tokens;	/* mean length of a request over the samples, in tokens */
	double bytes, roof;	/* bytes of a step; GB/s of a pure read, 0: unknown */
	int same;		/* all runs gave the same tokens */
	int fused;		/* decode_step ran at least one step */
	struct cairn_speculation_stats drafts;
	int64_t steps, nano_steps;	/* of all runs; those that ran as nano-batches */
	/* of a whole run and of a decoding step: mean power, and the time of one while it was measured */
	struct cairn_energy run_energy, step_energy;
	double run_s, step_s;
	int64_t run_tokens;	/* of all requests of a run */
};

/* Zeroed: answers are free. */
struct generate_constraint {
	struct cairn_grammar *grammar;
	struct cairn_constraint constraint;
	char *text;
};

/* Returns -EINVAL if options exclude each other. */
int generate_constraint_check(const struct generate_options *o);
/* Does nothing without such an option; else sets where the engine's masks come from. drafts: of a pass. */
int generate_constraint_create(struct generate_constraint *c, const struct generate_options *o,
			       const struct cairn_session *s, struct cairn_engine_options *eo,
			       int32_t drafts);
/* Opens the constraint for a request, in place of the one in *id, and waits until it is compiled. */
int generate_constraint_open(struct generate_constraint *c, uint64_t *id);
void generate_constraint_destroy(struct generate_constraint *c);

/* Prints the figures and, with --json, appends a record. Sorts ns. */
int generate_report(const struct cairn_session *s, const struct generate_options *o,
		    struct generate_figures *f, size_t num_prompt);

#endif
