// SPDX-License-Identifier: Apache-2.0
/* http_peers - counts the connections of each client address; IPv4 is stored as ::ffff:a.b.c.d */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "serving/http/http_impl.h"

void http_address_of(const struct sockaddr_storage *ss, struct in6_addr *address)
{
	memset(address, 0, sizeof(*address));
	if (ss->ss_family == AF_UNIX)	/* all zeros, which is no address of a TCP client */
		return;
	if (ss->ss_family == AF_INET6) {
		*address = ((const struct sockaddr_in6 *)ss)->sin6_addr;
		return;
	}
	address->s6_addr[10] = address->s6_addr[11] = 0xff;
	memcpy(address->s6_addr + 12, &((const struct sockaddr_in *)ss)->sin_addr, 4);
}

void http_address_text(const struct in6_addr *address, char text[INET6_ADDRSTRLEN])
{
	if (IN6_IS_ADDR_UNSPECIFIED(address))
		strcpy(text, "unix");
	else if (IN6_IS_ADDR_V4MAPPED(address))
		inet_ntop(AF_INET, address->s6_addr + 12, text, INET6_ADDRSTRLEN);
	else
		inet_ntop(AF_INET6, address, text, INET6_ADDRSTRLEN);
}

static struct http_peer **bucket(struct cairn_http *http, const struct in6_addr *address)
{
	uint64_t h = http->id_seed;

	for (int i = 0; i < 16; i++)
		h = (h ^ address->s6_addr[i]) * 0x100000001b3ull;
	return &http->peers[(h ^ h >> 32) % HTTP_PEER_BUCKETS];
}

struct http_peer *http_peer_get(struct cairn_http *http, const struct in6_addr *address)
{
	struct in6_addr key = *address;
	struct http_peer **first, *p;

	/* a host with one IPv6 address usually controls its whole /64 */
	if (!IN6_IS_ADDR_V4MAPPED(&key))
		memset(key.s6_addr + 8, 0, 8);
	first = bucket(http, &key);
	for (p = *first; p; p = p->next) {
		if (!memcmp(&p->address, &key, sizeof(key)))
			break;
	}
	if (!p) {
		p = calloc(1, sizeof(*p));
		if (!p)
			return NULL;
		p->address = key;
		p->next = *first;
		*first = p;
	}
	p->connections++;
	return p;
}

void http_peer_put(struct cairn_http *http, struct http_peer *peer)
{
	struct http_peer **p;

	if (--peer->connections)
		return;
	p = bucket(http, &peer->address);
	while (*p != peer)
		p = &(*p)->next;
	*p = peer->next;
	free(peer);
}
