/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json - strict parser for the JSON files of a checkpoint
 *
 * Beyond RFC 8259, the parser requires valid UTF-8, no duplicate key, no trailing bytes, no NaN, integers
 * that fit in 64 bits, and nesting of at most 2048. Every failure sets an error text of one line that names
 * the file and the field. Bytes quoted from the file are escaped, so that they cannot forge a log line.
 *
 * Getters: `where` is the path of `object` inside the file with a trailing dot ("model.", or "" for the
 * root). An absent or null member leaves *value unchanged (the caller's default), or is an error if
 * `required` is set.
 *
 * Errors: -EINVAL (content), -EIO (a system call failed), -ENOMEM.
 */
#ifndef CAIRN_JSON_H
#define CAIRN_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Location of an object, the prefix of error texts about it. */
struct cairn_json_at {
	const char *file;	/* file name as the user gave it */
	const char *where;	/* path within the file, see above */
};

/* Reads a regular file of at most max_bytes and adds a NUL. The caller frees *data. */
int cairn_read_file(const char *path, size_t max_bytes, char **data, size_t *num_bytes);

/* The root must be an object; the caller calls json_decref(). allow_nul: accept \u0000. */
int cairn_json_parse(const char *text, size_t num_bytes, const char *file, bool allow_nul,
		     json_t **root);
int cairn_json_read(const char *path, size_t max_bytes, bool allow_nul, json_t **root);
/* Reads every integer as a real number, and so accepts those that do not fit in 64 bits. */
int cairn_json_read_reals(const char *path, size_t max_bytes, json_t **root);

int cairn_json_int(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		   int64_t lo, int64_t hi, int64_t *value);
/* Also accepts integers. Requires lo < value <= hi. */
int cairn_json_number(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		      double lo, double hi, double *value);
int cairn_json_bool(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		    bool *value);
/* *value is valid as long as the object; its length is stored in *len if len is not NULL. */
int cairn_json_string(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		      const char **value, size_t *len);
/* type: JSON_OBJECT or JSON_ARRAY. *value is borrowed. */
int cairn_json_child(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		     json_type type, json_t **value);

/* Returns "an object", "a string", ... for error texts. */
const char *cairn_json_type_name(const json_t *value);

/*
 * Writes bytes to buf in double quotes, safe to print: controls and malformed UTF-8 become \xHH,
 * quotes and backslashes get a backslash, long strings are truncated with "...". Returns buf.
 */
#define CAIRN_QUOTE_LEN 112
const char *cairn_quote(const char *bytes, size_t num_bytes, char buf[CAIRN_QUOTE_LEN]);
/* The same for a C string; the result is valid until the end of the enclosing block. */
#define CAIRN_QUOTED(s)	cairn_quote(s, strlen(s), (char[CAIRN_QUOTE_LEN]){ 0 })

#endif
