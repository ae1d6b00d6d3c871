/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Connections that are older than the programs. The iterator holds the lock of
 * the socket that it shows, so that its callbacks cannot run at the same time.
 */
#ifndef HEADGATE_ADOPT_H
#define HEADGATE_ADOPT_H

#include "conn.h"

static __always_inline void conn_adopt(struct tcp_sock *tp)
{
	struct sock *s = (struct sock *)tp;
	struct target_state *st;
	struct target_conf *conf;
	int flags = BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTT_CB_FLAG;
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
	if (c->opened)
		return; /* known already */
	if (bpf_setsockopt(tp, SOL_TCP, SETSOCKOPT_CB_FLAGS, &flags, sizeof(flags))) {
		/* Its end would not be seen: it must not hold a slot for ever. */
		bpf_sk_storage_delete(&conns, tp);
		COUNT(target, unadoptable);
		return;
	}
	c->target = target;
	c->opened = bpf_ktime_get_ns();
	c->arrived_end = c->in_end = tp->rcv_nxt;
	c->out_end = tp->snd_nxt;
	c->flags = CONN_SPOKE;
	c->counted = 1;
	if (conf->flags & TARGET_REQUEST) {
		conn_open_free(c, target, st, false);
		return;
	}
	take_slot(st, conf->tick, 0);
	COUNT(target, adopted);
	conn_rest(c);
}

#endif
