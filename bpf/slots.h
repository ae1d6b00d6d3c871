/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The word that says how many units are in flight and how many wait. Whoever
 * waits goes first: while one does, a newcomer gets no slot. The agent claims
 * one for the head of its queue, here too, so that both numbers are always the
 * number of those that are in flight and that wait, whoever dies.
 */
#ifndef HEADGATE_SLOTS_H
#define HEADGATE_SLOTS_H

#include "maps.h"

/* Tries to take a slot before other CPUs' traffic is let win; never seen above 4. */
#define TRIES 16

#define ONE_WAITING (1ULL << 32)

static __always_inline __u32 in_flight(__u64 units)
{
	return units;
}

static __always_inline __u32 waiting(__u64 units)
{
	return units >> 32;
}

/*
 * The peak belongs to a tick, so that the agent need not reset it (that would
 * lose what is counted meanwhile). A lost race leaves the other CPU's value,
 * which is as recent; the agent takes the in-flight count at both ends too.
 */
static __always_inline void note_peak(struct target_state *st, __u32 tick, __u32 n)
{
	__u64 was = st->peak;
	__u64 is = (__u64)tick << 32 | n;

	if (was >> 32 != tick || (__u32)was < n)
		__sync_val_compare_and_swap(&st->peak, was, is);
}

/* Takes a slot, or turns one that waits (turn: -ONE_WAITING) into one in flight. */
static __always_inline void take_slot(struct target_state *st, __u32 tick, __u64 turn)
{
	__u64 was = __sync_fetch_and_add(&st->units, 1 + turn);

	note_peak(st, tick, in_flight(was) + 1);
}

/*
 * Takes a slot unless limit are taken, or, for a newcomer, somebody waits. These
 * are inlined, though the verifier goes through their loops for each way that
 * leads here: a call makes an admission 25 ns dearer.
 */
static __always_inline bool try_take_slot(struct target_state *st, __u32 tick, __u32 limit,
					  bool newcomer)
{
	__u64 was;
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		was = st->units;
		if (in_flight(was) >= limit || (newcomer && waiting(was)))
			return false;
		if (__sync_val_compare_and_swap(&st->units, was, was + 1) == was) {
			note_peak(st, tick, in_flight(was) + 1);
			return true;
		}
	}
	return false;
}

/* The same for one that has a place among those that wait, and gives it up for the slot. */
static __always_inline bool try_turn(struct target_state *st, __u32 tick, __u32 limit, bool first)
{
	__u64 was;
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		was = st->units;
		if (in_flight(was) >= limit || (first && waiting(was) > 1))
			return false;
		if (__sync_val_compare_and_swap(&st->units, was, was + 1 - ONE_WAITING) == was) {
			note_peak(st, tick, in_flight(was) + 1);
			return true;
		}
	}
	return false;
}

static __always_inline void wake(__u32 target)
{
	/* The beginning of a struct wake: the stack is short, and that has a key. */
	struct {
		__u32 target, kind;
		__u64 at;
	} w = { .target = target, .kind = WAKE_SLOT, .at = bpf_ktime_get_ns() };

	/* Where there is no room, so many are on their way that it does not matter. */
	if (bpf_ringbuf_output(&wakes, &w, sizeof(w), 0))
		COUNT(target, unwoken);
}

/* A place among those that wait, unless max wait already. */
static __always_inline bool try_wait(struct target_state *st, __u32 max)
{
	__u64 was;
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		was = st->units;
		if (waiting(was) >= max)
			return false;
		if (__sync_val_compare_and_swap(&st->units, was, was + ONE_WAITING) == was)
			return true;
	}
	return false;
}

static __always_inline __u32 limit_now(struct target_conf *conf, struct target_state *st)
{
	return st->refused_in == conf->tick ? conf->after_refusal : conf->limit;
}

/* Whether what the agent wrote holds still. */
static __always_inline bool in_force(struct target_conf *conf, __u64 now)
{
	return conf->flags & TARGET_ENFORCE && now < conf->lease;
}

static __always_inline void note_refusal(struct target_conf *conf, struct target_state *st)
{
	if (st->refused_in != conf->tick)
		st->refused_in = conf->tick;
}

#endif
