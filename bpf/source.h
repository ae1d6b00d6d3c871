/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a unit comes from: whether its source is exempt, how many of that
 * source are here, and which class it is of. One search for the longest prefix
 * tells all three. The agent has written into each prefix what those around it
 * say, so that an exempt network stays exempt where a class is a part of it.
 *
 * Source and class together are a unit's party, in one word: whoever takes that
 * out of a unit's record by an exchange gives both back. Units that have a slot
 * or a place carry it; 0 is no party, and costs nothing.
 *
 * What is called here is global, for the verifier to look at once and not for
 * each call. So it returns numbers and is told nothing but numbers and addresses
 * of what its caller has.
 */
#ifndef HEADGATE_SOURCE_H
#define HEADGATE_SOURCE_H

#include "slots.h"

/* Of a party: the lowest bits are its class, the upper ones its source; 0 is none. */
#define PARTY_CLASS ((__u64)(CLASSES - 1))
#define PARTY_SOURCE (~PARTY_CLASS & ~(__u64)(REQUEST_STATE | REQUEST_NTH))

/* Of the word that counts a source: how many, under a tag that is part of its key. */
#define SOURCE_COUNT 0xffffffULL
#define SOURCE_TAG (~SOURCE_COUNT)
#define SOURCE_GONE SOURCE_COUNT /* it is being removed */

#define ANY_NUMBER (SOURCE_GONE - 1)

enum { JOINED, SOURCE_FULL, SOURCE_UNKNOWN };

/* What is known of an arrival before it is judged. */
struct origin {
	__u64 party;
	__u64 release; /* out: when its pace slot is, ns; 0: it has none ahead */
	__u32 limit;   /* most units of its source */
	__u32 exempt;
	__u32 over;    /* out: the enum verdict that it would have met, were one in force; or 0 */
	__u32 pad;
};

static __always_inline __u64 mix(__u64 x)
{
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
	return x ^ x >> 32;
}

static __always_inline bool is_mapped(const __u32 *address)
{
	return !address[0] && !address[1] && address[2] == bpf_htonl(0xffff);
}

/*
 * What the units of an address are counted under. The seed is the target's: keys
 * of different targets are different, and nobody can look for an address with
 * the key of another. That two sources have the same key is as likely as 2^-50.
 */
static __always_inline __u64 source_of(struct policy *p, const __u32 *address)
{
	__u64 high, low;

	if (is_mapped(address)) {
		high = 0;
		low = (__u64)bpf_htonl(0xffff) << 32 | (address[3] & p->mask4);
	} else {
		high = (__u64)(address[0] & p->mask6[0]) << 32 | (address[1] & p->mask6[1]);
		low = (__u64)(address[2] & p->mask6[2]) << 32 | (address[3] & p->mask6[3]);
	}
	low = mix(low ^ mix(high ^ p->seed)) & PARTY_SOURCE;
	return low ? low : ~PARTY_SOURCE + 1;
}

__noinline int find_origin(__u32 target, struct address *a, struct origin *o)
{
	struct source_key key = { .length = 8 * (sizeof(key) - sizeof(key.length)), .target = target };
	struct policy *p = bpf_map_lookup_elem(&policies, &target);
	struct source *s;

	if (!p || !a || !o)
		return 0;
	key.address = *a;
	s = bpf_map_lookup_elem(&sources, &key);
	if (s && s->exempt) {
		o->exempt = 1;
		return 0;
	}
	if (p->classes)
		o->party = s && s->class ? s->class & PARTY_CLASS : CLASS_OTHERS;
	if (s && s->limit) {
		o->limit = s->limit;
		o->party |= s->range & PARTY_SOURCE;
	} else if (p->source_limit) {
		o->limit = p->source_limit;
		o->party |= source_of(p, a->word);
	}
	return 0;
}

/* Fills in o, which is zeroed. */
static __always_inline void origin_of(struct target_conf *conf, __u32 target, __u32 *address,
				      struct origin *o)
{
	if (conf->flags & TARGET_SOURCES)
		find_origin(target, (struct address *)address, o);
}

/*
 * One more unit of a source, unless limit are here. A word whose tag is another
 * has just become that of another source: this one's is to be looked for again,
 * and so it is while somebody removes it, who found that nobody was left.
 */
__noinline int source_join(__u64 party, __u32 limit)
{
	__u64 key = party & PARTY_SOURCE, one = (key & SOURCE_TAG) | 1, was, *word;
	int err, i;

#pragma clang loop unroll(disable)
	for (i = 0; i < TRIES; i++) {
		word = bpf_map_lookup_elem(&source_counts, &key);
		if (!word) {
			err = bpf_map_update_elem(&source_counts, &key, &one, BPF_NOEXIST);
			if (!err)
				return JOINED;
			if (err != -EEXIST)
				return SOURCE_UNKNOWN;
			continue;
		}
		was = *word;
		if ((was ^ one) & SOURCE_TAG || (was & SOURCE_COUNT) == SOURCE_GONE)
			continue;
		if ((was & SOURCE_COUNT) >= limit)
			return SOURCE_FULL;
		if (__sync_val_compare_and_swap(word, was, was + 1) == was)
			return JOINED;
	}
	return SOURCE_UNKNOWN;
}

/* One unit less: it is counted, so its source's word is there. */
__noinline int source_leave(__u64 party)
{
	__u64 key = party & PARTY_SOURCE, empty, was, *word;

	word = key ? bpf_map_lookup_elem(&source_counts, &key) : NULL;
	if (!word)
		return 0;
	was = __sync_fetch_and_add(word, -1);
	empty = was & SOURCE_TAG;
	if (was != (empty | 1) || __sync_val_compare_and_swap(word, empty, empty | SOURCE_GONE) != empty)
		return 0;
	/* It may fail, where it has interrupted another change; then the next one that leaves tries again. */
	if (bpf_map_delete_elem(&source_counts, &key))
		__sync_val_compare_and_swap(word, empty | SOURCE_GONE, empty);
	return 0;
}

/*
 * The source of an arrival takes one more unit, if it may. Where there is no
 * room to count it, it is let in uncounted.
 */
static __always_inline bool source_admits(__u32 target, struct origin *o, __u32 limit)
{
	if (!(o->party & PARTY_SOURCE))
		return true;
	switch (source_join(o->party, limit)) {
	case SOURCE_FULL:
		return false;
	case SOURCE_UNKNOWN:
		o->party &= PARTY_CLASS;
		COUNT(target, source_full);
	}
	return true;
}

#endif
