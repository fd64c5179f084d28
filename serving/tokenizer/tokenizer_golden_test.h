/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer_golden - the tokenizers that the tests share
 *
 * serving/golden/tokenizer.json (written by tools/golden_tokenizer.py) lists variants of two
 * trained tokenizers: the members of tokenizer.json to replace in one of them.
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

/* 0, or negative with the text set. */
int cairn_golden_open(struct cairn_golden *g);
void cairn_golden_close(struct cairn_golden *g);

/* The tokenizer.json of variant i, malloc()ed; NULL when there are fewer. */
char *cairn_golden_file(const struct cairn_golden *g, size_t i);
/* The variant of that name, or NULL with the text set. */
struct cairn_tokenizer *cairn_golden_tokenizer(const struct cairn_golden *g, const char *name);

#endif
