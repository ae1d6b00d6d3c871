/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long a connection waits for the application: from its handshake, or from
 * the client's first request where that comes later, until the application reads
 * from it, or writes where the server speaks first. accept(2) itself is not seen
 * on every kernel and not with io_uring; a server that accepts at once and keeps
 * what it accepted in a queue of its own would not show either.
 */
#ifndef HEADGATE_ACCEPT_H
#define HEADGATE_ACCEPT_H

#include "cohort.h"

static __always_inline bool times_accept(struct target_conf *conf)
{
	return conf->flags & TARGET_ACCEPT;
}

/* Reads and writes of one connection may meet; the exchange lets one through. */
static __always_inline void conn_touched(struct conn *c)
{
	__u64 since = c->opened, asked = c->asked, took;

	if (!c->untouched || !__sync_lock_test_and_set(&c->untouched, 0))
		return;
	if (asked > since)
		since = asked;
	took = bpf_ktime_get_ns() - since;
	sample(c->target, SIGNAL_LIFETIME, took);
	cohort_join(c, since);
	cohort_leave(c, took);
}

#endif
