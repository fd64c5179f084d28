// SPDX-License-Identifier: Apache-2.0
/*
 * stop_match - finds stop strings with one Knuth-Morris-Pratt matcher per string
 *
 * The state of a matcher is the length of the longest prefix of its string that the text ends with. The bytes
 * to hold back are therefore the longest of these prefixes. They need no buffer, because the set has a copy
 * of each string.
 */
#include "serving/tokenizer/stop_match.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

struct cairn_stop_set {
	size_t num;
	struct {
		char *bytes;
		uint16_t *shorter; /* [i]: longest proper suffix of the first i bytes that is a prefix */
		size_t len;
	} v[CAIRN_MAX_STOPS];
};

void cairn_stop_set_free(struct cairn_stop_set *set)
{
	for (size_t i = 0; set && i < set->num; i++) {
		free(set->v[i].bytes);
		free(set->v[i].shorter);
	}
	free(set);
}

static size_t advance(const struct cairn_stop_set *set, size_t i, size_t matched, char c)
{
	const char *bytes = set->v[i].bytes;

	while (matched && (matched == set->v[i].len || bytes[matched] != c))
		matched = set->v[i].shorter[matched];
	return matched + (bytes[matched] == c);
}

static int add(struct cairn_stop_set *set, const struct cairn_stop_string *s)
{
	size_t i = set->num, matched = 0;

	set->v[i].bytes = malloc(s->num_bytes);
	set->v[i].shorter = calloc(s->num_bytes + 1, sizeof(uint16_t));
	set->num++;
	if (!set->v[i].bytes || !set->v[i].shorter)
		return cairn_error(ENOMEM, "stop: no memory");
	memcpy(set->v[i].bytes, s->bytes, s->num_bytes);
	set->v[i].len = s->num_bytes;
	for (size_t k = 1; k < s->num_bytes; k++) {
		matched = advance(set, i, matched, s->bytes[k]);
		set->v[i].shorter[k + 1] = (uint16_t)matched;
	}
	return 0;
}

int cairn_stop_set_new(const struct cairn_stop_string *strings, size_t num, struct cairn_stop_set **out)
{
	struct cairn_stop_set *set;
	int ret = 0;

	if (num > CAIRN_MAX_STOPS)
		return cairn_error(EINVAL, "stop: at most %d strings, not %zu", CAIRN_MAX_STOPS, num);
	for (size_t i = 0; i < num; i++)
		if (!strings[i].num_bytes || strings[i].num_bytes > CAIRN_MAX_STOP_BYTES)
			return cairn_error(EINVAL, "stop: string %zu has %zu bytes, must have 1 to %d", i,
					   strings[i].num_bytes, CAIRN_MAX_STOP_BYTES);
	if (!num) {
		*out = NULL;
		return 0;
	}
	set = calloc(1, sizeof(*set));
	if (!set)
		return cairn_error(ENOMEM, "stop: no memory");
	for (size_t i = 0; i < num && !ret; i++)
		ret = add(set, &strings[i]);
	if (ret) {
		cairn_stop_set_free(set);
		return ret;
	}
	*out = set;
	return 0;
}

void cairn_stop_match_init(struct cairn_stop_match *m, const struct cairn_stop_set *set, bool include)
{
	*m = (struct cairn_stop_match) { .set = set, .include = include };
}

/* Returns the string with the longest matched prefix: these bytes are held back. */
static size_t longest(const struct cairn_stop_match *m)
{
	size_t best = 0;

	for (size_t i = 1; i < m->set->num; i++)
		if (m->matched[i] > m->matched[best])
			best = i;
	return best;
}

struct cairn_stop_text cairn_stop_match_push(struct cairn_stop_match *m, const char *text, size_t num_bytes)
{
	struct cairn_stop_text out = { "", 0, num_bytes, -1 };
	size_t held, used = 0, keep, total;

	if (m->stopped)
		out.num_text = 0;
	if (m->stopped || !m->set)
		return out;
	out.held = m->set->v[longest(m)].bytes;
	held = m->matched[longest(m)];
	while (used < num_bytes && out.stop < 0) {
		for (size_t i = 0; i < m->set->num; i++) {
			m->matched[i] = (uint16_t)advance(m->set, i, m->matched[i], text[used]);
			if (m->matched[i] == m->set->v[i].len &&
			    (out.stop < 0 || m->set->v[i].len > m->set->v[out.stop].len))
				out.stop = (int)i;
		}
		used++;
	}
	m->stopped = out.stop >= 0;
	keep = m->matched[longest(m)];
	if (m->stopped)
		keep = m->include ? 0 : m->set->v[out.stop].len;
	total = held + used - keep;
	out.num_held = total < held ? total : held;
	out.num_text = total - out.num_held;
	return out;
}

struct cairn_stop_text cairn_stop_match_finish(struct cairn_stop_match *m)
{
	struct cairn_stop_text out = { "", 0, 0, -1 };

	if (!m->stopped && m->set) {
		out.held = m->set->v[longest(m)].bytes;
		out.num_held = m->matched[longest(m)];
	}
	m->stopped = true;
	return out;
}
