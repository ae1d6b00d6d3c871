/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Admission: check and count in one atomic step when a SYN meets its listener.
 * The slot is taken for the handshake (a reservation, known by its tuple) and
 * passes to the connection when that is established; a handshake that never
 * ends gives it back after RESERVATION_TTL.
 */
#ifndef HEADGATE_ADMIT_H
#define HEADGATE_ADMIT_H

#include "event.h"
#include "flood.h"
#include "pace.h"
#include "party.h"

/*
 * Until the kernel has made a request socket for it. Not only SYNs get as far
 * as here: any packet does that belongs to no connection, and SYNs to a port
 * that nobody listens on. Enough for the round trip of a SYN cookie, which has
 * no such socket.
 */
#define PROVISIONAL_TTL 200000000ULL
#define SWEEP_INTERVAL 100000000ULL
#define SWEEP_SOON 25000000ULL /* where a flood may have begun */

/*
 * Fills in the addresses of a key from the context of a sk_lookup or sockops
 * program, which name them alike. An IPv4 client of a dual-stack listener is
 * AF_INET to the one and a v4-mapped AF_INET6 to the other: both store mapped.
 */
#define KEY_ADDRESSES(key, ctx)                                         \
	do {                                                            \
		if ((ctx)->family == AF_INET) {                         \
			(key)->remote[2] = bpf_htonl(0xffff);           \
			(key)->remote[3] = CTX_WORD(ctx, remote_ip4, 0); \
			(key)->local[2] = bpf_htonl(0xffff);            \
			(key)->local[3] = CTX_WORD(ctx, local_ip4, 0);  \
		} else {                                                \
			(key)->remote[0] = CTX_WORD(ctx, remote_ip6, 0); \
			(key)->remote[1] = CTX_WORD(ctx, remote_ip6, 1); \
			(key)->remote[2] = CTX_WORD(ctx, remote_ip6, 2); \
			(key)->remote[3] = CTX_WORD(ctx, remote_ip6, 3); \
			(key)->local[0] = CTX_WORD(ctx, local_ip6, 0);  \
			(key)->local[1] = CTX_WORD(ctx, local_ip6, 1);  \
			(key)->local[2] = CTX_WORD(ctx, local_ip6, 2);  \
			(key)->local[3] = CTX_WORD(ctx, local_ip6, 3);  \
		}                                                       \
	} while (0)

/* The key of the socket that a sockops program is called for. */
static __always_inline void sockops_key(struct bpf_sock_ops *ctx, __u32 target,
					struct pending_key *key)
{
	key->target = target;
	key->remote_port = ctx->remote_port >> 16; /* big-endian, in the upper half */
	key->local_port = ctx->local_port;
	KEY_ADDRESSES(key, ctx);
}

/* Deleting the key is what decides who gives the slot back: only one can. */
static __always_inline bool drop_pending(struct target_state *st, struct pending_key *key)
{
	if (bpf_map_delete_elem(&pendings, key))
		return false;
	__sync_fetch_and_add(&st->pending, -1);
	return true;
}

/* The same for one that waits. */
static __always_inline bool drop_hold(struct pending_key *key)
{
	return !bpf_map_delete_elem(&holds, key);
}

/* One that waits does so no longer: its place goes back. */
static __always_inline bool abandon_hold(struct target_state *st, struct pending_key *key)
{
	struct hold *h = bpf_map_lookup_elem(&holds, key);
	__u64 party;

	if (!h)
		return false;
	party = h->party;
	if (!drop_hold(key))
		return false;
	stop_waiting(key->target, st, party);
	return true;
}

/* A handshake has come to nothing: its slot goes back. */
static __always_inline bool abandon_pending(struct target_state *st, struct pending_key *key,
					    struct pending *p)
{
	__u64 party = p->party;

	if (!drop_pending(st, key))
		return false;
	release_slot(key->target, st, party);
	COUNT(key->target, expired);
	return true;
}

struct sweep_ctx {
	__u64 now;
	bool flood; /* one began in this sweep */
};

static long sweep_pending(struct bpf_map *map, struct pending_key *key, struct pending *p,
			  struct sweep_ctx *ctx)
{
	enum fate fate = fate_of(key->target, p, ctx->now);
	struct pending_key copy;
	struct target_state *st;

	if (fate == KEPT)
		return 0;
	if (fate == FLOOD_BEGINS)
		ctx->flood = true;
	copy = *key;
	st = state_of(copy.target);
	if (st && abandon_pending(st, &copy, p) && fate != EXPIRED)
		shun(&copy, ctx->now);
	return 0;
}

static long sweep_hold(struct bpf_map *map, struct pending_key *key, struct hold *h,
		       struct sweep_ctx *ctx)
{
	struct pending_key copy;
	struct target_state *st;
	__u64 party = h->party;

	copy = *key;
	st = state_of(copy.target);
	if (!st || (h->expires > ctx->now && (!flooded(st, ctx->now) || known(&copy, ctx->now))))
		return 0;
	if (drop_hold(&copy))
		stop_waiting(copy.target, st, party);
	return 0;
}

/*
 * Those that waited for a slot when their agent died: nobody is there to give
 * them one, and those that still want it send their SYN again. Those whose pace
 * slot is yet to come keep it.
 */
static long forget_hold(struct bpf_map *map, struct pending_key *key, struct hold *h,
			struct sweep_ctx *ctx)
{
	struct pending_key copy = *key;
	struct target_conf *conf = conf_of(copy.target);
	struct target_state *st = state_of(copy.target);
	__u64 party = h->party;

	if (conf && conf->max_waiting && h->release > ctx->now && h->interval == conf->pace_interval)
		return 0;
	if (st && drop_hold(&copy))
		stop_waiting(copy.target, st, party);
	return 0;
}

static __always_inline void forget_holds(void)
{
	struct sweep_ctx ctx = { .now = bpf_ktime_get_ns() };

	bpf_for_each_map_elem(&holds, forget_hold, &ctx, 0);
}

/*
 * Runs at most once in an interval, from the agent's tick and from whoever
 * finds a port full: slots of dead handshakes return with no agent alive. A
 * function of its own, and not static, so that it is verified but once.
 */
__noinline int sweep(__u64 now, __u64 interval)
{
	struct sweep_ctx ctx = { .now = now };
	__u32 zero = 0;
	__u64 *swept = bpf_map_lookup_elem(&sweeps, &zero);
	__u64 was;

	if (!swept)
		return 0;
	was = *swept;
	if ((__s64)(now - was) < (__s64)interval) /* clocks of two kinds */
		return 0;
	if (__sync_val_compare_and_swap(swept, was, now) != was)
		return 0;
	bpf_for_each_map_elem(&pendings, sweep_pending, &ctx, 0);
	if (ctx.flood) /* those before the one that showed it */
		bpf_for_each_map_elem(&pendings, sweep_pending, &ctx, 0);
	bpf_for_each_map_elem(&holds, sweep_hold, &ctx, 0);
	return 1;
}

/* Looks for slots of dead handshakes where there is no other. */
static __noinline void make_room(struct target_conf *conf, struct target_state *st, __u64 now)
{
	if (in_flight(st->units) < limit_now(conf, st))
		return;
	st->crowd++; /* two CPUs may count one: it need not be exact */
	sweep(now, suspicious(conf, st) ? SWEEP_SOON : SWEEP_INTERVAL);
}

/* Notes a slot that is taken already under its tuple, for ttl. isn, party: see struct pending. */
static __always_inline void reserve(struct target_conf *conf, struct target_state *st,
				    struct pending_key *key, __u64 now, __u64 ttl, __u32 isn, __u64 party)
{
	struct pending p = {
		.since = now,
		.expires = (now + ttl) & ~ANSWERED,
		.cohort = conf->cohort_epoch,
		.isn = isn,
		.party = party,
	};
	/* Of 32 bits: before Linux 6.4 the verifier's own call leaves the upper half undefined. */
	int err;

	__sync_fetch_and_add(&st->pending, 1);
	err = bpf_map_update_elem(&pendings, key, &p, BPF_NOEXIST);
	if (!err)
		return;

	/* Reserved before, or no room: it is counted when it is established. */
	__sync_fetch_and_add(&st->pending, -1);
	release_slot(key->target, st, party);
	if (err == -EEXIST)
		return;
	COUNT(key->target, pending_full);
	if (err == -E2BIG) /* not for a bucket that is locked by what this has interrupted */
		flood_begin_full(key->target, st, now);
}

/* What comes of this SYN from now on is not another arrival. */
static __always_inline void let_in(struct pending_key *key, __u64 now, __u32 isn)
{
	struct claimed done = { .until = now + RESERVATION_TTL, .isn = isn };

	bpf_map_update_elem(&claims, key, &done, BPF_ANY);
}

/*
 * Takes a slot where nothing is in force, so that nobody is refused. Counts who
 * is let in over the limit, and notes it for the caller to say.
 */
static __always_inline void take_slot_freely(__u32 target, struct target_conf *conf,
					     struct target_state *st, struct origin *o)
{
	if (party_takes(target, conf, st, limit_now(conf, st), o->party, TAKE_ANY))
		return;
	note_refusal(conf, st);
	COUNT(target, would_reject);
	o->over = REJECT_LIMIT;
	party_is_in(target, conf, st, o->party, 0);
}

/* The same, and counts the source: who is over in two ways is let in once. */
static __always_inline void admit_freely(__u32 target, struct target_conf *conf,
					 struct target_state *st, struct origin *o)
{
	if (!o->party || source_admits(target, o, o->limit)) {
		take_slot_freely(target, conf, st, o);
		return;
	}
	COUNT(target, would_reject);
	o->over = REJECT_SOURCE;
	source_admits(target, o, ANY_NUMBER);
	party_is_in(target, conf, st, o->party, 0);
}

static __always_inline enum verdict admit_within(__u32 target, struct target_conf *conf,
						 struct target_state *st, __u64 now, __u32 max_waiting,
						 __u64 *release, __u64 party)
{
	__u32 limit = limit_now(conf, st);
	__u64 units = st->units;
	/* Where nothing waits any more, those of an earlier rule have no turn. */
	bool first = conf->max_waiting;

	*release = 0;
	if (!max_waiting) {
		if (in_flight(units) >= limit)
			return REJECT_LIMIT;
		if (party & PARTY_CLASS) {
			class_balance(target, limit);
			if (!class_has_room(target, limit, party))
				return REJECT_LIMIT;
		} else if (first && waiting(units)) { /* refused on the device: why? */
			return pace_is_far(conf, st, now) ? REJECT_PACE : REJECT_LIMIT;
		}
		if (!pace(conf, st, now, 0, 0, release))
			return REJECT_PACE;
		return party_takes(target, conf, st, limit, party, TAKE_NEW) ? ADMIT : REJECT_LIMIT;
	}
	if (!conf->pace_interval && party_takes(target, conf, st, limit, party, TAKE_NEW))
		return ADMIT;
	/* A place first: for who has none the schedule must not move. */
	if (!party_waits(target, st, max_waiting, party))
		return REJECT_LIMIT;
	if (!pace(conf, st, now, conf->pace_max_wait, 1, release)) {
		stop_waiting(target, st, party & PARTY_CLASS);
		return REJECT_PACE;
	}
	if (*release)
		return HOLD;
	if (conf->pace_interval && party_takes(target, conf, st, limit, party, TAKE_TURN))
		return ADMIT;
	note_refusal(conf, st); /* to an algorithm it is the same: more come than may */
	return HOLD;
}

/* For a unit that is of a party. An enum verdict. */
__noinline int admit_party(__u32 target, __u64 now, __u32 max_waiting, struct origin *o)
{
	struct target_conf *conf = conf_of(target);
	struct target_state *st = state_of(target);
	enum verdict v;

	if (!conf || !st || !o)
		return ADMIT;
	if (!in_force(conf, now)) {
		admit_freely(target, conf, st, o);
		return ADMIT;
	}
	if (!source_admits(target, o, o->limit))
		return REJECT_SOURCE;
	v = admit_within(target, conf, st, now, max_waiting, &o->release, o->party);
	if (v != ADMIT && v != HOLD)
		source_leave(o->party);
	return v;
}

/*
 * What becomes of an arrival: it has a slot (ADMIT), it is one of those that
 * wait (HOLD), for its pace slot at o->release or, if that is 0, for a free one,
 * or it is neither. Its source is asked first, as whose unit it is here from now
 * on; then its class and the limit, and the pace last, so that a refusal moves
 * no schedule. max_waiting is 0 where nothing can be held.
 */
static __always_inline enum verdict admit(struct pending_key *key, struct target_conf *conf,
					  struct target_state *st, __u64 now, __u32 max_waiting,
					  struct origin *o)
{
	enum verdict v = ADMIT;

	if (o->party)
		v = admit_party(key->target, now, max_waiting, o);
	else if (in_force(conf, now))
		return admit_within(key->target, conf, st, now, max_waiting, &o->release, 0);
	else
		take_slot_freely(key->target, conf, st, o);
	if (o->over && may_tell(conf, st))
		tell(key, o->over, true);
	return v;
}

/*
 * In flood mode: whether a stranger may go on with its handshake. It takes
 * nothing now; admit() has the word when that is complete. It does not wait.
 */
static __noinline enum verdict admit_stranger(struct target_conf *conf, struct target_state *st,
						   __u64 now)
{
	__u64 units = st->units;

	if (!in_force(conf, now))
		return ADMIT;
	if (in_flight(units) >= limit_now(conf, st) || (conf->max_waiting && waiting(units)))
		return REJECT_LIMIT;
	if (conf->pace_interval && next_slot(conf, st->paced, now) > now)
		return REJECT_PACE;
	return ADMIT;
}

static __always_inline void count_refusal(__u32 target, struct target_conf *conf,
					  struct target_state *st, enum verdict v, __u64 party)
{
	struct parts *cs = party & PARTY_CLASS ? parts_of(target) : NULL;

	if (cs)
		__sync_fetch_and_add(&class_of(cs, party)->rejected, 1);
	if (v == REJECT_SOURCE) {
		COUNT(target, rejected_source); /* says nothing of the limit */
	} else if (v == REJECT_FLOOD) {
		COUNT(target, rejected_flood); /* nor does this */
	} else if (v == REJECT_PACE) {
		COUNT(target, rejected_pace); /* nor does this */
	} else {
		note_refusal(conf, st);
		COUNT(target, rejected);
	}
}

/* Counts it and, of a few, tells the agent. */
static __always_inline void refuse(struct pending_key *key, struct target_conf *conf,
				   struct target_state *st, enum verdict v, __u64 party)
{
	count_refusal(key->target, conf, st, v, party);
	if (may_tell(conf, st))
		tell(key, v, false);
}

#endif
