/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llguidance - the library that compiles constraints and computes masks, loaded at run time
 *
 * Its wheel on PyPI holds a Python module that also exports a C interface. Apart from the symbols of Python
 * that the module refers to, it needs only libc. tools/setup.sh grammar fetches the wheel, by version and
 * hash, and makes a second library that defines those symbols; the C interface never uses them. Both are in
 * lib/ next to the program or next to its folder; CAIRN_LLGUIDANCE names another place.
 *
 * The structs below are those of one version of the library; no other version is accepted.
 */
#ifndef CAIRN_LLGUIDANCE_H
#define CAIRN_LLGUIDANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LLGUIDANCE_VERSION	"1.9.1"

struct llg_tokenizer;
struct llg_matcher;

struct llg_limits {			/* 0: the library's own */
	size_t max_items_in_row;
	uint64_t initial_lexer_fuel, step_lexer_fuel;
	size_t step_max_items, max_lexer_states, max_grammar_size;
	bool precompute_large_lexemes, verbose_errors;
};

struct llg_init {
	const struct llg_tokenizer *tokenizer;
	uint32_t log_buffer_level, log_stderr_level;
	bool ff_tokens_ok, backtrack_ok;
	struct llg_limits limits;
};

struct llg_tokenizer_init {
	size_t struct_size;
	uint32_t vocab_size, eos;
	const uint32_t *token_lens;
	const uint8_t *token_bytes;	/* concatenated; those of a special token begin with a byte 0xff */
	const char *tokenizer_json;
	bool assumes_string;
	size_t (*tokenize)(const void *ctx, const uint8_t *bytes, size_t num, uint32_t *tokens, size_t room);
	bool greedy;			/* no function tokenize: masks then allow all tokens that fit */
	const void *ctx;
	const char *const *slices;
	const uint32_t *eos_extra;
	uint32_t num_eos_extra;
};

/* Functions that return an int give 0, or a number, and -1 on failure: matcher_get_error() says why. */
struct llguidance {
	const char *(*get_version)(void);
	void (*constraint_init_set_defaults)(struct llg_init *init, const struct llg_tokenizer *tokenizer);
	struct llg_tokenizer *(*new_tokenizer_v2)(const struct llg_tokenizer_init *init, char *error,
						  size_t len);
	void (*free_tokenizer)(struct llg_tokenizer *tokenizer);
	size_t (*tokenize_bytes)(const struct llg_tokenizer *tokenizer, const uint8_t *bytes, size_t num,
				 uint32_t *tokens, size_t room);
	struct llg_matcher *(*new_matcher)(const struct llg_init *init, const char *kind, const char *text);
	struct llg_matcher *(*clone_matcher)(const struct llg_matcher *matcher);
	void (*free_matcher)(struct llg_matcher *matcher);
	const char *(*matcher_get_error)(struct llg_matcher *matcher);		/* NULL: none */
	size_t (*matcher_get_mask_byte_size)(const struct llg_matcher *matcher);
	int32_t (*matcher_compute_mask_into)(struct llg_matcher *matcher, uint32_t *mask, size_t bytes);
	int32_t (*matcher_consume_tokens)(struct llg_matcher *matcher, const uint32_t *tokens, size_t num);
	int32_t (*matcher_validate_tokens)(struct llg_matcher *matcher, const uint32_t *tokens, size_t num);
	int32_t (*matcher_rollback)(struct llg_matcher *matcher, size_t num);
	bool (*matcher_is_stopped)(const struct llg_matcher *matcher);
	bool (*matcher_is_accepting)(struct llg_matcher *matcher);
};

/* Writes the path of the library. -EOPNOTSUPP: there is none; the text says what to type. */
int llguidance_find(char *path, size_t len);
/* Loads the library into this process. -EOPNOTSUPP: there is none, or it is of another version. */
int llguidance_load(struct llguidance *lib);

#endif
