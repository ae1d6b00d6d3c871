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

/*
 * For how long after it has its slot a request's packets queue at most: who uploads
 * without a pause has always sent more than the agent has let go.
 */
#define GRANTING_TIME 100000000ULL

/*
 * State and party are one word of the connection's record: whoever changes the
 * state has what is to be given back, or to go on. So is a part of the request's
 * number: who looked at one and has found it to be over ends no other one.
 */
static __always_inline __u32 request_of(struct conn *c)
{
	return c->request & REQUEST_STATE;
}

static __always_inline __u64 party_of(__u64 request)
{
	return request & ~(__u64)(REQUEST_STATE | REQUEST_NTH);
}

/* The same request in another state. */
static __always_inline __u64 in_state(__u64 request, __u32 state)
{
	return (request & ~(__u64)REQUEST_STATE) | state;
}

/* Sets *party where it is the one that makes this turn. */
static __always_inline bool turn(struct conn *c, __u32 from, __u32 to, __u64 *party)
{
	__u64 was = c->request;

	*party = party_of(was);
	return (was & REQUEST_STATE) == from &&
	       __sync_val_compare_and_swap(&c->request, was, to ? in_state(was, to) : REQUEST_NONE) == was;
}

/* What a request had goes to another. */
static __always_inline void request_over(struct conn *c, __u64 was)
{
	struct target_state *st = state_of(c->target);

	if (!st || was == REQUEST_NONE)
		return;
	if ((was & REQUEST_STATE) == REQUEST_HELD) {
		stop_waiting(c->target, st, party_of(was));
	} else {
		release_slot(c->target, st, party_of(was));
		COUNT(c->target, finished);
	}
}

/* The request is over, or will never be: its slot or its place goes to another. */
static __always_inline void request_finish(struct conn *c)
{
	c->answering = ANSWER_NONE;
	request_over(c, __sync_lock_test_and_set(&c->request, REQUEST_NONE));
}

/*
 * What the agent's programs look at, they do without the socket's lock. They read
 * this before anything that is said of the request,
 */
static __always_inline __u64 request_seen(struct conn *c)
{
	return __sync_fetch_and_add(&c->request, 0); /* with a barrier */
}

/* and end that one, or none: what was said may be of another by now. */
static __always_inline bool request_end(struct conn *c, __u64 seen)
{
	if (__sync_val_compare_and_swap(&c->request, seen, REQUEST_NONE) != seen)
		return false;
	request_over(c, seen);
	return true;
}

/*
 * A request has taken its slot or its place. Another segment of it may have
 * been faster on another CPU, and the connection may have ended meanwhile:
 * then it is given back.
 */
static __always_inline bool request_begins(struct conn *c, struct target_state *st, __u32 state,
					   __u64 party)
{
	__u64 next = party | state | (++c->nth * REQUEST_FIRST & REQUEST_NTH);

	if (c->answering && request_of(c) == REQUEST_NONE)
		c->answering = ANSWER_NONE; /* of one that request_end() has ended */
	if (__sync_val_compare_and_swap(&c->request, REQUEST_NONE, next) != REQUEST_NONE) {
		if (state == REQUEST_HELD)
			stop_waiting(c->target, st, party);
		else
			release_slot(c->target, st, party);
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
	__u64 party;

	if (!turn(c, REQUEST_HELD, REQUEST_BUSY, &party))
		return;
	party_is_in(c->target, conf, st, party, -ONE_WAITING);
	COUNT(c->target, bypassed);
	COUNT(c->target, requests);
}

/* The first byte of the response is on its way. */
static __always_inline void request_answered(struct conn *c)
{
	struct target_conf *conf = conf_of(c->target);

	if (!conf || !(conf->flags & TARGET_IDLE))
		request_finish(c);
	else if (request_of(c) != REQUEST_NONE && !c->answering)
		c->answering = ANSWER_BEGUN;
}

#endif
