/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long a connection waits for the application: from its handshake, or from
 * the client's first payload where that comes later, until the application reads
 * from it, or writes where the server speaks first. accept(2) itself is not seen
 * on every kernel and not with io_uring; a server that accepts at once and keeps
 * what it accepted in a queue of its own would not show either. Reads of Multipath
 * TCP are not seen: there the first output ends the wait.
 */
#ifndef HEADGATE_ACCEPT_H
#define HEADGATE_ACCEPT_H

#include "cohort.h"

static __always_inline bool times_accept(struct target_conf *conf)
{
	return conf->flags & TARGET_ACCEPT;
}

static __always_inline void conn_heard(struct conn *c, __u64 now)
{
	if (c->untouched && !c->heard)
		c->heard = now;
}

/*
 * Reads and writes of one connection may meet; the exchange lets one through. While
 * the agent is away reads are not seen: then a write says nothing of the wait.
 */
static __always_inline void conn_touched(struct conn *c)
{
	struct target_conf *conf;
	__u64 since, took, now;

	if (!c->untouched || !__sync_lock_test_and_set(&c->untouched, 0))
		return;
	conf = conf_of(c->target);
	now = bpf_ktime_get_ns();
	if (!conf || !times_accept(conf) || c->opened < conf->reads_since || now >= conf->lease)
		return;
	since = c->heard ? c->heard : c->opened;
	took = now - since;
	sample(c->target, SIGNAL_LIFETIME, took);
	cohort_join(c, since);
	cohort_leave(c, took);
}

#endif
