/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_process - the grammar process: structures shared by its source files
 *
 *   grammar_main.c		start; the loop: messages, time limits; one thread
 *   grammar_vocabulary.c	the tokens as the library wants them
 *   grammar_compile.c		compiles constraints and keeps them for later requests; threads of its own
 *   grammar_source.c		the text of a constraint in the library's words
 *   grammar_match.c		matchers: tokens in, masks out; all threads of a step
 *
 * A compiled constraint (struct compiled) is never used for draws itself; each answer uses its own copy, made
 * at its first draw. Copies share nothing, so the answers of a step are computed in parallel.
 */
#ifndef CAIRN_GRAMMAR_PROCESS_H
#define CAIRN_GRAMMAR_PROCESS_H

#include <pthread.h>
#include <stdatomic.h>

#include "serving/grammar/grammar_wire.h"
#include "serving/grammar/llguidance.h"
#include "serving/tokenizer/tokenizer.h"

#define GRAMMAR_COMPILERS	2		/* threads */
#define GRAMMAR_STACK		(256u << 20)	/* of threads that call the library, which recurses */

struct vocabulary {
	uint32_t *lens;			/* [size] */
	uint8_t *bytes;			/* concatenated */
	size_t *at;			/* [size]: where a token's bytes begin */
	uint32_t *all;			/* [words]: every token of the tokenizer */
	int32_t size, words;
	struct llg_tokenizer *tokenizer;
};

/* A constraint that has been compiled, or is being so. refs: those of opened constraints and of the cache. */
struct compiled {
	struct compiled *prev, *next;	/* in the cache, the last used first */
	enum cairn_constraint_kind kind;
	char *text;
	size_t num_bytes;
	uint64_t hash;
	int refs;
	struct llg_matcher *matcher;
};

/* One answer to a request. */
struct seq {
	struct llg_matcher *matcher;	/* NULL: it has not drawn yet, or it sleeps */
	int64_t draw;			/* number of its next draw */
	int32_t matched;		/* bytes of `after` at the end of the answer */
	int asleep, failed;
	atomic_int busy;		/* it is in this step already */
};

struct opened {
	struct opened *next;		/* in its bucket */
	uint64_t id;
	struct compiled *compiled;	/* NULL: not yet */
	char *after;			/* [num_after] */
	int16_t *border;		/* [num_after]: Knuth, Morris and Pratt's table of it */
	int32_t num_after, num_seqs;
	struct seq seqs[];
};

struct job {
	struct job *next;
	uint64_t id;
	enum cairn_constraint_kind kind;
	char *text;
	size_t num_bytes;
	/* the outcome: */
	struct compiled *compiled;	/* NULL: refused */
	char why[GRAMMAR_MAX_ERROR + 1];
	int was_cached;
	int64_t ns;
};

struct compiler {
	struct grammar *g;
	pthread_t thread;
	struct job *job;		/* under the lock; NULL: idle */
	int64_t begun;
	int given_up;			/* its job has been answered already */
};

#define GRAMMAR_BUCKETS	1024		/* a power of two */

struct grammar {
	struct llguidance lib;
	struct vocabulary vocab;
	struct cairn_grammar_options opt;
	struct grammar_memory memory;
	struct grammar_in in;
	struct cairn_out_queue out;
	struct opened *buckets[GRAMMAR_BUCKETS];
	int threads;			/* of a step */

	pthread_mutex_t lock;		/* of everything below */
	pthread_cond_t more;
	struct job *waiting, **waiting_tail, *done;
	struct compiler compilers[GRAMMAR_COMPILERS];
	struct compiled *cache, *cache_tail;
	size_t base_bytes;		/* in use before anything was compiled */
	int wake_fd;
};

/* grammar_vocabulary.c. Errors: those of the tokenizer; -EINVAL, -ENOMEM. */
int vocabulary_open(struct vocabulary *v, const struct llguidance *lib,
		    const struct cairn_grammar_options *opt);

/*
 * grammar_source.c: the library's word for a kind, and the text for it, which the caller frees. -EINVAL: the
 * text is malformed, and the error begins with the kind's name.
 */
int grammar_source(enum cairn_constraint_kind kind, const char *text, size_t num_bytes, const char **word,
		   char **source);
const char *grammar_kind_name(enum cairn_constraint_kind kind);

/* grammar_compile.c */
int grammar_compile_start(struct grammar *g);
/* The job belongs to the compilers then; its outcome comes by grammar_compile_done(). */
void grammar_compile(struct grammar *g, struct job *job);
struct job *grammar_compile_done(struct grammar *g);	/* NULL: none */
/* Refuses a constraint that takes too long. -ETIMEDOUT: all compilers are stuck. *ms: until the next call. */
int grammar_compile_limit(struct grammar *g, struct job **late, int *ms);
void grammar_job_free(struct job *job);
void compiled_put(struct grammar *g, struct compiled *c);	/* gives up a reference; NULL is legal */

/* grammar_match.c */
void grammar_step(struct grammar *g, int32_t num);
struct opened *opened_new(uint64_t id, int32_t num_seqs, const char *after, int32_t num_after);
void opened_free(struct grammar *g, struct opened *o);
struct opened *opened_find(const struct grammar *g, uint64_t id);

#endif
