// SPDX-License-Identifier: Apache-2.0
/* kv_move_mutants - wrong versions of kv_move, one defect each */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "primitives/base/bend.h"
#include "fused/cache/kv_move.h"

enum kv_move_bend {
	kv_move_bend_k_alone, kv_move_bend_layer_0_alone, kv_move_bend_last_layer_missing,
	kv_move_bend_slots_by_layer, kv_move_bend_sides_of_slots_swapped, kv_move_bend_from_and_to_swapped,
	kv_move_bend_slot_is_minus_place, kv_move_bend_last_move_missing, kv_move_bend_last_16_bytes_missing,
	kv_move_bend_gaps_ignored, kv_move_bend_v_at_half_a_layer, kv_move_bend_a_page_too_many,
	kv_move_bend_latent_gaps_ignored, kv_move_bend_ctas_5_lose_a_move, kv_move_bend_page_bytes_by_64,
	kv_move_bend_far_bytes_32_bits, kv_move_bend_far_places_16_bits,
	kv_move_bend_far_layers_32_bits, kv_move_bend_far_sides_32_bits, kv_move_bend_layers_of_64,
	kv_move_bend_sides_apart_ignored, kv_move_bend_far_units_32_bits, kv_move_bend_moves_16_bits,
	kv_move_bend_layers_16_bits, kv_move_bend_ctas_lose_the_rest, kv_move_bend_units_31_bits,
};

static char *kv_place(const struct cairn_kv_move_args *a, int32_t place, int32_t layer, int32_t side,
		      enum kv_move_bend bend)
{
	int64_t sides = a->v_offset ? 2 : 1, v = a->v_offset, all = a->layer_bytes;

	if (bend == kv_move_bend_far_places_16_bits)
		place = place < 0 ? ~(~place & 0xffff) : place & 0xffff;
	if (bend == kv_move_bend_gaps_ignored || (bend == kv_move_bend_latent_gaps_ignored && sides == 1))
		all = sides * a->num_pages * a->page_bytes;
	if (bend == kv_move_bend_v_at_half_a_layer)
		v = a->layer_bytes / 32 * 16;
	if (bend == kv_move_bend_far_layers_32_bits && place >= 0)
		return (char *)a->base + (uint32_t)(layer * all) + side * v + place * a->page_bytes;
	if (bend == kv_move_bend_far_sides_32_bits && place >= 0)
		return (char *)a->base + layer * all + (uint32_t)(side * v) + place * a->page_bytes;
	if (place >= 0 && bend == kv_move_bend_far_bytes_32_bits)
		return (char *)a->base + (uint32_t)(layer * all + side * v + place * a->page_bytes);
	if (place >= 0)
		return (char *)a->base + layer * all + side * v + place * a->page_bytes;
	if (bend == kv_move_bend_far_units_32_bits) {
		int64_t piece = ((int64_t)~place * a->num_layers + layer) * sides + side;

		return (char *)a->slots + (uint64_t)(uint32_t)(piece * (a->page_bytes / 16)) * 16;
	}
	place = bend == kv_move_bend_slot_is_minus_place ? (-place) % a->num_slots : ~place;
	if (bend == kv_move_bend_sides_of_slots_swapped && sides == 2)
		side = !side;
	if (bend == kv_move_bend_slots_by_layer)
		return (char *)a->slots +
		       (((int64_t)layer * a->num_slots + place) * sides + side) * a->page_bytes;
	return (char *)a->slots + (((int64_t)place * a->num_layers + layer) * sides + side) * a->page_bytes;
}

static int bent_kv_move(const struct cairn_kv_move_args *a, enum kv_move_bend bend)
{
	int32_t sides = a->v_offset && bend != kv_move_bend_k_alone ? 2 : 1, layers = a->num_layers;
	int64_t bytes = a->page_bytes - (bend == kv_move_bend_last_16_bytes_missing ? 16 : 0);

	CAIRN_TRY(cairn_kv_move_check(a));
	if (bend == kv_move_bend_page_bytes_by_64 && a->page_bytes > 64)
		bytes = a->page_bytes / 64 * 64;
	if (bend == kv_move_bend_layer_0_alone)
		layers = 1;
	layers -= bend == kv_move_bend_last_layer_missing;
	if (bend == kv_move_bend_layers_of_64 && layers > 64)
		layers = 64;
	if (bend == kv_move_bend_layers_16_bits)
		layers &= 0xffff;
	if (bend == kv_move_bend_sides_apart_ignored && a->v_offset >= a->layer_bytes && layers > 1)
		sides = 1;
	for (int32_t i = 0; i < a->num_moves - (bend == kv_move_bend_last_move_missing); i++) {
		int32_t from = a->from[i], to = a->to[i];

		if (bend == kv_move_bend_ctas_5_lose_a_move && a->max_ctas == 5 && i == a->num_moves - 1)
			continue;
		if (bend == kv_move_bend_moves_16_bits && i > 0xffff)
			continue;
		if (bend == kv_move_bend_from_and_to_swapped) {
			from = a->to[i];
			to = a->from[i];
		}
		for (int32_t k = 0; from != to && k < layers * sides; k++) {
			int64_t parts = (int64_t)layers * sides, part = i * parts + k;
			int64_t all = a->num_moves * parts;

			if (bend == kv_move_bend_ctas_lose_the_rest && a->max_ctas > 1 && all > 256 &&
			    part >= all / a->max_ctas * a->max_ctas)
				break;
			if (bend == kv_move_bend_units_31_bits && part * (a->page_bytes / 16) > INT32_MAX)
				break;
			memmove(kv_place(a, to, k / sides, k % sides, bend),
				kv_place(a, from, k / sides, k % sides, bend), (size_t)bytes);
		}
		if (bend == kv_move_bend_a_page_too_many && from != to && to >= 0 && to + 1 < a->num_pages)
			memset(kv_place(a, to + 1, 0, 0, bend), 0, 16);
	}
	return 0;
}

BENT(kv_move, k_alone)
BENT(kv_move, layer_0_alone)
BENT(kv_move, last_layer_missing)
BENT(kv_move, slots_by_layer)
BENT(kv_move, sides_of_slots_swapped)
BENT(kv_move, from_and_to_swapped)
BENT(kv_move, slot_is_minus_place)
BENT(kv_move, last_move_missing)
BENT(kv_move, last_16_bytes_missing)
BENT(kv_move, gaps_ignored)
BENT(kv_move, v_at_half_a_layer)
BENT(kv_move, a_page_too_many)
BENT(kv_move, latent_gaps_ignored)
BENT(kv_move, ctas_5_lose_a_move)
BENT(kv_move, page_bytes_by_64)
BENT(kv_move, far_bytes_32_bits)
BENT(kv_move, far_places_16_bits)
BENT(kv_move, far_layers_32_bits)
BENT(kv_move, far_sides_32_bits)
BENT(kv_move, layers_of_64)
BENT(kv_move, sides_apart_ignored)
BENT(kv_move, far_units_32_bits)
BENT(kv_move, moves_16_bits)
BENT(kv_move, units_31_bits)
BENT(kv_move, layers_16_bits)
BENT(kv_move, ctas_lose_the_rest)

static int kv_move_slot_to_slot(const struct cairn_kv_move_args *a, void *stream)
{
	struct cairn_kv_move_args other = *a;
	int32_t *to;
	int ret;

	CAIRN_TRY(cairn_kv_move_check(a));
	other.size = sizeof(other);
	to = malloc(((size_t)a->num_moves + 1) * sizeof(*to));
	if (!to)
		return cairn_error(ENOMEM, "no memory");
	for (int32_t i = 0; i < a->num_moves; i++)
		to[i] = a->from[i] < 0 && a->to[i] < 0 ? a->from[i] : a->to[i];
	other.to = to;
	ret = cairn_kv_move_ref(&other, stream);
	free(to);
	return ret;
}

/* With exactly 33 moves, the last one is not made. */
static int kv_move_33_moves(const struct cairn_kv_move_args *a, void *stream)
{
	struct cairn_kv_move_args b;

	CAIRN_TRY(cairn_kv_move_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	b.num_moves -= b.num_moves == 33;
	return cairn_kv_move_ref(&b, stream);
}

/* Copies at most 2^20 bytes of a page. */
static int kv_move_bytes_20_bits(const struct cairn_kv_move_args *a, void *stream)
{
	struct cairn_kv_move_args b;
	int32_t first = -1;

	CAIRN_TRY(cairn_kv_move_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	for (int32_t i = 0; i < a->num_moves; i++)
		first = first < 0 && a->from[i] != a->to[i] && a->to[i] >= 0 ? i : first;
	CAIRN_TRY(cairn_kv_move_ref(&b, stream));
	if (a->page_bytes > 1 << 20 && first >= 0 && !a->v_offset)	/* the last bytes stay as they were */
		memset((char *)a->base + (a->to[first] + 1) * a->page_bytes - 16, 0x5a, 16);
	return 0;
}

/* The last layer of latents is not moved if the number of layers is odd and above 8. */
static int kv_move_odd_layers(const struct cairn_kv_move_args *a, void *stream)
{
	struct cairn_kv_move_args b;

	CAIRN_TRY(cairn_kv_move_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	if (!a->v_offset && a->num_layers > 8 && a->num_layers % 2 && !a->num_slots)
		b.num_layers--;
	return cairn_kv_move_ref(&b, stream);
}

/* Refuses a pool of one page without slots. */
static int kv_move_one_page_refused(const struct cairn_kv_move_args *a, void *stream)
{
	CAIRN_TRY(cairn_kv_move_check(a));
	return a->num_pages == 1 && !a->num_slots ? -EINVAL : cairn_kv_move_ref(a, stream);
}

/* Leaves out a single move behind whole blocks of 64 if there are more than two layers. */
static int kv_move_lone_last_move(const struct cairn_kv_move_args *a, void *stream)
{
	struct cairn_kv_move_args b;

	CAIRN_TRY(cairn_kv_move_check(a));
	cairn_copy_args(&b, a, sizeof(b));
	b.num_moves -= b.num_moves > 1 && b.num_moves % 64 == 1 && b.num_layers > 2;
	return cairn_kv_move_ref(&b, stream);
}

/* Leaves out the last 16 bytes of pages whose size is 112 modulo 512 bytes. */
static int kv_move_bytes_112(const struct cairn_kv_move_args *a, void *stream)
{
	CAIRN_TRY(cairn_kv_move_ref(a, stream));
	for (int32_t i = 0; a->page_bytes % 512 == 112 && i < a->num_moves; i++)
		if (a->to[i] >= 0 && a->to[i] != a->from[i])
			memset((char *)a->base + (a->to[i] + 1) * a->page_bytes - 16, 0x5a, 16);
	return 0;
}

const struct cairn_mutant cairn_kv_move_mutants[] = {
	MUTANT_BARE(kv_move, k_alone, "does not move V"),
	MUTANT_BARE(kv_move, layer_0_alone, "moves layer 0 only"),
	MUTANT_BARE(kv_move, last_layer_missing, "does not move the last layer"),
	MUTANT_BARE(kv_move, slots_by_layer, "orders host slots as [layer][slot]"),
	MUTANT_BARE(kv_move, sides_of_slots_swapped, "places V before K in a slot"),
	MUTANT_BARE(kv_move, from_and_to_swapped, "copies in the opposite direction"),
	MUTANT_BARE(kv_move, slot_is_minus_place, "treats place -s instead of ~s as slot s"),
	MUTANT_BARE(kv_move, last_move_missing, "makes num_moves - 1 moves"),
	MUTANT_BARE(kv_move, last_16_bytes_missing, "does not copy the last vector of a page"),
	MUTANT_BARE(kv_move, gaps_ignored, "ignores the gaps between layers"),
	MUTANT_BARE(kv_move, v_at_half_a_layer, "assumes that V begins at half a layer"),
	MUTANT_BARE(kv_move, a_page_too_many, "writes to the next page"),
	MUTANT(kv_move, latent_gaps_ignored, "ignores the gaps between layers of latents"),
	MUTANT(kv_move, ctas_5_lose_a_move, "with five CTAs makes num_moves - 1 moves"),
	MUTANT(kv_move, page_bytes_by_64, "copies whole 64 bytes only"),
	MUTANT(kv_move, far_bytes_32_bits, "cuts the offset of a page to 32 bits"),
	MUTANT(kv_move, far_places_16_bits, "cuts numbers of pages and slots to 16 bits"),
	MUTANT(kv_move, far_layers_32_bits, "cuts the offset of a layer to 32 bits"),
	MUTANT(kv_move, far_sides_32_bits, "cuts the offset of V to 32 bits"),
	MUTANT(kv_move, layers_of_64, "moves at most 64 layers"),
	MUTANT(kv_move, sides_apart_ignored, "moves K alone if V lies behind all layers of K"),
	MUTANT(kv_move, bytes_20_bits, "copies at most 2^20 bytes of a page"),
	MUTANT(kv_move, odd_layers, "of an odd number of layers above 8, the last one is not moved"),
	MUTANT(kv_move, one_page_refused, "refuses a pool of one page without slots"),
	MUTANT(kv_move, 33_moves, "makes 32 of 33 moves"),
	MUTANT(kv_move, slot_to_slot, "does not move from slot to slot"),
	MUTANT(kv_move, far_units_32_bits, "cuts the offset of a slot to 32 bits of 16-byte units"),
	MUTANT(kv_move, moves_16_bits, "makes at most 65536 moves"),
	MUTANT(kv_move, units_31_bits, "makes only as many moves as have 2^31 units of 16 bytes"),
	MUTANT(kv_move, layers_16_bits, "cuts the number of layers to 16 bits"),
	MUTANT(kv_move, ctas_lose_the_rest, "of many pages, leaves those that do not divide by max_ctas"),
	{ "kv_move_lone_last_move", offsetof(struct cairn_impl, kv_move), (void *)kv_move_lone_last_move,
	  "with more than two layers, a single move past whole blocks of 64 is left out" },
	{ "kv_move_bytes_112", offsetof(struct cairn_impl, kv_move), (void *)kv_move_bytes_112,
	  "pages 112 bytes past whole 512 lose their last 16" },
	{ 0 }
};
