/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Admission: check and count in one atomic step when a SYN meets its listener.
 * The slot is taken for the handshake (a reservation, known by its tuple) and
 * passes to the connection when that is established; a handshake that never
 * ends gives it back after RESERVATION_TTL.
 */
#ifndef HEADGATE_ADMIT_H
#define HEADGATE_ADMIT_H

#include "maps.h"

/*
 * Long enough for a handshake over any ordinary path, and for one SYN-ACK that
 * is lost and sent again after a second; short enough that SYNs that nobody
 * follows up do not hold slots for long.
 */
#define RESERVATION_TTL 1500000000ULL
#define SWEEP_INTERVAL 100000000ULL

/* Tries to take a slot before other CPUs' traffic is let win; never seen above 4. */
#define RESERVE_TRIES 16

#define EEXIST 17

enum verdict { ADMIT, REJECT };

static __always_inline __u32 in_flight(__u64 units)
{
	return units;
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

static __always_inline void release_slot(struct target_state *st)
{
	__sync_fetch_and_add(&st->units, -1ULL);
}

static __always_inline void take_slot(struct target_state *st, __u32 tick)
{
	__u64 was = __sync_fetch_and_add(&st->units, 1);

	note_peak(st, tick, in_flight(was) + 1);
}

/* Takes a slot unless that many are taken; says whether it did. */
static __always_inline bool try_take_slot(struct target_state *st, __u32 tick, __u32 limit)
{
	__u64 was;
	int i;

	for (i = 0; i < RESERVE_TRIES; i++) {
		was = st->units;
		if (in_flight(was) >= limit)
			return false;
		if (__sync_val_compare_and_swap(&st->units, was, was + 1) == was) {
			note_peak(st, tick, in_flight(was) + 1);
			return true;
		}
	}
	return false;
}

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

/* Deleting the key is what decides who gives the slot back: only one can. */
static __always_inline bool drop_pending(struct target_state *st, struct pending_key *key)
{
	if (bpf_map_delete_elem(&pendings, key))
		return false;
	__sync_fetch_and_add(&st->pending, -1);
	return true;
}

struct sweep_ctx {
	__u64 now;
};

static long sweep_one(struct bpf_map *map, struct pending_key *key, struct pending *p,
		      struct sweep_ctx *ctx)
{
	struct pending_key copy;
	struct target_state *st;

	if (p->expires > ctx->now)
		return 0;
	copy = *key;
	st = state_of(copy.target);
	if (st && drop_pending(st, &copy)) {
		release_slot(st);
		COUNT(copy.target, expired);
	}
	return 0;
}

/*
 * Runs at most once in SWEEP_INTERVAL, from the agent's tick and from whoever
 * finds a port full: slots of dead handshakes return with no agent alive.
 */
static __always_inline bool sweep(__u64 now)
{
	struct sweep_ctx ctx = { .now = now };
	__u32 zero = 0;
	__u64 *swept = bpf_map_lookup_elem(&sweeps, &zero);
	__u64 was;

	if (!swept)
		return false;
	was = *swept;
	if (now - was < SWEEP_INTERVAL)
		return false;
	if (__sync_val_compare_and_swap(swept, was, now) != was)
		return false;
	bpf_for_each_map_elem(&pendings, sweep_one, &ctx, 0);
	return true;
}

static __always_inline __u32 limit_now(struct target_conf *conf, struct target_state *st)
{
	return st->refused_in == conf->tick ? conf->after_refusal : conf->limit;
}

static __always_inline enum verdict refuse(__u32 target, struct target_conf *conf,
					   struct target_state *st, __u64 now)
{
	if (st->refused_in != conf->tick)
		st->refused_in = conf->tick;
	if (conf->flags & TARGET_ENFORCE && now < conf->lease) {
		COUNT(target, rejected);
		return REJECT;
	}
	COUNT(target, would_reject);
	take_slot(st, conf->tick);
	return ADMIT;
}

/* key is all but the addresses, which KEY_ADDRESSES(key, ctx) fills in when they are needed. */
static __always_inline enum verdict admit(struct bpf_sk_lookup *ctx, struct pending_key *key)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	struct pending p = { .expires = now + RESERVATION_TTL };
	struct target_state *st = state_of(key->target);
	struct target_conf *conf = conf_of(key->target);
	__u32 limit;
	bool taken;
	long err;

	if (!conf || !st)
		return ADMIT;
	limit = limit_now(conf, st);

	/*
	 * The ACK that answers a SYN cookie, or a SYN that was sent again, has
	 * its slot. Where there are enough it does not matter if that is noticed
	 * only below; at the last one it would keep another out.
	 */
	if (st->pending && in_flight(st->units) + 1 >= limit) {
		KEY_ADDRESSES(key, ctx);
		if (bpf_map_lookup_elem(&pendings, key))
			return ADMIT;
		if (in_flight(st->units) >= limit)
			sweep(now);
	}
	taken = try_take_slot(st, conf->tick, limit);
	if (!taken && refuse(key->target, conf, st, now) == REJECT)
		return REJECT;

	KEY_ADDRESSES(key, ctx);
	p.cohort = conf->cohort_epoch;
	__sync_fetch_and_add(&st->pending, 1);
	err = bpf_map_update_elem(&pendings, key, &p, BPF_NOEXIST);
	if (!err)
		return ADMIT;

	/* Reserved before, or no room: it is counted when it is established. */
	__sync_fetch_and_add(&st->pending, -1);
	release_slot(st);
	if (err != -EEXIST)
		COUNT(key->target, pending_full);
	return ADMIT;
}

#endif
