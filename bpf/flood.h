/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * SYNs that nobody stands behind. A reservation each would keep everybody else
 * out, so while they come a target is in flood mode: a client that has shown
 * lately that it is one is treated as ever, and all others (strangers) take no
 * slot before their handshake is complete. What is over the limit then is ended
 * by the agent at once.
 */
#ifndef HEADGATE_FLOOD_H
#define HEADGATE_FLOOD_H

#include "party.h"

/*
 * Long enough for a handshake over any ordinary path, and for one SYN-ACK that
 * is lost and sent again after a second; short enough that SYNs that nobody
 * follows up do not hold slots for long.
 */
#define RESERVATION_TTL 1500000000ULL

/*
 * After this time a handshake is not answered: eight times as long as the
 * longest of late took, within these bounds; where none is known, the third.
 * No longer than until a SYN-ACK is sent again.
 */
#define PATIENCE_MIN 20000000ULL
#define PATIENCE_MAX 1000000000ULL
#define PATIENCE_UNKNOWN 400000000ULL
#define PATIENCE 8000ULL /* times handshake, which is in microseconds */

/* How long flood mode goes on after the last period with a flood in it. */
#define FLOOD_LINGER 2500000000ULL
#define FLOOD_PERIOD 1000000000ULL

/* So many dead reservations are a flood whatever the limit: they fill the tables. */
#define FLOOD_MANY 1024

/*
 * Fewer than so many may be a hitch of the network, or of this machine. Then it
 * takes a crowd before the full port as well, of the second number in this time.
 */
#define FLOOD_SOME 32
#define FLOOD_CROWD 256
#define FLOOD_CROWD_TIME 2000000000ULL

/* How long a source stays known, and how long it cannot become so again. */
#define KNOWN_TIME 600000000000ULL
#define SHUN_TIME 10000000000ULL

/* In the expiry of a reservation: the kernel has answered its SYN, and keeps the handshake. */
#define ANSWERED 1ULL

static __always_inline bool flooded(struct target_state *st, __u64 now)
{
	return now < st->flood_until;
}

/* Whether it was when a handshake began that is over now: strangers came past uncounted. */
static __always_inline bool flooded_lately(struct target_state *st, __u64 now)
{
	return st->flood_until && now < st->flood_until + RESERVATION_TTL;
}

/*
 * A decaying maximum: one distant client among 250 is still remembered. Two
 * CPUs may write at once, and one of the two handshakes goes unnoticed.
 */
static __always_inline void note_handshake(struct target_state *st, __u32 us)
{
	__u32 was = st->handshake;

	if (us >= was)
		st->handshake = us;
	else if (us)
		st->handshake = was - (was - us + 255) / 256;
}

static __always_inline __u64 patience(struct target_state *st)
{
	__u64 ns = st->handshake * PATIENCE;

	if (!ns)
		return PATIENCE_UNKNOWN;
	if (ns > PATIENCE_MAX)
		return PATIENCE_MAX;
	return ns < PATIENCE_MIN ? PATIENCE_MIN : ns;
}

/*
 * How many reservations matter: those of the limit, or those that a pace gives
 * out in their lifetime.
 */
static __always_inline __u32 reservable(struct target_conf *conf, struct target_state *st)
{
	__u32 limit = limit_now(conf, st);
	__u64 paced;

	if (!conf->pace_interval)
		return limit;
	paced = (RESERVATION_TTL + conf->pace_credit) / conf->pace_interval;
	if (paced < 2)
		paced = 2;
	return paced < limit ? paced : limit;
}

#define FEW 4

/* The number of dead ones that is not chance. */
static __always_inline __u32 many(__u32 limit)
{
	if (limit < FEW)
		return limit;
	return limit < 8 * FEW ? FEW : limit / 8;
}

/* Whether full for want of answers is likely enough to look for those soon. */
static __always_inline bool suspicious(struct target_conf *conf, struct target_state *st)
{
	return st->pending >= many(limit_now(conf, st));
}

static __always_inline void flood_begin(struct flood *f, struct target_state *st, __u64 now)
{
	f->strangers = 0;
	f->passed = 0;
	f->made = 0;
	f->period = now;
	st->flood_until = now + FLOOD_LINGER;
}

/* There is no room for a reservation: of whatever target they are, nobody needs them. */
static __always_inline void flood_begin_full(__u32 target, struct target_state *st, __u64 now)
{
	struct flood *f = bpf_map_lookup_elem(&floods, &target);

	if (f && !flooded(st, now))
		flood_begin(f, st, now);
}

/*
 * Whether so many dead ones are no hitch: they are some, or there is a crowd. Of
 * those that were not answered in all their lifetime a smaller one will do.
 */
static __always_inline bool no_hitch(struct target_state *st, __u32 dead, __u32 limit, bool expired)
{
	return dead >= FLOOD_SOME || st->crowd >= FLOOD_CROWD ||
	       (expired && st->crowd >= 2 * limit + FEW);
}

/*
 * A sweep, one at a time, has come upon a reservation that is not answered. True
 * once it is one of many: of all that go on it is most, and with them the target
 * is full.
 */
static __always_inline bool flood_begins(__u32 target, struct target_conf *conf,
					 struct target_state *st, bool expired, __u64 now)
{
	struct flood *f = bpf_map_lookup_elem(&floods, &target);
	__u32 dead, limit;

	if (!f)
		return false;
	if (f->swept != now) {
		f->swept = now;
		f->dead = 0;
		if ((__s64)(now - f->crowded) > (__s64)FLOOD_CROWD_TIME) { /* clocks of two kinds */
			f->crowded = now;
			st->crowd = 0;
		}
	}
	dead = ++f->dead;
	limit = reservable(conf, st);
	/* Not for a limit that has fallen: a flood takes no slot above it. */
	if (in_flight(st->units) > limit_now(conf, st) + dead)
		limit = in_flight(st->units) - dead;
	if (dead < FLOOD_MANY &&
	    (dead < many(limit) || !no_hitch(st, dead, limit, expired) || 2 * dead < st->pending || in_flight(st->units) + dead < limit))
		return false;
	flood_begin(f, st, now);
	return true;
}

/*
 * A server that restarts has no listener for a moment. Who comes meanwhile is reset,
 * comes again, and leaves a reservation each time: to look at, a flood. Once the
 * server listens these are in vain, and flood mode, if it is on for them, over. In
 * a flood it begins again at once.
 */
static __always_inline void listener_is_back(struct target_state *st)
{
	__u64 now = bpf_ktime_get_coarse_ns(), *swept;
	__u32 zero = 0;

	st->listened = now;
	st->crowd = 0;
	if (flooded(st, now))
		st->flood_until = now;
	swept = bpf_map_lookup_elem(&sweeps, &zero);
	if (swept)
		*swept = 0; /* the next one need not wait */
}

/* From before, and not answered: an answer counts as later than any time. */
static __always_inline bool in_vain(struct target_state *st, struct pending *p)
{
	return (p->since | p->expires << 63) < st->listened;
}

/* What a sweep finds of a reservation. */
enum fate { KEPT, EXPIRED, FLOODED, FLOOD_BEGINS };

/* In flood mode a slot is worth more than the reply that may still come. */
static __noinline enum fate fate_of(__u32 target, struct pending *p, __u64 now)
{
	struct target_state *st = state_of(target);
	bool expired = p->expires <= now;
	struct target_conf *conf;

	if (!st)
		return KEPT;
	if (in_vain(st, p))
		return EXPIRED;
	conf = conf_of(target);
	if (!conf || (!expired && (__s64)(now - p->since) < (__s64)patience(st)))
		return KEPT;
	if (flooded(st, now))
		return FLOODED;
	if (flood_begins(target, conf, st, expired, now))
		return FLOOD_BEGINS;
	return expired ? EXPIRED : KEPT;
}

/*
 * How many strangers come whose handshake never ends? The ACK of a SYN cookie
 * looks like another SYN, so each that ends stands for two. A period that ends
 * late counts as when it should have, for flood mode is to end in time.
 */
static __always_inline void flood_goes_on(struct flood *f, struct target_conf *conf,
					  struct target_state *st, __u64 now)
{
	__u64 was = f->period, took = now - was;
	__u32 strangers, made;

	if ((__s64)took < (__s64)FLOOD_PERIOD || __sync_val_compare_and_swap(&f->period, was, now) != was)
		return;
	strangers = __sync_lock_test_and_set(&f->strangers, 0);
	made = 2 * __sync_lock_test_and_set(&f->made, 0);
	f->passed = 0;
	if (strangers > made &&
	    (strangers - made) * FLOOD_PERIOD > many(reservable(conf, st)) * took)
		st->flood_until = was + FLOOD_PERIOD + FLOOD_LINGER;
}

/* IPv6 clients change their addresses within a /64. */
static __always_inline void home_of(struct pending_key *key, struct address *home)
{
	__builtin_memcpy(home->word, key->remote, sizeof(home->word));
	if (home->word[0] || home->word[1]) {
		home->word[2] = 0;
		home->word[3] = 0;
	}
}

/* Whether somebody at the source of a SYN has completed a handshake lately. */
static __noinline bool known(struct pending_key *key, __u64 now)
{
	struct address home;
	struct acquaintance *a;

	home_of(key, &home);
	a = bpf_map_lookup_elem(&acquaintances, &home);
	return a && now < a->until;
}

static __noinline void make_known(struct pending_key *key, __u64 now)
{
	struct acquaintance *a, fresh = { .until = now + KNOWN_TIME };
	struct address home;

	home_of(key, &home);
	a = bpf_map_lookup_elem(&acquaintances, &home);
	if (!a)
		bpf_map_update_elem(&acquaintances, &home, &fresh, BPF_ANY);
	else if (now >= a->shunned)
		a->until = now + KNOWN_TIME;
}

/* Somebody uses a known source's address, who does not answer there. */
static __noinline void shun(struct pending_key *key, __u64 now)
{
	struct acquaintance *a;
	struct address home;

	home_of(key, &home);
	a = bpf_map_lookup_elem(&acquaintances, &home);
	if (!a)
		return;
	a->shunned = now + SHUN_TIME;
	a->until = 0;
}

/*
 * Where the kernel makes no SYN cookies, its queue of handshakes takes only so
 * many strangers in a period; else they would keep even known clients out.
 */
static __always_inline bool stranger_fits(struct flood *f, struct target_conf *conf, __u64 now)
{
	__s64 took = now - f->period; /* clocks of two kinds: it may be negative */

	if (!conf->strangers)
		return true;
	if (took < 0 || f->passed * FLOOD_PERIOD > conf->strangers * (__u64)took)
		return false;
	__sync_fetch_and_add(&f->passed, 1);
	return true;
}

/* One has come as far as its listener. */
static __noinline bool stranger_passes(__u32 target, struct target_conf *conf,
					    struct target_state *st, __u64 now)
{
	struct flood *f = bpf_map_lookup_elem(&floods, &target);

	if (!f)
		return true;
	__sync_fetch_and_add(&f->strangers, 1);
	flood_goes_on(f, conf, st, now);
	return stranger_fits(f, conf, now);
}

/* And now it is a connection. */
static __always_inline void stranger_made(__u32 target)
{
	struct flood *f = bpf_map_lookup_elem(&floods, &target);

	if (f)
		__sync_fetch_and_add(&f->made, 1);
}

/* Has the agent end a connection that there was no slot for. */
static __noinline void wake_trim(struct bpf_sock_ops *ctx, struct bpf_sock *sk,
				      struct pending_key *key)
{
	struct wake w = { .target = key->target, .kind = WAKE_TRIM, .at = bpf_ktime_get_ns() };

	w.key = *key;
	w.cookie = bpf_get_socket_cookie(ctx);
	w.device = sk->bound_dev_if;
	if (bpf_ringbuf_output(&wakes, &w, sizeof(w), 0))
		COUNT(key->target, untrimmed);
}

#endif
