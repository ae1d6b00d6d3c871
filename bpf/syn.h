/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A SYN on its way in. It meets one program or two: on the device, where it
 * can be held, and at the lookup of its listener, where it can be reset and
 * nothing can pass by.
 */
#ifndef HEADGATE_SYN_H
#define HEADGATE_SYN_H

#include "admit.h"

/*
 * The device that the agent names when it ends a connection (pkg/scope); there is
 * none of this number. In place of one that is gone the kernel looks for its
 * listener, and nobody has come for a slot.
 */
#define NOT_A_PACKET 0xffffffff

/* The pace is kept to the nanosecond, everything else to the timer tick. */
static __always_inline __u64 clock_for(struct target_conf *conf)
{
	return conf->pace_interval ? bpf_ktime_get_ns() : bpf_ktime_get_coarse_ns();
}

/* The last word. key is complete. */
static __always_inline bool syn_may_pass(struct target_conf *conf, struct target_state *st,
					 struct pending_key *key)
{
	__u32 target = key->target;
	__u64 now = clock_for(conf);
	struct origin o = {};
	struct hold *held;
	enum verdict v;

	origin_of(conf, target, key->remote, &o);
	if (o.exempt)
		return true;
	/*
	 * It passed a device, is sent again, or is the ACK that answers a SYN
	 * cookie? Then it has its slot. Where there are enough, and no pace, it
	 * does not matter if that is noticed only in reserve(); at the last one
	 * it would keep another out.
	 */
	if (st->pending && (conf->flags & (TARGET_INGRESS | TARGET_PARTIES) || conf->pace_interval ||
			    in_flight(st->units) + 1 >= limit_now(conf, st))) {
		if (bpf_map_lookup_elem(&pendings, key))
			return true;
		make_room(conf, st, now);
	}
	held = waiting(st->units) ? bpf_map_lookup_elem(&holds, key) : NULL;
	if (held) {
		__u64 party = held->party;

		if (drop_hold(key)) {
			/* Nobody was there to hold it. */
			COUNT(target, bypassed);
			party_is_in(target, conf, st, party, -ONE_WAITING);
			reserve(conf, st, key, now, PROVISIONAL_TTL, 0, party);
			return true;
		}
	}
	if (flooded(st, now) && !known(key, now)) {
		v = admit_stranger(conf, st, now);
		if (v == ADMIT && stranger_passes(target, conf, st, now))
			return true;
		refuse(key, conf, st, v == ADMIT ? REJECT_FLOOD : v, o.party);
		return false;
	}
	v = admit(key, conf, st, now, 0, &o);
	if (v != ADMIT) {
		refuse(key, conf, st, v, o.party);
		return false;
	}
	reserve(conf, st, key, now, PROVISIONAL_TTL, 0, o.party);
	return true;
}

/* Notes one that waits. An error, such as -EEXIST. Out of line, for the stack's sake. */
static __noinline int note_hold(struct target_conf *conf, struct pending_key *key, struct origin *o,
				 __u64 now, __u32 isn)
{
	struct hold h = {
		.expires = (o->release ? o->release : now) + conf->max_wait + RESERVATION_TTL,
		.release = o->release,
		.interval = conf->pace_interval,
		.isn = isn,
		.party = o->party,
	};

	return bpf_map_update_elem(&holds, key, &h, BPF_NOEXIST);
}

/*
 * On the device. What is refused by a reset goes on to the lookup, which comes
 * to the same verdict and has the kernel send one.
 */
static __always_inline enum verdict syn_arrives(struct target_conf *conf, struct target_state *st,
						struct pending_key *key, __u32 isn, struct origin *o)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 target = key->target;
	struct hold *held;
	struct claimed *done;
	struct pending *p;
	enum verdict v;

	/* What is sent again has its slot, or its place. It may be a new attempt. */
	p = st->pending ? bpf_map_lookup_elem(&pendings, key) : NULL;
	if (p) {
		p->isn = isn;
		return ADMIT;
	}
	held = waiting(st->units) ? bpf_map_lookup_elem(&holds, key) : NULL;
	if (held) {
		held->isn = isn;
		return in_force(conf, now) ? HOLD : ADMIT;
	}
	done = bpf_map_lookup_elem(&claims, key);
	if (done && done->isn == isn && now < done->until)
		return ADMIT; /* the very same, late */
	if (st->pending)
		make_room(conf, st, now);
	if (flooded(st, now) && !known(key, now))
		return admit_stranger(conf, st, now);

	v = admit(key, conf, st, now, conf->max_waiting, o);
	if (v == ADMIT) {
		reserve(conf, st, key, now, PROVISIONAL_TTL, isn, o->party);
	} else if (v == HOLD) {
		int err = note_hold(conf, key, o, now, isn);

		if (!err) {
			COUNT(target, held);
			return HOLD;
		}
		stop_waiting(target, st, o->party);
		if (err == -EEXIST)
			return HOLD; /* the same on another CPU: it has its place */
		COUNT(target, hold_full);
		return REJECT_LIMIT;
	}
	return v;
}

/* The kernel has answered a SYN and keeps the handshake: the reservation may wait for its end. */
static __always_inline void syn_answered(struct bpf_sock_ops *ctx)
{
	__u32 *id = target_of(bpf_get_netns_cookie(ctx), ctx->local_port);
	struct pending_key key = {};
	struct target_state *st;
	struct pending *p;

	if (!id)
		return;
	st = state_of(*id);
	if (!st || !st->pending)
		return;
	sockops_key(ctx, *id, &key);
	p = bpf_map_lookup_elem(&pendings, &key);
	if (p)
		p->expires = (bpf_ktime_get_coarse_ns() + RESERVATION_TTL) | ANSWERED;
}

/*
 * A client that has given up while it was held answers the SYN-ACK by a reset.
 * With this sequence number, no other, the kernel gives up the handshake too:
 * the slot need not wait for the reservation to expire.
 */
static __always_inline void syn_reset(struct target_state *st, struct pending_key *key, __u32 seq)
{
	struct pending *p;

	if (!st->pending)
		return;
	p = bpf_map_lookup_elem(&pendings, key);
	if (p && p->isn && seq == p->isn + 1)
		abandon_pending(st, key, p);
}

#endif
