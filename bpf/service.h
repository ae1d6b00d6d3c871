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
	if ((void *)tcp + TCP_HEADER > end)
		return false;
	s->seq = bpf_ntohl(*(__be32 *)(tcp + 4));
	s->offset = ip_len + ((tcp[12] >> 4) << 2);
	s->len = skb->len > s->offset ? skb->len - s->offset : 0;
	return true;
}

static __always_inline struct bpf_sock *socket_of(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	return sk ? bpf_sk_fullsock(sk) : NULL;
}

static __always_inline struct conn *conn_of(struct bpf_sock *sk)
{
	return bpf_sk_storage_get(&conns, sk, 0, 0);
}

/* Which connection a packet at its socket is of; out: one of output. */
static __always_inline bool key_of_packet(struct __sk_buff *skb, struct pending_key *key, bool out)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ipv4 *ip4 = data;
	struct ipv6 *ip6 = data;
	struct tcp *tcp;

	if ((void *)(ip6 + 1) > end)
		return false;
	if (ip4->version_ihl >> 4 == 4) {
		key->remote[2] = key->local[2] = bpf_htonl(0xffff);
		key->remote[3] = out ? ip4->destination : ip4->source;
		key->local[3] = out ? ip4->source : ip4->destination;
		tcp = data + ((ip4->version_ihl & 0xf) << 2);
	} else {
		__builtin_memcpy(out ? key->remote : key->local, ip6->destination, sizeof(key->remote));
		__builtin_memcpy(out ? key->local : key->remote, ip6->source, sizeof(key->local));
		tcp = (void *)(ip6 + 1);
	}
	if ((void *)(tcp + 1) > end)
		return false;
	key->remote_port = out ? tcp->destination : tcp->source;
	key->local_port = bpf_ntohs(out ? tcp->source : tcp->destination);
	return true;
}

/* A request is let in over the limit. */
static __always_inline void tell_segment(struct __sk_buff *skb, struct conn *c, enum verdict v)
{
	struct target_conf *conf = conf_of(c->target);
	struct target_state *st = state_of(c->target);
	struct pending_key key = {};

	if (!conf || !st || !may_tell(conf, st) || !key_of_packet(skb, &key, false))
		return;
	key.target = c->target;
	tell(&key, v, true);
}

static __always_inline void segment_in(struct __sk_buff *skb, struct conn *c, struct received *r)
{
	struct segment s;
	__u64 now;

	if (!parse_segment(skb, &s) || !s.len || !goes_on(&s, r, c->in_end))
		return;
	c->in_end = s.seq + s.len;
	if (c->untouched)
		conn_heard(c, bpf_ktime_get_ns());
	if (c->per_request) {
		enum verdict v = ADMIT;

		if (request_of(c) == REQUEST_HELD || after(c->in_end, c->arrived_end))
			v = request_arrives(skb, c, NULL, &s, r);
		if (v >= REJECT_LIMIT)
			tell_segment(skb, c, v);
		if (request_of(c) == REQUEST_NONE)
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

/* So long an agent that is there takes at the most to end a connection. */
#define TRIM_TIME 1000000000ULL

/*
 * A SYN, or the packet after it, at its listener. Servers ask for TCP_DEFER_ACCEPT
 * when they listen already, and no connection tells what its listener does. Of the
 * listeners of a port it is the one that had the last packet.
 */
static __always_inline void listener_in(struct bpf_sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	struct sock *s = (struct sock *)tp;
	struct target_state *st;
	__u32 *id, defers;

	if (!tp)
		return;
	defers = tp->inet_conn.icsk_accept_queue.rskq_defer_accept ? 1 : 0;
	id = target_of(s->__sk_common.skc_net.net->net_cookie, s->__sk_common.skc_num);
	st = id ? state_of(*id) : NULL;
	if (st && st->defers != defers)
		st->defers = defers;
}

/* Whether the packet may go on. */
static __always_inline bool packet_in(struct __sk_buff *skb)
{
	struct bpf_sock *sk = socket_of(skb);
	struct conn *c = sk ? conn_of(sk) : NULL;
	struct tcp_sock *tp;
	struct received r;

	if (!c) {
		if (sk && sk->state == BPF_TCP_LISTEN)
			listener_in(sk);
		return true;
	}
	if (c->trimmed && bpf_ktime_get_ns() - c->opened < TRIM_TIME)
		return false; /* nobody is to begin with what will be ended */
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return true;
	conn_trips(c, tp);
	received_by(tp, &r);
	segment_in(skb, c, &r);
	return true;
}

/*
 * Output came that may be session tickets. For a sample that is left open until
 * it can be told, but a slot must not be held by a client that asks nothing
 * more. Tickets come at once, and they may have come before the request; where
 * responses come as fast it matters little. The agent looks at the rest later.
 */
static __always_inline void request_may_be_answered(struct conn *c, __u64 now)
{
	struct target_conf *conf = conf_of(c->target);

	if (!conf || now - c->asked >= conf->doubt || (c->output && now - c->output >= TICKET_TIME))
		request_answered(c);
	else
		COUNT(c->target, doubtful);
}

/* More of a response that ends when it is idle. The agent is told of its begin. */
static __always_inline void request_outputs(struct __sk_buff *skb, struct bpf_sock *sk, struct conn *c)
{
	struct wake w = { .target = c->target, .kind = WAKE_IDLE, .at = bpf_ktime_get_ns() };

	c->output = w.at;
	if (c->answering != ANSWER_BEGUN || !key_of_packet(skb, &w.key, true))
		return;
	w.key.target = c->target;
	w.device = sk->bound_dev_if;
	/*
	 * If there is no room, the next output tries again, the next request ends it,
	 * or the agent looks through all connections later.
	 */
	if (bpf_ringbuf_output(&wakes, &w, sizeof(w), 0))
		COUNT(c->target, untold);
	else
		c->answering = ANSWER_ANNOUNCED;
}

static __always_inline void output(struct __sk_buff *skb, struct conn *c, struct segment *s)
{
	__u64 asked = c->asked, now, took;

	if (!asked) {
		if (c->flags & CONN_TICKET)
			c->output = bpf_ktime_get_ns();
		return;
	}
	if (c->flags & CONN_UNSEEN) {
		if (was_hello(skb, c, s)) {
			c->asked = 0;
			if (c->per_request)
				request_finish(c);
			return;
		}
		if (c->cohort && signal_of(c->target) == SIGNAL_SERVICE)
			cohort_join(c, asked);
	}
	now = bpf_ktime_get_ns();
	took = now - asked;
	if (c->flags & CONN_TLS && !is_response(skb, c, s, took)) {
		if (c->per_request && c->first)
			request_may_be_answered(c, now);
		return;
	}
	conn_answered(c, took);
}

static __always_inline void packet_out(struct __sk_buff *skb)
{
	struct bpf_sock *sk = socket_of(skb);
	struct conn *c = sk ? conn_of(sk) : NULL;
	struct segment s;

	if (!c || !parse_segment(skb, &s) || !s.len || !after(s.seq + s.len, c->out_end))
		return;
	c->out_end = s.seq + s.len;
	conn_touched(c);
	output(skb, c, &s);
	if (c->answering)
		request_outputs(skb, sk, c);
}

#endif
