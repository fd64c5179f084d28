/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe - merges the symbols of a piece in order of rank
 *
 * Nearly all pieces are short. They are merged by scanning an array of ranks for the lowest one, which is
 * fastest for a dozen symbols. Long pieces (a text may be 512 KiB of one letter) need a priority queue of
 * (rank, position).
 *
 * The queue is ordered by rank first and few ranks are in use at a time, so it consists of a FIFO per rank
 * and a heap of the ranks. While one rank is processed from left to right, entries of another rank arrive in
 * order of position, so appending to its FIFO nearly always keeps it sorted. An entry that arrives out of
 * order goes to an ordinary heap, the strays. The next entry is either the front of the lowest FIFO or the
 * top of the strays, whichever is lower. The order is exact in every case. The time is n log n in the worst
 * case and linear for repeated letters, where a plain heap would spend most of its time sifting.
 *
 * An entry is stale once its pair has changed: its rank then differs from rank[pos], the rank of the pair
 * that now begins at pos. Two pairs never share a rank, and a pair cannot reappear at a position because
 * merging only makes symbols longer.
 */
#include "serving/tokenizer/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/utf8.h"

#define NO_RANK		INT32_MAX
#define SHORT_PIECE	48	/* symbols; scanning is faster than the queue up to about this length */

static uint64_t hash_bytes(const char *s, size_t n)
{
	uint64_t h = 0xcbf29ce484222325;

	while (n--)
		h = (h ^ (unsigned char)*s++) * 0x100000001b3;
	return h ^ h >> 29;
}

static uint32_t hash_pair(uint64_t pair)
{
	return (uint32_t)((pair * 0x9e3779b97f4a7c15) >> 32);
}

/* Returns the index mask of a hash table of n keys, at most half full: a power of two, minus one. */
static uint32_t mask_for(int32_t n)
{
	uint32_t size = 16;

	while (size < 2u * (uint32_t)n)
		size *= 2;
	return size - 1;
}

int32_t cairn_bpe_find(const struct cairn_bpe *bpe, const char *bytes, size_t len)
{
	uint32_t i = (uint32_t)hash_bytes(bytes, len) & bpe->token_mask;
	int32_t id;

	while ((id = bpe->token_slots[i]) >= 0) {
		if (bpe->tokens[id].len == len && !memcmp(bpe->tokens[id].bytes, bytes, len))
			return id;
		i = (i + 1) & bpe->token_mask;
	}
	return -1;
}

static int32_t rank_of(const struct cairn_bpe *bpe, int32_t left, int32_t right)
{
	uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	uint32_t i = hash_pair(pair) & bpe->merge_mask;

	while (bpe->merge_slots[i].rank >= 0) {
		if (bpe->merge_slots[i].pair == pair)
			return bpe->merge_slots[i].rank;
		i = (i + 1) & bpe->merge_mask;
	}
	return NO_RANK;
}

static int32_t id_of_char(const struct cairn_bpe *bpe, uint32_t cp)
{
	const int32_t *page = bpe->cp_pages[cp >> 8];

	return page ? page[cp & 255] : -1;
}

static int index_chars(struct cairn_bpe *bpe, int32_t id)
{
	const struct cairn_bpe_token *t = &bpe->tokens[id];
	uint32_t cp;
	int32_t **page;

	if (t->len == 0 || t->len != cairn_utf8_len(t->bytes))
		return 0;
	cp = cairn_utf8_get(t->bytes);
	page = &bpe->cp_pages[cp >> 8];
	if (!*page) {
		*page = malloc(256 * sizeof(**page));
		if (!*page)
			return cairn_error(ENOMEM, "no memory");
		memset(*page, -1, 256 * sizeof(**page));
	}
	(*page)[cp & 255] = id;
	return 0;
}

int cairn_bpe_index(struct cairn_bpe *bpe)
{
	size_t slots;

	bpe->token_mask = mask_for(bpe->num_tokens);
	slots = (size_t)bpe->token_mask + 1;
	bpe->token_slots = malloc(slots * sizeof(*bpe->token_slots));
	if (!bpe->token_slots)
		return cairn_error(ENOMEM, "no memory");
	memset(bpe->token_slots, -1, slots * sizeof(*bpe->token_slots));
	for (int32_t id = 0; id < bpe->num_tokens; id++) {
		const struct cairn_bpe_token *t = &bpe->tokens[id];
		uint32_t i = (uint32_t)hash_bytes(t->bytes, t->len) & bpe->token_mask;

		if (cairn_bpe_find(bpe, t->bytes, t->len) >= 0)
			return cairn_error(EINVAL, "token %d has the bytes of another token", id);
		while (bpe->token_slots[i] >= 0)
			i = (i + 1) & bpe->token_mask;
		bpe->token_slots[i] = id;
		CAIRN_TRY(index_chars(bpe, id));
	}
	for (int b = 0; b < 256; b++) {
		char name[8];

		snprintf(name, sizeof(name), "<0x%02X>", (unsigned)b);
		bpe->byte_ids[b] = cairn_bpe_find(bpe, name, 6);
	}
	return 0;
}

int cairn_bpe_index_merges(struct cairn_bpe *bpe, struct cairn_bpe_merge *merges)
{
	size_t slots;

	bpe->merges = merges;
	bpe->merge_mask = mask_for(bpe->num_merges);
	slots = (size_t)bpe->merge_mask + 1;
	bpe->merge_slots = malloc(slots * sizeof(*bpe->merge_slots));
	if (!bpe->merge_slots)
		return cairn_error(ENOMEM, "no memory");
	memset(bpe->merge_slots, -1, slots * sizeof(*bpe->merge_slots));
	for (int32_t rank = 0; rank < bpe->num_merges; rank++) {
		const struct cairn_bpe_merge *m = &bpe->merges[rank];
		uint64_t pair = (uint64_t)(uint32_t)m->left << 32 | (uint32_t)m->right;
		uint32_t i = hash_pair(pair) & bpe->merge_mask;

		/* if a pair is listed twice, its last rank is used, as in the library */
		while (bpe->merge_slots[i].rank >= 0 && bpe->merge_slots[i].pair != pair)
			i = (i + 1) & bpe->merge_mask;
		bpe->merge_slots[i].pair = pair;
		bpe->merge_slots[i].rank = rank;
	}
	return 0;
}

void cairn_bpe_free(struct cairn_bpe *bpe)
{
	for (size_t i = 0; i < sizeof(bpe->cp_pages) / sizeof(*bpe->cp_pages); i++)
		free(bpe->cp_pages[i]);
	free(bpe->merge_slots);
	free(bpe->token_slots);
	free(bpe->merges);
	free(bpe->tokens);
}

int cairn_ids_add(struct cairn_ids *ids, int32_t id)
{
	if (ids->num == ids->cap) {
		size_t cap = ids->cap ? ids->cap * 2 : 64;
		int32_t *grown = realloc(ids->v, cap * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "no memory for %zu tokens", cap);
		ids->v = grown;
		ids->cap = cap;
	}
	ids->v[ids->num++] = id;
	return 0;
}

/* Reserves space for n symbols; the previous contents are lost. */
static int reserve(struct cairn_bpe_scratch *s, size_t n)
{
	size_t cap = n < 1024 ? 1024 : n;

	if (n <= s->cap)
		return 0;
	if (n > CAIRN_BPE_MAX_PIECE)
		return cairn_error(
			EINVAL,
			"a piece of %zu characters without a break, at most %u are supported", n,
			CAIRN_BPE_MAX_PIECE);
	free(s->id);
	free(s->node_pos);
	s->cap = 0;
	s->id = malloc(cap * 4 * sizeof(*s->id));
	s->node_pos = malloc(cap * 6 * sizeof(*s->node_pos));
	if (!s->id || !s->node_pos)
		return cairn_error(ENOMEM, "no memory for a piece of %zu characters", n);
	s->rank = s->id + cap;
	s->prev = s->rank + cap;
	s->next = s->prev + cap;
	s->node_next = s->node_pos + 3 * cap;
	s->cap = cap;
	return 0;
}

void cairn_bpe_scratch_free(struct cairn_bpe_scratch *s)
{
	free(s->id);
	free(s->node_pos);
	free(s->head);
	free(s->tail);
	free(s->active);
	free(s->strays);
}

/* Writes the characters of the piece as tokens to s->id; returns their number or a negative errno. */
static int64_t split_chars(const struct cairn_bpe *bpe, const char *piece, size_t len,
			   struct cairn_bpe_scratch *s)
{
	int32_t *id = s->id;
	bool pending = false;	/* an unk not written yet: the next one may fuse with it */
	size_t n = 0, step;

	for (size_t i = 0; i < len; i += step) {
		int32_t token = id_of_char(bpe, cairn_utf8_get(piece + i));
		size_t k;

		step = cairn_utf8_len(piece + i);
		if (token >= 0) {
			if (pending)
				id[n++] = bpe->unk;
			pending = false;
			id[n++] = token;
			continue;
		}
		if (bpe->byte_fallback) {
			for (k = 0; k < step; k++)
				if (bpe->byte_ids[(unsigned char)piece[i + k]] < 0)
					break;
			if (k == step) {
				/* a pending unk goes after these bytes, as in the library */
				for (k = 0; k < step; k++)
					id[n++] = bpe->byte_ids[(unsigned char)piece[i + k]];
				continue;
			}
		}
		if (!bpe->has_unk)
			continue;
		if (bpe->unk < 0)
			return cairn_error(EINVAL, "model.unk_token: is not in the vocabulary, "
						   "and the text needs it");
		if (pending && !bpe->fuse_unk)
			id[n++] = bpe->unk;
		pending = true;
	}
	if (pending)
		id[n++] = bpe->unk;
	return (int64_t)n;
}

/* Merges id[0..n) in place by scanning; returns the number of symbols left. */
static size_t merge_short(const struct cairn_bpe *bpe, int32_t *id, int32_t *rank, size_t n)
{
	for (size_t i = 0; i + 1 < n; i++)
		rank[i] = rank_of(bpe, id[i], id[i + 1]);
	while (n > 1) {
		size_t best = 0;

		for (size_t i = 1; i + 1 < n; i++)
			if (rank[i] < rank[best])
				best = i;
		if (rank[best] == NO_RANK)
			break;
		id[best] = bpe->merges[rank[best]].result;
		n--;
		memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof(*id));
		memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof(*rank));
		if (best + 1 < n)
			rank[best] = rank_of(bpe, id[best], id[best + 1]);
		if (best > 0)
			rank[best - 1] = rank_of(bpe, id[best - 1], id[best]);
	}
	return n;
}

static int push_active(struct cairn_bpe_scratch *s, int32_t rank)
{
	size_t i = s->num_active;

	if (i == s->cap_active) {
		size_t cap = i ? i * 2 : 256;
		int32_t *grown = realloc(s->active, cap * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "no memory for %zu ranks", cap);
		s->active = grown;
		s->cap_active = cap;
	}
	s->num_active++;
	for (; i && s->active[(i - 1) / 2] > rank; i = (i - 1) / 2)
		s->active[i] = s->active[(i - 1) / 2];
	s->active[i] = rank;
	return 0;
}

static void pop_active(struct cairn_bpe_scratch *s)
{
	int32_t last = s->active[--s->num_active];
	size_t i = 0, child;

	for (; (child = 2 * i + 1) < s->num_active; i = child) {
		if (child + 1 < s->num_active && s->active[child + 1] < s->active[child])
			child++;
		if (s->active[child] >= last)
			break;
		s->active[i] = s->active[child];
	}
	s->active[i] = last;
}

static int push_stray(struct cairn_bpe_scratch *s, uint64_t key)
{
	size_t i = s->num_strays;

	if (i == s->cap_strays) {
		size_t cap = i ? i * 2 : 256;
		uint64_t *grown = realloc(s->strays, cap * sizeof(*grown));

		if (!grown)
			return cairn_error(ENOMEM, "no memory for %zu pairs", cap);
		s->strays = grown;
		s->cap_strays = cap;
	}
	s->num_strays++;
	for (; i && s->strays[(i - 1) / 2] > key; i = (i - 1) / 2)
		s->strays[i] = s->strays[(i - 1) / 2];
	s->strays[i] = key;
	return 0;
}

static void pop_stray(struct cairn_bpe_scratch *s)
{
	uint64_t last = s->strays[--s->num_strays];
	size_t i = 0, child;

	for (; (child = 2 * i + 1) < s->num_strays; i = child) {
		if (child + 1 < s->num_strays && s->strays[child + 1] < s->strays[child])
			child++;
		if (s->strays[child] >= last)
			break;
		s->strays[i] = s->strays[child];
	}
	s->strays[i] = last;
}

static int push(struct cairn_bpe_scratch *s, int32_t rank, int32_t pos)
{
	int32_t node, last = s->tail[rank];

	if (last && s->node_pos[last - 1] > pos)
		return push_stray(s, (uint64_t)(uint32_t)rank << 32 | (uint32_t)pos);
	node = (int32_t)s->num_nodes++;
	s->node_pos[node] = pos;
	s->node_next[node] = 0;
	s->tail[rank] = node + 1;
	if (last) {
		s->node_next[last - 1] = node + 1;
		return 0;
	}
	s->head[rank] = node + 1;
	return push_active(s, rank);
}

/* Removes the lowest (rank, pos) from the queue; returns false if the queue is empty. */
static bool pop(struct cairn_bpe_scratch *s, int32_t *rank, int32_t *pos)
{
	uint64_t front = UINT64_MAX, stray = s->num_strays ? s->strays[0] : UINT64_MAX;
	int32_t node = 0;

	if (s->num_active) {
		node = s->head[s->active[0]] - 1;
		front = (uint64_t)(uint32_t)s->active[0] << 32 | (uint32_t)s->node_pos[node];
	}
	if (front == UINT64_MAX && stray == UINT64_MAX)
		return false;
	if (stray < front) {
		*rank = (int32_t)(stray >> 32);
		*pos = (int32_t)(uint32_t)stray;
		pop_stray(s);
		return true;
	}
	*rank = s->active[0];
	*pos = s->node_pos[node];
	s->head[*rank] = s->node_next[node];
	if (!s->head[*rank]) {
		s->tail[*rank] = 0;
		pop_active(s);
	}
	return true;
}

/* Records the rank of the new pair at pos and queues the pair. */
static int repair(const struct cairn_bpe *bpe, struct cairn_bpe_scratch *s, int32_t pos)
{
	int32_t next = s->next[pos];

	s->rank[pos] = next < 0 ? NO_RANK : rank_of(bpe, s->id[pos], s->id[next]);
	return s->rank[pos] == NO_RANK ? 0 : push(s, s->rank[pos], pos);
}

/* Merges s->id[0..n) in place with the queue; returns the number of symbols left or a negative errno. */
static int64_t merge_long(const struct cairn_bpe *bpe, struct cairn_bpe_scratch *s, size_t n)
{
	size_t left = 0;
	int32_t rank, pos;

	if (!s->head) {
		s->head = calloc((size_t)bpe->num_merges + 1, sizeof(*s->head));
		s->tail = calloc((size_t)bpe->num_merges + 1, sizeof(*s->tail));
		if (!s->head || !s->tail)
			return cairn_error(ENOMEM, "no memory for %d queues", bpe->num_merges);
	}
	/* every piece drains the heaps and FIFOs, so all are empty here */
	s->num_nodes = 0;
	for (size_t i = 0; i < n; i++) {
		s->prev[i] = (int32_t)i - 1;
		s->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
	}
	for (size_t i = 0; i < n; i++)
		CAIRN_TRY(repair(bpe, s, (int32_t)i));
	while (pop(s, &rank, &pos)) {
		int32_t gone, after;

		if (s->rank[pos] != rank)
			continue;
		gone = s->next[pos];
		after = s->next[gone];
		s->id[pos] = bpe->merges[rank].result;
		s->rank[gone] = NO_RANK;
		s->id[gone] = -1;
		s->next[pos] = after;
		if (after >= 0)
			s->prev[after] = pos;
		if (s->prev[pos] >= 0)
			CAIRN_TRY(repair(bpe, s, s->prev[pos]));
		CAIRN_TRY(repair(bpe, s, pos));
	}
	for (size_t i = 0; i < n; i++)
		if (s->id[i] >= 0)
			s->id[left++] = s->id[i];
	return (int64_t)left;
}

int cairn_bpe_encode(const struct cairn_bpe *bpe, const char *piece, size_t len,
		     struct cairn_bpe_scratch *scratch, struct cairn_ids *ids)
{
	int64_t n;

	if (len == 0)
		return 0;
	if (bpe->ignore_merges) {
		int32_t whole = cairn_bpe_find(bpe, piece, len);

		if (whole >= 0)
			return cairn_ids_add(ids, whole);
	}
	CAIRN_TRY(reserve(scratch, len));
	n = split_chars(bpe, piece, len, scratch);
	if (n > SHORT_PIECE)
		n = merge_long(bpe, scratch, (size_t)n);
	else if (n > 1)
		n = (int64_t)merge_short(bpe, scratch->id, scratch->rank, (size_t)n);
	if (n < 0)
		return (int)n;
	for (int64_t i = 0; i < n; i++)
		CAIRN_TRY(cairn_ids_add(ids, scratch->id[i]));
	return 0;
}
