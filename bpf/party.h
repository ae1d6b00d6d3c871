/* SPDX-License-Identifier: GPL-2.0-only */
/* Slots and places among those that wait, with what the party of a unit has of them. */
#ifndef HEADGATE_PARTY_H
#define HEADGATE_PARTY_H

#include "class.h"

/* A slot, if there is one for this party. how: not TAKE_FORCE. */
static __always_inline bool party_takes(__u32 target, struct target_conf *conf, struct target_state *st,
					__u32 limit, __u64 party, enum take how)
{
	bool first = how != TAKE_ANY && conf->max_waiting;

	if (party & PARTY_CLASS) {
		class_balance(target, limit);
		return class_take(target, limit, party, how == TAKE_NEW && !first ? TAKE_ANY : how);
	}
	if (how == TAKE_TURN)
		return try_turn(st, conf->tick, limit, first);
	return try_take_slot(st, conf->tick, limit, first);
}

/* A slot, come what may. turn: -ONE_WAITING where it gives up a place for it. */
static __always_inline void party_is_in(__u32 target, struct target_conf *conf, struct target_state *st,
					__u64 party, __u64 turn)
{
	if (party & PARTY_CLASS) {
		class_balance(target, limit_now(conf, st));
		class_take(target, limit_now(conf, st), party, TAKE_FORCE);
		if (turn)
			class_waits(target, party, -1);
	}
	take_slot(st, conf->tick, turn);
}

static __always_inline void release_slot(__u32 target, struct target_state *st, __u64 party)
{
	__u64 was = __sync_fetch_and_add(&st->units, -1ULL);

	if (party)
		party_leaves(target, party);
	if (waiting(was))
		wake(target);
}

/* A place among those that wait, unless max wait already. */
static __always_inline bool party_waits(__u32 target, struct target_state *st, __u32 max, __u64 party)
{
	if (!try_wait(st, max))
		return false;
	if (party & PARTY_CLASS)
		class_waits(target, party, 1);
	return true;
}

/* One that waited has given up. Those behind it may find a free slot now. */
static __always_inline void stop_waiting(__u32 target, struct target_state *st, __u64 party)
{
	__u64 was = __sync_fetch_and_add(&st->units, -ONE_WAITING);

	if (party)
		party_stops_waiting(target, party);
	if (waiting(was) > 1)
		wake(target);
}

/* One that waited has its slot. */
static __always_inline void has_waited(__u32 target, struct target_state *st, __u64 party)
{
	__sync_fetch_and_add(&st->units, -ONE_WAITING);
	if (party & PARTY_CLASS)
		class_waits(target, party, -1);
}

#endif
