// SPDX-License-Identifier: Apache-2.0
/* transport_pace.c - the text of a pace */
#include "rdma/transport/transport_pace.h"

#include <errno.h>
#include <stdlib.h>

#include "primitives/base/error.h"

int transport_pace_read(const char *variable, struct transport_pace *p)
{
	const char *text = getenv(variable);
	double us, mbytes = 0;
	char *end;

	*p = (struct transport_pace){ 0 };
	if (!text)
		return 0;
	us = strtod(text, &end);
	if (end != text && *end == ':')
		mbytes = strtod(end + 1, &end);
	if (*end || !(us >= 0 && us <= 1e6) || !(mbytes >= 1e-3 && mbytes <= 1e6))
		return cairn_error(EINVAL, "%s: '%s' is not LATENCY_US:MBYTES_PER_S", variable, text);
	*p = (struct transport_pace){ .latency_ns = (uint64_t)(us * 1e3), .ns_per_byte = 1e3 / mbytes };
	return 0;
}
