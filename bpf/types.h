/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Values of the maps that Go reads or writes. Fixed widths, explicit padding;
 * the Go types are generated from these, and a test compares both layouts.
 */
#ifndef HEADGATE_TYPES_H
#define HEADGATE_TYPES_H

#include "hist.h"

/*
 * What a target is known by: the cookie of its network namespace (a count of
 * namespaces, far below 2^48) above its port in host byte order. IPv4, IPv6 and
 * v4-mapped are one. 0 and 1 are no keys: cookies begin at 1.
 */
typedef __u64 target_key;

enum {
	PORT_FREE,  /* here a search ends */
	PORT_TAKEN, /* here was a target: a search goes on */
};

/*
 * A place of the table that says which target a key is: open addressing, linear
 * probing. It is searched for every SYN of the host and every packet that comes
 * in on a device of a scope where something waits, and this takes a third of
 * what a BPF hash map does.
 */
struct port {
	target_key key;
	__u32 target;
	__u32 pad;
};

enum target_flags {
	TARGET_ENFORCE = 1 << 0, /* refuse what is over the limit; else only count it */
	TARGET_INGRESS = 1 << 1, /* decided on the device: what is over may be held, or dropped */
	TARGET_REQUEST = 1 << 2, /* the unit is a request, not a connection */
	TARGET_DROP = 1 << 3,    /* refuse by silence, not by a reset */
	TARGET_IDLE = 1 << 4,    /* a request ends when the output is idle, not at its first byte */
	TARGET_SOURCES = 1 << 5, /* where a unit comes from matters */
	TARGET_PARTIES = 1 << 6, /* and not only for who is exempt; or it once did */
	TARGET_ACCEPT = 1 << 7,  /* SIGNAL_LIFETIME is the wait until the application took it up */
};

enum signal {
	SIGNAL_SERVICE,   /* last request byte in to first response byte out */
	SIGNAL_RTT,       /* TCP round trip; includes the client's delayed ACK */
	SIGNAL_HANDSHAKE, /* SYN-ACK to ACK: a round trip without delayed ACK */
	SIGNAL_LIFETIME,  /* of a connection; see TARGET_ACCEPT */
	SIGNALS,
};

/* Written by the agent, read by the programs. */
struct target_conf {
	__u64 lease;         /* until then the limit holds, CLOCK_MONOTONIC ns; later the gate is open */
	enum target_flags flags;
	__u32 limit;         /* most units in flight */
	__u32 after_refusal; /* the same, once something was refused in this tick */
	enum signal signal;  /* which signal a cohort times */
	__u32 tick;          /* changes with every write */
	__u32 cohort_epoch;  /* the cohort that gathers now */
	__u32 cohort_size;   /* units it takes; 0: none gathers */
	__u32 max_waiting;   /* most units that are held at once; 0: none is */
	__u64 max_wait;      /* how long a unit is held for a slot, ns */
	__u64 pace_interval; /* from one admission to the next, ns; 0: no pace */
	__u64 pace_credit;   /* how far the schedule may lag behind the clock, ns */
	__u64 pace_max_wait; /* how far off the pace slot of an arrival may be, ns */
	__u64 doubt;         /* output so soon after a request that may be session tickets is, ns */
	__u64 idle;          /* with TARGET_IDLE: how long the output has to be, ns */
	__u64 reads_since;   /* with TARGET_ACCEPT: of older connections a read may have gone unseen, ns */
	__u32 strangers;     /* most that are let through to the listener a second, in flood mode; 0: all */
	__u32 pad;
};

/* Written by the programs, read by the agent. */
struct target_state {
	__u64 units;      /* in flight (low half); waiting (high half) */
	__u64 peak;       /* most in flight (low half) in a tick (high half) */
	__u32 pending;    /* reservations in flight that are no connection yet */
	__u32 refused_in; /* last tick in which something was refused */
	__u32 listens;    /* calls of listen(2) seen */
	__u32 connections; /* with TARGET_REQUEST, which does not count them in units */
	__u64 paced;      /* the pace slot given out last, ns; 0: none yet */
	__u64 told;       /* tick (high half), refusals told the agent in it (low half) */
	__u64 flood_until; /* until then it is in flood mode, ns */
	__u64 listened;   /* when listen(2) was last called, ns; 0: not seen */
	__u32 handshake;  /* a decaying maximum of their round trips, us */
	__u32 crowd;      /* SYNs that found it full of late, while handshakes go on */
	__u32 defers;     /* 1: its listener waits for clients to speak (TCP_DEFER_ACCEPT) */
	__u32 pad;
};

/* Of a target in flood mode, or on the way there: see flood.h. */
struct flood {
	__u64 swept;  /* the sweep that counts now, ns */
	__u64 crowded; /* since when the crowd is counted, ns */
	__u64 period; /* when it began, ns */
	__u32 dead;   /* reservations that are not answered, as that sweep knows them */
	__u32 strangers; /* that came in this period */
	__u32 passed; /* of these, those that the listener was to have */
	__u32 made;   /* of these, those that completed their handshake */
};

/* Clients of an IPv4 address, v4-mapped, or of an IPv6 network of /64. */
struct acquaintance {
	__u64 until;   /* it is known, ns */
	__u64 shunned; /* until then it is not made known again, ns */
};

/*
 * The units a probe times: the first cohort_size of those that were admitted
 * after it was asked for.
 */
struct cohort {
	__u64 joined; /* epoch (high half), units that joined (low half) */
	__u64 done;   /* of these, finished */
	__u64 sum;    /* of the latencies of the finished, ns */
	__u64 starts; /* sum of the start times of the unfinished, ns */
};

/*
 * Per CPU, and as long as some cache lines: each is one CPU's. Nothing in it is
 * ever reset: readers keep what they saw last.
 */
struct target_counters {
	__u64 converted;    /* reservations that became connections */
	__u64 unreserved;   /* connections that had no reservation */
	__u64 adopted;      /* connections older than the programs */
	__u64 finished;
	__u64 expired;      /* reservations whose handshake never ended */
	__u64 rejected;
	__u64 would_reject; /* over the limit, let in: observing, or no fresh lease */
	__u64 pending_full; /* no room for a reservation: let in without one */
	__u64 trimmed;      /* connections that there was no slot for, to be ended */
	__u64 untrimmed;    /* of these, those that the agent could not be told of */
	__u64 conn_full;    /* no memory for a connection's record: not counted */
	__u64 unadoptable;  /* of the adopted: this kernel does not tell their end */
	__u64 requests;     /* admitted */
	__u64 held;         /* units that had to wait */
	__u64 claimed;      /* of these, those that got a slot */
	__u64 bypassed;     /* of these, those that came in with nobody to hold them */
	__u64 rejected_pace; /* their pace slot was too far off */
	__u64 hold_full;    /* no room to hold one more */
	__u64 doubtful;     /* requests that may have had their response: a sweep will tell */
	__u64 untold;       /* responses whose begin the agent could not be told: the same */
	__u64 rejected_flood; /* strangers, where the kernel makes no SYN cookies */
	__u64 rejected_source; /* as many of their source were here as may be */
	__u64 source_full;  /* no room to count one more source: let in uncounted by it */
	__u64 exempted;     /* connections that were let in uncounted, for their source is exempt */
	__u64 unwoken;      /* slots that came free and that the agent could not be told of */
	__u64 rested;       /* times that a connection was idle after a response, or adopted so */
	__u64 events_lost;  /* refusals that there was no room to tell of */
	__u64 woken;        /* times that an idle one asked again, or ended; the rest are idle now */
	__u64 samples[SIGNALS];
	__u64 sum[SIGNALS]; /* ns */
	__u64 pad[4];
};

struct histogram {
	__u32 bucket[HIST_BUCKETS];
};

/* One handshake in progress. IPv4 addresses are stored v4-mapped. */
struct pending_key {
	__u32 remote[4];
	__u32 local[4];
	__u32 target;
	__u16 remote_port; /* network byte order */
	__u16 local_port;  /* host byte order */
};

struct pending {
	__u64 expires; /* CLOCK_MONOTONIC, ns; its lowest bit: see ANSWERED */
	__u64 since;
	__u32 cohort;  /* epoch that gathered when the SYN was admitted */
	__u32 isn;     /* the SYN's sequence number, of one that a device has seen; else 0 */
	__u64 party;   /* see source.h */
};

/* A SYN that waits. */
struct hold {
	__u64 expires; /* when nobody has come back for it, ns */
	__u64 release; /* its pace slot, ns; 0: it waits for a free slot alone */
	__u64 interval; /* of the pace that gave it, ns */
	__u32 isn;     /* its sequence number */
	__u32 pad;
	__u64 party;   /* see source.h */
};

enum wake_kind {
	WAKE_SLOT, /* a slot came free on a target where units wait */
	WAKE_IDLE, /* a request has begun to be answered, and ends when that is idle */
	WAKE_TRIM, /* a connection is over the limit, and has to be ended */
};

/* A SYN that has its slot, or had it. */
struct claimed {
	__u64 until; /* it is not looked for any more, ns */
	__u32 isn;
	__u32 pad;
};

/* What the agent is told at once. */
struct wake {
	__u32 target;
	__u32 kind;
	__u64 at; /* ns */
	struct pending_key key; /* of the others: the connection */
	__u32 device; /* what its socket is bound to, by interface index; or 0 */
	__u32 pad;
	__u64 cookie; /* of WAKE_TRIM: the socket */
};

/* What becomes of an arrival. */
enum verdict { ADMIT, HOLD, REJECT_LIMIT, REJECT_PACE, REJECT_SOURCE, REJECT_FLOOD };

/* A refusal that the agent is told of. */
struct event {
	__u64 at; /* ns */
	__u32 target;
	__u16 verdict; /* enum verdict */
	__u16 let_in;  /* 1: it would have been, but nothing is in force */
	__u32 remote[4];
	__u16 remote_port; /* network byte order */
	__u16 pad[3];
};

enum conn_flags {
	CONN_SPOKE = 1 << 0,     /* the client has sent payload */
	CONN_TLS = 1 << 1,       /* and it began with a TLS handshake */
	CONN_HANDSHAKE = 1 << 2, /* TLS: no application data yet */
	CONN_TICKET = 1 << 3,    /* TLS 1.3: session tickets may come before the response */
	CONN_LOGIN = 1 << 4,     /* PostgreSQL: no request yet */
	CONN_UNSEEN = 1 << 5,    /* what it has said came with the handshake; no program saw it */
};

/* What the agent asks of headgate_claim, in the mark of a packet's copy. */
enum claim_op {
	CLAIM_WHEN,      /* does it wait, and for which pace slot (put into tstamp)? */
	CLAIM_SLOT,      /* may it have a slot now? */
	CLAIM_DELIVERED, /* is all that was held of it on its way? */
	CLAIM_GIVE_UP,   /* it waits no longer */
	CLAIM_IDLE,      /* is its response over? If not, look again at tstamp */
};

enum claim_result {
	CLAIM_GONE, /* it does not wait, or no longer */
	CLAIM_FULL,
	CLAIM_OK,
	CLAIM_IN,   /* it does not wait, for it has a slot or needs none */
	CLAIM_LAST, /* CLAIM_OK, and there is no other slot */
};

/* It is held only for the agent to refuse it: its pace slot is too far off, or its source has too many here. */
#define RELEASE_NEVER 0x7fffffffffffffffULL
#define RELEASE_SOURCE (RELEASE_NEVER - 1)

enum request_state {
	REQUEST_NONE,
	REQUEST_HELD = 1 << 4,     /* it waits */
	REQUEST_GRANTING = 2 << 4, /* it has a slot; what came behind it is still on its way */
	REQUEST_BUSY = 3 << 4,     /* the application has it */
	REQUEST_STATE = 3 << 4,    /* the bits that say so */
	REQUEST_FIRST = 1 << 6,    /* the lowest of those that tell it from the one before */
	REQUEST_NTH = 0xff << 6,
};

enum answering {
	ANSWER_NONE,
	ANSWER_BEGUN,     /* the agent has yet to be told */
	ANSWER_ANNOUNCED, /* it was */
};

/* Per socket, gone with the socket. */
struct conn {
	__u32 target;
	__u32 counted;   /* 1 while it holds a slot */
	__u32 resting;   /* 1 while it is kept open for a next request */
	__u32 flags;     /* not atomic: packets only; the slot depends on it where it was trimmed */
	__u32 in_end;    /* sequence number behind the newest byte received */
	__u32 out_end;   /* the same for bytes sent */
	__u32 cohort;    /* epoch of the cohort that it may join, or is in; 0: none */
	__u32 delivered; /* segments whose round trips are known, as TCP counts them */
	__u64 joined;    /* when its unit in the cohort began, ns; 0: it is in none */
	__u64 opened;    /* ns; 0: the record is not complete yet */
	__u64 asked;     /* last request byte in, ns; 0: no request is open */
	__u64 first;     /* from then to output that may be tickets, ns; 0: none */

	/* Where it comes from, see source.h. */
	__u64 party;     /* of its units */
	__u64 taken;     /* of the connection, where it is the unit: to be given back */

	/* With the unit request. */
	__u64 request;     /* enum request_state, and the party of the request; see request.h */
	__u32 per_request; /* 1: this is one, and counted says nothing of a slot */
	__u32 most;        /* units of its source */
	__u32 arrived_end; /* like in_end, before what is held */
	__u32 answering;   /* with TARGET_IDLE: enum answering */
	__u64 arrived;     /* when a held request came; then when it had its slot, ns */
	__u64 release;     /* its pace slot, ns; 0: none */
	__u64 output;      /* last output of a response, or of what may be session tickets, ns */

	__u32 trimmed;     /* 1: it came over the limit, and is to be ended */
	__u32 untouched;   /* 1: with TARGET_ACCEPT, and the application has not read or written yet */
	__u64 heard;       /* then: when the client's first payload came, ns; 0: none has */
	__u32 nth;         /* requests that have begun */
	__u32 blind;       /* 1: this kernel does not tell its end, see conn_look() */
};

/*
 * How many classes there can be: 0 is none, 1 all sources that no other has. A
 * party has four bits for it, and ten that a request has for its state and number.
 */
#define CLASSES 16
#define CLASS_OTHERS 1

/* What a target makes of sources. Written by the agent. */
struct policy {
	__u64 seed;         /* of the keys that sources are counted under */
	__u32 source_limit; /* most units of a source in flight or waiting; 0: any number */
	__u32 mask4;        /* of a source's address, network byte order */
	__u32 mask6[4];
	__u32 classes;      /* 0: none */
	__u32 generation;   /* changes with the shares */
	__u32 share[CLASSES]; /* of the limit, in 2^-SHARE_BITS */
};

struct address {
	__u32 word[4]; /* IPv4 v4-mapped */
};

/* A prefix of the addresses of a target's clients. */
struct source_key {
	__u32 length; /* of target and address that count, bits */
	__u32 target;
	struct address address;
};

/* What is known of it, with all that prefixes around it say. Written by the agent. */
struct source {
	__u64 range; /* what its units are counted under, all together */
	__u32 limit; /* most of them; 0: each source is counted by itself */
	__u32 class; /* 0: of none */
	__u32 exempt;
	__u32 pad;
};

struct class_state {
	__s32 own;     /* units in the part that is its own */
	__s32 free;    /* units in the free part */
	__s32 waiting; /* units that are held */
	__u32 pad;
	__u64 rejected;
};

/* The classes of a target. Written by the programs. */
struct parts {
	__u64 balanced; /* the shares (high half) and the limit (low half) that the parts are for */
	__s32 room;     /* size of the free part */
	__s32 free;     /* units in it */
	struct class_state class[CLASSES];
};

#endif
