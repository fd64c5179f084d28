// SPDX-License-Identifier: Apache-2.0
/* relay - pages that go from one stripe to another (relay.h) */
#include "serving/remote/attention/relay.h"

#include "primitives/base/error.h"

#define PUT_MS	5000

int cairn_relay_give(struct cairn_relay *r)
{
	const struct cairn_put put = {
		.local = r->region, .remote = r->to, .bytes = r->bytes, .value = r->given + 1,
		.slot = CAIRN_SLOT_PAGE,
	};

	CAIRN_TRY(r->table->put(r->c, &put, PUT_MS));
	r->given++;
	return r->await(r->ctx, CAIRN_SLOT_TAKEN, r->given);
}

int cairn_relay_take(struct cairn_relay *r)
{
	return r->await(r->ctx, CAIRN_SLOT_PAGE, r->taken + 1);
}

int cairn_relay_taken(struct cairn_relay *r)
{
	const struct cairn_put put = { .value = ++r->taken, .slot = CAIRN_SLOT_TAKEN };

	return r->table->put(r->c, &put, PUT_MS);
}
