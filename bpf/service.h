/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Service time, from the packets of a protected connection: last byte of a
 * request in to first byte of the response out. Only payload counts that was
 * not seen before, so that retransmissions and probes begin and end nothing.
 */
#ifndef HEADGATE_SERVICE_H
#define HEADGATE_SERVICE_H

#include "arrival.h"

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

static __always_inline void packet_in(struct __sk_buff *skb)
{
	struct conn *c = conn_of_packet(skb);
	struct segment s;
	__u64 now;

	if (!c || !parse_segment(skb, &s) || !s.len || !after(s.seq + s.len, c->in_end))
		return;
	c->in_end = s.seq + s.len;
	if (c->per_request) {
		if (c->request == REQUEST_HELD || after(c->in_end, c->arrived_end))
			request_arrives(skb, c, &s, false);
		if (c->request == REQUEST_NONE)
			return;
	} else if (!is_request(skb, c, &s)) {
		return;
	}
	now = bpf_ktime_get_ns();
	c->asked = now;
	conn_wake(c);
	if (c->cohort && signal_of(c->target) == SIGNAL_SERVICE)
		cohort_join(c, now);
}

/*
 * Output came that may be session tickets. For a sample that is left open until
 * it can be told, but a slot must not be held by a client that asks nothing
 * more. Tickets come at once, and are not the second thing to come.
 */
static __always_inline void request_may_be_answered(struct conn *c, __u64 took)
{
	if (took >= TICKET_TIME || c->flags & CONN_TICKETED)
		request_finish(c);
	else
		c->flags |= CONN_TICKETED;
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
	if (!asked) {
		if (c->flags & CONN_TICKET)
			c->flags |= CONN_TICKETED;
		return;
	}
	took = bpf_ktime_get_ns() - asked;
	if (c->flags & CONN_TLS && !is_response(skb, c, &s, took)) {
		if (c->per_request && c->first)
			request_may_be_answered(c, took);
		return;
	}
	conn_answered(c, took);
}

#endif
