/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A cohort is the group of units that a probe of the agent times: the first
 * cohort_size of those whose SYN was admitted after it was asked for. A unit
 * that was let in earlier would tell of the queue before the probe, even if
 * its request comes later.
 */
#ifndef HEADGATE_COHORT_H
#define HEADGATE_COHORT_H

#include "maps.h"

/*
 * Joining packs epoch and number into one word; the CPU that begins a new
 * epoch zeroes the sums while the word says that the cohort is full.
 */
static __always_inline void cohort_join(struct conn *c, __u64 now)
{
	struct target_conf *conf = conf_of(c->target);
	__u32 target = c->target;
	struct cohort *co;
	__u64 was, fresh;

	if (!conf || !conf->cohort_size || c->cohort != conf->cohort_epoch || c->joined)
		return;
	co = bpf_map_lookup_elem(&cohorts, &target);
	if (!co)
		return;
	was = co->joined;
	if (was >> 32 != conf->cohort_epoch) {
		fresh = (__u64)conf->cohort_epoch << 32;
		if (__sync_val_compare_and_swap(&co->joined, was, fresh | ~0U) != was)
			return;
		co->done = 0;
		co->sum = 0;
		co->starts = 0;
		__sync_lock_test_and_set(&co->joined, fresh);
		was = fresh;
	}
	if ((__u32)was >= conf->cohort_size) {
		c->cohort = 0; /* too late */
		return;
	}
	__sync_fetch_and_add(&co->starts, now);
	if (__sync_val_compare_and_swap(&co->joined, was, was + 1) != was) {
		__sync_fetch_and_add(&co->starts, -now); /* the next one joins */
		return;
	}
	c->joined = now;
}

/* A connection's next request is admitted now. The cohort that it is in yet it has to leave first. */
static __always_inline void cohort_enter(struct conn *c, struct target_conf *conf)
{
	if (!c->joined)
		c->cohort = conf->cohort_epoch;
}

static __always_inline void cohort_leave(struct conn *c, __u64 latency)
{
	__u64 joined = c->joined;
	__u32 target = c->target, cohort;
	struct cohort *co;

	if (!joined)
		return;
	c->joined = 0;
	cohort = c->cohort;
	c->cohort = 0;
	co = bpf_map_lookup_elem(&cohorts, &target);
	if (!co || co->joined >> 32 != cohort)
		return;
	__sync_fetch_and_add(&co->starts, -joined);
	__sync_fetch_and_add(&co->sum, latency);
	__sync_fetch_and_add(&co->done, 1);
}

#endif
