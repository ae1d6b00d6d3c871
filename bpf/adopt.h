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
					 struct target_state *st)
{
	bool per_request = conf->flags & TARGET_REQUEST;

	if (c->per_request == per_request || !__sync_lock_test_and_set(&c->counted, 0))
		return;
	if (per_request) {
		conn_open_free(c->target, st, true);
		c->per_request = 1;
	} else {
		request_finish(c);
		c->per_request = 0;
		__sync_fetch_and_add(&st->connections, -1);
		take_slot(st, conf->tick, 0);
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

	if (c->release > since && c->release != RELEASE_NEVER)
		since = c->release;
	return now > since + conf->max_wait + GIVE_UP_TIME;
}

/*
 * What nobody else ends: the agent that was to do it is dead, or it was not
 * told. A response that goes on is announced to the next agent by its next
 * output; if none comes, a later call ends it.
 */
static __always_inline void conn_settle(struct conn *c, struct target_conf *conf)
{
	__u64 now = bpf_ktime_get_ns(), asked = c->asked;

	if (!c->per_request)
		return;
	if (c->request == REQUEST_HELD && held_in_vain(c, conf, now)) {
		request_finish(c);
		c->arrived_end = c->in_end; /* sent again, it is a new one */
		return;
	}
	if (c->request == REQUEST_BUSY && c->first && asked && now - asked > DOUBT_TIME)
		request_finish(c);
	if (!c->answering)
		return;
	if (now >= c->output + conf->idle)
		request_finish(c);
	else
		c->answering = ANSWER_BEGUN;
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

static __always_inline void conn_adopt(struct tcp_sock *tp)
{
	struct sock *s = (struct sock *)tp;
	struct target_state *st;
	struct target_conf *conf;
	int flags = tp->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTT_CB_FLAG;
	struct conn *c;
	__u32 *id, target;

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

	c = bpf_sk_storage_get(&conns, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		COUNT(target, conn_full);
		return;
	}
	if (c->opened) {
		conn_convert(c, conf, st); /* known already */
		conn_settle(c, conf);
		return;
	}
	if (adopt_blind || bpf_setsockopt(tp, SOL_TCP, SETSOCKOPT_CB_FLAGS, &flags, sizeof(flags))) {
		c->blind = 1;
		COUNT(target, unadoptable);
	}
	c->target = target;
	c->opened = bpf_ktime_get_ns();
	c->arrived_end = c->in_end = tp->rcv_nxt;
	c->out_end = tp->snd_nxt;
	c->flags = CONN_SPOKE;
	c->per_request = conf->flags & TARGET_REQUEST ? 1 : 0;
	if (c->per_request) {
		conn_open_free(target, st, false);
		__sync_lock_test_and_set(&c->counted, 1);
		return;
	}
	take_slot(st, conf->tick, 0);
	__sync_lock_test_and_set(&c->counted, 1);
	COUNT(target, adopted);
	conn_rest(c);
}

#endif
