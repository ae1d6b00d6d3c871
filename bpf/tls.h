/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * TLS is looked at just enough not to take its handshake, its session tickets
 * and its closing alert for requests and responses. The tickets of TLS 1.3 look
 * like a response. They come before it: so what may be tickets is taken for the
 * response only if no more comes, and for tickets if more comes later.
 */
#ifndef HEADGATE_TLS_H
#define HEADGATE_TLS_H

#include "postgres.h"

/* More than the tickets of any server: implementations send one to four of 100 to 300 bytes. */
#define TICKETS_LENGTH 4096

#define TLS_CHANGE_CIPHER_SPEC 0x14
#define TLS_ALERT 0x15
#define TLS_HANDSHAKE 0x16
#define TLS_APPLICATION_DATA 0x17
#define TLS_CLIENT_HELLO 1
/* Lengths of whole records; those of TLS 1.3: header, content, its type, an AEAD tag. */
#define TLS_CHANGE_CIPHER_SPEC_LENGTH (5 + 1)
#define TLS13_ALERT_LENGTH (5 + 2 + 1 + 16)
#define TLS13_FINISHED_SHA256_LENGTH (5 + 4 + 32 + 1 + 16)
#define TLS13_FINISHED_SHA384_LENGTH (5 + 4 + 48 + 1 + 16)

struct record {
	__u8 type;
	__u8 version[2];
	__u8 length[2];
	__u8 first; /* of the content */
};

/* Whether a request may ride on a segment that belongs to the client's part of a handshake. */
static __always_inline bool handshake_has_request(struct __sk_buff *skb, struct conn *c,
						  struct segment *s, struct record *r)
{
	__u32 begin = 0, length;
	bool last;

	if (r->type == TLS_CHANGE_CIPHER_SPEC) {
		begin = TLS_CHANGE_CIPHER_SPEC_LENGTH;
		if (s->len < begin + sizeof(*r) ||
		    load_payload(skb, s, begin, r, sizeof(*r)))
			return false;
	}
	length = offsetof(struct record, first) + (r->length[0] << 8 | r->length[1]);
	last = s->len == begin + length;

	if (r->type == TLS_HANDSHAKE) {
		/* In TLS 1.3 only a second hello is in the clear. */
		if (r->first != TLS_CLIENT_HELLO)
			c->flags = CONN_SPOKE | CONN_TLS;
		return begin && !last;
	}
	c->flags = CONN_SPOKE | CONN_TLS | CONN_TICKET;
	return !(last && (length == TLS13_FINISHED_SHA256_LENGTH ||
			  length == TLS13_FINISHED_SHA384_LENGTH));
}

/* Whether this client segment can be (the end of) a request. */
static __always_inline bool is_request(struct __sk_buff *skb, struct conn *c, struct segment *s)
{
	__u32 flags = c->flags;
	struct record r;

	if ((flags & (CONN_SPOKE | CONN_TLS)) == CONN_SPOKE) {
		if (flags & CONN_LOGIN && postgres_login(skb, c, s))
			return false;
		return !postgres_ends(skb, s);
	}
	c->flags = flags | CONN_SPOKE;
	if (s->len < sizeof(r) || load_payload(skb, s, 0, &r, sizeof(r)))
		return !(flags & CONN_HANDSHAKE);

	if (!(flags & CONN_SPOKE)) {
		if (r.type != TLS_HANDSHAKE || r.version[0] != 3)
			return !postgres_starts(skb, c, s, flags);
		c->flags = CONN_SPOKE | CONN_TLS | CONN_HANDSHAKE;
		return false;
	}
	if (r.type == TLS_ALERT)
		return false;
	if (r.type == TLS_APPLICATION_DATA && s->len == TLS13_ALERT_LENGTH)
		return false;
	if (c->first) {
		if (c->first >= TICKET_TIME)
			conn_answered(c, c->first);
		c->first = 0;
		c->flags = CONN_SPOKE | CONN_TLS;
	}
	if (flags & CONN_HANDSHAKE)
		return handshake_has_request(skb, c, s, &r);
	return true;
}

/* Whether what the client said unseen was its hello: this is the first output. */
static __always_inline bool was_hello(struct __sk_buff *skb, struct conn *c, struct segment *s)
{
	__u8 begin[2]; /* type, major version */

	c->flags &= ~CONN_UNSEEN;
	if (s->len < sizeof(begin) || load_payload(skb, s, 0, begin, sizeof(begin)) ||
	    begin[0] != TLS_HANDSHAKE || begin[1] != 3)
		return false;
	c->flags = CONN_SPOKE | CONN_TLS | CONN_HANDSHAKE;
	return true;
}

/* Whether this output of TLS is a response, took ns after the request. */
static __always_inline bool is_response(struct __sk_buff *skb, struct conn *c,
					struct segment *s, __u64 took)
{
	__u8 type;

	if (!load_payload(skb, s, 0, &type, sizeof(type)) &&
	    type >= TLS_CHANGE_CIPHER_SPEC && type < TLS_APPLICATION_DATA)
		return false;
	if (!(c->flags & CONN_TICKET))
		return true;
	if (s->len == TLS13_ALERT_LENGTH)
		return c->first; /* it closes: what came before was all */
	if (s->len <= TICKETS_LENGTH) {
		if (!c->first)
			c->first = took;
		if (took - c->first < TICKET_TIME)
			return false;
	}
	c->flags = CONN_SPOKE | CONN_TLS;
	return true;
}

#endif
