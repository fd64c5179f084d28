/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar - constraints of requests, and the process that turns them into masks
 *
 * A constraint defines which texts are allowed as an answer. A separate process, `cairn grammar`, compiles
 * constraints and computes, before each draw, which tokens may follow (masks.h), with the library llguidance.
 * A client writes the constraints: if one of them crashes the process, the requests with a constraint end
 * with an error, others continue, and a new process is started. No request ever continues without its mask.
 *
 *   open     passes a constraint to the process and returns at once; state says what became of it
 *   step     advances matchers by the tokens that were drawn, and computes masks (masks.h); waits for them
 *   close    frees the matchers of a constraint
 *
 * Not thread-safe.
 */
#ifndef CAIRN_GRAMMAR_H
#define CAIRN_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

#include "serving/grammar/masks.h"

#define CAIRN_GRAMMAR_MAX_TEXT	(64 << 10)	/* bytes of a constraint's text */
#define CAIRN_GRAMMAR_MAX_AFTER	256		/* bytes of `after` */

enum cairn_constraint_kind {
	CAIRN_CONSTRAINT_NONE,
	CAIRN_CONSTRAINT_JSON,		/* text: a JSON schema, {} for any value */
	CAIRN_CONSTRAINT_REGEX,		/* text: a regular expression in Rust's syntax, of the whole answer */
	CAIRN_CONSTRAINT_CHOICE,	/* text: a JSON array of texts, one of which is the answer */
	CAIRN_CONSTRAINT_LARK,		/* text: a grammar in llguidance's form of Lark, from `start` on */
	CAIRN_NUM_CONSTRAINT_KINDS
};

struct cairn_constraint {
	enum cairn_constraint_kind kind;
	const char *text;		/* [num_bytes], UTF-8 without NUL */
	size_t num_bytes;
	/*
	 * The constraint sleeps until this text has appeared in the answer, special tokens included by their
	 * spelling ("</think>"); every token may be drawn until then, and the answer may end. What follows
	 * the text is held to the constraint. NULL, 0: it applies from the first token on.
	 */
	const char *after;		/* [num_after] */
	size_t num_after;
};

struct cairn_grammar;

struct cairn_grammar_options {
	const char *model_dir;		/* the folder of tokenizer.json */
	int32_t vocab_size;		/* of the model; ids beyond the tokenizer's are never allowed */
	const int32_t *eos;		/* [num_eos], at least one: they end an answer */
	int32_t num_eos;
	int32_t max_masks;		/* most masks of a step */
	int64_t cache_bytes;		/* of compiled constraints; 0: 64 MB */
	int32_t compile_ms;		/* most time to compile one; 0: 1000 */
	int32_t step_ms;		/* most time of a step, after which the process is killed; 0: 5000 */
};

/* The state of a constraint. */
enum cairn_grammar_state {
	CAIRN_GRAMMAR_OPENING,		/* being compiled, or the process is being started */
	CAIRN_GRAMMAR_OPEN,
	CAIRN_GRAMMAR_REFUSED,		/* cairn_last_error() says why, beginning with the word of its kind */
	CAIRN_GRAMMAR_LOST,		/* the process has failed since */
};

struct cairn_grammar_stats {
	int64_t compiled, cache_hits, refused, restarts;
	int64_t masks, mask_ns;		/* computed masks, and the time of their steps */
	int64_t compile_ns;
};

/*
 * Returns 0 if the library is installed and has the version that this program was written for. -EOPNOTSUPP:
 * the text says which command installs it.
 */
int cairn_grammar_library(void);

/*
 * The first constraint that is opened starts the process; cairn_grammar_poll() starts it anew after a
 * failure. -EOPNOTSUPP: as above.
 */
int cairn_grammar_create(struct cairn_grammar **out, const struct cairn_grammar_options *options);
void cairn_grammar_destroy(struct cairn_grammar *g);	/* NULL is legal */

/* Receives what the process has sent, and supervises it. Never blocks. */
void cairn_grammar_poll(struct cairn_grammar *g);
/* Becomes readable when cairn_grammar_poll() has something to do; -1 while there is no process. */
int cairn_grammar_fd(const struct cairn_grammar *g);

/*
 * Opens a constraint for num_seqs answers that are drawn independently, and sets *id. -EINVAL: the text is
 * too long or has a NUL; -ENOMEM.
 */
int cairn_grammar_open(struct cairn_grammar *g, const struct cairn_constraint *constraint, int32_t num_seqs,
		       uint64_t *id);
/* Returns 0 if every constraint is refused because the library or the model cannot be used. */
int cairn_grammar_is_usable(const struct cairn_grammar *g);
enum cairn_grammar_state cairn_grammar_state(const struct cairn_grammar *g, uint64_t id);
void cairn_grammar_close(struct cairn_grammar *g, uint64_t id);

/* The masks that an engine draws with; valid as long as g. */
const struct cairn_mask_source *cairn_grammar_masks(struct cairn_grammar *g);

void cairn_grammar_stats(const struct cairn_grammar *g, struct cairn_grammar_stats *stats);
/* Returns the process id; -1: none. */
int cairn_grammar_pid(const struct cairn_grammar *g);

/* The hidden command that the process runs. */
int cairn_cmd_grammar(int argc, char **argv);

#endif
