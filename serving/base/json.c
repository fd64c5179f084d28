/* SPDX-License-Identifier: Apache-2.0 */
/* json - reads and parses JSON files and checks their members */
#include "serving/base/json.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/utf8.h"

const char *cairn_quote(const char *bytes, size_t num_bytes, char buf[CAIRN_QUOTE_LEN])
{
	size_t at = 0, i = 0;

	buf[at++] = '"';
	while (i < num_bytes) {
		int truncated, n;
		uint32_t cp = 0;

		/* room for one \xHH or code point, the dots, the quote and the NUL */
		if (at > CAIRN_QUOTE_LEN - 10) {
			memcpy(buf + at, "...", 3);
			at += 3;
			break;
		}
		n = cairn_utf8_next(bytes + i, num_bytes - i, &cp, &truncated);
		if (n == 1 && (cp == '"' || cp == '\\'))
			buf[at++] = '\\';
		/* escape controls, line separators and the marks that reorder bidirectional text */
		if (n < 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0) ||
		    (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069)) {
			at += (size_t)sprintf(buf + at, "\\x%02x", (unsigned char)bytes[i]);
			i++;
			continue;
		}
		memcpy(buf + at, bytes + i, (size_t)n);
		at += (size_t)n;
		i += (size_t)n;
	}
	buf[at++] = '"';
	buf[at] = 0;
	return buf;
}

const char *cairn_json_type_name(const json_t *value)
{
	if (!value)
		return "missing";
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number with a fraction";
	case JSON_TRUE:
		return "true";
	case JSON_FALSE:
		return "false";
	default:
		return "null";
	}
}

int cairn_read_file(const char *path, size_t max_bytes, char **data, size_t *num_bytes)
{
	struct stat st;
	char *buf = NULL;
	size_t got = 0, size;
	int fd, ret;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);	/* do not wait for the writer of a FIFO */
	if (fd < 0)
		return cairn_error(EIO, "%s: %s", path, strerror(errno));
	if (fstat(fd, &st)) {
		ret = cairn_error(EIO, "%s: %s", path, strerror(errno));
		goto out_close;
	}
	if (!S_ISREG(st.st_mode)) {
		ret = cairn_error(EINVAL, "%s: not a regular file", path);
		goto out_close;
	}
	if ((uintmax_t)st.st_size > max_bytes) {
		ret = cairn_error(EINVAL, "%s: %jd bytes, at most %zu are accepted", path,
				  (intmax_t)st.st_size, max_bytes);
		goto out_close;
	}
	size = (size_t)st.st_size;
	buf = malloc(size + 1);
	if (!buf) {
		ret = cairn_error(ENOMEM, "%s: no memory for %zu bytes", path, size);
		goto out_close;
	}
	while (got < size) {
		ssize_t n = read(fd, buf + got, size - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			ret = cairn_error(EIO, "%s: %s", path, strerror(errno));
			goto out_free;
		}
		if (n == 0)
			break;
		got += (size_t)n;
	}
	buf[got] = 0;
	*data = buf;
	*num_bytes = got;
	buf = NULL;
	ret = 0;
out_free:
	free(buf);
out_close:
	close(fd);
	return ret;
}

static int parse(const char *text, size_t num_bytes, const char *file, size_t flags, json_t **root)
{
	char quoted[CAIRN_QUOTE_LEN];
	json_error_t error;
	json_t *value;

	value = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES | flags, &error);
	if (!value) {
		if (json_error_code(&error) == json_error_out_of_memory)
			return cairn_error(ENOMEM, "%s: no memory for its JSON", file);
		/* jansson's message contains bytes of the input */
		return cairn_error(EINVAL, "%s: line %d, column %d: bad JSON: %s", file, error.line,
				   error.column,
				   cairn_quote(error.text, strlen(error.text), quoted));
	}
	if (!json_is_object(value)) {
		int ret = cairn_error(EINVAL, "%s: must be an object, is %s", file,
				      cairn_json_type_name(value));

		json_decref(value);
		return ret;
	}
	*root = value;
	return 0;
}

int cairn_json_parse(const char *text, size_t num_bytes, const char *file, bool allow_nul,
		     json_t **root)
{
	return parse(text, num_bytes, file, allow_nul ? JSON_ALLOW_NUL : 0, root);
}

static int read_json(const char *path, size_t max_bytes, size_t flags, json_t **root)
{
	size_t num_bytes = 0;
	char *text = NULL;
	int ret;

	CAIRN_TRY(cairn_read_file(path, max_bytes, &text, &num_bytes));
	ret = parse(text, num_bytes, path, flags, root);
	free(text);
	return ret;
}

int cairn_json_read(const char *path, size_t max_bytes, bool allow_nul, json_t **root)
{
	return read_json(path, max_bytes, allow_nul ? JSON_ALLOW_NUL : 0, root);
}

int cairn_json_read_reals(const char *path, size_t max_bytes, json_t **root)
{
	return read_json(path, max_bytes, JSON_DECODE_INT_AS_REAL, root);
}

/* Stores the member in *value, or NULL if it is absent or null and not required. */
static int member(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		  const json_t **value)
{
	*value = json_object_get(object, key);
	if (*value && !json_is_null(*value))
		return 0;
	if (required)
		return cairn_error(EINVAL, "%s: %s%s: %s", at.file, at.where, key,
				   *value ? "is null" : "is missing");
	*value = NULL;
	return 0;
}

static int wrong_type(struct cairn_json_at at, const char *key, const char *want,
		      const json_t *value)
{
	return cairn_error(EINVAL, "%s: %s%s: must be %s, is %s", at.file, at.where, key, want,
			   cairn_json_type_name(value));
}

int cairn_json_int(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		   int64_t lo, int64_t hi, int64_t *value)
{
	const json_t *v;
	int64_t i;

	CAIRN_TRY(member(object, at, key, required, &v));
	if (!v)
		return 0;
	if (!json_is_integer(v))
		return wrong_type(at, key, "an integer", v);
	i = json_integer_value(v);
	if (i < lo || i > hi)
		return cairn_error(EINVAL, "%s: %s%s: must be %lld to %lld, is %lld", at.file,
				   at.where, key, (long long)lo, (long long)hi, (long long)i);
	*value = i;
	return 0;
}

int cairn_json_number(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		      double lo, double hi, double *value)
{
	const json_t *v;
	double d;

	CAIRN_TRY(member(object, at, key, required, &v));
	if (!v)
		return 0;
	if (!json_is_number(v))
		return wrong_type(at, key, "a number", v);
	d = json_number_value(v);
	if (!(d > lo && d <= hi))
		return cairn_error(EINVAL, "%s: %s%s: must be above %g and at most %g, is %g",
				   at.file, at.where, key, lo, hi, d);
	*value = d;
	return 0;
}

int cairn_json_bool(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		    bool *value)
{
	const json_t *v;

	CAIRN_TRY(member(object, at, key, required, &v));
	if (!v)
		return 0;
	if (!json_is_boolean(v))
		return wrong_type(at, key, "true or false", v);
	*value = json_is_true(v);
	return 0;
}

int cairn_json_string(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		      const char **value, size_t *len)
{
	const json_t *v;

	CAIRN_TRY(member(object, at, key, required, &v));
	if (!v)
		return 0;
	if (!json_is_string(v))
		return wrong_type(at, key, "a string", v);
	*value = json_string_value(v);
	if (len)
		*len = json_string_length(v);
	return 0;
}

int cairn_json_child(const json_t *object, struct cairn_json_at at, const char *key, bool required,
		     json_type type, json_t **value)
{
	const json_t *v;

	CAIRN_TRY(member(object, at, key, required, &v));
	if (!v)
		return 0;
	if (json_typeof(v) != type)
		return wrong_type(at, key, type == JSON_OBJECT ? "an object" : "an array", v);
	*value = json_object_get(object, key);	/* the same value, without const */
	return 0;
}
