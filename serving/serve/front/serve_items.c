// SPDX-License-Identifier: Apache-2.0
/* serve_items - sends the answers of /v1/responses */
#include <string.h>

#include "primitives/base/error.h"
#include "serving/serve/front/serve_front.h"

#define MAX_PIECE	8192	/* bytes of a delta, and of a push: they fit every --stream-buffer */

/* Adds what has arrived and, at the end of the answer, the end. */
static void take_all(struct serve_job *job, size_t max)
{
	struct serve_choice *c = job->choices;
	struct cairn_api_usage usage;
	struct serve_chunk chunk;

	while (c->out.num && !job->items.out.len) {
		struct cairn_api_choice part = { .stop_id = -1 };
		size_t n = serve_next_chunk(job, c, max, &chunk, &part);

		cairn_api_items_add(&job->items, &part);
		serve_drop_chunk(c, n);
	}
	c->new_tokens = 0;
	if (!c->finish || c->out.num || c->ended || job->items.out.len)
		return;
	serve_usage_of(job, &usage);
	cairn_api_items_end(&job->items, c->finish, &usage);
	c->ended = true;
}

/* Sends what has been written, in pieces. Returns 0, or an error of cairn_http_push(). */
static int push_out(struct serve_job *job)
{
	struct cairn_api_out *out = &job->items.out;

	while (job->items_sent < out->len) {
		size_t left = out->len - job->items_sent, n = left < MAX_PIECE ? left : MAX_PIECE;

		CAIRN_TRY(cairn_http_push(job->x, out->s + job->items_sent, n));
		job->items_sent += n;
		job->said_ns = job->last_ns;
	}
	out->len = job->items_sent = 0;
	return 0;
}

int serve_push_items(struct serve_job *job)
{
	struct serve_choice *c = job->choices;

	do {
		CAIRN_TRY(push_out(job));
		take_all(job, MAX_PIECE);
		if (cairn_api_items_failed(&job->items) || c->out.text.failed)
			return -ENOMEM;
	} while (job->items.out.len);
	return c->ended ? 0 : 1;
}

int serve_send_items(struct serve_job *job)
{
	if (job->choices->out.text.failed)
		return -ENOMEM;
	take_all(job, SIZE_MAX);
	if (cairn_api_items_failed(&job->items))
		return -ENOMEM;
	serve_send_json(job->x, &job->items.out);
	return 0;
}
