// SPDX-License-Identifier: Apache-2.0
/* grammar_vocabulary - the bytes of all tokens; a special token has a byte 0xff before its spelling */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/grammar/grammar_process.h"

#define MARK	0xff

static int append(struct vocabulary *v, size_t *room, size_t *used, const void *bytes, size_t num)
{
	if (*used + num > *room) {
		size_t more = 2 * (*used + num) + 4096;
		uint8_t *p = realloc(v->bytes, more);

		if (!p)
			return cairn_error(ENOMEM, "grammar: no memory for the vocabulary");
		v->bytes = p;
		*room = more;
	}
	if (num)
		memcpy(v->bytes + *used, bytes, num);
	*used += num;
	return 0;
}

static int is_eos(const struct cairn_grammar_options *opt, int32_t id)
{
	for (int32_t i = 0; i < opt->num_eos; i++)
		if (opt->eos[i] == id)
			return 1;
	return 0;
}

static int spell(struct vocabulary *v, const struct cairn_tokenizer *tok, struct cairn_token_stream *stream,
		 const struct cairn_grammar_options *opt)
{
	size_t room = 0, used = 0, num;
	const char *bytes;

	for (int32_t id = 0; id < v->size; id++) {
		v->at[id] = used;
		if (id >= cairn_tokenizer_size(tok))	/* padding */
			continue;
		if (cairn_tokenizer_is_special(tok, id) || is_eos(opt, id)) {
			bytes = cairn_tokenizer_token(tok, id, &num);
			CAIRN_TRY(append(v, &room, &used, &(uint8_t){ MARK }, 1));
		} else {
			CAIRN_TRY(cairn_token_stream_bytes(stream, id, &bytes, &num));
		}
		CAIRN_TRY(append(v, &room, &used, bytes, num));
		v->lens[id] = (uint32_t)(used - v->at[id]);
		if (num)
			v->all[id / 32] |= 1u << id % 32;
	}
	return 0;
}

/*
 * Parts of the vocabulary: where a constraint allows all texts of a part, the library allows its tokens at
 * once, without a walk over each. White space and strings of JSON are the library's own parts; letters are
 * for regexes, most of whose tokens are letters.
 */
static const char *const slices[] = {
	"[\\x20\\x0A\\x0D\\x09]+",
	"[a-z]{1,10}",
	"[A-Za-z ]{1,10}",
	"[^\"\\\\\\x00-\\x1F\\x7F]{1,10}",
	"[^\"\\\\\\x00-\\x1F\\x7F]{1,30}",
	"[^\"\\\\\\x00-\\x1F\\x7F]+",
	NULL,
};

int vocabulary_open(struct vocabulary *v, const struct llguidance *lib,
		    const struct cairn_grammar_options *opt)
{
	struct llg_tokenizer_init init = { .struct_size = sizeof(init), .greedy = true, .slices = slices };
	struct cairn_token_stream *stream = NULL;
	struct cairn_tokenizer *tok;
	char why[256] = "";
	int ret;

	CAIRN_TRY(cairn_tokenizer_open(opt->model_dir, &tok));
	v->size = opt->vocab_size;
	v->words = (v->size + 31) / 32;
	v->lens = calloc((size_t)v->size, sizeof(*v->lens));
	v->at = calloc((size_t)v->size, sizeof(*v->at));
	v->all = calloc((size_t)v->words, sizeof(*v->all));
	ret = v->lens && v->at && v->all ? cairn_token_stream_new(tok, false, &stream) :
	      cairn_error(ENOMEM, "grammar: no memory for the vocabulary");
	if (!ret)
		ret = spell(v, tok, stream, opt);
	cairn_token_stream_free(stream);
	cairn_tokenizer_free(tok);
	if (ret)
		return ret;
	init.vocab_size = (uint32_t)v->size;
	init.eos = (uint32_t)opt->eos[0];
	init.eos_extra = (const uint32_t *)opt->eos + 1;
	init.num_eos_extra = (uint32_t)opt->num_eos - 1;
	init.token_lens = v->lens;
	init.token_bytes = v->bytes;
	v->tokenizer = lib->new_tokenizer_v2(&init, why, sizeof(why));
	return v->tokenizer ? 0 : cairn_error(EINVAL, "llguidance: %s: %s", opt->model_dir, why);
}
