/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mla_shapes - how the tests of mla_paged and mla_decode describe their cases
 *
 * Include conformance/harness.h and paged_test.h first.
 */
#ifndef CAIRN_MLA_SHAPES_H
#define CAIRN_MLA_SHAPES_H

#define MLA_RANK	512
#define MLA_DIM		576	/* elements of a key */

enum { F16 = PAGED_FLAGS, BENCH = F16 << 1, DEVICE = F16 << 2,
       SHARP = F16 << 3,	/* a few keys have all the weight */
       RANDOM = F16 << 4,	/* a pair case is not EXACT */
       LATE = F16 << 5,		/* keys from 2^16 on, or the last key, have all the weight */
       STEPS = F16 << 6,	/* weights down to e^-30 of the largest, with values as much larger */
       LSE = F16 << 7,
       FP8 = F16 << 8,
       JOINED = F16 << 9,	/* q_latent and q_rope lie in one array */
       UNDER = F16 << 10,	/* all logits are about -120 */
       LATENT_GAP = F16 << 11,	/* q_latent and q_rope have a stride */
       ROPE_GAP = F16 << 12,
       FAR_ROWS = F16 << 13,	/* rows of q_latent and q_rope begin past 2^31 and 2^32 elements */
       NO_LISTS = F16 << 14,	/* with slots: the lists of pages are NULL, and kv.max_len is 0 */
       LIMITS = F16 << 15,	/* the last key that a row sees, and the one behind it, decide */
};

struct shape {
	const char *name;		/* NULL: derived from the shape */
	int batch, qo, kv, page, heads;	/* query rows and keys of each request, slots of a page, heads */
	unsigned flags;
	int slots;			/* num_slots; 0: page lists */
	const int *qo_lens, *kv_lens;	/* [batch], replaces qo and kv; may be NULL */
	int sms;
	int pair, equal;		/* number of a pair case, or 0; EXACT has equal logits */
	float scale;			/* sm_scale; 0: the usual one */
	int nan;			/* where the second request has a NaN */
	int roundings;			/* cairn_case.roundings */
	int ends;			/* number of the case among the ends of tiles, or 0 */
};

#define LENS(...) (const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, page_, heads_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .page = page_, .heads = heads_

/* Writes the name of a case that is no pair. */
static inline void shape_name(const struct shape *s, char *name, size_t len)
{
	if (s->name)
		snprintf(name, len, "%s", s->name);
	else
		snprintf(name, len, "b%d_qo%d_kv%d_p%d_h%d_%s%s%s%s", s->batch, s->qo, s->kv, s->page,
			 s->heads, s->flags & F16 ? "f16" : "bf16", s->flags & SHARP ? "_sharp" : "",
			 s->flags & PAGED_RAGGED ? "_ragged" : "", s->flags & PAGED_PADDED ? "_padded" : "");
}

/* Sets the properties of a case other than its name and costs. */
static inline void shape_kinds(const struct shape *s, struct cairn_case *c)
{
	c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
	if (!(s->flags & DEVICE) && s->batch * s->qo * s->heads <= 1200)	/* larger ones show no more */
		c->kinds |= CAIRN_KIND_BIT(CAIRN_KIND_POISON);
	if (s->pair)
		c->kinds = CAIRN_KIND_BIT(s->flags & RANDOM ? CAIRN_KIND_POISON : CAIRN_KIND_EXACT);
	c->bench = !!(s->flags & BENCH);
	c->device_only = !!(s->flags & DEVICE);
	c->roundings = s->roundings;
	c->far = !!(s->flags & (PAGED_FAR | FAR_ROWS));
	if (c->far || s->nan || s->ends || s->roundings || s->flags & (LATE | UNDER | NO_LISTS) ||
	    (s->name && s->flags & LIMITS))
		c->kinds = CAIRN_KIND_BIT(CAIRN_KIND_NORMAL);
}

/* Sets case number i of the grid. heads: five numbers; pages, rows: four. */
static inline void shape_grid(struct shape *s, int i, const int *heads, const int *pages, const int *rows)
{
	*s = (struct shape){
		.batch = 1 + i % 3, .qo = rows[i % 4], .page = pages[(i + i / 4) % 4], .heads = heads[i % 5],
		.flags = (i % 2 ? F16 : 0) | (i % 3 == 1 ? PAGED_RAGGED : 0) |
			 (i % 5 == 2 ? PAGED_PADDED : 0) | (i % 7 == 3 ? SHARP : 0),
	};
	s->kv = s->qo + i * 17 % 150;
}

/* Sets the lengths of a case's requests. */
static inline void shape_lengths(struct cairn_op *op, const struct shape *s, struct paged *p)
{
	*p = (struct paged){
		.batch = s->batch, .page_size = s->page, .flags = s->flags,
		.pool = s->flags & PAGED_FAR ? (int)(((int64_t)1 << 32) / MLA_DIM / s->page) + 40 :
			s->flags & PAGED_CYCLE ? 37 : 3000,
	};
	paged_lengths(op, p, s->qo, s->kv, s->qo_lens, s->kv_lens, 0);
}

/* Returns by how many rows the bounds exceed the actual values. */
static inline int shape_pad(const struct shape *s)
{
	return s->flags & PAGED_PADDED ? 3 : 0;
}

/* Sets the scalars of the pages. */
static inline void shape_view(const struct shape *s, const struct paged *p, struct cairn_kv_view *kv)
{
	kv->batch = s->batch;
	kv->max_len = p->max_kv + 5 * shape_pad(s);
	kv->num_pages = p->num_pages;
	kv->page_size = s->page;
}

static inline float shape_scale(const struct shape *s)
{
	return s->scale > 0 ? s->scale : (s->flags & SHARP ? 4 : 1) * 0.0722f;
}

#endif
