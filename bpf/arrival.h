/* SPDX-License-Identifier: GPL-2.0-only */
/* What arrives on a device: whether it may go on, has to wait, or is dropped. */
#ifndef HEADGATE_ARRIVAL_H
#define HEADGATE_ARRIVAL_H

#include "syn.h"
#include "tls.h"

/*
 * A segment with payload, on the device or, where that had no program, at the
 * socket (key: NULL), where nothing can be held. HOLD: it has to be queued for
 * the agent. REJECT_LIMIT or more: it would be refused, were that possible at a
 * socket.
 */
static __always_inline enum verdict request_arrives(struct __sk_buff *skb, struct conn *c,
						    struct pending_key *key, struct segment *s,
						    struct received *r)
{
	struct origin o = { .party = c->party, .limit = c->most };
	bool may_hold = key;
	__u32 target = c->target;
	struct target_conf *conf;
	struct target_state *st;
	__u64 now;
	enum verdict v;
	__u64 unused;
	bool fresh;

	if (!c->counted) /* or its record is not complete yet */
		return ADMIT;
	conf = conf_of(target);
	st = state_of(target);
	if (!conf || !st)
		return ADMIT;
	fresh = goes_on(s, r, c->arrived_end);
	now = clock_for(conf);
	if (fresh)
		c->arrived_end = s->seq + s->len;

	switch (request_of(c)) {
	case REQUEST_HELD:
		/* TCP drops the rest. Held, it could be any number of packets. */
		if (may_hold && in_force(conf, now))
			return in_window(s, r) ? HOLD : ADMIT;
		request_bypass(c, conf, st);
		return ADMIT;
	case REQUEST_GRANTING:
		if (now < c->arrived + GRANTING_TIME)
			return may_hold && in_force(conf, now) && in_window(s, r) ? HOLD : ADMIT;
		/* Its client sends without end, or the agent that let it in is gone. */
		turn(c, REQUEST_GRANTING, REQUEST_BUSY, &unused);
		/* fall through */
	case REQUEST_BUSY:
		if (!c->answering && !c->first)
			return ADMIT; /* more of the same */
	}
	if (!fresh || !is_request(skb, c, s))
		return ADMIT;
	if (request_of(c) == REQUEST_BUSY)
		request_finish(c); /* the next one is here */

	cohort_enter(c, conf);
	/* The agent counts who waits, and refuses, for it alone can. */
	v = may_hold ? admit(key, conf, st, now, ~0U, &o) : REJECT_LIMIT;
	if (v >= REJECT_PACE && try_wait(st, ~0U)) {
		count_refusal(target, conf, st, v, o.party);
		o.party = 0; /* it has no part of what is shared out */
		o.release = v == REJECT_PACE ? RELEASE_NEVER : RELEASE_SOURCE;
		v = HOLD;
	}
	if (v == HOLD) {
		c->arrived = now;
		c->release = o.release;
		return request_begins(c, st, REQUEST_HELD, o.party) ? HOLD : ADMIT;
	}
	if (v != ADMIT) {
		admit_freely(target, conf, st, &o);
		v = o.over;
	}
	request_begins(c, st, REQUEST_BUSY, o.party);
	return v;
}

/* What is set in the mark of a packet that has to wait, for netfilter to see. */
volatile const __u32 hold_mark = 0;

/*
 * The connection that a segment belongs to, if it is one that we count, and what
 * it has received.
 */
static __always_inline struct conn *conn_of_segment(struct __sk_buff *skb, struct pending_key *key,
						    struct received *r)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk, *full;
	struct tcp_sock *tp;
	struct conn *c = NULL;
	__u32 size;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		tuple.ipv4.saddr = key->remote[3];
		tuple.ipv4.daddr = key->local[3];
		tuple.ipv4.sport = key->remote_port;
		tuple.ipv4.dport = bpf_htons(key->local_port);
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, key->remote, sizeof(key->remote));
		__builtin_memcpy(tuple.ipv6.daddr, key->local, sizeof(key->local));
		tuple.ipv6.sport = key->remote_port;
		tuple.ipv6.dport = bpf_htons(key->local_port);
		size = sizeof(tuple.ipv6);
	}
	sk = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return NULL;
	full = bpf_sk_fullsock(sk);
	tp = full ? bpf_skc_to_tcp_sock(full) : NULL;
	if (tp) {
		received_by(tp, r);
		c = bpf_sk_storage_get(&conns, full, 0, 0);
	}
	/* Its record lives on until this program has run, by RCU. */
	bpf_sk_release(sk);
	return c;
}

/*
 * Whether the packet is for this host, and not one that it forwards: as a router,
 * or to containers that have addresses of their own. A host that forwards nothing
 * may still carry packets over a bridge, to another link address; what is for
 * the host comes by again on the bridge's own device.
 */
static __always_inline bool is_local(struct __sk_buff *skb, struct pending_key *key)
{
	struct bpf_fib_lookup fib = {
		.l4_protocol = IPPROTO_TCP,
		.sport = key->remote_port,
		.dport = bpf_htons(key->local_port),
		.ifindex = skb->ifindex,
	};
	long found;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		fib.family = AF_INET;
		fib.ipv4_src = key->remote[3];
		fib.ipv4_dst = key->local[3];
	} else {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, key->remote, sizeof(key->remote));
		__builtin_memcpy(fib.ipv6_dst, key->local, sizeof(key->local));
	}
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return skb->pkt_type == PACKET_HOST;
	return found == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* Most packets that can be on the way from their device to their socket; set by the loader. */
volatile const __u32 most_between = ~0U;

/*
 * Whether requests have to be decided on here. With so much room that all that
 * are on the way fit in, it is enough to count them at their sockets, where it
 * takes no search for these. Nor where none is refused.
 */
static __always_inline bool near_limit(struct target_conf *conf, struct target_state *st)
{
	__u64 units = st->units;

	return conf->flags & TARGET_ENFORCE &&
	       (waiting(units) || conf->pace_interval || conf->flags & TARGET_PARTIES ||
		(__u64)in_flight(units) + most_between >= limit_now(conf, st));
}

static __always_inline int arrive(struct __sk_buff *skb, __u64 netns)
{
	struct pending_key key = {};
	struct target_state *st;
	struct target_conf *conf;
	enum verdict v = ADMIT;
	struct segment s;
	__u32 *target;
	__u8 flags;

	/* It comes by again on the VLAN's own device, if this host is in that. */
	if (skb->vlan_present && skb->vlan_tci & VLAN_ID)
		return TCX_NEXT;
	if (!parse_arrival(skb, &s, &key, &flags))
		return TCX_NEXT;
	target = target_of(netns, key.local_port);
	if (!target)
		return TCX_NEXT;
	key.target = *target;
	conf = conf_of(key.target);
	st = state_of(key.target);
	if (!conf || !st || !(conf->flags & TARGET_INGRESS))
		return TCX_NEXT;

	if (conf->flags & TARGET_REQUEST) {
		struct received r = {};
		struct conn *c;

		if (!s.len || !near_limit(conf, st))
			return TCX_NEXT;
		c = conn_of_segment(skb, &key, &r);
		if (c && c->per_request)
			v = request_arrives(skb, c, &key, &s, &r);
	} else if ((flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
		struct origin o = {};

		if (!is_local(skb, &key))
			return TCX_NEXT;
		origin_of(conf, key.target, key.remote, &o);
		if (o.exempt)
			return TCX_NEXT;
		v = syn_arrives(conf, st, &key, s.seq, &o);
		if (v >= REJECT_LIMIT && conf->flags & TARGET_DROP) {
			refuse(&key, conf, st, v, o.party);
			return TCX_DROP;
		}
	} else if (flags & TCP_RST) {
		syn_reset(st, &key, s.seq);
	}
	if (v == HOLD)
		skb->mark |= hold_mark;
	return TCX_NEXT;
}

#endif
