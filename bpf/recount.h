/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is in flight really, for the agent to compare with what is counted. The
 * records of connections are walked in their map, not the sockets in the tables
 * of TCP: a socket that its client has reset is in none of these any more and
 * holds its slot still. What a record says is the fast path's own predicate.
 */
#ifndef HEADGATE_RECOUNT_H
#define HEADGATE_RECOUNT_H

#include "adopt.h"

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
} CORE;

/* What was found of a target. */
struct tally {
	__u32 pending;     /* reservations */
	__u32 held;        /* SYNs that wait */
	__u32 slots;       /* connections or requests that hold one */
	__u32 waiting;     /* requests that wait */
	__u32 connections; /* with TARGET_REQUEST */
	__u32 idle;        /* connections at rest */
	__u32 blind;       /* connections whose end this kernel does not tell */
	__u32 pad;
};

/* What a target is to be counted less. */
struct correction {
	__u32 target;
	__s32 in_flight;
	__s32 waiting;
	__s32 pending;
	__s32 connections;
	__s32 idle;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct tally);
} tallies SEC(".maps");

static __always_inline struct tally *tally_of(__u32 target)
{
	return bpf_map_lookup_elem(&tallies, &target);
}

static long tally_clear(struct bpf_map *map, __u32 *target, struct tally *t, void *ctx)
{
	__builtin_memset(t, 0, sizeof(*t));
	return 0;
}

static long tally_pending(struct bpf_map *map, struct pending_key *key, struct pending *p, void *ctx)
{
	struct tally *t = tally_of(key->target);

	if (t)
		t->pending++;
	return 0;
}

static long tally_hold(struct bpf_map *map, struct pending_key *key, struct hold *h, void *ctx)
{
	struct tally *t = tally_of(key->target);

	if (t)
		t->held++;
	return 0;
}

/*
 * Reservations before connections: one that becomes the other meanwhile is
 * found once or twice, but never not at all.
 */
static __always_inline void tally_begin(void)
{
	bpf_for_each_map_elem(&tallies, tally_clear, NULL, 0);
	bpf_for_each_map_elem(&pendings, tally_pending, NULL, 0);
	bpf_for_each_map_elem(&holds, tally_hold, NULL, 0);
}

/* One connection. Whatever does not count when it begins must not count here. */
static __always_inline void tally_conn(struct conn *c, struct sock *sk)
{
	struct tally *t;

	if (c->blind)
		conn_look(c, sk);
	if (!c->counted)
		return;
	t = tally_of(c->target);
	if (!t)
		return;
	if (c->blind)
		t->blind++;
	if (!c->per_request)
		t->slots++;
	else
		t->connections++;
	if (c->resting)
		t->idle++;
	switch (request_of(c)) {
	case REQUEST_HELD:
		t->waiting++;
		break;
	case REQUEST_GRANTING:
	case REQUEST_BUSY:
		t->slots++;
		break;
	}
}

/* Both counts are in one word, and what is below 0 in one would be lent by the other. */
static __always_inline __u32 less(__u32 n, __s32 by)
{
	return by > 0 && n < (__u32)by ? 0 : n - by;
}

static __always_inline void correct(struct correction *ctx)
{
	struct correction by = *ctx;
	struct target_state *st = state_of(by.target);
	struct target_counters *c;
	__u64 was, now;
	int i;

	if (!st)
		return;
#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		was = st->units;
		now = (__u64)less(waiting(was), by.waiting) << 32 | less(in_flight(was), by.in_flight);
		if (__sync_val_compare_and_swap(&st->units, was, now) == was)
			break;
	}
	__sync_fetch_and_add(&st->pending, -by.pending);
	__sync_fetch_and_add(&st->connections, -by.connections);
	c = bpf_map_lookup_elem(&counters, &by.target);
	if (c && by.idle > 0)
		__sync_fetch_and_add(&c->woken, by.idle);
	else if (c)
		__sync_fetch_and_add(&c->rested, -by.idle);
	if (by.in_flight > 0 && waiting(st->units))
		wake(by.target);
}

#endif
