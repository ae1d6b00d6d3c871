/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Service time, from the packets of a protected connection: last byte of a
 * request in to first byte of the response out. Only payload counts that was
 * not seen before, so that retransmissions and probes begin and end nothing.
 *
 * TLS is looked at just enough not to take its handshake, its session tickets
 * and its closing alert for requests and responses. The tickets of TLS 1.3 look
 * like a response. They come before it: so what may be tickets is taken for the
 * response only if no more comes, and for tickets if more comes later.
 */
#ifndef HEADGATE_SERVICE_H
#define HEADGATE_SERVICE_H

#include "conn.h"

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

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

struct segment {
	__u32 seq;     /* of the first payload byte */
	__u32 len;     /* of the payload, 0 if there is none */
	__u32 offset;  /* of the payload in the packet */
};

/* From the network header on; the transport header follows at once (IPv6 extension headers: no). */
static __always_inline bool parse_segment(struct __sk_buff *skb, struct segment *s)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	__u8 *ip = data, *tcp;
	__u32 ip_len;

	if (data + 40 > end)
		return false;
	if (ip[0] >> 4 == 4) {
		if (ip[9] != IPPROTO_TCP)
			return false;
		ip_len = (ip[0] & 0xf) << 2;
	} else {
		if (ip[6] != IPPROTO_TCP)
			return false;
		ip_len = 40;
	}
	tcp = data + ip_len;
	if ((void *)tcp + 20 > end)
		return false;
	s->seq = bpf_ntohl(*(__be32 *)(tcp + 4));
	s->offset = ip_len + ((tcp[12] >> 4) << 2);
	s->len = skb->len > s->offset ? skb->len - s->offset : 0;
	return true;
}

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
		    bpf_skb_load_bytes(skb, s->offset + begin, r, sizeof(*r)))
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

	if ((flags & (CONN_SPOKE | CONN_TLS)) == CONN_SPOKE)
		return true;
	c->flags = flags | CONN_SPOKE;
	if (s->len < sizeof(r) || bpf_skb_load_bytes(skb, s->offset, &r, sizeof(r)))
		return !(flags & CONN_HANDSHAKE);

	if (!(flags & CONN_SPOKE)) {
		if (r.type != TLS_HANDSHAKE || r.version[0] != 3)
			return true;
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

/* Whether this output of TLS is a response, took ns after the request. */
static __always_inline bool is_response(struct __sk_buff *skb, struct conn *c,
					struct segment *s, __u64 took)
{
	__u8 type;

	if (!bpf_skb_load_bytes(skb, s->offset, &type, sizeof(type)) &&
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

static __always_inline struct conn *conn_of_packet(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return NULL;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return NULL;
	return bpf_sk_storage_get(&conns, sk, 0, 0);
}

static __always_inline bool after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

static __always_inline void packet_in(struct __sk_buff *skb)
{
	struct conn *c = conn_of_packet(skb);
	struct segment s;
	__u64 now;

	if (!c || !parse_segment(skb, &s) || !s.len || !after(s.seq + s.len, c->in_end))
		return;
	c->in_end = s.seq + s.len;
	if (!is_request(skb, c, &s))
		return;
	now = bpf_ktime_get_ns();
	c->asked = now;
	conn_wake(c);
	if (c->cohort && signal_of(c->target) == SIGNAL_SERVICE)
		cohort_join(c, now);
}

static __always_inline void packet_out(struct __sk_buff *skb)
{
	struct conn *c = conn_of_packet(skb);
	struct segment s;
	__u64 asked, took;

	if (!c || !parse_segment(skb, &s) || !s.len || !after(s.seq + s.len, c->out_end))
		return;
	c->out_end = s.seq + s.len;
	asked = c->asked;
	if (!asked)
		return;
	took = bpf_ktime_get_ns() - asked;
	if (c->flags & CONN_TLS && !is_response(skb, c, &s, took))
		return;
	conn_answered(c, took);
}

#endif
