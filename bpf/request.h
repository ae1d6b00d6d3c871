/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The unit request: the first segment of a new request on a connection is the
 * arrival. One that has to wait is held with everything that comes behind it,
 * so that nothing overtakes. It ends with the first byte of its response or, with
 * TARGET_IDLE, when the output has been idle for long enough: the agent looks,
 * and the next request on the connection ends it too.
 */
#ifndef HEADGATE_REQUEST_H
#define HEADGATE_REQUEST_H

#include "admit.h"

static __always_inline bool turn(struct conn *c, __u32 from, __u32 to)
{
	return __sync_val_compare_and_swap(&c->request, from, to) == from;
}

/* The request is over, or will never be: its slot or its place goes to another. */
static __always_inline void request_finish(struct conn *c)
{
	struct target_state *st = state_of(c->target);
	__u32 was;

	c->answering = ANSWER_NONE;
	was = __sync_lock_test_and_set(&c->request, REQUEST_NONE);
	if (!st)
		return;
	if (was == REQUEST_HELD) {
		stop_waiting(c->target, st);
	} else if (was != REQUEST_NONE) {
		release_slot(c->target, st);
		COUNT(c->target, finished);
	}
}

/*
 * A request has taken its slot or its place. Another segment of it may have
 * been faster on another CPU, and the connection may have ended meanwhile:
 * then it is given back.
 */
static __always_inline bool request_begins(struct conn *c, struct target_state *st, __u32 state)
{
	if (!turn(c, REQUEST_NONE, state)) {
		if (state == REQUEST_HELD)
			stop_waiting(c->target, st);
		else
			release_slot(c->target, st);
		return false;
	}
	if (state == REQUEST_HELD)
		COUNT(c->target, held);
	else
		COUNT(c->target, requests);
	if (!c->counted) {
		request_finish(c);
		return false;
	}
	return true;
}

/* A request that waits comes in although nobody has let it: the agent is dead or hangs. */
static __always_inline void request_bypass(struct conn *c, struct target_conf *conf,
					   struct target_state *st)
{
	if (!turn(c, REQUEST_HELD, REQUEST_BUSY))
		return;
	take_slot(st, conf->tick, -ONE_WAITING);
	COUNT(c->target, bypassed);
	COUNT(c->target, requests);
}

/* The first byte of the response is on its way. */
static __always_inline void request_answered(struct conn *c)
{
	struct target_conf *conf = conf_of(c->target);

	if (!conf || !(conf->flags & TARGET_IDLE))
		request_finish(c);
	else if (c->request != REQUEST_NONE && !c->answering)
		c->answering = ANSWER_BEGUN;
}

#endif
