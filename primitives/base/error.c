// SPDX-License-Identifier: Apache-2.0
/* error - the text of the calling thread's last failure */
#include "primitives/base/error.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char error_text[512];

int cairn_error(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(error_text, sizeof(error_text), fmt, ap);
	va_end(ap);
	return -err;
}

int cairn_error_prefix(int ret, const char *fmt, ...)
{
	char text[2 * sizeof(error_text)];
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(error_text), fmt, ap);
	va_end(ap);
	n = strlen(text);
	snprintf(text + n, sizeof(text) - n, ": %s", error_text);
	text[sizeof(error_text) - 1] = 0;
	memcpy(error_text, text, sizeof(error_text));
	return ret;
}

const char *cairn_last_error(void)
{
	return error_text;
}

void cairn_clear_error(void)
{
	error_text[0] = 0;
}
