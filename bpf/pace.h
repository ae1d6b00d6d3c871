/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The schedule of paced admission: one in each interval, idle time earns credit
 * for a burst or for none, and who would have to wait too long moves nothing.
 * pkg/pace has the same arithmetic in Go.
 */
#ifndef HEADGATE_PACE_H
#define HEADGATE_PACE_H

#include "slots.h"

/*
 * Slots that lie ahead belong to those that wait for them. Where nobody does
 * (mine: the caller's own places), they were given out under another rule, or
 * to clients that have given up: the last one was used by now.
 */
static __always_inline void forget_slots(struct target_state *st, __u64 now, __u32 mine)
{
	__u64 last = st->paced;

	if (last > now && waiting(st->units) <= mine)
		__sync_val_compare_and_swap(&st->paced, last, now);
}

/* The slot after last. One that lies before now was earned by idle time. */
static __always_inline __u64 next_slot(struct target_conf *conf, __u64 last, __u64 now)
{
	/* 0 is no slot: since the machine was started more cannot be earned. */
	__u64 earliest = now > conf->pace_credit ? now - conf->pace_credit : 1;
	__u64 slot = last ? last + conf->pace_interval : earliest;

	if (slot < last)
		return ~0ULL; /* beyond the end of time */
	return slot > earliest ? slot : earliest;
}

#define PACE_TOO_FAR ~0ULL
#define PACE_TAKEN (PACE_TOO_FAR - 1)

/*
 * Takes the next slot of a schedule, and returns it; PACE_TOO_FAR: it lies
 * further ahead than max_wait; PACE_TAKEN: another CPU was faster. Not static,
 * so that it is verified but once, and not for each way and turn that leads here.
 */
__noinline __u64 take_pace_slot(struct target_conf *conf, struct target_state *st, __u64 now,
				__u64 max_wait)
{
	__u64 last, slot;

	if (!conf || !st)
		return PACE_TOO_FAR;
	last = st->paced;
	slot = next_slot(conf, last, now);
	if (slot > now && slot - now > max_wait)
		return PACE_TOO_FAR;
	return __sync_val_compare_and_swap(&st->paced, last, slot) == last ? slot : PACE_TAKEN;
}

/*
 * Takes the next slot of the schedule. Sets *release to it where it lies ahead
 * and to 0 where the arrival may pass at once. False: it lies further ahead
 * than max_wait.
 */
static __always_inline bool pace(struct target_conf *conf, struct target_state *st, __u64 now,
				 __u64 max_wait, __u32 mine, __u64 *release)
{
	__u64 slot;
	int i;

	*release = 0;
	if (!conf->pace_interval)
		return true;
	forget_slots(st, now, mine);
#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		slot = take_pace_slot(conf, st, now, max_wait);
		if (slot == PACE_TAKEN)
			continue;
		if (slot == PACE_TOO_FAR)
			break;
		if (slot > now)
			*release = slot;
		return true;
	}
	return false;
}

/* Whether the next slot lies further ahead than an arrival may wait. */
static __always_inline bool pace_is_far(struct target_conf *conf, struct target_state *st, __u64 now)
{
	__u64 slot;

	if (!conf->pace_interval)
		return false;
	slot = next_slot(conf, st->paced, now);
	return slot > now && slot - now > conf->pace_max_wait;
}

#endif
