package loader

import (
	"encoding/binary"
	"testing"
)

// postgres is a message of PostgreSQL's protocol; of those that begin a
// session the type is 0.
func postgres(kind byte, body string) string {
	m := string(binary.BigEndian.AppendUint32(nil, uint32(4+len(body)))) + body
	if kind == 0 {
		return m
	}
	return string(kind) + m
}

// code is a version, or what stands in its place.
func code(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

func TestPostgresSessionIsNoRequest(t *testing.T) {
	startup := postgres(0, code(3<<16)+"user\x00me\x00\x00")
	query := postgres('Q', "select 1\x00")
	ssl := postgres(0, code(80877103))
	for name, begin := range map[string][]string{
		"at once":             {startup},
		"a later version":     {postgres(0, code(3<<16|2)+"user\x00me\x00\x00")},
		"TLS refused":         {ssl, startup},
		"GSS and TLS refused": {postgres(0, code(80877104)), ssl, startup},
		"password":            {startup, postgres('p', "md5\x00")},
		"SCRAM":               {startup, postgres('p', "SCRAM-SHA-256\x00..."), postgres('p', "c=biws")},
	} {
		t.Run(name, func(t *testing.T) {
			k := newTalk(t)
			for _, m := range begin {
				k.client(m)
				k.want("the session begins", 0, false)
				k.server(postgres('R', code(0)))
				k.want("the server goes on", 0, false)
			}
			k.client(query)
			k.want("a query", 0, true)
			k.server(postgres('C', "SELECT 1\x00"))
			k.want("a response", 1, false)
			k.client(postgres('p', "no password any more"))
			k.want("another request", 1, true)
			k.server(postgres('C', "\x00"))
			k.want("its response", 2, false)
			k.client(postgres('X', ""))
			k.want("the end", 2, false)
		})
	}
	t.Run("cancel", func(t *testing.T) {
		k := newTalk(t)
		k.client(postgres(0, code(80877102)+code(1)+code(2)))
		k.want("no request", 0, false)
	})
	t.Run("in TLS", func(t *testing.T) {
		k := newTalk(t)
		k.client(ssl)
		k.server("S")
		k.tls13()
		k.client(finished256)
		k.server(ticket)
		k.want("the handshake", 0, false)
		k.client(request)
		k.want("a request", 0, true)
	})
	for name, first := range map[string]string{
		"of another length": startup + "x",
		"version 2":         postgres(0, code(2<<16)+"me"),
		"another code":      postgres(0, code(80877105)),
		"too long a cancel": postgres(0, code(80877102)+code(1)+code(2)+code(3)),
		"five bytes":        "PING\n",
		"an X":              "X\x00\x00\x00\x05",
	} {
		t.Run("another protocol, "+name, func(t *testing.T) {
			k := newTalk(t)
			k.client(first)
			k.want("a request", 0, true)
		})
	}
}
