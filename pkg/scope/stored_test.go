package scope_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"headgate/internal/lab"
	"headgate/pkg/scope"
)

// Connections to the first and the last port are told of, and to none beside them.
func TestNotStoredBetweenPorts(t *testing.T) {
	srv := lab.ForTest(t, "srv").Host("srv")
	word := &btf.Int{Name: "int", Size: 4}
	storage, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.SkStorage, Flags: 1, /* BPF_F_NO_PREALLOC */
		KeySize: 4, ValueSize: 4, Key: word, Value: word,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { storage.Close() })
	var want []string
	for port := uint16(8079); port <= 8083; port++ {
		for _, address := range []string{"127.0.0.1", "::1"} {
			at := netip.AddrPortFrom(netip.MustParseAddr(address), port)
			ln, err := srv.Listen("tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			c, err := srv.Dial(t.Context(), "tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if port >= 8080 && port <= 8082 {
				want = append(want, fmt.Sprint(port, " ", address))
			}
		}
	}
	var got []string
	list := func(more bool) {
		err := srv.Do(func() error {
			return scope.NotStored(storage.FD(), 8080, 8082, func(port uint16, client netip.Addr) bool {
				got = append(got, fmt.Sprint(port, " ", client))
				return more
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	list(true)
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got = nil
	list(false)
	if len(got) != 1 {
		t.Errorf("after it was told to stop: %v", got)
	}
}
