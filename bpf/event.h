/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who is refused, and why: a few of each target in each tick, for people to
 * read. The agent looks for them in each tick, so that nobody is woken; what is
 * left out is the difference to what is counted anyway. While the agent is away
 * the tick stands still, and nothing is told.
 */
#ifndef HEADGATE_EVENT_H
#define HEADGATE_EVENT_H

#include "maps.h"

/* Refusals of a target that are told in a tick. */
#define TOLD_A_TICK 4

/*
 * Whether one more may be told. In a flood of refusals this is all that it
 * costs: a look at a word beside that of the slots.
 */
static __always_inline bool may_tell(struct target_conf *conf, struct target_state *st)
{
	__u64 was = st->told, first = (__u64)conf->tick << 32;
	__u64 is = was >> 32 == conf->tick ? was + 1 : first + 1;

	if (is > first + TOLD_A_TICK)
		return false;
	/* Where another CPU was faster, that one is told of. */
	return __sync_val_compare_and_swap(&st->told, was, is) == was;
}

/* Out of line: it is rare. */
static __noinline long send(struct event *e)
{
	return bpf_ringbuf_output(&events, e, sizeof(*e), BPF_RB_NO_WAKEUP);
}

/* After may_tell(). let_in: it would have been refused. */
static __noinline void tell(struct pending_key *key, enum verdict v, bool let_in)
{
	struct event e = {
		.at = bpf_ktime_get_ns(),
		.target = key->target,
		.verdict = v,
		.let_in = let_in,
		.remote_port = key->remote_port,
	};

	__builtin_memcpy(e.remote, key->remote, sizeof(e.remote));
	if (send(&e))
		COUNT(key->target, events_lost);
}

#endif
