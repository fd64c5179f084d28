/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json - the JSON files of a checkpoint, read strictly
 *
 * Strict means RFC 8259 and more: UTF-8 checked, no duplicate key, no trailing bytes, no NaN,
 * integers that fit in 64 bits, nesting of at most 2048. Every failure sets one line of text that
 * names the file and the field, with bytes that came from the file escaped so that they cannot
 * forge a log line.
 *
 * Getters: `where` is the path of `object` inside the file with a trailing dot ("model.", or "" for
 * the root). An absent key, or null, leaves *value as it is (the default) unless `required` is set.
 *
 * Errors: -EINVAL (content), -EIO (the system refused), -ENOMEM.
 */
#ifndef CAIRN_JSON_H
#define CAIRN_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Where an object lies: what messages about it begin with. */
struct cairn_json_at {
	const char *file;	/* as the user knows it */
	const char *where;
};

/* The whole of a regular file, a NUL after it. At most max_bytes. The caller frees *data. */
int cairn_read_file(const char *path, size_t max_bytes, char **data, size_t *num_bytes);

/* The root must be an object; the caller calls json_decref(). allow_nul: accept \u0000. */
int cairn_json_parse(const char *text, size_t num_bytes, const char *file, bool allow_nul,
		     json_t **root);
int cairn_json_read(const char *path, size_t max_bytes, bool allow_nul, json_t **root);

int cairn_json_int(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		   int64_t lo, int64_t hi, int64_t *value);
/* Integers are accepted where numbers are wanted. lo < value <= hi. */
int cairn_json_number(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		      double lo, double hi, double *value);
int cairn_json_bool(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		    bool *value);
/* *value lives as long as the object; its length is in *len when len is not NULL. */
int cairn_json_string(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		      const char **value, size_t *len);
/* type: JSON_OBJECT or JSON_ARRAY. *value is borrowed. */
int cairn_json_child(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		     json_type type, json_t **value);

/* "an object", "a string", ... for messages. */
const char *cairn_json_type_name(const json_t *value);

/*
 * Bytes from a file, in double quotes, made safe to print: controls and broken UTF-8 become \xHH,
 * quotes and backslashes get a backslash, long strings are cut with "...". Returns buf.
 */
#define CAIRN_QUOTE_LEN 112
const char *cairn_quote(const char *bytes, size_t num_bytes, char buf[CAIRN_QUOTE_LEN]);
/* The same for a C string, good until the end of the enclosing block. */
#define CAIRN_QUOTED(s)	cairn_quote(s, strlen(s), (char[CAIRN_QUOTE_LEN]){ 0 })

#endif
