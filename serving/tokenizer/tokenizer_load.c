/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_load - reads tokenizer.json: model, added tokens, template. tokenizer_steps.c reads the rest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/tokenizer/tokenizer_impl.h"

#define MAX_ADDED	65536
#define MAX_ADDED_LEN	1024	/* bytes: matching looks this far ahead at every position of a text */

static int load_vocab(const json_t *vocab, struct cairn_tokenizer *tok)
{
	struct cairn_bpe *bpe = &tok->bpe;
	size_t n = json_object_size(vocab), bytes = 0;
	char quoted[CAIRN_QUOTE_LEN];
	const char *token;
	json_t *value;
	char *at;

	if (n == 0 || n > CAIRN_BPE_MAX_TOKENS)
		return cairn_error(EINVAL, "%s: model.vocab: %zu tokens, must be 1 to %d",
				   tok->name, n, CAIRN_BPE_MAX_TOKENS);
	json_object_foreach((json_t *)vocab, token, value)
		bytes += strlen(token) + 1;
	tok->arena = at = malloc(bytes);
	bpe->tokens = calloc(n, sizeof(*bpe->tokens));
	if (!at || !bpe->tokens)
		return cairn_error(ENOMEM, "%s: no memory for %zu tokens", tok->name, n);
	bpe->num_tokens = (int32_t)n;
	json_object_foreach((json_t *)vocab, token, value) {
		size_t len = strlen(token);
		json_int_t id = json_integer_value(value);

		if (!json_is_integer(value) || id < 0)
			return cairn_error(EINVAL,
					   "%s: model.vocab: the id of %s must be an integer >= 0",
					   tok->name, cairn_quote(token, len, quoted));
		if (id >= (json_int_t)n)
			return cairn_error(EINVAL,
					   "%s: model.vocab: %s has id %lld of %zu tokens: the ids "
					   "leave a gap",
					   tok->name, cairn_quote(token, len, quoted),
					   (long long)id, n);
		if (bpe->tokens[id].bytes)
			return cairn_error(EINVAL,
					   "%s: model.vocab: %s has the id %lld of another token",
					   tok->name, cairn_quote(token, len, quoted),
					   (long long)id);
		memcpy(at, token, len + 1);
		bpe->tokens[id] = (struct cairn_bpe_token){ at, len };
		at += len + 1;
	}
	return 0;
}

/* Splits a merge into its two halves; it is "a b" or ["a", "b"]. */
static int merge_halves(const json_t *merge, const char **a, size_t *a_len, const char **b,
			size_t *b_len)
{
	const char *s = json_string_value(merge), *space;
	size_t n = json_string_length(merge);

	if (s) {
		space = memchr(s, ' ', n);
		if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - s)))
			return -EINVAL;
		*a = s;
		*a_len = (size_t)(space - s);
		*b = space + 1;
		*b_len = n - *a_len - 1;
		return 0;
	}
	if (json_array_size(merge) != 2 || !json_is_string(json_array_get(merge, 0)) ||
	    !json_is_string(json_array_get(merge, 1)))
		return -EINVAL;
	*a = json_string_value(json_array_get(merge, 0));
	*a_len = json_string_length(json_array_get(merge, 0));
	*b = json_string_value(json_array_get(merge, 1));
	*b_len = json_string_length(json_array_get(merge, 1));
	return 0;
}

static int find_half(const struct cairn_tokenizer *tok, size_t i, const char *s, size_t n,
		     int32_t *id)
{
	char quoted[CAIRN_QUOTE_LEN];

	*id = cairn_bpe_find(&tok->bpe, s, n);
	if (*id >= 0)
		return 0;
	return cairn_error(EINVAL, "%s: model.merges[%zu]: %s is not in the vocabulary",
			   tok->name, i, cairn_quote(s, n, quoted));
}

/* Reads the merges into a new array *out. Precondition: the tokens have been indexed. */
static int load_merges(const json_t *merges, struct cairn_tokenizer *tok,
		       struct cairn_bpe_merge **out)
{
	size_t n = json_array_size(merges), rank = 0;
	struct cairn_bpe_merge *list;
	struct buf both = { 0 };
	int ret = 0;

	if (n > CAIRN_BPE_MAX_TOKENS)
		return cairn_error(EINVAL, "%s: model.merges: %zu, at most %d are supported",
				   tok->name, n, CAIRN_BPE_MAX_TOKENS);
	list = malloc((n + 1) * sizeof(*list));
	if (!list)
		return cairn_error(ENOMEM, "%s: no memory for %zu merges", tok->name, n);
	for (size_t i = 0; i < n && !ret; i++) {
		const json_t *merge = json_array_get(merges, i);
		const char *a = NULL, *b = NULL;
		size_t a_len = 0, b_len = 0;

		/* the header line of merges.txt, which early converters copied as if it were a merge */
		if (json_is_string(merge) && !strncmp(json_string_value(merge), "#version", 8))
			continue;
		if (json_typeof(merge) != json_typeof(json_array_get(merges, 0)) ||
		    merge_halves(merge, &a, &a_len, &b, &b_len)) {
			ret = cairn_error(EINVAL,
					  "%s: model.merges[%zu]: must be two tokens, all as \"a "
					  "b\" or all as "
					  "[\"a\", \"b\"]",
					  tok->name, i);
			break;
		}
		both.len = 0;
		ret = cairn_buf_add(&both, a, a_len);
		if (!ret)
			ret = cairn_buf_add(&both, b, b_len);
		if (!ret)
			ret = find_half(tok, i, a, a_len, &list[rank].left);
		if (!ret)
			ret = find_half(tok, i, b, b_len, &list[rank].right);
		if (!ret)
			ret = find_half(tok, i, both.s, both.len, &list[rank].result);
		rank++;
	}
	cairn_buf_free(&both);
	if (ret) {
		free(list);
		return ret;
	}
	*out = list;
	tok->bpe.num_merges = (int32_t)rank;
	return 0;
}

/* Rejects members that would change merges unless they have their neutral values. */
static int check_neutral(const json_t *model, struct cairn_json_at at)
{
	static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
	const char *affix;
	double dropout = 0;

	for (size_t i = 0; i < 2; i++) {
		affix = "";
		CAIRN_TRY(cairn_json_string(model, at, affixes[i], false, &affix, NULL));
		if (*affix)
			return cairn_error(EOPNOTSUPP, "%s: %s%s: is not supported", at.file,
					   at.where, affixes[i]);
	}
	CAIRN_TRY(cairn_json_number(model, at, "dropout", false, -1e-300, 1, &dropout));
	if (dropout != 0)
		return cairn_error(EOPNOTSUPP, "%s: %sdropout: is for training, must be null or 0",
				   at.file, at.where);
	return 0;
}

static int load_model(json_t *root, struct cairn_tokenizer *tok)
{
	struct cairn_json_at at = { tok->name, "model." };
	struct cairn_bpe *bpe = &tok->bpe;
	struct cairn_bpe_merge *merges = NULL;
	json_t *model = NULL, *vocab = NULL, *list = NULL;
	const char *type = "BPE", *unk = NULL;
	char quoted[CAIRN_QUOTE_LEN];
	size_t unk_len = 0;
	int ret;

	CAIRN_TRY(cairn_json_child(root, (struct cairn_json_at){ tok->name, "" }, "model", true,
				   JSON_OBJECT, &model));
	/* files of 2019 have no type; those with merges are BPE */
	CAIRN_TRY(cairn_json_string(model, at, "type", false, &type, NULL));
	if (strcmp(type, "BPE"))
		return cairn_error(EOPNOTSUPP, "%s: model.type: %s is not supported (BPE is)",
				   tok->name, cairn_quote(type, strlen(type), quoted));
	CAIRN_TRY(check_neutral(model, at));
	CAIRN_TRY(cairn_json_bool(model, at, "ignore_merges", false, &bpe->ignore_merges));
	CAIRN_TRY(cairn_json_bool(model, at, "byte_fallback", false, &bpe->byte_fallback));
	CAIRN_TRY(cairn_json_bool(model, at, "fuse_unk", false, &bpe->fuse_unk));
	CAIRN_TRY(cairn_json_child(model, at, "vocab", true, JSON_OBJECT, &vocab));
	CAIRN_TRY(cairn_json_child(model, at, "merges", true, JSON_ARRAY, &list));
	CAIRN_TRY(load_vocab(vocab, tok));
	ret = cairn_bpe_index(bpe);
	if (ret)
		return cairn_error_prefix(ret, "%s: model.vocab", tok->name);
	CAIRN_TRY(load_merges(list, tok, &merges));
	ret = cairn_bpe_index_merges(bpe, merges);
	if (ret)
		return cairn_error_prefix(ret, "%s: model.merges", tok->name);
	CAIRN_TRY(cairn_json_string(model, at, "unk_token", false, &unk, &unk_len));
	bpe->has_unk = unk != NULL;
	bpe->unk = unk ? cairn_bpe_find(bpe, unk, unk_len) : -1;
	return 0;
}

static int copy_string(const char *s, size_t n, char **out)
{
	*out = malloc(n + 1);
	if (!*out)
		return cairn_error(ENOMEM, "no memory");
	memcpy(*out, s, n);
	(*out)[n] = 0;
	return 0;
}

/* Loads added_tokens[i]. *next_id: the id of the next token that is not in the model's vocabulary. */
static int load_added_token(const json_t *value, size_t i, struct cairn_tokenizer *tok,
			    int32_t *next_id)
{
	struct added_token *t = &tok->added[i];
	char where[48], quoted[CAIRN_QUOTE_LEN];
	struct cairn_json_at at = { tok->name, where };
	struct buf form = { 0 };
	const char *content = NULL;
	int64_t id = -1;

	snprintf(where, sizeof(where), "added_tokens[%zu].", i);
	if (!json_is_object(value))
		return cairn_error(EINVAL, "%s: added_tokens[%zu]: must be an object, is %s",
				   tok->name, i, cairn_json_type_name(value));
	CAIRN_TRY(cairn_json_int(value, at, "id", true, 0, INT32_MAX, &id));
	CAIRN_TRY(cairn_json_string(value, at, "content", true, &content, &t->content_len));
	CAIRN_TRY(cairn_json_bool(value, at, "special", true, &t->special));
	CAIRN_TRY(cairn_json_bool(value, at, "single_word", true, &t->single_word));
	CAIRN_TRY(cairn_json_bool(value, at, "lstrip", true, &t->lstrip));
	CAIRN_TRY(cairn_json_bool(value, at, "rstrip", true, &t->rstrip));
	CAIRN_TRY(cairn_json_bool(value, at, "normalized", true, &t->normalized));
	CAIRN_TRY(copy_string(content, t->content_len, &t->content));
		/* the library numbers added tokens itself; a file with other ids is inconsistent */
	t->id = cairn_bpe_find(&tok->bpe, content, t->content_len);
	if (t->id < 0)
		t->id = (*next_id)++;
	if (t->id != id)
		return cairn_error(EINVAL,
				   "%s: %sid: %s has id %lld, must be %d: ids leave no gap and "
				   "follow the vocabulary",
				   tok->name, where, cairn_quote(content, t->content_len, quoted),
				   (long long)id, t->id);
	if (t->normalized && tok->normalizer.num) {
		int ret = cairn_normalize(&tok->normalizer, content, t->content_len, &form);

		if (ret) {
			cairn_buf_free(&form);
			return cairn_error_prefix(ret, "%s: %scontent", tok->name, where);
		}
		t->match = form.s;
		t->match_len = form.len;
	} else {
		CAIRN_TRY(copy_string(content, t->content_len, &t->match));
		t->match_len = t->content_len;
	}
	if (t->match_len == 0 || t->match_len > MAX_ADDED_LEN)
		return cairn_error(EINVAL, "%s: %scontent: %zu bytes to match, must be 1 to %d",
				   tok->name, where, t->match_len, MAX_ADDED_LEN);
	return 0;
}

/* Rejects two tokens that match the same text; they are neighbours, as the matcher is sorted. */
static int check_distinct(const struct cairn_tokenizer *tok, const struct matcher *m)
{
	char quoted[CAIRN_QUOTE_LEN];

	for (size_t i = 1; i < m->num; i++) {
		const struct added_token *a = m->v[i - 1], *b = m->v[i];

		if (a->match_len == b->match_len && !memcmp(a->match, b->match, a->match_len))
			return cairn_error(EINVAL,
					   "%s: added_tokens: the ids %d and %d both match %s",
					   tok->name, a->id, b->id,
					   cairn_quote(a->match, a->match_len, quoted));
	}
	return 0;
}

/* Returns whether skip_special omits t. As in the library, it does if t decodes to a special token's text. */
static bool is_skipped(const struct cairn_tokenizer *tok, const struct added_token *t)
{
	if (t->match_len == t->content_len && !memcmp(t->match, t->content, t->match_len))
		return t->special;
	for (size_t i = 0; i < tok->num_added; i++) {
		const struct added_token *o = &tok->added[i];

		if (o->special && o->content_len == t->match_len &&
		    !memcmp(o->content, t->match, t->match_len))
			return true;
	}
	return false;
}

static int load_added(json_t *root, struct cairn_tokenizer *tok)
{
	int32_t next_id = tok->bpe.num_tokens;
	json_t *list = NULL;
	size_t n;

	CAIRN_TRY(cairn_json_child(root, (struct cairn_json_at){ tok->name, "" }, "added_tokens",
				   false, JSON_ARRAY, &list));
	n = json_array_size(list);
	if (n > MAX_ADDED)
		return cairn_error(EINVAL, "%s: added_tokens: %zu, at most %d are supported",
				   tok->name, n, MAX_ADDED);
	tok->added = calloc(n + 1, sizeof(*tok->added));
	if (!tok->added)
		return cairn_error(ENOMEM, "%s: no memory for %zu added tokens", tok->name, n);
	for (size_t i = 0; i < n; i++) {
		tok->num_added = i + 1;
		CAIRN_TRY(load_added_token(json_array_get(list, i), i, tok, &next_id));
	}
	CAIRN_TRY(cairn_matcher_build(&tok->raw, tok->added, n, false));
	CAIRN_TRY(cairn_matcher_build(&tok->normalized, tok->added, n, true));
	CAIRN_TRY(check_distinct(tok, &tok->raw));
	CAIRN_TRY(check_distinct(tok, &tok->normalized));

	tok->num_ids = next_id;
	tok->by_id = calloc((size_t)next_id, sizeof(*tok->by_id));
	tok->skip = calloc((size_t)next_id, sizeof(*tok->skip));
	if (!tok->by_id || !tok->skip)
		return cairn_error(ENOMEM, "%s: no memory for %d tokens", tok->name, next_id);
	for (size_t i = 0; i < n; i++) {
		const struct added_token *t = &tok->added[i];

		if (tok->by_id[t->id])
			return cairn_error(EINVAL, "%s: added_tokens[%zu].id: %d occurs twice",
					   tok->name, i, t->id);
		tok->by_id[t->id] = t;
		tok->skip[t->id] = is_skipped(tok, t);
	}
	return 0;
}

/* Appends the ids of special_tokens[name] of a template to ids. */
static int template_token(const json_t *specials, struct cairn_tokenizer *tok, const char *name,
			  struct cairn_ids *ids)
{
	const json_t *list = json_object_get(json_object_get(specials, name), "ids");
	char quoted[CAIRN_QUOTE_LEN];

	if (!json_is_array(list))
		return cairn_error(EINVAL, "%s: post_processor.special_tokens: %s has no ids",
				   tok->name, cairn_quote(name, strlen(name), quoted));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *id = json_array_get(list, i);

		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) >= tok->num_ids)
			return cairn_error(
				EINVAL,
				"%s: post_processor.special_tokens: the ids of %s must be 0 to %d",
				tok->name, cairn_quote(name, strlen(name), quoted),
				tok->num_ids - 1);
		CAIRN_TRY(cairn_ids_add(ids, (int32_t)json_integer_value(id)));
	}
	return 0;
}

/* Loads "single" of a TemplateProcessing: the tokens before and after the one sequence. */
static int load_template(const json_t *obj, struct cairn_tokenizer *tok)
{
	struct cairn_json_at at = { tok->name, "post_processor." };
	json_t *single = NULL, *specials = NULL;
	bool seen = false;

	CAIRN_TRY(cairn_json_child(obj, at, "single", true, JSON_ARRAY, &single));
	CAIRN_TRY(cairn_json_child(obj, at, "special_tokens", true, JSON_OBJECT, &specials));
	for (size_t i = 0; i < json_array_size(single); i++) {
		const json_t *piece = json_array_get(single, i);
		const char *special = json_string_value(
			json_object_get(json_object_get(piece, "SpecialToken"), "id"));
		const char *sequence = json_string_value(
			json_object_get(json_object_get(piece, "Sequence"), "id"));

		if (special && !sequence) {
			CAIRN_TRY(template_token(specials, tok, special,
						 seen ? &tok->suffix : &tok->prefix));
			continue;
		}
		if (!sequence || special)
			return cairn_error(EINVAL,
					   "%s: post_processor.single[%zu]: must be a SpecialToken "
					   "or a Sequence",
					   tok->name, i);
		if (strcmp(sequence, "A") || seen)
			return cairn_error(EOPNOTSUPP,
					   "%s: post_processor.single[%zu]: only Sequence A, once, "
					   "is supported",
					   tok->name, i);
		seen = true;
	}
	if (!seen)
		return cairn_error(
			EOPNOTSUPP,
			"%s: post_processor.single: a template without Sequence A is not supported",
			tok->name);
	return 0;
}

static int load_post_processor(json_t *obj, struct cairn_tokenizer *tok, int depth, bool *template)
{
	struct cairn_json_at at = { tok->name, "post_processor." };
	char quoted[CAIRN_QUOTE_LEN];
	const char *type = NULL;
	json_t *list = NULL;

	if (!json_is_object(obj))
		return cairn_error(EINVAL, "%s: post_processor: must be an object, is %s",
				   tok->name, cairn_json_type_name(obj));
	CAIRN_TRY(cairn_json_string(obj, at, "type", true, &type, NULL));
	if (!strcmp(type, "ByteLevel"))	/* only changes offsets, which are not used here */
		return 0;
	if (!strcmp(type, "Sequence") && depth < 4) {
		CAIRN_TRY(cairn_json_child(obj, at, "processors", true, JSON_ARRAY, &list));
		for (size_t i = 0; i < json_array_size(list); i++)
			CAIRN_TRY(load_post_processor(json_array_get(list, i), tok, depth + 1,
						      template));
		return 0;
	}
	if (strcmp(type, "TemplateProcessing"))
		return cairn_error(EOPNOTSUPP,
				   "%s: post_processor.type: %s is not supported "
				   "(TemplateProcessing, ByteLevel, "
				   "Sequence are)",
				   tok->name, cairn_quote(type, strlen(type), quoted));
	if (*template)
		return cairn_error(EOPNOTSUPP,
				   "%s: post_processor: two templates are not supported",
				   tok->name);
	*template = true;
	return load_template(obj, tok);
}

int cairn_tokenizer_load(const char *json, size_t num_bytes, struct cairn_tokenizer *tok)
{
	struct cairn_json_at at = { tok->name, "" };
	const char *version = "1.0";
	json_t *root = NULL, *post = NULL;
	char quoted[CAIRN_QUOTE_LEN];
	bool template = false;
	int ret;

	CAIRN_TRY(cairn_json_parse(json, num_bytes, tok->name, true, &root));
	ret = cairn_json_string(root, at, "version", false, &version, NULL);
	if (!ret && strcmp(version, "1.0"))
		ret = cairn_error(EOPNOTSUPP, "%s: version: %s is not supported (1.0 is)",
				  tok->name, cairn_quote(version, strlen(version), quoted));
	if (!ret)
		ret = load_model(root, tok);
	if (!ret)
		ret = cairn_tokenizer_load_steps(root, tok);
	if (!ret)
		ret = load_added(root, tok);
	if (!ret)
		ret = cairn_json_child(root, at, "post_processor", false, JSON_OBJECT, &post);
	if (!ret && post)
		ret = load_post_processor(post, tok, 0, &template);
	json_decref(root);
	return ret;
}
