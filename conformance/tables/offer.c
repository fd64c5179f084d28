// SPDX-License-Identifier: Apache-2.0
#include "conformance/tables/offer.h"

#include "conformance/tables/tables.h"
#include "primitives/comm/comm_host.h"

const struct cairn_offer cairn_offer = {
	.cpu = &cairn_impl_cpu, .ref = &cairn_impl_ref, .host = &cairn_host_runtime,
#define F(name) .name = cairn_##name,
	CAIRN_OFFERED(F)
#undef F
	.comm_host_check = comm_host_check,
};
