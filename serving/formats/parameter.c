// SPDX-License-Identifier: Apache-2.0
/* parameter - parameters whose values are bare text: finds where they end, and writes them as JSON */
#include <string.h>
#include <strings.h>

#include "primitives/base/error.h"
#include "serving/formats/output_parser_impl.h"

enum types {
	STRING = 1,
	NUMBER = 2,
	INTEGER = 4,
	BOOLEAN = 8,
	OBJECT = 16,
	ARRAY = 32,
	NIL = 64,
	ANY = 127
};

static const char *const unions[] = { "anyOf", "oneOf" };

#define MAX_DEPTH   4	 /* levels of references and of unions that are followed */
#define MAX_REF	    256	 /* bytes of a reference */
#define MAX_STEPS   4096 /* values of lists that are looked at; */
#define UNION_STEPS 16	 /* a schema in a union counts as many */

static const struct {
	const char *name;
	unsigned type;
} type_names[] = { { "string", STRING },   { "number", NUMBER | INTEGER }, { "integer", INTEGER },
		   { "boolean", BOOLEAN }, { "object", OBJECT },	   { "array", ARRAY },
		   { "null", NIL } };

static unsigned type_named(const json_t *name)
{
	for (size_t i = 0; json_is_string(name) && i < sizeof(type_names) / sizeof(*type_names); i++) {
		if (!strcmp(json_string_value(name), type_names[i].name))
			return type_names[i].type;
	}
	return ANY;
}

static unsigned type_of(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_STRING:
		return STRING;
	case JSON_INTEGER:
		return INTEGER | NUMBER;
	case JSON_REAL:
		return NUMBER;
	case JSON_TRUE:
	case JSON_FALSE:
		return BOOLEAN;
	case JSON_OBJECT:
		return OBJECT;
	case JSON_ARRAY:
		return ARRAY;
	default:
		return NIL;
	}
}

/* Returns the definition that a schema refers to, or NULL. */
static const json_t *definition(const json_t *parameters, const json_t *schema)
{
	static const struct {
		const char *begin, *member;
	} places[] = { { "#/$defs/", "$defs" }, { "#/definitions/", "definitions" } };
	const json_t *named = json_object_get(schema, "$ref");
	const char *ref = json_string_length(named) <= MAX_REF ? json_string_value(named) : NULL;

	for (size_t i = 0; ref && i < sizeof(places) / sizeof(*places); i++) {
		size_t n = strlen(places[i].begin);

		if (!strncmp(ref, places[i].begin, n))
			return json_object_get(json_object_get(parameters, places[i].member), ref + n);
	}
	return NULL;
}

const json_t *parameter_schema(const json_t *parameters, const json_t *schema)
{
	const json_t *next;

	for (int i = 0; i < MAX_DEPTH && (next = definition(parameters, schema)); i++)
		schema = next;
	return schema;
}

/* Returns a value of enum, or that of const; NULL after the last. */
static const json_t *choice(const json_t *schema, size_t i)
{
	const json_t *list = json_object_get(schema, "enum");

	if (json_is_array(list))
		return json_array_get(list, i);
	return i ? NULL : json_object_get(schema, "const");
}

/*
 * Returns the types that a schema allows, as far as its keywords and a few levels of unions say it. left:
 * steps that remain. References may be circular, and let a short request mean a huge union of unions.
 */
static unsigned allowed(const json_t *parameters, const json_t *schema, int depth, int *left)
{
	const json_t *list, *one;
	unsigned types = 0, all = ANY;

	*left -= UNION_STEPS;
	if (*left < 0 || !depth)
		return ANY;
	schema = parameter_schema(parameters, schema);
	if (!json_is_object(schema))
		return ANY;
	list = json_object_get(schema, "type");
	if (json_is_string(list))
		return type_named(list);
	for (size_t k = 0; types != ANY && (one = json_array_get(list, k)); k++)
		types |= --*left < 0 ? ANY : type_named(one);
	for (size_t k = 0; types != ANY && (one = choice(schema, k)); k++)
		types |= --*left < 0 ? ANY : type_of(one);
	for (int i = 0; i < 2 && !types; i++) {
		list = json_object_get(schema, unions[i]);
		for (size_t k = 0; types != ANY && (one = json_array_get(list, k)); k++)
			types |= allowed(parameters, one, depth - 1, left);
	}
	list = json_object_get(schema, "allOf");
	for (size_t k = 0; !types && *left >= 0 && (one = json_array_get(list, k)); k++)
		all &= allowed(parameters, one, depth - 1, left);
	types = types ? types : all;
	return types ? types : ANY;
}

bool parameter_is_text(const json_t *parameters, const json_t *schema)
{
	int left = MAX_STEPS;

	return allowed(parameters, schema, MAX_DEPTH, &left) & STRING;
}

/*
 * Appends the values that a schema allows to `to`, if its keywords list them: enum, const, null, boolean, and
 * unions of these. Returns 1 if they do, 0 if not, or -ENOMEM.
 */
static int add_choices(const json_t *parameters, const json_t *schema, int depth, int *left, json_t *to)
{
	const json_t *one, *type;
	int listed = 0;

	*left -= UNION_STEPS;
	if (*left < 0 || !depth)
		return 0;
	schema = parameter_schema(parameters, schema);
	type = json_object_get(schema, "type");
	for (; (one = choice(schema, (size_t)listed)); listed++) {
		/* only in unions, which may refer to a list many times */
		if (depth < MAX_DEPTH && --*left < 0)
			return 0;
		if (json_array_append(to, (json_t *)one))
			return -ENOMEM;
	}
	if (listed)
		return 1;
	if (json_is_string(type) && type_named(type) == NIL)
		return json_array_append_new(to, json_null()) ? -ENOMEM : 1;
	if (json_is_string(type) && type_named(type) == BOOLEAN)
		return json_array_append_new(to, json_true()) || json_array_append_new(to, json_false()) ?
			       -ENOMEM : 1;
	for (int i = 0; i < 2 && !type && !listed; i++) {
		const json_t *list = json_object_get(schema, unions[i]);

		listed = json_array_size(list) > 0;
		for (size_t k = 0; listed == 1 && (one = json_array_get(list, k)); k++)
			listed = add_choices(parameters, one, depth - 1, left, to);
		if (json_array_size(list))
			break;
	}
	return listed;
}

int parameter_choices(const json_t *parameters, const json_t *schema, json_t **choices)
{
	int left = MAX_STEPS, ret = -ENOMEM;

	*choices = json_array();
	if (*choices)
		ret = add_choices(parameters, schema, MAX_DEPTH, &left, *choices);
	if (ret == 1)
		return 0;
	json_decref(*choices);
	*choices = NULL;
	return ret;
}

static bool is_text_choice(const json_t *choices, const char *value, size_t len)
{
	const json_t *one;
	size_t i;

	json_array_foreach (choices, i, one) {
		if (json_is_string(one) && json_string_length(one) == len &&
		    !memcmp(json_string_value(one), value, len))
			return true;
	}
	return false;
}

/*
 * Adds to `to` what a parser needs of a parameter: its types and, if strings are not the only ones, the
 * strings among its choices. *left: how many parameters and strings may be added; without room for all
 * strings there are none, and any text is one.
 */
static int add_parameter(const json_t *parameters, const json_t *schema, const char *key, json_t *to,
			 int *left)
{
	int steps = MAX_STEPS;
	unsigned types = allowed(parameters, schema, MAX_DEPTH, &steps);
	json_t *choices = NULL, *texts = NULL, *list, *one;
	int ret = 0;
	size_t i;

	if (types & STRING && types != STRING)
		ret = parameter_choices(parameters, schema, &choices);
	if (choices)
		texts = json_array();
	json_array_foreach (choices, i, one) {
		if (json_is_string(one) && json_array_append(texts, one))
			ret = -ENOMEM;
	}
	json_decref(choices);
	if (texts && (ret || json_array_size(texts) >= (size_t)*left)) {
		json_decref(texts);
		texts = NULL;
	}
	if (ret)
		return ret;
	if (texts && !json_array_size(texts))
		types &= ~(unsigned)STRING;
	if (types == ANY && !texts)
		return 0;
	*left -= 1 + (int)json_array_size(texts);
	types |= types & NUMBER ? INTEGER : 0;	/* a number may be an integer anyway */
	list = json_array();
	if (json_object_set_new(to, key, json_pack("{s:o,s:o*}", "type", list, "enum", texts)))
		return -ENOMEM;
	for (i = 0; i < sizeof(type_names) / sizeof(*type_names); i++) {
		if ((type_names[i].type & types) == type_names[i].type &&
		    json_array_append_new(list, json_string(type_names[i].name)))
			return -ENOMEM;
	}
	return 0;
}

json_t *cairn_tool_outline(const struct cairn_tool_format *format, const json_t *tools)
{
	json_t *outline = json_array(), *tool, *schema;
	int left = format->parameter ? CAIRN_MAX_TYPED : 0;
	const char *key;
	size_t i;

	json_array_foreach ((json_t *)tools, i, tool) {
		const json_t *function = json_object_get(tool, "function");
		const json_t *parameters = json_object_get(function, "parameters");
		json_t *types = json_object();
		json_t *one = json_pack("{s:{s:O?,s:{s:o}}}", "function", "name",
					json_object_get(function, "name"), "parameters", "properties", types);
		int ret = json_array_append_new(outline, one);

		json_object_foreach (json_object_get(parameters, "properties"), key, schema) {
			/* a parser does not find a longer name */
			if (!ret && left > 0 && strlen(key) <= CAIRN_PARSER_MAX_HEAD)
				ret = add_parameter(parameters, schema, key, types, &left);
		}
		if (ret) {
			json_decref(outline);
			return NULL;
		}
	}
	return outline;
}

/* Some models write Python's words. */
static const char *word(const char *value, size_t len, unsigned types)
{
	static const struct {
		const char *spelled, *json;
		unsigned type;
	} words[] = { { "true", "true", BOOLEAN },
		      { "false", "false", BOOLEAN },
		      { "none", "null", NIL },
		      { "null", "null", NIL } };

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		if ((types & words[i].type) && len == strlen(words[i].spelled) &&
		    !strncasecmp(value, words[i].spelled, len))
			return words[i].json;
	}
	return NULL;
}

/* Returns whether a text is an integer as JSON writes it, of any size: jansson parses 64 bits. */
static bool is_integer(const char *s, size_t n)
{
	size_t i = n && s[0] == '-', first = i;

	while (i < n && s[i] >= '0' && s[i] <= '9')
		i++;
	return i == n && i > first && (s[first] != '0' || n == first + 1);
}

void cairn_parameter_json(struct cairn_api_out *out, const json_t *function, const char *key, size_t key_len,
			  const char *value, size_t len)
{
	const json_t *parameters = json_object_get(function, "parameters");
	const json_t *properties = json_object_get(parameters, "properties"), *schema;
	const char *spelled = NULL;
	json_t *v, *choices = NULL;
	int left = MAX_STEPS;
	unsigned types;

	schema = json_is_object(properties) ? json_object_getn(properties, key, key_len) : NULL;
	types = allowed(parameters, schema, MAX_DEPTH, &left);
	/* among choices of several types, a text that is none of the strings is one of the others */
	if (types & STRING && types != STRING && parameter_choices(parameters, schema, &choices))
		out->failed = true;
	if (choices)
		types = is_text_choice(choices, value, len) ? STRING : types & ~(unsigned)STRING;
	json_decref(choices);
	/* if the schema allows strings beside other types, any text but a spelling of null is one */
	if (types != STRING)
		spelled = word(value, len, types == ANY || !(types & STRING) ? types : types & NIL);
	if (spelled) {
		cairn_api_put(out, spelled, strlen(spelled));
		return;
	}
	/* not for strings beside other types: then any text is one */
	if (types & STRING && types != ANY)
		types = STRING;
	v = types == STRING ? NULL : json_loadb(value, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
	if ((v && (type_of(v) & types)) || (types != STRING && types & INTEGER && is_integer(value, len)))
		cairn_api_put(out, value, len);
	else
		cairn_api_put_string(out, value, len);
	json_decref(v);
}

/* Appends one parameter to the arguments. */
static void put_parameter(struct cairn_output_parser *p, const struct found *f, const char *value,
			  size_t len, struct cairn_output *out)
{
	struct cairn_api_out *to = &out->text;
	size_t before = to->len;

	cairn_api_put(to, p->num_parameters ? ", " : "{", p->num_parameters ? 2 : 1);
	cairn_api_put_string(to, f->key, f->key_len);
	cairn_api_put(to, ": ", 2);
	cairn_parameter_json(to, p->function, f->key, f->key_len, value, len);
	if (!to->failed)
		output_grow(out, CAIRN_PIECE_ARGUMENTS, to->len - before);
	p->num_parameters++;
}

bool parser_parameters(struct cairn_output_parser *p, struct cairn_output *out)
{
	const char *s, *close, *end;
	size_t n, head, from, begin, len;
	struct found f = { .number = -1 };
	enum match m;

	p->skip_space = !p->scanned;
	if (p->skip_space)
		parser_drop_space(p);
	p->skip_space = false;
	s = held(p);
	n = num_held(p);
	head = n < CAIRN_PARSER_MAX_HEAD ? n : CAIRN_PARSER_MAX_HEAD;
	m = parser_match(p->rules.tool_format->parameter, s, head, &f);
	if (m == MATCH_MORE && head < CAIRN_PARSER_MAX_HEAD)
		return false;
	if (m != MATCH_YES) {
		cairn_output_add(out, CAIRN_PIECE_ARGUMENTS, p->num_parameters ? "}" : "{}",
				 p->num_parameters ? 1 : 2);
		p->state = PARSER_TAIL;
		return true;
	}
	begin = f.at;
	close = strstr(f.pattern, "%v") + 2;
	close += is_space(*close);
	len = parser_literal(close);
	from = p->scanned > begin ? p->scanned : begin;
	end = memmem(s + from, n - from, close, len);
	if (!end) {
		p->scanned = n >= from + len ? n - len + 1 : from;
		return false;
	}
	n = (size_t)(end - s);
	if (is_space(*f.pattern)) { /* the newlines around the value are part of the format */
		begin += begin < n && s[begin] == '\n';
		n -= n > begin && s[n - 1] == '\n';
	}
	put_parameter(p, &f, s + begin, n - begin, out);
	consume(p, (size_t)(end - s) + len);
	return true;
}
