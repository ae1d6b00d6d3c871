/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Classes share the limit of a target. Each has a part of its own, as large as
 * its share of the limit; the free part is what is left, and all may take of it,
 * those too that are of no class. A unit takes a place in its class's own part,
 * or else one in the free part, and then its slot. No part is ever taken beyond
 * its size, and all together are as large as the limit: so nobody can take what
 * is guaranteed to another, and what is guaranteed is there to be taken.
 *
 * A class whose unit ends gives back a place of the free part while it has one:
 * its own part is full while it has units in the free one. So it holds as much
 * of the free part as it has units beyond its guarantee, and no more.
 */
#ifndef HEADGATE_CLASS_H
#define HEADGATE_CLASS_H

#include "source.h"

#define SHARE_BITS 31 /* a share of 1 is 1 << SHARE_BITS */

enum take {
	TAKE_NEW,   /* for a newcomer, who has to wait where others do */
	TAKE_ANY,   /* for one that has waited, or need not */
	TAKE_TURN,  /* for a newcomer that has a place among those that wait, and gives that up */
	TAKE_FORCE, /* a part of its class's, come what may; the slot is the caller's to take */
};

static __always_inline struct policy *policy_of(__u32 target)
{
	return bpf_map_lookup_elem(&policies, &target);
}

static __always_inline struct parts *parts_of(__u32 target)
{
	return bpf_map_lookup_elem(&classes, &target);
}

static __always_inline __u64 balance_for(struct policy *p, __u32 limit)
{
	return (__u64)p->generation << 32 | limit;
}

static __always_inline struct class_state *class_of(struct parts *cs, __u64 party)
{
	return &cs->class[party & PARTY_CLASS];
}

static __always_inline __s32 guarantee(struct policy *p, __u32 class, __u32 limit)
{
	return (__u64)limit * p->share[class & PARTY_CLASS] >> SHARE_BITS;
}

/*
 * Moves what a class has beyond its own part, which is most now, into the free
 * one, or the other way. Each step moves units from one number to another, and
 * takes before it gives. False: another CPU was faster. Not static, so that it is
 * verified but once, and not for each class.
 */
__noinline int class_fit(struct parts *cs, __u32 class, __s32 most)
{
	struct class_state *c;
	__s32 own, free, n;

	if (!cs)
		return false;
	c = class_of(cs, class);
	own = c->own;
	free = c->free;
	if (own > most) {
		n = own - most;
		__sync_fetch_and_add(&cs->free, n);
		if (__sync_val_compare_and_swap(&c->own, own, most) == own) {
			__sync_fetch_and_add(&c->free, n);
			return true;
		}
		__sync_fetch_and_add(&cs->free, -n);
		return false;
	}
	if (own < most && free > 0) {
		n = most - own < free ? most - own : free;
		if (__sync_val_compare_and_swap(&c->free, free, free - n) != free)
			return false;
		__sync_fetch_and_add(&c->own, n);
		__sync_fetch_and_add(&cs->free, -n);
	}
	return true;
}

/*
 * The limit is another one than before, and so is each part. Called before
 * anything is asked of the parts, not from there: the stack of all calls together
 * is short.
 */
__noinline int class_balance(__u32 target, __u32 limit)
{
	struct policy *p = policy_of(target);
	struct parts *cs = parts_of(target);
	bool complete = true;
	__s32 room = limit;
	__u64 now, was;
	__u32 i;

	if (!p || !cs)
		return 0;
	now = balance_for(p, limit);
	was = cs->balanced;
	if (was == now || __sync_val_compare_and_swap(&cs->balanced, was, now) != was)
		return 0;
#pragma clang loop unroll(disable)
	for (i = CLASS_OTHERS; i < CLASSES; i++) {
		__s32 most = guarantee(p, i, limit);

		room -= most;
		if (!class_fit(cs, i, most))
			complete = false;
	}
	cs->room = room;
	/* Or another CPU has begun to do this for another limit: the next one does it again. */
	if (!complete || cs->balanced != now)
		cs->balanced = 0;
	return 0;
}

static __always_inline bool take_own(struct class_state *c, __s32 most)
{
	__s32 own;
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		own = c->own;
		if (own >= most)
			return false;
		if (__sync_val_compare_and_swap(&c->own, own, own + 1) == own)
			return true;
	}
	return false;
}

static __always_inline bool take_free(struct parts *cs)
{
	__s32 free;
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		free = cs->free;
		if (free >= cs->room)
			return false;
		if (__sync_val_compare_and_swap(&cs->free, free, free + 1) == free)
			return true;
	}
	return false;
}

static __always_inline void class_leave(struct parts *cs, struct class_state *c)
{
	__s32 free;
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		free = c->free;
		if (free <= 0)
			break;
		if (__sync_val_compare_and_swap(&c->free, free, free - 1) == free) {
			__sync_fetch_and_add(&cs->free, -1);
			return;
		}
	}
	__sync_fetch_and_add(&c->own, -1);
}

/* A slot for a unit of a class, after class_balance(). limit is the target's, how is an enum take. */
__noinline int class_take(__u32 target, __u32 limit, __u64 party, __u32 how)
{
	struct target_conf *conf = conf_of(target);
	struct target_state *st = state_of(target);
	struct policy *p = policy_of(target);
	struct parts *cs = parts_of(target);
	bool newcomer = how == TAKE_NEW || how == TAKE_TURN;
	__s32 mine = how == TAKE_TURN;
	struct class_state *c;

	if (!p || !cs || !conf || !st)
		return false;
	c = class_of(cs, party);
	if (newcomer && c->waiting > mine)
		return false;
	if (!take_own(c, guarantee(p, party, limit))) {
		if (newcomer && waiting(st->units) > mine)
			return false;
		if (how == TAKE_FORCE)
			__sync_fetch_and_add(&cs->free, 1);
		else if (!take_free(cs))
			return false;
		__sync_fetch_and_add(&c->free, 1);
	}
	if (how == TAKE_FORCE)
		return true;
	if (how == TAKE_TURN ? try_turn(st, conf->tick, limit, false) :
			       try_take_slot(st, conf->tick, limit, false)) {
		if (how == TAKE_TURN)
			__sync_fetch_and_add(&c->waiting, -1);
		return true;
	}
	class_leave(cs, c); /* more are in flight than may: the limit has fallen */
	return false;
}

/* Whether a newcomer of the class would get a slot, after class_balance(). It may have changed when it tries. */
__noinline int class_has_room(__u32 target, __u32 limit, __u64 party)
{
	struct target_state *st = state_of(target);
	struct policy *p = policy_of(target);
	struct parts *cs = parts_of(target);

	if (!p || !cs || !st)
		return false;
	return in_flight(st->units) < limit &&
	       (class_of(cs, party)->own < guarantee(p, party, limit) || cs->free < cs->room);
}

/* One more, or one less, of the class waits. */
__noinline int class_waits(__u32 target, __u64 party, __s32 n)
{
	struct parts *cs = parts_of(target);

	if (cs)
		__sync_fetch_and_add(&class_of(cs, party)->waiting, n);
	return 0;
}

/* A unit ends that has a slot: what its party has of it is given back. */
__noinline int party_leaves(__u32 target, __u64 party)
{
	struct parts *cs = parts_of(target);

	source_leave(party);
	if (cs && party & PARTY_CLASS)
		class_leave(cs, class_of(cs, party));
	return 0;
}

/* The same for one that waits. */
__noinline int party_stops_waiting(__u32 target, __u64 party)
{
	source_leave(party);
	if (party & PARTY_CLASS)
		class_waits(target, party, -1);
	return 0;
}

#endif
