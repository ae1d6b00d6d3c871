/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * PostgreSQL is looked at just enough not to take the start of a session, its
 * passwords and its end for requests. Section "Message Formats" of its manual.
 */
#ifndef HEADGATE_POSTGRES_H
#define HEADGATE_POSTGRES_H

#include "conn.h"
#include "segment.h"

#define POSTGRES_MAJOR 3               /* of the protocol, in the upper half of the version */
#define POSTGRES_CANCEL 80877102       /* on a connection of its own */
#define POSTGRES_SSL 80877103          /* asks for TLS; the answer is one byte */
#define POSTGRES_GSS 80877104
#define POSTGRES_PASSWORD 'p'          /* and everything else that proves who it is */
#define POSTGRES_TERMINATE 'X'

/* What the first payload of a session may be: its length, and a version or a code. */
struct postgres_start {
	__be32 length, code;
};

/* Whether the first payload of a connection begins a session of PostgreSQL. */
static __always_inline bool postgres_starts(struct __sk_buff *skb, struct conn *c, struct segment *s,
					    __u32 flags)
{
	struct postgres_start start;
	__u32 code;

	if (s->len < sizeof(start) || load_payload(skb, s, 0, &start, sizeof(start)) ||
	    bpf_ntohl(start.length) != s->len)
		return false;
	code = bpf_ntohl(start.code);
	if (code == POSTGRES_SSL || code == POSTGRES_GSS) {
		c->flags = flags; /* what comes next is the first of all, or of TLS */
		return s->len == sizeof(start);
	}
	if (code == POSTGRES_CANCEL)
		return s->len == sizeof(start) + 2 * sizeof(__be32);
	if (code >> 16 != POSTGRES_MAJOR)
		return false;
	c->flags = flags | CONN_SPOKE | CONN_LOGIN;
	return true;
}

/* Whether a client that has not asked for anything yet still says who it is. */
static __always_inline bool postgres_login(struct __sk_buff *skb, struct conn *c, struct segment *s)
{
	__u8 type;

	if (!load_payload(skb, s, 0, &type, sizeof(type)) && type == POSTGRES_PASSWORD)
		return true;
	c->flags = CONN_SPOKE;
	return false;
}

static __always_inline bool postgres_ends(struct __sk_buff *skb, struct segment *s)
{
	struct {
		__u8 type;
		__be32 length; /* that of itself */
	} __attribute__((packed)) m;

	return s->len == sizeof(m) && !load_payload(skb, s, 0, &m, sizeof(m)) &&
	       m.type == POSTGRES_TERMINATE && m.length == bpf_htonl(sizeof(m.length));
}

#endif
