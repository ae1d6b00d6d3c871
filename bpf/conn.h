/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The life of a connection unit. It begins when the handshake is complete and
 * ends when this side has ended it: by FIN, or when the application closes a
 * socket that the client had reset. A reset alone does not free the slot while
 * the application still holds the socket, for its work goes on.
 */
#ifndef HEADGATE_CONN_H
#define HEADGATE_CONN_H

#include "accept.h"
#include "cohort.h"
#include "request.h"
#include "segment.h"

/* Session tickets leave within this time of each other, or of the handshake. */
#define TICKET_TIME 1000000ULL

static __always_inline __u32 signal_of(__u32 target)
{
	struct target_conf *conf = conf_of(target);

	return conf ? conf->signal : SIGNAL_SERVICE;
}

static __always_inline bool times_lifetime(struct target_conf *conf)
{
	return conf->signal == SIGNAL_LIFETIME && !times_accept(conf);
}

static __always_inline void conn_wake(struct conn *c)
{
	if (__sync_lock_test_and_set(&c->resting, 0))
		COUNT(c->target, woken);
}

/*
 * Nothing is asked on the connection, but it is kept open. Exchanges order this
 * and the end of the connection: whoever comes second sees the other.
 */
static __always_inline void conn_rest(struct conn *c)
{
	if (!__sync_lock_test_and_set(&c->resting, 1))
		COUNT(c->target, rested);
	if (!c->counted)
		conn_wake(c);
}

/* A request has its response, so long after its last byte came in. */
static __always_inline void conn_answered(struct conn *c, __u64 took)
{
	c->asked = 0;
	if (c->first)
		c->first = 0;
	sample(c->target, SIGNAL_SERVICE, took);
	if (c->joined && signal_of(c->target) == SIGNAL_SERVICE)
		cohort_leave(c, took);
	conn_rest(c);
	if (c->per_request)
		request_answered(c);
}

/* What TCP has measured of a round trip, us; 0: unknown, and the smoothed one, in eighths, has to do. */
static __always_inline void conn_trip(struct conn *c, __u64 us, __u32 smoothed)
{
	__u64 took = (us ?: smoothed >> 3) * 1000;

	sample(c->target, SIGNAL_RTT, took);
	if (signal_of(c->target) == SIGNAL_RTT) {
		cohort_join(c, bpf_ktime_get_ns() - took);
		cohort_leave(c, took);
	}
}

/*
 * TCP has measured since it was last looked at: seen with the next packet that comes
 * in, or at the end. A call for each costs twice what this does. A packet may come in
 * while another CPU makes the record: the exchanges here and in conn_began() order
 * what both see of it, so that no trip is booked on a target that is not known yet.
 */
static __always_inline void conn_trips(struct conn *c, struct tcp_sock *tp)
{
	__u32 delivered = tp->delivered;

	if (!c->opened || delivered == c->delivered || tp->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_RTT_CB_FLAG)
		return;
	if (__sync_lock_test_and_set(&c->delivered, delivered) == delivered)
		return;
	conn_trip(c, tp->rack.rtt_us, tp->srtt_us);
}

/* The record is complete but for its slot. */
static __always_inline void conn_began(struct conn *c, __u32 delivered, __u64 now)
{
	c->delivered = delivered;
	__sync_lock_test_and_set(&c->opened, now);
}

/*
 * The calls that the programs ask for of a connection: one for each round trip where
 * the limit follows these, also where there are no programs on packets.
 */
static __always_inline __u32 calls_for(struct target_conf *conf)
{
	if (conf->signal == SIGNAL_RTT)
		return BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTT_CB_FLAG;
	return BPF_SOCK_OPS_STATE_CB_FLAG;
}

/* Takes out of a connection's record what its party has of a slot, to give it back. */
static __always_inline __u64 untake(struct conn *c)
{
	return c->taken ? __sync_lock_test_and_set(&c->taken, 0) : 0;
}

/* What a connection has is given back; it is not counted any more. */
static __always_inline void conn_leave(struct conn *c)
{
	struct target_state *st = state_of(c->target);

	if (st && c->per_request) {
		__sync_fetch_and_add(&st->connections, -1);
	} else if (st) {
		release_slot(c->target, st, untake(c));
		COUNT(c->target, finished);
	}
}

/*
 * Both ways to the end may run at once on two CPUs; the exchange lets one
 * through. When the server ends it, the last that it sent was its response.
 */
static __always_inline void conn_finish(struct conn *c, bool by_server)
{
	struct target_conf *conf = conf_of(c->target);
	__u64 now = bpf_ktime_get_ns();

	if (!__sync_lock_test_and_set(&c->counted, 0))
		return;
	conn_leave(c);
	if (conf && times_lifetime(conf))
		sample(c->target, SIGNAL_LIFETIME, now - c->opened);
	if (c->first && (by_server || c->first >= TICKET_TIME))
		conn_answered(c, c->first);
	conn_wake(c);
	cohort_leave(c, now - c->joined);
	if (c->per_request)
		request_finish(c);
}

/*
 * Whether an application has accepted the socket and not closed it yet. unaccepted:
 * what is said of one that nobody has accepted.
 */
static __always_inline bool held_by(struct sock *s, bool unaccepted)
{
	struct socket *socket;

	if (!s)
		return false;
	/* A server inside the kernel: its close is not seen either. */
	if (BPF_CORE_READ_BITFIELD_PROBED(s, sk_kern_sock))
		return false;
	socket = s->sk_socket;
	if (!socket)
		return unaccepted;
	/* The socket of an MPTCP subflow is another's: it never sees close(2). */
	return (__u64)socket->sk == (__u64)s;
}

static __always_inline bool held_by_application(struct sock *s)
{
	return held_by(s, false);
}

/*
 * Whether an application works on what came on a connection that is closed. One
 * that was ended at once has brought it nothing, or what came with the handshake,
 * and that it reads, also if it accepts later than the end. If it never does, for the
 * listener is closed first, no program sees that: a recount gives the slot back, when
 * the record has gone with the socket.
 */
static __always_inline bool worked_on(struct conn *c, struct sock *s)
{
	return c->trimmed ? c->flags & CONN_SPOKE && held_by(s, true) : held_by_application(s);
}

/* Which cohort a handshake may join; looked up only while one gathers. */
static __always_inline __u32 cohort_of(struct target_conf *conf, struct pending_key *key)
{
	struct pending *p;

	if (!conf->cohort_size)
		return 0;
	p = bpf_map_lookup_elem(&pendings, key);
	return p ? p->cohort : 0;
}

/* Where requests are counted, a connection holds no slot. */
static __always_inline void conn_open_free(__u32 target, struct target_state *st, bool reserved,
					   __u64 party)
{
	if (reserved)
		release_slot(target, st, party);
	__sync_fetch_and_add(&st->connections, 1);
}

/*
 * The packet that completes a handshake may bring payload: where the server
 * asked for that (TCP_DEFER_ACCEPT), when the ACK before it was lost, and a SYN
 * may (TCP Fast Open). How much, bytes.
 */
static __always_inline __u32 brought_along(struct bpf_sock_ops *ctx)
{
	void *data = (void *)(long)ctx->skb_data;
	__u32 len = ctx->skb_len, header;

	if (data + TCP_HEADER > (void *)(long)ctx->skb_data_end)
		return 0;
	header = ((__u8 *)data)[12] >> 4 << 2;
	return len > header ? len - header : 0;
}

/*
 * It is a request that no program on packets sees at this socket, and that it is
 * too late to hold. Or it is the hello of TLS: the answer will tell.
 */
static __always_inline void conn_open_asked(struct conn *c, struct target_conf *conf,
					    struct target_state *st, __u32 said)
{
	struct origin o = { .party = c->party, .limit = c->most };

	if (!said)
		return;
	c->arrived_end = c->in_end = c->in_end + said;
	c->flags = CONN_SPOKE | CONN_UNSEEN;
	c->asked = c->opened;
	conn_heard(c, c->opened);
	if (!c->per_request)
		return;
	admit_freely(c->target, conf, st, &o);
	request_begins(c, st, REQUEST_BUSY, o.party);
}

/* What the party of a handshake is to give back. */
static __always_inline __u64 party_of_pending(struct pending_key *key)
{
	struct pending *p = bpf_map_lookup_elem(&pendings, key);

	return p ? p->party : 0;
}

/* A slot for a connection that is there already, and what its party has of it. */
static __always_inline __u64 conn_take(__u32 target, struct target_conf *conf, struct target_state *st,
				       struct origin *o)
{
	source_admits(target, o, ANY_NUMBER);
	party_is_in(target, conf, st, o->party, 0);
	return o->party;
}

/* A slot for one that has none, if there is any; if not, it has to be ended. */
static __always_inline bool conn_admit(struct pending_key *key, struct target_conf *conf,
				       struct target_state *st, __u64 now, struct origin *o)
{
	enum verdict v = admit(key, conf, st, now, 0, o);

	if (v == ADMIT)
		return true;
	note_refusal(conf, st);
	COUNT(key->target, trimmed);
	if (may_tell(conf, st))
		tell(key, v, false);
	return false;
}

/*
 * With a SYN cookie the kernel takes the round trip from a timestamp that has
 * other things in its last 6 bits: up to 64 ms too much. Where it is near, it is.
 */
static __always_inline void conn_note_handshake(struct bpf_sock_ops *ctx, struct target_state *st,
						struct pending_key *key, __u64 now, bool flood)
{
	__u32 us = ctx->srtt_us >> 3;
	struct pending *p;

	if (us * PATIENCE > PATIENCE_MIN) {
		p = bpf_map_lookup_elem(&pendings, key);
		if (!p && flood)
			return;
		if (p && (now - p->since) / 1000 < us)
			us = (now - p->since) / 1000;
	}
	note_handshake(st, us);
}

static __always_inline void conn_open(struct bpf_sock_ops *ctx)
{
	__u32 *id = target_of(bpf_get_netns_cookie(ctx), ctx->local_port);
	struct pending_key key = {};
	struct bpf_sock *sk = ctx->sk;
	struct origin o = {};
	struct target_state *st;
	struct target_conf *conf;
	__u64 party = 0, now = bpf_ktime_get_ns();
	bool reserved, flood, asked, trim = false;
	__u32 target, cohort, said;
	struct tcp_sock *tp;
	struct conn *c;

	if (!id || !sk)
		return;
	target = *id;
	st = state_of(target);
	conf = conf_of(target);
	if (!st || !conf)
		return;

	sockops_key(ctx, target, &key);
	origin_of(conf, target, key.remote, &o);
	flood = flooded_lately(st, now);
	said = brought_along(ctx);
	conn_note_handshake(ctx, st, &key, now, flood);
	cohort = cohort_of(conf, &key);
	if (conf->flags & TARGET_PARTIES)
		party = party_of_pending(&key);
	reserved = drop_pending(st, &key);
	/* A SYN that was sent again may wait while an earlier one is answered. */
	if (waiting(st->units))
		abandon_hold(st, &key);
	if (o.exempt) {
		if (reserved) /* it was not, when its SYN came */
			release_slot(target, st, party);
		COUNT(target, exempted);
		return;
	}

	c = bpf_sk_storage_get(&conns, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		/* Out of memory: better not counted than counted for ever. */
		if (reserved)
			release_slot(target, st, party);
		COUNT(target, conn_full);
		return;
	}
	c->party = o.party;
	c->most = o.limit;
	if (conf->flags & TARGET_REQUEST) {
		conn_open_free(target, st, reserved, party);
	} else if (reserved) {
		c->taken = party;
		COUNT(target, converted);
	} else {
		if (flood)
			stranger_made(target);
		/*
		 * Who has said nothing to a listener that waits for that, for longer than
		 * a reservation lasts, is a newcomer like any other. But who speaks at
		 * last has its request with the application now, and no reset takes that
		 * back: it is counted, for the work will be done.
		 */
		asked = flood || (st->defers && !said);
		trim = asked && !conn_admit(&key, conf, st, now, &o);
		c->taken = asked && !trim ? o.party : conn_take(target, conf, st, &o);
		COUNT(target, unreserved);
	}
	if (conf->strangers || flood)
		make_known(&key, now);

	c->target = target;
	c->trimmed = trim;
	if ((conf->flags & (TARGET_INGRESS | TARGET_REQUEST)) == TARGET_INGRESS)
		let_in(&key, now, ctx->rcv_nxt - 1);
	c->arrived_end = c->in_end = ctx->rcv_nxt;
	c->out_end = ctx->snd_nxt;
	tp = bpf_skc_to_tcp_sock(sk);
	c->cohort = reserved ? cohort : 0;
	c->per_request = conf->flags & TARGET_REQUEST ? 1 : 0;
	c->untouched = times_accept(conf);
	conn_began(c, tp ? tp->delivered : 0, now);
	/* Last, and for all CPUs to see in this order: from here on packets count. */
	__sync_lock_test_and_set(&c->counted, 1);
	conn_open_asked(c, conf, st, said);
	/* Another program may have asked for other calls. */
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | calls_for(conf));

	sample(target, SIGNAL_HANDSHAKE, (__u64)(ctx->srtt_us >> 3) * 1000);
	if (times_lifetime(conf))
		cohort_join(c, c->opened);
	if (trim)
		wake_trim(ctx, sk, &key);
}

/* Tells the agent to look for the cgroup of a new listener. */
static __always_inline void listener_open(struct bpf_sock_ops *ctx)
{
	__u32 *id = target_of(bpf_get_netns_cookie(ctx), ctx->local_port);
	struct target_state *st;

	if (!id)
		return;
	st = state_of(*id);
	if (!st)
		return;
	st->defers = 0; /* until it is seen to */
	listener_is_back(st);
	__sync_fetch_and_add(&st->listens, 1);
}

static __always_inline void conn_state(struct bpf_sock_ops *ctx)
{
	__u32 state = ctx->args[1];
	struct bpf_sock *sk = ctx->sk;
	struct tcp_sock *tp;
	struct conn *c;

	if (!sk || state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT)
		return;
	c = bpf_sk_storage_get(&conns, sk, 0, 0);
	if (!c)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp)
		conn_trips(c, tp); /* the last ones */
	if (!c->counted)
		return;
	if (state == BPF_TCP_CLOSE && worked_on(c, (struct sock *)tp)) {
		if (request_of(c) == REQUEST_HELD)
			request_finish(c); /* the client has given up, and nobody works on it */
		return;
	}
	conn_finish(c, state == BPF_TCP_FIN_WAIT1);
}

static __always_inline void conn_rtt(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct conn *c = sk ? bpf_sk_storage_get(&conns, sk, 0, 0) : NULL;

	if (c)
		conn_trip(c, ctx->args[0], ctx->srtt_us);
}

#endif
