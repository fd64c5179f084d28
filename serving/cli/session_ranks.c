// SPDX-License-Identifier: Apache-2.0
/* session_ranks - sessions of several ranks */
#include "serving/cli/session_ranks.h"

#include <stdio.h>

#include "primitives/base/error.h"

int cairn_check_ranks(const struct cairn_common_options *o, const char *plan, const char *slices)
{
	const char *excluded = plan ? "plan" : slices ? "slices" : o->weights ? "weights" : NULL;

	if (o->tp > 1 && excluded)
		return cairn_error(EINVAL, "--tp: excludes --%s", excluded);
	return 0;
}

int cairn_ranks_fork(struct cairn_tp **tp, const struct cairn_common_options *o)
{
	*tp = NULL;
	return o->tp > 1 ? cairn_tp_fork(tp, (int32_t)o->tp, (int32_t)o->collective_s * 1000) : 0;
}

int cairn_session_start_rank(struct cairn_session *s, const struct cairn_common_options *o,
			     struct cairn_tp *tp)
{
	int ret = cairn_session_start(s, o->impl, (int)o->device + (tp ? cairn_tp_rank(tp) : 0));

	if (ret && (s->impl.flags & CAIRN_IMPL_HOST_MEM))	/* all ranks of a host table have device 0 */
		ret = cairn_session_start(s, o->impl, (int)o->device);
	CAIRN_TRY(ret);
	s->weights = (enum cairn_weights)o->weights;
	s->kv = (enum cairn_kv_form)o->kv;
	if (!tp)
		return 0;
	s->rank = cairn_tp_rank(tp);
	s->ranks = cairn_tp_ranks(tp);
	return cairn_tp_table(tp, &s->impl);
}

int cairn_session_follow(const struct cairn_common_options *o, struct cairn_tp *tp, const char *shape,
			 uint64_t seed, const char *command)
{
	struct cairn_session s = { 0 };
	int ret = cairn_session_start_rank(&s, o, tp);

	if (!ret)
		ret = shape ? cairn_session_shape(&s, shape, seed) : cairn_session_load(&s, o->model);
	if (!ret)
		ret = cairn_tp_follow(tp, s.model);
	if (ret && ret != -ECONNRESET) {	/* else rank 0 tells why it has ended */
		fprintf(stderr, "cairn %s: rank %d: %s\n", command, cairn_tp_rank(tp), cairn_last_error());
		cairn_tp_fail(tp);
	}
	cairn_tp_close(tp);
	cairn_session_close(&s);
	return ret ? CAIRN_EXIT_FAILED : CAIRN_EXIT_OK;
}
