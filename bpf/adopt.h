/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Connections that are older than the programs. The iterator holds the lock of
 * the socket that it shows, so that its callbacks cannot run at the same time.
 */
#ifndef HEADGATE_ADOPT_H
#define HEADGATE_ADOPT_H

#include "conn.h"

/*
 * The unit is another one than under the predecessor. The socket's lock is held
 * and the socket is open: its end comes after this, and finds it converted.
 */
static __always_inline void conn_convert(struct conn *c, struct target_conf *conf,
					 struct target_state *st, struct origin *o)
{
	bool per_request = conf->flags & TARGET_REQUEST;

	if (c->per_request == per_request || !__sync_lock_test_and_set(&c->counted, 0))
		return;
	if (per_request) {
		conn_open_free(c->target, st, true, untake(c));
		c->per_request = 1;
	} else {
		request_finish(c);
		c->per_request = 0;
		__sync_fetch_and_add(&st->connections, -1);
		c->taken = conn_take(c->target, conf, st, o);
		COUNT(c->target, adopted);
	}
	__sync_lock_test_and_set(&c->counted, 1);
}

/* What looked like session tickets was the response, if so long nothing else came. */
#define DOUBT_TIME 1000000000ULL

/* Every agent gives up who waited for max_wait; so late, there was none to do it. */
#define GIVE_UP_TIME 1000000000ULL

static __always_inline bool held_in_vain(struct conn *c, struct target_conf *conf, __u64 now)
{
	__u64 since = c->arrived;

	if (c->release > since && c->release < RELEASE_SOURCE)
		since = c->release;
	return now > since + conf->max_wait + GIVE_UP_TIME;
}

/*
 * What nobody else ends: the agent that was to do it is dead, or it was not
 * told. A response that goes on is announced to the next agent by its next
 * output; if none comes, a later call ends it. The socket's lock need not be held:
 * meanwhile the request may end and the next one begin.
 */
static __always_inline void conn_settle(struct conn *c, struct target_conf *conf)
{
	__u64 seen = request_seen(c), asked = c->asked, now = bpf_ktime_get_ns();
	__u32 state = seen & REQUEST_STATE;

	if (!c->per_request || state == REQUEST_NONE)
		return;
	if (state == REQUEST_HELD && held_in_vain(c, conf, now)) {
		if (request_end(c, seen))
			c->arrived_end = c->in_end; /* sent again, it is a new one */
		return;
	}
	if (state == REQUEST_BUSY && c->first && asked && now > asked + DOUBT_TIME) {
		request_end(c, seen);
		return;
	}
	if (!c->answering)
		return;
	if (now >= c->output + conf->idle)
		request_end(c, seen);
	else
		__sync_val_compare_and_swap(&c->answering, ANSWER_ANNOUNCED, ANSWER_BEGUN);
}

/*
 * Before Linux 6.12 an adopted socket cannot be given callbacks. Then its end is
 * seen when the application closes it, or here, when somebody looks.
 */
static __always_inline void conn_look(struct conn *c, struct sock *s)
{
	__u8 state;

	if (!s)
		return;
	state = s->__sk_common.skc_state;
	if (state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT ||
	    (state == BPF_TCP_CLOSE && held_by_application(s)))
		return;
	conn_finish(c, false);
}

/* For a test: adopt as on a kernel that gives an adopted socket no callbacks. */
volatile const bool adopt_blind = false;

/* The address of the other end, IPv4 v4-mapped. */
static __always_inline void remote_of(struct sock *s, __u32 *address)
{
	struct sock_common *sk = &s->__sk_common;

	if (sk->skc_family == AF_INET) {
		address[2] = bpf_htonl(0xffff);
		address[3] = sk->skc_daddr;
	} else if (bpf_core_field_exists(sk->skc_v6_daddr)) {
		address[0] = sk->skc_v6_daddr.in6_u.u6_addr32[0];
		address[1] = sk->skc_v6_daddr.in6_u.u6_addr32[1];
		address[2] = sk->skc_v6_daddr.in6_u.u6_addr32[2];
		address[3] = sk->skc_v6_daddr.in6_u.u6_addr32[3];
	}
}

/*
 * What is made of sources may be something else than when the connection began:
 * its next units are of another party, and it is itself, where it is the unit.
 * It may end at the same time: whoever comes second gives back what is there.
 */
static __always_inline void conn_regroup(struct conn *c, struct target_conf *conf, struct target_state *st,
					 struct origin *o)
{
	__u64 was;

	c->party = o->party;
	c->most = o->limit;
	if (c->per_request || !c->counted || c->taken == o->party)
		return;
	source_admits(c->target, o, ANY_NUMBER);
	if (o->party & PARTY_CLASS) {
		class_balance(c->target, limit_now(conf, st));
		class_take(c->target, limit_now(conf, st), o->party, TAKE_FORCE);
	}
	was = __sync_lock_test_and_set(&c->taken, o->party);
	if (was)
		party_leaves(c->target, was);
	if (c->counted)
		return;
	was = untake(c);
	if (was)
		party_leaves(c->target, was);
}

/* A connection that was counted, of a source that is exempt by now. */
static __always_inline void conn_exempt(struct tcp_sock *tp)
{
	struct conn *c = bpf_sk_storage_get(&conns, tp, 0, 0);

	if (!c)
		return;
	if (__sync_lock_test_and_set(&c->counted, 0)) {
		conn_leave(c);
		conn_wake(c);
		cohort_leave(c, bpf_ktime_get_ns() - c->joined);
		if (c->per_request)
			request_finish(c);
	}
	bpf_sk_storage_delete(&conns, tp);
}

/*
 * Whether a connection goes out from the port: its application has bound the socket
 * to it, which the kernel says of no socket that a listener has made.
 */
static __always_inline bool goes_out(struct sock *s)
{
	return BPF_CORE_READ_BITFIELD_PROBED(s, sk_userlocks) & SOCK_BINDPORT_LOCK;
}

static __always_inline void conn_adopt(struct tcp_sock *tp)
{
	struct sock *s = (struct sock *)tp;
	struct target_state *st;
	struct target_conf *conf;
	struct origin o = {};
	__u32 address[4] = {};
	struct conn *c;
	__u32 *id, target;
	int flags;

	if (s->__sk_common.skc_state != BPF_TCP_ESTABLISHED &&
	    s->__sk_common.skc_state != BPF_TCP_CLOSE_WAIT)
		return;
	id = target_of(s->__sk_common.skc_net.net->net_cookie, s->__sk_common.skc_num);
	if (!id)
		return;
	target = *id;
	st = state_of(target);
	conf = conf_of(target);
	if (!st || !conf)
		return;

	remote_of(s, address);
	origin_of(conf, target, address, &o);
	if (o.exempt) {
		conn_exempt(tp);
		return;
	}
	c = bpf_sk_storage_get(&conns, tp, 0, goes_out(s) ? 0 : BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		if (!goes_out(s))
			COUNT(target, conn_full);
		return;
	}
	if (c->opened) {
		conn_convert(c, conf, st, &o); /* known already */
		conn_regroup(c, conf, st, &o);
		conn_settle(c, conf);
		return;
	}
	flags = tp->bpf_sock_ops_cb_flags | calls_for(conf);
	if (adopt_blind || bpf_setsockopt(tp, SOL_TCP, SETSOCKOPT_CB_FLAGS, &flags, sizeof(flags))) {
		c->blind = 1;
		COUNT(target, unadoptable);
	}
	c->target = target;
	c->arrived_end = c->in_end = tp->rcv_nxt;
	c->out_end = tp->snd_nxt;
	c->flags = CONN_SPOKE;
	c->per_request = conf->flags & TARGET_REQUEST ? 1 : 0;
	c->party = o.party;
	c->most = o.limit;
	conn_began(c, tp->delivered, bpf_ktime_get_ns());
	if (c->per_request) {
		conn_open_free(target, st, false, 0);
		__sync_lock_test_and_set(&c->counted, 1);
		return;
	}
	c->taken = conn_take(target, conf, st, &o);
	__sync_lock_test_and_set(&c->counted, 1);
	COUNT(target, adopted);
	conn_rest(c);
}

#endif
