/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the agent does with those that wait. It runs the program with the
 * headers of the held packet, in the namespace that the packet is in.
 */
#ifndef HEADGATE_CLAIM_H
#define HEADGATE_CLAIM_H

#include "arrival.h"

/*
 * Once the gates are open there is a slot for everybody. Whoever ends after it was
 * seen that none is left tells so.
 */
static __always_inline int claim_slot(__u32 target, struct target_conf *conf,
				      struct target_state *st, __u64 party)
{
	__u32 limit = limit_now(conf, st);

	if (!in_force(conf, bpf_ktime_get_ns())) {
		party_is_in(target, conf, st, party, 0);
		return CLAIM_OK;
	}
	if (!party_takes(target, conf, st, limit, party, TAKE_ANY))
		return CLAIM_FULL;
	return in_flight(st->units) < limit ? CLAIM_OK : CLAIM_LAST;
}

/* Whether a SYN that does not wait has its slot, or needs none. */
static __always_inline bool syn_is_in(struct target_conf *conf, struct pending_key *key)
{
	return bpf_map_lookup_elem(&pendings, key) || !in_force(conf, bpf_ktime_get_ns());
}

/* How long after its time is over a SYN may still be claimed: the agent refuses it by then. */
#define OVERDUE 1000000000ULL

static __always_inline int claim_syn(struct __sk_buff *skb, struct target_conf *conf, struct target_state *st,
				     struct pending_key *key, __u32 op)
{
	struct hold *h = bpf_map_lookup_elem(&holds, key);
	struct origin o = {};
	__u64 now, party;
	__u32 isn;
	int slot;

	if (!h)
		return op == CLAIM_WHEN && syn_is_in(conf, key) ? CLAIM_IN : CLAIM_GONE;
	isn = h->isn;
	party = o.party = h->party;
	switch (op) {
	case CLAIM_WHEN:
		skb->tstamp = h->release;
		return CLAIM_OK;
	case CLAIM_GIVE_UP:
		return abandon_hold(st, key) ? CLAIM_OK : CLAIM_GONE;
	case CLAIM_DELIVERED:
		return CLAIM_OK; /* nothing comes behind a SYN */
	}
	now = bpf_ktime_get_ns();
	if (now + RESERVATION_TTL > h->expires + OVERDUE) {
		/* The agent was away: its client has given up, or come in meanwhile. */
		abandon_hold(st, key);
		return CLAIM_GONE;
	}
	slot = claim_slot(key->target, conf, st, party);
	if (slot == CLAIM_FULL)
		return CLAIM_FULL;
	/*
	 * Reserved before it ceases to wait: sent again in between it would be a
	 * new one. It may have gone meanwhile: who deletes it has it. For a moment
	 * it counts twice for its source, once for each of the two records.
	 */
	source_admits(key->target, &o, ANY_NUMBER);
	let_in(key, now, isn);
	/* If its packet is lost now, the client sends another in about a second. */
	reserve(conf, st, key, now, RESERVATION_TTL, isn, o.party);
	if (!drop_hold(key)) {
		if (drop_pending(st, key))
			release_slot(key->target, st, o.party);
		return CLAIM_GONE;
	}
	has_waited(key->target, st, party);
	source_leave(party);
	COUNT(key->target, claimed);
	return slot;
}

static __always_inline int claim_idle(struct __sk_buff *skb, struct target_conf *conf, struct conn *c)
{
	__u64 seen = request_seen(c), over = c->output + conf->idle;

	if (!c->answering || seen == REQUEST_NONE)
		return CLAIM_GONE;
	if (bpf_ktime_get_ns() < over) {
		skb->tstamp = over;
		return CLAIM_FULL;
	}
	return request_end(c, seen) ? CLAIM_OK : CLAIM_GONE;
}

/* passed: what lies before this sequence number is on its way. */
static __always_inline int claim_request(struct __sk_buff *skb, struct target_conf *conf,
					 struct target_state *st, struct conn *c, __u32 op, __u32 passed)
{
	__u64 held, party;
	int slot;

	switch (op) {
	case CLAIM_WHEN:
		skb->tstamp = c->release;
		return request_of(c) == REQUEST_HELD ? CLAIM_OK : CLAIM_GONE;
	case CLAIM_DELIVERED:
		/*
		 * What has come by since is on its way to the agent: what follows must not
		 * overtake it. But for a race: it may do so when both come between the
		 * comparison and the turn.
		 */
		if (request_of(c) == REQUEST_GRANTING && after(c->arrived_end, passed) &&
		    bpf_ktime_get_ns() < c->arrived + GRANTING_TIME)
			return CLAIM_FULL;
		return turn(c, REQUEST_GRANTING, REQUEST_BUSY, &party) ? CLAIM_OK : CLAIM_GONE;
	case CLAIM_GIVE_UP:
		if (!turn(c, REQUEST_HELD, REQUEST_NONE, &party))
			return CLAIM_GONE;
		stop_waiting(c->target, st, party);
		return CLAIM_OK;
	}
	if (op == CLAIM_IDLE)
		return claim_idle(skb, conf, c);
	held = c->request;
	party = party_of(held);
	if ((held & REQUEST_STATE) != REQUEST_HELD)
		return CLAIM_GONE;
	slot = claim_slot(c->target, conf, st, party);
	if (slot == CLAIM_FULL)
		return CLAIM_FULL;
	c->arrived = bpf_ktime_get_ns();
	if (__sync_val_compare_and_swap(&c->request, held, in_state(held, REQUEST_GRANTING)) != held) {
		release_slot(c->target, st, party & PARTY_CLASS); /* its source went with its place */
		return CLAIM_GONE;
	}
	has_waited(c->target, st, party);
	cohort_enter(c, conf); /* admitted now, whenever it came */
	COUNT(c->target, claimed);
	COUNT(c->target, requests);
	return slot;
}

static __always_inline int claim(struct __sk_buff *skb, __u64 netns)
{
	struct pending_key key = {};
	struct target_state *st;
	struct target_conf *conf;
	__u32 op = skb->mark;
	struct received r = {};
	struct segment s;
	struct conn *c;
	__u32 *target;
	__u8 flags;

	if (!parse_arrival(skb, &s, &key, &flags))
		return CLAIM_GONE;
	target = target_of(netns, key.local_port);
	if (!target)
		return CLAIM_GONE;
	key.target = *target;
	conf = conf_of(key.target);
	st = state_of(key.target);
	if (!conf || !st)
		return CLAIM_GONE;
	if (flags & TCP_SYN)
		return claim_syn(skb, conf, st, &key, op);
	/*
	 * Of an earlier rule: no request is counted any more. It is not looked for,
	 * since in place of a connection that is gone the kernel looks for its
	 * listener, and has headgate_admit() asked for a slot.
	 */
	if (!(conf->flags & TARGET_REQUEST))
		return CLAIM_GONE;
	c = conn_of_segment(skb, &key, &r);
	if (!c || !c->per_request)
		return CLAIM_GONE;
	return claim_request(skb, conf, st, c, op, s.seq);
}

#endif
