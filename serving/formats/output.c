// SPDX-License-Identifier: Apache-2.0
/* output - the list of what an answer consists of */
#include <stdlib.h>
#include <string.h>

#include "serving/formats/output_parser_impl.h"

void output_grow(struct cairn_output *p, enum cairn_piece_kind kind, size_t n)
{
	struct cairn_piece *grown;

	if (p->num && p->v[p->num - 1].kind == kind && kind != CAIRN_PIECE_NAME) {
		p->v[p->num - 1].num_bytes += n;
		return;
	}
	if (p->num == p->room) {
		size_t room = p->room ? 2 * p->room : 4;

		grown = realloc(p->v, room * sizeof(*grown));
		if (!grown) {
			p->text.failed = true;
			return;
		}
		p->v = grown;
		p->room = room;
	}
	p->v[p->num++] = (struct cairn_piece){ .kind = kind, .number = -1, .num_bytes = n };
}

void cairn_output_add(struct cairn_output *p, enum cairn_piece_kind kind, const char *s, size_t n)
{
	if (!n)
		return;
	cairn_api_put(&p->text, s, n);
	if (!p->text.failed)
		output_grow(p, kind, n);
}

void cairn_output_drop(struct cairn_output *p, size_t n)
{
	if (!p->num)
		return;
	p->text.len -= n;
	memmove(p->text.s, p->text.s + n, p->text.len);
	p->v[0].num_bytes -= n;
	if (!p->v[0].num_bytes)
		memmove(p->v, p->v + 1, --p->num * sizeof(*p->v));
}

void cairn_output_free(struct cairn_output *p)
{
	cairn_api_out_free(&p->text);
	free(p->v);
	*p = (struct cairn_output){ 0 };
}
