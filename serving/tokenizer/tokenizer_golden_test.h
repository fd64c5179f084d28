/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer_golden - tokenizers shared by the tests
 *
 * serving/golden/tokenizer.json (written by tools/golden/golden_tokenizer.py) lists variants of two trained
 * tokenizers. A variant consists of the members to replace in the tokenizer.json of one of the two.
 */
#ifndef CAIRN_TOKENIZER_GOLDEN_TEST_H
#define CAIRN_TOKENIZER_GOLDEN_TEST_H

#include <jansson.h>
#include <stddef.h>

struct cairn_tokenizer;

struct cairn_golden {
	json_t *root;		/* "texts", "variants" */
	json_t *bytelevel, *spm;
};

/* Returns 0, or a negative errno with cairn_last_error() set. */
int cairn_golden_open(struct cairn_golden *g);
void cairn_golden_close(struct cairn_golden *g);

/* Returns the tokenizer.json of variant i, malloc()ed; NULL if there are fewer variants. */
char *cairn_golden_file(const struct cairn_golden *g, size_t i);
/* Returns the variant of that name, or NULL with cairn_last_error() set. */
struct cairn_tokenizer *cairn_golden_tokenizer(const struct cairn_golden *g, const char *name);

#endif
