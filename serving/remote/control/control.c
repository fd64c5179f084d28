// SPDX-License-Identifier: Apache-2.0
/* control - checks and sends control messages (control.h) */
#include "serving/remote/control/control.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/utf8.h"

enum direction { TO_LEAD = 1, TO_MEMBER = 2, BOTH = 3 };

static const struct kind {
	const char *name;
	enum direction direction;
	size_t head, most_rest;		/* bytes */
} kinds[CAIRN_CONTROL_NUM_KINDS] = {
	[CAIRN_CONTROL_JOIN] = { "join", TO_LEAD, sizeof(struct cairn_control_join), 0 },
	[CAIRN_CONTROL_READY] = { "ready", TO_LEAD, sizeof(struct cairn_control_epoch), 0 },
	[CAIRN_CONTROL_BEAT] = { "beat", TO_LEAD, sizeof(struct cairn_control_beat), 0 },
	[CAIRN_CONTROL_FAILED] = { "failed", TO_LEAD, 0, CAIRN_CONTROL_TEXT },
	[CAIRN_CONTROL_ASSIGN] = { "assign", TO_MEMBER, sizeof(struct cairn_control_assign),
				   CAIRN_CHANNEL_MAX - sizeof(struct cairn_control_assign) },
	[CAIRN_CONTROL_REFUSE] = { "refuse", TO_MEMBER, 0, CAIRN_CONTROL_TEXT },
	[CAIRN_CONTROL_PLAN] = { "plan", TO_MEMBER, sizeof(struct cairn_control_plan),
				 CAIRN_CHANNEL_MAX - sizeof(struct cairn_control_plan) },
	[CAIRN_CONTROL_STATUS] = { "status", TO_MEMBER, sizeof(struct cairn_control_epoch), 0 },
	[CAIRN_CONTROL_BLOB] = { "blob", BOTH, sizeof(struct cairn_control_blob),
				 CAIRN_CONTROL_BLOB_BYTES },
	[CAIRN_CONTROL_PROMPT] = { "prompt", TO_MEMBER, sizeof(struct cairn_control_prompt),
				   CAIRN_CHANNEL_MAX - sizeof(struct cairn_control_prompt) },
	[CAIRN_CONTROL_LEASE] = { "lease", TO_MEMBER, sizeof(struct cairn_control_lease), 0 },
	[CAIRN_CONTROL_DROP] = { "drop", TO_MEMBER, sizeof(struct cairn_control_drop), 0 },
	[CAIRN_CONTROL_RUN] = { "run", TO_MEMBER, sizeof(struct cairn_control_run),
				CAIRN_CHANNEL_MAX - sizeof(struct cairn_control_run) },
};

const char *cairn_control_kind_name(uint32_t kind)
{
	return kind < CAIRN_CONTROL_NUM_KINDS && kinds[kind].name ? kinds[kind].name : "?";
}

static int bad(const struct cairn_channel_message *m, const char *member, int64_t value)
{
	return cairn_error(EINVAL, "control: %s: %s is %lld", cairn_control_kind_name(m->kind), member,
			   (long long)value);
}

static int check_join(const struct cairn_channel_message *m)
{
	const struct cairn_control_join *j = m->data;

	if (j->version != CAIRN_CONTROL_VERSION)
		return bad(m, "version", j->version);
	if (j->role >= CAIRN_NUM_MEMBER_ROLES)
		return bad(m, "role", j->role);
	if (!j->transports)
		return bad(m, "transports", j->transports);
	if (j->rank < -1 || j->rank >= CAIRN_CONTROL_RANKS)
		return bad(m, "rank", j->rank);
	if (j->pid < 0)
		return bad(m, "pid", j->pid);
	if (j->reserved)
		return bad(m, "reserved", j->reserved);
	for (int i = 0; i < CAIRN_CONTROL_TABLE && j->table[i]; i++)
		if (j->table[i] < ' ' || j->table[i] > '~')
			return bad(m, "the table's character", j->table[i]);
	return !j->table[0] || j->table[CAIRN_CONTROL_TABLE - 1] ?
	       bad(m, "the table's first byte", j->table[0]) : 0;
}

static int in_range(const struct cairn_channel_message *m, const char *member, int64_t value, int64_t least,
		    int64_t most)
{
	return value < least || value > most ? bad(m, member, value) : 0;
}

/* Checks a number that is no integer; NaN is out of every range. */
static int is_real(const struct cairn_channel_message *m, const char *member, double value, double least,
		   double most)
{
	return value >= least && value <= most ? 0 :
	       cairn_error(EINVAL, "control: %s: %s is %g", cairn_control_kind_name(m->kind), member, value);
}

/*
 * Checks the stripes and latent sizes of an assignment. A striped share has one head and attends to previous
 * keys only. A latent share has one head, a head_dim of nope_dim + rope_dim, and no 8-bit cache.
 */
static int check_parts(const struct cairn_channel_message *m, const struct cairn_control_assign *a)
{
	const int is_latent = a->kv_lora_rank > 0, is_striped = a->stripes > 1;

	CAIRN_TRY(in_range(m, "stripes", a->stripes, 1, CAIRN_CONTROL_STRIPES));
	CAIRN_TRY(in_range(m, "stripe", a->stripe, 0, a->stripes - 1));
	CAIRN_TRY(in_range(m, "previous", a->previous, is_striped, 1));
	if (is_striped || is_latent)
		CAIRN_TRY(in_range(m, "num_heads", a->num_heads, 1, 1));
	CAIRN_TRY(in_range(m, "kv_lora_rank", a->kv_lora_rank, 0, CAIRN_MAX_HIDDEN));
	CAIRN_TRY(in_range(m, "nope_dim", a->nope_dim, 0, is_latent * CAIRN_MAX_HEAD_DIM));
	CAIRN_TRY(in_range(m, "rope_dim", a->rope_dim, is_latent, is_latent * CAIRN_MAX_HEAD_DIM));
	CAIRN_TRY(in_range(m, "v_dim", a->v_dim, is_latent, is_latent * CAIRN_MAX_HEAD_DIM));
	if (!is_latent)
		return 0;
	CAIRN_TRY(in_range(m, "kv_fp8", a->kv_fp8, 0, 0));
	return in_range(m, "head_dim", a->head_dim, a->nope_dim + a->rope_dim, a->nope_dim + a->rope_dim);
}

static int check_assign(const struct cairn_channel_message *m, size_t rest)
{
	const struct cairn_control_assign *a = m->data;
	int64_t scales;

	CAIRN_TRY(in_range(m, "epoch", a->epoch, 1, UINT32_MAX));
	CAIRN_TRY(in_range(m, "rank", a->rank, 0, CAIRN_CONTROL_RANKS - 1));
	CAIRN_TRY(in_range(m, "num_kv_heads", a->num_kv_heads, 1, CAIRN_MAX_HEADS));
	CAIRN_TRY(in_range(m, "num_heads", a->num_heads, 1, a->num_kv_heads));
	CAIRN_TRY(in_range(m, "first_head", a->first_head, 0, a->num_kv_heads - a->num_heads));
	CAIRN_TRY(in_range(m, "num_layers", a->num_layers, 1, CAIRN_MAX_LAYERS));
	CAIRN_TRY(in_range(m, "head_dim", a->head_dim, 8, CAIRN_MAX_HEAD_DIM));
	CAIRN_TRY(in_range(m, "num_pages", a->num_pages, 1, INT32_MAX));
	CAIRN_TRY(in_range(m, "page_size", a->page_size, 1, 1 << 16));
	CAIRN_TRY(in_range(m, "dtype", a->dtype, 0, 16));
	CAIRN_TRY(in_range(m, "kv_fp8", a->kv_fp8, 0, 1));
	CAIRN_TRY(in_range(m, "transport", a->transport, 0, 31));
	CAIRN_TRY(in_range(m, "group", a->group, 1, CAIRN_MAX_HEADS / a->num_kv_heads));
	CAIRN_TRY(in_range(m, "max_rows", a->max_rows, 1, 1 << 20));
	CAIRN_TRY(in_range(m, "max_batch", a->max_batch, 1, a->max_rows));
	CAIRN_TRY(in_range(m, "max_context", a->max_context, 1, INT32_MAX));
	CAIRN_TRY(check_parts(m, a));
	CAIRN_TRY(in_range(m, "window", a->window, 0, INT32_MAX));
	CAIRN_TRY(is_real(m, "query_scalar", a->query_scalar, 1e-6, 1e9));
	CAIRN_TRY(is_real(m, "attention_factor", a->attention_factor, 1e-6, 1e6));
	CAIRN_TRY(is_real(m, "softcap", a->softcap, 0, 1e6));
	CAIRN_TRY(in_range(m, "lanes", a->lanes, 0, CAIRN_MAX_LANES));
	CAIRN_TRY(in_range(m, "models", a->models, 0, a->lanes ? a->lanes : 1));
	CAIRN_TRY(in_range(m, "lane", a->lane, 0, a->models ? a->models - 1 : 0));
	CAIRN_TRY(in_range(m, "workers", a->workers, a->lane > 0, a->lane ? CAIRN_CONTROL_PEERS : 0));
	CAIRN_TRY(in_range(m, "repeatable", a->repeatable, 0, a->lane > 0));
	CAIRN_TRY(in_range(m, "num_bytes", a->num_bytes, (int64_t)rest, (int64_t)rest));
	scales = a->kv_fp8 ? 2 * (int64_t)sizeof(float) * a->num_layers * a->num_heads : 0;
	return rest ? in_range(m, "num_bytes", a->num_bytes, scales, scales) : 0;
}

static int check_epoch(const struct cairn_channel_message *m)
{
	const struct cairn_control_epoch *e = m->data;

	CAIRN_TRY(in_range(m, "epoch", e->epoch, 1, UINT32_MAX));
	return m->kind == CAIRN_CONTROL_READY ? in_range(m, "error", e->error, 0, 0) : 0;
}

static int check_blob(const struct cairn_channel_message *m, size_t rest)
{
	const struct cairn_control_blob *b = m->data;

	CAIRN_TRY(in_range(m, "from", b->from, 0, CAIRN_CONTROL_RANKS - 1));
	CAIRN_TRY(in_range(m, "to", b->to, 0, CAIRN_CONTROL_RANKS - 1));
	CAIRN_TRY(in_range(m, "epoch", b->epoch, 1, UINT32_MAX));
	return in_range(m, "num_bytes", b->num_bytes, (int64_t)rest, (int64_t)rest);
}

static int check_lease(const struct cairn_channel_message *m, uint64_t job, uint32_t lease_ms,
		       uint32_t reserved)
{
	CAIRN_TRY(in_range(m, "job", (int64_t)job, 1, INT64_MAX));
	CAIRN_TRY(in_range(m, "lease_ms", lease_ms, 1, CAIRN_CONTROL_LEASE_MS));
	return in_range(m, "reserved", reserved, 0, 0);
}

static int check_prompt(const struct cairn_channel_message *m, size_t rest)
{
	const struct cairn_control_prompt *p = m->data;
	const int64_t num = (int64_t)(rest / sizeof(int32_t));
	const int32_t *ids = (const int32_t *)(p + 1);

	CAIRN_TRY(check_lease(m, p->job, p->lease_ms, p->reserved));
	CAIRN_TRY(in_range(m, "its size", (int64_t)(rest % sizeof(int32_t)), 0, 0));
	CAIRN_TRY(in_range(m, "num_tokens", p->num_tokens, num > 1 ? num : 1, num));
	for (int32_t i = 0; i < p->num_tokens; i++)
		CAIRN_TRY(in_range(m, "an id", ids[i], 0, INT32_MAX));
	return in_range(m, "first", p->first, 0, p->num_tokens - 1);
}

static int check_run(const struct cairn_channel_message *m, size_t rest)
{
	const struct cairn_control_run *r = m->data;

	CAIRN_TRY(in_range(m, "pass", (int64_t)r->pass, 1, INT64_MAX));
	CAIRN_TRY(in_range(m, "reserved", r->reserved, 0, 0));
	return in_range(m, "num_bytes", r->num_bytes, (int64_t)rest, (int64_t)rest);
}

static int check_text(const struct cairn_channel_message *m)
{
	const char *text = m->data;
	size_t i = 0;

	while (i < m->num_bytes) {
		int truncated, len;
		uint32_t cp = 0;

		len = cairn_utf8_next(text + i, m->num_bytes - i, &cp, &truncated);
		if (len < 0 || cp < 32 || (cp >= 127 && cp < 160))
			return bad(m, "the text's character", cp);
		i += (size_t)len;
	}
	return 0;
}

int cairn_control_check(const struct cairn_channel_message *m, int to_lead)
{
	const struct kind *k = m->kind < CAIRN_CONTROL_NUM_KINDS ? &kinds[m->kind] : NULL;
	size_t rest;

	if (!k || !k->name)
		return cairn_error(EINVAL, "control: a message has the unknown kind %u", m->kind);
	if (!(k->direction & (to_lead ? TO_LEAD : TO_MEMBER)))
		return cairn_error(EINVAL, "control: %s: goes to the %s", k->name,
				   to_lead ? "member" : "lead");
	if (m->num_bytes < k->head || m->num_bytes - k->head > k->most_rest)
		return bad(m, "its size", (int64_t)m->num_bytes);
	rest = m->num_bytes - k->head;
	switch (m->kind) {
	case CAIRN_CONTROL_JOIN:
		return check_join(m);
	case CAIRN_CONTROL_ASSIGN:
		return check_assign(m, rest);
	case CAIRN_CONTROL_READY:
	case CAIRN_CONTROL_STATUS:
		return check_epoch(m);
	case CAIRN_CONTROL_PLAN:
		CAIRN_TRY(in_range(m, "pass", (int64_t)((const struct cairn_control_plan *)m->data)->pass, 1,
				   INT64_MAX));
		CAIRN_TRY(in_range(m, "lane", ((const struct cairn_control_plan *)m->data)->lane, 0,
				   CAIRN_MAX_LANES - 1));
		return in_range(m, "num_bytes", ((const struct cairn_control_plan *)m->data)->num_bytes,
				(int64_t)rest, (int64_t)rest);
	case CAIRN_CONTROL_BLOB:
		return check_blob(m, rest);
	case CAIRN_CONTROL_PROMPT:
		return check_prompt(m, rest);
	case CAIRN_CONTROL_LEASE: {
		const struct cairn_control_lease *l = m->data;

		return check_lease(m, l->job, l->lease_ms, l->reserved);
	}
	case CAIRN_CONTROL_DROP:
		return in_range(m, "job", (int64_t)((const struct cairn_control_drop *)m->data)->job, 1,
				INT64_MAX);
	case CAIRN_CONTROL_RUN:
		return check_run(m, rest);
	case CAIRN_CONTROL_FAILED:
	case CAIRN_CONTROL_REFUSE:
		return check_text(m);
	default:
		return 0;
	}
}

int cairn_control_send(struct cairn_control_channel *c, enum cairn_control_kind kind, const void *head,
		       size_t head_bytes, const void *rest, size_t rest_bytes, int timeout_ms)
{
	char *all = malloc(head_bytes + rest_bytes + 1);
	int ret;

	if (!all)
		return cairn_error(ENOMEM, "control: no memory for %zu bytes", head_bytes + rest_bytes);
	if (head_bytes)
		memcpy(all, head, head_bytes);
	if (rest_bytes)
		memcpy(all + head_bytes, rest, rest_bytes);
	ret = cairn_channel_send(c, kind, all, head_bytes + rest_bytes, timeout_ms);
	free(all);
	return ret;
}
