// SPDX-License-Identifier: Apache-2.0
/* member - how a worker joins a lead (member.h) */
#include "serving/remote/member/member.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "rdma/transport/transport.h"
#include "serving/base/clock.h"
#include "serving/remote/control/address.h"
#include "serving/remote/lead/lead.h"

#define RETRY_NS	50000000	/* between two attempts to reach the lead */

/* Dials until the lead listens. */
static int dial(const struct cairn_member_options *o, int *fd)
{
	const struct timespec nap = { 0, RETRY_NS };
	const int64_t until = cairn_clock_ns() + o->join_ms * 1000000ll;
	int ret;

	while ((ret = cairn_address_dial(fd, o->join, CAIRN_LEAD_SHAKE_MS)) && ret != -EINVAL &&
	       cairn_clock_ns() < until)
		nanosleep(&nap, NULL);
	return ret;
}

static int open_channel(struct cairn_member *m, const struct cairn_member_options *o, int fd)
{
	uint8_t secret[CAIRN_SECRET_BYTES];
	int ret = o->secret_file ? cairn_secret_load(secret, o->secret_file) : 0;

	if (!ret && o->address)
		snprintf(m->address, sizeof(m->address), "%s", o->address);
	else if (!ret)
		ret = cairn_address_own(fd, m->address, sizeof(m->address));
	if (ret) {
		close(fd);
		return ret;
	}
	ret = cairn_channel_open(&m->c, fd, CAIRN_CHANNEL_MEMBER, o->secret_file ? secret : NULL,
				 CAIRN_LEAD_SHAKE_MS);
	explicit_bzero(secret, sizeof(secret));
	return ret;
}

static int say_join(struct cairn_member *m, const struct cairn_control_join *as)
{
	struct cairn_control_join j = *as;

	j.version = CAIRN_CONTROL_VERSION;
	j.rank = -1;
	j.digest = strtoull(cairn_source_digest(), NULL, 16);
	j.pid = (int32_t)getpid();
	for (int i = 0; i < 32 && cairn_transport_get(i); i++)
		if (!strcmp(cairn_transport_get(i)->name, "tcp"))
			j.transports |= 1u << i;
	return cairn_control_send(m->c, CAIRN_CONTROL_JOIN, &j, sizeof(j), NULL, 0, CAIRN_MEMBER_SEND_MS);
}

int cairn_member_join(struct cairn_member *m, const struct cairn_member_options *o,
		      const struct cairn_control_join *as)
{
	int fd, ret;

	*m = (struct cairn_member){ 0 };
	CAIRN_TRY(dial(o, &fd));
	CAIRN_TRY(open_channel(m, o, fd));
	ret = say_join(m, as);
	if (ret)
		cairn_channel_close(m->c);
	return ret;
}

int cairn_member_beat(struct cairn_member *m, uint64_t passes)
{
	const struct cairn_control_beat beat = { passes, cairn_clock_ns() };

	if (beat.now_ns < m->beat_ns)
		return 0;
	m->beat_ns = beat.now_ns + CAIRN_LEAD_BEAT_MS * 1000000ll;
	return cairn_control_send(m->c, CAIRN_CONTROL_BEAT, &beat, sizeof(beat), NULL, 0,
				  CAIRN_MEMBER_SEND_MS);
}

int cairn_member_check_refusal(const struct cairn_channel_message *m)
{
	return m->kind != CAIRN_CONTROL_REFUSE ? 0 :
	       cairn_error(EPERM, "the lead refuses this worker: %.*s", (int)m->num_bytes,
			   (const char *)m->data);
}

static void say_failed(struct cairn_member *m)
{
	char text[CAIRN_CONTROL_TEXT];

	snprintf(text, sizeof(text), "%s", cairn_last_error());
	cairn_control_send(m->c, CAIRN_CONTROL_FAILED, NULL, 0, text, strlen(text), CAIRN_MEMBER_SEND_MS);
	cairn_error(EIO, "%s", text);
}

int cairn_member_leave(struct cairn_member *m, int ret)
{
	if (ret == -ECONNRESET && cairn_channel_was_closed(m->c))
		ret = 0;
	else if (ret != -ECONNRESET && ret != -EPERM)
		say_failed(m);
	cairn_channel_close(m->c);
	m->c = NULL;
	return ret;
}
