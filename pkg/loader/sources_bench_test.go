package loader

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"headgate/pkg/source"
)

// What it costs to make something of sources: a run of the admission program.
//
//	go test -run '^$' -bench Sources ./pkg/loader
func BenchmarkSources(b *testing.B) {
	var thousand []netip.Prefix
	for i := range 1000 {
		thousand = append(thousand, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	perSource := source.Policy{Limit: 60_000, Prefix4: 24, Prefix6: 64}
	full := perSource
	full.Limit = 1
	class := source.Policy{Classes: []source.Class{{Sources: prefixes("10.1.0.0/16"), Share: 0.3}}}
	both := perSource
	both.Classes = class.Classes
	const other = "198.51.100.1:1000"
	for _, c := range []struct {
		name   string
		policy source.Policy
		from   string
		limit  int
	}{
		{"refused/plain", source.Policy{}, other, 0},
		{"refused/one network exempt", source.Policy{Exempt: thousand[:1]}, other, 0},
		{"refused/1000 networks exempt", source.Policy{Exempt: thousand}, other, 0},
		{"refused/for its source", full, other, 60_000},
		{"refused/per_source", perSource, other, 0},
		{"refused/classes", class, other, 0},
		{"exempt/by one network", source.Policy{Exempt: thousand[:1]}, "10.0.0.1:1000", 0},
		{"exempt/by one of 1000", source.Policy{Exempt: thousand}, "10.0.0.1:1000", 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := newDoorman(b)
			d.sources(c.policy)
			d.order(enforce(c.limit))
			if c.policy.Limit == 1 {
				d.must(true, "198.51.100.2", 1)
				d.keep()
			}
			b.ResetTimer()
			if _, err := d.prog.Run(&ebpf.RunOptions{Context: synFrom(c.from).context(), Repeat: uint32(b.N)}); err != nil {
				b.Fatal(err)
			}
		})
	}
	for _, c := range []struct {
		name   string
		policy source.Policy
	}{
		{"plain", source.Policy{}},
		{"one network exempt", source.Policy{Exempt: thousand[:1]}},
		{"per_source", perSource},
		{"classes", class},
		{"per_source and classes", both},
	} {
		b.Run("admitted/"+c.name, func(b *testing.B) { benchmarkAdmitted(b, c.policy) })
	}
}

// benchmarkAdmitted has each SYN come from another port, so that none is one
// that was sent again. The kernel's own statistics say what a run takes, and
// about 60 ns of it are theirs.
func benchmarkAdmitted(b *testing.B, p source.Policy) {
	const atOnce = 8000 // so many reservations have room
	d := newDoorman(b)
	d.sources(p)
	d.order(enforce(60_000))
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	var took time.Duration
	for i := range b.N {
		if i%atOnce == 0 && i > 0 {
			d.expireAll()
			d.order(enforce(60_000))
		}
		from := fmt.Sprintf("198.51.100.%d:%d", i%256, 1000+i%atOnce)
		s := synFrom(from)
		before, err := d.prog.Stats()
		if err != nil {
			b.Fatal(err)
		}
		if !passes(b, d.prog, s) {
			b.Fatalf("%s is refused", from)
		}
		after, err := d.prog.Stats()
		if err != nil {
			b.Fatal(err)
		}
		took += after.Runtime - before.Runtime
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "kernel-ns/op")
}
