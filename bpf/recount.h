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
	__u32 parties;     /* units that are of a party */
	__u32 class[CLASSES];         /* units of each class that have a slot */
	__u32 class_waiting[CLASSES]; /* or wait */
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

/* The same of a party: by its source, and by its class in a target. */
struct party_correction {
	__u64 party;
	__u32 target;
	__s32 of_source;
	__s32 in_flight; /* of its class */
	__s32 waiting;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct tally);
} tallies SEC(".maps");

/* Units that were found of each source; like source_counts. The agent empties it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u64);
} tally_sources SEC(".maps");

static __always_inline struct tally *tally_of(__u32 target)
{
	return bpf_map_lookup_elem(&tallies, &target);
}

static long tally_clear(struct bpf_map *map, __u32 *target, struct tally *t, void *ctx)
{
	__builtin_memset(t, 0, sizeof(*t));
	return 0;
}

/* Not always inline: the callers of the kernel's walks have little stack. */
static __noinline void tally_party(struct tally *t, __u64 party, bool waits)
{
	__u64 key = party & PARTY_SOURCE, one = 1, *n;

	if (!t || !party)
		return;
	t->parties++;
	if (waits)
		t->class_waiting[party & PARTY_CLASS]++;
	else
		t->class[party & PARTY_CLASS]++;
	if (!key)
		return;
	n = bpf_map_lookup_elem(&tally_sources, &key);
	if (n)
		++*n;
	else
		bpf_map_update_elem(&tally_sources, &key, &one, BPF_NOEXIST);
}

static long tally_pending(struct bpf_map *map, struct pending_key *key, struct pending *p, void *ctx)
{
	struct tally *t = tally_of(key->target);

	if (t) {
		t->pending++;
		tally_party(t, p->party, false);
	}
	return 0;
}

static long tally_hold(struct bpf_map *map, struct pending_key *key, struct hold *h, void *ctx)
{
	struct tally *t = tally_of(key->target);

	if (t) {
		t->held++;
		tally_party(t, h->party, true);
	}
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
	__u64 request;

	if (c->blind)
		conn_look(c, sk);
	if (!c->counted)
		return;
	t = tally_of(c->target);
	if (!t)
		return;
	if (c->blind)
		t->blind++;
	if (c->resting)
		t->idle++;
	if (!c->per_request) {
		t->slots++;
		tally_party(t, c->taken, false);
		return;
	}
	t->connections++;
	request = c->request;
	switch (request & REQUEST_STATE) {
	case REQUEST_NONE:
		break;
	case REQUEST_HELD:
		t->waiting++;
		tally_party(t, party_of(request), true);
		break;
	default:
		t->slots++;
		tally_party(t, party_of(request), false);
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
	c = counters_of(by.target);
	if (c && by.idle > 0)
		__sync_fetch_and_add(&c->woken, by.idle);
	else if (c)
		__sync_fetch_and_add(&c->rested, -by.idle);
	if (by.in_flight > 0 && waiting(st->units))
		wake(by.target);
}

/* A source that has nobody here any more goes as it does when its last unit ends. */
static __always_inline void correct_source(__u64 party, __s32 by)
{
	__u64 key = party & PARTY_SOURCE, *word;

	if (by < 0 && source_join(party, ANY_NUMBER) == JOINED)
		by++;
	word = bpf_map_lookup_elem(&source_counts, &key);
	if (!word || by == 0)
		return;
	if (by > 1 && (*word & SOURCE_COUNT) < (__u64)by)
		return;
	if (by < 0) {
		__sync_fetch_and_add(word, (__u64)(__s64)-by);
		return;
	}
	__sync_fetch_and_add(word, -(__u64)(by - 1));
	source_leave(party);
}

static __always_inline void correct_class(struct party_correction *by)
{
	struct parts *cs = parts_of(by->target);
	struct class_state *c;
	__s32 free, n = by->in_flight;

	if (!cs)
		return;
	c = class_of(cs, by->party);
	__sync_fetch_and_add(&c->waiting, -by->waiting);
	free = c->free;
	if (n > 0 && free > 0) {
		free = free < n ? free : n;
		__sync_fetch_and_add(&c->free, -free);
		__sync_fetch_and_add(&cs->free, -free);
		n -= free;
	}
	__sync_fetch_and_add(&c->own, -n);
}

static __always_inline void correct_party(struct party_correction *ctx)
{
	struct party_correction by = *ctx;

	if (by.of_source)
		correct_source(by.party, by.of_source);
	if (by.party & PARTY_CLASS && (by.in_flight || by.waiting))
		correct_class(&by);
}

#endif
