/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_steps - reads normalizer, pre_tokenizer and decoder of tokenizer.json as lists of steps */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/tokenizer/tokenizer_impl.h"
#include "serving/base/utf8.h"

#define MAX_DEPTH	8	/* of nested Sequences */
#define MAX_STEPS	256

/* GPT-2's regex in Oniguruma's syntax, which ByteLevel uses with use_regex. */
static const char gpt2_regex[] =
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* One of the three components: its member, the name of the list in its Sequence, the parser of a step. */
struct component {
	const char *name, *list;
	int (*parse)(const json_t *obj, struct cairn_json_at at, const char *type, struct step *s);
};

static int no_memory(struct cairn_json_at at)
{
	return cairn_error(ENOMEM, "%s: %s no memory", at.file, at.where);
}

static int set_text(struct step *s, struct cairn_json_at at, const char *text, size_t len)
{
	s->text = malloc(len + 1);
	if (!s->text)
		return no_memory(at);
	memcpy(s->text, text, len);
	s->text[len] = 0;
	s->len = len;
	return 0;
}

static int get_text(const json_t *obj, struct cairn_json_at at, const char *key, struct step *s)
{
	const char *text = NULL;
	size_t len = 0;

	CAIRN_TRY(cairn_json_string(obj, at, key, true, &text, &len));
	return set_text(s, at, text, len);
}

/* Reads a string of exactly one character. */
static int get_char(const json_t *obj, struct cairn_json_at at, const char *key, struct step *s)
{
	CAIRN_TRY(get_text(obj, at, key, s));
	if (s->len == 0 || s->len != cairn_utf8_len(s->text))
		return cairn_error(EINVAL, "%s: %s%s: must be one character", at.file, at.where,
				   key);
	return 0;
}

/* Reads a pattern: {"String": "..."} or {"Regex": "..."}. */
static int get_pattern(const json_t *obj, struct cairn_json_at at, struct step *s)
{
	const json_t *string, *regex;
	json_t *pattern = NULL;
	char where[256];
	int ret;

	CAIRN_TRY(cairn_json_child(obj, at, "pattern", true, JSON_OBJECT, &pattern));
	string = json_object_get(pattern, "String");
	regex = json_object_get(pattern, "Regex");
	if (json_object_size(pattern) != 1 || !(json_is_string(string) || json_is_string(regex)))
		return cairn_error(EINVAL,
				   "%s: %spattern: must be {\"String\": ...} or {\"Regex\": ...}",
				   at.file, at.where);
	/* `where` lacks the file's name, since errors of later searches use it too; it is added below */
	snprintf(where, sizeof(where), "%spattern", at.where);
	s->literal = string ? json_string_length(string) : 0;
	if (string)
		ret = cairn_pattern_literal(json_string_value(string), json_string_length(string),
					    where, &s->pattern);
	else
		ret = cairn_pattern_compile(json_string_value(regex), json_string_length(regex),
					    where, &s->pattern);
	return ret ? cairn_error_prefix(ret, "%s", at.file) : 0;
}

static int unsupported(struct cairn_json_at at, const char *type, const char *known)
{
	char quoted[CAIRN_QUOTE_LEN];

	return cairn_error(EOPNOTSUPP, "%s: %stype: %s is not supported (%s, Sequence are)",
			   at.file, at.where, cairn_quote(type, strlen(type), quoted), known);
}

static int parse_normalizer(const json_t *obj, struct cairn_json_at at, const char *type,
			    struct step *s)
{
	static const char *const forms[] = { "NFC", "NFD", "NFKC", "NFKD" };
	bool left = false, right = false;

	for (int i = 0; i < 4; i++) {
		if (!strcmp(type, forms[i])) {
			s->kind = STEP_NFC + (enum step_kind)i;
			return 0;
		}
	}
	if (!strcmp(type, "Prepend")) {
		s->kind = STEP_PREPEND;
		return get_text(obj, at, "prepend", s);
	}
	if (!strcmp(type, "Replace")) {
		s->kind = STEP_REPLACE;
		CAIRN_TRY(get_text(obj, at, "content", s));
		return get_pattern(obj, at, s);
	}
	if (!strcmp(type, "Strip")) {
		s->kind = STEP_STRIP;
		CAIRN_TRY(cairn_json_bool(obj, at, "strip_left", true, &left));
		CAIRN_TRY(cairn_json_bool(obj, at, "strip_right", true, &right));
		s->left = left;
		s->right = right;
		return 0;
	}
	return unsupported(at, type, "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip");
}

static int parse_split(const json_t *obj, struct cairn_json_at at, struct step *s)
{
	static const char *const names[] = {
		[REMOVED] = "Removed",
		[ISOLATED] = "Isolated",
		[MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
		[MERGED_WITH_NEXT] = "MergedWithNext",
		[CONTIGUOUS] = "Contiguous",
	};
	char quoted[CAIRN_QUOTE_LEN];
	const char *name = NULL;

	s->kind = STEP_SPLIT;
	CAIRN_TRY(cairn_json_string(obj, at, "behavior", true, &name, NULL));
	CAIRN_TRY(cairn_json_bool(obj, at, "invert", true, &s->invert));
	CAIRN_TRY(get_pattern(obj, at, s));
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (!strcmp(name, names[i])) {
			s->behavior = (enum behavior)i;
			return 0;
		}
	}
	return cairn_error(EINVAL, "%s: %sbehavior: %s is unknown", at.file, at.where,
			   cairn_quote(name, strlen(name), quoted));
}

static int parse_metaspace(const json_t *obj, struct cairn_json_at at, struct step *s)
{
	static const char *const names[] = {
		[PREPEND_ALWAYS] = "always", [PREPEND_FIRST] = "first", [PREPEND_NEVER] = "never",
	};
	const char *name = "always";
	char where[256], quoted[CAIRN_QUOTE_LEN];
	bool prefix = true;
	size_t i;
	int ret;

	s->kind = STEP_METASPACE;
	s->split = true;
	CAIRN_TRY(get_char(obj, at, "replacement", s));
	CAIRN_TRY(cairn_json_string(obj, at, "prepend_scheme", false, &name, NULL));
	CAIRN_TRY(cairn_json_bool(obj, at, "add_prefix_space", false, &prefix));
	CAIRN_TRY(cairn_json_bool(obj, at, "split", false, &s->split));
	for (i = 0; i < 3 && strcmp(name, names[i]); i++)
		;
	if (i == 3)
		return cairn_error(
			EINVAL,
			"%s: %sprepend_scheme: %s is unknown (always, first, never are known)",
			at.file, at.where, cairn_quote(name, strlen(name), quoted));
	s->scheme = (enum scheme)i;
	if (!prefix && s->scheme != PREPEND_NEVER)
		return cairn_error(EINVAL,
				   "%s: %sadd_prefix_space: false contradicts prepend_scheme %s",
				   at.file, at.where, name);
	snprintf(where, sizeof(where), "%sreplacement", at.where);
	ret = cairn_pattern_literal(s->text, s->len, where, &s->pattern);
	return ret ? cairn_error_prefix(ret, "%s", at.file) : 0;
}

static int parse_byte_level(const json_t *obj, struct cairn_json_at at, struct step *s)
{
	bool use_regex = true;
	int ret;

	s->kind = STEP_BYTE_LEVEL;
	CAIRN_TRY(cairn_json_bool(obj, at, "add_prefix_space", true, &s->prefix_space));
	CAIRN_TRY(cairn_json_bool(obj, at, "use_regex", false, &use_regex));
	if (!use_regex)
		return 0;
	ret = cairn_pattern_compile(gpt2_regex, sizeof(gpt2_regex) - 1,
				    "pre_tokenizer: GPT-2's regex", &s->pattern);
	return ret ? cairn_error_prefix(ret, "%s", at.file) : 0;
}

static int parse_pre_tokenizer(const json_t *obj, struct cairn_json_at at, const char *type,
			       struct step *s)
{
	if (!strcmp(type, "Split"))
		return parse_split(obj, at, s);
	if (!strcmp(type, "Metaspace"))
		return parse_metaspace(obj, at, s);
	if (!strcmp(type, "ByteLevel"))
		return parse_byte_level(obj, at, s);
	if (!strcmp(type, "Digits")) {
		s->kind = STEP_DIGITS;
		return cairn_json_bool(obj, at, "individual_digits", true, &s->individual);
	}
	return unsupported(at, type, "Split, ByteLevel, Metaspace, Digits");
}

static int parse_decoder(const json_t *obj, struct cairn_json_at at, const char *type,
			 struct step *s)
{
	int64_t left = 0, right = 0;

	if (!strcmp(type, "ByteLevel")) {
		s->kind = STEP_BYTE_LEVEL;
		return 0;
	}
	if (!strcmp(type, "ByteFallback")) {
		s->kind = STEP_BYTE_FALLBACK;
		return 0;
	}
	if (!strcmp(type, "Fuse")) {
		s->kind = STEP_FUSE;
		return 0;
	}
	if (!strcmp(type, "Metaspace"))
		return parse_metaspace(obj, at, s);
	if (!strcmp(type, "Replace")) {
		s->kind = STEP_REPLACE;
		CAIRN_TRY(get_text(obj, at, "content", s));
		return get_pattern(obj, at, s);
	}
	if (!strcmp(type, "Strip")) {
		s->kind = STEP_STRIP;
		CAIRN_TRY(cairn_json_int(obj, at, "start", true, 0, 1 << 20, &left));
		CAIRN_TRY(cairn_json_int(obj, at, "stop", true, 0, 1 << 20, &right));
		s->left = (size_t)left;
		s->right = (size_t)right;
		return get_char(obj, at, "content", s);
	}
	return unsupported(at, type, "ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip");
}

static int parse_component(const struct component *c, const json_t *obj, struct cairn_json_at at,
			   int depth, struct steps *steps)
{
	const char *type = NULL;
	json_t *list = NULL;
	struct step *grown;
	char where[128];

	CAIRN_TRY(cairn_json_string(obj, at, "type", true, &type, NULL));
	if (!strcmp(type, "Sequence")) {
		if (depth == MAX_DEPTH)
			return cairn_error(EOPNOTSUPP,
					   "%s: %stype: Sequences nested %d deep are not supported",
					   at.file, at.where, depth);
		CAIRN_TRY(cairn_json_child(obj, at, c->list, true, JSON_ARRAY, &list));
		for (size_t i = 0; i < json_array_size(list); i++) {
			struct cairn_json_at in = { at.file, where };

			/* where is truncated for deeply nested Sequences; only messages use it */
			snprintf(where, sizeof(where), "%.80s%s[%zu].", at.where, c->list, i);
			if (!json_is_object(json_array_get(list, i)))
				return cairn_error(EINVAL, "%s: %s must be an object, is %s",
						   at.file, where,
						   cairn_json_type_name(json_array_get(list, i)));
			CAIRN_TRY(
				parse_component(c, json_array_get(list, i), in, depth + 1, steps));
		}
		return 0;
	}
	if (steps->num == MAX_STEPS)
		return cairn_error(EOPNOTSUPP, "%s: %s: more than %d steps are not supported",
				   at.file, c->name, MAX_STEPS);
	grown = realloc(steps->v, (steps->num + 1) * sizeof(*grown));
	if (!grown)
		return no_memory(at);
	steps->v = grown;
	memset(&grown[steps->num], 0, sizeof(*grown));
	return c->parse(obj, at, type, &grown[steps->num++]);
}

static int load_component(const struct component *c, const json_t *root, const char *file,
			  struct steps *steps, bool *present)
{
	char where[32];
	json_t *obj = NULL;

	snprintf(where, sizeof(where), "%s.", c->name);
	CAIRN_TRY(cairn_json_child(root, (struct cairn_json_at){ file, "" }, c->name, false,
				   JSON_OBJECT, &obj));
	*present = obj != NULL;
	return obj ? parse_component(c, obj, (struct cairn_json_at){ file, where }, 0, steps) : 0;
}

/*
 * Rejects a Metaspace with prepend_scheme "first" in combinations that cannot be followed exactly. "first"
 * means the first character of the original text. The library finds it through alignments, which a normalizer
 * may move: Replace and Strip move the beginning, and any normalizer may turn the first character into
 * several, which an earlier pre-tokenizer may then cut apart. The other combinations cannot move it.
 */
static int check_first(const struct cairn_tokenizer *tok)
{
	const struct steps *pre = &tok->pre_tokenizer;
	bool moved = false;

	for (size_t i = 0; i < tok->normalizer.num; i++)
		moved |= tok->normalizer.v[i].kind == STEP_REPLACE ||
			 tok->normalizer.v[i].kind == STEP_STRIP;
	for (size_t i = 0; i < pre->num && tok->normalizer.num; i++)
		if (pre->v[i].kind == STEP_METASPACE && pre->v[i].scheme == PREPEND_FIRST &&
		    (moved || i > 0))
			return cairn_error(EOPNOTSUPP,
					   "%s: normalizer: is not supported with a Metaspace of "
					   "prepend_scheme \"first\" in pre_tokenizer",
					   tok->name);
	return 0;
}

int cairn_tokenizer_load_steps(const json_t *root, struct cairn_tokenizer *tok)
{
	static const struct component normalizer = { "normalizer", "normalizers",
						     parse_normalizer };
	static const struct component pre_tokenizer = { "pre_tokenizer", "pretokenizers",
							parse_pre_tokenizer };
	static const struct component decoder = { "decoder", "decoders", parse_decoder };
	bool present;

	CAIRN_TRY(load_component(&normalizer, root, tok->name, &tok->normalizer, &present));
	CAIRN_TRY(load_component(&pre_tokenizer, root, tok->name, &tok->pre_tokenizer, &present));
	CAIRN_TRY(load_component(&decoder, root, tok->name, &tok->decoder, &tok->has_decoder));
	return check_first(tok);
}
