/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Service time, from the packets of a protected connection: last byte of a
 * request in to first byte of the response out. Only payload counts that was
 * not seen before, so that retransmissions and probes begin and end nothing.
 *
 * TLS is looked at just enough not to take its handshake, its session tickets
 * and its closing alert for requests and responses.
 */
#ifndef HEADGATE_SERVICE_H
#define HEADGATE_SERVICE_H

#include "conn.h"

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

/* Session tickets follow the handshake within this time, or the response is slow. */
#define TICKET_TIME 1000000ULL

#define TLS_CHANGE_CIPHER_SPEC 0x14
#define TLS_ALERT 0x15
#define TLS_HANDSHAKE 0x16
#define TLS_APPLICATION_DATA 0x17
/* Record length of an alert under TLS 1.3: two bytes, its type, an AEAD tag. */
#define TLS13_ALERT_LENGTH 19

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

/* Whether this client segment can be (the end of) a request. */
static __always_inline bool is_request(struct __sk_buff *skb, struct conn *c, struct segment *s)
{
	__u32 flags = c->flags;
	__u8 h[5];

	if ((flags & (CONN_SPOKE | CONN_TLS)) == CONN_SPOKE)
		return true;
	c->flags = flags | CONN_SPOKE;
	if (s->len < sizeof(h) || bpf_skb_load_bytes(skb, s->offset, h, sizeof(h)))
		return true;

	if (!(flags & CONN_SPOKE)) {
		if (h[0] != TLS_HANDSHAKE || h[1] != 3)
			return true;
		c->flags = CONN_SPOKE | CONN_TLS | CONN_HANDSHAKE;
		return false;
	}
	if (h[0] == TLS_ALERT)
		return false;
	if (h[0] == TLS_APPLICATION_DATA && s->len == sizeof(h) + TLS13_ALERT_LENGTH)
		return false;
	if (flags & CONN_HANDSHAKE) {
		if (h[0] == TLS_HANDSHAKE)
			return false;
		/* The client's last flight; a request may ride on it, tickets may answer it. */
		c->flags = CONN_SPOKE | CONN_TLS | CONN_TICKET;
	} else if (flags & CONN_TICKETED) {
		c->flags = CONN_SPOKE | CONN_TLS;
	}
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
	if (c->flags & CONN_TICKET) {
		if (took < TICKET_TIME) {
			c->flags |= CONN_TICKETED;
			return;
		}
		c->flags = CONN_SPOKE | CONN_TLS;
	}
	c->asked = 0;
	sample(c->target, SIGNAL_SERVICE, took);
	if (c->joined && signal_of(c->target) == SIGNAL_SERVICE)
		cohort_leave(c, took);
}

#endif
