/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * TCP segments as packets show them. On a device there may or may not be a
 * link header and tags before the network header: everything is counted from
 * that one.
 */
#ifndef HEADGATE_SEGMENT_H
#define HEADGATE_SEGMENT_H

#include "maps.h"

#define PACKET_HOST 0 /* pkt_type: sent to this device */

#define VLAN_ID 0xfff /* of vlan_tci; 0 is none */

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

#define TCP_HEADER 20

#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define IP_OFFSET 0x1fff

struct segment {
	__u32 seq;     /* of the first payload byte */
	__u32 len;     /* of the payload, 0 if there is none */
	__u32 offset;  /* of the payload, from the network header on */
};

static __always_inline long load(struct __sk_buff *skb, __u32 offset, void *to, __u32 len)
{
	return bpf_skb_load_bytes_relative(skb, offset, to, len, BPF_HDR_START_NET);
}

#define ETH_HLEN 14

/* What is before the network header: nothing at a socket and on some devices, else Ethernet's header. */
static __always_inline __u32 link_length(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	__u64 begin;

	if (data + sizeof(begin) > (void *)(long)skb->data_end || load(skb, 0, &begin, sizeof(begin)))
		return 0;
	return *(__u64 *)data == begin ? 0 : ETH_HLEN;
}

/*
 * Of the payload, which is as a rule in pages: there load() does not see it.
 */
static __always_inline long load_payload(struct __sk_buff *skb, struct segment *s, __u32 at, void *to,
					 __u32 len)
{
	return bpf_skb_load_bytes(skb, link_length(skb) + s->offset + at, to, len);
}

/* Sequence numbers wrap. */
static __always_inline bool after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* What TCP has of the client's bytes, and how many it takes. */
struct received {
	__u32 next; /* sequence number of the next that is missing */
	__u32 most; /* behind the window */
};

static __always_inline void received_by(struct tcp_sock *tp, struct received *r)
{
	r->next = tp->rcv_nxt;
	r->most = tp->rcv_wup + tp->rcv_wnd;
}

/*
 * Whether a segment goes on where the last one ended, as known (end) or as TCP
 * has it. Programs see a segment before TCP has judged it: one that leaves a gap
 * or is beyond the window says nothing of where the client is, and must not make
 * all that follow look like repetitions.
 */
static __always_inline bool goes_on(struct segment *s, struct received *r, __u32 end)
{
	if (after(r->next, end))
		end = r->next;
	return !after(s->seq, end) && after(s->seq + s->len, end) && after(r->most, s->seq);
}

/* Whether TCP has a use for a segment: it is not all there, nor beyond the window. */
static __always_inline bool in_window(struct segment *s, struct received *r)
{
	return after(s->seq + s->len, r->next) && after(r->most, s->seq);
}

struct ipv4 {
	__u8 version_ihl, tos;
	__be16 length, id, offset;
	__u8 ttl, protocol;
	__be16 check;
	__u32 source, destination;
};

struct ipv6 {
	__be32 flow;
	__be16 length;
	__u8 protocol, ttl;
	__u32 source[4], destination[4];
};

struct tcp {
	__be16 source, destination;
	__be32 seq, ack_seq;
	__u8 offset, flags;
};

/*
 * On a device packets of all kinds come by. Fills in key but
 * for its target. Fragments and IPv6 extension headers are nothing that this
 * can see through: what is not admitted here is admitted at the lookup.
 */
static __always_inline bool parse_arrival(struct __sk_buff *skb, struct segment *s,
					  struct pending_key *key, __u8 *flags)
{
	__u32 ip_len, length;
	struct tcp tcp;

	/* Both headers at once: each call costs as much as the rest of this. */
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct {
			struct ipv4 ip;
			struct tcp tcp;
		} h;

		if (load(skb, 0, &h, sizeof(h.ip) + sizeof(struct tcp)) || h.ip.protocol != IPPROTO_TCP ||
		    h.ip.offset & bpf_htons(IP_OFFSET))
			return false;
		ip_len = (h.ip.version_ihl & 0xf) << 2;
		length = bpf_ntohs(h.ip.length);
		key->remote[2] = key->local[2] = bpf_htonl(0xffff);
		key->remote[3] = h.ip.source;
		key->local[3] = h.ip.destination;
		tcp = h.tcp;
		if (ip_len != sizeof(h.ip) && load(skb, ip_len, &tcp, sizeof(struct tcp)))
			return false;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct {
			struct ipv6 ip;
			struct tcp tcp;
		} h;

		if (load(skb, 0, &h, sizeof(h.ip) + sizeof(struct tcp)) || h.ip.protocol != IPPROTO_TCP)
			return false;
		ip_len = sizeof(h.ip);
		length = ip_len + bpf_ntohs(h.ip.length);
		__builtin_memcpy(key->remote, h.ip.source, sizeof(h.ip.source));
		__builtin_memcpy(key->local, h.ip.destination, sizeof(h.ip.destination));
		tcp = h.tcp;
	} else {
		return false;
	}
	key->remote_port = tcp.source;
	key->local_port = bpf_ntohs(tcp.destination);
	*flags = tcp.flags;
	s->seq = bpf_ntohl(tcp.seq);
	s->offset = ip_len + ((tcp.offset >> 4) << 2);
	s->len = length > s->offset ? length - s->offset : 0;
	return true;
}

#endif
